//! Tests datagrams to names.

use std::net::SocketAddr;

use tokio::sync::mpsc;

use super::rig::{ANYWHERE, Book, Lookup, Rig, soon, take, target};
use crate::access::datagram_counts::Dropped;
use crate::access::policy::Denied;
use crate::reach::dial::{DialError, LookupError};
use crate::session::udp::associate::association::AssociateSettings;

async fn rig(host: &str) -> (Rig, mpsc::UnboundedReceiver<Lookup>) {
    let (book, asked) = Book::new();
    let rig = Rig::with(host, &AssociateSettings::patient(), book, |_| ANYWHERE).await;
    (rig, asked)
}

/// Returns the next lookup.
async fn next(asked: &mut mpsc::UnboundedReceiver<Lookup>) -> Lookup {
    soon(asked.recv()).await.expect("somebody may ask")
}

/// Returns an address at which no program listens or answers.
fn nowhere() -> SocketAddr {
    ([127, 0, 0, 1], 1).into()
}

#[tokio::test]
async fn datagrams_wait_in_order_and_only_for_their_own_name() {
    let ((rig, mut asked), slow, quick) = (
        rig("127.0.0.1").await,
        target("127.0.0.1").await,
        target("127.0.0.1").await,
    );
    let (slow_address, quick_address) = (slow.local_addr().unwrap(), quick.local_addr().unwrap());
    rig.send_to_name("slow.example", slow_address.port(), b"1").await;
    rig.send_to_name("slow.example", slow_address.port(), b"2").await;
    let waiting = next(&mut asked).await;
    assert_eq!(waiting.target, format!("slow.example:{}", slow_address.port()));

    rig.send_to_name("quick.example", quick_address.port(), b"3").await;
    next(&mut asked).await.answer.send(Ok(vec![quick_address])).unwrap();
    assert_eq!(take(&quick).await.0, b"3");
    rig.echo(&quick, b"an address needs no name").await;

    rig.send_to_name("slow.example", slow_address.port(), b"4").await;
    // Datagram 4 waits too, because the association received it before the datagram that arrives
    // here.
    rig.echo(&quick, b"4 is there").await;
    waiting.answer.send(Ok(vec![slow_address])).unwrap();
    for expected in [b"1", b"2", b"4"] {
        let (data, ours) = take(&slow).await;
        assert_eq!(data, expected);
        slow.send_to(&data, ours).await.unwrap();
        assert_eq!(rig.receive().await, (slow_address, data), "the answer says the address");
    }
    rig.send_to_name("slow.example", slow_address.port(), b"5").await;
    assert_eq!(take(&slow).await.0, b"5");
    assert!(asked.try_recv().is_err(), "each name was looked up once");
    assert_eq!(rig.stats.snapshot().dropped_in_all(), 0);
}

#[tokio::test]
async fn datagrams_to_a_name_without_an_address_are_dropped_with_a_reason() {
    let ((rig, mut asked), target) = (rig("127.0.0.1").await, target("127.0.0.1").await);
    let address = target.local_addr().unwrap();
    for (outcome, reason) in [
        (DialError::Unresolved(LookupError::NoAddress), Dropped::Unresolved),
        (Denied::Private.into(), Dropped::Denied),
        (Denied::Rule("--to-deny none.example".into()).into(), Dropped::Rule),
    ] {
        let before = rig.dropped(reason);
        rig.send_to_name("none.example", address.port(), b"1").await;
        rig.send_to_name("none.example", address.port(), b"2").await;
        let lookup = next(&mut asked).await;
        rig.echo(&target, b"both wait").await;
        lookup.answer.send(Err(outcome)).unwrap();
        rig.await_dropped(reason, before + 2).await;
    }
    let denial = rig.stats.first_denial().map(str::to_owned);
    assert_eq!(denial.as_deref(), Some("not allowed: a private address"));
    rig.send_to_name("none.example", address.port(), b"3").await;
    next(&mut asked).await.answer.send(Ok(vec![address])).unwrap();
    assert_eq!(
        take(&target).await.0,
        b"3",
        "it is looked up again, and nothing of before comes"
    );
}

#[tokio::test]
async fn an_address_without_a_route_is_skipped() {
    let ((rig, mut asked), target) = (rig("127.0.0.1").await, target("::1").await);
    let address = target.local_addr().unwrap();
    // Sending to the broadcast address fails, because the socket does not have `SO_BROADCAST`.
    let no_way: SocketAddr = ([255; 4], address.port()).into();
    rig.send_to_name("both.example", address.port(), b"1").await;
    next(&mut asked).await.answer.send(Ok(vec![no_way, address])).unwrap();
    assert_eq!(take(&target).await.0, b"1");
    rig.send_to_name("both.example", address.port(), b"2").await;
    assert_eq!(take(&target).await.0, b"2");
    assert_eq!(rig.stats.snapshot().dropped_in_all(), 0);
}

#[tokio::test]
async fn a_name_with_both_families_prefers_the_family_of_the_client() {
    let (v4, v6) = (target("127.0.0.1").await, target("::1").await);
    let both = [&v6, &v4].map(|target| target.local_addr().unwrap());
    for (host, expected) in [("127.0.0.1", &v4), ("::1", &v6)] {
        let (rig, mut asked) = rig(host).await;
        rig.send_to_name("both.example", 53, b"1").await;
        next(&mut asked).await.answer.send(Ok(both.to_vec())).unwrap();
        assert_eq!(take(expected).await.0, b"1");
    }
}

#[tokio::test]
async fn the_policy_also_applies_to_the_addresses_of_names() {
    let (book, mut asked) = Book::new();
    let rig = Rig::with("127.0.0.1", &AssociateSettings::patient(), book.clone(), |_| ANYWHERE).await;
    let target = target("127.0.0.1").await;
    let address = target.local_addr().unwrap();
    rig.send_to_name("inner.example", address.port(), b"1").await;
    let lookup = next(&mut asked).await;
    book.refuse(true);
    lookup.answer.send(Ok(vec![address])).unwrap();
    rig.await_dropped(Dropped::Denied, 1).await;
    book.refuse(false);
    rig.echo(&target, b"the first that arrives").await;
}

#[tokio::test]
async fn datagrams_above_the_lookup_limit_are_dropped_and_others_pass() {
    let ((rig, mut asked), target) = (rig("127.0.0.1").await, target("127.0.0.1").await);
    let mut lookups = Vec::new();
    for number in 0..super::super::names::LOOKUPS_MAX {
        rig.send_to_name(&format!("{number}.example"), 53, b"").await;
        lookups.push(next(&mut asked).await);
    }
    rig.send_to_name("one.more.example", 53, b"").await;
    rig.echo(&target, b"an address").await;
    assert_eq!(rig.dropped(Dropped::LookupLimit), 1);
    lookups.remove(0).answer.send(Ok(vec![nowhere()])).unwrap();
    rig.send_to_name("0.example", 53, b"").await;
    rig.echo(&target, b"an address").await;
    // The name is known by now, or the datagram waits. In both cases, there is no other lookup.
    assert!(asked.try_recv().is_err());
}
