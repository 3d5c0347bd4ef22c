//! Copies what the clients of a service send for an observer. The sessions never wait for it.
//!
//! ```text
//!   client ──▶ relay ──▶ target
//!                │ tee, write
//!                ▼
//!              pipe ──▶ the task of the copy ──▶ observer
//! ```

use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::net::sockopt;
use socket2::SockRef;
use spliceway::{CopyOptions, Limits, Mirror, MirrorEnd, MirrorState, PipePool};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::WriteHalf;
use tokio::net::unix::pipe;
use tokio::time::timeout;

use crate::kit::limits;
use crate::metrics::{MirrorCounts, MirrorResult};
use crate::net::stream::Stream;
use crate::reach::dial::{DialRequest, Dialer};
use crate::settings::MirrorSettings;
use spliceway_protocol::address::Target;

/// Copies what the clients of one service send for an observer.
pub(crate) struct Mirroring {
    observer: Target,
    share: u64,
    /// The number of sessions so far.
    sessions: AtomicU64,
    pool: PipePool,
    dialer: Dialer,
    counts: Arc<MirrorCounts>,
}

/// An observer that takes nothing for this long is closed. After the end of a copy, the observer
/// has this long to close its side.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes are counted whenever the observer has got as many as this.
const COUNTED_BYTES: u64 = 1 << 20;

impl Mirroring {
    /// Prepares the copies of a service, within the limits of a process with this number of
    /// descriptors.
    pub(crate) fn new(
        settings: &MirrorSettings,
        dialer: Dialer,
        descriptors: usize,
        counts: Arc<MirrorCounts>,
    ) -> Self {
        // Pipes of mirrors are held as long as sessions, so they have a pool of their own. Then no
        // relay copies because the mirrors of others hold all pages.
        static POOL: OnceLock<PipePool> = OnceLock::new();
        let pool = POOL.get_or_init(|| {
            let limits = Limits::of_this_process();
            let pages = limits.max_pages / 2;
            PipePool::new(
                limits
                    .with_max_pages(pages)
                    .with_max_pipes(limits::mirrors(descriptors)),
            )
        });
        Self {
            observer: settings.observer.clone(),
            share: settings.share.into(),
            sessions: AtomicU64::new(0),
            pool: pool.clone(),
            dialer,
            counts,
        }
    }

    /// Begins the copy of a session if it is one of the share. The first session is, and the others
    /// are at even distances.
    pub(super) fn begin(&self) -> Option<Mirror> {
        let number = self.sessions.fetch_add(1, Ordering::Relaxed);
        if number.wrapping_mul(self.share) % 100 >= self.share {
            return None;
        }
        let Ok((mirror, reader, state)) = Mirror::new(&self.pool) else {
            self.counts.ended(MirrorResult::Limit);
            return None;
        };
        let (dialer, observer, counts) = (self.dialer.clone(), self.observer.clone(), Arc::clone(&self.counts));
        tokio::spawn(async move {
            let connected = connect(&dialer, &observer).await;
            let result = match connected.and_then(|stream| Ok((stream, pipe::Receiver::from_owned_fd(reader)?))) {
                Ok((stream, reader)) => serve(reader, &state, stream, &counts).await,
                Err(error) => {
                    tracing::debug!("no connection to the observer {observer}: {error}");
                    MirrorResult::Unreachable
                }
            };
            counts.ended(result);
        });
        Some(mirror)
    }
}

/// Connects to the observer. Whatever closes the connection before the copy is complete resets it,
/// also the end of this process.
async fn connect(dialer: &Dialer, observer: &Target) -> io::Result<TcpStream> {
    let dialed = dialer.dial_for(observer, DialRequest::default()).await;
    match dialed.map_err(|error| io::Error::other(error.to_string()))?.stream {
        Stream::Tcp(stream) => {
            stream.set_zero_linger()?;
            sockopt::set_tcp_user_timeout(&stream, PATIENCE.as_millis() as u32)?;
            Ok(stream)
        }
        _ => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Passes the copy on to the observer, and closes the connection: a copy that is not complete ends
/// with a reset.
async fn serve(
    reader: pipe::Receiver,
    state: &MirrorState,
    mut stream: TcpStream,
    counts: &MirrorCounts,
) -> MirrorResult {
    let sent = exchange(reader, state, &mut stream, counts).await;
    let result = match (state.end(), &sent) {
        (MirrorEnd::Lost, _) => MirrorResult::Lost,
        (_, Err(_)) => MirrorResult::Closed,
        (MirrorEnd::Complete, Ok(())) => MirrorResult::Complete,
        (MirrorEnd::Cut, Ok(())) => MirrorResult::Cut,
    };
    if sent.is_ok() && result != MirrorResult::Complete {
        spliceway::reset(stream).await;
    }
    result
}

/// Sends the copy and, if it is complete, its end. What the observer sends is dropped, until the
/// observer ends it. The connection would otherwise be reset.
async fn exchange(
    reader: pipe::Receiver,
    state: &MirrorState,
    stream: &mut TcpStream,
    counts: &MirrorCounts,
) -> io::Result<()> {
    let (mut from, mut to) = stream.split();
    let mut sending = pin!(async {
        send(reader, &mut to, counts).await?;
        let is_complete = state.end() == MirrorEnd::Complete;
        if is_complete {
            SockRef::from(to.as_ref()).set_linger(None)?;
            to.shutdown().await?;
        }
        io::Result::Ok(is_complete)
    });
    let mut sink = tokio::io::sink();
    let mut dropping = pin!(tokio::io::copy(&mut from, &mut sink));
    tokio::select! {
        sent = &mut sending => if sent? {
            let _ = timeout(PATIENCE, dropping).await;
        },
        // An observer that sends nothing more may still read, unless it has reset the connection.
        dropped = &mut dropping => {
            dropped?;
            sending.await?;
        }
    }
    Ok(())
}

/// Sends the content of the pipe until its end.
async fn send(mut reader: pipe::Receiver, to: &mut WriteHalf<'_>, counts: &MirrorCounts) -> io::Result<()> {
    let some = CopyOptions::new().limit(COUNTED_BYTES);
    loop {
        let sent = spliceway::copy_with_options(&mut reader, to, &some).await?;
        counts.passed(sent.bytes);
        if sent.eof {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;
    use crate::access::policy::{OwnListeners, TargetPolicy, Targets};
    use crate::net::outgoing::SocketSettings;
    use crate::reach::dial::{DialSettings, ResolverSettings};

    /// Returns both ends of a connection to an observer.
    async fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let settings = DialSettings {
            resolver: ResolverSettings::Servers(Vec::new()),
            sockets: SocketSettings::default(),
            upstreams: Vec::new(),
            timeout: PATIENCE,
        };
        let policy = TargetPolicy::new(Targets::Everything, OwnListeners::default());
        let dialer = Dialer::new(settings, policy, 1).unwrap();
        let observer = Target::Ip(listener.local_addr().unwrap());
        let (stream, accepted) = tokio::join!(connect(&dialer, &observer), listener.accept());
        (stream.unwrap(), accepted.unwrap().0)
    }

    /// The kernel ends a connection to an observer that takes nothing.
    #[tokio::test]
    async fn a_connection_to_an_observer_has_a_limit_and_is_reset_at_the_end() {
        let (stream, _observer) = connected().await;
        assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), 10_000);
        assert_eq!(SockRef::from(&stream).linger().unwrap(), Some(Duration::ZERO));
    }

    /// The observer reads after the program has closed the connection, which waits for 10 s.
    #[tokio::test(start_paused = true)]
    async fn a_late_observer_still_gets_the_end_of_a_complete_copy() {
        const BYTES: usize = 512 << 10;
        let (stream, mut observer) = connected().await;
        SockRef::from(&stream).set_send_buffer_size(2 * BYTES).unwrap();
        let (mut mirror, reader, state) = Mirror::new(PipePool::global()).unwrap();
        mirror.write(&vec![7; BYTES]);
        mirror.finish();
        let (counts, reader) = (MirrorCounts::default(), pipe::Receiver::from_owned_fd(reader).unwrap());
        assert_eq!(serve(reader, &state, stream, &counts).await, MirrorResult::Complete);
        let mut received = Vec::new();
        observer.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, vec![7; BYTES]);
    }
}
