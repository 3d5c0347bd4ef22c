//! Rewrites the head of a target's response, so that the response is the last one on the client's
//! connection.
//!
//! If a client reused the connection, its next request would reach this target, even if the request
//! is for another target. That request may contain passwords for the other target or for the proxy.
//! The head of a response decides whether the client reuses the connection, so the proxy rewrites
//! the head.

use httparse::Header;

use super::framing::options;
use super::{FIELDS_MAX, head_length_within};
use crate::message::Message;

/// The limit for all heads of one response together, in bytes. It is higher than the limit for a
/// request, because targets set cookies. The parser holds the bytes until the head is complete.
const HEADS_MAX_BYTES: usize = 64 << 10;
/// Fields that are not passed on. Either they apply to this connection alone (RFC 9110 section
/// 7.6.1), or the proxy writes new ones.
const NOT_PASSED_ON: [&str; 4] = ["connection", "keep-alive", "proxy-connection", "upgrade"];

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
    /// The parser returns bytes unchanged if they are not an HTTP/1 head or exceed 64 KiB. The
    /// client then interprets them itself. The caller must not read another request from that
    /// client.
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
                Err(()) => return Some([&self.interim[..], self.message.held()].concat()),
            };
            match parsed(head) {
                Some((100 | 102..=199, _)) => {
                    self.interim.extend_from_slice(head);
                    self.message.clear();
                }
                // The client needs the fields unchanged, because they name the agreed protocol.
                Some((101, _)) if self.may_switch => {
                    self.has_switched = true;
                    return Some([&self.interim[..], head].concat());
                }
                Some((_, last)) => return Some([&self.interim[..], &last].concat()),
                None => return Some([&self.interim[..], head].concat()),
            }
        }
    }

    /// Returns the bytes of a head that never became complete, and the interim responses before it.
    pub fn cut_short(self) -> Vec<u8> {
        [&self.interim[..], self.message.held()].concat()
    }
}

/// Returns the status, and the head rewritten as the last one on its connection. Returns `None` if
/// the head is not valid.
fn parsed(head: &[u8]) -> Option<(u16, Vec<u8>)> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut parsed = httparse::Response::new(&mut fields);
    match parsed.parse(head) {
        Ok(httparse::Status::Complete(bytes)) if bytes == head.len() => {}
        _ => return None,
    }
    let line = head.iter().position(|byte| *byte == b'\n')? + 1;
    let mut last = head[..line].to_vec();
    for field in parsed
        .headers
        .iter()
        .filter(|field| is_passed_on(field, parsed.headers))
    {
        last.extend_from_slice(field.name.as_bytes());
        last.extend_from_slice(b": ");
        last.extend_from_slice(field.value);
        last.extend_from_slice(b"\r\n");
    }
    last.extend_from_slice(b"Connection: close\r\n\r\n");
    Some((parsed.code?, last))
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
    fn an_invalid_response_head_passes_unchanged() {
        for raw in [
            "<html>",
            "HTTP/2 200\r\n\r\n",
            "HTTP/1.1 200 OK\r\nbad field\r\n\r\n",
            "SSH-2.0-x\r\n",
        ] {
            let (given, left) = fed(&[raw.as_bytes()]);
            assert_eq!([given.unwrap().as_bytes(), &left].concat(), raw.as_bytes());
        }
        let long = [b"HTTP/1.1 200 OK\r\nX: ", &[b'x'; 70_000][..]].concat();
        let (given, left) = fed(&[&long]);
        assert_eq!([given.unwrap().as_bytes(), &left].concat(), long);
    }

    #[test]
    fn an_incomplete_head_is_awaited() {
        assert_eq!(fed(&[&ANSWER.as_bytes()[..ANSWER.len() - 1]]), (None, Vec::new()));
    }
}
