//! Readers that never read: how much the program then reads from a sender and cannot pass on.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use super::pattern::{PIECE_MAX, Pattern, Stream};
use super::peer::{Fault, Peer};
use super::plan::{Session, Side};
use super::program::Program;
use super::tally::Tally;

/// Enough connections to see whether the program holds pipes per connection, and few enough to be
/// quick.
pub(super) const CONNECTIONS: u64 = 4;
/// The most bytes that a direction may hold: one pipe of the largest automatic class. A direction
/// never holds other bytes in addition to the pipe.
pub(super) const HELD_MAX: i64 = 1 << 20;
/// A sender that cannot send anything for this long is stuck. Acknowledgements are late by at most
/// 40 ms.
const QUIET: Duration = Duration::from_secs(1);

/// The measurements while neither end reads.
pub(super) struct Stuck {
    /// Bytes that the program holds, for each connection and direction.
    pub(super) held: Vec<i64>,
    /// Pipes that are lent.
    pub(super) lent: u64,
    /// The program's CPU time during [`QUIET`], while nothing can move.
    pub(super) cpu: Duration,
}

/// A connection through the program. Both of its ends send and do not read.
struct Pair {
    session: Session,
    /// The client, then the server, each with the stream that it has sent.
    ends: [(TcpStream, Stream); 2],
}

/// Sends until both ends are stuck, and measures. Then reads everything and verifies it.
pub(super) async fn run(program: &Program, listener: &TcpListener, pattern: &Pattern) -> io::Result<Stuck> {
    let mut pairs = Vec::new();
    for number in 0..CONNECTIONS {
        // Connections open one after the other, so that the next accepted connection is the other
        // end of this one.
        let client = TcpStream::connect(program.address).await?;
        let server = listener.accept().await?.0;
        let streams = [0, 1].map(|way| pattern.stream(2 * number + way));
        let [up, down] = streams;
        pairs.push(Pair {
            session: Session::bulk(number, 0, 0, None),
            ends: [(client, up), (server, down)],
        });
    }
    push(&mut pairs).await?;
    let before = program.usage()?.cpu;
    // Nothing should move any more. If something does, it counts.
    push(&mut pairs).await?;
    let cpu = program.usage()?.cpu - before;
    let queues = Queues::read()?;
    let held = pairs.iter().map(|pair| pair.held(program.address, &queues));
    let stuck = Stuck {
        held: held.collect::<io::Result<Vec<_>>>()?.concat(),
        lent: program.scrape().await?.lent,
        cpu,
    };
    for pair in pairs {
        let read = pair.read(pattern).await;
        read.map_err(|fault| io::Error::other(format!("read after it was stuck: {fault}")))?;
    }
    Ok(stuck)
}

/// Sends from every end until no end has been able to send for [`QUIET`].
async fn push(pairs: &mut [Pair]) -> io::Result<()> {
    let mut moved = Instant::now();
    while moved.elapsed() < QUIET {
        for (socket, stream) in pairs.iter_mut().flat_map(|pair| &mut pair.ends) {
            match socket.try_write(stream.ahead(PIECE_MAX)) {
                Ok(sent) => {
                    stream.pass(sent);
                    moved = Instant::now();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

impl Pair {
    /// Returns the bytes of each direction that left one end and are not in a socket queue on the
    /// way to the other end.
    fn held(&self, program: SocketAddr, queues: &Queues) -> io::Result<Vec<i64>> {
        let [(client, up), (server, down)] = &self.ends;
        let near = queues.of(client.local_addr()?, program)?;
        let near_inside = queues.of(program, client.local_addr()?)?;
        let far_inside = queues.of(server.peer_addr()?, server.local_addr()?)?;
        let far = queues.of(server.local_addr()?, server.peer_addr()?)?;
        Ok(vec![
            up.passed as i64 - near.unsent - near_inside.unread - far_inside.unsent - far.unread,
            down.passed as i64 - far.unsent - far_inside.unread - near_inside.unsent - near.unread,
        ])
    }

    /// Ends both streams, and reads the peer's stream at each end.
    async fn read(mut self, pattern: &Pattern) -> Result<(), Fault> {
        let [up, down] = [self.ends[0].1.passed, self.ends[1].1.passed];
        self.session.flows[0].bytes = up;
        self.session.flows[1].bytes = down;
        let tally = Tally::default();
        let session = &self.session;
        let [client, server] = self.ends.map(|(socket, _)| socket);
        let peer = |socket, side| Peer {
            socket,
            side,
            session,
            pattern,
            tally: &tally,
        };
        let (client, server) = (peer(client, Side::Client), peer(server, Side::Server));
        tokio::try_join!(client.read_what_was_sent(), server.read_what_was_sent()).map(drop)
    }
}

/// The queues of the sockets in this network namespace, by local and remote port (proc(5),
/// `/proc/net/tcp`).
struct Queues(HashMap<(u16, u16), Queue>);

#[derive(Clone, Copy)]
struct Queue {
    /// Bytes that are not sent, or not acknowledged.
    unsent: i64,
    unread: i64,
}

impl Queues {
    fn read() -> io::Result<Self> {
        let table = fs::read_to_string("/proc/net/tcp")?;
        Ok(Self(table.lines().skip(1).filter_map(socket).collect()))
    }

    fn of(&self, local: SocketAddr, remote: SocketAddr) -> io::Result<Queue> {
        let queue = self.0.get(&(local.port(), remote.port())).copied();
        queue.ok_or_else(|| io::Error::other(format!("{local} to {remote} is not in /proc/net/tcp")))
    }
}

/// Parses `sl local_address rem_address st tx_queue:rx_queue …`. All fields are hexadecimal.
fn socket(line: &str) -> Option<((u16, u16), Queue)> {
    let mut fields = line.split_whitespace().skip(1);
    let mut port = || u16::from_str_radix(fields.next()?.split_once(':')?.1, 16).ok();
    let ports = (port()?, port()?);
    let (unsent, unread) = fields.nth(1)?.split_once(':')?;
    let bytes = |field| i64::from_str_radix(field, 16).ok();
    let queue = Queue {
        unsent: bytes(unsent)?,
        unread: bytes(unread)?,
    };
    Some((ports, queue))
}
