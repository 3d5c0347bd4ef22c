//! Other people's TLS clients, through the router to a server that only it reaches by name.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use spliceway_net::has_tool;

use super::router;
use crate::harness::{Folder, Program, assert_same, pattern, refusing};
use crate::tls::client::Pair;

const NAME: &str = "www.a.test";

/// A TLS server with a certificate of its own, which serves the file `body`.
struct Server {
    child: Child,
    address: SocketAddr,
    body: Vec<u8>,
    folder: Folder,
}

impl Server {
    fn start(test: &str) -> Self {
        let folder = Folder::new(test);
        // The bytes are safe in a pipe of any tool.
        let body: Vec<u8> = pattern(9, 300_000).iter().map(|byte| b'a' + byte % 26).collect();
        std::fs::write(folder.0.join("body"), &body).unwrap();
        let subject = format!("subjectAltName=DNS:{NAME}");
        let made = Command::new("openssl")
            .current_dir(&folder.0)
            .args([
                "req",
                "-x509",
                "-nodes",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
            ])
            .args([
                "-keyout", "key.pem", "-out", "cert.pem", "-subj", "/CN=a", "-addext", &subject,
            ])
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let mut child = Command::new("openssl")
            .current_dir(&folder.0)
            .args([
                "s_server",
                "-accept",
                "127.0.0.1:0",
                "-cert",
                "cert.pem",
                "-key",
                "key.pem",
            ])
            .args(["-WWW", "-alpn", "http/1.1"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok);
        let listening = lines.find_map(|line| line.strip_prefix("ACCEPT ").map(str::to_owned));
        // The server stops if nobody reads what it says.
        std::thread::spawn(move || lines.for_each(drop));
        Self {
            child,
            address: listening.unwrap().parse().unwrap(),
            body,
            folder,
        }
    }

    /// Starts a router with a route to this server, and with others.
    fn router(&self) -> Program {
        router(&[("*.a.test", self.address), ("b.test", refusing())], &[])
    }

    fn certificate(&self) -> String {
        self.folder.0.join("cert.pem").to_str().unwrap().to_owned()
    }

    /// Asserts that the client, which verifies the certificate, gets the file, and that its record
    /// has the name.
    fn serves(&self, client: &mut Command, mut program: Program) {
        let got = client.output().unwrap();
        let stderr = String::from_utf8_lossy(&got.stderr);
        assert!(got.stdout.ends_with(&self.body), "{} bytes: {stderr}", got.stdout.len());
        let body = &got.stdout[got.stdout.len() - self.body.len()..];
        assert_same(body, &self.body);
        let record = program.line("end=");
        assert!(record.contains(&format!("sni=\"{NAME}\"")), "{record}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn openssl_reaches_its_server_by_name() {
    if !has_tool("openssl", "openssl") {
        return;
    }
    let server = Server::start("sni-openssl");
    let program = server.router();
    let mut request = tempfile_with(b"GET /body HTTP/1.0\r\n\r\n", &server.folder);
    request.args([
        "s_client",
        "-connect",
        &program.address.to_string(),
        "-servername",
        NAME,
    ]);
    request.args(["-quiet", "-verify_return_error", "-CAfile", &server.certificate()]);
    server.serves(&mut request, program);
}

/// Returns a command of openssl whose standard input is a file with these bytes.
fn tempfile_with(bytes: &[u8], folder: &Folder) -> Command {
    let path = folder.0.join("request");
    std::fs::File::create(&path).unwrap().write_all(bytes).unwrap();
    let mut command = Command::new("openssl");
    command.stdin(std::fs::File::open(path).unwrap());
    command
}

#[test]
fn curl_reaches_its_server_by_name() {
    if !has_tool("openssl", "openssl") || !has_tool("curl", "curl") {
        return;
    }
    let server = Server::start("sni-curl");
    let program = server.router();
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--http1.1", "--noproxy", "*", "--cacert", &server.certificate()]);
    curl.args(["--connect-to", &format!("{NAME}:443:{}", program.address)]);
    curl.arg(format!("https://{NAME}/body"));
    server.serves(&mut curl, program);
}

#[test]
fn go_reaches_its_server_by_name() {
    if !has_tool("openssl", "openssl") || !has_tool("go", "golang-go") {
        return;
    }
    let server = Server::start("sni-go");
    let program = server.router();
    let mut go = Command::new("go");
    go.args(["run", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/sni/client.go")]);
    go.args([&program.address.to_string(), NAME, &server.certificate()]);
    server.serves(&mut go, program);
}

#[test]
fn curl_and_openssl_reach_a_route_that_ends_tls_beside_one_that_does_not() {
    if !has_tool("openssl", "openssl") || !has_tool("curl", "curl") {
        return;
    }
    const ENDED: &str = "ended.test";
    let (server, pair) = (Server::start("sni-ended"), Pair::new(&[ENDED]));
    let routes = [
        format!("--route=*.a.test={}", server.address),
        format!("--route={ENDED}=tls://{},tls=terminate", server.address),
    ];
    let certificate = server.certificate();
    let target = ["--target-tls-ca", &certificate, "--target-tls-name", NAME];
    let mut program = Program::proxy(
        "sni",
        &[&[&*routes[0], &routes[1]][..], &pair.arguments(), &target].concat(),
    );
    let address = program.address.to_string();
    for (name, trusted, is_ended) in [(ENDED, pair.certificate.path(), true), (NAME, &certificate, false)] {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--http1.1", "--noproxy", "*", "--cacert", trusted]);
        curl.args(["--connect-to", &format!("{name}:443:{address}")]);
        curl.arg(format!("https://{name}/body"));
        let mut openssl = tempfile_with(b"GET /body HTTP/1.0\r\n\r\n", &server.folder);
        openssl.args(["s_client", "-connect", &address, "-servername", name, "-quiet"]);
        openssl.args(["-verify_return_error", "-CAfile", trusted]);
        for mut client in [curl, openssl] {
            let got = client.output().unwrap();
            let stderr = String::from_utf8_lossy(&got.stderr);
            assert!(
                got.stdout.ends_with(&server.body),
                "{} bytes: {stderr}",
                got.stdout.len()
            );
            let record = program.line("end=");
            assert!(record.contains(&format!("sni=\"{name}\"")), "{record}");
            assert_eq!(record.contains(" tls=\"1.3\""), is_ended, "{record}");
        }
    }
}
