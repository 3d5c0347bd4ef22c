use spliceway::{Direction, Operation, Peer, RelayOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Line, Variant, every_way};
use crate::support::{finish, guard};

impl Variant {
    fn near_peer(self) -> Peer {
        if self.swapped { Peer::B } else { Peer::A }
    }

    fn far_peer(self) -> Peer {
        if self.swapped { Peer::A } else { Peer::B }
    }

    fn forth(self) -> Direction {
        if self.swapped { Direction::BToA } else { Direction::AToB }
    }
}

#[tokio::test]
async fn the_first_end_is_known_during_and_after_the_relay() {
    every_way(async |variant| {
        let Line {
            mut near,
            mut far,
            mut relay,
        } = variant.start(RelayOptions::new());
        let (stats, scenario) = (relay.stats.clone(), async {
            far.write_all(b"x").await.unwrap();
            near.read_exact(&mut [0]).await.unwrap();
            assert_eq!(relay.stats.snapshot().first_eof, None);
            finish(&near);
            assert_eq!(far.read(&mut [0]).await.unwrap(), 0);
            assert_eq!(relay.stats.snapshot().first_eof, Some(variant.near_peer()));
            finish(&far);
            (&mut relay.task).await.unwrap().unwrap()
        });
        let summary = guard(scenario).await;
        assert_eq!(summary.first_eof, Some(variant.near_peer()));
        assert_eq!(summary, stats.snapshot());
    })
    .await;
}

#[tokio::test]
async fn a_limit_is_not_the_end_of_a_peer() {
    every_way(async |variant| {
        let options = RelayOptions::new().a_to_b_limit(0).b_to_a_limit(0);
        let Line { near, far, relay } = variant.start(options);
        assert_eq!(guard(relay.task).await.unwrap().unwrap().first_eof, None);
        drop((near, far));
    })
    .await;
}

#[tokio::test]
async fn an_error_names_the_peer_whose_stream_failed() {
    every_way(async |variant| {
        // The near peer closes with an unread byte, which causes a reset.
        let Line { near, mut far, relay } = variant.start(RelayOptions::new());
        let scenario = async {
            far.write_all(b"x").await.unwrap();
            near.readable().await.unwrap();
            drop(near);
            relay.task.await.unwrap().unwrap_err()
        };
        let error = guard(scenario).await;
        assert_eq!((error.direction, error.operation), (variant.forth(), Operation::Read));
        assert_eq!(error.peer(), variant.near_peer());

        // The far peer closes, which ends its stream. Then the near peer sends to it.
        let Line { mut near, far, relay } = variant.start(RelayOptions::new());
        let scenario = async {
            drop(far);
            assert_eq!(near.read(&mut [0]).await.unwrap(), 0);
            near.write_all(b"x").await.unwrap();
            relay.task.await.unwrap().unwrap_err()
        };
        let error = guard(scenario).await;
        assert_eq!((error.direction, error.operation), (variant.forth(), Operation::Write));
        assert_eq!(error.peer(), variant.far_peer());
        assert_eq!(error.summary.first_eof, Some(variant.far_peer()));
    })
    .await;
}
