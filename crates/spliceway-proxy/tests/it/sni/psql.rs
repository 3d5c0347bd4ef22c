//! psql through the router to real servers of PostgreSQL.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

use spliceway_net::has_tool;

use super::router;
use crate::harness::{Folder, PATIENCE, Program, let_pass, refusing};

/// The server refuses to run as root.
const AS_POSTGRES: [&str; 4] = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"];

/// A server with a certificate for its name.
struct Server {
    child: Child,
    folder: Folder,
    name: &'static str,
    address: SocketAddr,
}

/// Returns a program of the newest installed server, or one in the search path. Debian has no links
/// there.
fn program(name: &str) -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut paths: Vec<_> = versions.map(|version| version.path().join("bin").join(name)).collect();
    paths.sort();
    paths.pop().filter(|path| path.exists()).unwrap_or_else(|| name.into())
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

impl Server {
    fn start(name: &'static str) -> Self {
        let folder = Folder::new(&format!("postgres-{name}"));
        let path = |file: &str| folder.0.join(file);
        std::fs::set_permissions(&folder.0, std::fs::Permissions::from_mode(0o777)).unwrap();
        std::fs::write(path("password"), "secret").unwrap();
        let as_postgres = |name: &str| {
            let mut command = Command::new(AS_POSTGRES[0]);
            command
                .args(&AS_POSTGRES[1..])
                .arg(program(name))
                .arg("-D")
                .arg(path("data"));
            command
        };
        run(as_postgres("initdb")
            .args(["-U", "app", "-A", "scram-sha-256", "--no-sync", "--pwfile"])
            .arg(path("password")));
        let subject = format!("subjectAltName=DNS:{name}");
        run(Command::new("openssl")
            .current_dir(path("data"))
            .args(["req", "-x509", "-nodes", "-newkey", "rsa:2048", "-keyout", "server.key"])
            .args(["-out", "server.crt", "-subj", "/CN=a", "-addext", &subject]));
        std::fs::copy(path("data/server.crt"), path("ca.pem")).unwrap();
        run(Command::new("chown")
            .arg("postgres")
            .args([path("data/server.key"), path("data/server.crt")]));
        let address = refusing();
        let child = as_postgres("postgres")
            .args(["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="])
            .args(["-c", "ssl=on", "-c", &format!("port={}", address.port())])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            child,
            folder,
            name,
            address,
        }
    }

    /// Asks for a value at this address.
    fn psql(&self, at: SocketAddr, options: &str, query: &str) -> Output {
        let target = format!(
            "host={} hostaddr=127.0.0.1 port={} user=app dbname=postgres sslrootcert={} {options}",
            self.name,
            at.port(),
            self.folder.0.join("ca.pem").display()
        );
        let mut command = Command::new("psql");
        command.args([&target, "-XAtc", query]).env("PGPASSWORD", "secret");
        command.output().unwrap()
    }

    fn await_start(&self) {
        let started = Instant::now();
        while !self.psql(self.address, "sslmode=require", "select 1").status.success() {
            assert!(started.elapsed() < PATIENCE, "the server does not start");
            // Sleeps because the server does not say when it is ready.
            let_pass(std::time::Duration::from_millis(50));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A killed server would leave its workers behind.
        let _ = Command::new("kill")
            .args(["-INT", &self.child.id().to_string()])
            .status();
        let _ = self.child.wait();
    }
}

fn start() -> Option<(Program, [Server; 2])> {
    let is_root = rustix::process::getuid().is_root();
    if !is_root || !has_tool("psql", "postgresql-client") || !has_tool("setpriv", "util-linux") {
        return None;
    }
    if program("initdb").parent() == Some(Path::new("")) && !has_tool("initdb", "postgresql") {
        return None;
    }
    let servers = ["db1.test", "db2.test"].map(Server::start);
    servers.iter().for_each(Server::await_start);
    let routes = [0, 1].map(|index| (servers[index].name, servers[index].address));
    Some((router(&routes, &["--starttls", "postgres"]), servers))
}

#[test]
fn psql_reaches_the_server_of_its_name_with_channel_binding() {
    let Some((router, servers)) = start() else { return };
    let query = "select current_setting('port') || ' ' || ssl from pg_stat_ssl where pid = pg_backend_pid()";
    for server in &servers {
        let options = "sslmode=verify-full channel_binding=require";
        let output = server.psql(router.address, options, query);
        let expected = format!("{} true\n", server.address.port());
        let why = String::from_utf8_lossy(&output.stderr);
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{why}");
    }
    let big = "select repeat('x', 4000000)";
    let output = servers[0].psql(router.address, "sslmode=verify-full", big);
    assert_eq!(output.stdout.len(), 4_000_001);
    for (options, why) in [
        ("sslmode=require sslsni=0", "SSL error"),
        ("sslmode=disable", "closed the connection"),
    ] {
        let output = servers[0].psql(router.address, options, "select 1");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && stderr.contains(why), "{options}: {stderr}");
    }
}
