//! Notices a damaged record.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;

use tokio::io::Interest;
use tokio::net::TcpStream;

/// Waits for an error of the socket. The kernel reports a damaged record as an error alone, and
/// tokio does not take that for something to read.
pub(super) enum Watch {
    Waiting(Pin<Box<dyn Future<Output = ()> + Send + Sync>>),
    /// A read may find something, whatever the socket says about its readiness: its error, or, at
    /// the beginning, a record about which `poll` is silent.
    Found,
}

impl Watch {
    /// Forgets an error that the socket has reported. A read must follow.
    pub(super) fn forget(socket: &TcpStream) {
        let _ = socket.try_io(Interest::ERROR, || Err::<(), _>(io::ErrorKind::WouldBlock.into()));
    }

    /// Waits for the next error. A read has found nothing, because the last error was another one,
    /// such as a message in the error queue.
    pub(super) fn wait(&mut self, socket: &Arc<TcpStream>) {
        let socket = Arc::clone(socket);
        *self = Self::Waiting(Box::pin(async move {
            let _ = socket.ready(Interest::ERROR).await;
        }));
    }

    /// Returns whether there is an error. If not, the task is polled again when there is.
    pub(super) fn poll_found(&mut self, cx: &mut Context<'_>) -> bool {
        if let Self::Waiting(error) = self
            && error.as_mut().poll(cx).is_ready()
        {
            *self = Self::Found;
        }
        self.has_found()
    }

    pub(super) fn has_found(&self) -> bool {
        matches!(self, Self::Found)
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Waiting(_) => "Waiting",
            Self::Found => "Found",
        })
    }
}
