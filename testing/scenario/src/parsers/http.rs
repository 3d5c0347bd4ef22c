//! HTTP requests as a proxy receives them and as it forwards them.

use std::iter;

use httparse::{EMPTY_HEADER, Header, Status};
use spliceway_protocol::http::{Body, HEAD_MAX_BYTES, Head, HttpRequest, Refusal, RequestHead};
use spliceway_protocol::{Demand, Proof};

use super::{Decision, Pair, assert_sound, decision, demand, feed, pair};

/// The most bytes in addition to the client's own fields: a second copy of the host, `Via`,
/// `Connection`, and one carriage return per line.
const GROWTH_MAX_BYTES: usize = 1024;
/// The most fields that a client may send, plus four fields from the proxy.
const FIELDS_MAX: usize = 100 + 4;

/// Fields that apply to one connection only, or that the proxy writes itself (RFC 9110 section
/// 7.6.1). Fields that begin with `proxy` are not forwarded either.
const NOT_SENT_ON: [&str; 6] = ["connection", "host", "http2-settings", "keep-alive", "te", "upgrade"];

/// Checks that the outcome for a request's head depends only on its bytes, however they were cut
/// into reads. Also checks that every recipient interprets the forwarded head as intended. The
/// first byte selects how to cut the rest.
///
/// # Panics
/// Panics if a property does not hold.
pub fn http(bytes: &[u8]) {
    let demand = demand(bytes);
    let converse = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let mut head = Head::new(demand);
        feed(pieces, HEAD_MAX_BYTES, |input| {
            head.feed(input).map(|asked| asked.map(opened))
        })
    };
    match decision(bytes, converse) {
        None | Some((_, Decision::Undecided)) => {}
        Some((stream, Decision::Made((credentials, request), bytes))) => {
            let head = &stream[..bytes];
            assert!(
                head.ends_with(b"\n\r\n") || head.ends_with(b"\n\n"),
                "it ends where it does"
            );
            if let Some((name, _)) = credentials {
                assert!(demand == Demand::Password && !name.contains(&b':'));
            }
            match request {
                HttpRequest::Connect(target) => assert_sound(&target),
                HttpRequest::Forward {
                    target,
                    head: sent,
                    body,
                } => {
                    assert_sound(&target);
                    assert_sent_on(head, &sent, body == Body::Upgrade);
                }
                HttpRequest::Answered(answer) => assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n")),
            }
        }
        Some((_, Decision::Refused(refusal))) => assert_well_formed(refusal),
    }
}

fn opened(asked: RequestHead) -> (Option<Pair>, HttpRequest) {
    match asked {
        RequestHead::Agreed(request) => (None, request),
        RequestHead::Password(unproven) => {
            let credentials = unproven.credentials.as_ref().map(pair);
            (credentials, unproven.accept(Proof::of_known_user()))
        }
    }
}

/// A head as an independent parser reads it.
struct Parsed<'head> {
    method: &'head str,
    uri: &'head str,
    minor: u8,
    fields: Vec<(String, &'head [u8])>,
}

impl<'head> Parsed<'head> {
    fn of(head: &'head [u8]) -> Self {
        let mut fields = [EMPTY_HEADER; FIELDS_MAX];
        let mut parsed = httparse::Request::new(&mut fields);
        assert_eq!(
            parsed.parse(head),
            Ok(Status::Complete(head.len())),
            "{}",
            head.escape_ascii()
        );
        let lower = |field: &Header<'head>| (field.name.to_ascii_lowercase(), field.value);
        Self {
            method: parsed.method.expect("a method"),
            uri: parsed.path.expect("a target"),
            minor: parsed.version.expect("a version"),
            fields: parsed.headers.iter().map(lower).collect(),
        }
    }

    fn values(&self, name: &str) -> Vec<&'head [u8]> {
        let of_name = self.fields.iter().filter(|(other, _)| other == name);
        of_name.map(|(_, value)| *value).collect()
    }
}

/// Checks that the proxy forwards the client's request in origin form, without the parts meant for
/// the proxy.
fn assert_sent_on(head: &[u8], sent: &[u8], upgrades: bool) {
    assert!(sent.len() <= head.len() + GROWTH_MAX_BYTES);
    assert!(!has_bare_line_ends(sent), "{}", sent.escape_ascii());
    let is_clear = !has_bare_line_ends(head);
    let (asked, sent) = (Parsed::of(head), Parsed::of(sent));
    assert_eq!((sent.method, sent.minor), (asked.method, asked.minor));
    let of_server = sent.method == "OPTIONS" && sent.uri == "*";
    assert!(sent.uri.starts_with('/') || of_server, "{}", sent.uri);
    assert!(
        of_server
            || asked.uri.ends_with(sent.uri)
            || sent.uri.strip_prefix('/').is_some_and(|uri| asked.uri.ends_with(uri))
    );

    let [host] = sent.values("host")[..] else {
        panic!("{} hosts", sent.values("host").len());
    };
    let host = str::from_utf8(host).expect("a host is text");
    assert!(
        asked.uri["http://".len()..].starts_with(host),
        "{host} in {}",
        asked.uri
    );
    let framed = (sent.values("content-length"), sent.values("transfer-encoding"));
    assert!(framed.0.len() + framed.1.len() <= 1, "{framed:?}");
    assert_eq!(
        framed,
        (asked.values("content-length"), asked.values("transfer-encoding")),
        "the body is the client's"
    );

    // The proxy's fields surround the client's fields, which keep their order.
    let options = asked.values("connection");
    let options: Vec<String> = options
        .iter()
        .flat_map(|value| value.split(|byte| *byte == b','))
        .map(|option| String::from_utf8_lossy(option.trim_ascii()).to_ascii_lowercase())
        .collect();
    let is_ours = |name: &str| name.starts_with("proxy") || NOT_SENT_ON.contains(&name);
    let goes_on = |name: &str| !is_ours(name) && !options.iter().any(|option| option == name);
    let counts_forwards = matches!(asked.method, "TRACE" | "OPTIONS");
    let kept = asked.fields.iter().filter(|(name, _)| goes_on(name));
    let kept = kept.map(|(name, value)| match name.as_str() {
        "max-forwards" if counts_forwards => (name.clone(), one_less(value)),
        _ => (name.clone(), value.to_vec()),
    });
    // The instance name is random.
    let via = sent.values("via").pop().unwrap_or_default();
    assert!(
        via.starts_with(format!("1.{} spliceway-", asked.minor).as_bytes()),
        "{}",
        via.escape_ascii()
    );
    let mut connection = assert_connection(&asked, &sent, &options, upgrades);
    if !upgrades {
        let own = asked.values("proxy-connection").join(&b","[..]).to_ascii_lowercase();
        let own = own.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        let says: Vec<&[u8]> = options.iter().map(String::as_bytes).chain(own).collect();
        let persists = asked.minor == 1 || says.contains(&&b"keep-alive"[..]);
        let persists = persists && is_clear && !says.contains(&&b"close"[..]);
        let expected: &[u8] = if persists { b"keep-alive" } else { b"close" };
        connection = vec![("connection".to_owned(), expected.to_vec())];
    }
    let expected: Vec<(String, Vec<u8>)> = iter::once(("host".to_owned(), host.as_bytes().to_vec()))
        .chain(kept)
        .chain([("via".to_owned(), via.to_vec())])
        .chain(connection)
        .collect();
    let sent: Vec<(String, Vec<u8>)> = sent
        .fields
        .into_iter()
        .map(|(name, value)| (name, value.to_vec()))
        .collect();
    assert_eq!(sent, expected);
}

/// Returns the fields that end the head: the upgrade that the client requested, or a request to
/// close.
fn assert_connection(
    asked: &Parsed<'_>,
    sent: &Parsed<'_>,
    options: &[String],
    upgrades: bool,
) -> Vec<(String, Vec<u8>)> {
    match sent.values("upgrade")[..] {
        [protocols] if upgrades => {
            assert!(options.iter().any(|option| option == "upgrade") && asked.minor == 1);
            let offered: Vec<u8> = asked.values("upgrade").join(&b","[..]);
            let is_offered = |protocol: &[u8]| {
                offered
                    .split(|byte| *byte == b',')
                    .any(|one| one.trim_ascii() == protocol.trim_ascii())
            };
            assert!(
                protocols.split(|byte| *byte == b',').all(is_offered),
                "{}",
                protocols.escape_ascii()
            );
            vec![
                ("upgrade".to_owned(), protocols.to_vec()),
                ("connection".to_owned(), b"Upgrade".to_vec()),
            ]
        }
        _ => {
            assert!(!upgrades);
            vec![("connection".to_owned(), b"close".to_vec())]
        }
    }
}

/// Returns `Max-Forwards` as the next recipient should read it.
fn one_less(value: &[u8]) -> Vec<u8> {
    let number: u64 = str::from_utf8(value)
        .ok()
        .and_then(|digits| digits.parse().ok())
        .expect("a number, or the request is refused");
    (number - 1).to_string().into_bytes()
}

/// Returns whether a line feed or a carriage return occurs alone. Some recipients interpret such a
/// character as the end of a line, and some do not.
fn has_bare_line_ends(head: &[u8]) -> bool {
    let ends = head.windows(2).filter(|pair| *pair == b"\r\n").count();
    let of = |end: u8| head.iter().filter(|byte| **byte == end).count();
    of(b'\r') != ends || of(b'\n') != ends
}

/// Checks that a refusal is an HTTP response, and that its body has the stated length.
fn assert_well_formed(refusal: Refusal) {
    let answer = refusal.answer();
    let mut fields = [EMPTY_HEADER; 8];
    let mut parsed = httparse::Response::new(&mut fields);
    let Ok(Status::Complete(head_bytes)) = parsed.parse(&answer) else {
        panic!("{refusal:?} is answered {}", answer.escape_ascii());
    };
    assert!(matches!(parsed.code, Some(400 | 431)), "{:?}", parsed.code);
    let length = parsed.headers.iter().find(|field| field.name == "Content-Length");
    let body_bytes = (answer.len() - head_bytes).to_string();
    assert_eq!(length.map(|field| field.value), Some(body_bytes.as_bytes()));
}
