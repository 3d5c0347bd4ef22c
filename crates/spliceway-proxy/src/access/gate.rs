//! Lets the accept tasks of this process pause while another process accepts clients from the same
//! listeners.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::watch;

use crate::access::accept::accept;
use crate::access::admission::{Admission, SessionPermit};
use crate::net::listener::{Accepted, Listener};

/// Whether this process accepts clients. The listeners stay open either way.
#[derive(Clone)]
pub(crate) struct Gate(watch::Sender<bool>);

impl Gate {
    pub(crate) fn new(is_open: bool) -> Self {
        Self(watch::Sender::new(is_open))
    }

    pub(crate) fn set(&self, is_open: bool) {
        self.0.send_replace(is_open);
    }

    /// Waits until the gate is open, or closed.
    pub(crate) async fn is(&self, open: bool) {
        // `self` has the sender, so the channel stays open.
        let _ = self.0.subscribe().wait_for(|is_open| *is_open == open).await;
    }

    /// Does what [`accept`] does, and pauses while the gate is closed.
    pub(crate) async fn accept(
        &self,
        listener: &Listener,
        admission: &Arc<Admission>,
        failed: &impl Fn(&'static str),
        stop: impl Future<Output = ()>,
        mut serve: impl FnMut(Accepted, SessionPermit),
    ) {
        let (mut stop, mut changes) = (std::pin::pin!(stop), self.0.subscribe());
        loop {
            tokio::select! {
                biased;
                () = &mut stop => return,
                // `self` has the sender, so the channel stays open.
                _ = changes.wait_for(|is_open| *is_open) => {}
            }
            let mut is_stopped = false;
            let pause = async {
                tokio::select! {
                    biased;
                    () = &mut stop => is_stopped = true,
                    _ = changes.wait_for(|is_open| !*is_open) => {}
                }
            };
            accept(listener, admission, failed, pause, &mut serve).await;
            if is_stopped {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::listener::{self, Transport};
    use spliceway_protocol::address::ListenAddress;
    use tokio::net::TcpStream;
    use tokio::sync::{mpsc, oneshot};

    #[tokio::test]
    async fn clients_wait_in_the_backlog_while_the_gate_is_closed() {
        let address: ListenAddress = "127.0.0.1:0".parse().unwrap();
        let listener = listener::bind(&address, Transport::Streams).await.unwrap().remove(0);
        let address = listener.describe();
        let admission = Admission::new("sessions", 10, None);
        let gate = Gate::new(false);
        let (accepted, mut accepts) = mpsc::unbounded_channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let accepting = tokio::spawn({
            let gate = gate.clone();
            async move {
                let stop = async { drop(stopped.await) };
                let serve = |client: Accepted, _: SessionPermit| drop(accepted.send(client));
                gate.accept(&listener, &admission, &|_| {}, stop, serve).await;
            }
        });
        let _first = TcpStream::connect(&address).await.unwrap();
        tokio::task::yield_now().await;
        assert!(accepts.try_recv().is_err(), "closed");
        gate.set(true);
        accepts.recv().await.unwrap();
        gate.set(false);
        tokio::task::yield_now().await;
        let _second = TcpStream::connect(&address).await.unwrap();
        tokio::task::yield_now().await;
        assert!(accepts.try_recv().is_err(), "closed again");
        drop(stop);
        accepting.await.unwrap();
        listener::closes(&address).await;
    }
}
