//! Rewrites the head of a target's response, so that the response is the last one on the client's
//! connection.
//!
//! If a client reused the connection, its next request would reach this target, even if the request
//! is for another target. That request may contain passwords for the other target or for the proxy.
//! The head of a response decides whether the client reuses the connection, so the proxy rewrites
//! the head.

use httparse::Header;

use super::framing::options;
use super::head_length_within;
use crate::message::Message;

/// The limit for all heads of one response together, in bytes. It is higher than the limit for a
/// request, because targets set cookies. The parser holds the bytes until the head is complete.
const HEADS_MAX_BYTES: usize = 64 << 10;
/// Marks a response as the last one on its connection.
const LAST: &[u8] = b"Connection: close\r\n";
/// Fields that are not passed on. Either they apply to this connection alone (RFC 9110 section
/// 7.6.1), or the proxy writes new ones.
const NOT_PASSED_ON: [&str; 5] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-connection",
    "upgrade",
];
/// The status of an answer from the next proxy that demands other credentials. The client could
/// only give its credentials for this proxy, which are not for anybody else.
const DEMANDS_CREDENTIALS: u16 = 407;
/// What the client gets instead.
const BAD_GATEWAY: &str = "502 Bad Gateway\r\n";

/// Parses and rewrites the head of a target's response, together with the interim responses before
/// it.
#[derive(Debug, Default)]
pub struct Answer {
    message: Message,
    interim: Vec<u8>,
    /// Whether the request asked for an upgrade.
    may_switch: bool,
    has_switched: bool,
}

impl Answer {
    /// Creates a parser for the response to a request that asked for an upgrade.
    pub fn to_upgrade() -> Self {
        Self {
            may_switch: true,
            ..Self::default()
        }
    }

    /// Returns whether the target agreed to the upgrade (status 101).
    pub fn has_switched(&self) -> bool {
        self.has_switched
    }

    /// Removes and returns the interim responses received so far. A client may wait for an interim
    /// response before it sends its body.
    pub fn take_interim(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.interim)
    }

    /// Consumes the bytes of the heads from `input`. Returns the bytes to send to the client in
    /// their place, or `None` until the heads are complete.
    ///
    /// If a head of HTTP/1 is malformed or exceeds 64 KiB, the mark follows its status line, and
    /// the other bytes are unchanged. If the bytes are no head of HTTP/1, all of them are
    /// unchanged: the client then interprets them itself. The caller must not read another request
    /// from that client.
    pub fn feed(&mut self, input: &mut &[u8]) -> Option<Vec<u8>> {
        loop {
            let room = HEADS_MAX_BYTES.saturating_sub(self.interim.len());
            let whole = self.message.feed(input, |held| {
                let speaks_http = held.iter().zip(b"HTTP/1.").all(|(byte, expected)| byte == expected);
                head_length_within(held, room).filter(|_| speaks_http).ok_or(())
            });
            let head = match whole {
                Ok(Some(head)) => head,
                Ok(None) => return None,
                Err(()) => return Some([&self.interim[..], &marked(self.message.held())].concat()),
            };
            match status(head) {
                Some(100 | 102..=199) => {
                    self.interim.extend_from_slice(head);
                    self.message.clear();
                }
                // The client needs the fields unchanged, because they name the agreed protocol.
                Some(101) if self.may_switch => {
                    self.has_switched = true;
                    return Some([&self.interim[..], head].concat());
                }
                _ => {
                    let last = rewritten(head).unwrap_or_else(|| marked(head));
                    return Some([&self.interim[..], &last].concat());
                }
            }
        }
    }

    /// Returns the bytes of a head that never became complete, and the interim responses before it.
    pub fn cut_short(self) -> Vec<u8> {
        [&self.interim[..], self.message.held()].concat()
    }
}

/// Returns the status in the first line of a head, or `None` if that is not a line of HTTP/1.
fn status(head: &[u8]) -> Option<u16> {
    let line = head[..head.iter().position(|byte| *byte == b'\n')?].trim_ascii_end();
    match line.strip_prefix(b"HTTP/1.")? {
        [b'0'..=b'9', b' ', digits @ ..] => {
            let (digits, reason) = digits.split_at_checked(3)?;
            let is_number = digits.iter().all(u8::is_ascii_digit) && matches!(reason, [] | [b' ', ..]);
            is_number.then(|| {
                digits
                    .iter()
                    .fold(0, |number, digit| 10 * number + u16::from(digit - b'0'))
            })
        }
        _ => None,
    }
}

/// Returns the head rewritten as the last one on its connection. Returns `None` if the head is not
/// valid.
fn rewritten(head: &[u8]) -> Option<Vec<u8>> {
    // A field has a line of its own, and the size of the head limits them. Any other limit would
    // refuse what clients accept.
    let lines = head.iter().filter(|byte| **byte == b'\n').count();
    let mut fields = vec![httparse::EMPTY_HEADER; lines];
    let mut parsed = httparse::Response::new(&mut fields);
    let mut lenient = httparse::ParserConfig::default();
    // RFC 9112 section 5 lets a proxy repair these two in a response.
    lenient.allow_spaces_after_header_name_in_responses(true);
    lenient.allow_obsolete_multiline_headers_in_responses(true);
    match lenient.parse_response(&mut parsed, head) {
        Ok(httparse::Status::Complete(bytes)) if bytes == head.len() => {}
        _ => return None,
    }
    let line = head.iter().position(|byte| *byte == b'\n')? + 1;
    let mut last = match parsed.code? {
        DEMANDS_CREDENTIALS => format!("HTTP/1.{} {BAD_GATEWAY}", parsed.version?).into_bytes(),
        _ => head[..line].to_vec(),
    };
    for field in parsed
        .headers
        .iter()
        .filter(|field| is_passed_on(field, parsed.headers))
    {
        last.extend_from_slice(field.name.as_bytes());
        last.extend_from_slice(b": ");
        let blank = |byte: &u8| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte };
        last.extend(field.value.iter().map(blank));
        last.extend_from_slice(b"\r\n");
    }
    last.extend_from_slice(LAST);
    last.extend_from_slice(b"\r\n");
    Some(last)
}

/// Returns the bytes with the mark behind their status line, or unchanged if they have none.
fn marked(bytes: &[u8]) -> Vec<u8> {
    let line = bytes.iter().position(|byte| *byte == b'\n');
    let (line, rest) = match line.filter(|_| status(bytes).is_some()) {
        Some(end) => bytes.split_at(end + 1),
        None => return bytes.to_vec(),
    };
    [line, LAST, rest].concat()
}

fn is_passed_on(field: &Header<'_>, fields: &[Header<'_>]) -> bool {
    let is = |name: &str| field.name.eq_ignore_ascii_case(name);
    // A field that determines the end of the body stays, even if `Connection` names it.
    let frames = is("content-length") || is("transfer-encoding");
    let named = options(fields).any(|option| option.eq_ignore_ascii_case(field.name.as_bytes()));
    frames || !(named || NOT_PASSED_ON.into_iter().any(is))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: keep-alive, X-Hop\r\nKeep-Alive: timeout=5\r\nX-Hop: 1\r\n\
                          Set-Cookie: a=b\r\nSet-Cookie: c=d\r\n\r\n";
    const PASSED_ON: &str =
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nSet-Cookie: a=b\r\nSet-Cookie: c=d\r\nConnection: close\r\n\r\n";

    fn fed(pieces: &[&[u8]]) -> (Option<String>, Vec<u8>) {
        let (mut answer, mut given, mut left) = (Answer::default(), None, Vec::new());
        for mut input in pieces.iter().copied() {
            if given.is_none() {
                given = answer.feed(&mut input);
            }
            left.extend_from_slice(input);
        }
        (given.map(|given| String::from_utf8_lossy(&given).into_owned()), left)
    }

    #[test]
    fn an_answer_is_marked_as_the_last_at_every_split() {
        let stream = [ANSWER.as_bytes(), b"hello"].concat();
        for split in 0..=stream.len() {
            let (given, left) = fed(&[&stream[..split], &stream[split..]]);
            assert_eq!(
                (given.as_deref(), &left[..]),
                (Some(PASSED_ON), &b"hello"[..]),
                "{split}"
            );
        }
    }

    #[test]
    fn interim_answers_precede_the_final_answer_unchanged() {
        let hints = "HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n";
        let (given, _) = fed(&[hints.as_bytes(), hints.as_bytes(), ANSWER.as_bytes()]);
        assert_eq!(given.unwrap(), [hints, hints, PASSED_ON].concat());
    }

    #[test]
    fn a_requested_switch_of_protocols_passes_unchanged() {
        let switching = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: chat\r\nConnection: Upgrade\r\n\r\n";
        let mut answer = Answer::to_upgrade();
        let mut input = switching.as_bytes();
        assert_eq!(answer.feed(&mut input).as_deref(), Some(switching.as_bytes()));
        assert!(answer.has_switched());
        let (given, _) = fed(&[switching.as_bytes()]);
        assert_eq!(
            given.unwrap(),
            "HTTP/1.1 101 Switching Protocols\r\nConnection: close\r\n\r\n"
        );
        let mut answer = Answer::to_upgrade();
        assert_eq!(
            answer.feed(&mut ANSWER.as_bytes()).as_deref(),
            Some(PASSED_ON.as_bytes())
        );
        assert!(!answer.has_switched());
    }

    #[test]
    fn interim_answers_are_available_before_the_final_answer() {
        let hints = "HTTP/1.1 100 Continue\r\n\r\n";
        let mut answer = Answer::default();
        assert_eq!(answer.feed(&mut hints.as_bytes()), None);
        assert_eq!(answer.take_interim(), hints.as_bytes());
        assert_eq!(
            answer.feed(&mut ANSWER.as_bytes()).as_deref(),
            Some(PASSED_ON.as_bytes())
        );
    }

    #[test]
    fn what_is_no_head_of_http_1_passes_unchanged() {
        for raw in [
            "<html>",
            "HTTP/2 200\r\n\r\n",
            "HTTP/1.1 2000 OK\r\n\r\n",
            "ICY 200 OK\r\n\r\n",
            "SSH-2.0-x\r\n",
        ] {
            let (given, left) = fed(&[raw.as_bytes()]);
            assert_eq!([given.unwrap().as_bytes(), &left].concat(), raw.as_bytes());
        }
    }

    #[test]
    fn a_head_of_any_number_of_fields_is_marked_as_the_last() {
        let fields: String = (0..500).map(|number| format!("X-{number}: 1\r\n")).collect();
        let (given, _) = fed(&[format!("HTTP/1.1 200 OK\r\n{fields}Connection: keep-alive\r\n\r\n").as_bytes()]);
        assert_eq!(
            given.unwrap(),
            format!("HTTP/1.1 200 OK\r\n{fields}Connection: close\r\n\r\n")
        );
    }

    #[test]
    fn blanks_before_a_colon_and_folded_lines_are_repaired() {
        let raw = "HTTP/1.1 200 OK\r\nX-A : 1\r\nConnection : keep-alive\r\nX-B: 2\r\n 3\r\n\r\n";
        let (given, _) = fed(&[raw.as_bytes()]);
        assert_eq!(
            given.unwrap(),
            "HTTP/1.1 200 OK\r\nX-A: 1\r\nX-B: 2   3\r\nConnection: close\r\n\r\n"
        );
    }

    #[test]
    fn a_malformed_or_endless_head_is_marked_behind_its_status_line() {
        let endless = ["X: ", &"x".repeat(70_000)].concat();
        for rest in [
            "bad field\r\n\r\n",
            "X: a\0b\r\nConnection: keep-alive\r\n\r\n",
            &endless,
        ] {
            let (given, left) = fed(&[b"HTTP/1.1 200 OK\r\n", rest.as_bytes()]);
            let given = [given.unwrap().as_bytes(), &left].concat();
            let expected = ["HTTP/1.1 200 OK\r\nConnection: close\r\n", rest].concat();
            assert_eq!(String::from_utf8_lossy(&given), expected);
        }
        let hints = "HTTP/1.1 103 Early Hints\r\nbad field\r\n\r\n";
        let (given, _) = fed(&[hints.as_bytes(), ANSWER.as_bytes()]);
        assert_eq!(given.unwrap(), [hints, PASSED_ON].concat());
    }

    #[test]
    fn a_demand_for_credentials_is_not_for_the_client() {
        let demand = "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=\"x\"\r\n\
                      Content-Length: 2\r\n\r\nno";
        let (given, left) = fed(&[demand.as_bytes()]);
        let expected = "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 2\r\nConnection: close\r\n\r\n";
        assert_eq!((given.as_deref(), &left[..]), (Some(expected), &b"no"[..]));
    }

    #[test]
    fn an_incomplete_head_is_awaited() {
        assert_eq!(fed(&[&ANSWER.as_bytes()[..ANSWER.len() - 1]]), (None, Vec::new()));
    }
}
