//! Several ACME servers, and how they are verified.

use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, IsCa};

use super::{ISSUED, LONG, ORDER, Pebble, READ, State, arguments, busy_server, client, forward};
use crate::harness::refusing;
use crate::tls::client::Pair;
use crate::tls::client_cert::{Authority, dns};

const NO_PATIENCE: &str = "HTTP/1.1 429 Too Many Requests\r\nContent-Length: 2\r\n\r\n{}";
const FAILED: &str = "no new certificate for";

#[test]
fn two_servers_with_one_folder_replace_no_certificate_of_each_other() {
    let (addresses, state) = ([refusing(), refusing()], State::new("acme-servers"));
    let start = |at: usize| Pebble::start(addresses[at].port(), 1, LONG);
    let (Some(first), Some(second)) = (start(0), start(1)) else {
        return;
    };
    let mut program = forward(addresses[0], &first.arguments("o.test", &state));
    program.line(READ);
    let own = client(addresses[0], "o.test").certificate();
    let mut other = forward(addresses[1], &second.arguments("o.test", &state));
    other.line(ISSUED);
    other.line(READ);
    assert!(client(addresses[1], "o.test").certificate() != own);
    program.terminate();
    assert!(program.exit().success());
    let program = forward(addresses[0], &first.arguments("o.test", &state));
    assert!(client(addresses[0], "o.test").certificate() == own);
    first.expect(ORDER, 1);
    second.expect(ORDER, 1);
    drop((program, other));
}

#[test]
fn the_certificate_of_another_server_serves_until_the_first_of_a_new_one() {
    let (address, state) = (refusing(), State::new("acme-moved"));
    let Some(pebble) = Pebble::start(address.port(), 1, LONG) else {
        return;
    };
    let mut program = forward(address, &pebble.arguments("p.test", &state));
    program.line(READ);
    let old = client(address, "p.test").certificate();
    program.terminate();
    assert!(program.exit().success());
    // An order to revoke is for the server that has issued the certificate.
    std::fs::write(state.file("p.test.revoke"), "").unwrap();
    let mut program = forward(address, &arguments("p.test", &state, refusing(), &pebble.authority));
    program.line(FAILED);
    program.line(READ);
    assert!(client(address, "p.test").certificate() == old);
    program.terminate();
    assert!(program.exit().success());
    let Some(next) = Pebble::start(address.port(), 1, LONG) else {
        return;
    };
    let mut program = forward(address, &next.arguments("p.test", &state));
    program.line(ISSUED);
    pebble.expect(ORDER, 1);
    next.expect(ORDER, 1);
}

/// Returns files with these PEMs.
fn pair(certificate: &str, key: &str) -> Pair {
    let pair = Pair::new(&["localhost"]);
    pair.certificate.write(certificate);
    pair.key.write(key);
    pair
}

/// Makes a certificate that serves TLS.
fn serves(params: &mut CertificateParams) {
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
}

/// Returns why a program gets no certificate from a server with this certificate, if it trusts the
/// other one.
fn failure(name: &str, server: &Pair, trusted: &Pair) -> String {
    let state = State::new(name);
    let (address, _) = busy_server(server, NO_PATIENCE);
    let mut program = forward(refusing(), &arguments("q.test", &state, address, trusted));
    program.line(FAILED)
}

#[test]
fn a_server_is_trusted_by_its_own_certificate_even_if_that_is_one_of_a_ca() {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let own = pair(&params.self_signed(&key).unwrap().pem(), &key.serialize_pem());
    let line = failure("acme-own", &own, &own);
    assert!(line.contains("429 Too Many Requests"), "{line}");
}

#[test]
fn what_a_certificate_that_is_no_ca_has_issued_is_not_trusted() {
    for (state, is_ca, expected) in [
        (
            "acme-ca",
            IsCa::Ca(rcgen::BasicConstraints::Unconstrained),
            "429 Too Many Requests",
        ),
        (
            "acme-no-ca",
            IsCa::NoCa,
            "in acme_ca is that of a server and not of a CA",
        ),
    ] {
        let issuer = Authority::changed("issuer", |params| {
            params.is_ca = is_ca;
            params.key_usages.clear();
        });
        let issued = issuer.issue("", &[dns("localhost")], serves);
        let trusted = pair(&issuer.pem, &issued.key);
        let line = failure(state, &pair(&issued.chain, &issued.key), &trusted);
        assert!(line.contains(expected), "{line}");
    }
}

#[test]
fn an_unknown_certificate_of_a_server_is_named_with_the_remedy() {
    let server = Pair::new(&["localhost"]);
    let line = failure("acme-unknown", &server, &Pair::new(&["localhost"]));
    assert!(
        line.contains("self-signed and not trusted") && line.contains("acme_ca"),
        "{line}"
    );
    assert!(!line.contains("target_tls_ca"), "{line}");
}
