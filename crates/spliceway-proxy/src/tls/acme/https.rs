//! The requests to the directory, over TLS that is verified.

use std::error::Error;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderMap, HeaderValue, RETRY_AFTER};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use instant_acme::{BodyWrapper, BytesResponse, HttpClient};
use parking_lot::Mutex;
use spliceway_protocol::address::Target;
use tokio::time::timeout;

use super::settings::with_own_key;
use crate::net::records::Records;
use crate::net::stream::Stream;
use crate::tls::client::{Originator, PeerName};

/// The time limit for one request, with its connection.
const REQUEST_TIME: Duration = Duration::from_secs(30);
/// The longest answer. A chain of certificates has a few KiB.
const ANSWER_MAX_BYTES: usize = 256 << 10;
const HTTPS_PORT: u16 = 443;

/// Connects to a target, as the service connects to its own.
pub(crate) type Connect = Arc<dyn Fn(Target) -> Connecting + Send + Sync>;
pub(super) type Connecting = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

type Failure = Box<dyn Error + Send + Sync>;

/// Sends the requests of a try.
#[derive(Clone)]
pub(super) struct Https {
    pub(super) connect: Connect,
    pub(super) originator: Arc<Originator>,
    /// The time before which the server wants no other try.
    pub(super) retry_after: Arc<Mutex<Option<SystemTime>>>,
}

impl HttpClient for Https {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, instant_acme::Error>> + Send>> {
        let this = self.clone();
        Box::pin(async move {
            let uri = request.uri().clone();
            let answer = match timeout(REQUEST_TIME, this.exchange(request)).await {
                Ok(answer) => answer,
                Err(_) => Err(format!("no answer within {} s", REQUEST_TIME.as_secs()).into()),
            };
            let answer = answer.map_err(|why| {
                let why = format!("the request to {uri} failed: {why}");
                instant_acme::Error::Other(why.into())
            })?;
            Ok(BytesResponse::from(answer))
        })
    }
}

impl Https {
    async fn exchange(&self, mut request: Request<BodyWrapper<Bytes>>) -> Result<Response<Full<Bytes>>, Failure> {
        let (uri, is_get) = (std::mem::take(request.uri_mut()), request.method() == Method::GET);
        if uri.scheme_str() != Some("https") {
            return Err("expected a URL that begins with https://".into());
        }
        let authority = uri.authority().ok_or("the URL has no host")?;
        let host = authority.host().trim_matches(['[', ']']);
        let target = Target::named(host, authority.port_u16().unwrap_or(HTTPS_PORT));
        let target = target.ok_or("the host is not valid")?;
        let name = PeerName::of(&target);
        let stream = (self.connect)(target).await?;
        let stream = Records::of_silent(stream, false);
        let connected = self.originator.connect_to_target(stream, &name, None, false).await;
        let (stream, _) = connected.map_err(|why| with_own_key(&why))?;
        *request.uri_mut() = uri.path_and_query().map_or("/", |path| path.as_str()).parse::<Uri>()?;
        request
            .headers_mut()
            .insert(HOST, HeaderValue::from_str(authority.as_str())?);
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let mut exchange = pin!(async { receive(sender.send_request(request).await?).await });
        let answer = tokio::select! {
            answer = &mut exchange => answer,
            // The server may close the connection after the last byte.
            _ = connection => exchange.await,
        }?;
        let is_refused = [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE].contains(&answer.status());
        if is_refused && let Some(asked) = asked(answer.headers(), SystemTime::now()) {
            *self.retry_after.lock() = Some(asked);
        }
        // The library takes every answer to GET for a directory. Other answers tell what is wrong.
        if is_get && !answer.status().is_success() {
            return Err(format!("the server answers {}", answer.status()).into());
        }
        Ok(answer)
    }
}

/// Receives an answer whole.
async fn receive(answer: Response<Incoming>) -> Result<Response<Full<Bytes>>, Failure> {
    let (head, body) = answer.into_parts();
    let body = Limited::new(body, ANSWER_MAX_BYTES).collect().await?;
    Ok(Response::from_parts(head, Full::new(body.to_bytes())))
}

/// Returns the time of `Retry-After`: a number of seconds, or a date.
fn asked(head: &HeaderMap, now: SystemTime) -> Option<SystemTime> {
    let text = head.get(RETRY_AFTER)?.to_str().ok()?.trim();
    match text.parse::<u32>() {
        Ok(seconds) => now.checked_add(Duration::from_secs(seconds.into())),
        Err(_) => httpdate::parse_http_date(text).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_asks_to_wait_by_seconds_or_by_a_date() {
        let now = SystemTime::UNIX_EPOCH;
        for (text, expected) in [
            ("120", Some(120)),
            ("Thu, 01 Jan 1970 01:00:00 GMT", Some(3600)),
            ("soon", None),
            ("-5", None),
        ] {
            let mut head = HeaderMap::new();
            head.insert(RETRY_AFTER, HeaderValue::from_static(text));
            let expected = expected.map(|seconds| now + Duration::from_secs(seconds));
            assert_eq!(asked(&head, now), expected, "{text}");
        }
    }
}
