//! Relays between both ends of a session.

mod answering;
mod ends;
mod http;
mod plain;
mod request_body;
mod spin;

use std::io;

use spliceway::{Engine, Peer};
use tokio::sync::oneshot;

use super::handover::{Offer, Suspended};
use super::record::Record;
use crate::kit::outcome::{Outcome, SessionEnd};
use crate::net::stream::Stream;
pub(super) use ends::{Begin, Ends, RemainingBody};
use http::{Request, exchange};
use plain::{Ended, bound, plain, set_keepalive_now};

/// What follows a relay.
pub(super) enum Relayed {
    Ended(Outcome),
    /// Another process asks for the session.
    Suspended(Box<Suspended>, oneshot::Sender<Offer>),
}

/// Relays between sockets of concrete types, because the relay decides by type what it can splice.
pub(super) async fn relay(ends: Ends, record: &mut Record) -> Relayed {
    let Ends {
        mut client,
        mut upstream,
        keepalive,
        rates,
        begin,
    } = ends;
    let mut options = record.guard.service().relays.clone();
    if let Some(limit) = &rates.incoming {
        options = options.a_to_b_rate_limit(limit);
    }
    if let Some(limit) = &rates.outgoing {
        options = options.b_to_a_rate_limit(limit);
    }
    if matches!(client, Stream::Tls(_)) || matches!(upstream, Stream::Tls(_)) {
        // The bytes of TLS pass through user space, even with `--splice on`.
        options = options.engine(Engine::Copy);
    }
    pass_truncations(&mut client, &mut upstream);
    let state = match begin {
        Begin::New {
            up,
            rest: Some(rest),
            down,
            new_sockets: _,
        } => {
            let request = Request { up, rest, down };
            return Relayed::Ended(Box::pin(exchange(client, request, upstream, options, record)).await);
        }
        Begin::New {
            up,
            rest: None,
            down,
            new_sockets,
        } => {
            options = options.a_to_b_prefix(up).b_to_a_prefix(down);
            for (peer, is_new) in [Peer::A, Peer::B].into_iter().zip(new_sockets) {
                if is_new {
                    options = options.new_socket(peer);
                }
            }
            None
        }
        Begin::Resume(state) => Some(state),
    };
    let ended = match (client, upstream) {
        (Stream::Tcp(client), Stream::Tcp(upstream)) => {
            plain((client, upstream), keepalive, options, state, record).await
        }
        (Stream::Tcp(client), Stream::Unix(upstream)) => {
            plain((client, upstream), keepalive, options, state, record).await
        }
        (Stream::Unix(client), Stream::Tcp(upstream)) => {
            plain((client, upstream), keepalive, options, state, record).await
        }
        (Stream::Unix(client), Stream::Unix(upstream)) => {
            plain((client, upstream), keepalive, options, state, record).await
        }
        // Boxed, so that sessions without TLS do not hold its memory.
        (client, upstream) => {
            set_keepalive_now(&upstream, keepalive);
            Ended::Finished(Box::pin(bound(client, upstream, options, record)).await)
        }
    };
    match ended {
        Ended::Finished(outcome) => Relayed::Ended(outcome),
        Ended::Lost(error) => Relayed::Ended(lost(&error)),
        Ended::Suspended(client, upstream, state, to) => {
            let suspended = Suspended {
                client,
                upstream,
                state: *state,
                rates,
            };
            Relayed::Suspended(Box::new(suspended), to)
        }
    }
}

/// Makes an end that is not announced on one side an end that is not announced on the other. A cut
/// answer must not look complete.
fn pass_truncations(client: &mut Stream, upstream: &mut Stream) {
    if let (Stream::Tls(client), Stream::Tls(upstream)) = (client, upstream) {
        client.pass_truncation_of(upstream.truncation());
        upstream.pass_truncation_of(client.truncation());
    }
}

/// Returns the end of a session whose relay could not be suspended for another process.
fn lost(error: &io::Error) -> Outcome {
    let why = format!("cannot read out a pipe for a hand-over: {error}");
    tracing::error!("a session ends: {why}");
    Outcome::because(SessionEnd::Drained, &why)
}
