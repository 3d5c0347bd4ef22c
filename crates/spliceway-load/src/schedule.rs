//! The schedule: the due time of each message.

use std::time::Duration;

use crate::{Offer, Random, Requests, Streams};

/// An event that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A write of the flow with this number.
    Write(usize),
    /// A request on the connection with this number.
    Request(usize),
    /// A new connection for one exchange.
    Connect,
}

/// All due events with their times, in order of time.
pub type Schedule = Vec<(Duration, What)>;

/// Returns everything that is due within `time`. At each second, streams send the given `share` of
/// their rate. Equal seeds give equal schedules.
pub fn schedule(offer: &Offer, seed: u64, time: Duration, share: impl Fn(f64) -> f64) -> Schedule {
    let mut random = Random::new(seed);
    let mut all = Schedule::new();
    if offer.is_closed {
        return all;
    }
    if let Some(streams) = &offer.streams {
        paced(streams, share, time, &mut random, &mut all);
    }
    if let Some(Requests { connections, rate, .. }) = offer.requests {
        poisson(rate, time, &mut random, |after, random| {
            all.push((after, What::Request(random.between(0, connections as u64 - 1) as usize)));
        });
    }
    if let Some(rate) = offer.connects {
        poisson(rate, time, &mut random, |after, _| all.push((after, What::Connect)));
    }
    all.sort_by_key(|(after, _)| *after);
    all
}

/// Schedules each flow's writes at even intervals, beginning at a random time.
fn paced(streams: &Streams, share: impl Fn(f64) -> f64, time: Duration, random: &mut Random, all: &mut Schedule) {
    let every = (streams.size * streams.flows) as f64 / streams.rate;
    for flow in 0..streams.flows {
        let mut at = every * random.fraction();
        while at < time.as_secs_f64() {
            all.push((Duration::from_secs_f64(at), What::Write(flow)));
            at += every / share(at);
        }
    }
}

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

    #[test]
    fn a_schedule_has_the_rate_and_repeats_itself() {
        let offer = Offer {
            streams: Some(Streams {
                flows: 20,
                size: 16 << 10,
                rate: 1e8,
                up: true,
            }),
            requests: Some(Requests {
                connections: 50,
                size: 64,
                rate: 3_000.0,
            }),
            connects: Some(1_500.0),
            ..Offer::default()
        };
        let time = Duration::from_secs(2);
        let whole = schedule(&offer, 1, time, |_| 1.0);
        assert_eq!(whole, schedule(&offer, 1, time, |_| 1.0));
        assert_ne!(whole, schedule(&offer, 2, time, |_| 1.0));
        assert!(whole.is_sorted_by_key(|(after, _)| *after));
        let expected = [2.0 * 1e8 / 16_384.0, 6_000.0, 3_000.0];
        let of = |kind: fn(&What) -> bool| whole.iter().filter(|(_, what)| kind(what)).count() as f64;
        let found = [
            of(|what| matches!(what, What::Write(_))),
            of(|what| matches!(what, What::Request(_))),
            of(|what| matches!(what, What::Connect)),
        ];
        for (found, expected) in found.into_iter().zip(expected) {
            assert!((found / expected - 1.0).abs() < 0.05, "{found} of {expected}");
        }
        let half = schedule(&offer, 1, time, |at| if at < 1.0 { 1.0 } else { 0.5 });
        let writes = half.iter().filter(|(_, what)| matches!(what, What::Write(_))).count() as f64;
        assert!((writes / expected[0] - 0.75).abs() < 0.02, "{writes}");
    }
}
