//! What one relay costs in memory, sockets and pipes apart: its future, and nothing on the heap while it is idle.

use spliceway::{Relay, RelayStats};
use tokio::net::TcpStream;

use crate::support::tcp;

// Measured 360, 216 and 336 bytes, where tokio's own future is 272 and comes with two buffers of 8 KiB. 16 of a relay's are the waker for
// cancel handles that are taken late. A word in each direction still passes; what is more than that is to be argued.

#[tokio::test]
async fn the_future_between_two_sockets_is_small() {
    let ((_near, mut a), (_far, mut b)) = (tcp().await, tcp().await);
    let function = size_of_val(&spliceway::copy_bidirectional(&mut a, &mut b));
    let tokios = size_of_val(&tokio::io::copy_bidirectional(&mut a, &mut b));
    let one_way = size_of_val(&spliceway::copy(&mut a, &mut b));
    let relay = size_of::<Relay<&mut TcpStream, &mut TcpStream>>();
    eprintln!("copy_bidirectional {function} (tokio's {tokios}), copy {one_way}, Relay {relay}");
    assert!(function <= 368, "{function}");
    assert!(one_way <= 232, "{one_way}");
    assert!(relay <= 352, "{relay}");
    assert_eq!(size_of::<RelayStats>(), size_of::<usize>());
}
