//! Lets each client guess one password at a time. So the result of a guess is known before the next
//! guess. A client that sends many passwords at the same time delays only itself.

use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{Mutex as Turnstile, OwnedMutexGuard};

use crate::kit::client_key::ClientKey;

/// The maximum number of waiting passwords from one client. Further passwords are turned away,
/// because each one waits for all checks before it.
const WAITING_MAX: usize = 32;

/// The client that takes a turn. Clients of Unix sockets share one key.
type Key = Option<ClientKey>;

/// The clients whose passwords are being checked, or are waiting. There are never more of these
/// clients than sessions.
#[derive(Default)]
pub(super) struct Turns {
    clients: Mutex<HashMap<Key, Waiters>>,
}

#[derive(Default)]
struct Waiters {
    turnstile: Arc<Turnstile<()>>,
    /// The number of turns that wait at the turnstile, or that have passed it and are still
    /// running.
    count: usize,
}

/// A client's turn, which lasts until it is dropped.
pub(crate) struct Turn<'turns> {
    // The guard is dropped before the seat, because dropping the last seat removes the turnstile.
    _turn: OwnedMutexGuard<()>,
    _seat: Seat<'turns>,
}

struct Seat<'turns> {
    turns: &'turns Turns,
    client: Key,
}

impl Turns {
    /// Waits for this client's turn, in the order of the calls. Returns `None` if too many calls
    /// are already waiting. Cancel safe.
    pub(super) async fn wait(&self, client: Key) -> Option<Turn<'_>> {
        let turnstile = {
            let mut clients = self.clients();
            let waiters = clients.entry(client).or_default();
            // A new entry has a count of 0, so returning here never leaves an empty entry.
            if waiters.count > WAITING_MAX {
                return None;
            }
            waiters.count += 1;
            Arc::clone(&waiters.turnstile)
        };
        let seat = Seat { turns: self, client };
        Some(Turn {
            _turn: turnstile.lock_owned().await,
            _seat: seat,
        })
    }

    fn clients(&self) -> MutexGuard<'_, HashMap<Key, Waiters>> {
        // Each change affects only one entry.
        self.clients.lock()
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut clients = self.turns.clients();
        let Some(waiters) = clients.get_mut(&self.client) else {
            return;
        };
        waiters.count -= 1;
        if waiters.count == 0 {
            clients.remove(&self.client);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    fn client(last: u8) -> Key {
        Some(IpAddr::from(Ipv4Addr::new(192, 0, 2, last)).into())
    }

    #[tokio::test]
    async fn a_client_waits_only_for_itself_and_leaves_no_entry() {
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
    async fn a_dropped_waiter_leaves_no_entry() {
        let turns = Turns::default();
        let first = turns.wait(client(1)).await;
        let soon = tokio::time::timeout(std::time::Duration::from_millis(5), turns.wait(client(1)));
        assert!(soon.await.is_err());
        drop(first);
        assert_eq!(turns.clients().len(), 0);
    }

    #[tokio::test]
    async fn a_client_with_too_many_waiting_passwords_is_turned_away() {
        let turns = Turns::default();
        let first = turns.wait(client(1)).await.unwrap();
        let mut waiting: Vec<_> = (0..WAITING_MAX).map(|_| Box::pin(turns.wait(client(1)))).collect();
        for turn in &mut waiting {
            assert!(futures_poll(turn.as_mut()).is_pending());
        }
        assert!(turns.wait(client(1)).await.is_none() && turns.wait(client(2)).await.is_some());
        drop(first);
        assert!(waiting.remove(0).await.is_some());
        assert!(turns.wait(None).await.is_some());
    }

    fn futures_poll<F: Future>(future: std::pin::Pin<&mut F>) -> std::task::Poll<F::Output> {
        future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
    }
}
