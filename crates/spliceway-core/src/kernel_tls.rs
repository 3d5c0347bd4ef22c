//! TLS 1.3 in the kernel (`Documentation/networking/tls.rst` of Linux).
//!
//! The functions have no state. docs/design/024 has the rules for them, and why.

use std::fmt;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::retry_on_intr;

use crate::sys::{self, Errno};
use crate::tcp_info;

/// The types of records (RFC 8446, section 5.1).
pub const ALERT: u8 = 21;
/// See [`ALERT`].
pub const HANDSHAKE: u8 = 22;
/// See [`ALERT`].
pub const DATA: u8 = 23;

/// Bytes that each record adds to its content: header, type and tag.
pub const OVERHEAD: u64 = 22;

/// The most bytes that the content of one record has.
pub const RECORD_MAX: usize = 16 << 10;

/// A cipher of TLS 1.3 that Linux knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TlsCipher {
    /// `TLS_AES_128_GCM_SHA256`.
    Aes128Gcm,
    /// `TLS_AES_256_GCM_SHA384`.
    Aes256Gcm,
    /// `TLS_CHACHA20_POLY1305_SHA256`.
    ChaCha20Poly1305,
}

impl TlsCipher {
    /// All of them.
    pub const ALL: &'static [Self] = &[Self::Aes128Gcm, Self::Aes256Gcm, Self::ChaCha20Poly1305];

    /// Returns the length of a key, in bytes.
    #[must_use]
    pub const fn key_len(self) -> usize {
        match self {
            Self::Aes128Gcm => 16,
            Self::Aes256Gcm | Self::ChaCha20Poly1305 => 32,
        }
    }

    /// Returns the kernel's number, and how many bytes at the beginning of the IV it calls a salt.
    const fn layout(self) -> (u16, usize) {
        match self {
            Self::Aes128Gcm => (libc::TLS_CIPHER_AES_GCM_128, 4),
            Self::Aes256Gcm => (libc::TLS_CIPHER_AES_GCM_256, 4),
            Self::ChaCha20Poly1305 => (libc::TLS_CIPHER_CHACHA20_POLY1305, 0),
        }
    }
}

/// The key of one direction of a TLS 1.3 connection.
#[derive(Clone)]
pub struct TrafficKey {
    cipher: TlsCipher,
    key: Vec<u8>,
    iv: [u8; 12],
    next_record: u64,
}

impl fmt::Debug for TrafficKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrafficKey")
            .field("cipher", &self.cipher)
            .field("next_record", &self.next_record)
            .finish_non_exhaustive()
    }
}

impl TrafficKey {
    /// Creates a key. `next_record` is the number of the next record under this key. Returns `None`
    /// if the cipher has keys of another length.
    #[must_use]
    pub fn new(cipher: TlsCipher, key: &[u8], iv: [u8; 12], next_record: u64) -> Option<Self> {
        (key.len() == cipher.key_len()).then(|| Self {
            cipher,
            key: key.to_vec(),
            iv,
            next_record,
        })
    }

    /// Returns the cipher.
    #[must_use]
    pub fn cipher(&self) -> TlsCipher {
        self.cipher
    }

    /// Returns the key itself.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Returns the IV.
    #[must_use]
    pub fn iv(&self) -> &[u8; 12] {
        &self.iv
    }

    /// Returns the number of the next record under this key.
    #[must_use]
    pub fn next_record(&self) -> u64 {
        self.next_record
    }

    /// Returns a key of zeros, for what needs any.
    fn zero(cipher: TlsCipher) -> Self {
        Self {
            cipher,
            key: vec![0; cipher.key_len()],
            iv: [0; 12],
            next_record: 0,
        }
    }

    /// Returns `struct tls12_crypto_info_*` of `include/uapi/linux/tls.h`.
    fn description(&self) -> Vec<u8> {
        let (number, salt) = self.cipher.layout();
        let (salt, rest) = self.iv.split_at(salt);
        let (version, number) = (libc::TLS_1_3_VERSION.to_ne_bytes(), number.to_ne_bytes());
        let next = self.next_record.to_be_bytes();
        [&version[..], &number, rest, &self.key, salt, &next].concat()
    }
}

/// A direction, as the kernel calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// What this side sends.
    Send,
    /// What this side receives.
    Receive,
}

impl Way {
    const fn option(self) -> libc::c_int {
        match self {
            Self::Send => libc::TLS_TX,
            Self::Receive => libc::TLS_RX,
        }
    }
}

/// Gives a connected socket to the kernel's TLS. Until it has keys, it works as before.
///
/// # Errors
/// `NotFound` if the kernel has no TLS. `NotConnected` if the peer has ended its stream.
pub fn attach(socket: impl AsFd) -> io::Result<()> {
    Ok(sys::set_option(
        socket.as_fd(),
        libc::IPPROTO_TCP,
        libc::TCP_ULP,
        b"tls",
    )?)
}

/// Gives the kernel a key: the first one after [`attach`], or the one after a key update.
///
/// # Errors
/// `InvalidInput` if the kernel does not know the cipher. `ResourceBusy` before Linux 6.14 if the
/// direction has a key already.
pub fn set_key(socket: impl AsFd, way: Way, key: &TrafficKey) -> io::Result<()> {
    Ok(sys::set_option(
        socket.as_fd(),
        libc::SOL_TLS,
        way.option(),
        &key.description(),
    )?)
}

/// Returns the number of the next record of a direction, whose key is of this cipher.
///
/// # Errors
/// If the direction has no key.
pub fn next_record(socket: impl AsFd, way: Way, cipher: TlsCipher) -> io::Result<u64> {
    let mut bytes = TrafficKey::zero(cipher).description();
    sys::option(socket.as_fd(), libc::SOL_TLS, way.option(), &mut bytes)?;
    Ok(u64::from_be_bytes(*bytes.last_chunk().expect("a number at its end")))
}

/// Tries a cipher of TLS on a connection of its own, with a second key in each direction.
///
/// # Errors
/// The error of the first call that the kernel refuses.
pub fn probe(cipher: TlsCipher) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let socket = TcpStream::connect(listener.local_addr()?)?;
    attach(&socket)?;
    let key = TrafficKey::zero(cipher);
    for _ in 0..2 {
        set_key(&socket, Way::Send, &key)?;
        set_key(&socket, Way::Receive, &key)?;
    }
    Ok(())
}

/// Receives records of one type, as far as they fit, and returns their type and length. The end of
/// the connection has no type. The call never waits.
///
/// # Errors
/// The errors of `recvmsg(2)`. A damaged record causes `EBADMSG`, `EMSGSIZE` or `EINVAL`.
pub fn receive(socket: impl AsFd, bytes: &mut [u8]) -> io::Result<(Option<u8>, usize)> {
    let socket = socket.as_fd();
    Ok(retry_on_intr(|| sys::receive_record(socket, bytes))?)
}

/// Does the same as [`receive`] after a splice from the socket has returned `EINVAL`. There must be
/// a record without data. Otherwise, the kernel has reported a damaged header once, to the splice.
///
/// # Errors
/// The errors of [`receive`], and `EINVAL` instead of `WouldBlock`.
pub fn receive_refused(socket: impl AsFd, bytes: &mut [u8]) -> io::Result<(Option<u8>, usize)> {
    match receive(socket, bytes) {
        Ok((None, _)) => Err(Errno::INVAL.into()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(Errno::INVAL.into()),
        received => received,
    }
}

/// A fault of a record that the kernel reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordFault {
    /// The tag is wrong.
    Tag,
    /// The record is too long.
    Length,
    /// The header is damaged.
    Header,
}

impl RecordFault {
    /// Returns the fault that an error of [`receive`], or of a splice from the socket, means.
    #[must_use]
    pub fn of(error: &io::Error) -> Option<Self> {
        match Errno::from_io_error(error)? {
            Errno::BADMSG => Some(Self::Tag),
            Errno::MSGSIZE => Some(Self::Length),
            Errno::INVAL => Some(Self::Header),
            _ => None,
        }
    }
}

/// Sends a record that is not data. The call never waits.
///
/// # Errors
/// The errors of `sendmsg(2)`. `WriteZero` if the kernel took only a part.
pub fn send(socket: impl AsFd, kind: u8, content: &[u8]) -> io::Result<()> {
    let socket = socket.as_fd();
    let sent = retry_on_intr(|| sys::send_record(socket, kind, content))?;
    if sent == content.len() {
        Ok(())
    } else {
        Err(io::ErrorKind::WriteZero.into())
    }
}

/// Sends FIN, unless the connection is gone.
///
/// # Errors
/// An open TCP socket causes no errors.
pub fn shut_down(socket: impl AsFd) -> io::Result<()> {
    match rustix::net::shutdown(socket, rustix::net::Shutdown::Write) {
        Err(Errno::NOTCONN) => Ok(()),
        done => Ok(done?),
    }
}

/// Returns whether the connection is gone.
pub fn is_closed(socket: impl AsFd) -> bool {
    tcp_info::is_closed(socket.as_fd())
}

/// Returns how many bytes the send queue of a connection has had since the connection began.
///
/// # Errors
/// An open TCP socket causes no errors.
pub fn queued(socket: impl AsFd) -> io::Result<u64> {
    fn of(socket: BorrowedFd<'_>) -> io::Result<u64> {
        loop {
            let acknowledged = tcp_info::acknowledged(socket)?;
            let queue = sys::unacknowledged(socket)? as u64;
            // An acknowledgement between the calls would count its bytes twice, or not at all.
            if tcp_info::acknowledged(socket)? == acknowledged {
                return Ok(acknowledged + queue);
            }
        }
    }
    of(socket.as_fd())
}
