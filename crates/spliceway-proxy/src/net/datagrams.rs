//! What sessions with datagrams share: batches of them, and their sockets.
//!
//! ```text
//!   socket ─ recvmmsg(2), UDP_GRO ─▶ Batch ─ each datagram ─▶ GsoBatch ─ UDP_SEGMENT ─▶ socket
//! ```

mod batch;
mod gso_batch;
mod sockets;

pub(crate) use batch::{Origin, Packet, with_scratch};
pub(crate) use gso_batch::{GsoBatch, Route, send};
pub(crate) use sockets::{bind, gather, readable, system, towards};
pub(super) use sockets::{new_socket, report_reached};
