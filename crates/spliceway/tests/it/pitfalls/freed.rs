//! However a relay ends, its connections and its pipe are free immediately.

use std::io::ErrorKind;
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use spliceway::{Engine, PipePool};
use tokio::net::TcpStream;

use crate::support::child::{block_on, in_child, open_descriptors};
use crate::support::pattern::Pattern;
use crate::support::rig::{Rig, Setup, both_ways_and_engines, push};
use crate::support::{finish, reset, turns};

/// Runs a scenario in its own process, in both orders and for both engines. Afterwards, every
/// descriptor must be closed again.
fn leaves_nothing_open(test: &str, mut scenario: impl AsyncFnMut(Setup)) {
    in_child(test, None, || {
        block_on(async {
            let at_start = open_descriptors();
            both_ways_and_engines(async |setup| {
                scenario(setup).await;
                assert_eq!(open_descriptors(), at_start);
            })
            .await;
        });
    });
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Finish,
    Close,
    Reset,
}

impl End {
    const ALL: [Self; 3] = [Self::Finish, Self::Close, Self::Reset];

    /// Ends the connection in this way. Returns the peer if it must stay open.
    fn of(self, peer: TcpStream) -> Option<TcpStream> {
        match self {
            Self::Finish => {
                finish(&peer);
                return Some(peer);
            }
            Self::Close => {}
            Self::Reset => set_socket_linger(&peer, Some(Duration::ZERO)).unwrap(),
        }
        None
    }
}

#[test]
fn every_pair_of_ends_without_data_frees_the_descriptors() {
    const NAME: &str = "pitfalls::freed::every_pair_of_ends_without_data_frees_the_descriptors";
    leaves_nothing_open(NAME, async |setup| {
        for near_ends in End::ALL {
            for far_ends in End::ALL {
                for before_the_first_poll in [true, false] {
                    let (laid, relay) = setup.clone().lay_out(PipePool::new(setup.limits.clone())).await;
                    let mut rig = laid.run(relay);
                    if !before_the_first_poll {
                        turns(3).await;
                    }
                    let Rig { near, far, .. } = rig;
                    let open = (near_ends.of(near), far_ends.of(far));
                    let outcome = (&mut rig.relay.task).await.unwrap();
                    let is_reset = [near_ends, far_ends].contains(&End::Reset);
                    match outcome {
                        Ok(summary) => assert!(!is_reset && summary.a_to_b.eof && summary.b_to_a.eof, "{summary:?}"),
                        Err(error) => assert!(
                            is_reset && error.source.kind() == ErrorKind::ConnectionReset,
                            "{near_ends:?} and {far_ends:?}: {:?}",
                            error.source
                        ),
                    }
                    assert_eq!(rig.pool.stats().lent, 0);
                    drop(open);
                }
            }
        }
    });
}

#[test]
fn a_reset_sink_with_bytes_in_the_pipe_frees_all_descriptors() {
    const NAME: &str = "pitfalls::freed::a_reset_sink_with_bytes_in_the_pipe_frees_all_descriptors";
    leaves_nothing_open(NAME, async |setup| {
        let rig = setup.small().start().await;
        let mut sent = Pattern::new(1);
        rig.push_until_stuck(&mut sent, None).await;
        let Rig { near, far, relay, pool } = rig;
        reset(far);
        let (moved, _) = relay.broken().await;
        assert!(pool.stats().closed_dirty > 0 || moved.forth.spliced == 0, "{moved:?}");
        drop((near, pool));
    });
}

#[test]
fn a_reset_of_one_peer_while_the_other_is_idle_frees_all_descriptors() {
    const NAME: &str = "pitfalls::freed::a_reset_of_one_peer_while_the_other_is_idle_frees_all_descriptors";
    leaves_nothing_open(NAME, async |setup| {
        let at_start = open_descriptors();
        let mut rig = setup.start().await;
        let (mut sent, mut wanted) = (Pattern::new(2), Pattern::new(2));
        tokio::join!(sent.send(&mut rig.near, 1 << 20), wanted.expect(&mut rig.far, 1 << 20));
        let Rig { near, far, relay, pool } = rig;
        reset(near);
        let (_, error) = relay.broken().await;
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        drop(pool);
        assert_eq!(open_descriptors(), at_start + 1, "all but far's own end");
        drop(far);
    });
}

#[test]
fn a_relay_dropped_with_a_filled_pipe_frees_everything() {
    const NAME: &str = "pitfalls::freed::a_relay_dropped_with_a_filled_pipe_frees_everything";
    // The far peer neither reads nor sends.
    leaves_nothing_open(NAME, async |setup| {
        let at_start = open_descriptors();
        let bulk = setup.engine == Engine::Splice;
        let pool = PipePool::new(setup.limits.clone());
        let (laid, relay) = setup.small().lay_out(pool.clone()).await;
        let limited = tokio::spawn(tokio::time::timeout(Duration::from_millis(100), relay));
        let mut sent = Pattern::new(3);
        while !limited.is_finished() {
            push(&laid.near, &mut sent);
            turns(1).await;
        }
        assert!(limited.await.unwrap().is_err(), "the relay ended before its time");
        let stats = pool.stats();
        assert_eq!(stats.lent, 0, "{stats:?}");
        assert!(stats.closed_dirty > 0 || !bulk, "{stats:?}");
        let idle = stats.idle;
        assert_eq!(open_descriptors(), at_start + 2 + 2 * idle, "the peers' own ends");
    });
}
