//! The attacks: each attacker's behaviour on one connection, the number of attackers, and the
//! program's limits during the attack.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::Stage;
use crate::client::{self, Target};
use crate::probe::Probe;
use crate::program::{Log, SECRET};
use crate::tls;

/// The duration of an attack. The quick form comes first.
const TIME: [Duration; 2] = [Duration::from_millis(2500), Duration::from_secs(30)];

/// The longest duration of an attack that ends by count. The quick form comes first. A password
/// hash needs about 30 ms on a core, and there are 10,000 hashes.
const TIME_MAX: [Duration; 2] = [Duration::from_secs(20), Duration::from_secs(400)];

pub(crate) struct Attack {
    pub(crate) name: &'static str,
    kind: Kind,
    /// The number of concurrent attackers, each with one connection.
    pub(crate) at_once: usize,
    /// The attack stops after this many connections, the quick form first. `None` means that it
    /// stops by time.
    count: Option<[u64; 2]>,
    pub(crate) log: Log,
    pub(crate) probe: Probe,
    pub(crate) limits: Limits,
}

/// Limits on the program's use of resources during an attack, in addition to its use before.
pub(crate) struct Limits {
    pub(crate) rss_mib: u64,
    /// Descriptors per concurrent attacker.
    pub(crate) descriptors_each: usize,
    /// CPU time per connection of the attack.
    pub(crate) cpu_each: Duration,
    /// The 99th percentile of the probes' latencies.
    pub(crate) p99: Duration,
}

/// The behaviour of one attacker on one connection.
#[derive(Clone, Copy)]
enum Kind {
    /// Sends nothing and waits to be disconnected.
    Silent,
    /// Sends one byte of a request every 100 ms.
    ByteByByte,
    /// Sends nothing, or half a request, to the metrics port.
    SilentMetrics,
    /// Logs in with a wrong password. Each attempt has its own address.
    WrongPassword,
    /// Requests a name that the DNS server answers late or never.
    SlowName,
    /// Requests a target that does not answer, and leaves.
    Leave,
    /// Requests a target that refuses, so that the program writes a record.
    Refused,
    /// Uploads to a target that answers early and closes.
    EarlyAnswer,
    /// Connects and closes, or resets.
    Connect,
    /// Attacks a service that terminates TLS. The probes use a service beside it.
    Tls(tls::Attempt),
}

pub(crate) const SMALL: Limits = Limits {
    // The allocator keeps about this much after several hundred concurrent sessions.
    rss_mib: 8,
    // The client's socket, and nothing else.
    descriptors_each: 1,
    // A connection with a record needs about 100 µs. A worker that spins uses a whole core.
    cpu_each: Duration::from_millis(1),
    // The machine may have two cores, which the attack and other programs also use. A round trip of
    // 1 ms may then take 100 ms.
    p99: Duration::from_millis(1000),
};

/// Limits for 1,000 clients in the middle of a handshake. Each may hold 16 KiB, the longest request
/// head.
const HELD: Limits = Limits { rss_mib: 16, ..SMALL };

/// Limits for 5,000 clients in the middle of a TLS handshake. Each takes about 30 KiB.
const HALF_OPEN: Limits = Limits { rss_mib: 256, ..SMALL };
/// Limits for 1,000 clients, each of which may hold 20 KiB of a hello in twice as much memory.
const HELLOS: Limits = Limits {
    rss_mib: 48,
    // Each byte may be a read of its own.
    cpu_each: Duration::from_millis(5),
    ..SMALL
};
/// Limits for handshakes that succeed. The sessions have a target, and each signature takes about
/// 1 ms.
const SHAKEN: Limits = Limits {
    descriptors_each: 2,
    cpu_each: Duration::from_millis(3),
    ..SMALL
};
/// Limits for sessions with many records. A record takes about 10 µs, and there are 10,000.
const RECORDS: Limits = Limits {
    cpu_each: Duration::from_millis(60),
    ..SHAKEN
};
/// Limits for sessions whose buffers are full.
const FULL: Limits = Limits { rss_mib: 16, ..RECORDS };

const fn attack(name: &'static str, kind: Kind, at_once: usize, limits: Limits) -> Attack {
    Attack {
        name,
        kind,
        at_once,
        count: None,
        log: Log::Kept,
        probe: Probe::Address,
        limits,
    }
}

const fn tls_attack(name: &'static str, attempt: tls::Attempt, at_once: usize, limits: Limits) -> Attack {
    attack(name, Kind::Tls(attempt), at_once, limits)
}

/// Returns an attack that makes the program write records while the log has this fault.
const fn log_attack(name: &'static str, log: Log) -> Attack {
    let limits = Limits {
        // The number and the total bytes of lines that wait for a reader are bounded. Both bounds
        // are below this limit.
        rss_mib: 24,
        // The client, and the socket for the refused connection.
        descriptors_each: 2,
        ..SMALL
    };
    Attack {
        log,
        ..attack(name, Kind::Refused, 32, limits)
    }
}

/// The attacks. 1,000 concurrent attackers are many more than one thread can serve one by one. They
/// are fewer than the 1,500 sessions that the program's descriptors allow. Further clients wait by
/// design.
pub(crate) const ATTACKS: &[Attack] = &[
    attack("silent handshakes", Kind::Silent, 1000, HELD),
    attack("handshakes byte by byte", Kind::ByteByByte, 1000, HELD),
    // More connections than the program serves concurrently on its metrics port.
    attack("silent metrics port", Kind::SilentMetrics, 200, SMALL),
    Attack {
        count: Some([200, 10_000]),
        probe: Probe::Newcomer,
        ..attack(
            "wrong passwords",
            Kind::WrongPassword,
            32,
            Limits {
                // One block of argon2 (19 MiB) and the program's other memory.
                rss_mib: 24,
                // Two passes over 19 MiB, on a core that other programs also use.
                cpu_each: Duration::from_millis(100),
                // A login waits for up to 32 other logins, each of 12 ms to 40 ms.
                p99: Duration::from_millis(2000),
                ..SMALL
            },
        )
    },
    Attack {
        probe: Probe::Name,
        ..attack(
            "slow names",
            Kind::SlowName,
            600,
            Limits {
                rss_mib: 16,
                // The client, and one socket for each address family of the lookup.
                descriptors_each: 3,
                ..SMALL
            },
        )
    },
    attack(
        "clients that leave",
        Kind::Leave,
        64,
        Limits {
            // The client and its target. Clients that have left do not hold any resources, so
            // thousands of them do not add up.
            descriptors_each: 2,
            ..SMALL
        },
    ),
    attack(
        "early answers",
        Kind::EarlyAnswer,
        32,
        Limits {
            rss_mib: 16,
            // The client, its target, and two pipe ends for each direction. Sessions that end may
            // linger for a moment.
            descriptors_each: 12,
            // The program relays up to 1 MiB.
            cpu_each: Duration::from_millis(3),
            ..SMALL
        },
    ),
    attack("flood of connects", Kind::Connect, 64, SMALL),
    tls_attack("tls: half-open", tls::Attempt::HalfOpen, 10_000, HALF_OPEN),
    tls_attack("tls: byte by byte", tls::Attempt::ByteByByte, 1000, HELLOS),
    tls_attack("tls: odd hellos", tls::Attempt::Hellos, 1000, HELLOS),
    // One core makes as many handshakes as it can.
    tls_attack("tls: flood of handshakes", tls::Attempt::Handshakes, 64, SHAKEN),
    tls_attack("tls: flood of second hellos", tls::Attempt::TwoHellos, 64, SHAKEN),
    tls_attack("tls: search for issuers", tls::Attempt::LongSearch, 64, SHAKEN),
    tls_attack("tls: key updates", tls::Attempt::KeyUpdates, 32, RECORDS),
    tls_attack("tls: tiny records", tls::Attempt::TinyRecords, 16, RECORDS),
    // The kernel's memory for TCP must have room for four full buffers of each.
    tls_attack("tls: clients never read", tls::Attempt::NeverReads, 16, FULL),
    log_attack("stalled log reader", Log::Stalled),
    log_attack("log reader gone", Log::Closed),
    log_attack("log on a full device", Log::Full),
    log_attack("log on a full disk", Log::FullDisk),
];

/// Runs the attack on its own runtime until it has lasted long enough.
pub(crate) async fn run(attack: &'static Attack, quick: bool, stage: &Arc<Stage>, attacking: &Handle) {
    let form = usize::from(!quick);
    let (time, count) = match attack.count {
        Some(count) => (TIME_MAX[form], count[form]),
        None => (TIME[form], u64::MAX),
    };
    let until = Instant::now() + time;
    let mut attackers = JoinSet::new();
    for number in 0..attack.at_once {
        let stage = Arc::clone(stage);
        let attacker = async move {
            while Instant::now() < until {
                let attempt = stage.attempts.fetch_add(1, Ordering::Relaxed);
                if attempt >= count {
                    stage.attempts.fetch_sub(1, Ordering::Relaxed);
                    return;
                }
                // Any answer from the program is acceptable.
                let one = attack.kind.attempt(&stage, number, attempt);
                let _ = timeout(until.saturating_duration_since(Instant::now()), one).await;
                // Sleeps because a load without a pause would measure itself on a machine with two
                // cores.
                sleep(attack.kind.pause()).await;
            }
        };
        attackers.spawn_on(attacker, attacking);
    }
    attackers.join_all().await;
}

impl Attack {
    /// Returns whether the attack needs a service that terminates TLS.
    pub(crate) fn is_tls(&self) -> bool {
        matches!(self.kind, Kind::Tls(_))
    }
}

impl Kind {
    /// Returns the pause between two connections of one attacker. All attackers together open about
    /// 1,000 connections per second.
    fn pause(self) -> Duration {
        Duration::from_millis(match self {
            Self::Leave | Self::Connect => 60,
            Self::WrongPassword
            | Self::Tls(tls::Attempt::Handshakes | tls::Attempt::TwoHellos | tls::Attempt::LongSearch) => 0,
            _ => 30,
        })
    }

    async fn attempt(self, stage: &Stage, number: usize, attempt: u64) -> io::Result<()> {
        // Most attackers share a few addresses, as they would behind a NAT.
        let from = client::attacker(match self {
            Self::WrongPassword => attempt,
            _ => number as u64 % 4,
        });
        let to = match self {
            Self::SilentMetrics => stage.program.metrics,
            Self::Tls(_) => stage.program.tls,
            _ => stage.program.address,
        };
        let mut stream = client::connect(from, to).await?;
        let odd = attempt % 2 == 1;
        let login = async |stream: &mut _, target| client::request(stream, "attacker", SECRET, &target).await;
        match self {
            Self::Silent => {}
            Self::ByteByByte => {
                for byte in b"GET http://127.0.0.1/a/long/path HTTP/1.1\r\nX-Slow: " {
                    stream.write_all(&[*byte]).await?;
                    // Sleeps because a slow client is the attack.
                    sleep(Duration::from_millis(100)).await;
                }
            }
            Self::SilentMetrics if odd => stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n").await?,
            Self::SilentMetrics => {}
            Self::WrongPassword => {
                let target = Target::Address(stage.servers.echo);
                client::request(&mut stream, "attacker", "wrong", &target).await?;
            }
            Self::SlowName => {
                let kind = if odd { "late" } else { "never" };
                login(&mut stream, Target::Name(format!("{kind}{attempt}.test"), 80)).await?;
            }
            Self::Leave => {
                login(&mut stream, Target::Address(stage.servers.silent)).await?;
                // Sleeps because the program must be in the middle of its attempt, and no event
                // marks that time.
                sleep(Duration::from_millis(20)).await;
                return Ok(());
            }
            Self::Refused => login(&mut stream, Target::Address(stage.servers.refusing)).await?,
            Self::EarlyAnswer => {
                login(&mut stream, Target::Address(stage.servers.early)).await?;
                client::accepted(&mut stream).await?;
                // The target closes in the middle of this write.
                let _ = stream.write_all(&vec![0; 1 << 20]).await;
            }
            Self::Connect => {
                if odd {
                    stream.set_zero_linger()?;
                }
                return Ok(());
            }
            Self::Tls(kind) => return stage.tls.attempt(kind, &mut stream, attempt).await,
        }
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.map(drop)
    }
}
