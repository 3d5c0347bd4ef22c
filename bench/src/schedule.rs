//! When each message is due: the same times for every contender.

use std::time::Duration;

use crate::load::{Load, Requests, Streams};
use spliceway_machine::Random;

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A write of a flow, by its number.
    Write(usize),
    /// A request on a connection, by its number.
    Request(usize),
    /// A connection that asks once.
    Connect,
}

pub(crate) type Schedule = Vec<(Duration, What)>;

/// All that is due within `time`, in order. Rounds differ, contenders do not.
pub(crate) fn of(load: &Load, round: usize, time: Duration) -> Schedule {
    let mut random = Random::new(1 + round as u64);
    let mut all = Schedule::new();
    if load.is_closed {
        return all;
    }
    if let Some(streams) = &load.streams {
        paced(streams, load, time, &mut random, &mut all);
    }
    if let Some(Requests { connections, rate, .. }) = load.requests {
        poisson(rate, time, &mut random, |after, random| {
            all.push((after, What::Request(random.between(0, connections as u64 - 1) as usize)));
        });
    }
    if let Some(rate) = load.connects {
        poisson(rate, time, &mut random, |after, _| all.push((after, What::Connect)));
    }
    all.sort_by_key(|(after, _)| *after);
    all
}

/// Each flow writes at even distances, from a time of its own on.
fn paced(streams: &Streams, load: &Load, time: Duration, random: &mut Random, all: &mut Schedule) {
    let every = (streams.size * streams.flows) as f64 / streams.rate;
    for flow in 0..streams.flows {
        let mut at = every * random.fraction();
        while at < time.as_secs_f64() {
            all.push((Duration::from_secs_f64(at), What::Write(flow)));
            at += every / share(load, at);
        }
    }
}

/// The part of a rate that is offered at a time: of an overload, half before and after it.
fn share(load: &Load, at: f64) -> f64 {
    match load.overload {
        None => 1.0,
        Some(overload) => {
            let begins = load.profile.warming().as_secs_f64() + LEAD;
            let is_over = at < begins || at >= begins + overload.as_secs_f64();
            if is_over { 0.5 / 1.2 } else { 1.0 }
        }
    }
}

/// Seconds at half of the capacity before an overload, and after it.
pub(crate) const LEAD: f64 = 0.5;
pub(crate) const RECOVERY: f64 = 1.5;

fn poisson(rate: f64, time: Duration, random: &mut Random, mut due: impl FnMut(Duration, &mut Random)) {
    let mut at = 0.0;
    loop {
        at -= (1.0 - random.fraction()).ln() / rate;
        if at >= time.as_secs_f64() {
            return;
        }
        due(Duration::from_secs_f64(at), random);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load;

    #[test]
    fn a_schedule_has_the_rate_and_repeats_itself() {
        for load in load::all([1e9; 3]) {
            let time = Duration::from_secs(2);
            let schedule = of(&load, 0, time);
            assert_eq!(schedule, of(&load, 0, time), "{}", load.name);
            assert!(schedule.is_sorted_by_key(|(after, _)| *after));
            let writes = load.streams.map_or(0.0, |streams| streams.rate / streams.size as f64);
            let others = load.requests.map_or(0.0, |requests| requests.rate) + load.connects.unwrap_or(0.0);
            let expected = 2.0 * (writes + others);
            if load.overload.is_none() {
                let off = schedule.len() as f64 / expected - 1.0;
                assert!(off.abs() < 0.1, "{}: {off}", load.name);
            }
        }
    }
}
