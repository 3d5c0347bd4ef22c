use crate::net::hops::Hops;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};

use crate::access::policy::{OwnListeners, TargetPolicy, Targets};
use crate::kit::refusal::Refusal;
use crate::net::outgoing::SocketSettings;
use crate::reach::dial::tests::dns::{Answer, Server};
use crate::reach::dial::tests::held;
use crate::reach::dial::{DialRequest, DialSettings, ResolverSettings};
use spliceway_protocol::Failure;

use super::*;

/// The time limit for events that should happen much sooner.
const TIME: Duration = Duration::from_secs(20);

const GREETING: &[u8] = &[5, 1, 0];
const GREETING_WITH_PASSWORD: &[u8] = &[5, 2, 0, 2];
const TARGET: &str = "198.51.100.7:80";
const REQUEST: &[u8] = &[5, 1, 0, 1, 198, 51, 100, 7, 0, 80];
const SUCCEEDED: &[u8] = &[5, 0, 0, 1, 0, 0, 0, 0, 0, 0];
const CONNECT: &[u8] = b"CONNECT 198.51.100.7:80 HTTP/1.1\r\nHost: 198.51.100.7:80\r\nVia: 1.1 test\r\n\r\n";

/// The exact messages that a proxy expects, and its answer to each of them.
type Script<'a> = [(&'a [u8], &'a [u8])];

async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

/// Plays a proxy for one client. Fails if no client connects, or if the client sends other bytes.
async fn play(listener: &TcpListener, script: &Script<'_>) -> TcpStream {
    let played = tokio::time::timeout(TIME, async {
        let (mut stream, _) = listener.accept().await.unwrap();
        for (expected, answer) in script {
            let mut heard = vec![0; expected.len()];
            stream.read_exact(&mut heard).await.unwrap();
            assert_eq!(heard.escape_ascii().to_string(), expected.escape_ascii().to_string());
            stream.write_all(answer).await.unwrap();
        }
        stream
    });
    played.await.expect("a client that says its part")
}

fn dialer_with(urls: &[String], targets: Targets, resolver: ResolverSettings, own: OwnListeners) -> Dialer {
    let settings = DialSettings {
        resolver,
        sockets: SocketSettings::default(),
        upstreams: urls.iter().map(|url| url.parse().unwrap()).collect(),
        timeout: TIME,
    };
    Dialer::new(settings, TargetPolicy::new(targets, own), 64).unwrap()
}

fn dialer(urls: &[String]) -> Dialer {
    dialer_with(
        urls,
        Targets::Everything,
        ResolverSettings::System,
        OwnListeners::default(),
    )
}

async fn dial(dialer: &Dialer, target: &str) -> Result<Dialed, DialError> {
    let request = DialRequest {
        via: "1.1 test",
        ..DialRequest::default()
    };
    dialer.dial_for(&target.parse().unwrap(), request).await
}

/// Checks that each end receives exactly the bytes that the other end sends from now on.
async fn are_joined(dialed: Dialed, mut proxy: TcpStream) {
    let mut client = dialed.stream;
    client.write_all(b"up").await.unwrap();
    proxy.write_all(b"down").await.unwrap();
    client.shutdown().await.unwrap();
    proxy.shutdown().await.unwrap();
    let (mut up, mut down) = (Vec::new(), Vec::new());
    proxy.read_to_end(&mut up).await.unwrap();
    client.read_to_end(&mut down).await.unwrap();
    assert_eq!((&up[..], &down[..]), (&b"up"[..], &b"down"[..]));
}

/// Checks that a dial through a proxy that plays `script` reaches `target`, and that `early`
/// arrives from the target.
async fn is_reached_by(url: impl Fn(&str) -> String, target: &str, script: &Script<'_>, early: &[u8]) {
    let (listener, address) = listen().await;
    let dialer = dialer(&[url(&address)]);
    let (dialed, proxy) = tokio::join!(dial(&dialer, target), play(&listener, script));
    let dialed = dialed.unwrap();
    assert_eq!(dialed.early, early);
    assert_eq!(dialed.address.unwrap().to_string(), address);
    are_joined(dialed, proxy).await;
}

#[tokio::test]
async fn socks5_connects_without_a_user() {
    let script = [(GREETING, &[5, 0][..]), (REQUEST, SUCCEEDED)];
    is_reached_by(|at| format!("socks5://{at}"), TARGET, &script, b"").await;
}

#[tokio::test]
async fn socks5_sends_a_password_only_if_the_proxy_asks_for_it() {
    let url = |at: &str| format!("socks5://us:pa%40@{at}");
    let password = [1, 2, b'u', b's', 3, b'p', b'a', b'@'];
    let script = [
        (GREETING_WITH_PASSWORD, &[5, 2][..]),
        (&password[..], &[1, 0]),
        (REQUEST, SUCCEEDED),
    ];
    is_reached_by(url, TARGET, &script, b"").await;
    let script = [(GREETING_WITH_PASSWORD, &[5, 0][..]), (REQUEST, SUCCEEDED)];
    is_reached_by(url, TARGET, &script, b"").await;
}

#[tokio::test]
async fn socks5h_lets_the_proxy_look_up_names() {
    let request = [&[5, 1, 0, 3, 11][..], b"example.com", &[0, 80]].concat();
    let script = [(GREETING, &[5, 0][..]), (&request, SUCCEEDED)];
    is_reached_by(|at| format!("socks5h://{at}"), "example.com:80", &script, b"").await;
}

#[tokio::test]
async fn http_connects_with_and_without_a_user() {
    let answer = b"HTTP/1.1 200 Connection established\r\n\r\n";
    is_reached_by(|at| format!("http://{at}"), TARGET, &[(CONNECT, answer)], b"").await;
    let authorized =
        b"CONNECT example.com:80 HTTP/1.1\r\nHost: example.com:80\r\nProxy-Authorization: Basic dXM6cGE=\r\nVia: 1.1 test\r\n\r\n";
    let script = [(&authorized[..], &answer[..])];
    is_reached_by(|at| format!("http://us:pa@{at}"), "example.com:80", &script, b"").await;
}

#[tokio::test]
async fn bytes_after_the_answer_of_a_proxy_come_from_the_target() {
    let answer = [SUCCEEDED, b"early"].concat();
    let script = [(GREETING, &[5, 0][..]), (REQUEST, &answer)];
    is_reached_by(|at| format!("socks5://{at}"), TARGET, &script, b"early").await;
    let answer = b"HTTP/1.1 200 OK\r\nVia: a\r\n\r\nearly";
    is_reached_by(|at| format!("http://{at}"), TARGET, &[(CONNECT, answer)], b"early").await;
}

#[tokio::test]
async fn early_data_that_does_not_fit_waits_in_the_socket() {
    let (listener, address) = listen().await;
    let early: Vec<u8> = (0..=250).cycle().take(100_000).collect();
    let answer = [SUCCEEDED, &early].concat();
    let script = [(GREETING, &[5, 0][..]), (REQUEST, &answer)];
    let dialer = dialer(&[format!("socks5://{address}")]);
    let received = async {
        let dialed = dial(&dialer, TARGET).await.unwrap();
        assert!(dialed.early.len() <= 2 * READ_BYTES, "{}", dialed.early.len());
        let (mut received, mut stream) = (dialed.early, dialed.stream);
        let mut rest = vec![0; early.len() - received.len()];
        stream.read_exact(&mut rest).await.unwrap();
        received.extend(rest);
        received
    };
    let (received, _proxy) = tokio::join!(received, play(&listener, &script));
    assert!(received == early);
}

/// One connection plays both proxies, because the client speaks to the second one through the
/// first.
#[tokio::test]
async fn the_second_proxy_is_asked_through_the_first() {
    let (listener, address) = listen().await;
    let urls = [
        format!("socks5h://{address}"),
        "http://us:pa@Second.Example:3128".to_owned(),
    ];
    let to_second = [&[5, 1, 0, 3, 14][..], b"second.example", &3128_u16.to_be_bytes()].concat();
    let authorized =
        b"CONNECT 198.51.100.7:80 HTTP/1.1\r\nHost: 198.51.100.7:80\r\nProxy-Authorization: Basic dXM6cGE=\r\nVia: 1.1 test\r\n\r\n";
    let script = [
        (GREETING, &[5, 0][..]),
        (&to_second, SUCCEEDED),
        (authorized, b"HTTP/1.1 200 OK\r\n\r\nearly"),
    ];
    let dialer = dialer(&urls);
    let (dialed, proxy) = tokio::join!(dial(&dialer, TARGET), play(&listener, &script));
    let dialed = dialed.unwrap();
    assert_eq!(dialed.early, b"early");
    are_joined(dialed, proxy).await;
}

#[tokio::test]
async fn an_unreachable_second_proxy_is_reported_as_a_proxy_failure() {
    let (listener, address) = listen().await;
    let urls = [format!("socks5://{address}"), "socks5h://198.51.100.7:80".to_owned()];
    let script = [(GREETING, &[5, 0][..]), (REQUEST, &[5, 5, 0, 1, 0, 0, 0, 0, 0, 0])];
    let dialer = dialer(&urls);
    let (failed, _proxy) = tokio::join!(dial(&dialer, "example.com:80"), play(&listener, &script));
    let failed = failed.unwrap_err();
    assert_eq!(
        (failed.as_str(), failed.failure()),
        ("upstream_unreachable", Failure::General)
    );
    assert!(failed.to_string().contains("socks5h://198.51.100.7:80"), "{failed}");
}

#[tokio::test]
async fn refusals_of_a_proxy_are_reported_by_their_kind() {
    let socks5 = [
        (1, Failure::General),
        (2, Failure::NotAllowed),
        (3, Failure::NetworkUnreachable),
        (4, Failure::HostUnreachable),
        (5, Failure::Refused),
        (6, Failure::TimedOut),
        (7, Failure::General),
        (8, Failure::General),
        (255, Failure::General),
    ];
    for (code, expected) in socks5 {
        let answer = [5, code, 0, 1, 0, 0, 0, 0, 0, 0];
        let script = [(GREETING, &[5, 0][..]), (REQUEST, &answer)];
        let failed = fails_by("socks5://", &script).await;
        assert_eq!(failed.failure(), expected, "{code}");
        assert!(
            failed.as_str().starts_with("upstream_") && failed.denied().is_none(),
            "{code}"
        );
    }
    for (line, expected) in [
        ("403 Forbidden", Failure::NotAllowed),
        ("502 Bad Gateway", Failure::HostUnreachable),
        ("504 Gateway Timeout", Failure::TimedOut),
        ("500 Oops", Failure::General),
    ] {
        let answer = format!("HTTP/1.1 {line}\r\n\r\n");
        let failed = fails_by("http://", &[(CONNECT, answer.as_bytes())]).await;
        assert_eq!(failed.failure(), expected, "{line}");
    }
}

#[tokio::test]
async fn a_failed_login_at_a_proxy_does_not_reveal_the_credentials() {
    let unknown = [1, 4, b'u', b's', b'e', b'r', 6, b's', b'e', b'c', b'r', b'e', b't'];
    let socks5 = [(GREETING_WITH_PASSWORD, &[5, 2][..]), (&unknown[..], &[1, 1])];
    let http: &[u8] =
        b"CONNECT 198.51.100.7:80 HTTP/1.1\r\nHost: 198.51.100.7:80\r\nProxy-Authorization: Basic dXNlcjpzZWNyZXQ=\r\nVia: 1.1 test\r\n\r\n";
    let http = [(http, &b"HTTP/1.1 407 No\r\n\r\n"[..])];
    for (start, script) in [
        ("socks5://user:secret@", &socks5[..]),
        ("http://user:secret@", &http[..]),
    ] {
        let failed = fails_by(start, script).await;
        assert_eq!(
            (failed.as_str(), failed.failure()),
            ("upstream_authentication", Failure::General)
        );
        let text = format!("{failed} {failed:?}");
        assert!(!text.contains("secret") && !text.contains("user:"), "{text}");
    }
    let failed = fails_by("socks5://", &[(GREETING, &[5, 255])]).await;
    assert_eq!(
        (failed.as_str(), failed.failure()),
        ("upstream_method", Failure::General)
    );
}

/// Returns the error of a dial through a proxy that closes the connection after its script.
async fn fails_by(start: &str, script: &Script<'_>) -> DialError {
    let (listener, address) = listen().await;
    let dialer = dialer(&[format!("{start}{address}")]);
    let (failed, _) = tokio::join!(dial(&dialer, TARGET), async { drop(play(&listener, script).await) });
    failed.unwrap_err()
}

#[tokio::test]
async fn a_proxy_that_closes_or_sends_garbage_is_not_reported_as_refusing() {
    let failed = fails_by("socks5://", &[(GREETING, b"")]).await;
    assert_eq!(
        (failed.as_str(), failed.failure()),
        ("upstream_closed", Failure::General)
    );
    let failed = fails_by("socks5://", &[(GREETING, b"HTTP/1.1 400 Bad Request\r\n\r\n")]).await;
    assert_eq!(
        (failed.as_str(), failed.failure()),
        ("upstream_protocol", Failure::General)
    );
    let failed = fails_by("http://", &[(CONNECT, b"SSH-2.0-OpenSSH_9.6\r\n")]).await;
    assert_eq!(failed.as_str(), "upstream_protocol");
}

/// The clock is paused once the proxy has received all expected messages. The clock then jumps to
/// the deadline.
#[tokio::test]
async fn a_dial_through_a_silent_proxy_fails_at_the_timeout() {
    for script in [
        &[(GREETING, &[][..])][..],
        &[(GREETING, &[5, 0]), (REQUEST, &[5, 0, 0, 1])],
    ] {
        let (listener, address) = listen().await;
        let dialer = dialer(&[format!("socks5://{address}")]);
        let silence = async {
            let stream = play(&listener, script).await;
            tokio::time::pause();
            stream
        };
        let (failed, _proxy) = tokio::join!(dial(&dialer, TARGET), silence);
        tokio::time::resume();
        let failed = failed.unwrap_err();
        assert_eq!(
            (failed.as_str(), failed.failure()),
            ("upstream_silent", Failure::TimedOut)
        );
    }
}

#[tokio::test]
async fn an_unreachable_proxy_is_reported_as_a_proxy_failure() {
    let (_held, address) = held();
    let failed = dial(&dialer(&[format!("http://{address}")]), TARGET).await.unwrap_err();
    assert_eq!(
        (failed.as_str(), failed.failure()),
        ("upstream_unreachable", Failure::General)
    );
    assert!(failed.to_string().contains(&address.to_string()), "{failed}");
}

#[tokio::test]
async fn an_upstream_proxy_may_be_on_loopback_even_if_targets_may_not() {
    let (listener, address) = listen().await;
    let public = |scheme: &str| {
        let urls = [format!("{scheme}://{address}")];
        dialer_with(
            &urls,
            Targets::Public,
            ResolverSettings::System,
            OwnListeners::default(),
        )
    };
    for (scheme, target, reason) in [
        ("socks5", "127.0.0.1:80", "loopback"),
        ("http", "[::ffff:10.0.0.1]:80", "private"),
        ("socks5h", "LocalHost.:80", "loopback"),
        ("socks5h", "0x7f.1:80", "reserved"),
    ] {
        let failed = dial(&public(scheme), target).await.unwrap_err();
        assert_eq!(
            (failed.denied().map(Refusal::as_str), failed.failure()),
            (Some(reason), Failure::NotAllowed),
            "{target}"
        );
    }
    // The first target that the proxy receives is the allowed one.
    let request = [&[5, 1, 0, 1, 8, 8, 8, 8][..], &[0, 53]].concat();
    let script = [(GREETING, &[5, 0][..]), (&request, SUCCEEDED)];
    let dialer = public("socks5");
    let (dialed, _proxy) = tokio::join!(dial(&dialer, "8.8.8.8:53"), play(&listener, &script));
    dialed.unwrap();
}

#[tokio::test]
async fn an_own_listener_is_an_upstream_proxy_for_a_few_hops_only() {
    let (listener, address) = listen().await;
    let own = OwnListeners::default();
    let _entry = own.add(&listener).unwrap();
    let urls = [format!("http://{address}")];
    let dialer = dialer_with(&urls, Targets::Everything, ResolverSettings::System, own);
    let target = TARGET.parse().unwrap();
    let after = |hops: u8| {
        let request = DialRequest {
            tls: None,
            passage: Passage::Request,
            client: None,
            via: "1.1 test",
            hops: Hops::passed(hops),
        };
        dialer.dial_for(&target, request)
    };
    assert!(after(0).await.unwrap().proxy.is_some() && after(3).await.is_ok());
    let failed = after(4).await.unwrap_err();
    assert_eq!(failed.as_str(), "upstream_unreachable");
    assert!(
        failed.to_string().contains("one of spliceway's own listeners"),
        "{failed}"
    );
}

#[tokio::test]
async fn socks5_tries_the_addresses_of_a_name_in_turn() {
    let (listener, address) = listen().await;
    let server = Server::start().await;
    server.says("a.example.", Answer::has(&["8.8.4.4", "10.0.0.1", "8.8.8.8"], 60));
    let resolver = ResolverSettings::Servers(vec![server.address]);
    let urls = [format!("socks5://{address}")];
    let dialer = dialer_with(&urls, Targets::Public, resolver, OwnListeners::default());
    let request = |low| [&[5, 1, 0, 1, 8, 8][..], low, &[0, 80]].concat();
    let (first, last) = (request(&[4, 4]), request(&[8, 8]));
    let refusal = [5, 4, 0, 1, 0, 0, 0, 0, 0, 0];
    let first = [(GREETING, &[5, 0][..]), (&first, &refusal)];
    let last = [(GREETING, &[5, 0][..]), (&last, SUCCEEDED)];
    let proxy = async {
        drop(play(&listener, &first).await);
        play(&listener, &last).await
    };
    let (dialed, proxy) = tokio::join!(dial(&dialer, "A.Example:80"), proxy);
    are_joined(dialed.unwrap(), proxy).await;
}
