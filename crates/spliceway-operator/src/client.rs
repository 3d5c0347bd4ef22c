//! One request to the admin socket of a running program.

use std::borrow::Cow;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;
use std::{fmt, io};

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::http::request::Builder;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde_json::Value;
use spliceway_protocol::address::system_path;
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::api::Reply;
use crate::text::harmless;

/// The time limit for one answer, except that of an upgrade.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// The longest answer. A page of 1,000 sessions has about 350 KiB.
const ANSWER_MAX_BYTES: usize = 16 << 20;

/// Why a command has failed, as a sentence.
#[derive(Debug)]
pub struct Error {
    why: String,
    is_fault: bool,
}

impl Error {
    pub(crate) fn new(why: &str) -> Self {
        Self {
            why: why.to_owned(),
            is_fault: false,
        }
    }

    pub(crate) fn unexpected(socket: &Path, error: &dyn fmt::Display) -> Self {
        Self::new(&format!("{}: unexpected answer: {error}", socket.display()))
    }

    /// Returns whether the program has found a fault in a configuration that the command has sent.
    #[must_use]
    pub fn is_fault(&self) -> bool {
        self.is_fault
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for Error {}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::new(&error.to_string())
    }
}

/// Sends a request without a body and returns the JSON of its answer.
///
/// # Errors
/// Returns a sentence if there is no answer, or if the program refuses the request.
pub(crate) async fn request(socket: &Path, method: Method, path: &str, patience: Duration) -> Result<Bytes, Error> {
    send(socket, head(method, path), Bytes::new(), patience).await
}

/// Returns the head of a request.
pub(crate) fn head(method: Method, path: &str) -> Builder {
    Request::builder().method(method).uri(path).header(HOST, "localhost")
}

async fn send(socket: &Path, head: Builder, body: Bytes, patience: Duration) -> Result<Bytes, Error> {
    let answered = timeout(patience, exchange(socket, head, body)).await;
    let (status, body) = answered.unwrap_or_else(|_| {
        let path = socket.display();
        Err(Error::new(&format!("{path}: no answer within {}s", patience.as_secs())))
    })?;
    if status.is_success() {
        return Ok(body);
    }
    let why = match serde_json::from_slice(&body) {
        _ if status == StatusCode::UNAUTHORIZED && AUTHORIZATION.get().is_none() => {
            "this socket needs a token: give one in the file of --token-file, or in SPLICEWAY_TOKEN".to_owned()
        }
        _ if status == StatusCode::UNAUTHORIZED => "the program does not know this token, or not any more".to_owned(),
        Ok(Reply::Error(why)) => lines(&why),
        _ => format!("{}: unexpected answer {status}", socket.display()),
    };
    let is_fault = status == StatusCode::UNPROCESSABLE_ENTITY;
    Err(Error { why, is_fault })
}

/// Sends a GET request and returns its answer.
///
/// # Errors
/// As [`request`], and if the answer has another form than expected.
pub(crate) async fn get<T: DeserializeOwned>(socket: &Path, path: &str) -> Result<T, Error> {
    let body = request(socket, Method::GET, path, PATIENCE).await?;
    parse(&body).map_err(|error| Error::unexpected(socket, &error))
}

/// Sends an order and returns what the program has done, as a sentence.
///
/// # Errors
/// As [`get`].
pub(crate) async fn order(socket: &Path, method: Method, path: &str, patience: Duration) -> Result<String, Error> {
    order_with(socket, head(method, path), Bytes::new(), patience).await
}

/// Sends an order with a body, and returns what the program has done, as a sentence.
///
/// # Errors
/// As [`get`].
pub(crate) async fn order_with(socket: &Path, head: Builder, body: Bytes, patience: Duration) -> Result<String, Error> {
    let body = send(socket, head, body, patience).await?;
    match serde_json::from_slice(&body) {
        Ok(Reply::Done(done)) => Ok(lines(&done)),
        Ok(Reply::Error(why)) => Err(Error::new(&lines(&why))),
        Err(error) => Err(Error::unexpected(socket, &error)),
    }
}

/// Returns the value of an answer. Its texts may come from clients of the program, so they have no
/// character that changes what a terminal shows elsewhere.
pub(crate) fn parse<T: DeserializeOwned>(json: &[u8]) -> serde_json::Result<T> {
    let mut value = serde_json::from_slice(json)?;
    make_harmless(&mut value);
    serde_json::from_value(value)
}

/// Returns harmless lines. A fault or a warning has a line of its own.
fn lines(text: &str) -> String {
    text.lines().map(harmless).collect::<Vec<_>>().join("\n")
}

/// The header with the token of the operator. A process has one command, for one program.
static AUTHORIZATION: OnceLock<hyper::header::HeaderValue> = OnceLock::new();

/// Sends this token with each request.
///
/// # Errors
/// Returns a sentence if the text cannot be in a header. It does not repeat the text.
pub(crate) fn authorize(token: &str) -> Result<(), Error> {
    let header = hyper::header::HeaderValue::try_from(format!("Bearer {token}"));
    let mut header = header.map_err(|_| Error::new("the token has characters that no token has"))?;
    header.set_sensitive(true);
    let _ = AUTHORIZATION.set(header);
    Ok(())
}

/// Returns the request with the token of the operator, if there is one.
fn authorized(mut request: Request<Full<Bytes>>) -> Request<Full<Bytes>> {
    if let Some(token) = AUTHORIZATION.get() {
        let headers = request.headers_mut();
        headers.insert(hyper::header::AUTHORIZATION, token.clone());
    }
    request
}

fn make_harmless(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Cow::Owned(shown) = harmless(text) {
                *text = shown;
            }
        }
        Value::Array(values) => values.iter_mut().for_each(make_harmless),
        // The keys are in no answer that is shown: unknown ones are skipped.
        Value::Object(values) => values.values_mut().for_each(make_harmless),
        _ => {}
    }
}

fn unreachable(socket: &Path, error: &io::Error) -> Error {
    let path = socket.display();
    Error::new(&match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => format!(
            "{path}: no program has its admin socket here. If the program runs with another one (its --admin, or \
             `socket` in [admin]), give that path as --admin or SPLICEWAY_ADMIN. If it has none, start it with one"
        ),
        io::ErrorKind::PermissionDenied => format!("{path}: {error}: run this as the program's user or as root"),
        _ => format!("{path}: {error}"),
    })
}

async fn exchange(socket: &Path, head: Builder, body: Bytes) -> Result<(StatusCode, Bytes), Error> {
    let named = |error: &dyn fmt::Display| Error::new(&format!("{}: {error}", socket.display()));
    let stream = UnixStream::connect(system_path(socket))
        .await
        .map_err(|error| unreachable(socket, &error))?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| named(&error))?;
    let request = head.body(Full::new(body)).map_err(|error| named(&error))?;
    let answered = async {
        let answer = sender
            .send_request(authorized(request))
            .await
            .map_err(|error| named(&error))?;
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, ANSWER_MAX_BYTES).collect().await;
        Ok((head.status, body.map_err(|error| named(&error))?.to_bytes()))
    };
    let mut answered = std::pin::pin!(answered);
    tokio::select! {
        biased;
        answered = &mut answered => answered,
        // The connection ends with the last byte of the answer, which may still be unread.
        _ = connection => answered.await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_cannot_be_reached_has_its_remedy() {
        let said = |kind: io::ErrorKind| unreachable(Path::new("/run/a.sock"), &kind.into()).to_string();
        let wrong =
            "/run/a.sock: no program has its admin socket here. If the program runs with another one (its --admin, ";
        assert!(said(io::ErrorKind::NotFound).starts_with(wrong));
        assert!(said(io::ErrorKind::ConnectionRefused).starts_with(wrong));
        let denied = said(io::ErrorKind::PermissionDenied);
        assert_eq!(
            denied,
            "/run/a.sock: permission denied: run this as the program's user or as root"
        );
    }
}
