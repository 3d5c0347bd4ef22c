//! `splice(2)` has no `MSG_NOSIGNAL`. A splice into a closed connection raises `SIGPIPE`, which
//! kills a process that does not handle it. Rust programs ignore the signal from their start. A C
//! program that loads the library might not ignore it.

use std::io::ErrorKind;

use spliceway::Engine;
use spliceway_core::{Drain, Fill, Pipe};

use crate::support::child::{block_on, in_child};
use crate::support::pattern::Pattern;
use crate::support::rig::{Rig, Setup};
use crate::support::{MIB, finish, reset};

/// The bytes that the client receives before it stops.
const TAKEN: u64 = MIB;

#[test]
fn a_reset_after_the_end_does_not_raise_sigpipe() {
    const NAME: &str = "faults::broken_pipe::a_reset_after_the_end_does_not_raise_sigpipe";
    in_child(NAME, None, || {
        spliceway_faults::die_of_broken_pipes().unwrap();
        for engine in [Engine::Auto, Engine::Splice, Engine::Copy] {
            for swapped in [false, true] {
                let setup = Setup {
                    engine,
                    ..Setup::new(swapped)
                };
                block_on(download_given_up(setup));
            }
        }
        assert!(!spliceway_faults::ignores_broken_pipes().unwrap());
    });
}

/// Runs a download. Its client has sent everything, and resets the connection in the middle of the
/// answer. The client's end comes before its reset. The relay's next write therefore finds a socket
/// that accepts nothing more: `EPIPE`, not `ECONNRESET`.
async fn download_given_up(setup: Setup) {
    let splices = setup.engine != Engine::Copy;
    let Rig {
        mut near,
        mut far,
        relay,
        pool,
    } = setup.small().start().await;
    let (mut sent, mut wanted) = (Pattern::new(1), Pattern::new(1));
    tokio::join!(sent.send(&mut near, TAKEN), wanted.expect(&mut far, TAKEN));
    finish(&far);
    let mut end = [0];
    assert_eq!(tokio::io::AsyncReadExt::read(&mut near, &mut end).await.unwrap(), 0);
    let rig = Rig { near, far, relay, pool };
    rig.push_until_stuck(&mut sent, None).await;
    let Rig { near, far, relay, pool } = rig;
    reset(far);
    let (moved, error) = relay.broken().await;
    assert!(
        matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset),
        "{error:?}"
    );
    assert!((TAKEN..sent.at()).contains(&moved.forth.bytes), "{moved:?}");
    assert_eq!(moved.forth.spliced > 0, splices, "{moved:?}");
    assert_eq!(pool.stats().lent, 0);
    drop(near);
}

/// The bytes of a large pipe go out in batches. A batch that meets the broken connection raises the
/// signal. The call then returns a short count for the earlier batches, and no error.
#[test]
fn a_short_count_before_a_broken_connection_raises_no_sigpipe() {
    const NAME: &str = "faults::broken_pipe::a_short_count_before_a_broken_connection_raises_no_sigpipe";
    in_child(NAME, None, || {
        spliceway_faults::die_of_broken_pipes().unwrap();
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        for _ in 0..10 {
            let (peer, sink) = block_on(crate::support::tcp());
            let mut pipe = Pipe::with_capacity(1 << 20).unwrap();
            let Fill::Moved(inside) = pipe.fill_from(&file).unwrap() else {
                panic!("a file has bytes")
            };
            // This is several batches. A file in memory fills less than 512 KiB of the pipe.
            assert!(inside > 256 << 10, "{inside}");
            drop(peer);
            // The peer's reset is the answer to the first bytes.
            let mut broken = false;
            while !broken && !pipe.is_empty() {
                broken = !matches!(pipe.drain_into(&sink), Ok(Drain::Moved(_)));
            }
            assert!(broken || pipe.is_empty());
        }
        assert!(!spliceway_faults::ignores_broken_pipes().unwrap());
    });
}
