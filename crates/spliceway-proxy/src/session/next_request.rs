//! Waits for the next HTTP request on a client's connection.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep_until, timeout};

use super::admit::Admitted;
use super::client::Client;
use super::kept::{HttpTarget, UNREAD_MAX_BYTES};
use super::linger::lingering_close;
use super::record::{Carried, Record};
use super::service::Service;
use crate::kit::outcome::Outcome;
use spliceway_protocol::http::Remaining;

/// The longest time between two requests. Most clients close an unused connection earlier. A client
/// whose connection is closed while it sends a request may have to report an error.
const KEPT_MAX: Duration = Duration::from_secs(120);

/// How an HTTP request ended, or a session before its relay.
pub(super) struct Ended {
    pub(super) outcome: Outcome,
    /// The connection, if the client may send another request on it.
    pub(super) kept: Option<Box<Admitted>>,
}

impl From<Outcome> for Ended {
    fn from(outcome: Outcome) -> Self {
        Self { outcome, kept: None }
    }
}

impl Admitted {
    /// Returns the connection of a client that may send another request.
    pub(super) fn keep(mut self, unread: Remaining) -> Box<Self> {
        let kept = self.kept.get_or_insert_default();
        kept.requests += 1;
        kept.unread = (!unread.is_over()).then_some(unread);
        Box::new(self)
    }

    /// Waits for the next request, and begins its session. Returns `None` after the connection has
    /// ended.
    pub(super) async fn next_request(mut self: Box<Self>, carried: Carried) -> Option<(Box<Self>, Record)> {
        let service = Arc::clone(&carried.service);
        if self.skip_body(&service).await && self.await_request(&carried).await {
            let record = Record::follow(carried, self.addresses.client);
            return Some((self, record));
        }
        // The client may have sent a request meanwhile. With unread bytes, the close would be a
        // reset, which could destroy the last answer.
        lingering_close(&mut self.client, &[]).await;
        None
    }

    /// Reads the body of the request before. Returns `false` if it does not end.
    async fn skip_body(&mut self, service: &Service) -> bool {
        let kept = self.kept.get_or_insert_default();
        let Some(mut unread) = kept.unread.take() else {
            return true;
        };
        let client = &mut self.client;
        let skip = async {
            let mut skipped = 0;
            while !unread.is_over() && skipped < UNREAD_MAX_BYTES {
                let bytes = client.fill_buf().await.ok().filter(|bytes| !bytes.is_empty())?;
                let taken = unread.take(bytes).ok()?;
                client.consume(taken);
                skipped += taken as u64;
            }
            unread.is_over().then_some(())
        };
        matches!(timeout(service.settings.timeouts.handshake, skip).await, Ok(Some(())))
    }

    /// Returns whether the client has begun another request.
    async fn await_request(&mut self, Carried { service, permit, .. }: &Carried) -> bool {
        let Self { client, kept, .. } = self;
        let mut target = kept.get_or_insert_default().target.take();
        let limit = service
            .settings
            .timeouts
            .idle
            .map_or(KEPT_MAX, |idle| idle.min(KEPT_MAX));
        let until = Instant::now() + limit;
        let has_begun = loop {
            tokio::select! {
                // A request that has already arrived is answered.
                biased;
                filled = client.fill_buf() => match filled {
                    // Some clients send an empty line after a body.
                    Ok(b"\r\n") => client.consume(2),
                    Ok(bytes) => break !bytes.is_empty(),
                    Err(_) => break false,
                },
                () = HttpTarget::speaks(target.as_mut()) => target = None,
                () = service.releases_clients() => break false,
                () = permit.wanted() => break false,
                () = sleep_until(until) => break false,
            }
        };
        kept.get_or_insert_default().target = target;
        // A request that has arrived before a drain is answered. After a reload, it would have
        // rules that are not in force any more.
        has_begun && service.in_force.is_on()
    }
}

/// Sends an answer to a client whose connection stays open. Returns whether it was sent in time.
pub(super) async fn send_and_stay(client: &mut Client, answer: &[u8], limit: Duration) -> bool {
    let send = async {
        client.write_all(answer).await?;
        client.flush().await
    };
    matches!(timeout(limit, send).await, Ok(Ok(())))
}
