//! One end of a connection. It follows the plan and verifies every byte that arrives.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::io;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;
use rustix::net::{SendFlags, Shutdown, send as send_flagged, shutdown};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::pattern::{PIECE_MAX, Pattern, Stream, Wrong};
use super::plan::{Begin, Flow, Kind, Session, Side};
use super::tally::Tally;
use spliceway_load::Random;

/// Far longer than any pause of a plan, and longer than any wait for two busy cores.
const STALLED_AFTER: Duration = Duration::from_secs(60);
/// Bytes before the first byte of the pattern: the session's number, and then a number derived from
/// it and the seed.
pub(super) const NAME_LEN: usize = 16;

/// A fault that a session must not meet.
pub(super) enum Fault {
    Wrong(Wrong),
    /// The stream ended at a position other than the planned one.
    Ended {
        at: u64,
        planned: u64,
    },
    Failed {
        call: &'static str,
        error: io::Error,
    },
    Stalled(&'static str),
    /// The first bytes are not a session's name.
    Name([u8; NAME_LEN]),
}

/// One end of one connection.
pub(super) struct Peer<'run> {
    pub(super) socket: TcpStream,
    pub(super) side: Side,
    pub(super) session: &'run Session,
    pub(super) pattern: &'run Pattern,
    pub(super) tally: &'run Tally,
}

impl Peer<'_> {
    /// Plays the session from the first byte of the pattern to the end. Returns the number of bytes
    /// sent and the number received.
    pub(super) async fn play(self) -> Result<(u64, u64), Fault> {
        match self.session.kind {
            Kind::Rounds { trips, size_max, sizes } => self.rounds(trips, size_max, Random::new(sizes)).await,
            Kind::Reset(side) if side == self.side => self.send_and_reset().await,
            Kind::Reset(_) => match self.stream().await {
                Err(Fault::Ended { .. } | Fault::Failed { .. }) => Ok((0, 0)),
                outcome => outcome,
            },
            _ => self.stream().await,
        }
    }

    fn streams(&self) -> (Stream, Stream) {
        let (out, into) = self.side.out_and_in();
        let stream = |flow: usize| self.pattern.stream(2 * self.session.number + flow as u64);
        (stream(out), stream(into))
    }

    fn flows(&self) -> (&Flow, &Flow) {
        let (out, into) = self.side.out_and_in();
        (&self.session.flows[out], &self.session.flows[into])
    }

    async fn stream(&self) -> Result<(u64, u64), Fault> {
        let (tell, told) = oneshot::channel();
        tokio::try_join!(self.send_way(Some(told)), self.receive_way(tell))
    }

    /// Ends the outgoing direction, whose bytes have been sent. Then receives the other
    /// direction.
    pub(super) async fn read_what_was_sent(&self) -> Result<u64, Fault> {
        shutdown(&self.socket, Shutdown::Write).map_err(failed("shutdown"))?;
        let (tell, _) = oneshot::channel();
        self.receive_way(tell).await
    }

    async fn send_way(&self, peers_end: Option<oneshot::Receiver<()>>) -> Result<u64, Fault> {
        let (flow, _) = self.flows();
        let (mut stream, _) = self.streams();
        match flow.begin {
            Begin::After(time) => sleep(time).await,
            Begin::AfterPeersEnd(time) => {
                if let Some(end) = peers_end {
                    // An error means that receiving failed. That also ends this direction.
                    let _ = end.await;
                }
                sleep(time).await;
            }
        }
        let urgent_at = flow.urgent_at.unwrap_or(flow.bytes);
        self.send(&mut stream, urgent_at, flow).await?;
        if flow.urgent_at.is_some() {
            self.send_urgent().await?;
        }
        self.send(&mut stream, flow.bytes - urgent_at, flow).await?;
        if self.session.kind != Kind::Reset(self.side) {
            shutdown(&self.socket, Shutdown::Write).map_err(failed("shutdown"))?;
        }
        Ok(stream.passed)
    }

    async fn receive_way(&self, ended: oneshot::Sender<()>) -> Result<u64, Fault> {
        let (_, flow) = self.flows();
        let (_, mut stream) = self.streams();
        loop {
            let most = flow.stall.map_or(u64::MAX, |(every, _)| every - stream.passed % every);
            match self.receive(&mut stream, most.min(PIECE_MAX as u64) as usize).await? {
                0 if stream.passed == flow.bytes || flow.cut.is_some() => break,
                0 => return Err(ended_at(&stream, flow.bytes)),
                _ if stream.passed > flow.bytes => return Err(ended_at(&stream, flow.bytes)),
                _ => {}
            }
            if let Some((every, time)) = flow.stall
                && stream.passed % every == 0
            {
                sleep(time).await;
            }
        }
        // The sender may have stopped waiting for this message.
        let _ = ended.send(());
        Ok(stream.passed)
    }

    /// Exchanges requests (up) and responses (down). Both ends draw the same sizes.
    async fn rounds(&self, trips: u64, size_max: u64, mut sizes: Random) -> Result<(u64, u64), Fault> {
        let (mut out, mut into) = self.streams();
        let (flow, _) = self.flows();
        for trip in 0..2 * trips {
            let size = sizes.between(1, size_max);
            if (trip % 2 == 0) == (self.side == Side::Client) {
                self.send(&mut out, size, flow).await?;
            } else {
                self.receive_exactly(&mut into, size).await?;
            }
        }
        shutdown(&self.socket, Shutdown::Write).map_err(failed("shutdown"))?;
        match self.receive(&mut into, PIECE_MAX).await? {
            0 => Ok((out.passed, into.passed)),
            surplus => Err(ended_at(&into, into.passed - surplus as u64)),
        }
    }

    /// Sends this side's bytes, and then resets the connection. Bytes that arrive meanwhile are
    /// verified. A side that resets does not wait for more bytes.
    async fn send_and_reset(&self) -> Result<(u64, u64), Fault> {
        let (tell, _) = oneshot::channel();
        let outcome = tokio::select! {
            sent = self.send_way(None) => sent,
            Err(fault) = self.receive_way(tell) => Err(fault),
        };
        let reset = set_socket_linger(&self.socket, Some(Duration::ZERO));
        reset.map_err(failed("setsockopt"))?;
        outcome.map(|sent| (sent, 0))
    }

    async fn send(&self, stream: &mut Stream, bytes: u64, flow: &Flow) -> Result<(), Fault> {
        let end = stream.passed + bytes;
        while stream.passed < end && flow.cut.is_none_or(|cut| Instant::now() < cut) {
            let piece = (end - stream.passed).min(flow.piece as u64) as usize;
            in_time("send", self.socket.writable()).await?;
            match self.socket.try_write(stream.ahead(piece)) {
                Ok(sent) => stream.pass(sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(failed("send")(error)),
            }
        }
        Ok(())
    }

    async fn send_urgent(&self) -> Result<(), Fault> {
        loop {
            in_time("send", self.socket.writable()).await?;
            let sent = self.socket.try_io(Interest::WRITABLE, || {
                Ok(send_flagged(&self.socket, b"!", SendFlags::OOB | SendFlags::NOSIGNAL)?)
            });
            match sent {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(failed("send")(error)),
            }
        }
    }

    async fn receive_exactly(&self, stream: &mut Stream, bytes: u64) -> Result<(), Fault> {
        let end = stream.passed + bytes;
        while stream.passed < end {
            let most = (end - stream.passed).min(PIECE_MAX as u64) as usize;
            if self.receive(stream, most).await? == 0 {
                return Err(ended_at(stream, end));
            }
        }
        Ok(())
    }

    /// Receives and verifies at most this many bytes. Returns 0 at EOF.
    pub(super) async fn receive(&self, stream: &mut Stream, most: usize) -> Result<usize, Fault> {
        loop {
            in_time("recv", self.socket.readable()).await?;
            let received = SCRATCH.with_borrow_mut(|scratch| {
                let received = self.socket.try_read(&mut scratch[..most])?;
                Ok((received, stream.expect(&scratch[..received])))
            });
            match received {
                Ok((received, Ok(()))) => {
                    self.tally.verified(received);
                    return Ok(received);
                }
                Ok((_, Err(wrong))) => return Err(Fault::Wrong(wrong)),
                Err(error) if io::Error::kind(&error) == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(failed("recv")(error)),
            }
        }
    }
}

thread_local! {
    /// No code awaits between the call that fills this buffer and the comparison. So one buffer per
    /// thread is enough.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; PIECE_MAX]);
}

async fn in_time(call: &'static str, ready: impl Future<Output = io::Result<()>>) -> Result<(), Fault> {
    match timeout(STALLED_AFTER, ready).await {
        Ok(outcome) => outcome.map_err(failed(call)),
        Err(_) => Err(Fault::Stalled(call)),
    }
}

pub(super) fn failed<E: Into<io::Error>>(call: &'static str) -> impl Fn(E) -> Fault {
    move |error| Fault::Failed {
        call,
        error: error.into(),
    }
}

fn ended_at(stream: &Stream, planned: u64) -> Fault {
    Fault::Ended {
        at: stream.passed,
        planned,
    }
}

/// Sends the name of the session.
pub(super) async fn send_name(socket: &TcpStream, name: [u8; NAME_LEN]) -> Result<(), Fault> {
    // The first bytes of a connection always fit in its send buffer.
    in_time("send", socket.writable()).await?;
    match socket.try_write(&name) {
        Ok(NAME_LEN) => Ok(()),
        Ok(_) => Err(failed("send")(io::Error::other("no room for the first bytes"))),
        Err(error) => Err(failed("send")(error)),
    }
}

/// Receives the other side's name. Returns `None` if the stream ended before the whole name.
pub(super) async fn receive_name(socket: &TcpStream) -> Result<Option<[u8; NAME_LEN]>, Fault> {
    let mut name = [0; NAME_LEN];
    let mut known = 0;
    while known < NAME_LEN {
        in_time("recv", socket.readable()).await?;
        match socket.try_read(&mut name[known..]) {
            Ok(0) => return Ok(None),
            Ok(received) => known += received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
            Err(error) => return Err(failed("recv")(error)),
        }
    }
    Ok(Some(name))
}

impl Fault {
    /// Returns the kind of the fault without details, for counting.
    pub(super) fn kind(&self) -> String {
        match self {
            Self::Wrong(_) => "wrong bytes".into(),
            Self::Ended { .. } => "unexpected end".into(),
            Self::Failed { call, error } => format!("{call}: {}", error.kind()),
            Self::Stalled(call) => format!("{call}: stalled"),
            Self::Name(_) => "wrong first bytes".into(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wrong(wrong) => wrong.fmt(f),
            Self::Ended { at, planned } => write!(f, "ended after {at} bytes, planned {planned}"),
            Self::Failed { call, error } => write!(f, "{call}: {error}"),
            Self::Stalled(call) => write!(f, "{call}: nothing for {} s", STALLED_AFTER.as_secs()),
            Self::Name(name) => write!(f, "the first bytes are no session's: {name:02x?}"),
        }
    }
}
