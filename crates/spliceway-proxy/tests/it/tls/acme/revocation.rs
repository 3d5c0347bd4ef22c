//! Certificates that the operator has revoked.

use std::fs;
use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::date_time_ymd;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::{ISSUED, LONG, ORDER, Pebble, READ, SHORT, State, client, forward};
use crate::harness::refusing;
use crate::tls::client::Pair;
use crate::tls::client_cert::Authority;

const REVOKE: &str = "POST /revoke-cert";

/// Orders the program to revoke a certificate that another one has replaced.
fn revoke(file: &PathBuf, old: &CertificateDer<'_>) {
    fs::write(file, STANDARD.encode(old)).unwrap();
}

#[test]
fn a_certificate_is_replaced_and_then_revoked_if_the_operator_asks_for_it() {
    let (address, state) = (refusing(), State::new("acme-revoked"));
    let Some(mut pebble) = Pebble::start(address.port(), 1, LONG) else {
        return;
    };
    let mut program = forward(address, &pebble.arguments("f.test", &state));
    program.line(ISSUED);
    let old = state.certificate("f.test");
    program.terminate();
    assert!(program.exit().success());
    let file = state.file("f.test.revoke");
    fs::write(&file, "").unwrap();
    // The pause after a success is over.
    state.allow_a_try("f.test");
    let mut program = forward(address, &pebble.arguments("f.test", &state));
    program.line(ISSUED);
    program.line("acme: the old certificate of f.test is revoked");
    let new = state.certificate("f.test");
    assert_ne!(new, old);
    pebble.expect(ORDER, 2);
    pebble.expect(REVOKE, 1);
    assert!(!file.exists());
    // A server that is down is asked again later, and no other certificate is ordered then.
    program.terminate();
    assert!(program.exit().success());
    revoke(&file, &old);
    pebble.stop();
    let mut program = forward(address, &pebble.arguments("f.test", &state));
    let line = program.line("the old certificate of f.test is not revoked");
    assert!(line.contains("The next try is at"), "{line}");
    assert!(file.exists() && state.certificate("f.test") == new);
    assert_eq!(program.sum("spliceway_acme_tries_total", &["result=\"failed\""]), 0);
}

#[test]
fn a_revocation_that_fails_does_not_stop_renewals() {
    let (address, state) = (refusing(), State::new("acme-not-revoked"));
    let Some(pebble) = Pebble::start(address.port(), 1, SHORT) else {
        return;
    };
    let mut program = forward(address, &pebble.arguments("l.test", &state));
    program.line(READ);
    let first = state.certificate("l.test");
    // The server has not issued this one.
    let file = state.file("l.test.revoke");
    revoke(&file, &Pair::new(&["l.test"]).der());
    program.line("the old certificate of l.test is not revoked");
    program.line(ISSUED);
    program.line(READ);
    let second = state.certificate("l.test");
    assert!(second != first && client(address, "l.test").certificate() == second);
    assert!(file.exists());
}

#[test]
fn a_certificate_in_force_is_replaced_before_it_is_revoked_after_a_crash() {
    let (address, state) = (refusing(), State::new("acme-crash"));
    let Some(pebble) = Pebble::start(address.port(), 1, LONG) else {
        return;
    };
    let mut program = forward(address, &pebble.arguments("m.test", &state));
    program.line(ISSUED);
    program.terminate();
    assert!(program.exit().success());
    // The program was killed after it had kept the old certificate, and before it used the new one.
    let (file, old) = (state.file("m.test.revoke"), state.certificate("m.test"));
    revoke(&file, &old);
    state.allow_a_try("m.test");
    let mut program = forward(address, &pebble.arguments("m.test", &state));
    program.line("acme: the old certificate of m.test is revoked");
    assert_ne!(state.certificate("m.test"), old);
    pebble.expect(ORDER, 2);
    pebble.expect(REVOKE, 1);
    assert!(!file.exists());
}

#[test]
fn an_old_certificate_that_has_expired_is_not_revoked() {
    let (address, state) = (refusing(), State::new("acme-expired"));
    let Some(pebble) = Pebble::start(address.port(), 1, LONG) else {
        return;
    };
    let mut program = forward(address, &pebble.arguments("n.test", &state));
    program.line(ISSUED);
    program.terminate();
    assert!(program.exit().success());
    let expired = Authority::changed("n.test", |params| params.not_after = date_time_ymd(2001, 2, 3));
    let file = state.file("n.test.revoke");
    revoke(&file, &CertificateDer::from_pem_slice(expired.pem.as_bytes()).unwrap());
    let mut program = forward(address, &pebble.arguments("n.test", &state));
    program.line("the old certificate of n.test has expired, so it is not revoked");
    assert!(!file.exists());
    pebble.expect(ORDER, 1);
    pebble.expect(REVOKE, 0);
}
