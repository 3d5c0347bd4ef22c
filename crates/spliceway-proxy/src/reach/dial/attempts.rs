//! Runs happy eyeballs: lookups and attempts run in parallel until one attempt connects.

use std::future::poll_fn;
use std::net::IpAddr;
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::happy_eyeballs::{Family, HappyEyeballs, Step};
use super::resolver::{Found, LookupError, NO_NAME_DELAY, Pending};
use super::socket::SocketError;
use crate::access::policy::Denied;

/// How long a missing answer is awaited after all known addresses have failed. A server has 5 s for
/// an answer.
const LATE_ANSWER_DELAY: Duration = Duration::from_secs(5);

/// A finished attempt.
pub(super) struct Tried<T> {
    pub(super) ip: IpAddr,
    pub(super) outcome: Result<T, Why>,
}

/// The reason why an attempt failed.
#[derive(Debug)]
pub(super) enum Why {
    Denied(Denied),
    Failed(SocketError),
}

/// The reason why happy eyeballs made no connection.
#[derive(Debug)]
pub(super) enum Lost {
    /// There was no address to try.
    Unresolved(LookupError),
    /// The first attempt that was denied, because the operator may want to know about it. If no
    /// attempt was denied, the last attempt that failed.
    Attempt(IpAddr, Why),
}

/// Returns the first connection that `attempt` makes. All other lookups and attempts are then
/// dropped, which closes their sockets.
pub(super) async fn first_to_connect<'a, T>(
    mut eyeballs: HappyEyeballs,
    mut lookups: Vec<Pending<'a, Found>>,
    attempt: impl Fn(IpAddr) -> Pending<'a, Tried<T>>,
    deadline: Instant,
) -> Result<(IpAddr, T), Lost> {
    let mut attempts: Vec<Pending<'a, Tried<T>>> = Vec::new();
    let mut latest = None;
    let mut lost = Lost::Unresolved(LookupError::NoAddress);
    let mut no_such_name = false;
    // Since when only an answer is awaited that may never come.
    let mut idle = None;
    loop {
        let now = Instant::now();
        let may_end = attempts.is_empty() && !lookups.is_empty() && (latest.is_some() || no_such_name);
        let since = may_end.then(|| *idle.get_or_insert(now));
        if since.is_none() {
            idle = None;
        } else if since.is_some_and(|since| now >= since + patience(no_such_name)) {
            lookups.clear();
            eyeballs.answered(Family::V6, [], now);
            eyeballs.answered(Family::V4, [], now);
        }
        if now >= deadline {
            return Err(lost.or_late(latest.filter(|_| !attempts.is_empty())));
        }
        let until = match eyeballs.next(now) {
            Step::Try(ip) => {
                latest = Some(ip);
                attempts.push(attempt(ip));
                continue;
            }
            Step::Wait(until) => {
                let missing = idle.map(|since| since + patience(no_such_name));
                [until, missing].into_iter().flatten().fold(deadline, Instant::min)
            }
            Step::Exhausted => return Err(lost),
        };
        tokio::select! {
            biased;
            Tried { ip, outcome } = next_done(&mut attempts) => match outcome {
                Ok(connection) => return Ok((ip, connection)),
                Err(why) => {
                    lost = lost.or(ip, why);
                    eyeballs.failed();
                }
            },
            found = next_done(&mut lookups) => match found.addresses {
                Ok(addresses) => {
                    no_such_name |= found.no_such_name;
                    eyeballs.answered(found.family, addresses, Instant::now());
                }
                Err(error) => {
                    lost = lost.or_unresolved(error);
                    eyeballs.answered(found.family, [], Instant::now());
                }
            },
            () = sleep_until(until) => {}
        }
    }
}

/// Returns how long a missing answer is awaited when nothing else is left to do: no server has the
/// name, or all known addresses have failed.
fn patience(no_such_name: bool) -> Duration {
    if no_such_name { NO_NAME_DELAY } else { LATE_ANSWER_DELAY }
}

impl Lost {
    fn or(self, ip: IpAddr, why: Why) -> Self {
        match self {
            Self::Attempt(_, Why::Denied(_)) => self,
            _ => Self::Attempt(ip, why),
        }
    }

    /// Returns the error to report at the deadline. It is the first of these that applies:
    ///
    /// - an earlier denial
    /// - the timeout of an attempt that is still running
    /// - the error of the last failed attempt
    /// - the timeout of the lookup
    fn or_late(self, under_way: Option<IpAddr>) -> Self {
        match (under_way, self) {
            (Some(ip), lost) => lost.or(ip, Why::Failed(SocketError::timed_out())),
            (None, Self::Unresolved(_)) => Self::Unresolved(LookupError::TimedOut),
            (None, lost) => lost,
        }
    }

    /// Replaces "no address" with the error of a failed lookup, which is more specific.
    fn or_unresolved(self, error: LookupError) -> Self {
        match self {
            Self::Unresolved(LookupError::NoAddress) => Self::Unresolved(error),
            lost => lost,
        }
    }
}

/// Waits until one of `futures` is done, removes it and returns its result. Waits forever if there
/// are no futures. Cancel safe.
pub(super) async fn next_done<T>(futures: &mut Vec<Pending<'_, T>>) -> T {
    poll_fn(|cx| {
        for index in 0..futures.len() {
            if let Poll::Ready(done) = futures[index].as_mut().poll(cx) {
                drop(futures.swap_remove(index));
                return Poll::Ready(done);
            }
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests;
