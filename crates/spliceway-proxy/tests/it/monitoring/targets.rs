//! Backends that fail on request, and the programs with a single service.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::ChildStderr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::prometheus::Prometheus;
use crate::clients::read_head;
use crate::handover::upgrade;
use crate::harness::{PATIENCE, Program, echo, let_pass, listen, pattern, read_exactly, refusing, with_patience};

/// A backend that returns what it receives, until it stops.
pub(super) struct Backend {
    pub(super) address: SocketAddr,
    stops: Arc<AtomicBool>,
    serving: Option<JoinHandle<()>>,
}

impl Backend {
    pub(super) fn start() -> Self {
        let ((listener, address), stops) = (listen(), Arc::new(AtomicBool::new(false)));
        let has_stopped = Arc::clone(&stops);
        let serving = thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                if has_stopped.load(Ordering::Relaxed) {
                    return;
                }
                thread::spawn(move || return_bytes(&client));
            }
        });
        Self {
            address,
            stops,
            serving: Some(serving),
        }
    }

    /// Refuses connections from now on.
    pub(super) fn stop(&mut self) {
        self.stops.store(true, Ordering::Relaxed);
        // Another client may wake the thread before this one.
        let _ = TcpStream::connect(self.address);
        self.serving.take().unwrap().join().unwrap();
    }
}

fn return_bytes(client: &TcpStream) {
    let (mut from, mut to) = (client, client);
    let _ = std::io::copy(&mut from, &mut to);
    let _ = client.shutdown(Shutdown::Write);
}

/// Starts a backend that returns what it receives. While the flag is set, it resets its clients.
pub(super) fn resetting() -> (SocketAddr, Arc<AtomicBool>) {
    let ((listener, address), resets) = (listen(), Arc::new(AtomicBool::new(false)));
    let flag = Arc::clone(&resets);
    thread::spawn(move || {
        while let Ok((mut client, _)) = listener.accept() {
            let resets = flag.load(Ordering::Relaxed);
            thread::spawn(move || {
                if resets {
                    let _ = client.read(&mut [0]);
                    let _ = socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO));
                } else {
                    return_bytes(&client);
                }
            });
        }
    });
    (address, resets)
}

/// A program with few places and few descriptors, whose target is behind a proxy.
pub(super) struct Small {
    pub(super) program: Program,
    log: Option<BufReader<ChildStderr>>,
    is_slow: Arc<AtomicBool>,
}

/// The sessions of this program.
const PLACES: usize = 4;

impl Small {
    pub(super) fn start() -> Self {
        let (listener, proxy) = listen();
        let is_slow = Arc::new(AtomicBool::new(false));
        let slow = Arc::clone(&is_slow);
        thread::spawn(move || serve_as_proxy(&listener, &slow));
        let (target, proxy, places) = (refusing().to_string(), format!("http://{proxy}"), PLACES.to_string());
        let (program, log) = Program::start_unread(&[
            "forward",
            "-l",
            "127.0.0.1:0",
            "-r",
            &target,
            "--upstream-proxy",
            &proxy,
            "--max-conns",
            &places,
        ]);
        Self {
            program,
            log: Some(log),
            is_slow,
        }
    }

    /// Takes every place, and waits for another one. Each connection to the target takes seconds.
    pub(super) fn fill_slowly(&self) -> Vec<TcpStream> {
        self.is_slow.store(true, Ordering::Relaxed);
        let clients = (0..=PLACES).map(|_| self.program.connect()).collect();
        self.program.await_sum("spliceway_admission_waits_total", &[], 1);
        clients
    }

    /// Relays so many bytes that they should be spliced, while descriptors are few. They are few
    /// until the client that is returned leaves.
    pub(super) fn lack_descriptors(&self) -> TcpStream {
        self.is_slow.store(false, Ordering::Relaxed);
        // A session needs two, and a scraper one. A pipe would need two.
        self.leave_descriptors(3);
        let mut client = self.program.connect();
        client.write_all(b"hello").unwrap();
        read_exactly(&mut client, 5);
        let bytes = pattern(1, 4 << 20);
        thread::scope(|scope| {
            scope.spawn(|| (&client).write_all(&bytes).unwrap());
            read_exactly(&mut client.try_clone().unwrap(), bytes.len());
        });
        client
    }

    /// Lets accept fail for a while.
    pub(super) fn lack_all_descriptors(&self) {
        self.leave_descriptors(0);
        let _client = self.program.connect();
        let_pass(Duration::from_millis(200));
        self.program.limit_descriptors(1000);
    }

    /// Leaves this number of descriptors to the program, which has no sessions. The limit is on
    /// their numbers, and inherited ones may have high numbers.
    fn leave_descriptors(&self, count: usize) {
        let until = Instant::now() + PATIENCE;
        while self.program.sum("spliceway_connections_active", &[]) != 0 {
            assert!(Instant::now() < until, "sessions stay open");
            let_pass(Duration::from_millis(2));
        }
        let folder = format!("/proc/{}/fd", self.program.pid());
        // A scraper has one for a moment.
        let looks = (0..20).map(|_| {
            let_pass(Duration::from_millis(2));
            let names = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name());
            let numbers = names.map(|name| name.to_str().unwrap().parse().unwrap());
            numbers.collect::<BTreeSet<usize>>()
        });
        let taken = looks.min_by_key(BTreeSet::len).unwrap();
        let limit = (0..).filter(|number| !taken.contains(number)).nth(count).unwrap();
        self.program.limit_descriptors(limit);
    }

    /// Closes the log.
    pub(super) fn lose_log(&mut self) {
        self.log = None;
    }
}

/// Serves as an HTTP proxy that returns what clients send to their targets. It is slow while the
/// flag is set.
fn serve_as_proxy(listener: &TcpListener, is_slow: &AtomicBool) {
    for client in listener.incoming().map_while(Result::ok) {
        let is_slow = is_slow.load(Ordering::Relaxed);
        thread::spawn(move || {
            let mut client = with_patience(client);
            read_head(&mut client);
            if is_slow {
                let_pass(Duration::from_millis(2700));
            }
            let _ = client.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
            return_bytes(&client);
        });
    }
}

/// A program that starts again and again, with one address for its metrics.
pub(super) struct Flapping {
    pub(super) program: Program,
    pub(super) metrics: SocketAddr,
    now_at: Arc<Mutex<SocketAddr>>,
    starts: usize,
}

impl Flapping {
    pub(super) fn start() -> Self {
        let ((listener, metrics), program) = (listen(), forward());
        let now_at = Arc::new(Mutex::new(program.metrics()));
        let address = Arc::clone(&now_at);
        thread::spawn(move || {
            for mut scraper in listener.incoming().map_while(Result::ok) {
                let address = *address.lock().unwrap();
                thread::spawn(move || {
                    let head = read_head(&mut scraper);
                    let Ok(mut program) = TcpStream::connect(address) else {
                        return;
                    };
                    let _ = program.write_all(head.as_bytes());
                    let _ = std::io::copy(&mut program, &mut scraper);
                });
            }
        });
        Self {
            program,
            metrics,
            now_at,
            starts: 0,
        }
    }

    /// Hands over to a new process, and waits until Prometheus knows it.
    pub(super) fn upgrade(&mut self, prometheus: &Prometheus) {
        let _process = upgrade(&mut self.program, None);
        self.await_start(prometheus);
    }

    /// Starts another process in place of the one that runs.
    pub(super) fn crash(&mut self, prometheus: &Prometheus) {
        self.program.kill();
        self.program = forward();
        *self.now_at.lock().unwrap() = self.program.metrics();
        self.await_start(prometheus);
    }

    fn await_start(&mut self, prometheus: &Prometheus) {
        self.starts += 1;
        let starts = self.starts;
        prometheus.await_that(&format!(
            "changes(process_start_time_seconds{{instance=\"flapping\"}}[5m]) >= {starts}"
        ));
    }
}

fn forward() -> Program {
    Program::forward(echo("127.0.0.1:0"), &[])
}
