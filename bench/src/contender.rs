//! The relays that the field benchmark compares.

use spliceway_core::heuristic::Heuristic;

use crate::kind::Kind;
use crate::load::{Contenders, Load};

/// A relay under one set of conditions.
#[derive(Clone, Debug)]
pub(crate) struct Contender {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// The heuristic that is turned off.
    pub(crate) off: Option<Heuristic>,
    /// Whether a thread of the lowest class keeps the relay's core awake.
    pub(crate) spinner: bool,
}

/// Ratios are to this one.
pub(crate) const REFERENCE: &str = "tokio 8 KiB";
pub(crate) const OURS: &str = "spliceway";
/// The A/A control.
pub(crate) const AGAIN: &str = "spliceway, again";
pub(crate) const DIRECT: &str = "direct";

/// The names of spliceway without a heuristic begin with this.
pub(crate) const WITHOUT: &str = "without ";

/// Whether people may choose it instead of spliceway.
pub(crate) fn is_peer(name: &str) -> bool {
    !name.starts_with(OURS) && !name.starts_with(WITHOUT) && !name.contains(", ") && name != DIRECT
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
    Kind::Spliceway,
    Kind::Again,
];

const FEW: &[Kind] = &[Kind::Direct, Kind::Tokio, Kind::Haproxy, Kind::Spliceway, Kind::Again];

const TWO_WORKERS: &[Kind] = &[Kind::TokioTwoWorkers, Kind::TwoWorkers, Kind::TwoRuntimes];

const WITH_SPINNER: &[Kind] = &[Kind::Direct, Kind::Tokio, Kind::Haproxy, Kind::Spliceway];

const HEURISTICS: [Heuristic; 7] = [
    Heuristic::Rests,
    Heuristic::MessageMeter,
    Heuristic::LongTurns,
    Heuristic::BackpressureClock,
    Heuristic::PipeSizes,
    Heuristic::ReadinessProbes,
    Heuristic::UrgentMarkCheck,
];

impl Contender {
    pub(crate) fn plain(kind: Kind) -> Self {
        Self {
            name: kind.name().into(),
            kind,
            off: None,
            spinner: false,
        }
    }

    /// What turns it off, for the relay's process.
    pub(crate) fn switch(&self) -> String {
        self.off.map_or_else(String::new, |heuristic| format!("{heuristic:?}"))
    }
}

/// Those that are installed, of those that a load is for.
pub(crate) fn of(load: &Load) -> Vec<Contender> {
    let kinds = match load.contenders {
        Contenders::Few => FEW,
        Contenders::TwoWorkers => TWO_WORKERS,
        Contenders::All | Contenders::AllAndHeuristics => ALL,
    };
    let mut all: Vec<Contender> = installed(kinds).map(Contender::plain).collect();
    if load.spinner {
        all.extend(installed(WITH_SPINNER).map(|kind| Contender {
            name: format!("{}, spinner", kind.name()),
            spinner: true,
            ..Contender::plain(kind)
        }));
    }
    if load.contenders == Contenders::AllAndHeuristics && cfg!(spliceway_switches) {
        all.extend(HEURISTICS.map(|heuristic| Contender {
            name: format!("{WITHOUT}{heuristic:?}"),
            off: Some(heuristic),
            ..Contender::plain(Kind::Spliceway)
        }));
    }
    all
}

/// Those of the real programs.
pub(crate) fn of_programs() -> Vec<Contender> {
    const KINDS: &[Kind] = &[
        Kind::Tokio,
        Kind::Direct,
        Kind::Haproxy,
        Kind::Nginx,
        Kind::Go,
        Kind::Program,
        Kind::Spliceway,
        Kind::Again,
        Kind::TwoWorkers,
    ];
    installed(KINDS).map(Contender::plain).collect()
}

/// No relay.
pub(crate) fn direct() -> Contender {
    Contender::plain(Kind::Direct)
}

/// Those that have a limit of what they carry: all but the direct connection.
pub(crate) fn relays() -> Vec<Contender> {
    installed(&ALL[1..ALL.len() - 1]).map(Contender::plain).collect()
}

fn installed(kinds: &[Kind]) -> impl Iterator<Item = Kind> {
    kinds.iter().copied().filter(|kind| kind.missing().is_none())
}
