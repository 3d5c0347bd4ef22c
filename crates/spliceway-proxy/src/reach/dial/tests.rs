use std::net::Ipv4Addr;

use socket2::{Domain, Socket, Type};
use tokio::net::{TcpListener, UnixListener};

pub(super) mod dns;
mod rules;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::time::Instant;

use self::dns::{Answer, Server};
use super::happy_eyeballs::HappyEyeballs;
use super::request::Purpose;
use super::*;
use crate::access::policy::TargetPolicy;
use crate::access::policy::{OwnListeners, Targets};
use crate::kit::refusal::Refusal;
use crate::net::outgoing::SocketSettings;
use crate::net::stream::Stream;
use spliceway_protocol::Failure;
use spliceway_protocol::address::Target;

/// The time limit for events that should happen much sooner.
const TIME: Duration = Duration::from_secs(20);

/// More descriptors than any test needs.
const TRANSIENT: usize = 64;

fn dialer(resolver: ResolverSettings, sockets: SocketSettings, policy: TargetPolicy) -> Dialer {
    let settings = DialSettings {
        resolver,
        sockets,
        upstreams: Vec::new(),
        timeout: TIME,
    };
    Dialer::new(settings, policy, TRANSIENT).unwrap()
}

/// Returns a dialer that asks `server` and connects to public targets. Its source address does not
/// exist on this machine. So an allowed dial fails only for this reason and sends no packet.
fn from_nowhere(server: &Server) -> Dialer {
    let sockets = SocketSettings {
        source_v4: Some(Ipv4Addr::new(192, 0, 2, 1)),
        ..SocketSettings::default()
    };
    let policy = TargetPolicy::new(Targets::Public, OwnListeners::default());
    dialer(ResolverSettings::Servers(vec![server.address]), sockets, policy)
}

const ALLOWED_BUT_FROM_NOWHERE: (&str, Option<&str>) = ("EADDRNOTAVAIL", None);

async fn dial(dialer: &Dialer, target: &str) -> Result<Dialed, DialError> {
    dialer.dial_for(&target.parse().unwrap(), DialRequest::default()).await
}

async fn fails(dialer: &Dialer, target: &str) -> (&'static str, Option<&'static str>) {
    let error = dial(dialer, target).await.unwrap_err();
    (error.as_str(), error.denied().map(Refusal::as_str))
}

/// Returns an address on 127.0.0.1 at which no program listens. No other program can listen there
/// while the returned socket is open.
pub(super) fn held() -> (Socket, SocketAddr) {
    let held = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    held.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    let address = held.local_addr().unwrap().as_socket().unwrap();
    (held, address)
}

/// Returns two listeners on one port, on 127.0.0.1 and on 127.0.0.2.
async fn two_on_one_port() -> (TcpListener, TcpListener, u16) {
    loop {
        let first = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = first.local_addr().unwrap().port();
        if let Ok(second) = TcpListener::bind(("127.0.0.2", port)).await {
            return (first, second, port);
        }
    }
}

/// Returns two listeners on one port. The one on 127.0.0.1 never answers, because its backlog is
/// full. The one on 127.0.0.2 accepts.
async fn a_silent_and_a_live_one() -> (impl Sized, TcpListener, u16) {
    loop {
        let live = TcpListener::bind("127.0.0.2:0").await.unwrap();
        let port = live.local_addr().unwrap().port();
        let silent = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        if silent.bind(&address.into()).is_err() {
            continue;
        }
        silent.listen(0).unwrap();
        let only = std::net::TcpStream::connect(address).unwrap();
        return ((silent, only), live, port);
    }
}

/// Returns whether no client has connected. On loopback, a client is in the backlog before its
/// connect(2) returns.
fn was_left_alone(listener: TcpListener) -> bool {
    let listener = listener.into_std().unwrap();
    matches!(listener.accept(), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

#[tokio::test]
async fn a_public_name_is_refused_when_it_becomes_private() {
    let server = Server::start().await;
    let dialer = from_nowhere(&server);
    server.says("rebind.example.", Answer::has(&["8.8.8.8"], 0));
    assert_eq!(fails(&dialer, "rebind.example:80").await, ALLOWED_BUT_FROM_NOWHERE);
    for (ip, reason) in [
        ("127.0.0.1", "loopback"),
        ("10.0.0.1", "private"),
        ("169.254.169.254", "metadata"),
        ("0.0.0.0", "unspecified"),
        ("::1", "loopback"),
        ("::ffff:192.168.0.1", "private"),
        ("64:ff9b::7f00:1", "loopback"),
    ] {
        server.says("rebind.example.", Answer::has(&[ip], 0));
        for name in [
            "rebind.example:80",
            "ReBind.Example:80",
            "rebind.example.:80",
            "REBIND.EXAMPLE.:80",
        ] {
            assert_eq!(fails(&dialer, name).await, (reason, Some(reason)), "{name} is {ip}");
        }
    }
    server.says("rebind.example.", Answer::has(&["8.8.4.4"], 0));
    assert_eq!(fails(&dialer, "rebind.example:80").await, ALLOWED_BUT_FROM_NOWHERE);
}

#[tokio::test]
async fn cached_addresses_are_checked_like_fresh_ones() {
    let server = Server::start().await;
    let dialer = from_nowhere(&server);
    server.says("inside.example.", Answer::has(&["10.0.0.1"], 60));
    for _ in 0..2 {
        assert_eq!(fails(&dialer, "inside.example:80").await, ("private", Some("private")));
    }
    let error = dial(&dialer, "inside.example:80").await.unwrap_err();
    assert_eq!(error.to_string(), "not allowed: 10.0.0.1 is a private address");
    let asked = server.asked("inside.example.");
    assert_eq!(fails(&dialer, "INSIDE.example.:80").await, ("private", Some("private")));
    assert_eq!(server.asked("inside.example."), asked);
}

/// The accept task polls each session once, in the order in which the clients connected.
#[tokio::test]
async fn a_target_that_needs_no_lookup_is_dialled_at_the_first_poll() {
    let server = Server::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap().into_std().unwrap();
    let port = listener.local_addr().unwrap().port();
    // The first dial also asks for IPv6 addresses, and caches that the name has none.
    server.says("cached.example.", Answer::has(&["127.0.0.1"], 60));
    let policy = TargetPolicy::new(Targets::Everything, OwnListeners::default());
    let settings = ResolverSettings::Servers(vec![server.address]);
    let dialer = dialer(settings, SocketSettings::default(), policy);
    dial(&dialer, &format!("cached.example:{port}")).await.unwrap();
    listener.accept().unwrap();
    for target in [format!("127.0.0.1:{port}"), format!("cached.example:{port}")] {
        let target = target.parse().unwrap();
        let mut dialing = std::pin::pin!(dialer.dial_for(&target, DialRequest::default()));
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(dialing.as_mut().poll(&mut cx).is_pending());
        listener.accept().unwrap();
        dialing.await.unwrap();
    }
}

#[tokio::test]
async fn only_the_allowed_addresses_of_a_name_are_dialled() {
    let server = Server::start().await;
    let (ours, theirs, port) = two_on_one_port().await;
    let own = OwnListeners::default();
    let _entry = own.add(&ours).unwrap();
    let policy = TargetPolicy::new(Targets::Everything, own);
    let resolver = ResolverSettings::Servers(vec![server.address]);
    let dialer = dialer(resolver, SocketSettings::default(), policy);
    for ips in [["127.0.0.1", "127.0.0.2"], ["127.0.0.2", "127.0.0.1"]] {
        server.says("both.example.", Answer::has(&ips, 0));
        let dialed = dial(&dialer, &format!("both.example:{port}")).await.unwrap();
        assert_eq!(dialed.address, Some(([127, 0, 0, 2], port).into()));
        theirs.accept().await.unwrap();
    }
    server.says("both.example.", Answer::has(&["127.0.0.1"], 0));
    assert_eq!(
        fails(&dialer, &format!("both.example:{port}")).await,
        ("loop", Some("loop"))
    );
    assert!(was_left_alone(ours));
}

#[tokio::test]
async fn a_name_that_changes_to_an_own_address_is_refused_without_a_dial() {
    let server = Server::start().await;
    let (ours, theirs, port) = two_on_one_port().await;
    let own = OwnListeners::default();
    let resolver = ResolverSettings::Servers(vec![server.address]);
    let policy = TargetPolicy::new(Targets::Everything, own.clone());
    let dialer = dialer(resolver, SocketSettings::default(), policy);
    // A listener is added when it is bound, which is after the dialer has been created.
    let _entry = own.add(&ours).unwrap();
    let target = format!("rebind.example:{port}");
    server.says("rebind.example.", Answer::has(&["127.0.0.2"], 0));
    dial(&dialer, &target).await.unwrap();
    theirs.accept().await.unwrap();
    for ip in ["127.0.0.1", "0.0.0.0", "::ffff:127.0.0.1"] {
        server.says("rebind.example.", Answer::has(&[ip], 0));
        assert_eq!(fails(&dialer, &target).await, ("loop", Some("loop")), "{ip}");
        let literal = SocketAddr::new(ip.parse().unwrap(), port).to_string();
        assert_eq!(fails(&dialer, &literal).await, ("loop", Some("loop")), "{ip}");
    }
    assert!(was_left_alone(ours));
}

#[tokio::test]
async fn names_that_need_no_lookup_are_refused_without_one() {
    let server = Server::start().await;
    let dialer = from_nowhere(&server);
    for (target, reason) in [
        ("localhost:80", "loopback"),
        ("a.LOCALHOST.:80", "loopback"),
        ("127.1:80", "reserved"),
    ] {
        assert_eq!(fails(&dialer, target).await, (reason, Some(reason)), "{target}");
        let error = dialer.addresses(&target.parse().unwrap(), None).await.unwrap_err();
        assert_eq!(error.denied().map(Refusal::as_str), Some(reason), "{target}");
    }
    assert_eq!(server.asked("127.1.") + server.asked("localhost."), 0);
}

#[tokio::test]
async fn only_allowed_addresses_are_returned_for_datagrams() {
    let server = Server::start().await;
    let dialer = from_nowhere(&server);
    server.says(
        "mixed.example.",
        Answer::has(&["10.0.0.1", "8.8.8.8", "::ffff:8.8.4.4"], 60),
    );
    let addresses = dialer
        .addresses(&"mixed.example:53".parse().unwrap(), None)
        .await
        .unwrap();
    let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    assert_eq!(texts.len(), 2);
    assert!(
        texts.contains(&"8.8.8.8:53".to_owned()) && texts.contains(&"8.8.4.4:53".to_owned()),
        "{texts:?}"
    );
    for (target, reason) in [
        ("inside.example:53", Some("private")),
        ("127.0.0.1:53", Some("loopback")),
        ("[::ffff:10.0.0.1]:53", Some("private")),
        ("missing.example:53", None),
    ] {
        server.says("inside.example.", Answer::has(&["10.0.0.1"], 60));
        let error = dialer.addresses(&target.parse().unwrap(), None).await.unwrap_err();
        assert_eq!(error.denied().map(Refusal::as_str), reason, "{target}");
    }
    let literal = dialer
        .addresses(&"[::ffff:8.8.8.8]:53".parse().unwrap(), None)
        .await
        .unwrap();
    assert_eq!(literal, ["8.8.8.8:53".parse().unwrap()]);
}

#[tokio::test]
async fn a_name_with_a_dead_address_connects_to_the_live_one() {
    let server = Server::start().await;
    let (_dead, live, port) = loop {
        let (dead, address) = held();
        if let Ok(live) = TcpListener::bind(("127.0.0.2", address.port())).await {
            break (dead, live, address.port());
        }
    };
    server.says("half.example.", Answer::has(&["127.0.0.1", "127.0.0.2", "::1"], 60));
    let resolver = ResolverSettings::Servers(vec![server.address]);
    let dialer = dialer(
        resolver,
        SocketSettings::default(),
        TargetPolicy::new(Targets::Everything, OwnListeners::default()),
    );
    let dialed = dial(&dialer, &format!("half.example:{port}")).await.unwrap();
    assert_eq!(dialed.address, Some(([127, 0, 0, 2], port).into()));
    assert!(dialed.early.is_empty());
    live.accept().await.unwrap();
}

/// Without a limit on parallel attempts, clients that ask for names with many silent addresses
/// could use up all descriptors.
#[tokio::test(start_paused = true)]
async fn only_a_parallel_attempt_waits_for_a_descriptor() {
    let policy = TargetPolicy::new(Targets::Everything, OwnListeners::default());
    let dialer = dialer(ResolverSettings::System, SocketSettings::default(), policy);
    let (_silent, live, port) = a_silent_and_a_live_one().await;
    let eyeballs = |first: [u8; 4]| {
        let eyeballs = HappyEyeballs::with_addresses([first, [127, 0, 0, 2]].map(IpAddr::from));
        dialer.connect_any(
            eyeballs,
            Vec::new(),
            ([0, 0, 0, 0], port).into(),
            Purpose::Target(None),
            dialer.caller(None),
        )
    };
    let descriptors = u32::try_from(dialer.beside.available_permits()).unwrap();
    let all = dialer.beside.acquire_many(descriptors).await.unwrap();
    let late = eyeballs([127, 0, 0, 1]).await.unwrap_err();
    assert_eq!(late.as_str(), "ETIMEDOUT");
    // Nothing listens on 127.0.0.3, so this attempt fails, and the next one gets its descriptor.
    assert!(eyeballs([127, 0, 0, 3]).await.is_ok());
    drop(all);
    assert!(eyeballs([127, 0, 0, 1]).await.is_ok());
    for _ in 0..2 {
        live.accept().await.unwrap();
    }
    assert!(was_left_alone(live), "the first attempts did not reach it");
}

#[tokio::test]
async fn failures_are_reported_by_their_names() {
    let server = Server::start().await;
    let (_held, address) = held();
    let resolver = ResolverSettings::Servers(vec![server.address]);
    let dialer = dialer(
        resolver,
        SocketSettings::default(),
        TargetPolicy::new(Targets::Everything, OwnListeners::default()),
    );
    let refused = dial(&dialer, &address.to_string()).await.unwrap_err();
    assert_eq!(
        (refused.as_str(), refused.failure()),
        ("ECONNREFUSED", Failure::Refused)
    );
    let missing = dial(&dialer, "missing.example:80").await.unwrap_err();
    assert_eq!(
        (missing.as_str(), missing.failure()),
        ("unresolved", Failure::HostUnreachable)
    );
    server.says("broken.example.", Answer::Fails);
    let broken = dial(&dialer, "broken.example:80").await.unwrap_err();
    assert_eq!(
        (broken.as_str(), broken.failure()),
        ("unresolved", Failure::HostUnreachable)
    );
}

/// The clock is paused, so it jumps to the deadline when nothing answers.
#[tokio::test(start_paused = true)]
async fn a_silent_dns_server_fails_the_dial_at_the_timeout() {
    let server = Server::start().await;
    server.says("silent.example.", Answer::Nothing);
    let resolver = ResolverSettings::Servers(vec![server.address]);
    let dialer = dialer(resolver, SocketSettings::default(), TargetPolicy::default());
    let start = Instant::now();
    let late = dial(&dialer, "silent.example:80").await.unwrap_err();
    assert_eq!((late.as_str(), late.failure()), ("ETIMEDOUT", Failure::TimedOut));
    assert!(start.elapsed() <= TIME, "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_unix_socket_is_reached_unless_it_is_an_own_listener() {
    let folder = std::env::temp_dir().join(format!("spliceway-dial-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (ours, theirs) = (folder.join("ours"), folder.join("theirs"));
    let own = OwnListeners::default();
    let our_listener = UnixListener::bind(&ours).unwrap();
    let _entry = own.add(&our_listener).unwrap();
    let their_listener = UnixListener::bind(&theirs).unwrap();
    let policy = TargetPolicy::new(Targets::Public, own);
    let dialer = dialer(ResolverSettings::System, SocketSettings::default(), policy);
    let dialed = dialer
        .dial_for(&Target::Unix(theirs.into()), DialRequest::default())
        .await
        .unwrap();
    assert!(matches!(dialed.stream, Stream::Unix(_)) && dialed.address.is_none());
    their_listener.accept().await.unwrap();
    let refused = dialer
        .dial_for(&Target::Unix(ours.into()), DialRequest::default())
        .await
        .unwrap_err();
    assert_eq!(refused.denied().map(Refusal::as_str), Some("loop"));
    let missing = dialer
        .dial_for(&Target::Unix(folder.join("missing").into()), DialRequest::default())
        .await
        .unwrap_err();
    assert!(matches!(missing, DialError::Unreachable(Target::Unix(_), _)));
    std::fs::remove_dir_all(&folder).unwrap();
}
