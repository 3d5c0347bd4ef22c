//! Listening sockets from a service manager (`sd_listen_fds(3)`). The service manager can then
//! restart the program without losing a client.

use parking_lot::Mutex;
use std::env;
use std::io;
use std::sync::OnceLock;

use listenfd::ListenFd;
use socket2::SockRef;
use tokio::net::{TcpListener, UnixListener};

use super::listening::{Listener, Transport};
use super::options::set_options;

/// The number of the first passed descriptor, after the standard streams.
const FIRST: usize = 3;

/// The passed sockets that have not been taken yet.
struct Inherited {
    sockets: ListenFd,
    /// The names in the order of the sockets. There may be fewer names than sockets, and several
    /// sockets may have the same name.
    names: Vec<String>,
}

static INHERITED: OnceLock<Mutex<Inherited>> = OnceLock::new();

/// Records the passed sockets and removes them from the environment, so that no child process uses
/// them. Call this function before other threads start, because they may read the environment.
pub(crate) fn adopt() {
    INHERITED.get_or_init(|| {
        let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
        Mutex::new(Inherited {
            sockets: ListenFd::from_env(),
            names: names.split(':').map(str::to_owned).collect(),
        })
    });
}

/// Returns the listeners with this name and transport, or the one with this number.
///
/// # Errors
/// Returns an error if there is no such socket, if it was taken before, or if it is not a listening
/// socket of this transport.
pub(super) fn take(name: &str, transport: Transport) -> io::Result<Vec<Listener>> {
    adopt();
    let inherited = INHERITED.get().expect("adopted");
    let mut inherited = inherited.lock();
    let Inherited { sockets, names } = &mut *inherited;
    let found = find(names, sockets.len(), name);
    if found.is_empty() {
        let passed = match sockets.len() {
            0 => "no socket to this process".to_owned(),
            count => format!("{count} socket(s), named {}", names.join(", ")),
        };
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!("the service manager passed {passed}"),
        ));
    }
    // One name may have sockets of both transports. The other ones are for another service.
    let is_several = found.len() > 1;
    let (mut taken, mut others) = (Vec::new(), None);
    for index in found {
        match listener(sockets, index, transport) {
            Ok(listener) => taken.push(listener),
            Err(Unfit::Other(error)) if is_several => others = others.or(Some(error)),
            Err(Unfit::Other(error) | Unfit::Failed(error)) => return Err(error),
        }
    }
    match others {
        Some(error) if taken.is_empty() => Err(error),
        _ => Ok(taken),
    }
}

/// Returns which of `count` sockets have this name. If no socket has it, the name may be the number
/// of a descriptor.
fn find(names: &[String], count: usize, name: &str) -> Vec<usize> {
    let named: Vec<_> = (0..count)
        .filter(|index| names.get(*index).is_some_and(|one| one == name))
        .collect();
    if !named.is_empty() {
        return named;
    }
    let number = name.parse::<usize>().ok().and_then(|number| number.checked_sub(FIRST));
    number.filter(|index| *index < count).into_iter().collect()
}

/// Why a socket is no listener.
enum Unfit {
    /// The socket is of another kind, or another service has taken it.
    Other(io::Error),
    Failed(io::Error),
}

fn listener(sockets: &mut ListenFd, index: usize, transport: Transport) -> Result<Listener, Unfit> {
    let number = index + FIRST;
    let unfit = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("descriptor {number} {why}"));
    if transport == Transport::Datagrams {
        let Ok(Some(socket)) = sockets.take_udp_socket(index) else {
            return Err(Unfit::Other(unfit("is in use, or no UDP socket")));
        };
        socket.set_nonblocking(true)?;
        return Listener::of_datagrams(socket.into()).map_err(Unfit::Failed);
    }
    // If the socket is of another kind, this call leaves it in `sockets`.
    if let Ok(Some(listener)) = sockets.take_tcp_listener(index) {
        if !SockRef::from(&listener).is_listener()? {
            return Err(Unfit::Failed(unfit("does not listen")));
        }
        set_options(&listener)?;
        listener.set_nonblocking(true)?;
        return Ok(TcpListener::from_std(listener).map(Listener::Tcp)?);
    }
    match sockets.take_unix_listener(index) {
        Ok(Some(listener)) if SockRef::from(&listener).is_listener()? => {
            listener.set_nonblocking(true)?;
            // The file belongs to the service manager.
            Ok(Listener::Unix(None, UnixListener::from_std(listener)?))
        }
        Ok(Some(_)) => Err(Unfit::Failed(unfit("does not listen"))),
        Ok(None) => Err(Unfit::Other(unfit("is already in use"))),
        Err(_) => Err(Unfit::Other(unfit("is neither a TCP socket nor a Unix stream socket"))),
    }
}

impl From<io::Error> for Unfit {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_found_by_name_or_else_by_number() {
        let names = ["web", "dns", "web", "4"].map(str::to_owned);
        assert_eq!(find(&names, 4, "web"), [0, 2]);
        assert_eq!(find(&names, 2, "web"), [0], "a name without a socket");
        assert_eq!(find(&names, 4, "3"), [0]);
        assert_eq!(find(&names, 4, "4"), [3], "a name before a number");
        for none in ["", "2", "7", "we", "-1"] {
            assert_eq!(find(&names, 4, none), [0; 0], "{none}");
        }
    }

    #[tokio::test]
    async fn without_a_service_manager_no_socket_is_found() {
        let error = take("web", Transport::Streams).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the service manager passed no socket to this process"
        );
    }
}
