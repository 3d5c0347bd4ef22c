//! A small HTTP server for operators: one request per connection, few connections, and a deadline.

use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::access::admission::{Admission, SessionPermit};
use crate::kit::client_key::ClientKey;
use crate::kit::clock;
use crate::net::listener::{Accepted, Listener};
use crate::session::Process;

/// The limit on connections. It is low, because scrapers and probes are few. A further connection
/// replaces another one ([`OpenConnections`]). While a client floods the listener, a probe from the
/// same address must send its head before this many newer connections are accepted.
const CONNECTIONS_MAX: usize = 64;
/// The longest request head. Scrapers and probes send one line and a few fields.
const HEAD_MAX_BYTES: usize = 16 << 10;

/// The answer while the clock of the system is before 1970 or after 9999.
const NO_DATE: &[u8] =
    b"HTTP/1.1 500 Internal Server Error\r\nConnection: close\r\n\r\nthe clock of the system has no valid date\n";

pub(super) const PLAIN: &str = "text/plain; charset=utf-8";

pub(super) type Answer = Response<Full<Bytes>>;

/// Answers requests.
pub(super) trait Answers: Send + Sync + 'static {
    /// The time limit from accept to the last byte of the answer.
    const DEADLINE: Duration;

    fn answer(&self, request: Request<Incoming>) -> impl Future<Output = Answer> + Send;
}

/// Answers requests until the process ends. It also answers during a drain, so that the last counts
/// can be read.
///
/// While another process takes over, clients wait in the backlog, or are answered there.
pub(super) async fn serve(listener: Arc<Listener>, answers: Arc<impl Answers>, process: Arc<Process>) {
    // One permit more than the limit is for a connection that has been replaced and is not
    // closed yet.
    let admission = Admission::new("connections of operators", CONNECTIONS_MAX + 1, None);
    let open = Arc::new(OpenConnections::default());
    let serve = |accepted: Accepted, permit: SessionPermit| {
        let client = accepted.peer.map(|peer| ClientKey::from(peer.ip()));
        let connection = OpenConnections::enter(&open, client);
        let answers = Arc::clone(&answers);
        let number = connection.number;
        let connection = tokio::spawn(async move {
            answer_one(accepted.stream, &*answers, &connection).await;
            drop((connection, permit));
        });
        open.may_close(number, connection.abort_handle());
    };
    let failed = |errno| process.metrics.accept_failed(errno);
    let gate = &process.gate;
    gate.accept(&listener, &admission, &failed, std::future::pending(), serve)
        .await;
}

/// Answers one request within the deadline. The connection is then closed.
async fn answer_one<S, A>(mut stream: S, answers: &A, connection: &OpenConnection)
where
    S: AsyncRead + AsyncWrite + Unpin,
    A: Answers,
{
    // hyper has a date in each answer, and panics if there is none.
    if !clock::has_date(SystemTime::now()) {
        let refuse = async {
            // A request that is not read would reset the connection.
            let mut head = Vec::with_capacity(HEAD_MAX_BYTES);
            while head.len() < HEAD_MAX_BYTES && !head.ends_with(b"\r\n\r\n") && stream.read_buf(&mut head).await? > 0 {
            }
            stream.write_all(NO_DATE).await
        };
        let _ = timeout(A::DEADLINE, refuse).await;
        return;
    }
    let answer = service_fn(|request: Request<Incoming>| {
        connection.has_head.store(true, Ordering::Relaxed);
        async { Ok::<_, Infallible>(answers.answer(request).await) }
    });
    let connection = http1::Builder::new()
        .keep_alive(false)
        // A client such as `nc -N` closes its side after the request, and waits for the answer.
        .half_close(true)
        .max_buf_size(HEAD_MAX_BYTES)
        .serve_connection(TokioIo::new(stream), answer);
    // A client that is slow or disconnects gets no answer.
    let _ = timeout(A::DEADLINE, connection).await;
}

/// The open connections. At the limit, a new connection replaces another one.
///
/// The client with the most connections loses one of them, so that a flood closes no connection of
/// a client with few. It is the oldest one that has not sent its whole request head, or else the
/// oldest.
#[derive(Default)]
struct OpenConnections(Mutex<Taken>);

#[derive(Default)]
struct Taken {
    next: u64,
    /// The connections by number, so the oldest is first.
    connections: BTreeMap<u64, Connection>,
}

struct Connection {
    /// The client. `None` for a client of a Unix socket.
    client: Option<ClientKey>,
    has_head: Arc<AtomicBool>,
    task: Option<AbortHandle>,
}

/// One connection in [`OpenConnections`]. Dropping it removes the connection.
struct OpenConnection {
    number: u64,
    has_head: Arc<AtomicBool>,
    open: Arc<OpenConnections>,
}

impl OpenConnections {
    fn enter(open: &Arc<Self>, client: Option<ClientKey>) -> OpenConnection {
        let mut taken = open.0.lock();
        if taken.connections.len() >= CONNECTIONS_MAX {
            taken.close_one();
        }
        let (number, has_head) = (taken.next, Arc::new(AtomicBool::new(false)));
        taken.next += 1;
        let connection = Connection {
            client,
            has_head: Arc::clone(&has_head),
            task: None,
        };
        taken.connections.insert(number, connection);
        OpenConnection {
            number,
            has_head,
            open: Arc::clone(open),
        }
    }

    /// Records the task of connection `number`, if the connection is still open.
    fn may_close(&self, number: u64, task: AbortHandle) {
        if let Some(connection) = self.0.lock().connections.get_mut(&number) {
            connection.task = Some(task);
        }
    }
}

impl Taken {
    fn close_one(&mut self) {
        let mut held = HashMap::<_, usize>::new();
        for connection in self.connections.values() {
            *held.entry(connection.client).or_default() += 1;
        }
        let first = self.connections.iter().min_by_key(|(number, connection)| {
            let has_head = connection.has_head.load(Ordering::Relaxed);
            (Reverse(held[&connection.client]), has_head, **number)
        });
        let number = first.map(|(number, _)| *number);
        let connection = number.and_then(|number| self.connections.remove(&number));
        if let Some(task) = connection.and_then(|connection| connection.task) {
            task.abort();
        }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.open.0.lock().connections.remove(&self.number);
    }
}

/// Returns an answer with this body.
pub(super) fn response(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    set(&mut response, CONTENT_TYPE, content_type);
    response
}

/// Sets a header field.
///
/// # Panics
/// Panics if the value is not valid in a header. Values are constants, or have only letters and
/// digits.
pub(super) fn set(answer: &mut Answer, name: HeaderName, value: &str) {
    let value = HeaderValue::from_str(value).expect("a valid value");
    answer.headers_mut().insert(name, value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;
    use std::pin::pin;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::Instant;

    const DEADLINE: Duration = Duration::from_secs(10);

    /// Answers everything with 1 KiB.
    struct Example;

    impl Answers for Example {
        const DEADLINE: Duration = DEADLINE;

        async fn answer(&self, _: Request<Incoming>) -> Answer {
            response(StatusCode::OK, PLAIN, vec![b'a'; 1024])
        }
    }

    /// Returns how long a client keeps its connection if it sends `sent` and never reads. The
    /// connection buffers 64 bytes.
    async fn held_by(sent: &[u8]) -> Duration {
        let connection = OpenConnections::enter(&Arc::default(), None);
        let (mut client, stream) = duplex(64);
        let started = Instant::now();
        let mut answered = pin!(answer_one(stream, &Example, &connection));
        tokio::select! {
            () = &mut answered => {}
            written = client.write_all(sent) => {
                written.unwrap();
                answered.await;
            }
        }
        started.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_sends_no_head_or_reads_no_answer_has_a_deadline() {
        for sent in [&b""[..], b"GET /metr", b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"] {
            let held = held_by(sent).await;
            assert!(held >= DEADLINE && held < DEADLINE * 2, "{held:?}");
        }
    }

    #[tokio::test]
    async fn an_answer_ends_the_connection() {
        let connection = OpenConnections::enter(&Arc::default(), None);
        let (mut client, stream) = duplex(1 << 20);
        client
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
            .await
            .unwrap();
        answer_one(stream, &Example, &connection).await;
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.contains("connection: close\r\n"), "{answer}");
    }

    #[tokio::test]
    async fn a_client_that_closes_its_side_after_the_request_gets_its_answer() {
        /// Answers later than the end of the client's side arrives.
        struct Late;

        impl Answers for Late {
            const DEADLINE: Duration = DEADLINE;

            async fn answer(&self, _: Request<Incoming>) -> Answer {
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                }
                response(StatusCode::OK, PLAIN, "late\n")
            }
        }

        let connection = OpenConnections::enter(&Arc::default(), None);
        let (mut client, stream) = duplex(1 << 20);
        client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        client.shutdown().await.unwrap();
        answer_one(stream, &Late, &connection).await;
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("late\n"), "{answer:?}");
    }

    fn numbers(open: &Arc<OpenConnections>) -> Vec<u64> {
        open.0.lock().connections.keys().copied().collect()
    }

    #[test]
    fn the_oldest_without_a_head_is_replaced_then_the_oldest() {
        let open = Arc::default();
        let mut taken: Vec<_> = (0..CONNECTIONS_MAX)
            .map(|_| OpenConnections::enter(&open, None))
            .collect();
        for connection in taken.iter().filter(|connection| connection.number != 5) {
            connection.has_head.store(true, Ordering::Relaxed);
        }
        taken.push(OpenConnections::enter(&open, None));
        taken.last().unwrap().has_head.store(true, Ordering::Relaxed);
        assert!(!numbers(&open).contains(&5));
        taken.push(OpenConnections::enter(&open, None));
        assert_eq!(numbers(&open)[..2], [1, 2]);
        assert_eq!(numbers(&open).len(), CONNECTIONS_MAX);
        drop(taken);
        assert_eq!(numbers(&open), [0; 0]);
    }

    #[test]
    fn a_flood_from_a_few_addresses_closes_no_connection_of_a_client_with_one() {
        let client = |last| Some(ClientKey::from(IpAddr::from([127, 0, 0, last])));
        let open = Arc::default();
        let honest = OpenConnections::enter(&open, client(9));
        let flood: Vec<_> = (0..1000_u16)
            .map(|n| OpenConnections::enter(&open, client(n.to_le_bytes()[0] % 4)))
            .collect();
        assert!(numbers(&open).contains(&honest.number));
        assert_eq!(numbers(&open).len(), CONNECTIONS_MAX);
        drop((honest, flood));
    }
}
