//! Tests how associations end, and that they close their sockets.

use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use rustix::io::Errno;
use socket2::SockRef;
use tokio::io::AsyncWriteExt;
use tokio::task::yield_now;
use tokio::time::{Instant, advance, pause, resume};

use super::rig::{ANYWHERE, Book, Rig, soon, target};
use crate::access::datagram_counts::Dropped;
use crate::kit::outcome::SessionEnd;
use crate::session::udp::associate::association::AssociateSettings;
use spliceway_protocol::socks5::datagram::Malformed;

/// Returns the inode of the socket that is bound to this address, from the kernel's list. No other
/// open socket has this inode.
async fn socket_at(address: SocketAddr) -> String {
    // The list shows addresses as hexadecimal 4-byte words in host byte order.
    let (list, ip) = match address {
        SocketAddr::V4(v4) => ("/proc/self/net/udp", v4.ip().octets().to_vec()),
        SocketAddr::V6(v6) => ("/proc/self/net/udp6", v6.ip().octets().to_vec()),
    };
    let words = ip
        .chunks_exact(4)
        .map(|word| u32::from_ne_bytes(word.try_into().unwrap()));
    let local = words.map(|word| format!("{word:08X}")).collect::<String>() + &format!(":{:04X}", address.port());
    let listed = async {
        // Between two reads, the kernel finds its index in the list by counting from the start. If
        // another test closes a socket meanwhile, the kernel skips a socket that is still open.
        loop {
            let sockets = fs::read_to_string(list).unwrap();
            let mut sockets = sockets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            match sockets.find(|fields| fields[1] == local) {
                Some(found) => break found[9].to_owned(),
                None => yield_now().await,
            }
        }
    };
    soon(listed).await
}

/// Returns whether this process has the socket open.
fn is_open(inode: &str) -> bool {
    let link = format!("socket:[{inode}]");
    let mut descriptors = fs::read_dir("/proc/self/fd").unwrap();
    descriptors
        .any(|entry| fs::read_link(entry.unwrap().path()).is_ok_and(|target| target.as_os_str() == link.as_str()))
}

/// Returns a rig with all of its sockets open, and their inodes.
async fn in_use() -> (Rig, Vec<String>) {
    let rig = Rig::new("127.0.0.1").await;
    let (v4, v6) = (target("127.0.0.1").await, target("::1").await);
    let (four, six) = (rig.echo(&v4, b"4").await, rig.echo(&v6, b"6").await);
    let outside_v4 = (Ipv4Addr::UNSPECIFIED, four.port()).into();
    let outside_v6 = (Ipv6Addr::UNSPECIFIED, six.port()).into();
    let mut sockets = Vec::new();
    for address in [rig.address, outside_v4, outside_v6] {
        sockets.push(socket_at(address).await);
    }
    assert!(sockets.iter().all(|socket| is_open(socket)));
    (rig, sockets)
}

#[tokio::test]
async fn an_association_ends_with_its_connection_and_closes_every_socket() {
    let (rig, sockets) = in_use().await;
    drop(rig.connection);
    assert_eq!(soon(rig.running).await.unwrap().end, SessionEnd::ClientEof);
    assert!(!sockets.iter().any(|socket| is_open(socket)));
}

#[tokio::test]
async fn a_half_close_by_the_client_ends_the_association() {
    let mut rig = Rig::new("127.0.0.1").await;
    rig.connection.shutdown().await.unwrap();
    assert_eq!(soon(rig.running).await.unwrap().end, SessionEnd::ClientEof);
}

#[tokio::test]
async fn a_failed_connection_ends_the_association() {
    let (rig, sockets) = in_use().await;
    SockRef::from(&rig.connection).set_linger(Some(Duration::ZERO)).unwrap();
    drop(rig.connection);
    let outcome = soon(rig.running).await.unwrap();
    assert_eq!(outcome.end, SessionEnd::ResetByClient);
    let reset = std::io::Error::from(Errno::CONNRESET).to_string();
    assert_eq!(outcome.cause, Some(reset.into()));
    assert!(!sockets.iter().any(|socket| is_open(socket)));
}

#[tokio::test]
async fn an_association_can_be_stopped() {
    let (rig, sockets) = in_use().await;
    rig.stats.stop();
    assert_eq!(soon(rig.running).await.unwrap().end, SessionEnd::Drained);
    assert!(!sockets.iter().any(|socket| is_open(socket)));
    assert_eq!(rig.stats.snapshot().up.datagrams, 2, "the counts stay");
}

#[tokio::test]
async fn an_association_can_be_dropped() {
    let (rig, sockets) = in_use().await;
    rig.running.abort();
    assert!(soon(rig.running).await.unwrap_err().is_cancelled());
    assert!(!sockets.iter().any(|socket| is_open(socket)));
}

/// The test pauses the clock only to advance it. A paused clock would jump ahead while the test
/// waits for datagrams.
#[tokio::test]
async fn an_association_ends_after_the_idle_timeout() {
    let idle = Duration::from_secs(600);
    let settings = AssociateSettings {
        idle: Some(idle),
        ..AssociateSettings::patient()
    };
    let rig = Rig::with("127.0.0.1", &settings, Book::new().0, |_| ANYWHERE).await;
    let target = target("127.0.0.1").await;
    for _ in 0..3 {
        rig.echo(&target, b"not idle").await;
        pause();
        advance(idle * 2 / 3).await;
        resume();
    }
    assert!(!rig.running.is_finished());
    // A dropped datagram does not extend the idle time.
    rig.send_raw(b"").await;
    rig.await_dropped(Dropped::Malformed(Malformed::Short), 1).await;
    let dropped = Instant::now();
    pause();
    advance(idle / 2).await;
    assert_eq!(rig.running.await.unwrap().end, SessionEnd::Idle);
    assert!(dropped.elapsed() < idle * 3 / 4);
}
