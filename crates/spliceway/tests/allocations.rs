//! A relay of small messages allocates no memory per message. This is a separate test binary,
//! because its global allocator counts allocations.

use std::future::poll_fn;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::thread;

use allocation_counter::measure;

/// The round trips before the measurement. They allocate everything that is allocated once.
const WARM: usize = 100;
const FEW: usize = 10;
const MANY: usize = 1000;
/// All round trips. Some follow the measurement, so that it does not include the end of the
/// streams.
const TRIPS: usize = WARM + FEW + MANY + 100;
/// The size of a message, in bytes.
const SIZE: usize = 64;

/// Returns both ends of a connection. The first one is the end that connected.
fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    for end in [&near, &far] {
        end.set_nodelay(true).unwrap();
    }
    (near, far)
}

/// The test counts only the relay's thread. The peers run in another thread.
#[test]
fn a_round_trip_of_small_messages_allocates_nothing() {
    let ((client, near), (far, server)) = (connection(), connection());
    let trips = &AtomicUsize::new(0);
    thread::scope(|scope| {
        scope.spawn(move || {
            let (mut client, mut server) = (client, server);
            let mut message = [7; SIZE];
            for _ in 0..TRIPS {
                client.write_all(&message).unwrap();
                server.read_exact(&mut message).unwrap();
                server.write_all(&message).unwrap();
                client.read_exact(&mut message).unwrap();
                trips.fetch_add(1, Ordering::Relaxed);
            }
        });

        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let _inside = runtime.enter();
        let [mut near, mut far] = [near, far].map(|end| {
            end.set_nonblocking(true).unwrap();
            tokio::net::TcpStream::from_std(end).unwrap()
        });
        let mut relay = pin!(spliceway::copy_bidirectional(&mut near, &mut far));
        // Polls the relay until this many round trips are done, or until the relay ends.
        let mut run_until = |done: usize| {
            runtime.block_on(poll_fn(|context| match relay.as_mut().poll(context) {
                Poll::Ready(moved) => Poll::Ready(Some(moved.unwrap())),
                Poll::Pending if trips.load(Ordering::Relaxed) >= done => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }))
        };
        assert_eq!(run_until(WARM), None);
        let mut measured_until = |done| {
            let mut during = None;
            let made = measure(|| during = run_until(done));
            assert_eq!(during, None, "the relay ended early");
            made.count_total
        };
        // Each time the runtime starts to run, it allocates a list of the tasks that yield.
        let (few, many) = (measured_until(WARM + FEW), measured_until(WARM + FEW + MANY));
        assert_eq!(few, many, "{MANY} trips take more than {FEW}");

        let all = (TRIPS * SIZE) as u64;
        assert_eq!(run_until(usize::MAX), Some((all, all)));
    });
}

/// Without this test, a count of 0 would prove nothing.
#[test]
fn the_allocations_of_a_runtime_are_counted() {
    let made = measure(|| drop(tokio::runtime::Builder::new_current_thread().build().unwrap()));
    assert!(made.count_total > 0);
}
