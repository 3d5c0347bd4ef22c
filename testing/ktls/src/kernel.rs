//! System calls of TLS in the kernel (`Documentation/networking/tls.rst` of Linux).
//!
//! This is the only file of the crate with `unsafe`, because no wrapper has these options and
//! control messages.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::io;
use std::mem;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::ptr;

use libc::{SOL_TLS, TLS_GET_RECORD_TYPE, TLS_RX, TLS_SET_RECORD_TYPE, TLS_TX};
use rustls::ConnectionTrafficSecrets;
use rustls::crypto::cipher::{AeadKey, Iv};

/// Gives a connected socket to the kernel's TLS. Until it has keys, the socket works as before.
pub(crate) fn attach(socket: &TcpStream) -> io::Result<()> {
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_ULP, b"tls")
}

/// Returns whether this kernel has TLS.
#[must_use]
pub fn is_supported() -> bool {
    let attempt = || {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        attach(&TcpStream::connect(listener.local_addr()?)?)
    };
    attempt().is_ok()
}

/// Returns whether this kernel takes other keys after the first ones. Linux does since 6.14.
#[must_use]
pub fn can_update_keys() -> bool {
    let attempt = || {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let socket = TcpStream::connect(listener.local_addr()?)?;
        attach(&socket)?;
        let (key, iv) = (AeadKey::from([0; 32]), Iv::from([0; 12]));
        let keys = ConnectionTrafficSecrets::Aes256Gcm { key, iv };
        for _ in 0..2 {
            set_send_keys(&socket, 0, &keys)?;
            set_receive_keys(&socket, 0, &keys)?;
        }
        io::Result::Ok(())
    };
    attempt().is_ok()
}

/// The kernel encrypts with these keys what is sent from now on.
pub(crate) fn set_send_keys(socket: &TcpStream, number: u64, keys: &ConnectionTrafficSecrets) -> io::Result<()> {
    set_option(socket, SOL_TLS, TLS_TX, &description(number, keys))
}

/// The kernel decrypts with these keys what it has not decrypted yet.
pub(crate) fn set_receive_keys(socket: &TcpStream, number: u64, keys: &ConnectionTrafficSecrets) -> io::Result<()> {
    set_option(socket, SOL_TLS, TLS_RX, &description(number, keys))
}

/// Returns the number of the next record that the kernel sends. `keys` must be those in use.
pub(crate) fn next_record(socket: &TcpStream, keys: &ConnectionTrafficSecrets) -> io::Result<u64> {
    let mut bytes = description(0, keys);
    get_option(socket, SOL_TLS, TLS_TX, &mut bytes)?;
    let number = bytes.last_chunk().expect("a number at its end");
    Ok(u64::from_be_bytes(*number))
}

/// Returns `struct tls12_crypto_info_*` of `include/uapi/linux/tls.h`.
fn description(number: u64, keys: &ConnectionTrafficSecrets) -> Vec<u8> {
    const VERSION_1_3: u16 = 0x0304;
    let (cipher, key, iv) = match keys {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (51_u16, key, iv),
        ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (52, key, iv),
        ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (54, key, iv),
        _ => unreachable!("the settings of rustls have three ciphers"),
    };
    let iv = iv.as_ref();
    // The kernel calls the first 4 bytes of the nonce of GCM a salt.
    let (salt, rest) = iv.split_at(if cipher == 54 { 0 } else { 4 });
    let (version, cipher) = (VERSION_1_3.to_ne_bytes(), cipher.to_ne_bytes());
    [&version[..], &cipher, rest, key.as_ref(), salt, &number.to_be_bytes()].concat()
}

/// Returns how many bytes of a TCP connection its peer has acknowledged (`tcpi_bytes_acked`).
pub(crate) fn acknowledged(socket: &TcpStream) -> io::Result<u64> {
    const ACKNOWLEDGED: usize = 120;
    let mut info = [0; ACKNOWLEDGED + 8];
    get_option(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info)?;
    Ok(u64::from_ne_bytes(*info.last_chunk().expect("8 bytes")))
}

/// Returns how many bytes are in a socket's send queue.
pub(crate) fn send_queue(socket: &TcpStream) -> io::Result<u64> {
    let mut bytes: c_int = 0;
    // SAFETY: the kernel writes one int to `bytes`, which outlives the call.
    succeeded(unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) })?;
    Ok(u64::try_from(bytes).unwrap_or(0))
}

fn set_option(socket: &TcpStream, level: c_int, name: c_int, value: &[u8]) -> io::Result<()> {
    let (bytes, length) = (value.as_ptr().cast(), size(value.len()));
    // SAFETY: the kernel reads `length` bytes at `bytes`, which `value` has.
    succeeded(unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, bytes, length) })
}

fn get_option(socket: &TcpStream, level: c_int, name: c_int, value: &mut [u8]) -> io::Result<()> {
    let (bytes, mut length) = (value.as_mut_ptr().cast(), size(value.len()));
    // SAFETY: the kernel writes at most `length` bytes at `bytes`, which `value` has.
    succeeded(unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, bytes, &raw mut length) })
}

/// Room for one control message with one byte.
#[repr(align(8))]
struct Control([u8; 32]);

/// Receives records of one type, as far as they fit, and returns their type and length. The end of
/// the connection has no type.
pub(crate) fn receive(socket: &TcpStream, bytes: &mut [u8]) -> io::Result<(Option<u8>, usize)> {
    let mut control = Control([0; 32]);
    let mut part = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast::<c_void>(),
        iov_len: bytes.len(),
    };
    // SAFETY: all fields are integers or pointers, for which zeros are valid.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len();
    // SAFETY: `message` describes `bytes` and `control`, which outlive the call.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the kernel has set the length of the control messages within `control`.
    let first = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    if first.is_null() {
        return Ok((None, received));
    }
    // SAFETY: `first` points to a message within `control`, which is aligned for it.
    let header = unsafe { *first };
    assert!(header.cmsg_level == SOL_TLS && header.cmsg_type == TLS_GET_RECORD_TYPE);
    // SAFETY: such a message has one byte.
    Ok((Some(unsafe { *libc::CMSG_DATA(first) }), received))
}

/// Sends a record of this type. The socket does not block.
pub(crate) fn send(socket: &TcpStream, kind: u8, bytes: &[u8]) -> io::Result<()> {
    let mut control = Control([0; 32]);
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast::<c_void>().cast_mut(),
        iov_len: bytes.len(),
    };
    // SAFETY: all fields are integers or pointers, for which zeros are valid.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    // SAFETY: the macro computes a size.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(1) } as usize;
    // SAFETY: the control buffer has room for this message and is aligned for it.
    unsafe {
        let first = libc::CMSG_FIRSTHDR(&raw const message);
        (*first).cmsg_level = SOL_TLS;
        (*first).cmsg_type = TLS_SET_RECORD_TYPE;
        (*first).cmsg_len = libc::CMSG_LEN(1) as usize;
        ptr::write(libc::CMSG_DATA(first), kind);
    }
    // SAFETY: `message` describes `bytes` and `control`, which outlive the call. The kernel reads.
    let sent = unsafe {
        libc::sendmsg(
            socket.as_raw_fd(),
            &raw const message,
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
        )
    };
    match usize::try_from(sent) {
        Ok(sent) if sent == bytes.len() => Ok(()),
        Ok(_) => Err(io::Error::other("a part of a record was sent")),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

fn succeeded(result: c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn size(bytes: usize) -> libc::socklen_t {
    libc::socklen_t::try_from(bytes).expect("a short option")
}
