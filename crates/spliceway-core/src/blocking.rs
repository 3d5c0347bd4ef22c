//! One direction between blocking sockets, built from the parts of this crate without a runtime.

use std::io;
use std::os::fd::AsFd;

use crate::counts::{Counts, DirectionSummary};
use crate::outcomes::{ReadOutcome, WriteOutcome};
use crate::pool::PipePool;
use crate::splicer::{Next, Splicer};
use crate::traffic::{Engine, PipeSize};
use crate::transfer::SCRATCH;

/// Copies from `source` to `sink` until the source ends, as [`std::io::copy`] does. It splices if
/// that is cheaper.
///
/// ```no_run
/// use std::net::{Shutdown, TcpStream};
///
/// let (client, upstream) = (TcpStream::connect("127.0.0.1:8080")?, TcpStream::connect("127.0.0.1:8081")?);
/// let summary = spliceway_core::copy(&client, &upstream)?;
/// upstream.shutdown(Shutdown::Write)?;
/// println!("{} bytes, {} of them spliced", summary.bytes, summary.spliced);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// The function blocks the thread. Like [`std::io::copy`], it does not shut the sink down. Pipes
/// come from [`PipePool::global`].
///
/// # Errors
/// The error of either socket. The error does not tell how many bytes were already written.
/// `WouldBlock` if a socket is non-blocking, or has a timeout (`SO_RCVTIMEO`, `SO_SNDTIMEO`) that
/// has passed.
pub fn copy(source: impl AsFd, sink: impl AsFd) -> io::Result<DirectionSummary> {
    let mut splicer = Splicer::blocking(Engine::Auto, PipeSize::Auto, PipePool::global().clone());
    let mut scratch = vec![0; SCRATCH];
    let counts = Counts::default();
    loop {
        match splicer.next() {
            Next::Read(read) => {
                if read.perform(usize::MAX, &source, &mut scratch, &counts)? == ReadOutcome::WouldBlock {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
            }
            Next::Write(write) => {
                if write.perform(&sink, &scratch, &counts)? == WriteOutcome::WouldBlock {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
            }
            Next::SpliceThrough(_) => unreachable!("there is a pipe between two sockets"),
            Next::Yield => {}
            Next::Shutdown => return Ok(counts.snapshot()),
        }
    }
}
