//! One suite for tokio's functions and spliceway's. Every scenario runs with each of them, and the
//! expectations are the same for all.

mod buffers;
mod limited;
mod mocks;
mod one_way;
mod scheduling;
mod sockets;
mod with_options;

use std::io;

use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinHandle;

use crate::support::{Duplex, guard, tcp};

/// The implementation of `copy_bidirectional` that a scenario uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    Tokio,
    Function,
    Relay,
}

type Counts = io::Result<(u64, u64)>;

impl Subject {
    const ALL: [Self; 3] = [Self::Tokio, Self::Function, Self::Relay];

    async fn run<A: Duplex + ?Sized, B: Duplex + ?Sized>(self, a: &mut A, b: &mut B) -> Counts {
        match self {
            Self::Tokio => tokio::io::copy_bidirectional(a, b).await,
            Self::Function => spliceway::copy_bidirectional(a, b).await,
            Self::Relay => {
                let summary = spliceway::Relay::new(a, b).await?;
                Ok((summary.a_to_b.bytes, summary.b_to_a.bytes))
            }
        }
    }

    /// Starts a task that relays between `near` and `far`, in this order or swapped. The task
    /// returns the counts of the direction from the near peer to the far peer first.
    fn spawn(
        self,
        mut near: impl Duplex + 'static,
        mut far: impl Duplex + 'static,
        swapped: bool,
    ) -> JoinHandle<Counts> {
        tokio::spawn(async move {
            if swapped {
                let (back, forth) = self.run(&mut far, &mut near).await?;
                Ok((forth, back))
            } else {
                self.run(&mut near, &mut far).await
            }
        })
    }
}

/// Runs a scenario for every subject, with the near peer as `a` and as `b`.
async fn for_each(mut scenario: impl AsyncFnMut(Subject, bool)) {
    for subject in Subject::ALL {
        for swapped in [false, true] {
            eprintln!("{subject:?}, swapped: {swapped}");
            guard(scenario(subject, swapped)).await;
        }
    }
}

/// Runs a scenario on TCP connections. The scenario gets the relay's task and both peers.
async fn between_peers(mut scenario: impl AsyncFnMut(JoinHandle<Counts>, TcpStream, TcpStream)) {
    for_each(async |subject, swapped| {
        let ((near, near_end), (far, far_end)) = (tcp().await, tcp().await);
        scenario(subject.spawn(near_end, far_end, swapped), near, far).await;
    })
    .await;
}

/// Returns a peer and the relay's end of its connection, for either kind of socket.
async fn any_pair(unix: bool) -> (Box<dyn Duplex>, End) {
    if unix {
        let (peer, end) = UnixStream::pair().unwrap();
        (Box::new(peer), End::Unix(end))
    } else {
        let (peer, end) = tcp().await;
        (Box::new(peer), End::Tcp(end))
    }
}

enum End {
    Tcp(TcpStream),
    Unix(UnixStream),
}
