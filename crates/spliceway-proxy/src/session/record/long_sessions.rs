//! Writes records of open sessions that are old.

use std::future::pending;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use super::line;
use crate::log;
use crate::session::facts::{Phase, Session};
use crate::session::registry::Sessions;

/// The value of `end` in the records of sessions that have not ended.
const OPEN: &str = "open";

/// Writes a record of each open session about once in `interval`, which may change, and never
/// returns.
pub(crate) async fn write_open(sessions: &Sessions, mut interval: watch::Receiver<Option<Duration>>) {
    loop {
        let every = *interval.borrow_and_update();
        let writing = async {
            match every {
                Some(every) => visit_old(sessions, every, write_of_open).await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = writing => {}
            // Without a sender, the interval is the last one.
            Ok(()) = interval.changed() => {}
        }
    }
}

/// Visits each session that is older than `interval` about once in `interval`, and never returns.
/// One pass over the registry takes `interval`, so the visits are spread over that time.
async fn visit_old(sessions: &Sessions, interval: Duration, visit: impl Fn(&Session)) {
    loop {
        for slice in sessions.slices(0) {
            let old = slice
                .iter()
                .filter(|(_, session)| session.started.elapsed() >= interval);
            old.for_each(|(_, session)| visit(session));
            drop(slice);
            sleep(interval / sessions.slice_count()).await;
        }
    }
}

fn write_of_open(session: &Session) {
    // The lock is held, so that no such record follows the last one.
    let facts = session.facts();
    if facts.is_over {
        return;
    }
    let datagrams = match &facts.phase {
        Phase::Datagrams(stats) => Some(stats.snapshot()),
        _ => None,
    };
    log::record(false, |line| {
        line::fill(line, session, &facts, &facts.relayed(), datagrams.as_ref());
        line.text("end", OPEN);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::HashMap;
    use tokio::time::timeout;

    #[tokio::test(start_paused = true)]
    async fn each_session_is_visited_once_in_an_interval_and_few_at_once() {
        const SESSIONS: u64 = 1000;
        let (sessions, interval) = (Sessions::default(), Duration::from_secs(60));
        (0..SESSIONS).for_each(|_| drop(sessions.add("forward".into(), None)));
        let visits = RefCell::new(HashMap::<u64, Vec<Duration>>::new());
        let visit = |session: &Session| {
            let mut visits = visits.borrow_mut();
            visits.entry(session.id).or_default().push(session.started.elapsed());
        };
        let passes = 3 * interval - Duration::from_millis(1);
        assert!(timeout(passes, visit_old(&sessions, interval, visit)).await.is_err());
        let visits = visits.into_inner();
        assert_eq!(visits.len() as u64, SESSIONS);
        let mut at_once = HashMap::<Duration, usize>::new();
        for times in visits.values() {
            assert_eq!(times.len(), 2, "{times:?}");
            assert!(times[0] >= interval && times[0] < 2 * interval, "{times:?}");
            assert_eq!(times[1] - times[0], interval);
            times.iter().for_each(|time| *at_once.entry(*time).or_default() += 1);
        }
        assert!(at_once.values().all(|count| *count <= 256), "{at_once:?}");
    }
}
