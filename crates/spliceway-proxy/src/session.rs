//! One client: handshake, connect, relay, record.
//!
//! What a session needs before it relays is boxed and gone by then: thousands of idle relays are the normal state, and each holds
//! two sockets, the relay, a timer and its record.

mod watched;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use spliceway::{Engine, PipeSize, Relay};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use crate::address::Target;
use crate::drain::Alive;
use crate::metrics::{Metrics, Traffic};
use crate::protocol::socks5::{Greeting, NoAuth, Refusal, Reply, UNSPECIFIED};
use crate::record::{End, Outcome, Record};
use crate::settings::{Kind, Timeouts};
use crate::upstream::{DialError, dial};
use watched::Watched;

/// Room for the longest request (262 bytes) and some early data. More of that waits in the socket.
const HANDSHAKE_BUFFER_BYTES: usize = 512;
/// How long, and how much of, what a refused client still sends is read, so that the close does not overtake the answer.
const FAREWELL: Duration = Duration::from_secs(1);
const FAREWELL_MAX_BYTES: u64 = 64 << 10;

/// What the sessions of one service share.
pub(crate) struct Service {
    pub(crate) kind: Kind,
    pub(crate) timeouts: Timeouts,
    pub(crate) engine: Engine,
    pub(crate) pipe_size: PipeSize,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) traffic: Arc<Traffic>,
}

/// Serves one client to the end. Dropped before that, it is cut, and its record says so.
pub(crate) async fn run(client: TcpStream, address: SocketAddr, service: Arc<Service>, _alive: Alive) {
    let mut record = Record::new(service, address);
    let opened = Box::pin(open(client, &mut record)).await;
    let outcome = match opened {
        Ok((Client::Plain(client), upstream)) => relay(Relay::new(client, upstream), &mut record).await,
        Ok((Client::Ahead(client), upstream)) => Box::pin(relay(Relay::new(client, upstream), &mut record)).await,
        Err(outcome) => outcome,
    };
    record.end(outcome);
}

/// A client that is ready for the relay.
enum Client {
    Plain(TcpStream),
    /// It has sent more than its handshake, which is buffered.
    Ahead(BufReader<TcpStream>),
}

fn relay<C>(relay: Relay<C, TcpStream>, record: &mut Record) -> Watched<C>
where
    C: AsyncRead + AsyncWrite + Unpin,
{
    let service = record.service();
    let (timeouts, relay) = (
        service.timeouts,
        relay.engine(service.engine).pipe_size(service.pipe_size),
    );
    record.relaying(relay.stats());
    Watched::new(relay, &timeouts)
}

async fn open(client: TcpStream, record: &mut Record) -> Result<(Client, TcpStream), Outcome> {
    let service = Arc::clone(record.service());
    match &service.kind {
        Kind::Forward(target) => match connect(target, record).await {
            Ok(upstream) => Ok((Client::Plain(client), upstream)),
            Err(error) => Err(error.into()),
        },
        Kind::Socks5 => open_socks5(BufReader::with_capacity(HANDSHAKE_BUFFER_BYTES, client), record).await,
    }
}

async fn connect(target: &Target, record: &mut Record) -> Result<TcpStream, DialError> {
    let started = Instant::now();
    let upstream = dial(target, record.service().timeouts.connect).await?;
    record.connected(started.elapsed());
    Ok(upstream)
}

async fn open_socks5(mut client: BufReader<TcpStream>, record: &mut Record) -> Result<(Client, TcpStream), Outcome> {
    let limit = record.service().timeouts.handshake;
    let target = match timeout(limit, ask(&mut client)).await {
        Ok(Ok(target)) => target,
        Ok(Err(NoTarget::Refused(refusal))) => {
            farewell(client, &refusal.answer()).await;
            return Err(End::Denied(refusal.as_str()).into());
        }
        Ok(Err(NoTarget::Gone)) => return Err(End::ClientEof.into()),
        Ok(Err(NoTarget::Failed(error))) => return Err(Outcome::because(End::ResetByClient, &error)),
        Err(_) => return Err(End::Denied("handshake_timeout").into()),
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
        Err(_) => return Err(End::Denied("handshake_timeout").into()),
    }
    match client.buffer() {
        [] => Ok((Client::Plain(client.into_inner()), upstream)),
        _ => Ok((Client::Ahead(client), upstream)),
    }
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
            engine: Engine::Auto,
            pipe_size: PipeSize::Auto,
            metrics: Arc::new(Metrics::new(vec![Arc::clone(&traffic)])),
            traffic,
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let session = run(client, UNSPECIFIED, Arc::new(service), Drain::new().0);
        let bytes = size_of_val(&session);
        let relay = size_of::<Relay<TcpStream, TcpStream>>();
        assert!(
            bytes <= relay + 640,
            "a session takes {bytes} bytes, {relay} of them the relay"
        );
    }
}
