//! What a hand-over gives to the new process.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use crate::net::listener::Listener;

/// Listeners that were opened for one address.
#[derive(Clone)]
pub(crate) struct Offered {
    pub(crate) role: String,
    pub(crate) address: String,
    pub(crate) listeners: Vec<Arc<Listener>>,
}

impl Offered {
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.listeners.iter().map(|listener| listener.as_fd())
    }
}
