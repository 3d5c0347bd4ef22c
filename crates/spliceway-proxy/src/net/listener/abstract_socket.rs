//! Listens on abstract Unix sockets (unix(7)). They have names and no files, so no mode decides who
//! may connect. The program asks the kernel for the user of each client instead.

use parking_lot::RwLock;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use socket2::{Domain, SockAddr, Socket, Type};
use spliceway_protocol::address::system_path;
use tokio::net::{UnixListener, UnixStream};

use super::options::BACKLOG;

/// The mode that admits every user.
const EVERYBODY: u32 = 0o666;

/// The names of the sockets for the user of this program and root. Other abstract sockets come from
/// the service manager, or are for everybody.
static PRIVATE: RwLock<BTreeSet<Box<Path>>> = RwLock::new(BTreeSet::new());

/// Listens on the socket with this name.
///
/// # Errors
/// Returns an error if another program listens there.
pub(super) fn listen(path: &Path, mode: Option<u32>) -> io::Result<UnixListener> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    socket.bind(&SockAddr::unix(system_path(path))?)?;
    set_mode(path, mode);
    socket.listen(BACKLOG)?;
    UnixListener::from_std(socket.into())
}

/// Tells whether [`listen`] would succeed.
///
/// # Errors
/// Returns an error if another program listens there.
pub(super) fn try_out(path: &Path) -> io::Result<()> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    socket.bind(&SockAddr::unix(system_path(path))?)
}

/// Decides who may connect from now on.
pub(super) fn set_mode(path: &Path, mode: Option<u32>) {
    let mut private = PRIVATE.write();
    match mode {
        Some(EVERYBODY) => drop(private.remove(path)),
        _ => drop(private.insert(path.into())),
    }
}

/// Returns the name of a listener as users write it. `None` if it is not abstract.
pub(super) fn name(listener: &UnixListener) -> Option<String> {
    let address = listener.local_addr().ok()?;
    let name = address.as_abstract_name()?;
    Some(format!("@{}", String::from_utf8_lossy(name)))
}

/// Returns whether only the user of this program and root may connect to the socket with this name.
pub(super) fn is_private(name: &str) -> bool {
    PRIVATE.read().contains(Path::new(name))
}

/// Returns whether a client may stay.
pub(super) fn admits(listener: &UnixListener, client: &UnixStream) -> bool {
    if PRIVATE.read().is_empty() {
        return true;
    }
    !name(listener).is_some_and(|name| is_private(&name)) || is_of_owner(client)
}

/// Returns whether the user of a client may connect to the private sockets of this program.
pub(super) fn is_of_owner(client: &UnixStream) -> bool {
    client.peer_cred().is_ok_and(|peer| is_owner(peer.uid()))
}

/// Returns whether the user may connect to the private sockets of this program.
pub(super) fn is_owner(uid: u32) -> bool {
    [rustix::process::geteuid().as_raw(), 0].contains(&uid)
}
