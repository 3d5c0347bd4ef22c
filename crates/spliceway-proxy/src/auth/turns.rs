//! One client, one guess at a time: so a guess knows what came of the one before it, and who sends many at once waits behind its own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Mutex as Turnstile, OwnedMutexGuard};

use crate::admission::ClientKey;

/// The clients whose secrets are looked at now, or wait for it: never more than there are sessions.
#[derive(Default)]
pub(crate) struct Turns {
    clients: Mutex<HashMap<ClientKey, Arc<Turnstile<()>>>>,
}

/// A client's turn, until it is dropped.
pub(crate) struct Turn<'turns> {
    // The first to go: the place is left behind by whoever is the last in it.
    _turn: OwnedMutexGuard<()>,
    _place: Place<'turns>,
}

struct Place<'turns> {
    turns: &'turns Turns,
    client: ClientKey,
    /// Until it leaves.
    turnstile: Option<Arc<Turnstile<()>>>,
}

impl Turns {
    /// Waits for this client's turn. They are served in their order. Cancel safe.
    pub(crate) async fn wait(&self, client: ClientKey) -> Turn<'_> {
        let turnstile = Arc::clone(self.clients().entry(client).or_default());
        let place = Place {
            turns: self,
            client,
            turnstile: Some(Arc::clone(&turnstile)),
        };
        Turn {
            _turn: turnstile.lock_owned().await,
            _place: place,
        }
    }

    fn clients(&self) -> MutexGuard<'_, HashMap<ClientKey, Arc<Turnstile<()>>>> {
        // Each change is one entry.
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut clients = self.turns.clients();
        self.turnstile = None;
        // Others come by the map alone, whose lock is held.
        let is_empty = |turnstile: &Arc<_>| Arc::strong_count(turnstile) == 1;
        if clients.get(&self.client).is_some_and(is_empty) {
            clients.remove(&self.client);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    fn client(last: u8) -> ClientKey {
        IpAddr::from(Ipv4Addr::new(192, 0, 2, last)).into()
    }

    #[tokio::test]
    async fn a_client_waits_for_itself_alone_and_nobody_is_kept() {
        let turns = Turns::default();
        let first = turns.wait(client(1)).await;
        let other = turns.wait(client(2)).await;
        let mut second = Box::pin(turns.wait(client(1)));
        let soon = tokio::time::timeout(std::time::Duration::from_millis(20), &mut second);
        assert!(soon.await.is_err());
        drop(first);
        let second = second.await;
        assert_eq!(turns.clients().len(), 2);
        drop((second, other));
        assert_eq!(turns.clients().len(), 0);
    }

    #[tokio::test]
    async fn who_no_longer_waits_leaves_nothing_behind() {
        let turns = Turns::default();
        let first = turns.wait(client(1)).await;
        let soon = tokio::time::timeout(std::time::Duration::from_millis(5), turns.wait(client(1)));
        assert!(soon.await.is_err());
        drop(first);
        assert_eq!(turns.clients().len(), 0);
    }
}
