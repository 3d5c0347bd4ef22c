//! Sessions with datagrams: SOCKS5 UDP ASSOCIATE, and `forward --udp`.

pub(super) mod associate;
mod forward;

pub(crate) use forward::{Opener, Port};
