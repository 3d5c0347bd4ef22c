//! The proxy's own responses.

use std::time::Duration;

use crate::Failure;

/// The response to a CONNECT request whose target was reached. The bytes after this response are
/// from the target.
pub const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// The status of one of the proxy's own responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Status {
    /// The request is not valid.
    BadRequest = 400,
    /// The proxy does not allow the target.
    Forbidden = 403,
    /// The client must authenticate first. The response offers the scheme Basic.
    AuthenticationRequired = 407,
    /// The head of the request did not arrive in time.
    RequestTimeout = 408,
    /// Too many passwords from the client's address were wrong. [`come_again`] adds the time to
    /// wait.
    TooManyRequests = 429,
    /// The head of the request is too large.
    HeadTooLarge = 431,
    /// The target could not be reached.
    BadGateway = 502,
    /// The proxy has too many passwords to check. [`come_again`] adds the time to wait.
    Unavailable = 503,
    /// The target did not answer in time.
    GatewayTimeout = 504,
    /// The request returned to a proxy that it had already passed through.
    LoopDetected = 508,
}

impl Status {
    /// Every status.
    pub const ALL: [Self; 10] = [
        Self::BadRequest,
        Self::Forbidden,
        Self::AuthenticationRequired,
        Self::RequestTimeout,
        Self::TooManyRequests,
        Self::HeadTooLarge,
        Self::BadGateway,
        Self::Unavailable,
        Self::GatewayTimeout,
        Self::LoopDetected,
    ];

    /// Returns the reason phrase, and the text of the body.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::BadRequest => ("Bad Request", "The request is not valid."),
            Self::Forbidden => ("Forbidden", "This target is not allowed, or a quota is used up."),
            Self::AuthenticationRequired => (
                "Proxy Authentication Required",
                "The proxy requires a user name and a password.",
            ),
            Self::RequestTimeout => ("Request Timeout", "The request did not arrive in time."),
            Self::TooManyRequests => (
                "Too Many Requests",
                "Too many passwords from this address were wrong. Wait, then try again.",
            ),
            Self::HeadTooLarge => (
                "Request Header Fields Too Large",
                "The head of the request is too large.",
            ),
            Self::BadGateway => ("Bad Gateway", "The target could not be reached."),
            Self::Unavailable => (
                "Service Unavailable",
                "The proxy has too many passwords to check. Try again later.",
            ),
            Self::GatewayTimeout => ("Gateway Timeout", "The target did not answer in time."),
            Self::LoopDetected => (
                "Loop Detected",
                "The request has passed here before, so it goes in a circle.",
            ),
        }
    }
}

/// Returns the whole response with this status. The response announces that the connection closes
/// after it.
pub fn response(status: Status) -> Vec<u8> {
    with_text(status, status.words().1)
}

/// Returns the whole response with this status for a client that may try again after `wait`. The
/// response states the time in whole seconds, rounded up.
pub fn come_again(status: Status, wait: Duration) -> Vec<u8> {
    let seconds = wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0));
    with_field(status, &format!("Retry-After: {seconds}\r\n"), status.words().1)
}

pub(super) fn with_text(status: Status, text: &str) -> Vec<u8> {
    let challenge = match status {
        Status::AuthenticationRequired => "Proxy-Authenticate: Basic realm=\"spliceway\", charset=\"UTF-8\"\r\n",
        _ => "",
    };
    with_field(status, challenge, text)
}

/// Returns a whole response with one more field. `field` is a whole line with its line end, or
/// empty.
fn with_field(status: Status, field: &str, text: &str) -> Vec<u8> {
    let line = format!("{} {}", status as u16, status.words().0);
    let fields = format!("{field}Content-Type: text/plain\r\n");
    whole(&line, &fields, format!("{text}\n").as_bytes())
}

/// Writes a whole response. `fields` are whole lines with their line ends.
fn whole(status: &str, fields: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\n{fields}Content-Length: {length}\r\nConnection: close\r\n\r\n");
    [head.as_bytes(), body].concat()
}

const CLOSES: &[u8] = b"\r\nConnection: close\r\n\r\n";

/// Returns one of the proxy's own responses for a client whose connection stays open. The answer to
/// HEAD has no body.
pub fn kept(response: &[u8], is_head: bool) -> Vec<u8> {
    let Some(end) = response.windows(CLOSES.len()).position(|bytes| bytes == CLOSES) else {
        return response.to_vec();
    };
    let (fields, body) = (&response[..end], &response[end + CLOSES.len()..]);
    let body = if is_head { &[] } else { body };
    [fields, b"\r\nConnection: keep-alive\r\n\r\n", body].concat()
}

/// Returns the response to a request with a wrong user name or password. The client may try others.
pub fn wrong_password() -> Vec<u8> {
    with_text(Status::AuthenticationRequired, "Wrong user name or password.")
}

/// Returns the response to a request with a body whose chunked encoding is not valid.
pub fn no_chunks() -> Vec<u8> {
    with_text(Status::BadRequest, "The request body is not valid chunked encoding.")
}

/// Returns the proxy's response to a request that `Max-Forwards` does not allow to reach its
/// target. The response to TRACE contains the request: `echoed`.
pub(super) fn last_recipient(echoed: Option<&[u8]>) -> Vec<u8> {
    match echoed {
        Some(echoed) => whole("200 OK", "Content-Type: message/http\r\n", echoed),
        None => whole("200 OK", "", b""),
    }
}

/// Returns the response to a request whose target was not reached.
pub fn failed(failure: Failure) -> Vec<u8> {
    match failure {
        Failure::NotAllowed => response(Status::Forbidden),
        Failure::NetworkUnreachable => with_text(Status::BadGateway, "The target's network is unreachable."),
        Failure::HostUnreachable => with_text(
            Status::BadGateway,
            "The target's host was not found or cannot be reached.",
        ),
        Failure::Refused => with_text(Status::BadGateway, "The target refused the connection."),
        Failure::TimedOut => response(Status::GatewayTimeout),
        Failure::Loop => response(Status::LoopDetected),
        Failure::General => response(Status::BadGateway),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Refusal;

    /// Returns status, fields and body of a response, and checks that the response is well-formed.
    fn taken_apart(response: &[u8]) -> (u16, Vec<(String, String)>, String) {
        let mut fields = [httparse::EMPTY_HEADER; 8];
        let mut parsed = httparse::Response::new(&mut fields);
        let httparse::Status::Complete(head_bytes) = parsed.parse(response).unwrap() else {
            panic!("no head: {response:?}");
        };
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let fields = parsed
            .headers
            .iter()
            .map(|field| (field.name.to_owned(), text(field.value)));
        (parsed.code.unwrap(), fields.collect(), text(&response[head_bytes..]))
    }

    #[test]
    fn every_own_answer_has_a_one_line_body_and_announces_the_close() {
        let responses = Status::ALL.map(response).into_iter();
        let failures = Failure::ALL.map(failed).into_iter();
        for bytes in responses
            .chain(failures)
            .chain(Refusal::ALL.map(Refusal::answer))
            .chain(Refusal::ALL.map(Refusal::answer_for_server))
            .chain([wrong_password()])
        {
            let (code, fields, body) = taken_apart(&bytes);
            assert!(body.ends_with('\n') && body.lines().count() == 1, "{body:?}");
            assert!(
                fields.contains(&("Content-Length".into(), body.len().to_string())),
                "{fields:?}"
            );
            assert!(fields.contains(&("Connection".into(), "close".into())), "{fields:?}");
            let challenge = (
                "Proxy-Authenticate".into(),
                "Basic realm=\"spliceway\", charset=\"UTF-8\"".into(),
            );
            assert_eq!(fields.contains(&challenge), code == 407, "{fields:?}");
        }
        let (code, fields, body) = taken_apart(ESTABLISHED);
        assert_eq!((code, fields.len(), body.as_str()), (200, 0, ""));
    }

    #[test]
    fn an_own_answer_can_keep_the_connection_and_then_has_no_body_for_head() {
        let closing = response(Status::Forbidden);
        let (code, fields, body) = taken_apart(&kept(&closing, false));
        assert_eq!((code, &body), (403, &taken_apart(&closing).2));
        assert!(
            fields.contains(&("Connection".into(), "keep-alive".into())),
            "{fields:?}"
        );
        assert!(
            fields.contains(&("Content-Length".into(), body.len().to_string())),
            "{fields:?}"
        );
        assert_eq!(taken_apart(&kept(&closing, true)).2, "");
    }

    #[test]
    fn a_client_that_knows_no_proxy_reads_of_none() {
        let failures = Failure::ALL.map(failed).into_iter();
        for bytes in failures
            .chain(Refusal::ALL.map(Refusal::answer_for_server))
            .chain([no_chunks()])
        {
            let (_, _, body) = taken_apart(&bytes);
            let says = |word: &str| body.to_lowercase().contains(word);
            assert!(!says("proxy") && !says("proxies") && !says("connect "), "{body}");
            assert!(body.starts_with("T") && body.ends_with(".\n"), "{body}");
        }
    }

    #[test]
    fn retry_after_is_in_whole_seconds_rounded_up() {
        for (wait, expected) in [(Duration::from_millis(300), "1"), (Duration::from_secs(7), "7")] {
            let (code, fields, _) = taken_apart(&come_again(Status::TooManyRequests, wait));
            assert_eq!(code, 429);
            assert!(fields.contains(&("Retry-After".into(), expected.into())), "{fields:?}");
        }
    }

    #[test]
    fn every_outcome_has_its_status() {
        let code = |response: &[u8]| taken_apart(response).0;
        for status in Status::ALL {
            assert_eq!(code(&response(status)), status as u16);
        }
        for (failure, expected) in [
            (Failure::NotAllowed, 403),
            (Failure::NetworkUnreachable, 502),
            (Failure::HostUnreachable, 502),
            (Failure::Refused, 502),
            (Failure::General, 502),
            (Failure::TimedOut, 504),
            (Failure::Loop, 508),
        ] {
            assert_eq!(code(&failed(failure)), expected, "{failure:?}");
        }
        for refusal in Refusal::ALL {
            let expected = match refusal {
                Refusal::HeadTooLarge => 431,
                Refusal::Loop => 508,
                _ => 400,
            };
            let codes = (code(&refusal.answer()), code(&refusal.answer_for_server()));
            assert_eq!(codes, (expected, expected), "{refusal:?}");
        }
    }
}
