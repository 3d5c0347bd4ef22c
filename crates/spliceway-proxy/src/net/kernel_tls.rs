//! Gives a TLS connection from rustls to the kernel, and such a connection to another process.

use std::any::Any;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustls::{CipherSuite, Connection, Side, SupportedCipherSuite};
use spliceway::{KernelTls, KernelTlsState};
use tokio::net::TcpStream;

use super::stream::Stream;
use super::tls_stream::{Parts, TlsStream};
use super::traffic_secrets::KernelSession;

/// A connection that the kernel has not taken over.
#[derive(Debug)]
pub(crate) enum NotSwitched {
    /// It is not between two records, or has ended. It continues as before.
    NotNow(Box<TlsStream<Stream>>),
    /// The kernel has refused the socket. The connection continues in user space.
    Refused(Box<TlsStream<Stream>>, io::Error),
    /// rustls has given up the keys, and the kernel does not have them.
    Failed(Stream, io::Error),
}

/// Gives a connection to the kernel.
pub(crate) fn switch(mut stream: Box<TlsStream<Stream>>) -> Result<Box<KernelTls>, NotSwitched> {
    if !stream.is_between_records() {
        return Err(NotSwitched::NotNow(stream));
    }
    // After this, the keys cannot be refused for what the kernel lacks: it has been probed.
    let attached = match stream.socket() {
        Stream::Tcp(socket) => KernelTls::attach(socket),
        Stream::Unix(_) | Stream::Tls(_) | Stream::Kernel(_) => Err(io::ErrorKind::Unsupported.into()),
    };
    if let Err(error) = attached {
        return Err(NotSwitched::Refused(stream, error));
    }
    kernel_stream(stream.into_parts()).map_err(|(stream, error)| NotSwitched::Failed(stream, error))
}

/// Gives the keys to the kernel.
fn kernel_stream(parts: Parts<Stream>) -> Result<Box<KernelTls>, (Stream, io::Error)> {
    let Parts {
        records,
        connection,
        is_truncated,
        is_cut,
    } = parts;
    let secrets = records.secrets().map(Arc::clone);
    let socket = match records.into_inner() {
        Stream::Tcp(socket) => socket,
        other => return Err((other, io::ErrorKind::Unsupported.into())),
    };
    let side = match connection {
        Connection::Client(_) => Side::Client,
        Connection::Server(_) => Side::Server,
    };
    let Some((SupportedCipherSuite::Tls13(suite), secrets)) = connection.negotiated_cipher_suite().zip(secrets) else {
        return Err((socket.into(), io::ErrorKind::Unsupported.into()));
    };
    let keys = connection.dangerous_extract_secrets().map_err(io::Error::other);
    let keys = keys.and_then(|extracted| KernelSession::new(suite, side, &secrets, &extracted, is_truncated));
    secrets.forget();
    let (send, receive, mut session) = match keys {
        Ok(keys) => keys,
        Err(error) => return Err((socket.into(), error)),
    };
    session.set_cut(is_cut);
    let stream = KernelTls::new(socket, &send, &receive, Box::new(session));
    stream.map(Box::new).map_err(|(socket, error)| (socket.into(), error))
}

/// What another process needs to continue a connection, beside the socket.
pub(crate) struct Departure {
    pub(crate) suite: CipherSuite,
    pub(crate) state: KernelTlsState,
    pub(crate) is_truncated: bool,
    /// The secrets of what this side sends and receives.
    pub(crate) secrets: [Vec<u8>; 2],
}

/// Returns what another process needs. Returns `None` while a message of the peer is incomplete,
/// and after a damaged record.
pub(crate) fn leave(stream: &KernelTls) -> Option<Departure> {
    let state = stream.state()?;
    stream.with_session(|session| {
        let session = (session as &dyn Any).downcast_ref::<KernelSession>()?;
        Some(Departure {
            suite: session.suite(),
            state,
            is_truncated: session.is_truncated(),
            secrets: session.secrets().map(<[u8]>::to_vec),
        })
    })
}

/// Continues a connection from another process. `is_truncated` becomes `true` if the peer ends
/// without an announcement. If `is_cut` is `true` at the end of this side, this side does not
/// announce it.
///
/// # Errors
/// Returns an error if this program does not have the cipher suite, or the kernel does not have the
/// connection.
pub(crate) fn arrive(
    socket: TcpStream,
    suite: SupportedCipherSuite,
    state: &KernelTlsState,
    secrets: [&[u8]; 2],
    is_truncated: Arc<AtomicBool>,
    is_cut: Option<Arc<AtomicBool>>,
) -> io::Result<Box<KernelTls>> {
    let SupportedCipherSuite::Tls13(suite) = suite else {
        return Err(io::ErrorKind::Unsupported.into());
    };
    let mut session = KernelSession::resume(suite, secrets, is_truncated)?;
    session.set_cut(is_cut);
    KernelTls::resume(socket, state, Box::new(session)).map(Box::new)
}
