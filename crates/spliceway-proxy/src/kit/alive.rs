//! What keeps the program running: tasks that must finish first, and services that accept clients.

use std::convert::Infallible;

use tokio::sync::{mpsc, watch};

/// A token that keeps the drain waiting. Every task that must finish before the process ends holds
/// one.
#[derive(Clone)]
pub(crate) struct Alive(mpsc::Sender<Infallible>);

/// A token that does not keep the drain waiting, and becomes one that does.
pub(crate) struct MaybeAlive(mpsc::WeakSender<Infallible>);

/// Waits until the last [`Alive`] is dropped.
pub(crate) struct Ended(mpsc::Receiver<Infallible>);

impl Ended {
    /// Cancel safe.
    pub(crate) async fn wait(&mut self) {
        // No message can exist, so the channel only closes.
        let _ = self.0.recv().await;
    }
}

impl Alive {
    pub(crate) fn new() -> (Self, Ended) {
        let (sender, receiver) = mpsc::channel(1);
        (Self(sender), Ended(receiver))
    }

    pub(crate) fn downgrade(&self) -> MaybeAlive {
        MaybeAlive(self.0.downgrade())
    }
}

impl MaybeAlive {
    /// Returns `None` if the drain has ended.
    pub(crate) fn upgrade(&self) -> Option<Alive> {
        self.0.upgrade().map(Alive)
    }
}

/// Whether a service accepts clients, or their next requests. It does until it is told to stop,
/// while others continue.
pub(crate) struct Accepting(watch::Sender<bool>);

impl Accepting {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(true))
    }

    pub(crate) fn is_on(&self) -> bool {
        *self.0.borrow()
    }

    /// Stops accepting, which closes listeners. Returns `false` if it was stopped before.
    pub(crate) fn stop(&self) -> bool {
        self.0.send_if_modified(std::mem::take)
    }

    /// Waits until the service stops accepting.
    pub(crate) async fn stopped(&self) {
        // `self` holds the sender, so the channel stays open.
        let _ = self.0.subscribe().wait_for(|on| !on).await;
    }
}
