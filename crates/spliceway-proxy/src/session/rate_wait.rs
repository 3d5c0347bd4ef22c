//! Waits for a rate limit before bytes pass that no relay reads: a request, or the head of an
//! answer.

use std::future::pending;
use std::time::Duration;

use spliceway::Direction;
use tokio::io::Interest;
use tokio::time::{Instant, sleep};

use super::client::Client;
use super::departure::{Finish, departed};
use super::guard::Guard;
use crate::access::rates::SessionRates;
use crate::kit::outcome::{Outcome, SessionEnd};

/// Waits until the rates let these bytes pass. Returns how the client left if it leaves before.
///
/// The idle timeout does not end this wait, because neither side is idle: the limit holds them
/// back. The half-close timeout does. A client that has closed its connection looks like one that
/// has only finished. Without that timeout, those who give up would delay those who wait.
pub(super) async fn wait_for_rate(
    rates: &SessionRates,
    direction: Direction,
    bytes: usize,
    (client, finish): (&Client, Finish),
    guard: &Guard,
) -> Result<(), Outcome> {
    let limit = match direction {
        Direction::AToB => &rates.incoming,
        Direction::BToA => &rates.outgoing,
    };
    let Some(limit) = limit.as_ref().filter(|_| bytes > 0) else {
        return Ok(());
    };
    let _timed = Timed {
        guard,
        direction,
        since: Instant::now(),
    };
    tokio::select! {
        biased;
        () = limit.charge_and_wait(bytes as u64) => Ok(()),
        left = departed(client, finish) => Err(left),
        () = half_closed(client, guard.service().settings.timeouts.half_close) => {
            Err(SessionEnd::HalfCloseTimeout.into())
        }
    }
}

/// Waits until the client has been half-closed for this time.
async fn half_closed(client: &Client, limit: Option<Duration>) {
    // This reports EOF, also behind unread bytes.
    match (client.get_ref().ready(Interest::PRIORITY).await, limit) {
        (Ok(_), Some(limit)) => sleep(limit).await,
        _ => pending().await,
    }
}

/// Records the time of a wait at its end, also if the session is cut.
struct Timed<'a> {
    guard: &'a Guard,
    direction: Direction,
    since: Instant,
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        self.guard.was_limited(self.direction, self.since.elapsed());
    }
}
