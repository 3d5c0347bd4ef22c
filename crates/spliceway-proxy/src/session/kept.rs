//! A client's connection from one HTTP request to the next.
//!
//! ```text
//!   request ─▶ answer ─▶ between two requests ─┬─ first byte ─▶ next request: a session of its own
//!                                              └─ end, time limit, drain, reload ─▶ closed
//! ```
//!
//! Between two requests, the connection is no session. It keeps its permit, and it may keep a
//! connection to the last target. Only the same client can use that connection again.

use std::future::{pending, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Instant;

use crate::access::rates::SessionRates;
use crate::net::stream::Stream;
use crate::net::transparent::OwnDial;
use crate::reach::dial::UpstreamProxy;
use spliceway_protocol::address::Target;
use spliceway_protocol::http::{Exchange, Remaining};

/// The most requests of one connection. Each new connection is admitted again.
const REQUESTS_MAX: u32 = 1000;
/// The largest body that is read to keep the connection of a client that is refused.
pub(super) const UNREAD_MAX_BYTES: u64 = 64 << 10;
/// A target may close its connection while a request is on its way. A request that may not be
/// repeated is sent only to a target that has answered so recently. Servers keep an unused
/// connection for longer.
const RECENT: Duration = Duration::from_secs(1);

/// What a client's connection keeps from one request to the next.
#[derive(Default)]
pub(super) struct Kept {
    /// The number of requests so far.
    pub(super) requests: u32,
    pub(super) target: Option<HttpTarget>,
    /// The buckets of the connection.
    pub(super) rates: Option<SessionRates>,
    /// The rest of the last request's body, which is still to be read.
    pub(super) unread: Option<Remaining>,
}

/// A connection to the target of HTTP requests.
pub(super) struct HttpTarget {
    pub(super) stream: Stream,
    pub(super) name: Target,
    /// The user whose rules have allowed the target.
    pub(super) user: Option<Box<[u8]>>,
    pub(super) address: Option<SocketAddr>,
    pub(super) own: Option<Box<OwnDial>>,
    /// The HTTP proxy at the other end, which awaits the request in place of the target.
    pub(super) proxy: Option<Box<UpstreamProxy>>,
    pub(super) last_used: Instant,
}

impl Kept {
    /// Returns the part of a refused request's body that must be read before the next request.
    /// Returns `None` if the connection must close.
    pub(super) fn unread_body(&self, exchange: &Exchange) -> Option<Remaining> {
        exchange.unread_body(UNREAD_MAX_BYTES).filter(|_| self.may_go_on())
    }

    /// Returns whether another request may follow the one that is being served.
    pub(super) fn may_go_on(&self) -> bool {
        self.requests + 1 < REQUESTS_MAX
    }
}

impl HttpTarget {
    /// Returns whether a request of `user` for `target` may use this connection.
    pub(super) fn may_serve(&mut self, target: &Target, user: Option<&[u8]>, exchange: &Exchange) -> bool {
        let is_same = self.name == *target && self.user.as_deref() == user;
        is_same && (exchange.may_repeat() || self.last_used.elapsed() < RECENT) && self.is_quiet()
    }

    /// Waits until the target sends something or ends the connection, which then cannot be used
    /// again. Waits forever without a target.
    pub(super) async fn speaks(this: Option<&mut Self>) {
        match this {
            Some(target) => drop(poll_fn(|cx| poll_read(&mut target.stream, cx)).await),
            None => pending().await,
        }
    }

    /// Returns whether the target has sent nothing since its last answer. If it has, the bytes
    /// could pass for the answer to the next request.
    fn is_quiet(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        let is_pending = poll_read(&mut self.stream, &mut cx).is_pending();
        // The runtime may not have heard of the last bytes yet.
        let received = recv(&self.stream, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        is_pending && received.err() == Some(Errno::AGAIN)
    }
}

/// Reads one byte or the end.
fn poll_read(stream: &mut Stream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
    Pin::new(stream).poll_read(cx, &mut ReadBuf::new(&mut [0]))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn exchange(is_idempotent: bool) -> Exchange {
        Exchange {
            reuse: spliceway_protocol::http::Reuse::KeepAlive,
            is_head: false,
            is_connect: false,
            reads_chunks: true,
            is_idempotent,
            expects_continue: false,
            body: spliceway_protocol::http::Body::Bytes(0),
        }
    }

    /// Returns a connection to a target, and its other end.
    async fn connected(user: Option<&str>) -> (HttpTarget, std::net::TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = tokio::net::TcpStream::connect(listener.local_addr().unwrap());
        let target = HttpTarget {
            stream: Stream::Tcp(stream.await.unwrap()),
            name: Target::Name("a.test".into(), 80),
            user: user.map(|user| user.as_bytes().into()),
            address: None,
            own: None,
            proxy: None,
            last_used: Instant::now(),
        };
        (target, listener.accept().unwrap().0)
    }

    #[tokio::test]
    async fn a_connection_serves_its_target_and_its_user() {
        let (mut target, _peer) = connected(Some("ann")).await;
        let name = |name: &str, port| Target::Name(name.into(), port);
        for (name, user, serves) in [
            (name("a.test", 80), Some("ann"), true),
            (name("a.test", 81), Some("ann"), false),
            (name("b.test", 80), Some("ann"), false),
            (name("a.test", 80), Some("eve"), false),
            (name("a.test", 80), None, false),
        ] {
            let user = user.map(str::as_bytes);
            assert_eq!(
                target.may_serve(&name, user, &exchange(true)),
                serves,
                "{name} {user:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_request_that_may_not_be_repeated_needs_a_recent_answer() {
        let (mut target, _peer) = connected(None).await;
        let name = Target::Name("a.test".into(), 80);
        for (unused, serves) in [(Duration::ZERO, true), (RECENT * 2, false)] {
            target.last_used = Instant::now() - unused;
            assert_eq!(target.may_serve(&name, None, &exchange(false)), serves, "{unused:?}");
            assert!(target.may_serve(&name, None, &exchange(true)));
        }
    }

    /// The bytes arrive after the last event of the runtime.
    #[tokio::test]
    async fn a_target_that_has_just_spoken_serves_no_request() {
        let (mut target, mut peer) = connected(None).await;
        let name = Target::Name("a.test".into(), 80);
        assert!(target.may_serve(&name, None, &exchange(true)));
        peer.write_all(b"x").unwrap();
        assert!(!target.may_serve(&name, None, &exchange(true)));
    }
}
