//! The benchmark loads, and the networks that they cross.

use std::num::NonZeroU64;
use std::time::Duration;

use spliceway_load::{Offer, Requests, Streams};
use spliceway_net::{Line, Link, Offloads};

/// The network between client, relay and server. In the far profiles, the client is far away and
/// the server is near.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// One host: client, relay and server on loopback.
    Loopback,
    /// One rack: no delay, offloads on.
    Rack,
    /// One rack. The receiver gets every segment separately.
    RackPlain,
    /// One rack. Only the receiver joins segments (GRO).
    RackGro,
    /// 1 ms to the client.
    City,
    /// 10 ms and 1 Gbit/s to the client.
    Continent,
    /// 50 ms and 200 Mbit/s to the client. One segment in a thousand is lost.
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

    /// Returns the link from client to relay, and the link from relay to server.
    pub(crate) fn links(self) -> Vec<Link> {
        let near = Link::Veth(match self {
            Self::RackPlain => Offloads::Off,
            Self::RackGro => Offloads::Gro,
            _ => Offloads::On,
        });
        let far = |millis, megabits: Option<u64>, loss| {
            // A queue for 20 ms at this rate, as in routers. Without a rate, the queue is 16 MiB.
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

    /// Returns whether there is no delay.
    pub(crate) fn is_near(self) -> bool {
        matches!(self, Self::Loopback | Self::Rack | Self::RackPlain | Self::RackGro)
    }

    /// Returns the time that TCP needs to reach its rate.
    pub(crate) fn warming(self) -> Duration {
        Duration::from_millis(match self {
            Self::Continent => 1_000,
            Self::Ocean => 3_000,
            _ => 200,
        })
    }
}

/// The contenders for a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contenders {
    All,
    /// direct, tokio, HAProxy, spliceway and its A/A control.
    Few,
    /// tokio and spliceway with two workers, on both cores.
    TwoWorkers,
}

/// A benchmark load.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    /// The name in the tables: "F2 64 B × 50".
    pub(crate) name: String,
    pub(crate) profile: Profile,
    pub(crate) offer: Offer,
    /// The measured window of an overload. Before and after it, the load is half of the capacity.
    pub(crate) overload: Option<Duration>,
    pub(crate) contenders: Contenders,
    /// Whether the control with a spinner also runs.
    pub(crate) spinner: bool,
}

use Contenders::{All, TwoWorkers};
use Profile::{City, Continent, Ocean, Rack, RackGro, RackPlain};

const MB: f64 = 1e6;
const KIB: usize = 1 << 10;

impl Load {
    fn new(name: impl Into<String>, profile: Profile, offer: Offer) -> Self {
        Self {
            name: name.into(),
            profile,
            offer,
            overload: None,
            contenders: Contenders::Few,
            spinner: false,
        }
    }

    fn to(self, contenders: Contenders) -> Self {
        Self { contenders, ..self }
    }

    fn with_spinner(self) -> Self {
        Self { spinner: true, ..self }
    }

    /// Adds requests of 64 bytes at this rate, on 50 connections.
    fn beside_requests(mut self, rate: f64) -> Self {
        self.offer.requests = requests("", Rack, 50, 64, rate).offer.requests;
        self
    }

    /// Returns the length of the measured window in seconds. The window is short, so that there are
    /// many rounds.
    pub(crate) fn seconds(&self) -> f64 {
        match self.profile {
            Profile::Ocean => 2.0,
            _ => 0.5,
        }
    }

    /// Returns whether a run lasts several seconds. Half of the rounds are then enough.
    pub(crate) fn is_long(&self) -> bool {
        self.overload.is_some() || self.profile == Profile::Ocean
    }

    /// Returns whether the load's rate is a part of the slowest contender's capacity.
    pub(crate) fn depends_on_capacity(&self) -> bool {
        ["F1", "F7"].iter().any(|family| self.name.starts_with(family))
    }

    /// Returns about how many seconds one run takes, with starting and connecting.
    pub(crate) fn run_seconds(&self) -> f64 {
        const START: f64 = 0.15;
        let overload = self.overload.map_or(0.0, |length| length.as_secs_f64() + 2.0);
        START + self.profile.warming().as_secs_f64() + self.seconds() + overload
    }

    /// Returns whether CPU time is reported per GiB. Otherwise, it is reported per exchange.
    pub(crate) fn is_bulk(&self) -> bool {
        self.offer.streams.is_some() && self.offer.requests.is_none()
    }

    /// Returns bulk at a fixed rate, for validating the generator.
    pub(crate) fn paced(megabytes: f64) -> Self {
        up("paced", Rack, 1, 64 * KIB, megabytes * MB)
    }

    /// Returns requests on one connection, for validating the generator.
    pub(crate) fn one_by_one(rate: f64) -> Self {
        requests("one by one", Rack, 1, 64, rate)
    }

    /// Returns one flow that sends as fast as the relay allows.
    pub(crate) fn saturating(profile: Profile) -> Self {
        closed(up("capacity", profile, 1, 64 * KIB, 0.0))
    }
}

fn up(name: impl Into<String>, profile: Profile, flows: usize, size: usize, rate: f64) -> Load {
    let (streams, up) = (
        Streams {
            flows,
            size,
            rate,
            up: true,
        },
        Offer::default(),
    );
    Load::new(
        name,
        profile,
        Offer {
            streams: Some(streams),
            ..up
        },
    )
}

fn down(name: &str, profile: Profile, flows: usize, size: usize, rate: f64) -> Load {
    let mut load = up(name, profile, flows, size, rate);
    load.offer.streams = load.offer.streams.map(|streams| Streams { up: false, ..streams });
    load
}

fn requests(name: impl Into<String>, profile: Profile, connections: usize, size: usize, rate: f64) -> Load {
    let requests = Some(Requests {
        connections,
        size,
        rate,
    });
    Load::new(
        name,
        profile,
        Offer {
            requests,
            ..Offer::default()
        },
    )
}

fn connects(name: &str, profile: Profile, rate: f64) -> Load {
    Load::new(
        name,
        profile,
        Offer {
            connects: Some(rate),
            ..Offer::default()
        },
    )
}

fn closed(mut load: Load) -> Load {
    load.offer.is_closed = true;
    load.to(All)
}

/// New connections as fast as the relay permits, 32 at the same time.
pub(crate) const CHURN: &str = "F6 connections, 32 at once";

/// Returns all loads of the field benchmark. `capacity` is the slowest contender's capacity in one
/// flow, in bytes per second, for each rack profile.
pub(crate) fn all(capacity: [f64; 3]) -> Vec<Load> {
    let bulk = |percent: f64| {
        let name = format!("F1 bulk at {percent:.0} %");
        up(name, Rack, 1, 64 * KIB, capacity[0] * percent / 100.0)
    };
    // At more than a quarter of the capacity, the load's core is too busy, because it also cuts and
    // joins the segments.
    let plain_bulk = |profile, capacity: f64| up("F1 bulk at 25 %", profile, 1, 64 * KIB, capacity / 4.0);
    let overload = Load {
        name: "F7 bulk at 120 %".into(),
        overload: Some(Duration::from_secs(5)),
        ..bulk(120.0)
    };
    let small = |name| requests(name, Rack, 50, 64, 3_000.0);
    vec![
        bulk(25.0).to(All),
        bulk(50.0).to(All).with_spinner(),
        bulk(75.0).to(All),
        plain_bulk(RackPlain, capacity[1]).to(All),
        plain_bulk(RackGro, capacity[2]).to(All),
        requests("F2 64 B × 1", Rack, 1, 64, 2_000.0).to(All).with_spinner(),
        small("F2 64 B × 50").to(All).with_spinner(),
        requests("F2 1 KiB × 500", Rack, 500, KIB, 3_000.0).to(All),
        requests("F2 1 KiB × 50", RackPlain, 50, KIB, 3_000.0),
        requests("F2 16 KiB × 50", Rack, 50, 16 * KIB, 3_000.0).to(All),
        requests("F2 64 KiB × 50", Rack, 50, 64 * KIB, 1_500.0).to(All),
        requests("F2 1 KiB × 50", City, 50, KIB, 3_000.0).to(All),
        down("F3 200 × 3 Mbit/s", City, 200, 16 * KIB, 75.0 * MB).to(All),
        down("F3 20 × 35 Mbit/s", City, 20, 256 * KIB, 87.5 * MB).to(All),
        up("F4 2 KiB at 50 MB/s", Rack, 1, 2 * KIB, 50.0 * MB).to(All),
        up("F4 8 KiB at 50 MB/s", Rack, 1, 8 * KIB, 50.0 * MB).to(All),
        up("F4 16 KiB at 50 MB/s", Rack, 1, 16 * KIB, 50.0 * MB).to(All),
        up("F4 64 KiB at 50 MB/s", Rack, 1, 64 * KIB, 50.0 * MB).to(All),
        up("F4 256 KiB at 50 MB/s", Rack, 1, 256 * KIB, 50.0 * MB).to(All),
        up("F4 16 KiB at 300 MB/s", Rack, 1, 16 * KIB, 300.0 * MB).to(All),
        up("F4 16 KiB at 100 MB/s", RackGro, 1, 16 * KIB, 100.0 * MB),
        up("F5 64 B × 50 beside bulk", Rack, 1, 64 * KIB, 200.0 * MB)
            .beside_requests(3_000.0)
            .to(All)
            .with_spinner(),
        up("F5 64 B × 50 beside 8 flows", Rack, 8, 64 * KIB, 200.0 * MB)
            .beside_requests(3_000.0)
            .to(All),
        connects("F6 1,500 connections/s", Rack, 1_500.0).to(All).with_spinner(),
        closed(connects(CHURN, Rack, 32.0)),
        overload,
        down("F8 far sink", Continent, 4, 64 * KIB, 90.0 * MB).to(All),
        up("F8 far source", Continent, 4, 64 * KIB, 90.0 * MB).to(All),
        down("F8 far sink", Ocean, 20, 16 * KIB, 6.0 * MB),
        up("F8 far source", Ocean, 20, 16 * KIB, 6.0 * MB),
        small("F9 64 B × 50, 2 workers").to(TwoWorkers),
        up("F9 8 flows, 2 workers", Rack, 8, 64 * KIB, 300.0 * MB).to(TwoWorkers),
    ]
}

/// Returns the saturation tests: closed loops on loopback.
pub(crate) fn laboratory() -> Vec<Load> {
    let profile = Profile::Loopback;
    let flows = |name, flows| closed(up(name, profile, flows, 256 * KIB, 0.0));
    let mut all = vec![flows("bulk, 1 flow", 1), flows("bulk, 64 flows", 64)];
    for (size, connections) in [(64, 1), (64, 64), (16 * KIB, 64), (64 * KIB, 64)] {
        let name = format!("round trips of {size} B × {connections}");
        all.push(closed(requests(name, profile, connections, size, 0.0)));
    }
    for size in (0..=10).map(|power| KIB << power) {
        all.push(closed(up(
            format!("sweep, writes of {} KiB", size / KIB),
            profile,
            1,
            size,
            0.0,
        )));
    }
    all.push(closed(connects("churn, 32 at once", profile, 32.0)));
    all
}

/// Returns small loads, to check that the benchmark works.
pub(crate) fn quick() -> Vec<Load> {
    vec![
        requests("F2 64 B × 50", Rack, 50, 64, 2_000.0),
        down("F3 20 × 3 Mbit/s", City, 20, 16 * KIB, 7.5 * MB),
        connects("F6 200 connections/s", Rack, 200.0),
        closed(connects(CHURN, Rack, 32.0)).to(Contenders::Few),
    ]
}
