//! Relays without looking at the bytes.

use std::future::poll_fn;
use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::SockRef;
use spliceway::{Peer, Relay, RelayOptions, RelayState, Spliceable};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;

use super::ends::new_relay;
use super::spin::Spin;
use crate::kit::outcome::Outcome;
use crate::net::outgoing::set_keepalive;
use crate::net::stream::Stream;
use crate::session::byte_counter::{ByteCounter, ByteSource, counted};
use crate::session::handover::Offer;
use crate::session::record::Record;

/// How a relay has ended.
pub(super) enum Ended {
    /// Its streams have ended, or it was stopped.
    Finished(Outcome),
    /// Another process asks for the session, and receives an [`Offer`] here.
    Suspended(Stream, Stream, Box<RelayState>, oneshot::Sender<Offer>),
    /// Another process asked for the session, and the relay could not be suspended. The streams are
    /// gone, and with them what the pipes held.
    Lost(io::Error),
}

/// Relays between streams that have a state in this process, so no other process can continue.
pub(super) async fn bound(client: Stream, upstream: Stream, options: RelayOptions, record: &mut Record) -> Outcome {
    let (mut client, mut upstream) = (client, upstream);
    let ended = {
        let guard = &mut record.guard;
        // The relay passes a reset on to an end that is a socket.
        let ends = (Spliceable::new(&mut client), Spliceable::new(&mut upstream));
        let relay = new_relay(ends.0, ends.1, options, guard);
        let counter = ByteCounter::new(guard.session(), ByteSource::Relay(relay.stats()));
        counted(counter, relay).await
    };
    record.observe(&client, &upstream);
    match &ended {
        Err(error) if error.peer() == Peer::A => pass_reset(client, upstream).await,
        Err(_) => pass_reset(upstream, client).await,
        Ok(_) => {}
    }
    ended.into()
}

/// Resets an end that speaks TLS after the other one has failed, unless the end knows that it has
/// every byte. For sockets, the relay does this.
pub(super) async fn pass_reset(failed: Stream, other: Stream) {
    drop(failed);
    if let Stream::Tls(tls) = other
        && !tls.is_finished()
        && let Stream::Tcp(socket) = tls.into_socket()
    {
        spliceway::reset(socket).await;
    }
}

/// Sets the keepalive on the socket of a target, if it was postponed.
pub(super) fn set_keepalive_now(upstream: &impl AsFd, keepalive: Option<Duration>) {
    if let Some(silence) = keepalive {
        // An open TCP socket causes no errors.
        let _ = set_keepalive(SockRef::from(upstream), silence);
    }
}

/// Relays, and stays awake after messages if the settings say so. If another process asks for the
/// session, the relay is suspended. The keepalive is set on the socket of the target when the
/// session has lasted, or moves to another process.
pub(super) async fn plain<A, B>(
    (client, upstream): (A, B),
    mut keepalive: Option<Duration>,
    options: RelayOptions,
    state: Option<Box<RelayState>>,
    record: &mut Record,
) -> Ended
where
    A: AsyncRead + AsyncWrite + AsFd + Unpin + Into<Stream>,
    B: AsyncRead + AsyncWrite + AsFd + Unpin + Into<Stream>,
{
    let guard = &mut record.guard;
    let mut relay = match state {
        None => new_relay(client, upstream, options, guard),
        Some(state) => {
            let mut relay = Relay::resume(client, upstream, options, *state);
            guard.resuming(relay.stats(), relay.cancel_handle());
            relay
        }
    };
    if keepalive.is_some() {
        guard.tell_when_lasting();
    }
    let mut spin = Spin::new(guard.service().settings.spin, relay.stats());
    let (session, mut is_allowed) = (guard.session(), false);
    let mut counter = ByteCounter::new(session, ByteSource::Relay(relay.stats()));
    let to = poll_fn(|cx| {
        let mut poll = |cx: &mut Context<'_>| Pin::new(&mut relay).poll(cx);
        let polled = match &mut counter {
            Some(counter) => counter.poll(cx, poll),
            None => poll(cx),
        };
        if let Poll::Ready(ended) = polled {
            return Poll::Ready(Ok(ended));
        }
        if let Some(spin) = &mut spin {
            spin.after_poll(cx);
        }
        if !is_allowed {
            is_allowed = true;
            session.allow_handover(cx.waker());
        }
        if keepalive.is_some() && session.has_lasted() {
            set_keepalive_now(relay.streams().1, keepalive.take());
        }
        if let Some(to) = session.take_handover_request() {
            if relay.can_suspend() {
                return Poll::Ready(Err(to));
            }
            session.allow_handover(cx.waker());
        }
        Poll::Pending
    });
    let to = match to.await {
        Ok(ended) => {
            let (client, upstream) = relay.streams();
            record.observe(client, upstream);
            return Ended::Finished(ended.into());
        }
        Err(to) => to,
    };
    set_keepalive_now(relay.streams().1, keepalive);
    match relay.suspend() {
        Ok(suspended) => Ended::Suspended(suspended.a.into(), suspended.b.into(), Box::new(suspended.state), to),
        Err(error) => Ended::Lost(error),
    }
}
