//! Tests forwarded datagrams.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::AsyncWriteExt;
use tokio::net::UdpSocket;

use super::rig::{ANYWHERE, Book, Rig, take, target};
use crate::access::datagram_counts::{Dropped, Passed};
use crate::session::udp::associate::association::AssociateSettings;

#[tokio::test]
async fn a_datagram_goes_to_its_target_and_the_answer_comes_back() {
    for host in ["127.0.0.1", "::1"] {
        let (rig, target) = (Rig::new(host).await, target(host).await);
        rig.echo(&target, b"over there").await;
        rig.echo(&target, b"").await;
        rig.echo(&target, b"and again").await;
        let summary = rig.stats.snapshot();
        let both = Passed {
            datagrams: 3,
            bytes: 19,
        };
        assert_eq!((summary.up, summary.down, summary.dropped_in_all()), (both, both, 0));
    }
}

#[tokio::test]
async fn a_client_of_either_family_reaches_targets_of_both() {
    let (v4, v6) = (target("127.0.0.1").await, target("::1").await);
    for host in ["127.0.0.1", "::1"] {
        let rig = Rig::new(host).await;
        assert!(rig.echo(&v4, b"four").await.is_ipv4());
        assert!(rig.echo(&v6, b"six").await.is_ipv6());
    }
}

#[tokio::test]
async fn every_target_sees_the_same_source_port() {
    let rig = Rig::new("127.0.0.1").await;
    let (one, other) = (target("127.0.0.1").await, target("127.0.0.1").await);
    assert_eq!(rig.echo(&one, b"1").await, rig.echo(&other, b"2").await);
}

#[tokio::test]
async fn datagrams_keep_their_order_and_their_boundaries() {
    let (rig, target) = (Rig::new("127.0.0.1").await, target("127.0.0.1").await);
    let address = target.local_addr().unwrap();
    // More datagrams than one batch holds, but fewer bytes than the kernel buffers for a socket.
    let datagrams: Vec<Vec<u8>> = (0..100_u8).map(|number| vec![number; usize::from(number)]).collect();
    for data in &datagrams {
        rig.send(address, data).await;
    }
    let mut ours = None;
    for data in &datagrams {
        let (received, source) = take(&target).await;
        assert_eq!(&received, data);
        ours = Some(source);
    }
    for data in &datagrams {
        target.send_to(data, ours.unwrap()).await.unwrap();
    }
    for data in &datagrams {
        assert_eq!(rig.receive().await, (address, data.clone()));
    }
}

/// The traffic resembles a bulk transfer: datagrams of one length, a shorter one at the end of each
/// flight, and two alternating flows.
#[tokio::test]
async fn bulk_datagrams_are_forwarded_unchanged() {
    let (rig, one, other) = (
        Rig::new("127.0.0.1").await,
        target("127.0.0.1").await,
        target("127.0.0.1").await,
    );
    for flight in 0..20_u8 {
        let datagrams: Vec<Vec<u8>> = (0..40).map(|number| vec![flight + number; 1_200]).collect();
        let last = vec![flight; usize::from(flight) * 50];
        for (number, data) in datagrams.iter().chain([&last]).enumerate() {
            let target = if number % 16 < 12 { &one } else { &other };
            rig.send(target.local_addr().unwrap(), data).await;
        }
        for (number, data) in datagrams.iter().chain([&last]).enumerate() {
            let target = if number % 16 < 12 { &one } else { &other };
            let (received, ours) = take(target).await;
            assert_eq!(&received, data);
            target.send_to(data, ours).await.unwrap();
        }
        for (number, data) in datagrams.iter().chain([&last]).enumerate() {
            let target = if number % 16 < 12 { &one } else { &other };
            assert_eq!(rig.receive().await, (target.local_addr().unwrap(), data.clone()));
        }
    }
    let both = rig.stats.snapshot();
    let bytes = 20 * 40 * 1_200 + (0..20).map(|flight| flight * 50).sum::<u64>();
    let passed = Passed {
        datagrams: 20 * 41,
        bytes,
    };
    assert_eq!((both.up, both.down, both.dropped_in_all()), (passed, passed, 0));
}

#[tokio::test]
async fn two_associations_are_isolated_from_each_other() {
    let (one, other) = (Rig::new("127.0.0.1").await, Rig::new("127.0.0.1").await);
    let target = target("127.0.0.1").await;
    let (of_one, of_other) = (one.echo(&target, b"one").await, other.echo(&target, b"other").await);
    assert!(of_one != of_other && one.address != other.address);
    let address = target.local_addr().unwrap();
    target.send_to(b"to the other", of_other).await.unwrap();
    target.send_to(b"to the one", of_one).await.unwrap();
    assert_eq!(one.receive().await, (address, b"to the one".to_vec()));
    assert_eq!(other.receive().await, (address, b"to the other".to_vec()));
    // Each association accepts datagrams from its own client only.
    one.socket.send_to(b"", other.address).await.unwrap();
    other.echo(&target, b"still there").await;
    assert_eq!(other.dropped(Dropped::Source), 1);
}

/// The query asks for the A record of example.com, in the form that any resolver sends. The server
/// knows one address.
#[tokio::test]
async fn a_dns_query_is_answered() {
    let query = [
        &[0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 7][..],
        b"example",
        &[3],
        b"com",
        &[0, 0, 1, 0, 1],
    ]
    .concat();
    let (rig, server) = (Rig::new("127.0.0.1").await, target("127.0.0.1").await);
    let address = server.local_addr().unwrap();
    rig.send(address, &query).await;
    let (asked, resolver) = take(&server).await;
    assert_eq!(asked, query);
    // The answer is the query with the response bit, and one record: the name above, A, IN, 60 s,
    // 192.0.2.7.
    let mut answer = asked;
    (answer[2], answer[7]) = (0x81, 1);
    answer.extend([0xC0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 7]);
    server.send_to(&answer, resolver).await.unwrap();
    assert_eq!(rig.receive().await, (address, answer));
}

#[tokio::test]
async fn the_longest_datagram_passes_and_a_longer_one_is_dropped_alone() {
    // The longest UDP payload over each family (RFC 768, RFC 8200), minus the SOCKS header.
    for (host, longest) in [("127.0.0.1", 65_507 - 10), ("::1", 65_527 - 22)] {
        let (rig, target) = (Rig::new(host).await, target(host).await);
        let data: Vec<u8> = (0..longest).map(|index: u32| index.to_le_bytes()[0]).collect();
        let ours = rig.echo(&target, &data).await;
        target.send_to(&[&data[..], b"+"].concat(), ours).await.unwrap();
        rig.echo(&target, b"after it").await;
        assert_eq!(rig.dropped(Dropped::TooLong), 1);
    }
}

#[tokio::test]
async fn the_advertised_address_must_have_the_family_of_the_client() {
    let advertise = Some(Ipv4Addr::new(203, 0, 113, 5).into());
    let settings = AssociateSettings {
        advertise,
        ..AssociateSettings::patient()
    };
    for (host, told) in [
        ("127.0.0.1", "203.0.113.5"),
        ("127.0.0.7", "203.0.113.5"),
        ("::1", "::1"),
    ] {
        let rig = Rig::with(host, &settings, Book::new().0, |_| ANYWHERE).await;
        assert_eq!(rig.address.ip().to_string(), told);
        assert_ne!(rig.address.port(), 0);
    }
    assert_eq!(Rig::new("127.0.0.7").await.address.ip().to_string(), "127.0.0.7");
}

#[tokio::test]
async fn data_on_the_tcp_connection_does_not_disturb_datagrams() {
    let (mut rig, target) = (Rig::new("127.0.0.1").await, target("127.0.0.1").await);
    for _ in 0..3 {
        rig.connection.write_all(&[0xAA; 1000]).await.unwrap();
        rig.echo(&target, b"datagram").await;
    }
}

#[tokio::test]
async fn an_unreachable_target_does_not_end_the_association() {
    let (rig, gone, target) = (
        Rig::new("127.0.0.1").await,
        UdpSocket::bind("127.0.0.1:0").await.unwrap(),
        target("127.0.0.1").await,
    );
    let closed: SocketAddr = gone.local_addr().unwrap();
    rig.echo(&gone, b"while it is there").await;
    drop(gone);
    for _ in 0..20 {
        rig.send(closed, b"nobody").await;
        rig.echo(&target, b"somebody").await;
    }
}
