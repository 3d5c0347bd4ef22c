//! The memory of one relay, without sockets and pipes. It is the size of its future, because an
//! idle relay has nothing on the heap.

use spliceway::{Relay, RelayStats};
use tokio::net::TcpStream;

use crate::support::tcp;

// tokio's own future has 272 bytes, and two buffers of 8 KiB on the heap. A relay uses 16 bytes for
// the waker that a later cancel handle needs. A change that exceeds a limit needs a reason.

#[tokio::test]
async fn the_future_between_two_sockets_is_small() {
    let ((_near, mut a), (_far, mut b)) = (tcp().await, tcp().await);
    let function = size_of_val(&spliceway::copy_bidirectional(&mut a, &mut b));
    let tokios = size_of_val(&tokio::io::copy_bidirectional(&mut a, &mut b));
    let one_way = size_of_val(&spliceway::copy(&mut a, &mut b));
    let relay = size_of::<Relay<&mut TcpStream, &mut TcpStream>>();
    eprintln!("copy_bidirectional {function} (tokio's {tokios}), copy {one_way}, Relay {relay}");
    assert!(function <= 352, "{function}");
    // 40 bytes are for the times of waits. A `Relay` has them on the heap.
    assert!(one_way <= 280, "{one_way}");
    assert!(relay <= 328, "{relay}");
    assert_eq!(size_of::<RelayStats>(), size_of::<usize>());
}
