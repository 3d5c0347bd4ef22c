//! One kernel pipe. Only this file interprets the results EAGAIN, 0 and EINVAL of a `splice(2)`
//! into or out of a pipe.

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
/// Both ends are close-on-exec and non-blocking, and close on drop. [`len`](Pipe::len) is the only
/// count of the bytes inside. It may exceed [`capacity`](Pipe::capacity): a pipe is full when all
/// of its slots are in use. A slot can hold a fragment of up to 32 KiB, or one of 100 bytes.
#[derive(Debug)]
pub struct Pipe {
    pub(crate) reader: OwnedFd,
    pub(crate) writer: OwnedFd,
    capacity: usize,
    len: usize,
    sound: bool,
    /// Whether `SIGPIPE` would kill this process. A drain into a broken connection raises it. The
    /// constructor checks this, because a process sets its signal handling early and rarely creates
    /// a pipe.
    guards_sigpipe: bool,
}

/// The outcome of [`Pipe::fill_from`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// The pipe now holds this many bytes, which is more than 0.
    Moved(usize),
    /// There is nothing to splice. The source is drained, *or* it is at an urgent mark, which
    /// splice does not step over. A `recv` shows which, and steps over the mark.
    WouldBlock,
    /// The splice returned 0. The stream has ended, *or* the source is at an urgent mark, and data
    /// and a FIN follow the mark. A `recv` shows which.
    MaybeEof,
    /// This source cannot be spliced, now or at all.
    Cannot(Reason),
}

/// The outcome of [`Pipe::drain_into`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    /// This many bytes, more than 0, left the pipe. A short count does not prove that the sink is
    /// full, because a signal can also shorten it.
    Moved(usize),
    /// The sink is full.
    WouldBlock,
    /// This sink cannot be spliced into, now or at all. The caller must read the remaining bytes
    /// with [`Pipe::read_out`], and send them itself.
    Cannot(Reason),
}

impl Pipe {
    /// Creates a pipe of the kernel's default size: 16 pages, or 2 pages if this user exceeds the
    /// soft limit.
    ///
    /// # Errors
    /// The errors of `pipe2(2)`: `EMFILE`, `ENFILE`, `ENOMEM`.
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

    /// Creates a pipe of `bytes` bytes. The kernel may grant another size: see
    /// [`capacity`](Pipe::capacity).
    ///
    /// # Errors
    /// The errors of [`Pipe::new`]. A refused size (`EPERM`, `ENOMEM`) is not an error.
    pub fn with_capacity(bytes: usize) -> io::Result<Self> {
        let mut pipe = Self::new()?;
        if pipe.capacity != bytes
            && let Ok(granted) = sys::set_pipe_size(pipe.writer.as_fd(), bytes)
        {
            pipe.capacity = granted;
        }
        Ok(pipe)
    }

    /// Returns the number of bytes in flight, which were filled and not yet drained.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether no byte is in flight.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the size that the kernel granted, in bytes (pages × page size). One fill requests
    /// this many bytes.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns whether the pipe may serve another stream: it is empty, and no call on it failed.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.sound && self.len == 0
    }

    /// Calls `splice(source → pipe)` once, for as many bytes as fit.
    ///
    /// `splice(2)` checks for a free slot before it checks the socket. The pipe must therefore be
    /// empty, because only then does EAGAIN describe the source. The call does not block if the
    /// source is non-blocking. It retries on EINTR.
    ///
    /// # Errors
    /// The source's own error, for example a reset. The pipe is then no longer clean.
    ///
    /// # Panics
    /// If the pipe is not empty.
    pub fn fill_from(&mut self, source: impl AsFd) -> io::Result<Fill> {
        self.fill_at_most(source, self.capacity)
    }

    /// Does the same as [`fill_from`](Pipe::fill_from), for at most `most` bytes.
    ///
    /// # Errors
    /// The errors of [`fill_from`](Pipe::fill_from).
    ///
    /// # Panics
    /// If the pipe is not empty, or if `most` is 0. A splice of 0 bytes returns 0, as it does at
    /// the end of the stream.
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
            Err(errno) if socket::source_has_failed(source, errno) => {
                self.sound = false;
                Err(errno.into())
            }
            Err(errno) => self.cannot(errno).map(Fill::Cannot),
        }
    }

    /// Calls `splice(pipe → sink)` once, for exactly the number of bytes in the pipe.
    ///
    /// A greater count makes the kernel hold back the last segment for 200 ms. For that reason, the
    /// call never sets `SPLICE_F_MORE` either. It does not block if the sink is non-blocking. It
    /// retries on EINTR, and raises no `SIGPIPE` in a process that the signal would kill.
    ///
    /// # Errors
    /// The sink's own error, or `WriteZero` if splice returns 0. The pipe is then no longer clean.
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
            Err(errno) if socket::sink_has_failed(sink, errno) => {
                self.sound = false;
                Err(errno.into())
            }
            Err(errno) => self.cannot(errno).map(Drain::Cannot),
        }
    }

    /// Reads the remaining bytes out of the pipe, in order, for a caller that continues by copying.
    /// The pipe is empty afterwards.
    ///
    /// # Errors
    /// The errors of `read(2)` on a pipe, which do not occur in a healthy process. `UnexpectedEof`
    /// if bytes are missing.
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

    /// Returns the reason to copy, or the error of a stream. The pool does not lend a pipe again
    /// after a failed call, whatever the failure means.
    fn cannot(&mut self, errno: Errno) -> io::Result<Reason> {
        self.sound = false;
        Reason::of_errno(errno).ok_or_else(|| errno.into())
    }
}
