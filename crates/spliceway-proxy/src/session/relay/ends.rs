//! How a relay begins: its ends, and the bytes that each end has sent before.

use spliceway::{Relay, RelayOptions, RelayState};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::access::rates::SessionRates;
use crate::net::stream::Stream;
use crate::session::guard::Guard;
use crate::session::handover::Suspended;
use spliceway_protocol::http::{Chunks, Malformed};

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
        /// The part of the client's further bytes that is for the target. `None` means all of them.
        rest: Option<RemainingBody>,
        down: Vec<u8>,
        /// Whether nothing has read from the client's socket, and from the target's.
        new_sockets: [bool; 2],
    },
    /// From the state of a suspended relay.
    Resume(Box<RelayState>),
}

/// The part of a request's body that has not arrived yet.
pub(in crate::session) enum RemainingBody {
    /// The target has the whole request, and the proxy has read the head of its answer.
    Nothing,
    Bytes(u64),
    Chunks(Chunks),
}

impl RemainingBody {
    /// Returns how many of these next bytes belong to the body.
    pub(in crate::session) fn take(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        match self {
            Self::Nothing => Ok(0),
            Self::Chunks(chunks) => chunks.take(bytes),
            Self::Bytes(left) => {
                let taken = usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
                *left -= taken as u64;
                Ok(taken)
            }
        }
    }
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
pub(super) fn new_relay<A, B>(client: A, upstream: B, options: RelayOptions, guard: &mut Guard) -> Relay<A, B>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let mut relay = Relay::with_options(client, upstream, options);
    guard.relaying(relay.stats(), relay.cancel_handle());
    relay
}
