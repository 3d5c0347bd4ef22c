//! GnuTLS and NSS, the library of Firefox, as the client: `gnutls-cli` and `tstclnt`.

use std::process::Command;

use spliceway_net::has_tool;

use super::{
    ALONE, End, LAST, Peer, SIZE, check_record, check_switched, content, exchange, exchange_bytes, finish, pass, relay,
};
use crate::harness::{Folder, accept, assert_same, listen, read_all};
use crate::tls::client::Pair;

/// Returns content as lines, because `gnutls-cli` reads lines. Both parts of [`exchange_bytes`] end
/// with a line.
fn lines(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = content(seed, length);
    for last in [ALONE.min(length), length] {
        bytes[last - 1] = b'\n';
    }
    bytes
}

#[test]
fn a_client_with_gnutls_changes_keys_and_ends_first() {
    if !has_tool("gnutls-cli", "gnutls-bin") {
        return;
    }
    let pair = Pair::new(&["a.test"]);
    let (listener, target) = listen();
    let mut program = relay(&target.to_string(), &pair.arguments());
    for changes_keys_early in [false, true] {
        let mut command = Command::new("gnutls-cli");
        command.args(["--x509cafile", pair.certificate.path(), "--logfile", "/dev/null"]);
        command.args(["--sni-hostname", "a.test", "--verify-hostname", "a.test"]);
        command.args(["--inline-commands", "--port", &program.address.port().to_string()]);
        let mut peer = Peer::start(command.arg("127.0.0.1"));
        let mut plain = accept(&listener);
        if changes_keys_early {
            peer.send(b"^rekey^\n");
        }
        exchange_bytes(&mut peer, &mut plain, &lines(1, SIZE), &content(2, SIZE));
        for seed in 3..6 {
            // The other side must change its keys, too.
            peer.send(b"^rekey^\n");
            pass(&mut peer, &mut plain, &lines(seed, LAST));
            pass(&mut plain, &mut peer, &content(seed, LAST));
        }
        peer.finish();
        assert_eq!(read_all(&plain), b"");
        plain.send(&content(7, LAST));
        finish(&plain);
        let (is_well, rest, said) = peer.end();
        assert!(is_well, "{said}");
        assert_same(&rest, &content(7, LAST));
        let bytes = [SIZE + 3 * LAST, SIZE + 4 * LAST];
        check_record(&program.line("bytes_up="), "client", bytes, &["end=client_eof"]);
    }
    check_switched(&program, 2);
}

#[test]
fn a_client_with_nss_exchanges_every_byte() {
    if !has_tool("tstclnt", "libnss3-tools") || !has_tool("certutil", "libnss3-tools") {
        return;
    }
    let (pair, folder) = (Pair::new(&["a.test"]), Folder::new("nss"));
    let database = format!("sql:{}", folder.0.display());
    let mut make = Command::new("certutil");
    make.args(["-N", "--empty-password", "-d", &database]);
    assert!(make.status().unwrap().success());
    let (listener, target) = listen();
    let mut program = relay(&target.to_string(), &pair.arguments());
    let mut command = Command::new("tstclnt");
    command.args(["-h", "127.0.0.1", "-p", &program.address.port().to_string()]);
    // `-o` accepts any certificate.
    command.args(["-o", "-V", "tls1.3:tls1.3", "-d", &database]);
    let mut peer = Peer::start(&mut command);
    let mut plain = accept(&listener);
    exchange(&mut peer, &mut plain, SIZE);
    finish(&plain);
    // It shows its counts at the end of what it receives. Then it waits, and does not see that a
    // pipe on its stdin ends.
    peer.line(" stateless resumes");
    // If it has not read all records, the kernel resets its connection. So any end is right.
    peer.kill();
    let record = program.line("bytes_up=");
    assert!(
        record.contains(&format!(" bytes_up={SIZE} bytes_down={SIZE} ")),
        "{record}"
    );
    check_switched(&program, 1);
}
