//! Tests dropped datagrams.

use tokio::net::UdpSocket;

use super::rig::{ANYWHERE, Book, Rig, take, target};
use crate::access::datagram_counts::Dropped;
use crate::session::udp::associate::association::AssociateSettings;
use spliceway_protocol::address::Target;
use spliceway_protocol::socks5::datagram::{Header, Malformed};

#[tokio::test]
async fn fragments_and_malformed_datagrams_are_dropped() {
    let (rig, target) = (Rig::new("127.0.0.1").await, target("127.0.0.1").await);
    let whole = [Header::of(target.local_addr().unwrap()).as_bytes(), b"data"].concat();
    let with = |index: usize, byte: u8| {
        let mut datagram = whole.clone();
        datagram[index] = byte;
        datagram
    };
    let cases = [
        (with(2, 1), Malformed::Fragment),
        (with(2, 0x80), Malformed::Fragment),
        (with(0, 1), Malformed::Reserved),
        (with(3, 9), Malformed::AddressType),
        (whole[..9].to_vec(), Malformed::Short),
        (Vec::new(), Malformed::Short),
        (vec![0, 0, 0, 3, 1, b' ', 0, 80], Malformed::Name),
        ([&whole[..8], &[0, 0]].concat(), Malformed::Port),
    ];
    for (datagram, _) in &cases {
        rig.send_raw(datagram).await;
    }
    rig.echo(&target, b"the first that arrives").await;
    for (datagram, malformed) in &cases {
        let same = cases.iter().filter(|(_, other)| other == malformed).count();
        assert_eq!(rig.dropped(Dropped::Malformed(*malformed)), same as u64, "{datagram:?}");
    }
    assert_eq!(rig.stats.snapshot().dropped_in_all(), cases.len() as u64);
}

#[tokio::test]
async fn another_host_may_not_send_even_before_the_client_has() {
    let (rig, target) = (Rig::new("127.0.0.1").await, target("127.0.0.1").await);
    let datagram = [Header::of(target.local_addr().unwrap()).as_bytes(), b"stolen"].concat();
    let stranger = UdpSocket::bind("127.0.0.2:0").await.unwrap();
    stranger.send_to(&datagram, rig.address).await.unwrap();
    rig.echo(&target, b"the client's own").await;
    assert_eq!(rig.dropped(Dropped::Source), 1);
}

#[tokio::test]
async fn another_port_on_the_client_s_host_may_not_send_later() {
    let (rig, target) = (Rig::new("127.0.0.1").await, target("127.0.0.1").await);
    let datagram = [Header::of(target.local_addr().unwrap()).as_bytes(), b"stolen"].concat();
    let stranger = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    // A datagram that is not valid SOCKS does not set the client's port.
    stranger.send_to(b"not yet", rig.address).await.unwrap();
    rig.echo(&target, b"mine").await;
    stranger.send_to(&datagram, rig.address).await.unwrap();
    rig.echo(&target, b"still mine").await;
    assert_eq!(rig.dropped(Dropped::Source), 1);
    assert_eq!(rig.dropped(Dropped::Malformed(Malformed::Reserved)), 1);
}

#[tokio::test]
async fn a_declared_port_belongs_to_the_client_from_the_start() {
    let patient = AssociateSettings::patient();
    let rig = Rig::with("127.0.0.1", &patient, Book::new().0, Target::Ip).await;
    let target = target("127.0.0.1").await;
    let datagram = [Header::of(target.local_addr().unwrap()).as_bytes(), b"stolen"].concat();
    let stranger = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    stranger.send_to(&datagram, rig.address).await.unwrap();
    rig.echo(&target, b"declared").await;
    assert_eq!(rig.dropped(Dropped::Source), 1);
}

#[tokio::test]
async fn a_port_declared_for_another_host_is_ignored() {
    let patient = AssociateSettings::patient();
    let elsewhere = Target::Ip(([192, 0, 2, 1], 9).into());
    let rig = Rig::with("127.0.0.1", &patient, Book::new().0, |_| elsewhere).await;
    rig.echo(&target("127.0.0.1").await, b"from behind a translation").await;
}

#[tokio::test]
async fn a_refused_target_receives_no_datagram() {
    let (book, _asked) = Book::new();
    let rig = Rig::with("127.0.0.1", &AssociateSettings::patient(), book.clone(), |_| ANYWHERE).await;
    let target = target("127.0.0.1").await;
    rig.echo(&target, b"allowed").await;
    book.refuse(true);
    rig.send(target.local_addr().unwrap(), b"refused").await;
    // Once the datagram is counted, it has been dropped. Only then may the policy change again.
    rig.await_dropped(Dropped::Denied, 1).await;
    book.refuse(false);
    rig.echo(&target, b"allowed again").await;
    assert_eq!(rig.stats.snapshot().dropped_in_all(), 1);
}

#[tokio::test]
async fn an_address_that_the_client_has_not_sent_to_may_not_answer() {
    let (rig, friend) = (Rig::new("127.0.0.1").await, target("127.0.0.1").await);
    let ours = rig.echo(&friend, b"to the friend").await;
    let stranger = target("127.0.0.1").await;
    stranger.send_to(b"unasked", ours).await.unwrap();
    friend.send_to(b"asked", ours).await.unwrap();
    assert_eq!(rig.receive().await, (friend.local_addr().unwrap(), b"asked".to_vec()));
    assert_eq!(rig.dropped(Dropped::Unsolicited), 1);
    rig.send(stranger.local_addr().unwrap(), b"now").await;
    assert_eq!(take(&stranger).await, (b"now".to_vec(), ours));
    stranger.send_to(b"asked too", ours).await.unwrap();
    assert_eq!(
        rig.receive().await,
        (stranger.local_addr().unwrap(), b"asked too".to_vec())
    );
}
