//! Tells the service manager how the program is (sd_notify(3)): ready, reloading, stopping, a
//! status for people, and a ping for the watchdog.
//!
//! ```text
//!   READY=1 ─┬─ RELOADING=1 ▶ READY=1 ─┬─ STOPPING=1, EXTEND_TIMEOUT_USEC=… ▶ exit
//!            └─────────────────────────┘     STATUS=… and WATCHDOG=1 at any time
//! ```
//!
//! The crate `sd-notify` 0.5 does not reach abstract sockets. It opens a socket for each message,
//! which fails if no descriptor is left, and its calls block while the manager is slow.

use parking_lot::Mutex;
use std::env;
use std::ffi::OsStr;
use std::fmt::{self, Display};
use std::future::pending;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use tokio::net::UnixDatagram;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use crate::kit::health::{Health, State};
use crate::log::LogThrottle;

/// The variable for the process that must ping.
const WATCHDOG_PID: &str = "WATCHDOG_PID";
/// The time between two statuses.
const EVERY: Duration = Duration::from_secs(5);
/// The longest time that a message waits for a manager that does not read.
const PATIENCE: Duration = Duration::from_secs(1);
/// The longest status, which is a line for people.
const STATUS_MAX_CHARS: usize = 256;
/// The time that each message of a drain asks for. It is longer than [`EVERY`] and [`PATIENCE`], so
/// that one late message does no harm.
const EXTENSION: Duration = Duration::from_secs(30);

/// The service manager, if there is one.
pub(super) struct Manager {
    socket: Option<Notified>,
    /// The time within which the manager expects a ping.
    watchdog: Option<Duration>,
    /// Whether another process is the main process of the service: the one before this, or the one
    /// after it.
    is_silent: AtomicBool,
}

struct Notified {
    socket: UnixDatagram,
    address: SockAddr,
    throttle: Mutex<LogThrottle>,
}

/// One message. Its lines are in the documentation of systemd.
#[derive(Debug, Clone, Copy)]
pub(super) enum Message<'a> {
    /// Every listener is bound. It also ends a reload.
    Ready(&'a str),
    Reloading,
    /// No client is accepted any more. Each of these messages gives sessions more time to finish
    /// than the manager grants by itself, because the limit is `--drain-timeout`.
    Stopping(&'a str),
    Status(&'a str),
    Ping,
    /// The process that the manager manages from now on.
    MainPid(u32),
}

impl Manager {
    /// Returns the manager that the environment names. A manager that cannot be reached causes a
    /// warning. A process that takes over is silent at first. Call this function within a runtime.
    pub(super) fn from_environment(takes_over: bool) -> Self {
        let watchdog = (env::var("WATCHDOG_USEC").ok(), env::var(WATCHDOG_PID).ok());
        let watchdog = expected_ping(watchdog.0.as_deref(), watchdog.1.as_deref(), std::process::id());
        let socket = env::var_os("NOTIFY_SOCKET").and_then(|name| {
            let notified = Notified::connect(&name);
            let warn = |error| tracing::warn!(%error, "cannot reach the service manager at NOTIFY_SOCKET");
            notified.map_err(warn).ok()
        });
        Self {
            socket,
            watchdog,
            is_silent: AtomicBool::new(takes_over),
        }
    }

    /// Lets a process that has taken over send messages.
    pub(super) fn speak(&self) {
        self.is_silent.store(false, Ordering::Relaxed);
    }

    /// Sends a message. This method waits at most a second, and a failure is only logged.
    pub(super) async fn tell(&self, message: Message<'_>) {
        if let Some(socket) = &self.socket
            && !self.is_silent.load(Ordering::Relaxed)
        {
            socket.send(&message.to_string()).await;
        }
    }

    /// Tells that another process serves from now on. This process then tells nothing more, because
    /// its end is not the end of the service.
    pub(super) async fn hand_over(&self, pid: u32) {
        self.tell(Message::MainPid(pid)).await;
        self.is_silent.store(true, Ordering::Relaxed);
    }

    /// Sends the status whenever it has changed, and pings the watchdog, until the runtime ends.
    /// `status` returns the status while the program serves. A program that has failed does not
    /// ping, and neither does one whose runtime does not answer.
    pub(super) async fn watch(&self, health: &Health, status: impl Fn() -> String) {
        if self.socket.is_none() {
            return pending().await;
        }
        let every = |time| {
            let mut ticks = interval_at(Instant::now() + time, time);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticks
        };
        // Half of the time, as sd_watchdog_enabled(3) recommends.
        let half = self.watchdog.map_or(EVERY, |time| time / 2);
        let (mut pings, mut statuses) = (every(half.max(Duration::from_millis(1))), every(EVERY));
        let mut last = status();
        loop {
            tokio::select! {
                _ = pings.tick(), if self.watchdog.is_some() => {
                    if !matches!(health.state(), State::Failed(_)) {
                        self.tell(Message::Ping).await;
                    }
                }
                _ = statuses.tick() => {
                    let now = status();
                    if now != last && health.state() == State::Serving {
                        self.tell(Message::Status(&now)).await;
                        last = now;
                    }
                }
            }
        }
    }
}

/// Prepares a process that takes over: the manager expects the pings of this process from it.
pub(super) fn pass_on(command: &mut Command) {
    let own = std::process::id().to_string();
    if env::var(WATCHDOG_PID).is_ok_and(|pid| pid == own) {
        command.env_remove(WATCHDOG_PID);
    }
}

/// Returns the time within which the manager expects a ping of the process `own`.
fn expected_ping(usec: Option<&str>, pid: Option<&str>, own: u32) -> Option<Duration> {
    let is_own = pid.is_none_or(|pid| pid.parse() == Ok(own));
    let usec = usec?.parse().ok().filter(|usec| is_own && *usec > 0)?;
    Some(Duration::from_micros(usec))
}

impl Notified {
    /// Connects to the socket with this name: a path, or `@` and an abstract name.
    fn connect(name: &OsStr) -> io::Result<Self> {
        let mut name = name.as_bytes().to_vec();
        match name.first_mut() {
            Some(first @ b'@') => *first = 0,
            Some(b'/') => {}
            _ => return Err(io::Error::other("expected a path, or @ and a name")),
        }
        let address = SockAddr::unix(OsStr::from_bytes(&name))?;
        let socket = Socket::new(Domain::UNIX, Type::DGRAM.nonblocking(), None)?;
        socket.connect(&address)?;
        Ok(Self {
            socket: UnixDatagram::from_std(socket.into())?,
            address,
            throttle: Mutex::default(),
        })
    }

    async fn send(&self, message: &str) {
        let sent = timeout(PATIENCE, self.try_send(message.as_bytes())).await;
        let sent = sent.unwrap_or_else(|late| Err(late.into()));
        let mut throttle = self.throttle.lock();
        if let Err(error) = sent
            && throttle.admits(Instant::now())
        {
            tracing::warn!(%error, "cannot tell the service manager");
        }
    }

    async fn try_send(&self, message: &[u8]) -> io::Result<()> {
        if self.socket.send(message).await.is_err() {
            // A manager that has restarted has another socket with the same name.
            SockRef::from(&self.socket).connect(&self.address)?;
            self.socket.send(message).await?;
        }
        Ok(())
    }
}

impl Display for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A longer message might not fit into a datagram, and with it the end of a reload.
        let status = |text: &str| -> String {
            let text = text.chars().take(STATUS_MAX_CHARS);
            text.map(|char| if char.is_control() { ' ' } else { char }).collect()
        };
        match self {
            Self::Ready(text) => write!(f, "READY=1\nSTATUS={}", status(text)),
            // The manager ignores a message that is older than its own request to reload.
            Self::Reloading => write!(f, "RELOADING=1\nMONOTONIC_USEC={}", monotonic_micros()),
            Self::Stopping(text) => write!(
                f,
                "STOPPING=1\nEXTEND_TIMEOUT_USEC={}\nSTATUS={}",
                EXTENSION.as_micros(),
                status(text)
            ),
            Self::Status(text) => write!(f, "STATUS={}", status(text)),
            Self::Ping => f.write_str("WATCHDOG=1"),
            Self::MainPid(pid) => write!(f, "MAINPID={pid}"),
        }
    }
}

fn monotonic_micros() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000 + now.tv_nsec / 1000
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram as Receiver};

    /// Returns a manager with an abstract socket, and the socket.
    fn manager(watchdog: Option<Duration>) -> (Manager, Receiver) {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("spliceway-notify-{}-{number}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let receiver = Receiver::bind_addr(&address).unwrap();
        receiver.set_nonblocking(true).unwrap();
        let socket = Notified::connect(OsStr::new(&format!("@{name}"))).unwrap();
        let manager = Manager {
            socket: Some(socket),
            watchdog,
            is_silent: AtomicBool::new(false),
        };
        (manager, receiver)
    }

    fn received(receiver: &Receiver) -> Option<String> {
        let mut message = [0; 1024];
        match receiver.recv(&mut message) {
            Ok(count) => Some(String::from_utf8(message[..count].to_vec()).unwrap()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Err(error) => panic!("{error}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_watchdog_is_pinged_until_a_part_has_failed() {
        let second = Duration::from_secs(1);
        let (manager, receiver) = manager(Some(2 * second));
        let health = Health::new();
        let watch = manager.watch(&health, || "serving".to_owned());
        let mut watch = std::pin::pin!(watch);
        let mut pings = async |seconds: u32| {
            let _ = timeout(seconds * second, watch.as_mut()).await;
            std::iter::from_fn(|| received(&receiver))
                .inspect(|ping| assert_eq!(ping, "WATCHDOG=1"))
                .count()
        };
        assert!((9..=12).contains(&pings(10).await), "one ping in half of the time");
        health.drain();
        assert!((9..=12).contains(&pings(10).await), "a drain is no failure");
        health.fail("this");
        assert_eq!(pings(10).await, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_status_is_sent_when_it_changes_and_every_few_seconds_at_most() {
        let (manager, receiver) = manager(None);
        let (health, count) = (Health::new(), std::cell::Cell::new(0));
        let watch = manager.watch(&health, || format!("{} sessions", count.get() / 4));
        let change = async {
            for next in 1..20 {
                // Sleeps because the clock is paused, so that this is how time passes.
                tokio::time::sleep(EVERY / 2).await;
                count.set(next);
            }
        };
        tokio::select! {
            () = watch => {}
            () = change => {}
        }
        let statuses: Vec<_> = std::iter::from_fn(|| received(&receiver)).collect();
        assert_eq!(statuses, [1, 2, 3, 4].map(|count| format!("STATUS={count} sessions")));
    }

    #[tokio::test]
    async fn a_manager_that_restarts_is_found_again() {
        let (manager, receiver) = manager(None);
        let address = receiver.local_addr().unwrap();
        drop(receiver);
        manager.tell(Message::Ping).await;
        let receiver = Receiver::bind_addr(&address).unwrap();
        manager.tell(Message::Status("a\nREADY=0")).await;
        manager.tell(Message::Ready(&"é".repeat(1 << 20))).await;
        receiver.set_nonblocking(true).unwrap();
        assert_eq!(received(&receiver).unwrap(), "STATUS=a READY=0");
        assert!(
            received(&receiver).unwrap().starts_with("READY=1\nSTATUS=éé"),
            "it fits"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_manager_that_does_not_read_delays_the_program_by_a_second_at_most() {
        let (manager, _receiver) = manager(None);
        for _ in 0..1000 {
            let started = Instant::now();
            manager.tell(Message::Ping).await;
            assert!(started.elapsed() <= PATIENCE);
        }
    }

    #[test]
    fn a_ping_is_expected_from_the_process_that_the_manager_names() {
        for (usec, pid, expected) in [
            (Some("2000000"), None, Some(Duration::from_secs(2))),
            (Some("1"), Some("7"), Some(Duration::from_micros(1))),
            (Some("1"), Some("8"), None),
            (Some("0"), None, None),
            (Some("x"), None, None),
            (None, Some("7"), None),
        ] {
            assert_eq!(expected_ping(usec, pid, 7), expected, "{usec:?} {pid:?}");
        }
    }

    #[tokio::test]
    async fn names_that_are_no_socket_are_refused() {
        for name in ["", "vsock:2:1", "relative", "/nowhere/at/all"] {
            assert!(Notified::connect(OsStr::new(name)).is_err(), "{name}");
        }
    }
}
