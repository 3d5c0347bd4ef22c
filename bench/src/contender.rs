//! The relays that the field benchmark compares.

use crate::kind::Kind;
use crate::load::{Contenders, Load};

/// A relay under one set of conditions.
#[derive(Clone, Debug)]
pub(crate) struct Contender {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// Whether a thread in the lowest scheduling class keeps the relay's core awake.
    pub(crate) spinner: bool,
}

/// The contender to which ratios refer.
pub(crate) const REFERENCE: &str = "tokio 8 KiB";
pub(crate) const OURS: &str = "spliceway";
/// The released program, with its default options.
pub(crate) const PROGRAM: &str = "spliceway forward";
/// The A/A control.
pub(crate) const AGAIN: &str = "spliceway, again";
pub(crate) const DIRECT: &str = "direct";

/// Returns whether users may choose this contender instead of spliceway.
pub(crate) fn is_peer(name: &str) -> bool {
    !name.starts_with(OURS) && !name.contains(", ") && name != DIRECT
}

const ALL: &[Kind] = &[
    Kind::Direct,
    Kind::Tokio,
    Kind::Copy64k,
    Kind::Copy256k,
    #[cfg(feature = "peers")]
    Kind::RealmIo,
    #[cfg(feature = "peers")]
    Kind::TokioSplice,
    #[cfg(feature = "peers")]
    Kind::TokioSplice2,
    Kind::Go,
    Kind::Haproxy,
    Kind::Nginx,
    Kind::Program,
    Kind::ProgramBefore,
    Kind::Spliceway,
    Kind::Again,
    Kind::Before,
];

const FEW: &[Kind] = &[
    Kind::Direct,
    Kind::Tokio,
    Kind::Haproxy,
    Kind::Spliceway,
    Kind::Again,
    Kind::Before,
];

const TWO_WORKERS: &[Kind] = &[Kind::TokioTwoWorkers, Kind::TwoWorkers, Kind::TwoRuntimes];

const WITH_SPINNER: &[Kind] = &[Kind::Direct, Kind::Tokio, Kind::Haproxy, Kind::Spliceway];

impl Contender {
    pub(crate) fn plain(kind: Kind) -> Self {
        Self {
            name: kind.name().into(),
            kind,
            spinner: false,
        }
    }
}

/// Returns the installed contenders for a load.
pub(crate) fn of(load: &Load) -> Vec<Contender> {
    let kinds = match load.contenders {
        Contenders::Few => FEW,
        Contenders::TwoWorkers => TWO_WORKERS,
        Contenders::All => ALL,
    };
    let mut all: Vec<Contender> = installed(kinds).map(Contender::plain).collect();
    if load.offer.connects.is_some() {
        // A record is written at the end of a connection, so only these loads show its cost.
        all.extend(installed(&[Kind::ProgramNoLog]).map(Contender::plain));
    }
    if load.spinner {
        all.extend(installed(WITH_SPINNER).map(|kind| Contender {
            name: format!("{}, spinner", kind.name()),
            spinner: true,
            ..Contender::plain(kind)
        }));
    }
    all
}

/// Returns the contenders for the real programs.
pub(crate) fn of_programs() -> Vec<Contender> {
    const KINDS: &[Kind] = &[
        Kind::Tokio,
        Kind::Direct,
        Kind::Haproxy,
        Kind::Nginx,
        Kind::Go,
        Kind::Program,
        Kind::ProgramBefore,
        Kind::Spliceway,
        Kind::Again,
        Kind::Before,
        Kind::TwoWorkers,
    ];
    installed(KINDS).map(Contender::plain).collect()
}

/// Keeps the contenders whose names begin with one of the prefixes, or all if there is no prefix.
pub(crate) fn asked(mut contenders: Vec<Contender>, prefixes: &[String]) -> Vec<Contender> {
    contenders.retain(|one| prefixes.is_empty() || prefixes.iter().any(|prefix| one.name.starts_with(prefix)));
    contenders
}

/// Returns the direct connection, without a relay.
pub(crate) fn direct() -> Contender {
    Contender::plain(Kind::Direct)
}

/// Returns the contenders with a limited capacity: all except the direct connection.
pub(crate) fn relays() -> Vec<Contender> {
    let is_another = |kind: &Kind| !matches!(kind, Kind::Direct | Kind::Again | Kind::Before | Kind::ProgramBefore);
    installed(ALL).filter(is_another).map(Contender::plain).collect()
}

/// Returns the contenders whose work is counted: the relays, with one size of tokio's buffers.
pub(crate) fn for_counts() -> Vec<Contender> {
    let mut all = relays();
    all.retain(|one| !matches!(one.kind, Kind::Copy64k | Kind::Copy256k));
    all
}

/// Returns the contenders that hold idle sessions: the relays, and the control.
pub(crate) fn for_idle_sessions() -> Vec<Contender> {
    let mut all = relays();
    all.push(Contender::plain(Kind::Again));
    all
}

fn installed(kinds: &[Kind]) -> impl Iterator<Item = Kind> {
    kinds.iter().copied().filter(|kind| kind.missing().is_none())
}
