//! Sockets at both ends: half-closes, ends, counts and errors.

use std::io::ErrorKind;

use spliceway::Relay;
use tokio::io::{AsyncReadExt, AsyncWriteExt, join};
use tokio::net::UnixStream;

use super::{End, Subject, any_pair, between_peers, for_each};
use crate::support::pattern::Pattern;
use crate::support::{BULK, MIB, finish, reset, tcp};

#[tokio::test]
async fn a_message_arrives_while_both_sides_stay_open() {
    between_peers(async |_relay, mut near, mut far| {
        near.write_all(b"question").await.unwrap();
        let mut got = [0; 8];
        far.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"question");
    })
    .await;
}

#[tokio::test]
async fn after_a_half_close_the_whole_answer_arrives() {
    between_peers(async |relay, mut near, mut far| {
        finish(&near);
        Pattern::new(0).expect_end(&mut far, 0).await;
        let answer = async {
            Pattern::new(1).send(&mut far, BULK).await;
            finish(&far);
        };
        tokio::join!(answer, Pattern::new(1).expect_end(&mut near, BULK));
        assert_eq!(relay.await.unwrap().unwrap(), (0, BULK));
    })
    .await;
}

#[tokio::test]
async fn a_request_its_half_close_and_the_answer_are_counted() {
    between_peers(async |relay, mut near, mut far| {
        let request = async {
            Pattern::new(2).send(&mut near, 3 * MIB + 1).await;
            finish(&near);
        };
        tokio::join!(request, Pattern::new(2).expect_end(&mut far, 3 * MIB + 1));
        let answer = async {
            Pattern::new(3).send(&mut far, 100).await;
            drop(far);
        };
        tokio::join!(answer, Pattern::new(3).expect_end(&mut near, 100));
        assert_eq!(relay.await.unwrap().unwrap(), (3 * MIB + 1, 100));
    })
    .await;
}

#[tokio::test]
async fn simultaneous_directions_carry_their_own_bytes() {
    between_peers(async |relay, near, far| {
        let ((mut near_in, mut near_out), (mut far_in, mut far_out)) = (near.into_split(), far.into_split());
        let forth = async {
            Pattern::new(4).send(&mut near_out, BULK).await;
            near_out.shutdown().await.unwrap();
        };
        let back = async {
            Pattern::new(5).send(&mut far_out, BULK / 2).await;
            far_out.shutdown().await.unwrap();
        };
        tokio::join!(
            forth,
            back,
            Pattern::new(4).expect_end(&mut far_in, BULK),
            Pattern::new(5).expect_end(&mut near_in, BULK / 2)
        );
        assert_eq!(relay.await.unwrap().unwrap(), (BULK, BULK / 2));
    })
    .await;
}

#[tokio::test]
async fn two_ends_without_data_end_the_relay() {
    between_peers(async |relay, near, far| {
        drop((near, far));
        assert_eq!(relay.await.unwrap().unwrap(), (0, 0));
    })
    .await;
}

#[tokio::test]
async fn a_blocked_direction_does_not_block_the_other() {
    between_peers(async |relay, mut near, mut far| {
        let mut forth = Pattern::new(6);
        // The far peer does not read. In the end, the near peer's socket does not accept even one
        // byte per round trip of the other direction.
        let mut back = Pattern::new(7);
        let mut refused = 0;
        while refused < 20 {
            refused = if crate::support::rig::push(&near, &mut forth) == 0 {
                refused + 1
            } else {
                0
            };
            back.send(&mut far, 1).await;
            let mut byte = [0];
            near.read_exact(&mut byte).await.unwrap();
            let mut expected = Pattern::new(7);
            expected.take(back.at() as usize - 1);
            expected.check(&byte);
        }
        finish(&near);
        Pattern::new(6).expect_end(&mut far, forth.at()).await;
        drop(far);
        assert_eq!(relay.await.unwrap().unwrap(), (forth.at(), back.at()));
    })
    .await;
}

#[tokio::test]
async fn a_reset_by_an_idle_peer_is_a_read_error_of_its_kind() {
    between_peers(async |relay, near, mut far| {
        reset(near);
        let error = relay.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::CONNRESET.raw_os_error()));
        // The relay's task has ended, and the far connection with it.
        assert!(matches!(far.read(&mut [0]).await, Ok(0)));
    })
    .await;
}

#[tokio::test]
async fn a_reset_after_a_half_close_is_a_write_error_of_its_kind() {
    between_peers(async |relay, near, mut far| {
        finish(&near);
        Pattern::new(0).expect_end(&mut far, 0).await;
        reset(near);
        far.write_all(b"too late").await.unwrap();
        let error = relay.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    })
    .await;
}

#[tokio::test]
async fn a_peer_that_goes_away_in_mid_download_is_a_broken_connection() {
    between_peers(async |relay, mut near, mut far| {
        let download = async {
            let mut bulk = Pattern::new(8);
            let chunk = bulk.take(MIB as usize);
            while far.write_all(&chunk).await.is_ok() {}
        };
        let reader = async {
            Pattern::new(8).expect(&mut near, MIB).await;
            reset(near);
        };
        tokio::join!(download, reader);
        let kind = relay.await.unwrap().unwrap_err().kind();
        assert!(
            matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe),
            "{kind:?}"
        );
    })
    .await;
}

#[tokio::test]
async fn a_shutdown_of_a_closed_connection_is_not_an_error() {
    between_peers(async |relay, near, mut far| {
        finish(&near);
        Pattern::new(0).expect_end(&mut far, 0).await;
        reset(near);
        finish(&far);
        assert_eq!(relay.await.unwrap().unwrap(), (0, 0));
    })
    .await;
}

#[tokio::test]
async fn unix_sockets_and_mixed_pairs_are_relayed_alike() {
    for kinds in [(true, true), (true, false), (false, true)] {
        for_each(async |subject, swapped| {
            let ((mut near, near_end), (mut far, far_end)) = (any_pair(kinds.0).await, any_pair(kinds.1).await);
            let relay = match (near_end, far_end) {
                (End::Tcp(a), End::Tcp(b)) => subject.spawn(a, b, swapped),
                (End::Tcp(a), End::Unix(b)) => subject.spawn(a, b, swapped),
                (End::Unix(a), End::Tcp(b)) => subject.spawn(a, b, swapped),
                (End::Unix(a), End::Unix(b)) => subject.spawn(a, b, swapped),
            };
            let request = async {
                Pattern::new(9).send(&mut near, 8 * MIB + 7).await;
                near.shutdown().await.unwrap();
            };
            tokio::join!(request, Pattern::new(9).expect_end(&mut far, 8 * MIB + 7));
            let answer = async {
                Pattern::new(10).send(&mut far, 8 * MIB + 3).await;
                far.shutdown().await.unwrap();
            };
            tokio::join!(answer, Pattern::new(10).expect_end(&mut near, 8 * MIB + 3));
            assert_eq!(relay.await.unwrap().unwrap(), (8 * MIB + 7, 8 * MIB + 3));
        })
        .await;
    }
}

/// tokio's `join` makes one stream from two halves.
#[tokio::test]
async fn joined_halves_are_relayed_and_spliced() {
    for swapped in [false, true] {
        let ((mut near, a), (mut far, b)) = (tcp().await, UnixStream::pair().unwrap());
        let ((a_read, a_write), (b_read, b_write)) = (a.into_split(), b.into_split());
        let (a, b) = (join(a_read, a_write), join(b_read, b_write));
        let peers = async {
            let send = async {
                Pattern::new(3).send(&mut near, BULK).await;
                near.shutdown().await.unwrap();
            };
            tokio::join!(send, Pattern::new(3).expect_end(&mut far, BULK));
            far.shutdown().await.unwrap();
            Pattern::new(4).expect_end(&mut near, 0).await;
        };
        let summary = if swapped {
            let (summary, ()) = tokio::join!(Relay::new(b, a), peers);
            summary.unwrap().b_to_a
        } else {
            let (summary, ()) = tokio::join!(Relay::new(a, b), peers);
            summary.unwrap().a_to_b
        };
        assert_eq!(summary.bytes, BULK);
        assert!(summary.spliced > BULK / 100 * 95, "{summary:?}");
    }
}

#[tokio::test]
async fn after_the_end_the_borrowed_streams_are_the_callers_again() {
    for subject in Subject::ALL {
        let ((near, mut near_end), (far, mut far_end)) = (tcp().await, tcp().await);
        let addresses = [near_end.local_addr().unwrap(), far_end.local_addr().unwrap()];
        finish(&near);
        finish(&far);
        assert_eq!(subject.run(&mut near_end, &mut far_end).await.unwrap(), (0, 0));
        assert_eq!(
            [near_end.local_addr().unwrap(), far_end.local_addr().unwrap()],
            addresses
        );
    }
}

#[tokio::test]
async fn the_future_is_send() {
    fn send<T: Send>(_: &T) {}
    let ((_near, mut a), (_far, mut b)) = (tcp().await, tcp().await);
    send(&spliceway::copy_bidirectional(&mut a, &mut b));
    send(&spliceway::copy_bidirectional_with_sizes(&mut a, &mut b, 1, 1));
    send(&spliceway::copy(&mut a, &mut b));
    send(&spliceway::Relay::new(&mut a, &mut b));
    send(&spliceway::Relay::new(a, b));
}
