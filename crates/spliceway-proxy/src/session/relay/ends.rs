//! How a relay begins: its ends, and the bytes that each end has sent before.

use spliceway::{Engine, Mirror, Relay, RelayOptions, RelayState};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::access::rates::SessionRates;
use crate::net::stream::Stream;
use crate::session::guard::Guard;
use crate::session::handover::Suspended;

/// Both ends of a relay, and how the relay begins.
pub(in crate::session) struct Ends {
    pub(in crate::session) client: Stream,
    pub(in crate::session) upstream: Stream,
    pub(in crate::session) rates: SessionRates,
    pub(in crate::session) begin: Begin,
}

pub(in crate::session) enum Begin {
    /// With the bytes that each end has sent after its handshake.
    New {
        up: Vec<u8>,
        down: Vec<u8>,
        /// Whether nothing has read from the client's socket, and from the target's.
        new_sockets: [bool; 2],
    },
    /// From the state of a suspended relay.
    Resume(Box<RelayState>),
}

impl From<Suspended> for Ends {
    fn from(suspended: Suspended) -> Self {
        Self {
            client: suspended.client,
            upstream: suspended.upstream,
            rates: suspended.rates,
            begin: Begin::Resume(Box::new(suspended.state)),
        }
    }
}

/// Returns a new relay, which counts from now on.
pub(super) fn new_relay<A, B>(
    client: A,
    upstream: B,
    options: RelayOptions,
    mirror: Option<Mirror>,
    guard: &mut Guard,
) -> Relay<A, B>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let mut relay = Relay::with_options(client, upstream, options);
    if let Some(mirror) = mirror {
        relay.mirror_a_to_b(mirror);
    }
    guard.relaying(relay.stats(), relay.cancel_handle());
    relay
}

/// Returns a relay that continues from this state.
pub(super) fn resumed_relay<A, B>(
    client: A,
    upstream: B,
    options: RelayOptions,
    state: RelayState,
    guard: &mut Guard,
) -> Relay<A, B>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let mut relay = Relay::resume(client, upstream, options, state);
    guard.resuming(relay.stats(), relay.cancel_handle());
    relay
}

/// Adds to these options what applies to a relay between these ends.
pub(super) fn options(
    mut options: RelayOptions,
    rates: &SessionRates,
    client: &Stream,
    upstream: &Stream,
) -> RelayOptions {
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
    options
}

/// Makes an end that is not announced on one side an end that is not announced on the other. A cut
/// answer must not look complete.
pub(super) fn pass_truncations(client: &mut Stream, upstream: &mut Stream) {
    if let (Stream::Tls(client), Stream::Tls(upstream)) = (client, upstream) {
        client.pass_truncation_of(upstream.truncation());
        upstream.pass_truncation_of(client.truncation());
    }
}
