//! Accepts clients. No accept(2) error ends a listener.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use rustix::io::Errno;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};

use crate::access::admission::{Admission, SessionPermit};
use crate::kit::errno;
use crate::log::LogThrottle;
use crate::net::listener::{Accepted, Listener};

/// The first and the longest wait after accept(2) failed because a resource was missing.
const BACK_OFF_MIN: Duration = Duration::from_millis(50);
const BACK_OFF_MAX: Duration = Duration::from_secs(1);
/// Once this many calls fail in a row, an error that seems to concern one client is treated as an
/// error of the listener. A sandbox that forbids accept(2) returns EPERM, as a firewall does. But
/// the sandbox returns it immediately and for every call.
const CLIENTS_IN_A_ROW_MAX: u32 = 16;
/// The number of clients to serve before other tasks run. `serve` may call connect(2). A short
/// session uses 70 µs of CPU time in total, so 16 of them delay other tasks by about 1 ms.
const CLIENTS_PER_POLL: u32 = 16;

/// Passes every client to `serve` until `stop` is ready. At the limit of `admission`, clients stay
/// in the backlog.
///
/// This function never ends before `stop` is ready, and never spins. It counts and skips clients
/// that have already disconnected, unless there are too many in a row. After a shortage of
/// descriptors or memory, the function waits. The wait is 50 ms at first and grows to 1 s. `failed`
/// counts the name of each error.
pub(super) async fn accept(
    listener: &Listener,
    admission: &Arc<Admission>,
    failed: &impl Fn(&'static str),
    stop: impl Future<Output = ()>,
    mut serve: impl FnMut(Accepted, SessionPermit),
) {
    let mut stop = std::pin::pin!(stop);
    let mut shortage = Shortage::default();
    let mut served = 0;
    loop {
        if served == CLIENTS_PER_POLL {
            served = 0;
            yield_now().await;
        }
        let (accepted, permit) = tokio::select! {
            biased;
            () = &mut stop => return,
            next = next(listener, admission) => next,
        };
        let error = match accepted {
            Ok(client) => {
                shortage.over();
                serve(client, permit);
                served += 1;
                continue;
            }
            Err(error) => error,
        };
        drop(permit);
        failed(errno::name(errno::known(&error)));
        if is_of_the_client(&error) && shortage.may_be_of_one_client() {
            continue;
        }
        let (wait, worth_a_line) = shortage.next(Instant::now());
        if worth_a_line {
            let listener = listener.describe();
            tracing::warn!(listener, %error, "cannot accept: running sessions continue, new clients wait");
        }
        tokio::select! {
            biased;
            () = &mut stop => return,
            () = sleep(wait) => {}
        }
    }
}

/// Returns whether an error concerns one connection and not the listener. These are the errors in
/// the section "Error handling" of accept(2), and the errors that a firewall causes.
fn is_of_the_client(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(
            Errno::CONNABORTED
                | Errno::INTR
                | Errno::PROTO
                | Errno::PERM
                | Errno::NETDOWN
                | Errno::NOPROTOOPT
                | Errno::HOSTDOWN
                | Errno::NONET
                | Errno::HOSTUNREACH
                | Errno::OPNOTSUPP
                | Errno::NETUNREACH
        )
    )
}

/// Consecutive failures of one listener.
#[derive(Debug, Default)]
struct Shortage {
    last_wait: Duration,
    throttle: LogThrottle,
    clients: u32,
}

impl Shortage {
    /// Returns how long to wait, and whether to log the failure.
    fn next(&mut self, now: Instant) -> (Duration, bool) {
        self.last_wait = (self.last_wait * 2).clamp(BACK_OFF_MIN, BACK_OFF_MAX);
        (self.last_wait, self.throttle.admits(now))
    }

    /// Returns whether a failure that seems to concern one client may indeed concern only this
    /// client.
    fn may_be_of_one_client(&mut self) -> bool {
        self.clients = (self.clients + 1).min(CLIENTS_IN_A_ROW_MAX);
        self.clients < CLIENTS_IN_A_ROW_MAX
    }

    /// Records that a client was accepted. The time of the last log line is kept, because every
    /// second accept(2) may fail at the limit.
    fn over(&mut self) {
        self.last_wait = Duration::ZERO;
        self.clients = 0;
    }
}

/// Waits for the next client and a permit for it. Cancel safe.
///
/// A client leaves the backlog only if there is a permit for it. A listener that waits for a
/// client holds no permit.
async fn next(listener: &Listener, admission: &Arc<Admission>) -> (io::Result<Accepted>, SessionPermit) {
    loop {
        let mut permit = Some(admission.admit().await);
        let look = poll_fn(|cx| {
            if permit.is_none() {
                // An earlier poll found no client and gave the permit back.
                return Poll::Ready(None);
            }
            let looked = listener.poll_accept(cx).map(Some);
            if looked.is_pending() {
                permit = None;
            }
            looked
        });
        if let (Some(accepted), Some(permit)) = (look.await, permit) {
            return (accepted, permit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::listener::{Transport, bind, closes, reset};
    use tokio::net::TcpStream;
    use tokio::sync::{mpsc, oneshot};

    #[test]
    fn accept_backs_off_longer_and_logs_once_in_ten_seconds() {
        let (start, mut shortage) = (Instant::now(), Shortage::default());
        let waits: Vec<_> = (0..7).map(|_| shortage.next(start)).collect();
        let millis: Vec<_> = waits.iter().map(|(wait, _)| wait.as_millis()).collect();
        assert_eq!(millis, [50, 100, 200, 400, 800, 1000, 1000]);
        assert_eq!(waits.iter().filter(|(_, line)| *line).count(), 1);
        shortage.over();
        assert_eq!(shortage.next(start + LogThrottle::EVERY / 2), (BACK_OFF_MIN, false));
        assert_eq!(shortage.next(start + LogThrottle::EVERY), (BACK_OFF_MIN * 2, true));
    }

    async fn one(address: &str) -> Listener {
        let address = address.parse().unwrap();
        bind(&address, Transport::Streams).await.unwrap().remove(0)
    }

    /// Runs `accept` until the returned sender is used. The returned channel receives the accepted
    /// clients.
    fn run(
        listener: Listener,
        admission: &Arc<Admission>,
    ) -> (mpsc::UnboundedReceiver<(Accepted, SessionPermit)>, oneshot::Sender<()>) {
        let ((clients, accepted), (stop, stopped)) = (mpsc::unbounded_channel(), oneshot::channel());
        let admission = Arc::clone(admission);
        tokio::spawn(async move {
            let stop = async { drop(stopped.await) };
            let serve = |client, permit| clients.send((client, permit)).unwrap();
            accept(&listener, &admission, &|_| {}, stop, serve).await;
        });
        (accepted, stop)
    }

    #[tokio::test]
    async fn at_the_limit_no_client_is_accepted_until_a_session_ends() {
        let (listener, admission) = (one("127.0.0.1:0").await, Admission::new("sessions", 2, None));
        let address = listener.local_addr().unwrap();
        let (mut accepted, _stop) = run(listener, &admission);
        let mut clients = Vec::new();
        for _ in 0..3 {
            // The kernel completes the third connection before the program accepts it.
            clients.push(TcpStream::connect(address).await.unwrap());
        }
        let (first, _second) = (accepted.recv().await.unwrap(), accepted.recv().await.unwrap());
        while admission.waits() == 0 {
            tokio::task::yield_now().await;
        }
        assert!(accepted.try_recv().is_err());
        assert_eq!(first.0.peer, Some(clients[0].local_addr().unwrap()));
        drop(first);
        let third = accepted.recv().await.unwrap().0;
        assert_eq!(third.peer, Some(clients[2].local_addr().unwrap()));
        assert_eq!(third.local(), Some(address));
    }

    #[tokio::test]
    async fn at_the_limit_a_listener_stops_immediately() {
        let (listener, admission) = (one("127.0.0.1:0").await, Admission::new("sessions", 1, None));
        let address = listener.local_addr().unwrap();
        let _permit = admission.admit().await;
        let (mut accepted, stop) = run(listener, &admission);
        let _waits = TcpStream::connect(address).await.unwrap();
        stop.send(()).unwrap();
        assert!(accepted.recv().await.is_none());
        closes(address).await;
    }

    #[tokio::test]
    async fn idle_listeners_do_not_hold_permits() {
        let admission = Admission::new("sessions", 1, None);
        let idle = run(one("127.0.0.1:0").await, &admission);
        let listener = one("127.0.0.1:0").await;
        let address = listener.local_addr().unwrap();
        let mut busy = run(listener, &admission);
        for _ in 0..3 {
            let _client = TcpStream::connect(address).await.unwrap();
            drop(busy.0.recv().await.unwrap());
        }
        drop(idle);
    }

    #[tokio::test]
    async fn a_client_that_is_refused_is_reset() {
        let (listener, admission) = (one("127.0.0.1:0").await, Admission::new("sessions", 1, None));
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        reset(next(&listener, &admission).await.0.unwrap().stream);
        client.readable().await.unwrap();
        let error = client.try_read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
}
