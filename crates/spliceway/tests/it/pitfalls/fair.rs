//! One bulk transfer and a thousand chatty relays on one worker.

use std::io::{Read, Write};

use rustix::net::SendFlags;
use spliceway::{Limits, PipePool, Relay, RelayOptions, RelayStats};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::role::raise_descriptor_limit;
use crate::support::child::{block_on, in_child};
use crate::support::rig::Setup;
use crate::support::{KIB, MIB, tcp, turns};

const CHATTY: usize = 1000;
const ROUNDS: usize = 8;

/// The most bytes that the bulk transfer may move while a request and its answer pass a chatty
/// relay. tokio polls up to 61 tasks before it polls for events, and a poll of the bulk relay moves
/// about 1 MiB. The limit is 1/4 of 61 such polls. The measured maximum is 2.3 MiB. With polls that
/// only tokio's own budget ends, and with pipes of 256 KiB, the maximum was 32 MiB.
const BULK_MEANWHILE: u64 = 61 * 256 * KIB;

#[test]
fn a_bulk_relay_delays_a_thousand_small_ones_by_a_bounded_time() {
    const NAME: &str = "pitfalls::fair::a_bulk_relay_delays_a_thousand_small_ones_by_a_bounded_time";
    in_child(NAME, None, || {
        raise_descriptor_limit();
        for swapped in [false, true] {
            block_on(async {
                let pool = PipePool::new(Limits::of_this_process());
                let mut chatty = Vec::new();
                for _ in 0..CHATTY {
                    let (laid, relay) = Setup::new(swapped).lay_out(pool.clone()).await;
                    chatty.push(laid.run(relay));
                }
                let (bulk, _peers) = bulk(&pool).await;
                while bulk.snapshot().a_to_b.spliced < 16 * MIB {
                    turns(1).await;
                }
                for _ in 0..ROUNDS {
                    let before = bulk.snapshot().a_to_b.spliced;
                    let mut answers = JoinSet::new();
                    for mut rig in chatty.drain(..) {
                        assert_eq!(rustix::net::send(&rig.near, b"?", SendFlags::empty()), Ok(1));
                        let bulk = bulk.clone();
                        answers.spawn(async move {
                            rig.far.readable().await.unwrap();
                            let meanwhile = bulk.snapshot().a_to_b.spliced - before;
                            let mut byte = [0];
                            tokio::io::AsyncReadExt::read_exact(&mut rig.far, &mut byte)
                                .await
                                .unwrap();
                            (rig, meanwhile)
                        });
                    }
                    let mut most = 0;
                    while let Some(answered) = answers.join_next().await {
                        let (rig, meanwhile) = answered.unwrap();
                        chatty.push(rig);
                        most = most.max(meanwhile);
                    }
                    eprintln!("{} KiB of bulk before the last of {CHATTY} answers", most / KIB);
                    assert!(most <= BULK_MEANWHILE, "{most}");
                }
            });
        }
    });
}

/// Starts a relay that always has bytes to move, because the threads of its peers send and receive.
/// Returns its counts and the peers.
async fn bulk(pool: &PipePool) -> (RelayStats, [std::net::TcpStream; 2]) {
    let ((near, a), (far, b)) = (tcp().await, tcp().await);
    let (near, far) = (blocking(near), blocking(far));
    let (mut out, mut back) = (near.try_clone().unwrap(), far.try_clone().unwrap());
    std::thread::spawn(move || {
        let chunk = vec![7; MIB as usize];
        while out.write_all(&chunk).is_ok() {}
    });
    std::thread::spawn(move || {
        let mut chunk = vec![0; MIB as usize];
        while matches!(back.read(&mut chunk), Ok(1..)) {}
    });
    let relay = Relay::with_options(a, b, RelayOptions::new().pool(pool));
    let stats = relay.stats();
    tokio::spawn(relay);
    (stats, [near, far])
}

fn blocking(stream: TcpStream) -> std::net::TcpStream {
    let stream = stream.into_std().unwrap();
    stream.set_nonblocking(false).unwrap();
    stream
}
