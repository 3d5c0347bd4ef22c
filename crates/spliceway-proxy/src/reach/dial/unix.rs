//! Connects to Unix sockets.

use std::io;
use std::path::Path;
use std::time::Duration;

use spliceway_protocol::address::system_path;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::socket::{Call, SocketError};

/// The first and the longest wait before the next attempt if the listener's backlog is full. No
/// event reports that there is room again.
const RETRY_MIN: Duration = Duration::from_millis(1);
const RETRY_MAX: Duration = Duration::from_millis(100);

/// Connects to `path`. If the listener's backlog is full, connect(2) fails immediately, and this
/// function tries again. With TCP, the kernel would wait instead. Cancel safe.
pub(super) async fn connect(path: &Path, deadline: Instant) -> Result<UnixStream, SocketError> {
    let (mut wait, address) = (RETRY_MIN, system_path(path));
    loop {
        let error = match timeout_at(deadline, UnixStream::connect(&address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => error,
            Err(_) => return Err(SocketError::timed_out()),
        };
        let now = Instant::now();
        if error.kind() != io::ErrorKind::WouldBlock {
            let call = Call::Connect;
            return Err(SocketError { call, error });
        } else if now >= deadline {
            return Err(SocketError::timed_out());
        }
        sleep_until((now + wait).min(deadline)).await;
        wait = (wait * 2).min(RETRY_MAX);
    }
}

#[cfg(test)]
mod tests {
    use socket2::{Domain, SockAddr, Socket, Type};

    use super::*;

    struct Folder(std::path::PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("spliceway-dial-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            Self(folder)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// The clock is paused. It jumps to the next deadline when nothing else can happen.
    #[tokio::test(start_paused = true)]
    async fn a_connect_waits_for_room_in_the_backlog_until_its_deadline() {
        let folder = Folder::new("backlog");
        let path = folder.0.join("socket");
        let listener = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None).unwrap();
        listener.bind(&SockAddr::unix(&path).unwrap()).unwrap();
        listener.listen(0).unwrap();
        let _first = UnixStream::connect(&path).await.unwrap();

        let deadline = Instant::now() + Duration::from_secs(10);
        let late = connect(&path, deadline).await.unwrap_err();
        assert_eq!(late.error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(Instant::now(), deadline);

        let deadline = Instant::now() + Duration::from_secs(10);
        let accept = async {
            sleep_until(Instant::now() + Duration::from_secs(1)).await;
            listener.accept().unwrap()
        };
        let (connected, _accepted) = tokio::join!(connect(&path, deadline), accept);
        connected.unwrap();
        assert!(Instant::now() < deadline);
    }

    #[tokio::test]
    async fn a_path_without_a_listener_fails_immediately() {
        let folder = Folder::new("missing");
        let deadline = Instant::now() + Duration::from_secs(10);
        let missing = connect(&folder.0.join("socket"), deadline).await.unwrap_err();
        assert_eq!(missing.error.kind(), io::ErrorKind::NotFound);
    }
}
