//! Connects to targets.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout_at};

use crate::address::Target;
use crate::errno;
use crate::listener::prepare;

/// What one address gets at least of the time, while there is some: shorter would refuse a host that is only far away.
const ATTEMPT_MIN: Duration = Duration::from_secs(2);

/// Why there is no connection.
#[derive(Debug)]
pub(crate) enum DialError {
    /// The name has no address, or nobody could say.
    Unresolved(io::Error),
    /// The last address tried.
    Unreachable(SocketAddr, io::Error),
}

/// Looks `target` up and tries its addresses in turn, all within `limit`.
///
/// An address that does not answer gets an equal share of the time that is left (not less than 2 s, if there are), so that one
/// dead address does not hide the live one behind it.
pub(crate) async fn dial(target: &Target, limit: Duration) -> Result<TcpStream, DialError> {
    let deadline = Instant::now() + limit;
    let addresses = match target {
        Target::Ip(address) => vec![*address],
        Target::Name(name, port) => match timeout_at(deadline, lookup_host((&**name, *port))).await {
            Ok(Ok(addresses)) => addresses.collect(),
            Ok(Err(error)) => return Err(DialError::Unresolved(error)),
            Err(_) => return Err(DialError::Unresolved(timed_out())),
        },
    };
    let mut refused = DialError::Unresolved(io::Error::other("the name has no address"));
    for (tried, address) in addresses.iter().enumerate() {
        match attempt(*address, share(deadline, addresses.len() - tried)).await {
            Ok(stream) => return Ok(stream),
            Err(error) => refused = DialError::Unreachable(*address, error),
        }
        if Instant::now() >= deadline {
            break;
        }
    }
    Err(refused)
}

async fn attempt(address: SocketAddr, deadline: Instant) -> io::Result<TcpStream> {
    let stream = timeout_at(deadline, TcpStream::connect(address))
        .await
        .unwrap_or_else(|_| Err(timed_out()))?;
    prepare(&stream)?;
    Ok(stream)
}

/// When the next of `left` addresses must have answered.
fn share(deadline: Instant, left: usize) -> Instant {
    let now = Instant::now();
    let parts = u32::try_from(left).unwrap_or(u32::MAX).max(1);
    let part = deadline.saturating_duration_since(now) / parts;
    deadline.min(now + part.max(ATTEMPT_MIN))
}

/// The error that the kernel would give in the end.
fn timed_out() -> io::Error {
    rustix::io::Errno::TIMEDOUT.into()
}

impl DialError {
    /// For records and labels: the errno's name.
    pub(crate) fn as_str(&self) -> &'static str {
        match self {
            Self::Unresolved(error) if error.kind() == io::ErrorKind::TimedOut => "ETIMEDOUT",
            Self::Unresolved(_) => "unresolved",
            Self::Unreachable(_, error) => errno::name(error),
        }
    }
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unresolved(error) => write!(f, "cannot look up the name: {error}"),
            Self::Unreachable(address, error) => write!(f, "cannot connect to {address}: {error}"),
        }
    }
}
