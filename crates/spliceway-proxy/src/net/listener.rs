//! The sockets that clients reach.

mod abstract_socket;
mod bind;
mod inherited;
mod listening;
mod options;
mod socket_file;

pub(super) use bind::adopted;
pub(crate) use bind::{bind, does_for, hash_of, try_out};
pub(crate) use inherited::adopt as adopt_inherited;
#[cfg(test)]
pub(crate) use listening::closes;
pub(crate) use listening::{Accepted, Listener, Transport, reset};
pub(crate) use options::{KEEPALIVE, socket_to_listen};
pub(super) use socket_file::Ownership;
pub(crate) use socket_file::{ModeChange, OTHERS_MAY_CONNECT, SocketFile};
