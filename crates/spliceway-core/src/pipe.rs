//! One kernel pipe, and the only place that says what EAGAIN, 0 and EINVAL of `splice(2)` mean.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::retry_on_intr;

use crate::reason::Reason;
use crate::socket;
use crate::sys::{self, Errno};

/// A kernel pipe: the buffer between two `splice(2)` calls.
///
/// ```text
///            fill_from                drain_into
///   source ─────────────▶ len bytes ─────────────▶ sink
///                             │
///                             └── read_out ──▶ user space (only to fall back)
/// ```
///
/// Both ends are close-on-exec and non-blocking, and close on drop. [`len`](Pipe::len) is the only count of the bytes inside.
/// It may exceed [`capacity`](Pipe::capacity): a pipe is full when its slots are, and a slot can hold a fragment of up to
/// 32 KiB, or one of 100 bytes.
#[derive(Debug)]
pub struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
    capacity: usize,
    len: usize,
    sound: bool,
    /// This process would die of the `SIGPIPE` that a drain into a broken connection raises. Asked when the pipe is made: a
    /// process decides that early, and a pipe is made seldom.
    guards_sigpipe: bool,
}

/// What [`Pipe::fill_from`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// The pipe now holds this many bytes, more than 0.
    Moved(usize),
    /// Nothing to splice: the source is drained, *or* it stands at an urgent mark, which splice does not pass. A `recv` tells
    /// which, and steps over the mark.
    WouldBlock,
    /// splice returned 0: the end of the stream, *or* an urgent mark before a FIN with data behind it. A `recv` tells which.
    MaybeEof,
    /// This source cannot be spliced, now or at all.
    Cannot(Reason),
}

/// What [`Pipe::drain_into`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    /// This many bytes left the pipe, more than 0. A short count proves nothing: a signal shortens it too.
    Moved(usize),
    /// The sink takes nothing now.
    WouldBlock,
    /// This sink cannot be spliced into, now or at all. What the pipe holds must go out by [`Pipe::read_out`].
    Cannot(Reason),
}

impl Pipe {
    /// A pipe of the kernel's default size: 16 pages, or 2 where this user is past the soft limit.
    ///
    /// # Errors
    /// Those of `pipe2(2)`: `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn new() -> io::Result<Self> {
        let (reader, writer) = sys::pipe()?;
        let capacity = sys::pipe_size(writer.as_fd())?;
        Ok(Self {
            reader,
            writer,
            capacity,
            len: 0,
            sound: true,
            guards_sigpipe: sys::dies_of_sigpipe(),
        })
    }

    /// A pipe of `bytes`, or of what the kernel grants: ask [`capacity`](Pipe::capacity).
    ///
    /// # Errors
    /// Those of [`Pipe::new`]. That the size was refused (`EPERM`, `ENOMEM`) is none.
    pub fn with_capacity(bytes: usize) -> io::Result<Self> {
        let mut pipe = Self::new()?;
        if pipe.capacity != bytes
            && let Ok(granted) = sys::set_pipe_size(pipe.writer.as_fd(), bytes)
        {
            pipe.capacity = granted;
        }
        Ok(pipe)
    }

    /// Bytes in flight: filled and not yet drained.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no byte is in flight.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The size the kernel granted, in bytes (pages × page size): what one fill asks for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Whether it may serve another stream: empty, and no call on it ever failed.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.sound && self.len == 0
    }

    /// `splice(source → pipe)`, once, for as much as fits.
    ///
    /// Enters with an empty pipe, because only then is EAGAIN the source's word: splice looks for a free slot before it looks
    /// at the socket. Does not block if the source is non-blocking. Retries EINTR.
    ///
    /// # Errors
    /// The source's own error (a reset, say). The pipe is then no longer clean.
    ///
    /// # Panics
    /// If the pipe is not empty.
    pub fn fill_from(&mut self, source: impl AsFd) -> io::Result<Fill> {
        self.fill_at_most(source, self.capacity)
    }

    /// [`fill_from`](Pipe::fill_from), for no more than `most` bytes.
    ///
    /// # Errors
    /// Those of [`fill_from`](Pipe::fill_from).
    ///
    /// # Panics
    /// If the pipe is not empty, or `most` is 0, to which splice says 0 as it does at the end of the stream.
    pub fn fill_at_most(&mut self, source: impl AsFd, most: usize) -> io::Result<Fill> {
        assert!(most > 0, "a fill of no bytes says nothing");
        assert!(
            self.is_empty(),
            "fill_from enters with an empty pipe, this one holds {} bytes",
            self.len
        );
        let (source, writer) = (source.as_fd(), self.writer.as_fd());
        match retry_on_intr(|| sys::splice(source, writer, self.capacity.min(most))) {
            Ok(0) => Ok(Fill::MaybeEof),
            Ok(moved) => {
                self.len = moved;
                Ok(Fill::Moved(moved))
            }
            Err(Errno::AGAIN) => Ok(Fill::WouldBlock),
            Err(errno) if socket::has_failed(source, errno) => {
                self.sound = false;
                Err(errno.into())
            }
            Err(errno) => self.cannot(errno).map(Fill::Cannot),
        }
    }

    /// `splice(pipe → sink)`, once, with exactly the count of bytes inside and never `SPLICE_F_MORE`: a greater count makes the
    /// kernel hold back the last segment for 200 ms. Does not block if the sink is non-blocking. Retries EINTR. Raises no
    /// `SIGPIPE` in a process that would die of it.
    ///
    /// # Errors
    /// The sink's own error. `WriteZero` if it takes nothing and says so. The pipe is then no longer clean.
    ///
    /// # Panics
    /// If the pipe is empty.
    pub fn drain_into(&mut self, sink: impl AsFd) -> io::Result<Drain> {
        assert!(!self.is_empty(), "drain_into enters with bytes in the pipe");
        let (reader, sink) = (self.reader.as_fd(), sink.as_fd());
        let splice = if self.guards_sigpipe {
            sys::splice_without_sigpipe
        } else {
            sys::splice
        };
        match retry_on_intr(|| splice(reader, sink, self.len)) {
            Ok(0) => {
                self.sound = false;
                Err(io::ErrorKind::WriteZero.into())
            }
            Ok(moved) => {
                debug_assert!(moved <= self.len, "the kernel drained more than was filled");
                self.len -= moved;
                Ok(Drain::Moved(moved))
            }
            Err(Errno::AGAIN) => Ok(Drain::WouldBlock),
            Err(errno) => self.cannot(errno).map(Drain::Cannot),
        }
    }

    /// Takes what is left out of the pipe, in order, for a caller that goes on by copying. The pipe is empty afterwards.
    ///
    /// # Errors
    /// Those of `read(2)` on a pipe, none of which a healthy process meets; `UnexpectedEof` if bytes are missing.
    pub fn read_out(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.len];
        let mut filled = 0;
        while filled < bytes.len() {
            match retry_on_intr(|| sys::read(self.reader.as_fd(), &mut bytes[filled..])) {
                Ok(0) | Err(Errno::AGAIN) => {
                    self.sound = false;
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                Ok(read) => {
                    filled += read;
                    self.len -= read;
                }
                Err(errno) => {
                    self.sound = false;
                    return Err(errno.into());
                }
            }
        }
        Ok(bytes)
    }

    /// After any failed call the pipe is not lent again, whatever the failure turns out to mean.
    fn cannot(&mut self, errno: Errno) -> io::Result<Reason> {
        self.sound = false;
        Reason::of_errno(errno).ok_or_else(|| errno.into())
    }
}
