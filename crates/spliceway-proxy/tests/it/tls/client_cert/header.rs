//! What the target learns about the TLS of its client, in a PROXY header.

use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};

use super::*;
use crate::harness::{accept, connect, let_pass, read_exactly};

/// The types of TLVs, and the type of those within `SSL`.
const SSL: u8 = 0x20;

/// Returns the type and the value of each TLV, in the order of the types.
fn tlvs(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut all = Vec::new();
    while let [kind, high, low, rest @ ..] = bytes {
        let (value, next) = rest.split_at(usize::from(u16::from_be_bytes([*high, *low])));
        all.push((*kind, value.to_vec()));
        bytes = next;
    }
    all.sort();
    all
}

/// Returns the TLVs of the header that the target gets.
fn header(listener: &TcpListener) -> Vec<(u8, Vec<u8>)> {
    let mut target = accept(listener);
    let head = read_exactly(&mut target, 16);
    assert_eq!(head[12..14], [0x21, 0x11]);
    let rest = read_exactly(&mut target, usize::from(u16::from_be_bytes([head[14], head[15]])));
    tlvs(&rest[12..])
}

/// Returns the flags, whether the certificate is not verified, and the TLVs in `SSL`.
fn ssl(header: &[(u8, Vec<u8>)]) -> (u8, u32, Vec<(u8, Vec<u8>)>) {
    let (_, value) = header.iter().find(|(kind, _)| *kind == SSL).unwrap();
    let (flags, rest) = value.split_first().unwrap();
    let (verify, rest) = rest.split_first_chunk().unwrap();
    (*flags, u32::from_be_bytes(*verify), tlvs(rest))
}

fn text(kind: u8, value: &str) -> (u8, Vec<u8>) {
    (kind, value.as_bytes().to_vec())
}

#[test]
fn the_target_learns_version_cipher_names_and_certificate() {
    let setting = Setting::new();
    let (listener, target) = listen();
    let more = [
        "--send-proxy",
        "v2-tls",
        "--tls-alpn",
        "h2",
        "--tls-client-verify",
        "optional",
    ];
    let program = Program::forward(target, &setting.arguments(&more));
    let issued = setting.authority.issue("Ann", &[dns("ann.test")], |_| {});
    for (versions, version, cipher) in [
        (TLS12, "TLSv1.2", "ECDHE-ECDSA-AES256-GCM-SHA384"),
        (TLS13, "TLSv1.3", "TLS_AES_256_GCM_SHA384"),
    ] {
        let config = setting.config(&issued).versions(versions).alpn(&["h2"]);
        let _client = Client::connect(&program, &config).unwrap();
        let header = header(&listener);
        assert_eq!(header[..2], [text(1, "h2"), text(2, "a.test")]);
        let expected = [text(0x21, version), text(0x22, "Ann"), text(0x23, cipher)];
        assert_eq!(ssl(&header), (7, 0, expected.to_vec()));
        // This client has no certificate, no name and no protocol.
        let config = Config::anything().versions(versions).name(None);
        let _client = Client::connect(&program, &config).unwrap();
        let header = super::header::header(&listener);
        assert_eq!(header.len(), 1);
        assert_eq!(ssl(&header), (1, 1, [text(0x21, version), text(0x23, cipher)].to_vec()));
    }
}

#[test]
fn facts_of_a_balancer_about_tls_further_away_do_not_reach_the_target() {
    let setting = Setting::new();
    let (listener, target) = listen();
    let accepting = ["--accept-proxy", "v2", "--proxy-from", "127.0.0.1"];
    let v2 = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x28\xc0\0\x02\x07\xc0\0\x02\x08\x04\xd2\x01\xbb";
    let facts = b"\x02\0\x05their\x22\0\x04root\x20\0\x05\x07\0\0\0\0";
    let sent = [&v2[..], facts, b"\xea\0\x02my"].concat();
    for (version, expected) in [("v2-tls", &[2, SSL, 0xea][..]), ("v2", &[0xea])] {
        let more = [&accepting[..], &["--send-proxy", version]].concat();
        let program = Program::forward(target, &setting.arguments(&more));
        let mut socket = program.connect();
        std::io::Write::write_all(&mut socket, &sent).unwrap();
        let _client = Client::over(socket, &setting.config(&setting.authority.host("b.test", 1))).unwrap();
        let header = super::header::header(&listener);
        let kinds: Vec<_> = header.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, expected, "{version}");
        assert!(!header.contains(&text(2, "their")));
    }
}

/// Another program, which ends with the test.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts HAProxy with this front and back. Returns `None` if it is not installed.
fn haproxy(file: &TextFile, address: SocketAddr, front: &str, back: &str) -> Option<Other> {
    file.write(&format!(
        "global\n maxconn 50\ndefaults\n mode tcp\n timeout connect 10s\n timeout client 60s\n timeout server 60s\n\
         frontend f\n {front}\n default_backend b\nbackend b\n {back}\n"
    ));
    let mut command = Command::new("haproxy");
    command.args(["-db", "-q", "-f", file.path()]).stdin(Stdio::null());
    let Ok(child) = command.spawn() else {
        eprintln!("skipped: there is no haproxy (package haproxy)");
        return None;
    };
    let mut other = Other(child);
    while std::net::TcpStream::connect(address).is_err() {
        assert!(other.0.try_wait().unwrap().is_none(), "haproxy has ended");
        let_pass(std::time::Duration::from_millis(10));
    }
    Some(other)
}

#[test]
fn the_target_learns_the_same_as_from_haproxy() {
    let setting = Setting::new();
    let (listener, target) = listen();
    let (file, pem, address) = (TextFile::new(""), TextFile::new(""), refusing());
    let read = |file: &TextFile| std::fs::read_to_string(file.path()).unwrap();
    pem.write(&(read(&setting.pair.certificate) + &read(&setting.pair.key)));
    let front = format!(
        "bind {address} ssl crt {} ca-file {} verify optional",
        pem.path(),
        setting.file.path()
    );
    let back = format!("server s {target} send-proxy-v2-ssl-cn proxy-v2-options ssl,cert-cn,ssl-cipher,authority");
    let Some(_haproxy) = haproxy(&file, address, &front, &back) else {
        return;
    };
    let program = Program::forward(target, &setting.arguments(&["--send-proxy", "v2-tls"]));
    let issued = setting.authority.issue("Ann", &[dns("ann.test")], |_| {});
    for versions in VERSIONS {
        let config = setting.config(&issued).versions(versions);
        let _client = Client::over(connect(address), &config).unwrap();
        let theirs = header(&listener);
        let _client = Client::connect(&program, &config).unwrap();
        assert_eq!(theirs.len(), 2);
        let ours = header(&listener);
        assert_eq!(ours[0], theirs[0]);
        assert_eq!(ssl(&ours), ssl(&theirs));
    }
}

#[test]
fn haproxy_accepts_the_header_and_reads_the_name() {
    let setting = Setting::new();
    let (listener, target) = listen();
    let (file, address) = (TextFile::new(""), refusing());
    let front = format!("bind {address}\n tcp-request connection expect-proxy layer4 if {{ src 127.0.0.1 }}");
    let front = format!("{front}\n tcp-request content reject if !{{ fc_pp_authority a.test }}");
    let back = format!("server s {target}");
    let Some(_haproxy) = haproxy(&file, address, &front, &back) else {
        return;
    };
    let program = Program::forward(address, &setting.arguments(&["--send-proxy", "v2-tls"]));
    let config = setting.config(&setting.authority.host("b.test", 1));
    let mut client = Client::connect(&program, &config).unwrap();
    client.send(b"abc");
    assert_eq!(read_exactly(&mut accept(&listener), 3), b"abc");
}
