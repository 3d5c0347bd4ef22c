//! Relays in a row, each on its own node, or alternating between two nodes.

use spliceway::{PipePool, Relay, RelayOptions, RelayStats};
use spliceway_net::{Family, Net, Offloads};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::task::JoinSet;

use super::connected;
use crate::support::child::{block_on, in_child, open_descriptors};
use crate::support::pattern::Pattern;
use crate::support::rig::limits;
use crate::support::{MIB, finish, reset};

/// `first ⇄ relay ⇄ … ⇄ relay ⇄ last`.
struct Chain {
    first: TcpStream,
    last: TcpStream,
    relays: JoinSet<bool>,
    stats: Vec<RelayStats>,
    pool: PipePool,
}

impl Chain {
    /// Makes connections along a path of nodes, with a relay on each node between the first and the
    /// last.
    fn along(net: &Net, path: &[usize]) -> Self {
        let pool = PipePool::new(limits());
        let (mut relays, mut stats) = (JoinSet::new(), Vec::new());
        let mut hops = path.windows(2).map(|hop| connected(net, hop[0], hop[1], Family::V4));
        let (first, mut reached) = hops.next().unwrap();
        for (index, (leaving, arrived)) in hops.enumerate() {
            // Every second relay has its ends swapped.
            let (a, b) = if index % 2 == 0 {
                (reached, leaving)
            } else {
                (leaving, reached)
            };
            let relay = Relay::with_options(a, b, RelayOptions::new().pool(&pool));
            stats.push(relay.stats());
            relays.spawn(async move { relay.await.is_ok() });
            reached = arrived;
        }
        Self {
            first,
            last: reached,
            relays,
            stats,
            pool,
        }
    }

    /// Sends a request and its end, and only then an answer and its end.
    async fn passes_half_closes_on(mut self, bytes: u64) {
        let request = async {
            Pattern::new(1).send(&mut self.first, bytes).await;
            finish(&self.first);
        };
        tokio::join!(request, Pattern::new(1).expect_end(&mut self.last, bytes));
        let answer = async {
            Pattern::new(2).send(&mut self.last, bytes).await;
            finish(&self.last);
        };
        tokio::join!(answer, Pattern::new(2).expect_end(&mut self.first, bytes));
        while let Some(ended_well) = self.relays.join_next().await {
            assert!(ended_well.unwrap());
        }
        for (index, stats) in self.stats.iter().enumerate() {
            let summary = stats.snapshot();
            for way in [summary.a_to_b, summary.b_to_a] {
                assert_eq!((way.bytes, way.eof), (bytes, true), "relay {index}: {way:?}");
                // Under load, the relay copies a few receives of 64 KiB each time it must recognise
                // the flow as bulk again.
                assert!(way.spliced >= bytes / 2, "relay {index}: {way:?}");
            }
        }
        assert_eq!(self.pool.stats().lent, 0);
    }

    /// Loads both directions, and then resets the connection of one end.
    async fn ends_with_a_reset(mut self, first_resets: bool) {
        let (goes, stays) = if first_resets {
            (self.first, self.last)
        } else {
            (self.last, self.first)
        };
        let ((mut goes_in, mut goes_out), (mut stays_in, mut stays_out)) = (goes.into_split(), stays.into_split());
        let loaded_then_reset = async {
            tokio::select! {
                error = send_until_broken(&mut goes_out, Pattern::new(3)) => panic!("it broke first: {error}"),
                () = async { Pattern::new(4).expect(&mut goes_in, MIB).await } => {}
            }
            reset(goes_in.reunite(goes_out).unwrap());
        };
        let mut arrives = Pattern::new(3);
        tokio::join!(
            loaded_then_reset,
            send_until_broken(&mut stays_out, Pattern::new(4)),
            arrives.expect_until_broken(&mut stays_in)
        );
        assert!(arrives.at() > 0);
        while let Some(ended_well) = self.relays.join_next().await {
            assert!(!ended_well.unwrap(), "a relay ended as if all had arrived");
        }
        assert_eq!(self.pool.stats().lent, 0);
    }
}

async fn send_until_broken(to: &mut OwnedWriteHalf, mut sent: Pattern) -> std::io::Error {
    loop {
        if let Err(error) = to.write_all(&sent.take(64 << 10)).await {
            return error;
        }
    }
}

#[test]
fn relays_in_a_row_pass_bulk_and_half_closes_on_and_leave_no_descriptor() {
    through_chains(
        "segments::chains::relays_in_a_row_pass_bulk_and_half_closes_on_and_leave_no_descriptor",
        async |net, path| Chain::along(net, path).passes_half_closes_on(4 * MIB).await,
    );
}

#[test]
fn a_reset_ends_a_chain_of_relays_and_leaks_nothing() {
    through_chains(
        "segments::chains::a_reset_ends_a_chain_of_relays_and_leaks_nothing",
        async |net, path| {
            for first_resets in [true, false] {
                Chain::along(net, path).ends_with_a_reset(first_resets).await;
            }
        },
    );
}

/// Runs in its own process, because it counts descriptors. The chains have three and eight relays,
/// each on its own node, or alternating between two nodes.
fn through_chains(test: &str, mut scenario: impl AsyncFnMut(&Net, &[usize])) {
    if Net::chain(1, Offloads::Off).is_none() {
        return;
    }
    in_child(test, None, || {
        for (relays, offloads) in [(3, Offloads::Off), (8, Offloads::Gro)] {
            let own_nodes: Vec<usize> = (0..relays + 2).collect();
            let to_and_fro: Vec<usize> = (0..relays + 2).map(|hop| hop % 2).collect();
            for path in [own_nodes, to_and_fro] {
                let net = Net::chain(path.iter().max().unwrap() + 1, offloads)
                    .unwrap()
                    .with_small_windows()
                    .unwrap();
                block_on(async {
                    let before = open_descriptors();
                    scenario(&net, &path).await;
                    assert_eq!(open_descriptors(), before, "{relays} relays, {offloads:?}, {path:?}");
                });
            }
        }
    });
}
