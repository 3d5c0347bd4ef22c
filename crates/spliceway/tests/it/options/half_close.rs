use rustix::net::sockopt;
use spliceway::{EndReason, HalfClose, Relay, RelayOptions};
use tokio::net::UnixStream;

use super::{Done, Line, every_way};
use crate::support::pattern::Pattern;
use crate::support::{KIB, MIB, finish, guard};

#[tokio::test]
async fn an_end_is_passed_on_and_the_other_direction_goes_on() {
    every_way(async |variant| {
        let Line {
            mut near,
            mut far,
            relay,
        } = variant.start(RelayOptions::new().half_close(HalfClose::Propagate));
        let scenario = async {
            finish(&near);
            Pattern::new(1).expect_end(&mut far, 0).await;
            let mut answer = Pattern::new(2);
            tokio::join!(answer.send(&mut far, 8 * MIB), async {
                Pattern::new(2).expect(&mut near, 8 * MIB).await;
            });
            finish(&far);
            let done = relay.end().await;
            assert_eq!((done.end, done.back.bytes), (EndReason::Ended, 8 * MIB));
            assert!(done.forth.eof && done.back.eof);
        };
        guard(scenario).await;
    })
    .await;
}

/// One stream ends while the other direction is stuck in mid-stream: what its source has received by then gets there all the same.
#[tokio::test]
async fn closing_both_at_the_first_end_delivers_what_was_received_by_then() {
    every_way(async |variant| {
        let ((mut near, mut near_end), (mut far, mut far_end)) =
            (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        // Near's end takes little at once, so most of what far has sent is still in the relay's other socket when near ends.
        sockopt::set_socket_send_buffer_size(&near_end, 8 << 10).unwrap();
        let (a, b) = if variant.swapped {
            (&mut far_end, &mut near_end)
        } else {
            (&mut near_end, &mut far_end)
        };
        let relay = Relay::new(a, b).engine(variant.engine).half_close(HalfClose::CloseBoth);
        // Less than a socket holds, so that all of it is there before the end, and more than one receive brings.
        Pattern::new(3).send(&mut far, 150 * KIB).await;
        Pattern::new(4).send(&mut near, 100 * KIB).await;
        finish(&near);
        let forth = Pattern::new(4).expect_end(&mut far, 100 * KIB);
        let back = Pattern::new(3).expect_end(&mut near, 150 * KIB);
        let (summary, (), ()) = guard(async { tokio::join!(relay, forth, back) }).await;
        let done = Done::of(summary.unwrap(), variant.swapped);
        assert_eq!(
            (done.end, done.forth.bytes, done.back.bytes),
            (EndReason::Ended, 100 * KIB, 150 * KIB)
        );
        assert!(done.forth.eof && !done.back.eof, "only one stream has ended");
    })
    .await;
}

/// The other side sends without end: it is not waited for.
#[tokio::test]
async fn closing_both_does_not_wait_for_a_sender_without_end() {
    every_way(async |variant| {
        let Line { mut near, far, relay } = variant.start(RelayOptions::new().half_close(HalfClose::CloseBoth));
        let sending = tokio::spawn(async move {
            use tokio::io::AsyncWriteExt;
            let (mut far, mut pattern) = (far, Pattern::new(5));
            while far.write_all(&pattern.take(64 << 10)).await.is_ok() {}
        });
        let scenario = async {
            let mut wanted = Pattern::new(5);
            wanted.expect(&mut near, MIB).await;
            finish(&near);
            let broken = wanted.expect_until_broken(&mut near).await;
            assert!(broken.is_none(), "{broken:?}");
            let done = relay.end().await;
            assert_eq!((done.end, done.back.bytes), (EndReason::Ended, wanted.at()));
            assert_eq!(done.back.spliced > 0, variant.splices());
            sending.await.unwrap();
        };
        guard(scenario).await;
    })
    .await;
}
