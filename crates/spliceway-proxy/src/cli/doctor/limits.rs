//! Whether the limits of the system leave room for what is configured.

use std::num::NonZeroUsize;

use spliceway_lab::doctor::{Mark, Note};

use crate::kit::limits::{Descriptors, raise_descriptors};
use crate::run::startup::check_threads;
use crate::settings::Settings;

/// Without `max_conns`, a program with room for fewer sessions should know it.
const FEW_SESSIONS: usize = 1000;

/// Compares descriptors and threads with the settings.
pub(super) fn notes(settings: &Settings) -> Vec<Note> {
    vec![descriptors(settings), threads(settings)]
}

fn descriptors(settings: &Settings) -> Note {
    const CHECK: &str = "descriptors";
    const TITLE: &str = "the limit on descriptors";
    let limit = match raise_descriptors(settings.limits.descriptors) {
        Ok(limit) => limit,
        Err(error) => {
            let note = Note::new(Mark::Fault, CHECK, TITLE, error.to_string());
            return note.advise("lower nofile, or raise the hard limit (LimitNOFILE= of a unit)");
        }
    };
    let listeners = settings.services.iter().flat_map(|service| service.listeners());
    let listeners = listeners.map(|(range, _)| usize::from(range.count)).sum();
    let shares = Descriptors::divide(limit, listeners);
    let (asked, room) = (settings.limits.max_conns, shares.sessions());
    let wanted = asked.map_or(FEW_SESSIONS, NonZeroUsize::get);
    if room >= wanted {
        return Note::new(Mark::Ok, CHECK, TITLE, shares.to_string());
    }
    // A session needs two descriptors. An eighth is for pipes, and an eighth for lookups.
    let needed = (wanted * 2 + listeners).saturating_mul(4) / 3 + 64;
    let text = match asked {
        Some(asked) => format!("max_conns = {asked} is lowered to {room}: {shares}"),
        None => format!("few clients: {shares}"),
    };
    let advice = format!("LimitNOFILE={needed} in the unit, or `ulimit -Hn {needed}` as root");
    Note::new(Mark::Warning, CHECK, TITLE, text).advise(advice)
}

fn threads(settings: &Settings) -> Note {
    const CHECK: &str = "threads";
    const TITLE: &str = "threads";
    let workers = settings.workers.get();
    match check_threads(workers) {
        Ok(()) => Note::new(Mark::Ok, CHECK, TITLE, format!("{workers} workers can start")),
        Err(error) => Note::new(Mark::Fault, CHECK, TITLE, error.to_string()),
    }
}
