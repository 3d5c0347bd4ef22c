//! What is measured: the loads, and the figures of each.

use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;
use spliceway_load::{Offer, Requests, Streams};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    /// One upload, by the size of its writes
    Sweep,
    /// One download
    Bulk,
    /// Many downloads at the same time
    Many,
    /// Requests and responses at a fixed rate
    Requests,
    /// New connections at a fixed rate
    Connections,
    /// A new pipe against a pipe of the pool
    Pool,
    /// With TLS: one download, which the relay encrypts.
    #[value(skip)]
    Encrypt,
    /// With TLS: one upload, which the relay decrypts.
    #[value(skip)]
    Decrypt,
    /// With TLS: new connections, one after the other.
    #[value(skip)]
    Handshakes,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Sweep => "sweep",
            Self::Bulk => "bulk",
            Self::Many => "many",
            Self::Requests => "requests",
            Self::Connections => "connections",
            Self::Pool => "pool",
            Self::Encrypt => "encrypt",
            Self::Decrypt => "decrypt",
            Self::Handshakes => "handshakes",
        }
    }
}

/// A quantity that is compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Figure {
    /// GiB per second.
    Rate,
    /// CPU seconds per GiB.
    CpuPerGib,
    /// CPU microseconds per request or connection.
    CpuEach,
    /// Microseconds, at a quantile.
    Latency(f64),
    /// Nanoseconds for each pipe.
    Pipe,
}

impl Figure {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::CpuPerGib | Self::CpuEach => "cpu",
            Self::Latency(part) if part < 0.9 => "p50",
            Self::Latency(_) => "p99",
            Self::Pipe => "time",
        }
    }

    pub(super) fn unit(self) -> &'static str {
        match self {
            Self::Rate => "GiB/s",
            Self::CpuPerGib => "s/GiB",
            Self::CpuEach | Self::Latency(_) => "µs",
            Self::Pipe => "ns",
        }
    }

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Rate => "rate, GiB/s",
            Self::CpuPerGib => "CPU, s/GiB",
            Self::CpuEach => "CPU, µs each",
            Self::Latency(part) if part < 0.9 => "latency p50, µs",
            Self::Latency(_) => "latency p99, µs",
            Self::Pipe => "ns each",
        }
    }

    pub(super) fn is_more_better(self) -> bool {
        self == Self::Rate
    }

    /// The A/A control may differ by this fraction.
    pub(super) fn tolerance(self) -> f64 {
        match self {
            Self::Latency(_) => 0.25,
            _ => 0.10,
        }
    }
}

/// One load.
pub(super) struct Measurement {
    pub(super) kind: Kind,
    /// Bytes of each write, if they are what changes.
    pub(super) size: Option<usize>,
    pub(super) offer: Offer,
    pub(super) figures: &'static [Figure],
}

const BULK: &[Figure] = &[Figure::Rate, Figure::CpuPerGib];
const EACH: &[Figure] = &[Figure::Latency(0.5), Figure::Latency(0.99), Figure::CpuEach];

/// Rates that leave a core with tokio's copies mostly idle.
const REQUESTS: Requests = Requests {
    connections: 32,
    size: KIB,
    rate: 4_000.0,
};
/// Each connection leaves its ports unusable for a minute, so a run may not use many.
const CONNECTIONS: f64 = 1_000.0;
const MANY: usize = 64;
/// When many connections begin at the same time, a few lose packets and wait for TCP's shortest
/// timeout.
const STALL: Duration = Duration::from_millis(200);

/// Returns all measurements of relays.
pub(super) fn all() -> Vec<Measurement> {
    let streams = |kind, flows, size, up| Measurement {
        kind,
        size: (kind == Kind::Sweep).then_some(size),
        offer: Offer {
            streams: Some(Streams {
                flows,
                size,
                rate: 0.0,
                up,
            }),
            is_closed: true,
            ..Offer::default()
        },
        figures: BULK,
    };
    let each = |kind, offer| Measurement {
        kind,
        size: None,
        offer,
        figures: EACH,
    };
    let sweep = (0..=10)
        .step_by(2)
        .map(|power| streams(Kind::Sweep, 1, KIB << power, true));
    let requests = Offer {
        requests: Some(REQUESTS),
        ..Offer::default()
    };
    let connects = Offer {
        connects: Some(CONNECTIONS),
        ..Offer::default()
    };
    sweep
        .chain([
            streams(Kind::Bulk, 1, 256 * KIB, false),
            streams(Kind::Many, MANY, 64 * KIB, false),
            each(Kind::Requests, requests),
            each(Kind::Connections, connects),
        ])
        .collect()
}

/// Returns the measurements of relays that terminate TLS. They have a load of their own.
pub(super) fn of_tls() -> Vec<Measurement> {
    let one = |(kind, figures)| Measurement {
        kind,
        size: None,
        offer: Offer {
            is_closed: true,
            ..Offer::default()
        },
        figures,
    };
    [
        (Kind::Encrypt, BULK),
        (Kind::Decrypt, BULK),
        (Kind::Handshakes, &[Figure::CpuEach]),
    ]
    .map(one)
    .into()
}

impl Measurement {
    /// Returns the title of the table, and the label of the row.
    pub(super) fn titles(&self, figure: Figure) -> (String, String) {
        let title = match self.kind {
            Kind::Sweep => format!("One upload, by the size of a write: {}", figure.label()),
            Kind::Bulk => "One download".to_owned(),
            Kind::Many => format!("{MANY} downloads"),
            Kind::Requests => format!(
                "Requests of {} KiB, {} each second on {} connections",
                REQUESTS.size / KIB,
                REQUESTS.rate,
                REQUESTS.connections
            ),
            Kind::Connections => format!("New connections, {CONNECTIONS} each second"),
            Kind::Pool => "Pipes".to_owned(),
            Kind::Encrypt => "One download: the relay encrypts".to_owned(),
            Kind::Decrypt => "One upload: the relay decrypts".to_owned(),
            Kind::Handshakes => "New connections: a handshake and 1 KiB in each direction".to_owned(),
        };
        let label = match self.size {
            Some(size) if size < MIB => format!("{} KiB", size / KIB),
            Some(size) => format!("{} MiB", size / MIB),
            None => figure.label().to_owned(),
        };
        (title, label)
    }

    /// Returns when the measured window of a run opens and closes.
    pub(super) fn window(&self, time: Duration) -> (Duration, Duration) {
        let (warming, time) = match self.kind {
            Kind::Many => (STALL, time.max(STALL)),
            // Percentiles need many messages.
            _ if !self.offer.is_closed => (time / 5, time * 2),
            _ => (time / 5, time),
        };
        (warming, warming + time)
    }
}
