//! Sessions through a relay of the library, in kernels that have TLS.

use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use spliceway::{KernelTls, TlsCipher};
use spliceway_ktls::relay::{Counts, Failure, relay};
use spliceway_ktls::{DownEnd, Identity, Kinds, Peers, Plan, UpEnd, judge, play};

/// Sessions at the same time.
const THREADS: u64 = 8;

/// Returns the relay's socket and the peer's.
fn connected(listener: &TcpListener) -> (TcpStream, TcpStream) {
    let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (listener.accept().unwrap().0, peer)
}

fn run(plan: &Plan, identity: &Identity, listener: &TcpListener) -> (Peers, Counts, Result<(), Failure>) {
    let (tls, tls_peer) = connected(listener);
    let (plain, plain_peer) = connected(listener);
    thread::scope(|scope| {
        let relay = scope.spawn(|| relay(plan, identity, tls, plain));
        let peers = play(plan, identity, || tls_peer, || plain_peer);
        let (counts, result) = relay.join().unwrap();
        (peers, counts, result)
    })
}

/// Compares what the relay says with the plan.
fn judge_relay(plan: &Plan, counts: &Counts, result: &Result<(), Failure>) -> Result<(), String> {
    let error = match result {
        Err(Failure::Relay(error)) => Some(&error.source),
        _ => None,
    };
    let says = |what: &str| error.is_some_and(|error| error.to_string().contains(what));
    let is_reset = error.is_some_and(|error| {
        use std::io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected};
        matches!(error.kind(), ConnectionReset | BrokenPipe | NotConnected)
    });
    let is_planned = match (plan.up_end, plan.down_end) {
        // The relay may still send tickets when the reset comes.
        (UpEnd::Reset, _) => is_reset || matches!(result, Err(Failure::Handshake(_))),
        (_, DownEnd::Reset) => is_reset,
        (UpEnd::FatalAlert, _) => says("alert 80"),
        (UpEnd::BadTag, _) => says("a wrong tag"),
        (UpEnd::BadVersion, _) => says("a damaged header"),
        (UpEnd::TooLong, _) => says("too long"),
        (end, _) => {
            let is_announced = counts.announced == u64::from(end != UpEnd::Fin);
            let bytes = counts.spliced[0] + counts.copied[0];
            result.is_ok() && is_announced && bytes == plan.up_bytes() as u64
        }
    };
    if is_planned { Ok(()) } else { Err(format!("{counts:?}")) }
}

/// Runs many sessions, and prints what they did. All must be as planned.
fn run_many(numbers: std::ops::Range<u64>, kinds: Kinds) {
    if KernelTls::probe(TlsCipher::Aes128Gcm).is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        eprintln!("skipped: needs a kernel with TLS (CONFIG_TLS, module tls)");
        return;
    }
    let identity = Identity::default();
    let (next, wrong, total) = (
        AtomicU64::new(numbers.start),
        Mutex::new(Vec::new()),
        Mutex::new(Counts::default()),
    );
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= numbers.end {
                        break;
                    }
                    let plan = Plan::draw(number, kinds);
                    let (peers, counts, result) = run(&plan, &identity, &listener);
                    total.lock().unwrap().add(&counts);
                    let judged = judge(&plan, &peers, false).and_then(|()| judge_relay(&plan, &counts, &result));
                    if let Err(what) = judged {
                        eprintln!("{number}: {:?} {:?}: {what}; {result:?}", plan.up_end, plan.down_end);
                        wrong.lock().unwrap().push(format!("{what}; {result:?}; {plan:.600?}"));
                    }
                }
            });
        }
    });
    eprintln!("{:?}", total.into_inner().unwrap());
    let wrong = wrong.into_inner().unwrap();
    let first: Vec<&String> = wrong.iter().take(5).collect();
    assert!(wrong.is_empty(), "{} of {numbers:?}: {first:#?}", wrong.len());
}

#[test]
fn two_thousand_sessions_end_as_planned() {
    run_many(0..2_000, Kinds { key_updates: false });
}

#[test]
fn a_thousand_sessions_with_key_updates_end_as_planned() {
    if KernelTls::probe(TlsCipher::Aes128Gcm).is_err_and(|error| error.kind() != ErrorKind::NotFound) {
        eprintln!("skipped: needs a kernel whose TLS takes new keys (Linux 6.14)");
        return;
    }
    run_many(10_000..11_000, Kinds { key_updates: true });
}
