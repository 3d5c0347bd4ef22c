//! Runs happy eyeballs: lookups and attempts run in parallel until one attempt connects.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::error::DialError;
use super::happy_eyeballs::{Family, HappyEyeballs, Step};
use super::resolver::{Found, LookupError, NO_NAME_DELAY, Pending, next_done};
use super::socket::SocketError;
use spliceway_protocol::address::Target;

/// How long a missing answer is awaited after all known addresses have failed. A server has 5 s for
/// an answer.
const LATE_ANSWER_DELAY: Duration = Duration::from_secs(5);

/// Returns the first connection that `attempt` makes to one of the addresses, with the port and the
/// zone of `model`. All other lookups and attempts are then dropped, which closes their sockets.
///
/// # Errors
/// Returns the error of the lookup if there was no address to try. Otherwise, returns the first
/// denial, because the operator may want to know about it, or else the last failure.
pub(super) async fn first_to_connect<'a, T>(
    mut eyeballs: HappyEyeballs,
    mut lookups: Vec<Pending<'a, Found>>,
    model: SocketAddr,
    attempt: impl Fn(SocketAddr) -> Pending<'a, Result<T, DialError>>,
    deadline: Instant,
) -> Result<T, DialError> {
    let mut attempts: Vec<Pending<'a, Result<T, DialError>>> = Vec::new();
    let mut latest = None;
    let mut lost = DialError::Unresolved(LookupError::NoAddress);
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
            return Err(at_deadline(lost, latest.filter(|_| !attempts.is_empty())));
        }
        let until = match eyeballs.next(now) {
            Step::Try(ip) => {
                let address = with_ip(model, ip);
                latest = Some(address);
                attempts.push(attempt(address));
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
            outcome = next_done(&mut attempts) => match outcome {
                Ok(connection) => return Ok(connection),
                Err(error) => {
                    lost = lost.or(error);
                    eyeballs.failed();
                }
            },
            found = next_done(&mut lookups) => match found.addresses {
                Ok(addresses) => {
                    no_such_name |= found.no_such_name;
                    eyeballs.answered(found.family, addresses, Instant::now());
                }
                Err(error) => {
                    // The failure of a lookup is more specific than "no address".
                    if let DialError::Unresolved(known) = lost {
                        lost = known.or(error).into();
                    }
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

/// Returns the error to report at the deadline. It is the first of these that applies:
///
/// - an earlier denial
/// - the timeout of an attempt that is still running
/// - the error of the last failed attempt
/// - the timeout of the lookup
fn at_deadline(lost: DialError, under_way: Option<SocketAddr>) -> DialError {
    match (under_way, lost) {
        (Some(address), lost) => lost.or(DialError::Unreachable(Target::Ip(address), SocketError::timed_out())),
        (None, DialError::Unresolved(_)) => LookupError::TimedOut.into(),
        (None, lost) => lost,
    }
}

/// Returns `model` with this IP address. The zone of an IPv6 address stays.
fn with_ip(mut model: SocketAddr, ip: IpAddr) -> SocketAddr {
    model.set_ip(ip);
    model
}

#[cfg(test)]
mod tests;
