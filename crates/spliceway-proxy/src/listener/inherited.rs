//! Sockets that a service manager listens on for us (`sd_listen_fds(3)`), so that it can restart us and lose no client.

use std::env;
use std::io;
use std::sync::{Mutex, OnceLock, PoisonError};

use listenfd::ListenFd;
use socket2::SockRef;
use tokio::net::{TcpListener, UnixListener};

use super::{Listener, prepare};

/// The number of the first descriptor that is passed: behind the standard streams.
const FIRST: usize = 3;

/// What was passed and has not been taken yet.
struct Inherited {
    sockets: ListenFd,
    /// In the order of the sockets; there may be fewer names, and several sockets of one name.
    names: Vec<String>,
}

static INHERITED: OnceLock<Mutex<Inherited>> = OnceLock::new();

/// Notes what was passed and takes it out of the environment, so that no child takes it for its own. Must come before there are threads, as
/// others may look at the environment.
pub(crate) fn adopt() {
    INHERITED.get_or_init(|| {
        let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
        Mutex::new(Inherited {
            sockets: ListenFd::from_env(),
            names: names.split(':').map(str::to_owned).collect(),
        })
    });
}

/// The listeners of this name, or the one of this number.
///
/// # Errors
/// There is none, it has been taken before, or it is no listening stream socket.
pub(super) fn take(name: &str) -> io::Result<Vec<Listener>> {
    adopt();
    let inherited = INHERITED.get().expect("adopted");
    // Nothing that can panic leaves it half changed.
    let mut inherited = inherited.lock().unwrap_or_else(PoisonError::into_inner);
    let Inherited { sockets, names } = &mut *inherited;
    let found = find(names, sockets.len(), name);
    if found.is_empty() {
        let passed = match sockets.len() {
            0 => "no socket to this process".to_owned(),
            count => format!("{count} sockets, named {}", names.join(", ")),
        };
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!("the service manager has passed {passed}"),
        ));
    }
    found.into_iter().map(|index| listener(sockets, index)).collect()
}

/// Which of `count` sockets have this name. Where none has, it may be the number of a descriptor.
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

fn listener(sockets: &mut ListenFd, index: usize) -> io::Result<Listener> {
    let number = index + FIRST;
    let unfit = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("descriptor {number} {why}"));
    // A socket that is of another kind stays where it is.
    if let Ok(Some(listener)) = sockets.take_tcp_listener(index) {
        if !SockRef::from(&listener).is_listener()? {
            return Err(unfit("does not listen"));
        }
        prepare(&listener)?;
        listener.set_nonblocking(true)?;
        return TcpListener::from_std(listener).map(Listener::Tcp);
    }
    match sockets.take_unix_listener(index) {
        Ok(Some(listener)) if SockRef::from(&listener).is_listener()? => {
            listener.set_nonblocking(true)?;
            // The file is the service manager's.
            Ok(Listener::Unix(None, UnixListener::from_std(listener)?))
        }
        Ok(Some(_)) => Err(unfit("does not listen")),
        Ok(None) => Err(unfit("is in use already")),
        Err(_) => Err(unfit("is neither a TCP socket nor a unix stream socket")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_found_by_name_all_of_them_and_else_by_number() {
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
    async fn without_a_service_manager_there_is_none() {
        let error = take("web").unwrap_err();
        assert_eq!(
            error.to_string(),
            "the service manager has passed no socket to this process"
        );
    }
}
