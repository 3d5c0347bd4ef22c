//! One client: handshake, connect, relay, record.
//!
//! What a session needs before it relays is boxed and gone by then: thousands of idle relays are the normal state, and each holds
//! two sockets, the relay and its record.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use spliceway::{EndReason, Peer, Relay, RelayError, RelayOptions, RelaySummary};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use crate::address::Target;
use crate::drain::Alive;
use crate::metrics::{Metrics, Traffic};
use crate::protocol::socks5::{Greeting, NoAuth, Refusal, Reply, UNSPECIFIED};
use crate::record::{End, Outcome, Record};
use crate::settings::{Kind, Timeouts};
use crate::upstream::{DialError, dial};

/// Room for the longest request (262 bytes) and some early data. More of that waits in the socket.
const HANDSHAKE_BUFFER_BYTES: usize = 512;
/// How long, and how much of, what a refused client still sends is read, so that the close does not overtake the answer.
const FAREWELL: Duration = Duration::from_secs(1);
const FAREWELL_MAX_BYTES: u64 = 64 << 10;

/// The one reason to refuse a client that lies not in what it says.
const TOO_SLOW: &str = "handshake_timeout";

/// What the sessions of one service share.
pub(crate) struct Service {
    pub(crate) kind: Kind,
    pub(crate) timeouts: Timeouts,
    pub(crate) relays: RelayOptions,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) traffic: Arc<Traffic>,
}

/// The reasons for which a client of such a service may be refused.
pub(crate) fn refusals(kind: &Kind) -> impl Iterator<Item = &'static str> {
    let spoken: &[Refusal] = match kind {
        Kind::Forward(_) => &[],
        Kind::Socks5 => &Refusal::ALL,
    };
    let slow = (!spoken.is_empty()).then_some(TOO_SLOW);
    spoken.iter().map(|refusal| refusal.as_str()).chain(slow)
}

/// Serves one client to the end. Dropped before that, it is cut, and its record says so.
pub(crate) async fn run(client: TcpStream, address: SocketAddr, service: Arc<Service>, _alive: Alive) {
    let mut record = Record::new(service, address);
    let opened = Box::pin(open(client, &mut record)).await;
    let outcome = match opened {
        Ok(ends) => relay(ends, &mut record).await.into(),
        Err(outcome) => outcome,
    };
    record.end(outcome);
}

/// Both ends of a relay, and what the client has sent beyond its handshake.
struct Ends {
    client: TcpStream,
    early: Vec<u8>,
    upstream: TcpStream,
}

/// Not in [`open`]: a future that is returned has room twice, once where it comes from.
fn relay(ends: Ends, record: &mut Record) -> Relay<TcpStream, TcpStream> {
    let options = record.service().relays.clone();
    let mut relay = Relay::with_options(ends.client, ends.upstream, options).a_to_b_prefix(ends.early);
    record.relaying(relay.stats(), relay.cancel_handle());
    relay
}

async fn open(client: TcpStream, record: &mut Record) -> Result<Ends, Outcome> {
    let service = Arc::clone(record.service());
    match &service.kind {
        Kind::Forward(target) => Ok(Ends {
            client,
            early: Vec::new(),
            upstream: connect(target, record).await?,
        }),
        Kind::Socks5 => open_socks5(BufReader::with_capacity(HANDSHAKE_BUFFER_BYTES, client), record).await,
    }
}

async fn connect(target: &Target, record: &mut Record) -> Result<TcpStream, DialError> {
    let started = Instant::now();
    let upstream = dial(target, record.service().timeouts.connect).await?;
    record.connected(started.elapsed());
    Ok(upstream)
}

async fn open_socks5(mut client: BufReader<TcpStream>, record: &mut Record) -> Result<Ends, Outcome> {
    let limit = record.service().timeouts.handshake;
    let target = match timeout(limit, ask(&mut client)).await {
        Ok(Ok(target)) => target,
        Ok(Err(NoTarget::Refused(refusal))) => {
            farewell(client, &refusal.answer()).await;
            return Err(End::Denied(refusal.as_str()).into());
        }
        Ok(Err(NoTarget::Gone)) => return Err(End::ClientEof.into()),
        Ok(Err(NoTarget::Failed(error))) => return Err(Outcome::because(End::ResetByClient, &error)),
        Err(_) => return Err(End::Denied(TOO_SLOW).into()),
    };
    record.asked(target.clone());
    let upstream = match connect(&target, record).await {
        Ok(upstream) => upstream,
        Err(error) => {
            farewell(client, &reply_to(&error).encode(UNSPECIFIED)).await;
            return Err(error.into());
        }
    };
    let bound = upstream.local_addr().unwrap_or(UNSPECIFIED);
    match timeout(limit, client.write_all(&Reply::Succeeded.encode(bound))).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return Err(Outcome::because(End::ResetByClient, &error)),
        Err(_) => return Err(End::Denied(TOO_SLOW).into()),
    }
    Ok(Ends {
        early: client.buffer().to_vec(),
        client: client.into_inner(),
        upstream,
    })
}

/// Why a handshake came to no target.
enum NoTarget {
    Refused(Refusal),
    /// The client finished before it asked.
    Gone,
    Failed(io::Error),
}

impl From<io::Error> for NoTarget {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

async fn ask(client: &mut BufReader<TcpStream>) -> Result<Target, NoTarget> {
    let mut greeting = Greeting::default();
    let agreed: NoAuth = read(client, |input| greeting.feed(input)).await?;
    client.write_all(&NoAuth::ANSWER).await?;
    let mut request = agreed.request();
    read(client, |input| request.feed(input)).await
}

/// Feeds what the client sends to a parser until it has its message. What follows the message stays in the buffer.
async fn read<T>(
    client: &mut BufReader<TcpStream>,
    mut feed: impl FnMut(&mut &[u8]) -> Result<Option<T>, Refusal>,
) -> Result<T, NoTarget> {
    loop {
        let received = client.fill_buf().await?;
        if received.is_empty() {
            return Err(NoTarget::Gone);
        }
        let mut left = received;
        let fed = feed(&mut left);
        let taken = received.len() - left.len();
        client.consume(taken);
        if let Some(message) = fed.map_err(NoTarget::Refused)? {
            return Ok(message);
        }
    }
}

/// Answers and closes so that the answer arrives: a socket closed with bytes unread sends a reset, which discards it.
async fn farewell(mut client: BufReader<TcpStream>, answer: &[u8]) {
    let farewell = async {
        client.write_all(answer).await?;
        client.shutdown().await?;
        tokio::io::copy(&mut client.take(FAREWELL_MAX_BYTES), &mut tokio::io::sink()).await
    };
    // Whether it arrived is not for us to know.
    let _ = timeout(FAREWELL, farewell).await;
}

impl From<DialError> for Outcome {
    fn from(error: DialError) -> Self {
        Self::because(End::ConnectFailed(error.as_str()), &error)
    }
}

/// The client is `a`, the upstream `b`.
impl From<Result<RelaySummary, RelayError>> for Outcome {
    fn from(ended: Result<RelaySummary, RelayError>) -> Self {
        let summary = match ended {
            Ok(summary) => summary,
            Err(error) => {
                let end = match error.peer() {
                    Peer::A => End::ResetByClient,
                    Peer::B => End::ResetByUpstream,
                };
                return Self::because(end, &format_args!("{} failed: {}", error.operation, error.source));
            }
        };
        let end = match (summary.end, summary.first_eof) {
            (EndReason::IdleTimeout, _) => End::Idle,
            (EndReason::HalfCloseTimeout, _) => End::HalfCloseTimeout,
            (EndReason::Cancelled, _) => End::Drained,
            (_, Some(Peer::B)) => End::UpstreamEof,
            (_, Some(Peer::A) | None) => End::ClientEof,
        };
        end.into()
    }
}

fn reply_to(error: &DialError) -> Reply {
    match error.as_str() {
        "ECONNREFUSED" => Reply::ConnectionRefused,
        "unresolved" | "EHOSTUNREACH" | "EHOSTDOWN" => Reply::HostUnreachable,
        "ENETUNREACH" | "ENETDOWN" | "EAFNOSUPPORT" | "EADDRNOTAVAIL" => Reply::NetworkUnreachable,
        "ETIMEDOUT" => Reply::TtlExpired,
        "EACCES" | "EPERM" => Reply::NotAllowed,
        _ => Reply::GeneralFailure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drain::Drain;

    /// Growth here is paid ten thousand times over; sockets and the task itself come on top.
    #[tokio::test]
    async fn a_session_s_future_is_small() {
        let traffic = Arc::new(Traffic::new("socks5"));
        let second = Duration::from_secs(1);
        let service = Service {
            kind: Kind::Socks5,
            timeouts: Timeouts {
                handshake: second,
                connect: second,
                idle: None,
                half_close: None,
                drain: second,
            },
            relays: RelayOptions::new(),
            metrics: Arc::new(Metrics::new(vec![Arc::clone(&traffic)])),
            traffic,
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let session = run(client, UNSPECIFIED, Arc::new(service), Drain::new().0);
        let bytes = size_of_val(&session);
        let relay = size_of::<Relay<TcpStream, TcpStream>>();
        assert!(
            bytes <= relay + 400,
            "a session takes {bytes} bytes, {relay} of them the relay"
        );
    }
}
