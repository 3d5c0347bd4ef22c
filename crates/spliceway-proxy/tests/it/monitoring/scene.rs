//! Programs under a normal load, and the faults that panels and alerts are for.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use rcgen::{CertificateParams, KeyPair};
use rustix::process::Signal;

use super::prometheus::Prometheus;
use super::targets::{Backend, Flapping, Small, resetting};
use crate::auth::authenticated;
use crate::harness::{
    Folder, Program, TextFile, accept, address_in, connect, echo, is_closed, let_pass, listen, pattern, read_exactly,
    refusing,
};
use crate::tls::client::{Client, Config, Pair};
use crate::tls::client_cert::Authority;
use crate::udp::{associated_by, received, shouting, socket, wrapped};
use crate::user_limits::{ask, session, users};

const DAY: Duration = Duration::from_secs(24 * 3600);
/// The quota of ann, in bytes.
const QUOTA: usize = 40_000_000;

/// The programs and their targets.
pub(super) struct Scene {
    /// The program with several services. The first one is `proxy`.
    pub(super) main: Program,
    pub(super) small: Small,
    pub(super) flapping: Flapping,
    web: SocketAddr,
    flaky: SocketAddr,
    tls: SocketAddr,
    files: Files,
    datagrams: SocketAddr,
    backends: [Backend; 2],
    /// Whether the first backend of `flaky` resets its clients.
    resets: Arc<AtomicBool>,
}

/// The files of the program with several services.
struct Files {
    folder: Folder,
    users: TextFile,
    authorities: [Authority; 2],
    /// Two certificates of the service `tls`, and that of the service `stale`.
    pairs: [Pair; 3],
    config: TextFile,
    /// The target of services with certificates.
    target: SocketAddr,
    /// The tables of the services without certificates.
    services: String,
}

impl Files {
    fn new(services: String) -> Self {
        let files = Self {
            folder: Folder::new("monitoring"),
            users: users(),
            authorities: ["first", "second"].map(Authority::new),
            pairs: [["a.test"], ["b.test"], ["c.test"]].map(|names| Pair::new(&names)),
            config: TextFile::new(""),
            target: echo("127.0.0.1:0"),
            services,
        };
        let [first, second] = &files.authorities;
        files.folder.file("ca.pem", &[&*first.pem, &second.pem].concat());
        let late = SystemTime::now() + 1000 * DAY;
        files.revoke(late, late);
        files.write(1, "", "");
        files
    }

    /// Writes the configuration with this number of certificates of `tls`, these keys of `[limits]`
    /// and these tables.
    fn write(&self, certificates: usize, limits: &str, tables: &str) {
        let keys = |pairs: &[Pair]| {
            let list = |files: Vec<&str>| format!("[\"{}\"]", files.join("\", \""));
            let certificates = list(pairs.iter().map(|pair| pair.certificate.path()).collect());
            let keys = list(pairs.iter().map(|pair| pair.key.path()).collect());
            format!("tls_cert = {certificates}\ntls_key = {keys}\n")
        };
        let (tls, stale) = (keys(&self.pairs[..certificates]), keys(&self.pairs[2..]));
        let (folder, target) = (self.folder.0.display(), self.target);
        let text = format!(
            "[admin]\nmetrics = \"127.0.0.1:0\"\n[log]\naccess = \"{folder}/records\"\n\
             [limits]\nquota_file = \"{folder}/quotas\"\n{limits}\n\
             [[user]]\nname = \"ann\"\nquota = \"{QUOTA}B/day\"\n[[user]]\nname = \"bob\"\nmax_conns = 500\n\
             [[service]]\nname = \"proxy\"\nkind = \"socks5\"\nlisten = \"127.0.0.1:0\"\n\
             auth_file = \"{}\"\nauth_penalty = \"0\"\n\
             {}\
             [[service]]\nname = \"tls\"\nkind = \"forward\"\nlisten = \"127.0.0.1:0\"\nto = \"{target}\"\n{tls}\
             tls_client_ca = \"{folder}/ca.pem\"\ntls_client_crl = [\"{folder}/first.crl\", \"{folder}/second.crl\"]\n\
             tls_client_verify = \"optional\"\n\
             [[service]]\nname = \"stale\"\nkind = \"forward\"\nlisten = \"127.0.0.1:0\"\nto = \"{target}\"\n{stale}\
             {tables}",
            self.users.path(),
            self.services,
        );
        self.config.write(&text);
    }

    /// Replaces the certificates of `tls`. They were issued 80 days ago.
    fn renew(&self) {
        let (now, pairs) = (SystemTime::now(), &self.pairs);
        for (pair, name, until) in [(&pairs[0], "a.test", now + 10 * DAY), (&pairs[1], "b.test", now - DAY)] {
            let mut params = CertificateParams::new([name.to_owned()]).unwrap();
            (params.not_before, params.not_after) = ((now - 80 * DAY).into(), until.into());
            let key = KeyPair::generate().unwrap();
            pair.certificate.write(&params.self_signed(&key).unwrap().pem());
            pair.key.write(&key.serialize_pem());
        }
    }

    /// Writes the lists of revoked certificates, which expire at these times.
    fn revoke(&self, first: SystemTime, second: SystemTime) {
        for (authority, (name, until)) in self.authorities.iter().zip([("first", first), ("second", second)]) {
            self.folder.file(&format!("{name}.crl"), &authority.revoke_until(until));
        }
    }

    /// Puts a folder in the place of a file.
    fn block(&self, name: &str) {
        let path = self.folder.0.join(name);
        fs::rename(&path, path.with_extension("away")).unwrap();
        fs::create_dir(&path).unwrap();
    }
}

impl Scene {
    pub(super) fn start() -> Self {
        let backends = [Backend::start(), Backend::start()];
        let (unsound, resets) = resetting();
        let mut services = String::from(
            "[[service]]\nname = \"web\"\nkind = \"forward\"\nlisten = \"127.0.0.1:0\"\nqueue = 1\n\
             check = \"connect\"\ncheck_interval = \"200ms\"\n",
        );
        for backend in &backends {
            services += &format!("[[service.backend]]\nto = \"{}\"\nmax_conns = 1\n", backend.address);
        }
        services += &format!(
            "[[service]]\nname = \"flaky\"\nkind = \"forward\"\nlisten = \"127.0.0.1:0\"\nbalance = \"first\"\n\
             eject_after = 1\neject_time = \"100ms\"\nto = [\"{unsound}\", \"{}\"]\n",
            echo("127.0.0.1:0")
        );
        let files = Files::new(services);
        let mut main = Program::run(&files.config);
        let [web, flaky, tls] =
            ["web", "flaky", "tls"].map(|name| address_in(&main.line(&format!("{name} listening on "))));
        Self {
            main,
            small: Small::start(),
            flapping: Flapping::start(),
            web,
            flaky,
            tls,
            files,
            datagrams: shouting("127.0.0.1:0"),
            backends,
            resets,
        }
    }

    /// Serves one client of each kind.
    pub(super) fn be_normal(&self) {
        for address in [self.web, self.flaky, self.small.program.address] {
            says_and_hears(connect(address));
        }
        says_and_hears(self.flapping.program.connect());
        for user in ["ann", "bob"] {
            says_and_hears(session(&self.main, user, self.files.target));
        }
        let config = Config::new(&self.files.pairs[0]);
        let mut client = Client::over(connect(self.tls), &config).unwrap();
        assert_eq!(client.exchange(b"hello").unwrap(), b"hello");
        self.send_datagrams(&wrapped(self.datagrams, b"hello"), 1);
    }

    /// Sends this datagram of bob, and then one that is answered, so often.
    fn send_datagrams(&self, datagram: &[u8], count: usize) {
        let (_client, relay) = associated_by(authenticated(&self.main, "bob", "builder").0);
        let (socket, _) = socket("127.0.0.1:0");
        for _ in 0..count {
            socket.send_to(datagram, relay).unwrap();
            socket.send_to(&wrapped(self.datagrams, b"bye"), relay).unwrap();
            while !received(&socket).ends_with(b"BYE") {}
        }
    }

    /// Serves many clients at the same time.
    pub(super) fn surge(&self, prometheus: &Prometheus) {
        let mut clients: Vec<_> = (0..300).map(|_| self.flapping.program.connect()).collect();
        clients.extend((0..40).map(|_| session(&self.main, "bob", self.files.target)));
        clients.extend((0..20).map(|_| connect(self.flaky)));
        clients.iter_mut().for_each(say_and_hear);
        // TLS needs more memory than other sessions.
        let open_tls = |_| {
            let mut client = Client::over(connect(self.tls), &Config::anything()).unwrap();
            client.send(b"hello");
            assert_eq!(client.receive(5), b"hello");
            client
        };
        let _tls: Vec<_> = (0..100).map(open_tls).collect();
        self.send_datagrams(&wrapped(self.datagrams, b"hello"), 200);
        prometheus.await_that("sum(spliceway_connections_active) >= 460");
    }

    /// Changes certificates and the configuration, in a way that is good at first.
    pub(super) fn change(&mut self, prometheus: &Prometheus) {
        let (directory, address) = listen();
        self.files.renew();
        let now = SystemTime::now();
        self.files.revoke(now + DAY / 2, now - DAY);
        let tables = format!(
            "[[service]]\nname = \"acme\"\nkind = \"forward\"\nlisten = \"127.0.0.1:0\"\n\
             to = [\"{}\", \"{}\"]\nacme = [\"c.test\"]\n\
             [acme]\nstate = \"{}/acme\"\naccept_terms = true\ndirectory = \"https://{address}/\"\n",
            self.files.target,
            echo("127.0.0.1:0"),
            self.files.folder.0.display(),
        );
        self.files.write(2, "max_conns = 900", &tables);
        let line = self.main.reload();
        assert!(line.contains("added acme"), "{line}");
        // The ACME server accepts a connection, and says nothing until the count of failures is
        // known.
        prometheus.await_that("spliceway_acme_tries_total");
        drop(directory);
        self.files.pairs[2].key.write("broken");
        let line = self.main.reload();
        assert!(line.contains("the previous settings stay in force"), "{line}");
        self.main.signal(Signal::USR2);
        self.main.line("the upgrade failed");
        self.files.block("records");
        self.main.signal(Signal::USR1);
    }

    /// Fills every place of `web` and of its queue. The places are free again when the clients that
    /// are returned leave.
    pub(super) fn fill_queue(&self) -> Vec<TcpStream> {
        let mut clients = vec![connect(self.web), connect(self.web)];
        clients.iter_mut().for_each(say_and_hear);
        clients.push(connect(self.web));
        self.main
            .await_sum("spliceway_backend_waiting", &["service=\"web\""], 1);
        clients
    }

    /// Comes to `web` as one client too many.
    pub(super) fn overflow_queue(&self) {
        assert!(is_closed(&mut connect(self.web)));
    }

    pub(super) fn stop_backends(&mut self) {
        self.backends.iter_mut().for_each(Backend::stop);
    }

    /// Starts sessions that the program refuses, or that fail.
    pub(super) fn fail(&self) {
        assert_ne!(authenticated(&self.main, "ann", "guessed").1, 0);
        assert_ne!(ask(&self.main, "bob", refusing()).1, 0);
        self.send_datagrams(b"?", 1);
        let mut client = connect(self.tls);
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let _ = client.read_to_end(&mut Vec::new());
        self.resets.store(true, Ordering::Relaxed);
        let mut client = connect(self.flaky);
        client.write_all(b"?").unwrap();
        let _ = client.read(&mut [0]);
    }

    /// Shakes hands as a slow client of TLS.
    pub(super) fn shake_hands_slowly(&self) {
        let client = connect(self.tls);
        let_pass(Duration::from_millis(300));
        let mut client = Client::over(client, &Config::anything()).unwrap();
        assert_eq!(client.exchange(b"hello").unwrap(), b"hello");
    }

    /// Uses up the quota of ann, while the quota file cannot be written.
    pub(super) fn exhaust_quota(&self) {
        self.files.block("quotas");
        let client = session(&self.main, "ann", self.files.target);
        let bytes = pattern(1, QUOTA);
        thread::scope(|scope| {
            scope.spawn(|| (&client).write_all(&bytes));
            let _ = std::io::copy(&mut &client, &mut std::io::sink());
        });
        self.main.await_end("quota");
    }

    /// Loses bytes: a target that does not read resets its session.
    pub(super) fn lose_bytes(&self) {
        let (listener, target) = listen();
        let mut client = session(&self.main, "bob", target);
        let target = accept(&listener);
        client.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
        let bytes = pattern(1, 1 << 20);
        while client.write_all(&bytes).is_ok() {}
        socket2::SockRef::from(&target)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
        drop(target);
        assert!(is_closed(&mut client));
        self.main
            .await_sum("spliceway_lost_bytes_total", &["direction=\"up\""], 1);
    }
}

fn say_and_hear(client: &mut TcpStream) {
    client.write_all(b"hello").unwrap();
    assert_eq!(read_exactly(client, 5), b"hello");
}

/// Ends a session after a few bytes.
fn says_and_hears(mut client: TcpStream) {
    say_and_hear(&mut client);
    client.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(is_closed(&mut client));
}
