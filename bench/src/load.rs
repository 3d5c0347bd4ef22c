//! What users offer a relay: the loads of the field benchmark, and the networks they come over.

use std::num::NonZeroU64;
use std::time::Duration;

use spliceway_net::{Line, Link, Offloads};

/// The network between client, relay and server. A far one has the client far away, and the server in the rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// One host: client, relay and server on loopback.
    Loopback,
    /// The same rack: no delay, offloads on.
    Rack,
    /// The same rack, every segment received alone.
    RackPlain,
    /// The same rack, segments joined by the receiver (GRO).
    RackGro,
    /// 1 ms to the client.
    City,
    /// 10 ms and 1 Gbit/s to the client.
    Continent,
    /// 50 ms and 200 Mbit/s to the client; one segment in a thousand is lost.
    Ocean,
}

impl Profile {
    pub(crate) const ALL: [Self; 6] = [
        Self::Rack,
        Self::RackPlain,
        Self::RackGro,
        Self::City,
        Self::Continent,
        Self::Ocean,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Rack => "rack",
            Self::RackPlain => "rack, no offloads",
            Self::RackGro => "rack, GRO only",
            Self::City => "city",
            Self::Continent => "continent",
            Self::Ocean => "ocean",
        }
    }

    /// From client to relay, and from relay to server.
    pub(crate) fn links(self) -> Vec<Link> {
        let near = Link::Veth(match self {
            Self::RackPlain => Offloads::Off,
            Self::RackGro => Offloads::Gro,
            _ => Offloads::On,
        });
        let far = |millis, megabits: Option<u64>, loss| {
            // A queue that holds 20 ms of the rate, as routers have, or 16 MiB.
            let queue = megabits.map_or(16 << 20, |megabits| megabits as usize * 125_000 / 50);
            Link::Far(Line {
                delay: Duration::from_millis(millis),
                rate: megabits.and_then(|megabits| NonZeroU64::new(megabits * 1_000_000)),
                queue,
                loss,
            })
        };
        match self {
            Self::Loopback => Vec::new(),
            Self::City => vec![far(1, None, 0.0), near],
            Self::Continent => vec![far(10, Some(1_000), 0.0), near],
            Self::Ocean => vec![far(50, Some(200), 0.001), near],
            _ => vec![near, near],
        }
    }

    /// Whether there is no delay.
    pub(crate) fn is_near(self) -> bool {
        matches!(self, Self::Loopback | Self::Rack | Self::RackPlain | Self::RackGro)
    }

    /// Until TCP has found its rate.
    pub(crate) fn warming(self) -> Duration {
        Duration::from_millis(match self {
            Self::Continent => 1_000,
            Self::Ocean => 3_000,
            _ => 200,
        })
    }
}

/// Flows that send to a rate, in one direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streams {
    pub(crate) flows: usize,
    /// Bytes of each write.
    pub(crate) size: usize,
    /// Bytes per second, of all flows together.
    pub(crate) rate: f64,
    /// From client to server.
    pub(crate) up: bool,
}

/// Requests at random times (Poisson), each on a connection chosen at random.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requests {
    pub(crate) connections: usize,
    /// Bytes of a request, and of its response.
    pub(crate) size: usize,
    /// Per second, of all connections together.
    pub(crate) rate: f64,
}

/// Which contenders a load is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contenders {
    /// All of them.
    All,
    /// direct, tokio, HAProxy, spliceway and its A/A control.
    Few,
    /// All, and spliceway with each heuristic off.
    AllAndHeuristics,
    /// tokio and spliceway with two workers, on both cores.
    TwoWorkers,
}

/// What is offered.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    /// `F2 64 B × 50`.
    pub(crate) name: String,
    pub(crate) profile: Profile,
    pub(crate) streams: Option<Streams>,
    pub(crate) requests: Option<Requests>,
    /// Connections per second, each for one exchange of 1 KiB. In a closed loop: as many at once.
    pub(crate) connects: Option<f64>,
    /// For this long, after half a second at half the rate and before another second of that.
    pub(crate) overload: Option<Duration>,
    pub(crate) contenders: Contenders,
    /// Whether a control with a spinner is worth its time.
    pub(crate) spinner: bool,
    /// A saturation test: every connection goes on as soon as it can.
    pub(crate) is_closed: bool,
}

impl Load {
    fn new(name: impl Into<String>, profile: Profile) -> Self {
        Self {
            name: name.into(),
            profile,
            streams: None,
            requests: None,
            connects: None,
            overload: None,
            contenders: Contenders::Few,
            spinner: false,
            is_closed: false,
        }
    }

    fn for_all(mut self) -> Self {
        self.contenders = Contenders::All;
        self
    }

    fn with_heuristics(mut self) -> Self {
        self.contenders = Contenders::AllAndHeuristics;
        self
    }

    fn for_two_workers(mut self) -> Self {
        self.contenders = Contenders::TwoWorkers;
        self
    }

    fn with_spinner(mut self) -> Self {
        self.spinner = true;
        self
    }

    fn streams(mut self, flows: usize, size: usize, rate: f64) -> Self {
        self.streams = Some(Streams {
            flows,
            size,
            rate,
            up: true,
        });
        self
    }

    fn down(mut self) -> Self {
        if let Some(streams) = &mut self.streams {
            streams.up = false;
        }
        self
    }

    fn requests(mut self, connections: usize, size: usize, rate: f64) -> Self {
        self.requests = Some(Requests {
            connections,
            size,
            rate,
        });
        self
    }

    fn closed(mut self) -> Self {
        self.is_closed = true;
        self
    }

    /// Of the measured window.
    pub(crate) fn seconds(&self) -> f64 {
        match self.profile {
            Profile::Ocean => 3.0,
            // Whose latency the page shows: a p99 needs more samples than a CPU time.
            _ if self.spinner && self.requests.is_some() => 2.0,
            _ => 1.0,
        }
    }

    /// What CPU time is divided by: GiB of streams, or else exchanges.
    pub(crate) fn is_bulk(&self) -> bool {
        self.streams.is_some() && self.requests.is_none()
    }
}

use Profile::{City, Continent, Ocean, Rack, RackGro, RackPlain};

const MB: f64 = 1e6;
const KIB: usize = 1 << 10;

/// All loads. `capacity`: bytes per second that the slowest contender carries in one flow, by profile of the rack.
pub(crate) fn all(capacity: [f64; 3]) -> Vec<Load> {
    let parts = [
        bulk(capacity),
        requests(),
        streams(),
        mixed(capacity[0]),
        far(),
        two_workers(),
    ];
    parts.into_iter().flatten().collect()
}

fn bulk(capacity: [f64; 3]) -> Vec<Load> {
    let mut all = Vec::new();
    for percent in [25, 50, 75] {
        let load = Load::new(format!("F1 bulk at {percent} %"), Rack);
        let load = load.streams(1, 64 * KIB, capacity[0] * f64::from(percent) / 100.0);
        all.push(match percent {
            50 => load.with_heuristics().with_spinner(),
            _ => load.for_all(),
        });
    }
    for (profile, capacity) in [(RackPlain, capacity[1]), (RackGro, capacity[2])] {
        // With more, the core of the load is too busy: it cuts and joins the segments, too.
        let load = Load::new("F1 bulk at 25 %", profile).streams(1, 64 * KIB, capacity / 4.0);
        all.push(load.with_heuristics());
    }
    all
}

fn requests() -> Vec<Load> {
    let of = |name: &str, profile, connections, size, rate| Load::new(name, profile).requests(connections, size, rate);
    vec![
        of("F2 64 B × 1", Rack, 1, 64, 2_000.0).for_all().with_spinner(),
        of("F2 64 B × 50", Rack, 50, 64, 3_000.0)
            .with_heuristics()
            .with_spinner(),
        of("F2 1 KiB × 500", Rack, 500, KIB, 3_000.0).for_all(),
        of("F2 1 KiB × 50", RackPlain, 50, KIB, 3_000.0),
        of("F2 16 KiB × 50", Rack, 50, 16 * KIB, 3_000.0).with_heuristics(),
        of("F2 64 KiB × 50", Rack, 50, 64 * KIB, 1_500.0).for_all(),
        of("F2 1 KiB × 50", City, 50, KIB, 3_000.0).with_heuristics(),
    ]
}

fn streams() -> Vec<Load> {
    let of =
        |name: &str, profile, flows, size, megabytes| Load::new(name, profile).streams(flows, size, megabytes * MB);
    vec![
        of("F3 200 × 3 Mbit/s", City, 200, 16 * KIB, 75.0)
            .down()
            .with_heuristics(),
        of("F3 20 × 35 Mbit/s", City, 20, 256 * KIB, 87.5).down().for_all(),
        of("F4 2 KiB at 50 MB/s", Rack, 1, 2 * KIB, 50.0).with_heuristics(),
        of("F4 8 KiB at 50 MB/s", Rack, 1, 8 * KIB, 50.0).with_heuristics(),
        of("F4 16 KiB at 50 MB/s", Rack, 1, 16 * KIB, 50.0).for_all(),
        of("F4 64 KiB at 50 MB/s", Rack, 1, 64 * KIB, 50.0).for_all(),
        of("F4 256 KiB at 50 MB/s", Rack, 1, 256 * KIB, 50.0).for_all(),
        of("F4 16 KiB at 300 MB/s", Rack, 1, 16 * KIB, 300.0).for_all(),
        of("F4 16 KiB at 100 MB/s", RackGro, 1, 16 * KIB, 100.0),
    ]
}

fn mixed(capacity: f64) -> Vec<Load> {
    let beside = |name: &str, flows| {
        let load = Load::new(name, Rack).requests(50, 64, 3_000.0);
        load.streams(flows, 64 * KIB, 200.0 * MB)
    };
    vec![
        beside("F5 64 B × 50 beside bulk", 1).with_heuristics().with_spinner(),
        beside("F5 64 B × 50 beside 8 flows", 8).for_all(),
        Load {
            connects: Some(1_500.0),
            ..Load::new("F6 1,500 connections/s", Rack).for_all().with_spinner()
        },
        Load {
            overload: Some(Duration::from_secs(5)),
            ..Load::new("F7 bulk at 120 %", Rack).streams(1, 64 * KIB, capacity * 1.2)
        },
    ]
}

fn far() -> Vec<Load> {
    let of =
        |name: &str, profile, flows, size, megabytes| Load::new(name, profile).streams(flows, size, megabytes * MB);
    vec![
        of("F8 far sink", Continent, 4, 64 * KIB, 90.0).down().with_heuristics(),
        of("F8 far source", Continent, 4, 64 * KIB, 90.0).for_all(),
        of("F8 far sink", Ocean, 20, 16 * KIB, 6.0).down(),
        of("F8 far source", Ocean, 20, 16 * KIB, 6.0),
    ]
}

fn two_workers() -> Vec<Load> {
    vec![
        Load::new("F9 64 B × 50, 2 workers", Rack)
            .requests(50, 64, 3_000.0)
            .for_two_workers(),
        Load::new("F9 8 flows, 2 workers", Rack)
            .streams(8, 64 * KIB, 300.0 * MB)
            .for_two_workers(),
    ]
}

/// The laboratory: closed loops on loopback.
pub(crate) fn laboratory() -> Vec<Load> {
    let lab = |name: &str| Load::new(name, Profile::Loopback).for_all().closed();
    let mut all = vec![
        lab("bulk, 1 flow").streams(1, 256 * KIB, 0.0),
        lab("bulk, 64 flows").streams(64, 256 * KIB, 0.0),
    ];
    for (size, connections) in [(64, 1), (64, 64), (16 * KIB, 64), (64 * KIB, 64)] {
        all.push(lab(&format!("round trips of {size} B × {connections}")).requests(connections, size, 0.0));
    }
    all.extend(
        (10..=20).map(|power| lab(&format!("sweep, writes of {} KiB", (1 << power) / KIB)).streams(1, 1 << power, 0.0)),
    );
    all.push(Load {
        connects: Some(32.0),
        ..lab("churn, 32 at once")
    });
    all
}

/// Two small ones, to see that the benchmark works.
pub(crate) fn quick() -> Vec<Load> {
    vec![
        Load::new("F2 64 B × 50", Profile::Rack).requests(50, 64, 2_000.0),
        Load::new("F3 20 × 3 Mbit/s", Profile::City)
            .streams(20, 16 * KIB, 7.5 * MB)
            .down(),
        Load {
            connects: Some(200.0),
            ..Load::new("F6 200 connections/s", Profile::Rack)
        },
    ]
}

impl Load {
    /// Bulk of so many MB/s, to validate the generator.
    pub(crate) fn paced(megabytes: f64) -> Self {
        Self::new("paced", Profile::Rack).streams(1, 64 * KIB, megabytes * MB)
    }

    /// Requests on one connection, to validate the generator.
    pub(crate) fn one_by_one(rate: f64) -> Self {
        Self::new("one by one", Profile::Rack).requests(1, 64, rate)
    }

    /// One exchange of 256 KiB on each connection.
    pub(crate) fn idle(connections: usize) -> Self {
        Self::new("idle", Profile::Loopback).requests(connections, 256 * KIB, 0.0)
    }

    /// More than any relay carries, for as long as it takes to see how much that is.
    pub(crate) fn saturating(profile: Profile) -> Self {
        Self::new("capacity", profile).streams(1, 64 * KIB, 0.0).closed()
    }
}
