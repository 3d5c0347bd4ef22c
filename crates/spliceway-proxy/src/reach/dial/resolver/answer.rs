//! Lookups in progress, and what they find.

use std::fmt;
use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};

use crate::reach::dial::happy_eyeballs::{Family, RESOLUTION_DELAY};

/// How long the lookup of all addresses waits for IPv4 when it has IPv6 addresses. IPv6 may have no
/// route.
const V4_DELAY: Duration = Duration::from_millis(250);
/// How long a lookup waits for the other family when a server has said that there is no such name.
/// That holds for both families, but some servers say so wrongly about IPv6.
pub(in crate::reach::dial) const NO_NAME_DELAY: Duration = Duration::from_secs(1);

/// A boxed future of any type.
pub(in crate::reach::dial) type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The answer for one address family.
pub(in crate::reach::dial) struct Found {
    pub(in crate::reach::dial) family: Family,
    pub(in crate::reach::dial) addresses: Result<Vec<IpAddr>, LookupError>,
    /// Whether a server has said that there is no such name.
    pub(in crate::reach::dial) no_such_name: bool,
}

impl Found {
    /// Returns the addresses. That there is no such name is an error.
    pub(in crate::reach::dial) fn into_addresses(self) -> Result<Vec<IpAddr>, LookupError> {
        let has_no_name = self.no_such_name && self.addresses.as_ref().is_ok_and(Vec::is_empty);
        if has_no_name {
            Err(LookupError::NoAddress)
        } else {
            self.addresses
        }
    }
}

/// A lookup in progress.
pub(in crate::reach::dial) enum Lookup<'a> {
    Whole(Pending<'a, Result<Vec<IpAddr>, LookupError>>),
    /// One future for each family, because one answer may take much longer than the other.
    Families([Pending<'a, Found>; 2]),
}

/// The reason why a lookup found no address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LookupError {
    /// The name has no address.
    NoAddress,
    /// No answer came in time.
    TimedOut,
    /// The lookup failed.
    Failed(Arc<str>),
    /// No server could be reached.
    Unreachable(Arc<str>),
    /// The client has too many slow lookups, so this lookup could not start in time.
    TooMany,
}

impl LookupError {
    /// Returns the error to report for two lookups. That a name has no address is only known if all
    /// lookups say so.
    pub(in crate::reach::dial) fn or(self, later: Self) -> Self {
        match self {
            Self::NoAddress => later,
            failed => failed,
        }
    }
}

/// Waits for `lookup` until `deadline`.
pub(in crate::reach::dial) async fn within<T>(
    deadline: Instant,
    lookup: impl Future<Output = Result<T, LookupError>>,
) -> Result<T, LookupError> {
    timeout_at(deadline, lookup).await.unwrap_or(Err(LookupError::TimedOut))
}

/// Waits until one of `futures` is done, removes it and returns its result. Waits forever if there
/// are no futures. Cancel safe.
pub(in crate::reach::dial) async fn next_done<T>(futures: &mut Vec<Pending<'_, T>>) -> T {
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

/// Joins both answers.
pub(super) async fn both(mut v6: Pending<'_, Found>, mut v4: Pending<'_, Found>) -> Result<Vec<IpAddr>, LookupError> {
    let (first, other) = tokio::select! {
        biased;
        found = &mut v6 => (found, v4),
        found = &mut v4 => (found, v6),
    };
    joined(first, other).await
}

/// Joins the answer for one family and that for the other, which may never come. If one lookup
/// fails, the addresses of the other one count.
pub(super) async fn joined(first: Found, other: Pending<'_, Found>) -> Result<Vec<IpAddr>, LookupError> {
    let patience = match &first.addresses {
        Ok(found) if !found.is_empty() && first.family == Family::V4 => Some(RESOLUTION_DELAY),
        Ok(found) if !found.is_empty() => Some(V4_DELAY),
        Ok(_) if first.no_such_name => Some(NO_NAME_DELAY),
        _ => None,
    };
    let other = match patience {
        None => other.await,
        Some(patience) => match timeout(patience, other).await {
            Ok(other) => other,
            Err(_) => return first.addresses,
        },
    };
    match (first.addresses, other.addresses) {
        (Ok(mut found), Ok(more)) => {
            found.extend(more);
            Ok(found)
        }
        (Ok(found), Err(_)) | (Err(_), Ok(found)) if !found.is_empty() => Ok(found),
        (Err(error), _) | (_, Err(error)) => Err(error),
    }
}

impl fmt::Display for LookupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAddress => f.write_str("the name has no address"),
            Self::TimedOut => f.write_str("no answer in time"),
            Self::Failed(error) | Self::Unreachable(error) => f.write_str(error),
            Self::TooMany => f.write_str("too many lookups of this client are in progress"),
        }
    }
}
