//! Sockets as such: listeners, streams, datagrams, and where a connection wanted to go.

pub(crate) mod adopted;
pub(crate) mod datagrams;
pub(crate) mod holder;
pub(crate) mod hops;
pub(crate) mod kernel_support;
pub(crate) mod kernel_tls;
pub(crate) mod listener;
pub(crate) mod outgoing;
pub(crate) mod records;
pub(crate) mod stream;
pub(crate) mod tls_stream;
mod traffic_secrets;
pub(crate) mod transparent;
