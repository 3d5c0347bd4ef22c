//! Relays one HTTP request and its answer.
//!
//! ```text
//!   request with a body ─▶ send_request ─┐
//!                                        ├─▶ rest of the answer ─┬─ at its end ─▶ next request
//!   answer's head was read ──────────────┘                       └─ otherwise ──▶ closed
//! ```

use std::sync::Arc;

use spliceway::{EndReason, Engine, Operation, Peer, RelayError, RelayOptions, RelaySummary};
use tokio::io::{AsyncRead, AsyncWrite, join};
use tokio::time::Instant;

use super::answering::{Answering, Failed, Upload};
use super::ends::{new_relay, options, pass_truncations};
use super::kernel::stay;
use super::plain::pass_reset;
use super::request_body::RequestBody;
use crate::access::rates::SessionRates;
use crate::kit::outcome::{Outcome, SessionEnd};
use crate::net::stream::Stream;
use crate::session::admit::Admitted;
use crate::session::byte_counter::{ByteCounter, ByteSource, counted};
use crate::session::guard::Guard;
use crate::session::kept::HttpTarget;
use crate::session::linger::{finish_and_linger, linger};
use crate::session::next_request::Ended;
use crate::session::record::Record;
use spliceway_protocol::http::{self, Answer, Followed, Remaining, Reuse};

/// A request, and the part of its answer that was read before the relay starts.
pub(in crate::session) struct Exchange {
    pub(in crate::session) admitted: Admitted,
    pub(in crate::session) target: HttpTarget,
    pub(in crate::session) rates: SessionRates,
    pub(in crate::session) request: http::Exchange,
    /// The part of the request that was read and not sent.
    pub(in crate::session) up: Vec<u8>,
    /// The part of the request that was not read.
    pub(in crate::session) rest: Remaining,
    /// The head of the answer for the client, if the target has the whole request.
    pub(in crate::session) answer: Option<(Vec<u8>, Followed)>,
    /// Further bytes of the answer.
    pub(in crate::session) early: Vec<u8>,
}

/// The kernel takes over TLS only from relays that do not look at the bytes.
const NOT_IN_KERNEL: &str = "HTTP requests keep their TLS in user space";

/// How a relay ended.
type RelayEnd = Result<RelaySummary, RelayError>;

impl Exchange {
    /// Relays a request and its answer. A client that may not send another request gets time to
    /// read the answer.
    pub(in crate::session) async fn run(mut self, record: &mut Record) -> Ended {
        let options = options(
            record.guard.service().relays.clone(),
            &self.rates,
            self.admitted.client.get_ref(),
            &self.target.stream,
        );
        let ends = [self.admitted.client.get_mut(), &mut self.target.stream];
        ends.into_iter().for_each(stay);
        pass_truncations(self.admitted.client.get_mut(), &mut self.target.stream);
        let is_in_chunks = matches!(self.rest, Remaining::Chunks(_));
        let guard = &mut record.guard;
        let (answer, early) = (self.answer.take(), std::mem::take(&mut self.early));
        let (answered, failed, early) = match answer {
            Some(answer) => (Ok(answer), None, early),
            None => {
                let (answered, failed) = self.send_request(&early, &options, guard).await;
                (answered, failed, Vec::new())
            }
        };
        let (followed, ended) = match answered {
            Ok((heads, followed)) => self.read_answer(heads, &early, followed, options, guard).await,
            Err(ended) => (Followed::LAST, ended),
        };
        record.observe(self.admitted.client.get_ref(), &self.target.stream);
        if followed.body.is_over() {
            return self.finish(&followed, record).await;
        }
        let (client, target) = (self.admitted.client.into_inner(), self.target.stream);
        let outcome = close(client, target, is_in_chunks, ended, record).await;
        match failed {
            Some(failed) if outcome.end != SessionEnd::Drained => failed.outcome().into(),
            _ => outcome.into(),
        }
    }

    /// Relays the request and the head of its answer. Returns what follows the head if another
    /// relay can continue, and how the target failed if the client got an answer of the proxy.
    async fn send_request(
        &mut self,
        early: &[u8],
        options: &RelayOptions,
        guard: &mut Guard,
    ) -> (Result<(Vec<u8>, Followed), RelayEnd>, Option<Failed>) {
        let upload = Arc::new(Upload::default());
        let sending = Sending {
            client: self.admitted.client.get_mut(),
            request: self.request,
            up: std::mem::take(&mut self.up),
            rest: std::mem::replace(&mut self.rest, Remaining::Bytes(0)),
            early,
            upload: &upload,
        };
        let ended = match &mut self.target.stream {
            Stream::Tcp(target) => sending.relay(target.split(), options, guard).await,
            Stream::Tls(target) => {
                let halves = tokio::io::split(&mut **target);
                Box::pin(sending.relay(halves, options, guard)).await
            }
            Stream::Unix(_) => unreachable!("no client can name a Unix socket"),
            Stream::Kernel(_) => unreachable!("{NOT_IN_KERNEL}"),
        };
        let answered = match (ended, upload.take_followed()) {
            (Ok(_), Some(followed)) => {
                self.admitted.client.put_back(upload.take_put_back());
                Ok((Vec::new(), followed))
            }
            (ended, _) => Err(ended),
        };
        (answered, upload.take_failure())
    }

    /// Relays the rest of the answer and reads no further bytes from the client. Returns what is
    /// left of the answer, which is nothing if it is complete.
    async fn read_answer(
        &mut self,
        heads: Vec<u8>,
        early: &[u8],
        followed: Followed,
        options: RelayOptions,
        guard: &mut Guard,
    ) -> (Followed, RelayEnd) {
        let options = options.a_to_b_limit(0);
        let client = self.admitted.client.get_mut();
        let answer = (heads, early, followed);
        match &mut self.target.stream {
            Stream::Tcp(target) => read_answer(client, target, answer, options, guard).await,
            Stream::Tls(target) => Box::pin(read_answer(client, &mut **target, answer, options, guard)).await,
            Stream::Unix(_) => unreachable!("no client can name a Unix socket"),
            Stream::Kernel(_) => unreachable!("{NOT_IN_KERNEL}"),
        }
    }

    /// Ends a request whose answer is complete.
    async fn finish(mut self, followed: &Followed, record: &mut Record) -> Ended {
        let outcome = match followed.refused {
            None => Outcome::from(SessionEnd::Answered),
            Some(why) => Outcome::because(SessionEnd::BadAnswer, &why.as_str()),
        };
        if !followed.keeps_client || record.guard.is_closed() {
            drop(self.target);
            let limit = record.guard.service().settings.timeouts.half_close;
            finish_and_linger(&mut self.admitted.client, limit).await;
            return outcome.into();
        }
        if followed.keeps_target {
            let target = HttpTarget {
                own: record.guard.take_own(),
                last_used: Instant::now(),
                ..self.target
            };
            self.admitted.kept.get_or_insert_default().target = Some(target);
        }
        let kept = Some(self.admitted.keep(Remaining::Bytes(0)));
        Ended { outcome, kept }
    }
}

/// Ends a session whose answer did not end before its connection.
async fn close(
    mut client: Stream,
    target: Stream,
    is_in_chunks: bool,
    ended: RelayEnd,
    record: &mut Record,
) -> Outcome {
    if let Err(error) = &ended {
        // The lost bytes are part of a body that the target did not read.
        let is_early_answer = error.summary.a_to_b.lost > 0;
        let is_cut = error.peer() == Peer::B && error.operation == Operation::Read && !is_early_answer;
        match client {
            Stream::Tcp(client) if is_in_chunks && is_cut => {
                drop(target);
                spliceway::reset(client).await;
            }
            Stream::Tls(_) if is_cut => pass_reset(target, client).await,
            _ => {}
        }
    } else if ended.as_ref().is_ok_and(|summary| summary.first_eof == Some(Peer::B)) {
        drop(target);
        // After any other end, only closing the connection shows the client that the answer is
        // over.
        linger(&mut client, record.guard.service().settings.timeouts.half_close).await;
    }
    ended.into()
}

/// A request whose body is being sent.
struct Sending<'a> {
    client: &'a mut Stream,
    request: http::Exchange,
    up: Vec<u8>,
    rest: Remaining,
    early: &'a [u8],
    upload: &'a Arc<Upload>,
}

impl Sending<'_> {
    async fn relay<R, W>(self, (reader, writer): (R, W), options: &RelayOptions, guard: &mut Guard) -> RelayEnd
    where
        R: AsyncRead + Send + Unpin,
        W: AsyncWrite + Unpin,
    {
        let sent = self.up.len() as u64;
        let (upload, service) = (self.upload, Arc::clone(guard.service()));
        let (answer, may_keep) = (Answer::to(self.request), move || service.keeps_clients());
        let answer = Answering::new(reader, answer, self.early, Arc::clone(upload), may_keep);
        let answer: Box<dyn AsyncRead + Send + Unpin + '_> = Box::new(answer);
        let target = join(answer, writer);
        let options = through_user_space(options.clone(), guard).a_to_b_prefix(self.up);
        let is_last = self.request.reuse == Reuse::Close;
        match (self.rest, self.client) {
            // After the body, the next request may be in the buffer. Nothing is read behind it.
            (Remaining::Chunks(chunks), client) if is_last || !chunks.are_over() => {
                let (reader, writer) = tokio::io::split(client);
                let body = RequestBody::new(reader, chunks, sent, Arc::clone(upload), is_last);
                relay_parsed(join(body, writer), target, options, upload, guard).await
            }
            (rest, client) => {
                let left = match rest {
                    Remaining::Bytes(left) => left,
                    Remaining::UntilClose | Remaining::Chunks(_) => 0,
                };
                upload.set_total(sent + left);
                let options = options.a_to_b_limit(left);
                relay_parsed_to(client, target, options, upload, guard).await
            }
        }
    }
}

/// Returns options for a relay of which one part must pass through user space, even with
/// `--splice on`.
fn through_user_space(options: RelayOptions, guard: &Guard) -> RelayOptions {
    match guard.service().settings.engine {
        Engine::Splice => options.engine(Engine::Auto),
        engine => options.engine(engine),
    }
}

async fn relay_parsed_to<B>(
    client: &mut Stream,
    target: B,
    options: RelayOptions,
    upload: &Upload,
    guard: &mut Guard,
) -> RelayEnd
where
    B: AsyncRead + AsyncWrite + Unpin,
{
    match client {
        Stream::Tcp(client) => relay_parsed(client, target, options, upload, guard).await,
        Stream::Unix(client) => relay_parsed(client, target, options, upload, guard).await,
        Stream::Tls(client) => relay_parsed(client, target, options, upload, guard).await,
        Stream::Kernel(_) => unreachable!("{NOT_IN_KERNEL}"),
    }
}

/// Relays, and lets a parser of what passes end the relay.
async fn relay_parsed<A, B>(client: A, target: B, options: RelayOptions, upload: &Upload, guard: &mut Guard) -> RelayEnd
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let mut relay = new_relay(client, target, options, None, guard);
    upload.set_relay(relay.stats(), relay.cancel_handle());
    let counter = ByteCounter::new(guard.session(), ByteSource::Relay(relay.stats()));
    counted(counter, relay).await
}

/// Relays an answer, of which the head for the client and further bytes were read. Returns what is
/// left of the answer.
async fn read_answer<B: AsyncRead + AsyncWrite + Send + Unpin>(
    client: &mut Stream,
    target: &mut B,
    (heads, early, mut followed): (Vec<u8>, &[u8], Followed),
    options: RelayOptions,
    guard: &mut Guard,
) -> (Followed, RelayEnd) {
    if let Remaining::Chunks(_) = followed.body {
        let upload = Arc::new(Upload::default());
        let (reader, writer) = tokio::io::split(target);
        let answer = Answering::<_, fn() -> bool>::rest(reader, followed, early, Arc::clone(&upload));
        let answer: Box<dyn AsyncRead + Send + Unpin + '_> = Box::new(answer);
        let options = through_user_space(options, guard).b_to_a_prefix(heads);
        let ended = relay_parsed_to(client, join(answer, writer), options, &upload, guard).await;
        let followed = upload.take_followed().filter(|_| ended.is_ok());
        return (followed.unwrap_or(Followed::LAST), ended);
    }
    let body = followed.take(early).unwrap_or(0);
    let mut options = options.b_to_a_prefix([&heads[..], &early[..body]].concat());
    if let Remaining::Bytes(left) = followed.body {
        options = options.b_to_a_limit(left);
    }
    let ended = match client {
        Stream::Tcp(client) => relay_answer(client, target, options, guard).await,
        Stream::Unix(client) => relay_answer(client, target, options, guard).await,
        Stream::Tls(client) => relay_answer(client, target, options, guard).await,
        Stream::Kernel(_) => unreachable!("{NOT_IN_KERNEL}"),
    };
    let is_whole = |end: &RelaySummary| end.end == EndReason::Ended && end.first_eof.is_none();
    match &mut followed.body {
        Remaining::Bytes(left) if ended.as_ref().is_ok_and(is_whole) => *left = 0,
        body => *body = Remaining::UntilClose,
    }
    (followed, ended)
}

async fn relay_answer<A, B>(client: A, target: &mut B, options: RelayOptions, guard: &mut Guard) -> RelayEnd
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let relay = new_relay(client, target, options, None, guard);
    let counter = ByteCounter::new(guard.session(), ByteSource::Relay(relay.stats()));
    counted(counter, relay).await
}
