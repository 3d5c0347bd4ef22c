//! A bound on the workers that sign and verify for a service at the same time.

use std::future::poll_fn;
use std::io;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;

use rustls::server::{ServerConfig, ServerConnection};
use rustls::{HandshakeKind, ProtocolVersion};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{FallibleAccept, StartHandshake};

/// A signature may take a millisecond of a worker. Other handshakes of the service wait for their
/// turn, so that a flood of them leaves time for the sessions of all services.
#[derive(Debug, Default)]
pub(super) struct Turns(OnceLock<Semaphore>);

/// A handshake whose first hello is answered.
pub(super) struct Handshake<S> {
    /// Boxed, so that no copy of it is held.
    rest: Pin<Box<FallibleAccept<S>>>,
    /// Whether a later step signs, verifies or agrees on keys.
    has_costs: bool,
}

impl Turns {
    /// Waits for a turn, which ends when it is dropped.
    pub(super) async fn next(&self) -> SemaphorePermit<'_> {
        let turns = self.0.get_or_init(|| {
            let workers = Handle::current().metrics().num_workers();
            // Half of the workers sign at most.
            Semaphore::new((workers / 2).max(1))
        });
        turns.acquire().await.expect("the semaphore is never closed")
    }

    /// Ends a handshake that was begun in this turn. Its later steps have turns too, if they cost
    /// as much.
    pub(super) async fn end<S>(
        &self,
        turn: SemaphorePermit<'_>,
        handshake: Handshake<S>,
    ) -> Result<TlsStream<S>, (io::Error, S)>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let Handshake { mut rest, has_costs } = handshake;
        if !has_costs {
            drop(turn);
            return rest.await;
        }
        let mut turn = turn;
        loop {
            if let Poll::Ready(result) = poll_fn(|cx| Poll::Ready(rest.as_mut().poll(cx))).await {
                return result;
            }
            drop(turn);
            woken().await;
            turn = self.next().await;
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Handshake<S> {
    /// Answers a client's hello, mostly with the signature. An alert costs nothing.
    pub(super) fn begin(start: StartHandshake<S>, config: Arc<ServerConfig>, verifies_clients: bool) -> Self {
        let mut has_costs = false;
        let answered = |session: &mut ServerConnection| has_costs = verifies_clients || !has_signed(session);
        let rest = start.into_stream_with(config, answered).into_fallible();
        let rest = Box::pin(rest);
        Self { rest, has_costs }
    }
}

/// Returns whether the costs are paid with the answer to the first hello. This is so in TLS 1.3,
/// unless the client must send another hello. In TLS 1.2, the exchange of keys is still to come.
fn has_signed(session: &ServerConnection) -> bool {
    session.protocol_version() == Some(ProtocolVersion::TLSv1_3)
        && session.handshake_kind() != Some(HandshakeKind::FullWithHelloRetryRequest)
}

/// Waits until the task is polled again.
async fn woken() {
    let mut is_woken = false;
    poll_fn(|_| {
        if mem::replace(&mut is_woken, true) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}
