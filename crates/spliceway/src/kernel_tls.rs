//! A TCP connection whose TLS is in the kernel.
//!
//! ```text
//!   the peer ══ records ══▶ kernel ── data ─────────────▶ splice, receive
//!                             └── alerts, messages ─────▶ `Records` ── next keys ──▶ `TlsSession`
//! ```

mod records;
mod sent;
mod watch;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use spliceway_core::kernel_tls::{self, ALERT, DATA, HANDSHAKE, Way};
use spliceway_core::{TlsCipher, TrafficKey};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

use crate::as_socket::{AsSocket, SocketRef};
use records::{Meaning, Records};
use sent::Sent;
use watch::Watch;

/// After this many polls that may write, the number of records under the key is looked at.
const POLLS_PER_LOOK: u32 = 32;

/// The records after which this side changes its key. Between two looks, there are fewer than 2^23
/// of them, and AES-GCM allows 2^24 under one key.
const RECORDS_PER_KEY: u64 = 1 << 23;

const CLOSE_NOTIFY: [u8; 2] = [1, 0];
const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];

/// What a [`KernelTls`] needs from the library that has shaken hands.
pub trait TlsSession: Send + fmt::Debug {
    /// Returns the key of this side after a key update (RFC 8446, section 7.2).
    ///
    /// # Errors
    /// If there is none. The stream then fails.
    fn next_send_key(&mut self) -> io::Result<TrafficKey>;

    /// Returns the key of the peer after a key update.
    ///
    /// # Errors
    /// If there is none. The stream then fails.
    fn next_receive_key(&mut self) -> io::Result<TrafficKey>;

    /// The stream of the peer has ended. Without an announcement (`close_notify`), bytes may be
    /// missing.
    fn ended(&mut self, is_announced: bool);

    /// The peer has sent the content of a `NewSessionTicket`.
    fn ticket(&mut self, _ticket: &[u8]) {}
}

/// A TCP connection with TLS 1.3 in the kernel. A relay splices its data.
///
/// Another library shakes hands. It must have sent all its records, and must have read nothing of
/// the record that comes next. Linux 6.14 or later is needed, because a peer may change its key at
/// any time: see [`KernelTls::probe`].
///
/// As a stream, it behaves like a TLS stream in user space:
/// - The peer's `close_notify` or its FIN is EOF. [`TlsSession::ended`] tells the difference.
/// - A shutdown sends `close_notify` and FIN once all records are in the socket's send queue. For
///   this it needs tokio's time driver.
/// - A damaged record is an error of the kind `InvalidData`. The peer gets an alert.
/// - Key updates happen in the background. This side changes its key if the peer asks, and before
///   2^24 records.
pub struct KernelTls {
    socket: Arc<TcpStream>,
    /// The next poll that may write sends a key update.
    owes_update: AtomicBool,
    polls: AtomicU32,
    state: Mutex<State>,
    /// If it is `true` at the shutdown, the end must not look complete.
    is_cut: Option<Arc<AtomicBool>>,
}

struct State {
    session: Box<dyn TlsSession>,
    watch: Watch,
    records: Records,
    sent: Sent,
    /// The peer's stream has ended.
    has_ended: bool,
    /// This side has announced its end.
    has_notified: bool,
    /// This side has sent an alert, so it sends nothing more.
    has_failed: bool,
}

impl KernelTls {
    /// Tries a cipher, and a second key, on a connection of its own. It blocks for a moment.
    ///
    /// # Errors
    /// The error of the first call that the kernel refuses: `NotFound` without TLS in the kernel,
    /// `InvalidInput` without the cipher, and `ResourceBusy` before Linux 6.14.
    pub fn probe(cipher: TlsCipher) -> io::Result<()> {
        kernel_tls::probe(cipher)
    }

    /// Gives a socket to the kernel's TLS. It works as before until it has keys, so a caller that
    /// gets an error may continue without kernel TLS.
    ///
    /// # Errors
    /// `NotFound` without TLS in the kernel, and `NotConnected` after the peer's FIN.
    pub fn attach(socket: impl AsFd) -> io::Result<()> {
        kernel_tls::attach(socket)
    }

    /// Gives the keys of an [attached](Self::attach) socket to the kernel.
    ///
    /// # Errors
    /// The error of the kernel, with the socket. It may have one of the keys, so only a close is
    /// possible.
    pub fn new(
        socket: TcpStream,
        send: &TrafficKey,
        receive: &TrafficKey,
        session: Box<dyn TlsSession>,
    ) -> Result<Self, (TcpStream, io::Error)> {
        let sent = Sent::new(&socket, send).and_then(|sent| {
            kernel_tls::set_key(&socket, Way::Send, send)?;
            kernel_tls::set_key(&socket, Way::Receive, receive)?;
            Ok(sent)
        });
        let sent = match sent {
            Ok(sent) => sent,
            Err(error) => return Err((socket, error)),
        };
        let socket = Arc::new(socket);
        let state = State {
            session,
            watch: Watch::of(&socket),
            records: Records::new(receive),
            sent,
            has_ended: false,
            has_notified: false,
            has_failed: false,
        };
        Ok(Self {
            socket,
            owes_update: AtomicBool::new(false),
            polls: AtomicU32::new(0),
            state: Mutex::new(state),
            is_cut: None,
        })
    }

    /// Returns the socket.
    #[must_use]
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Gives up TLS. Whatever is sent or received from now on is still encrypted and decrypted.
    #[must_use]
    pub fn into_socket(self) -> TcpStream {
        let Self { socket, state, .. } = self;
        drop(state);
        Arc::into_inner(socket).expect("the state has dropped its own")
    }

    /// Returns whether this side has announced its end (`close_notify`).
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.state().has_notified
    }

    /// Shuts down without an announcement if this is `true` by then, because the source of what
    /// this side sends has ended without one.
    pub fn set_cut(&mut self, is_cut: Arc<AtomicBool>) {
        self.is_cut = Some(is_cut);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts data that was written or spliced into the socket.
    pub(crate) fn has_written(&self, bytes: u64) {
        self.state().sent.content += bytes;
    }

    /// Ready when there may be something to read, or the kernel has found a damaged record.
    pub(crate) fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.socket.poll_read_ready(cx) {
            Poll::Pending if self.state().watch.poll_found(cx) => Poll::Ready(Ok(())),
            ready => ready,
        }
    }

    /// Runs `read` if the socket counts as readable. `WouldBlock` clears its readiness.
    pub(crate) fn try_read<T>(&self, read: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if !self.state().watch.has_found() {
            return self.socket.try_io(Interest::READABLE, read);
        }
        let outcome = read();
        if matches!(&outcome, Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
            self.state().watch = Watch::Over;
        }
        outcome
    }

    /// Handles records without data. Returns whether they announce the end of the peer's stream.
    ///
    /// # Errors
    /// If they may not come, or are an alert.
    #[cold]
    pub(crate) fn on_records(&self, kind: u8, content: &[u8]) -> io::Result<bool> {
        let mut state = self.state();
        state.records.count(&self.socket)?;
        for meaning in state.records.read(kind, content)? {
            match meaning {
                Meaning::Nothing => {}
                Meaning::End => {
                    state.end(true);
                    return Ok(true);
                }
                Meaning::Ticket(ticket) => state.session.ticket(&ticket),
                Meaning::KeyUpdate { is_requested } => {
                    let key = state.session.next_receive_key()?;
                    kernel_tls::set_key(&self.socket, Way::Receive, &key)?;
                    state.records.have_key(&key);
                    self.owes_update.fetch_or(is_requested, Ordering::Relaxed);
                }
            }
        }
        Ok(false)
    }

    /// Records that a read has found the end of the connection.
    #[cold]
    pub(crate) fn has_ended(&self) {
        self.state().end(false);
    }

    /// Tells the peer about a record that it should not have sent, and returns the error in words.
    /// The kernel reports such a record to the next call of any kind.
    #[cold]
    pub(crate) fn explain(&self, error: io::Error) -> io::Error {
        let (alert, error) = records::fault(error);
        let mut state = self.state();
        if let Some(alert) = alert
            && state.may_send()
        {
            state.has_failed = true;
            // The kernel has stored its error, and would report it instead of sending.
            let _ = self.socket.take_error();
            // The peer may be gone.
            let _ = kernel_tls::send(&self.socket, ALERT, &[2, alert]);
        }
        error
    }

    /// Sends what this side owes. If there is no room, the task is polled again when there is.
    #[inline]
    pub(crate) fn poll_owed(&self, cx: &mut Context<'_>) -> io::Result<()> {
        let polls = self.polls.fetch_add(1, Ordering::Relaxed);
        if polls % POLLS_PER_LOOK == POLLS_PER_LOOK - 1 && self.state().sent.records(&self.socket)? >= RECORDS_PER_KEY {
            self.owes_update.store(true, Ordering::Relaxed);
        }
        if self.owes_update.load(Ordering::Relaxed) {
            self.poll_update(cx)?;
        }
        Ok(())
    }

    #[cold]
    fn poll_update(&self, cx: &mut Context<'_>) -> io::Result<()> {
        let mut state = self.state();
        if state.may_send() {
            match self.poll_send(cx, HANDSHAKE, &KEY_UPDATE) {
                Poll::Pending => return Ok(()),
                Poll::Ready(sent) => sent?,
            }
            state.sent.content += KEY_UPDATE.len() as u64;
            let key = state.session.next_send_key()?;
            state.sent.set_key(&self.socket, &key)?;
        }
        self.owes_update.store(false, Ordering::Relaxed);
        Ok(())
    }

    fn poll_send(&self, cx: &mut Context<'_>, kind: u8, content: &[u8]) -> Poll<io::Result<()>> {
        loop {
            ready!(self.socket.poll_write_ready(cx))?;
            let send = || kernel_tls::send(&self.socket, kind, content);
            match self.socket.try_io(Interest::WRITABLE, send) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => return Poll::Ready(sent),
            }
        }
    }
}

impl State {
    /// Returns whether this side may send more records.
    fn may_send(&self) -> bool {
        !(self.has_notified || self.has_failed)
    }

    fn end(&mut self, is_announced: bool) {
        if !self.has_ended {
            self.has_ended = true;
            self.session.ended(is_announced);
        }
    }
}

impl AsyncRead for KernelTls {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.poll_owed(cx)?;
        while buf.remaining() > 0 && !this.state().has_ended {
            ready!(this.poll_read_ready(cx))?;
            let room = buf.initialize_unfilled();
            let receive = || kernel_tls::receive(&this.socket, room);
            let is_end = match this.try_read(receive) {
                Ok((Some(DATA) | None, bytes)) if bytes > 0 => {
                    buf.advance(bytes);
                    return Poll::Ready(Ok(()));
                }
                Ok((Some(kind), length)) => this.on_records(kind, &buf.initialize_unfilled()[..length]),
                Ok((None, _)) => {
                    this.has_ended();
                    Ok(true)
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
                Err(error) => Err(error),
            };
            match is_end {
                Ok(_) => this.poll_owed(cx)?,
                Err(error) => return Poll::Ready(Err(this.explain(error))),
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for KernelTls {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.poll_owed(cx)?;
        loop {
            ready!(this.socket.poll_write_ready(cx))?;
            match this.socket.try_write(bytes) {
                Ok(written) => {
                    this.has_written(written as u64);
                    return Poll::Ready(Ok(written));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(this.explain(error))),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.poll_finish(cx).map_err(|error| this.explain(error))
    }
}

impl KernelTls {
    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self;
        let is_cut = this.is_cut.as_ref().is_some_and(|cut| cut.load(Ordering::Relaxed));
        this.poll_owed(cx)?;
        ready!(this.state().sent.poll_queued(cx, &this.socket))?;
        match ready!(this.poll_announce(cx, is_cut)) {
            // The peer has ended its stream, and has left. It needs no announcement.
            Err(error) if this.state().has_ended && is_gone(&error) => Poll::Ready(Ok(())),
            announced => Poll::Ready(announced),
        }
    }

    /// Ends the stream after its last byte.
    fn poll_announce(&mut self, cx: &mut Context<'_>, is_cut: bool) -> Poll<io::Result<()>> {
        if !is_cut && self.state().may_send() {
            ready!(self.poll_send(cx, ALERT, &CLOSE_NOTIFY))?;
            let mut state = self.state();
            state.has_notified = true;
            state.sent.content += CLOSE_NOTIFY.len() as u64;
            ready!(state.sent.poll_queued(cx, &self.socket))?;
        }
        Poll::Ready(kernel_tls::shut_down(&self.socket))
    }
}

fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected};
    matches!(error.kind(), BrokenPipe | ConnectionReset | NotConnected)
}

impl AsSocket for KernelTls {
    fn as_socket(&self) -> Option<SocketRef<'_>> {
        Some(SocketRef::KernelTls(self))
    }
}

impl AsFd for KernelTls {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl fmt::Debug for KernelTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelTls")
            .field("socket", &self.socket)
            .field("session", &self.state().session)
            .finish_non_exhaustive()
    }
}
