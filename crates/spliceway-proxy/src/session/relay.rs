//! Relays between both ends of a session.

mod answering;
mod ends;
mod http;
mod kernel;
mod plain;
mod request_body;
mod spin;

use tokio::sync::oneshot;

use super::handover::{Offer, Suspended};
use super::mirror::Mirroring;
use super::record::Record;
use super::step::Step;
use crate::net::stream::Stream;
pub(super) use ends::{Begin, Ends};
use ends::{options, pass_truncations};
pub(super) use http::Exchange;
use plain::{Bounds, bound, plain};

/// Relays until the session ends, or another process has taken it. The sockets have concrete types,
/// because the relay decides by type what it can splice.
pub(super) fn relay(ends: Ends, record: Record) -> Step {
    let Ends {
        mut client,
        mut upstream,
        rates,
        begin,
    } = ends;
    let service = record.guard.service();
    let relays = match begin {
        Begin::New {
            new_sockets: [is_client_new, true],
            ..
        } => &service.relays_of_new_sockets[usize::from(is_client_new)],
        _ => &service.relays,
    };
    let mut options = options(relays.clone(), &rates, &client, &upstream);
    pass_truncations(&mut client, &mut upstream);
    let (state, mirror) = match begin {
        Begin::New { up, down, .. } => {
            options = options.a_to_b_prefix(up).b_to_a_prefix(down);
            (None, service.mirroring.as_ref().and_then(Mirroring::begin))
        }
        // The copy has ended in the other process.
        Begin::Resume(state) => (Some(state), None),
    };
    let bounds = Bounds {
        options,
        state,
        mirror,
        rates,
        offer,
    };
    match (client, upstream) {
        (Stream::Tcp(client), Stream::Tcp(upstream)) => plain(client, upstream, bounds, record),
        (Stream::Tcp(client), Stream::Unix(upstream)) => plain(client, upstream, bounds, record),
        (Stream::Unix(client), Stream::Tcp(upstream)) => plain(client, upstream, bounds, record),
        (Stream::Unix(client), Stream::Unix(upstream)) => plain(client, upstream, bounds, record),
        (client, upstream) => bound(client, upstream, bounds, record),
    }
}

/// Offers a suspended relay to another process. If that process does not take it, it continues
/// here.
///
/// Another task waits for the answer. So a session that is cut meanwhile ends here only if the
/// other process has not taken it.
fn offer(suspended: Suspended, to: oneshot::Sender<Offer>, record: Record) -> Step {
    let (offer, mut answer) = Offer::new(suspended);
    // If the hand-over does not wait for it any more, the relay comes back.
    drop(to.send(offer));
    Step::new(async move {
        let waiting = tokio::spawn(async move {
            let Some(suspended) = answer.returned().await else {
                record.hand_over();
                return None;
            };
            Some((suspended, record))
        });
        let (suspended, record) = waiting.await.ok().flatten()?;
        Some(relay(suspended.into(), record))
    })
}
