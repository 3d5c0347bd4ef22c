//! Sockets as such: listeners, streams, datagrams, and where a connection wanted to go.

pub(crate) mod adopted;
pub(crate) mod datagrams;
pub(crate) mod holder;
pub(crate) mod hops;
pub(crate) mod listener;
pub(crate) mod outgoing;
pub(crate) mod stream;
pub(crate) mod tls_stream;
pub(crate) mod transparent;
