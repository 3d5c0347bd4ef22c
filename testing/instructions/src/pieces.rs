//! The pieces of a relay, without a runtime. Each is repeated for Valgrind to count.

use std::hint::black_box;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use clap::ValueEnum;
use spliceway_core::transfer::SCRATCH;
use spliceway_core::{Counts, Engine, Limits, Next, PipePool, PipeSize, SizeClass, Splicer};

/// A piece of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Piece {
    /// The pool lends an idle pipe and gets it back.
    Hit,
    /// A message from one socket to another: one receive and one send.
    Message,
    /// A part of bulk from one socket to another: one splice into a pipe that the relay holds, and
    /// one splice out of it.
    Round,
}

/// Bytes of a message, and bytes of a part of bulk. A pipe of 64 KiB accepts either in one call.
const MESSAGE: usize = 64;
const PART: usize = 16 << 10;

/// The function that runs each [`Piece`]. Callgrind counts nothing else.
pub(super) const COUNTED: &str = "*pieces::counted*";

#[inline(never)]
fn counted<T>(work: impl FnOnce() -> T) -> T {
    black_box(work())
}

impl Piece {
    /// Returns the section and name of the piece in the baseline.
    pub(super) fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Hit => ("pool", "hit"),
            Self::Message => ("core", "message"),
            Self::Round => ("core", "round"),
        }
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Hit => "a pipe lent and given back",
            Self::Message => "a message: recv and send",
            Self::Round => "a round: fill and drain",
        }
    }

    /// Repeats the piece this many times, for counting from outside.
    pub(crate) fn repeat(self, times: u32) -> io::Result<()> {
        match self {
            Self::Hit => {
                let pool = PipePool::new(Limits::of_this_process());
                for _ in 0..times {
                    counted(|| drop(black_box(pool.acquire(SizeClass::Kib64))));
                }
                Ok(())
            }
            Self::Message => relay(Engine::Auto, MESSAGE, times),
            Self::Round => relay(Engine::Splice, PART, times),
        }
    }
}

/// Relays this many bytes from one socket to another, with one call on each, `times` times. All
/// bytes are there before the relay reads them. The other end reads them before more arrive. So no
/// buffer is ever full, and no read finds an empty one.
fn relay(engine: Engine, bytes: usize, times: u32) -> io::Result<()> {
    let ((mut sender, source), (sink, mut receiver)) = (connection()?, connection()?);
    let pool = PipePool::new(Limits::of_this_process());
    let mut splicer = Splicer::new(engine, PipeSize::Fixed(SizeClass::Kib64), pool);
    let (counts, mut scratch, mut message) = (Counts::default(), vec![0; SCRATCH], vec![7; bytes]);
    for _ in 0..times {
        sender.write_all(&message)?;
        // Waits until all bytes are there.
        while source.peek(&mut scratch)? < bytes {}
        if let Next::Yield = splicer.next() {}
        counted(|| {
            if let Next::Read(read) = splicer.next() {
                read.perform(usize::MAX, &source, &mut scratch, &counts)?;
            }
            match splicer.next() {
                Next::Write(write) => write.perform(&sink, &scratch, &counts).map(drop),
                next => unreachable!("{next:?} after a read of bytes"),
            }
        })?;
        receiver.read_exact(&mut message)?;
    }
    let delivered = counts.snapshot();
    let spliced = if engine == Engine::Splice { delivered.bytes } else { 0 };
    assert_eq!(delivered.bytes, bytes as u64 * u64::from(times), "one call each");
    assert_eq!(delivered.spliced, spliced, "bytes on the path of this engine");
    Ok(())
}

/// Returns both ends of a connection. The end that connected comes first.
fn connection() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let connected = TcpStream::connect(listener.local_addr()?)?;
    let (accepted, _) = listener.accept()?;
    for end in [&connected, &accepted] {
        end.set_nodelay(true)?;
    }
    Ok((connected, accepted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_piece_matches_its_name_even_over_many_repetitions() {
        for piece in Piece::value_variants() {
            piece.repeat(100).unwrap();
        }
    }
}
