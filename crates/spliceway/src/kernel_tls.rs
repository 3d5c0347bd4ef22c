//! A TCP connection whose TLS is in the kernel.
//!
//! ```text
//!   the peer ══ records ══▶ kernel ── data ─────────────▶ splice, receive
//!                             └── alerts, messages ─────▶ `Records` ── next keys ──▶ `TlsSession`
//! ```

mod records;
mod sent;
mod watch;

use std::any::Any;
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
pub(crate) use records::Received;
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
///
/// The methods must return quickly, and must not use the stream.
pub trait TlsSession: Any + Send + fmt::Debug {
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

    /// Returns whether a shutdown announces the end. It should not if the source of what was sent
    /// has ended without an announcement.
    fn announces_end(&self) -> bool {
        true
    }

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
/// - A shutdown sends `close_notify` and FIN once all records are in the socket's send queue. It
///   waits for as long as the peer does not read.
/// - A damaged record is an error of the kind `InvalidData`. The peer gets an alert, if there is
///   room.
/// - Key updates happen in the background. This side changes its key before 2^24 records, and if
///   the peer asks. In a task that only reads, the answer waits for the next poll of the stream.
///
/// # Panics
/// A shutdown panics outside a tokio runtime, or in one without the time driver, if it must wait.
pub struct KernelTls {
    socket: Arc<TcpStream>,
    /// The next poll that may write sends a key update.
    owes_update: AtomicBool,
    polls: AtomicU32,
    state: Mutex<State>,
}

/// The state of a [`KernelTls`], as plain data that a program can send to another process. The
/// kernel has the keys.
///
/// To create one, change the fields of [`new`](Self::new).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KernelTlsState {
    /// The cipher.
    pub cipher: TlsCipher,
    /// The bytes that the socket's send queue must have had before the stream ends, without the
    /// overhead of the records under the present key.
    pub sent: i64,
    /// The peer has asked for a key update.
    pub owes_update: bool,
    /// The peer's stream has ended.
    pub has_ended: bool,
    /// This side has announced its end.
    pub has_notified: bool,
    /// This side sends nothing more.
    pub is_write_over: bool,
}

impl KernelTlsState {
    /// Returns the state of a connection on which nothing was sent or received.
    #[must_use]
    pub fn new(cipher: TlsCipher) -> Self {
        Self {
            cipher,
            sent: 0,
            owes_update: false,
            has_ended: false,
            has_notified: false,
            is_write_over: false,
        }
    }
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
    /// This side sends nothing more: it has sent an alert or a FIN, or a write has failed.
    is_write_over: bool,
    /// What a write has found, for the next read. The kernel reports a damaged record once.
    fault: Option<io::Error>,
    /// Bytes that were received as a stream.
    received: u64,
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
        let records = Records::new(receive.cipher(), receive.next_record());
        let state = KernelTlsState::new(send.cipher());
        Ok(Self::build(socket, session, records, sent, &state))
    }

    /// Continues a connection from the [state](Self::state) that it had in another stream, which
    /// may be in another process. Nothing may use the other one any more.
    ///
    /// # Errors
    /// If the kernel has no TLS with this cipher on the socket.
    pub fn resume(socket: TcpStream, state: &KernelTlsState, session: Box<dyn TlsSession>) -> io::Result<Self> {
        let next = kernel_tls::next_record(&socket, Way::Receive, state.cipher)?;
        let records = Records::new(state.cipher, next);
        let sent = Sent::resume(state.cipher, state.sent);
        // It is the number that a shutdown needs.
        sent.next_record(&socket)?;
        Ok(Self::build(socket, session, records, sent, state))
    }

    fn build(
        socket: TcpStream,
        session: Box<dyn TlsSession>,
        records: Records,
        sent: Sent,
        state: &KernelTlsState,
    ) -> Self {
        let &KernelTlsState {
            owes_update,
            has_ended,
            has_notified,
            is_write_over,
            ..
        } = state;
        let state = State {
            session,
            watch: Watch::Found,
            records,
            sent,
            has_ended,
            has_notified,
            is_write_over,
            fault: None,
            received: 0,
        };
        Self {
            socket: Arc::new(socket),
            owes_update: AtomicBool::new(owes_update),
            polls: AtomicU32::new(0),
            state: Mutex::new(state),
        }
    }

    /// Returns what [`resume`](Self::resume) needs beside the socket and the session. Returns
    /// `None` while a message of the peer is incomplete, and after a damaged record.
    #[must_use]
    pub fn state(&self) -> Option<KernelTlsState> {
        let state = self.lock();
        (state.records.is_between_messages() && state.fault.is_none()).then(|| KernelTlsState {
            cipher: state.sent.cipher(),
            sent: state.sent.bytes(),
            owes_update: self.owes_update.load(Ordering::Relaxed),
            has_ended: state.has_ended,
            has_notified: state.has_notified,
            is_write_over: state.is_write_over,
        })
    }

    /// Calls `look` with the session. It must not use the stream.
    pub fn with_session<R>(&self, look: impl FnOnce(&dyn TlsSession) -> R) -> R {
        look(&*self.lock().session)
    }

    /// Returns the socket, for its addresses and options. A caller must not read from it or write
    /// to it.
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
        self.lock().has_notified
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts data that was written or spliced into the socket.
    pub(crate) fn has_written(&self, bytes: u64) {
        self.lock().sent.add(bytes);
    }

    /// Ready when there may be something to read, or the kernel has found a damaged record.
    pub(crate) fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.socket.poll_read_ready(cx) {
            Poll::Pending if self.lock().watch.poll_found(cx) => Poll::Ready(Ok(())),
            ready => ready,
        }
    }

    /// Runs `read` if the socket counts as readable. `WouldBlock` clears its readiness.
    pub(crate) fn try_read<T>(&self, read: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if !self.lock().watch.has_found() {
            return self.socket.try_io(Interest::READABLE, read);
        }
        // Not after the read: another error may come in between.
        Watch::forget(&self.socket);
        let outcome = read();
        if matches!(&outcome, Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
            self.lock().watch.wait(&self.socket);
        }
        outcome
    }

    /// Returns whether a read has found the end of the peer's stream.
    pub(crate) fn is_at_end(&self) -> bool {
        self.lock().has_ended
    }

    /// Handles records without data. Before them, this many bytes of data had come. Returns whether
    /// they announce the end of the peer's stream.
    ///
    /// # Errors
    /// If they may not come, or are an alert.
    #[cold]
    pub(crate) fn on_records(&self, kind: u8, content: &[u8], data: Received) -> io::Result<bool> {
        let mut state = self.lock();
        state.records.count(&self.socket, data)?;
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
                    // The error must not look like one of a record.
                    kernel_tls::set_key(&self.socket, Way::Receive, &key).map_err(io::Error::other)?;
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
        self.lock().end(false);
    }

    /// Tells the peer about a record that it should not have sent, and returns the error in words.
    /// The kernel reports such a record to the next call of any kind.
    #[cold]
    pub(crate) fn explain(&self, error: io::Error) -> io::Error {
        let (alert, error) = records::fault(error);
        let mut state = self.lock();
        if let Some(alert) = alert
            && state.may_send()
        {
            state.is_write_over = true;
            // The kernel has stored its error, and would report it instead of sending.
            let _ = self.socket.take_error();
            // The peer may be gone.
            let _ = kernel_tls::send(&self.socket, ALERT, &[2, alert]);
        }
        error
    }

    /// Sends what this side owes. If there is no room, the task is polled again when there is.
    #[inline]
    pub(crate) fn poll_owed(&self, cx: &mut Context<'_>) {
        let polls = self.polls.fetch_add(1, Ordering::Relaxed);
        let is_due = polls % POLLS_PER_LOOK == POLLS_PER_LOOK - 1
            && self
                .lock()
                .sent
                .next_record(&self.socket)
                .is_ok_and(|next| next >= RECORDS_PER_KEY);
        if is_due {
            self.owes_update.store(true, Ordering::Relaxed);
        }
        if self.owes_update.load(Ordering::Relaxed) {
            self.update(|kind, content| self.poll_send(cx, kind, content));
        }
    }

    /// Does the same for a task that only reads. Another task may wait for room.
    fn try_owed(&self) {
        if self.owes_update.load(Ordering::Relaxed) {
            self.update(|kind, content| self.try_send(kind, content));
        }
    }

    #[cold]
    fn update(&self, send: impl FnOnce(u8, &[u8]) -> Poll<io::Result<()>>) {
        let mut state = self.lock();
        if state.may_send() {
            let updated = match send(HANDSHAKE, &KEY_UPDATE) {
                Poll::Pending => return,
                Poll::Ready(sent) => sent.and_then(|()| state.update_send_key(&self.socket)),
            };
            if let Err(error) = updated {
                // The next read reports a damaged record. After another error, what has come can
                // still be read, and the next write fails.
                state.fault = kernel_tls::RecordFault::of(&error).map(|_| error);
                state.is_write_over = state.fault.is_none();
            }
        }
        self.owes_update.store(false, Ordering::Relaxed);
    }

    /// Returns what a write has found out about the records of the peer.
    pub(crate) fn take_fault(&self) -> io::Result<()> {
        self.lock().fault.take().map_or(Ok(()), Err)
    }

    /// Checks that this side may still send.
    pub(crate) fn check_writable(&self) -> io::Result<()> {
        match self.lock().may_send() {
            true => Ok(()),
            false => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn try_send(&self, kind: u8, content: &[u8]) -> Poll<io::Result<()>> {
        let send = || kernel_tls::send(&self.socket, kind, content);
        match self.socket.try_io(Interest::WRITABLE, send) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
            sent => Poll::Ready(sent),
        }
    }

    fn poll_send(&self, cx: &mut Context<'_>, kind: u8, content: &[u8]) -> Poll<io::Result<()>> {
        loop {
            ready!(self.socket.poll_write_ready(cx))?;
            if let sent @ Poll::Ready(_) = self.try_send(kind, content) {
                return sent;
            }
        }
    }
}

impl State {
    /// Returns whether this side may send more records.
    fn may_send(&self) -> bool {
        !(self.has_notified || self.is_write_over)
    }

    fn update_send_key(&mut self, socket: &TcpStream) -> io::Result<()> {
        self.sent.add(KEY_UPDATE.len() as u64);
        let key = self.session.next_send_key()?;
        // The error must not look like one of a record.
        self.sent.set_key(socket, &key).map_err(io::Error::other)
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
        this.try_owed();
        while buf.remaining() > 0 && !this.is_at_end() {
            this.take_fault().map_err(|error| this.explain(error))?;
            ready!(this.poll_read_ready(cx))?;
            let room = buf.initialize_unfilled();
            let receive = || kernel_tls::receive(&this.socket, room);
            let is_end = match this.try_read(receive) {
                Ok((Some(DATA) | None, bytes)) if bytes > 0 => {
                    buf.advance(bytes);
                    this.lock().received += bytes as u64;
                    return Poll::Ready(Ok(()));
                }
                Ok((Some(kind), length)) => {
                    let received = Received::AsStream(this.lock().received);
                    this.on_records(kind, &buf.initialize_unfilled()[..length], received)
                }
                Ok((None, _)) => {
                    this.has_ended();
                    Ok(true)
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
                Err(error) => Err(error),
            };
            match is_end {
                Ok(_) => this.try_owed(),
                Err(error) => return Poll::Ready(Err(this.explain(error))),
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for KernelTls {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.poll_owed(cx);
        loop {
            this.check_writable()?;
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
        self.poll_owed(cx);
        ready!(self.lock().sent.poll_queued(cx, &self.socket))?;
        match ready!(self.poll_announce(cx)) {
            // The peer has ended its stream, and has left. It needs no announcement.
            Err(error) if self.is_at_end() && is_gone(&error) => Poll::Ready(Ok(())),
            announced => Poll::Ready(announced),
        }
    }

    /// Ends the stream after its last byte.
    fn poll_announce(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let announces = {
            let state = self.lock();
            state.may_send() && state.session.announces_end()
        };
        if announces {
            ready!(self.poll_send(cx, ALERT, &CLOSE_NOTIFY))?;
            let mut state = self.lock();
            state.has_notified = true;
            state.sent.add(CLOSE_NOTIFY.len() as u64);
        }
        // Also after a poll that has sent the announcement.
        ready!(self.lock().sent.poll_queued(cx, &self.socket))?;
        self.lock().is_write_over = true;
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
            .field("session", &self.lock().session)
            .finish_non_exhaustive()
    }
}
