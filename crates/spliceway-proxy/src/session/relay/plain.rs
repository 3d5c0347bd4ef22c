//! Relays without looking at the bytes.

use std::future::poll_fn;
use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use spliceway::{
    AsSocket, Mirror, Peer, Relay, RelayError, RelayOptions, RelayState, RelaySummary, SocketRef, Spliceable,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;

use super::ends::{new_relay, resumed_relay};
use super::kernel::{CanMove, KeysLost, Switching, count_others, stay, switch_ends};
use super::spin::Spin;
use crate::access::rates::SessionRates;
use crate::kit::outcome::{Outcome, SessionEnd};
use crate::net::stream::Stream;
use crate::session::byte_counter::{ByteCounter, ByteSource, poll_counted};
use crate::session::facts::Session;
use crate::session::handover::{Offer, Suspended};
use crate::session::linger::linger;
use crate::session::record::Record;
use crate::session::step::Step;

/// What bounds a relay, and where it begins.
pub(super) struct Bounds {
    pub(super) options: RelayOptions,
    /// The state of a suspended relay.
    pub(super) state: Option<Box<RelayState>>,
    /// The copy for an observer.
    pub(super) mirror: Option<Mirror>,
    /// Held until the session ends.
    pub(super) rates: SessionRates,
    /// Returns the step that offers a suspended relay to another process.
    pub(super) offer: fn(Suspended, oneshot::Sender<Offer>, Record) -> Step,
}

/// Relays if an end speaks TLS. While this process has the state of an end, no other one can
/// continue.
pub(super) fn bound(mut client: Stream, mut upstream: Stream, bounds: Bounds, mut record: Record) -> Step {
    let Bounds {
        options,
        state,
        rates,
        mirror,
        offer,
    } = bounds;
    Step::new(async move {
        // A relay that is resumed has no mirror.
        let may_switch = mirror.is_none();
        if !may_switch {
            stay(&mut client);
            stay(&mut upstream);
        }
        let after = record.guard.service().settings.ktls_after;
        let mut beginning = match state {
            Some(state) => Beginning::Resumed(options, state),
            None => {
                count_others(&client, &upstream, &record.guard);
                Beginning::New(options, mirror)
            }
        };
        let mut asked = None;
        let ended = loop {
            let switching = may_switch.then(|| Switching::of(&client, &upstream, after)).flatten();
            let (state, to) = match run(&mut client, &mut upstream, beginning, switching, asked, &mut record).await {
                Ok(Paused::Ended(ended)) => break ended,
                Ok(Paused::ToSwitch(state, to)) => (state, to),
                Ok(Paused::ToMove(state, to)) => {
                    let suspended = Suspended {
                        client,
                        upstream,
                        state: *state,
                        rates,
                    };
                    return Some(offer(suspended, to, record));
                }
                Err(error) => {
                    record.end(lost(&error));
                    return None;
                }
            };
            asked = to;
            match switch_ends(client, upstream, &record.guard) {
                Ok(ends) => (client, upstream) = ends,
                Err(keys_lost) => {
                    // A hand-over does not wait for the resets.
                    drop(asked);
                    record.end(reset_both(keys_lost).await);
                    return None;
                }
            }
            let relays = record.guard.service().relays.clone();
            beginning = Beginning::Resumed(super::ends::options(relays, &rates, &client, &upstream), state);
        };
        record.observe(&client, &upstream);
        match &ended {
            Err(error) if error.peer() == Peer::A => pass_reset(client, upstream).await,
            Err(_) => pass_reset(upstream, client).await,
            Ok(_) => {
                drop(client);
                let limit = record.guard.service().settings.timeouts.half_close;
                linger_below(upstream, limit).await;
            }
        }
        drop(rates);
        record.end(ended.into());
        None
    })
}

/// How such a relay begins.
enum Beginning {
    New(RelayOptions, Option<Mirror>),
    Resumed(RelayOptions, Box<RelayState>),
}

/// Why such a relay does not run any more.
enum Paused {
    Ended(Result<RelaySummary, RelayError>),
    /// An end may be in the kernel from now on. Another process may have asked for the session.
    ToSwitch(Box<RelayState>, Option<oneshot::Sender<Offer>>),
    /// Another process asks for the session.
    ToMove(Box<RelayState>, oneshot::Sender<Offer>),
}

/// Why the relay is not polled any more.
enum Stop {
    Ended(Result<RelaySummary, RelayError>),
    ToSwitch,
    ToMove(oneshot::Sender<Offer>),
}

/// Relays until the streams end, until the kernel can take one of them over, or until another
/// process asks for the session. It may have `asked` before.
async fn run(
    client: &mut Stream,
    upstream: &mut Stream,
    beginning: Beginning,
    mut switching: Option<Switching>,
    mut asked: Option<oneshot::Sender<Offer>>,
    record: &mut Record,
) -> io::Result<Paused> {
    let can_move = CanMove::of(client, upstream);
    // The relay passes a reset on to an end that is a socket.
    let (client, upstream) = (Spliceable::new(client), Spliceable::new(upstream));
    let guard = &mut record.guard;
    let mut relay = match beginning {
        Beginning::New(options, mirror) => new_relay(client, upstream, options, mirror, guard),
        Beginning::Resumed(options, state) => resumed_relay(client, upstream, options, *state, guard),
    };
    let stats = relay.stats();
    let session = Arc::clone(guard.session());
    let mut counter = ByteCounter::new(&session, ByteSource::Relay(relay.stats()));
    let (mut is_allowed, mut has_begun) = (false, false);
    let stop = poll_fn(|cx| {
        loop {
            let polled = poll_counted(&mut counter, cx, |cx| Pin::new(&mut relay).poll(cx));
            if let Poll::Ready(ended) = polled {
                return Poll::Ready(Stop::Ended(ended));
            }
            if asked.is_none() && can_move != CanMove::Never {
                asked = requested(&session, &mut is_allowed, || can_leave(&relay), cx);
            }
            if can_move == CanMove::Now {
                if let Some(to) = asked.take() {
                    if can_leave(&relay) {
                        return Poll::Ready(Stop::ToMove(to));
                    }
                    session.allow_handover(cx.waker());
                }
                return Poll::Pending;
            }
            let Some(switching) = &mut switching else {
                return Poll::Pending;
            };
            if asked.is_some() && !has_begun && switching.begin() {
                has_begun = true;
                continue;
            }
            if !switching.has_stopped(&stats) {
                // The hand-over does not wait.
                if asked.take().is_some() {
                    session.moves_later();
                }
                return Poll::Pending;
            }
            if relay.can_suspend() {
                return Poll::Ready(Stop::ToSwitch);
            }
            switching.give_up();
        }
    })
    .await;
    session.forbid_handover();
    let to_move = match stop {
        Stop::Ended(ended) => return Ok(Paused::Ended(ended)),
        Stop::ToSwitch => None,
        Stop::ToMove(to) => Some(to),
    };
    let state = Box::new(relay.suspend()?.state);
    Ok(match to_move {
        Some(to) => Paused::ToMove(state, to),
        None => Paused::ToSwitch(state, asked),
    })
}

/// Returns whether the relay can be suspended, and another process can continue its TLS.
fn can_leave(relay: &Relay<Spliceable<'_>, Spliceable<'_>>) -> bool {
    let can_leave = |end: &Spliceable<'_>| match end.as_socket() {
        Some(SocketRef::KernelTls(end)) => end.state().is_some(),
        _ => true,
    };
    let (client, upstream) = relay.streams();
    relay.can_suspend() && can_leave(client) && can_leave(upstream)
}

/// Lets another process ask for the session. Returns where to send it, if one has asked and the
/// session can leave.
fn requested(
    session: &Session,
    is_allowed: &mut bool,
    can_leave: impl FnOnce() -> bool,
    cx: &Context<'_>,
) -> Option<oneshot::Sender<Offer>> {
    if !*is_allowed {
        *is_allowed = true;
        session.allow_handover(cx.waker());
    }
    let to = session.take_handover_request()?;
    if can_leave() {
        return Some(to);
    }
    session.allow_handover(cx.waker());
    None
}

/// Resets both ends of a session whose keys are lost.
async fn reset_both(lost: KeysLost) -> Outcome {
    let KeysLost {
        is_client,
        streams,
        error,
    } = lost;
    let [client, upstream] = streams.map(async |stream| {
        if let Stream::Tcp(socket) = stream.into_socket() {
            spliceway::reset(socket).await;
        }
    });
    tokio::join!(client, upstream);
    let end = if is_client {
        SessionEnd::ResetByClient
    } else {
        SessionEnd::ResetByUpstream
    };
    Outcome::because(end, &format_args!("cannot give the keys of TLS to the kernel: {error}"))
}

/// Lets a proxy behind TLS have the last bytes for a target behind TLS. The target announces its
/// end before the proxy does. A close would answer the announcement of the proxy with a reset, and
/// the reset would remove what the socket has not yet sent.
async fn linger_below(upstream: Stream, limit: Option<Duration>) {
    if let Stream::Tls(target) = upstream
        && let proxy @ Stream::Tls(_) = target.into_socket()
    {
        linger(&mut proxy.into_socket(), limit).await;
    }
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

/// Relays, and stays awake after messages if the settings say so. If another process asks for the
/// session, the relay is suspended.
pub(super) fn plain<A, B>(client: A, upstream: B, bounds: Bounds, mut record: Record) -> Step
where
    A: AsyncRead + AsyncWrite + AsFd + Unpin + Send + Into<Stream> + 'static,
    B: AsyncRead + AsyncWrite + AsFd + Unpin + Send + Into<Stream> + 'static,
{
    let Bounds {
        options,
        state,
        mirror,
        rates,
        offer,
    } = bounds;
    let guard = &mut record.guard;
    let relay = match state {
        None => new_relay(client, upstream, options, mirror, guard),
        Some(state) => resumed_relay(client, upstream, options, *state, guard),
    };
    let mut running = Running {
        spin: Spin::new(guard.service().settings.spin, relay.stats()),
        counter: ByteCounter::new(guard.session(), ByteSource::Relay(relay.stats())),
        is_allowed: false,
        relay,
        record,
    };
    // The block owns the relay from the start. A function would hold it twice: as its argument, and
    // as a variable.
    Step::new(async move {
        let stopped = poll_fn(|cx| running.poll(cx)).await;
        let Running { relay, mut record, .. } = running;
        let to = match stopped {
            Stopped::Ended(ended) => {
                let (client, upstream) = relay.streams();
                record.observe(client, upstream);
                drop((relay, rates));
                record.end(ended.into());
                return None;
            }
            Stopped::Requested(to) => to,
        };
        match relay.suspend() {
            Ok(suspended) => {
                let suspended = Suspended {
                    client: suspended.a.into(),
                    upstream: suspended.b.into(),
                    state: suspended.state,
                    rates,
                };
                Some(offer(suspended, to, record))
            }
            // The streams are gone, and with them what the pipes held.
            Err(error) => {
                record.end(lost(&error));
                None
            }
        }
    })
}

/// A relay that runs. Most sessions of a busy proxy are idle and consist of this, so it is small:
/// what few sessions have is boxed.
struct Running<A, B> {
    relay: Relay<A, B>,
    record: Record,
    spin: Option<Box<Spin>>,
    counter: Option<Box<ByteCounter>>,
    /// Whether the session may be handed over.
    is_allowed: bool,
}

/// Why a relay does not run any more.
enum Stopped {
    /// Its streams have ended, or it was stopped.
    Ended(Result<RelaySummary, RelayError>),
    /// Another process asks for the session, and receives an [`Offer`] here.
    Requested(oneshot::Sender<Offer>),
}

impl<A, B> Running<A, B>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Stopped> {
        let relay = &mut self.relay;
        let polled = poll_counted(&mut self.counter, cx, |cx| Pin::new(&mut *relay).poll(cx));
        if let Poll::Ready(ended) = polled {
            return Poll::Ready(Stopped::Ended(ended));
        }
        if let Some(spin) = &mut self.spin {
            spin.after_poll(cx);
        }
        let relay = &self.relay;
        let session = self.record.guard.session();
        match requested(session, &mut self.is_allowed, || relay.can_suspend(), cx) {
            Some(to) => Poll::Ready(Stopped::Requested(to)),
            None => Poll::Pending,
        }
    }
}

/// Returns the end of a session whose relay could not be suspended.
fn lost(error: &io::Error) -> Outcome {
    let why = format!("cannot read out a pipe for a hand-over: {error}");
    tracing::error!("a session ends: {why}");
    Outcome::because(SessionEnd::Drained, &why)
}
