//! Notices a damaged record.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;

use tokio::io::Interest;
use tokio::net::TcpStream;

/// Waits for an error of the socket. The kernel reports a damaged record as an error alone, and
/// tokio does not take that for something to read.
pub(super) enum Watch {
    Waiting(Pin<Box<dyn Future<Output = ()> + Send + Sync>>),
    /// The socket has reported an error, which a read may find.
    Found,
    /// A read has found nothing. The error may be another one, such as a message in the error
    /// queue, and the socket would report it for ever.
    Over,
}

impl Watch {
    pub(super) fn of(socket: &Arc<TcpStream>) -> Self {
        let socket = Arc::clone(socket);
        Self::Waiting(Box::pin(async move {
            let _ = socket.ready(Interest::ERROR).await;
        }))
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
            Self::Over => "Over",
        })
    }
}
