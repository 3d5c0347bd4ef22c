//! The properties hold in random scenarios, and in those from the fuzzers' corpus.

mod hellos;

use std::path::{Path, PathBuf};
use std::{env, fs};

use proptest::prelude::*;
use spliceway_scenario::{
    Plan, address, dns, http, over_splicers, over_tokio, over_tokio_suspended, pem, proxy_header, sniff, socks4,
    socks5, socks5_datagram, target_rule, tls, upstream,
};

/// The number of cases of each kind. `PROPTEST_CASES` can raise it for longer searches.
const CASES: u32 = 250;

/// Returns plans that shrink together with the bytes that they are drawn from.
fn plans() -> impl Strategy<Value = Plan> {
    prop::collection::vec(any::<u8>(), 0..160).prop_map(|bytes| Plan::from_bytes(&bytes))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn all_properties_hold_in_random_scenarios_over_tokio(plan in plans()) {
        over_tokio(&plan);
    }

    #[test]
    fn all_properties_hold_if_relays_are_suspended_at_every_poll(plan in plans()) {
        over_tokio_suspended(&plan);
    }

    #[test]
    fn all_properties_hold_in_random_scenarios_over_splicers(plan in plans()) {
        over_splicers(&plan);
    }

    #[test]
    fn a_handshake_depends_only_on_its_bytes_however_they_are_cut(bytes in handshakes()) {
        socks5(&bytes);
    }

    #[test]
    fn a_datagram_has_a_target_or_is_malformed(bytes in datagrams()) {
        socks5_datagram(&bytes);
    }

    #[test]
    fn a_proxy_header_depends_only_on_its_bytes_and_round_trips(bytes in proxy_headers()) {
        proxy_header(&bytes);
    }

    #[test]
    fn a_socks4_request_depends_only_on_its_bytes_however_they_are_cut(bytes in socks4_requests()) {
        socks4(&bytes);
    }

    #[test]
    fn a_head_depends_only_on_its_bytes_and_is_forwarded_as_intended(bytes in heads()) {
        http(&bytes);
    }

    #[test]
    fn what_a_client_states_depends_only_on_its_bytes(
        bytes in prop_oneof![heads(), proxy_headers(), handshakes(), socks4_requests()]
    ) {
        sniff(&bytes);
    }

    #[test]
    fn a_query_of_dns_means_what_it_means_to_others(bytes in queries()) {
        dns(&bytes);
    }

    #[test]
    fn an_upstream_proxys_answer_depends_only_on_its_bytes(bytes in answers()) {
        upstream(&bytes);
    }

    #[test]
    fn an_accepted_address_parses_back_to_itself(text in r"[\[\]:.a-f0-9-]{0,40}|\PC{0,20}") {
        address(&text);
    }

    #[test]
    fn an_accepted_target_rule_parses_back_to_itself(text in r"(\*\.)?[\[\]:.*/,a-fA-F0-9-]{0,40}|\PC{0,20}") {
        target_rule(&text);
    }
}

fn cases() -> u32 {
    let asked = env::var("PROPTEST_CASES").ok();
    asked.and_then(|cases| cases.parse().ok()).unwrap_or(CASES)
}

/// Returns bytes that mostly form a handshake. Random bytes almost never get past its first
/// message.
fn handshakes() -> impl Strategy<Value = Vec<u8>> {
    let usual = prop::sample::select(vec![0, 1, 2, 3, 4, 5, 10, b'a', b'.', 255]);
    prop::collection::vec(prop_oneof![4 => usual, 1 => any::<u8>()], 0..40).prop_map(|mut bytes| {
        for (place, byte) in [(1, 5), (2, 1), (3, 0), (4, 5), (5, 1)] {
            if bytes.len() > place + 10 {
                bytes[place] = byte;
            }
        }
        bytes
    })
}

/// Returns bytes that mostly form a query of DNS.
fn queries() -> impl Strategy<Value = Vec<u8>> {
    let parts: [&[u8]; 12] = [
        b"\x01a",
        b"\x04tEst",
        b"\0",
        b"\0\x01\0\x01",
        b"\0\x1c\0\x01",
        b"\0\x41\0\x01",
        b"\0\0\x29\x10\0\0\0\0\0\0\0",
        b"\0\0\x29\x02\0\0\x01\0\0\0\0",
        b"\xc0\x0c",
        b"\x03a.b",
        b"\0\xfa\0\xff\0\0\0\0\0\0",
        b"\x3f",
    ];
    let rest = prop::collection::vec(prop::sample::select(parts.to_vec()), 0..8);
    let header = prop::sample::select(vec![
        &b"id\x01\0\0\x01\0\0\0\0\0\0"[..],
        b"id\0\x10\0\x01\0\0\0\0\0\x01",
        b"id\x01\x20\0\x01\0\0\0\0\0\x02",
        b"id\x28\0\0\x02\0\0\0\0\0\0",
    ]);
    (any::<u8>(), header, rest).prop_map(|(choice, header, rest)| [&[choice], header, &rest.concat()].concat())
}

fn socks4_requests() -> impl Strategy<Value = Vec<u8>> {
    let usual = prop::sample::select(vec![0, 0, 1, 2, 4, b'a', b'.', 255]);
    let rest = prop::collection::vec(prop_oneof![4 => usual, 1 => any::<u8>()], 0..40);
    (any::<u8>(), rest).prop_map(|(cut, rest)| [&[cut, 4, 1][..], &rest].concat())
}

/// Returns words of HTTP heads, mostly in complete lines.
fn heads() -> impl Strategy<Value = Vec<u8>> {
    let words = [
        "GET ",
        "CONNECT ",
        "OPTIONS ",
        "http://",
        "https://",
        "a",
        "a.b:80",
        "[::1]",
        ":",
        "/",
        "?",
        "@",
        "*",
        " HTTP/1.1\r\n",
        " HTTP/1.0\n",
        "Host: ",
        "Connection: ",
        "X: ",
        "close",
        "x",
        ",",
        " ",
        "\t",
        "Content-Length: 4",
        "Transfer-Encoding: ",
        "chunked",
        "TE: trailers",
        "Proxy-Authorization: Basic ",
        "YTpi",
        "\r\n",
        "\r\n",
        "\r\n",
        "\n",
        "\r",
        "\0",
        "\u{e4}",
    ];
    let lines = prop::collection::vec(prop::sample::select(words.to_vec()), 0..30);
    let start = prop::sample::select(vec![
        "",
        "GET http://a/ HTTP/1.1\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n",
        "CONNECT a:1 HTTP/1.1\r\n",
    ]);
    (any::<u8>(), start, lines).prop_map(|(cut, start, lines)| {
        let text = format!("{start}{}\r\n\r\nbody", lines.concat());
        [&[cut], text.as_bytes()].concat()
    })
}

fn answers() -> impl Strategy<Value = Vec<u8>> {
    let socks5 = prop::sample::select(vec![0, 1, 2, 3, 4, 5, 5, 255]);
    let socks5 = prop::collection::vec(socks5, 0..30);
    let words = [
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.1 100 x\r\n",
        "HTTP/1.1 407\r\n",
        "X: y\r\n",
        "\r\n",
        "\r\n",
        "\n",
        "HTTP/1.0 ",
        "502",
        "x",
    ];
    let http = prop::collection::vec(prop::sample::select(words.to_vec()), 0..10)
        .prop_map(|words| words.concat().into_bytes());
    (any::<u8>(), prop_oneof![socks5, http]).prop_map(|(cut, rest)| [&[cut], &rest[..]].concat())
}

/// Returns bytes that usually begin like a datagram.
fn datagrams() -> impl Strategy<Value = Vec<u8>> {
    let usual = prop::sample::select(vec![0, 1, 3, 4, 9, b'a', b'.', 255]);
    let rest = prop::collection::vec(prop_oneof![4 => usual, 1 => any::<u8>()], 0..30);
    let head = prop_oneof![8 => Just([0, 0, 0]), 1 => any::<[u8; 3]>()];
    let kind = prop_oneof![4 => prop::sample::select(vec![1, 3, 4]), 1 => any::<u8>()];
    (head, kind, rest).prop_map(|(head, kind, rest)| [&head[..], &[kind], &rest].concat())
}

/// Returns PROXY lines and heads, mostly from known words.
fn proxy_headers() -> impl Strategy<Value = Vec<u8>> {
    let words = [
        "PROXY ", "TCP4 ", "TCP6 ", "UNKNOWN", "1.2.3.4 ", "::1 ", "1 ", "65535", "x", "+1", "\r\n", "\r", "\n",
    ];
    let line = prop::collection::vec(prop::sample::select(words.to_vec()), 0..8)
        .prop_map(|words| format!("PROXY {}\r\n", words.concat()).into_bytes());
    let head = (
        prop::sample::select(vec![0x20, 0x21, 0x22]),
        prop::sample::select(vec![0, 0x11, 0x12, 0x21, 0x31]),
        prop::sample::select(vec![0, 11, 12, 13, 36, 40, 216]),
        prop::collection::vec(any::<u8>(), 0..60),
    );
    let binary = head.prop_map(|(command, family, length, rest)| {
        [&b"\r\n\r\n\0\r\nQUIT\n"[..], &[command, family, 0, length], &rest].concat()
    });
    (any::<u8>(), prop_oneof![line, binary]).prop_map(|(cut, header)| [&[cut], &header[..]].concat())
}

#[test]
fn all_properties_hold_in_the_corpus_of_the_fuzzers() {
    for (name, bytes) in kept("relay").chain(kept("splicer")) {
        // This output is shown if the scenario fails.
        println!("{}: {:?}", name.display(), Plan::from_bytes(&bytes));
        over_tokio(&Plan::from_bytes(&bytes));
        over_tokio_suspended(&Plan::from_bytes(&bytes));
        over_splicers(&Plan::from_bytes(&bytes));
    }
    for (target, parser) in [
        ("socks5", socks5 as fn(&[u8])),
        ("socks5_datagram", socks5_datagram),
        ("socks4", socks4),
        ("http", http),
        ("proxy_header", proxy_header),
        ("tls", tls),
        ("sniff", sniff),
        ("dns", dns),
        ("pem", pem),
        ("upstream", upstream),
    ] {
        kept(target).for_each(|(_, bytes)| parser(&bytes));
    }
    for (_, bytes) in kept("address") {
        std::str::from_utf8(&bytes).into_iter().for_each(address);
    }
    for (_, bytes) in kept("target_rule") {
        std::str::from_utf8(&bytes).into_iter().for_each(target_rule);
    }
}

/// Returns the inputs in the repository for a fuzz target. There is at least one input.
fn kept(target: &str) -> impl Iterator<Item = (PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)
        .expect("a folder of inputs")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "no inputs for {target}");
    paths.into_iter().map(|path| {
        let bytes = fs::read(&path).expect("an input");
        (path, bytes)
    })
}
