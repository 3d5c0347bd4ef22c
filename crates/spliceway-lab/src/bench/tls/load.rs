//! The load of `--tls`: clients whose TLS is rustls in user space, and a server without TLS.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::pki_types::ServerName;
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use socket2::{Domain, SockRef, Socket, Type};
use spliceway_load::Done;

use super::{NAME, crypto, parsed};
use crate::bench::conditions::{self, Conditions};
use crate::bench::measurement::Kind;

/// Bytes of a read and of a write.
const ROOM: usize = 256 << 10;
/// Bytes in each direction of a short connection.
const SHORT: usize = 1 << 10;
/// A relay that is silent for longer does not work.
const PATIENCE: Duration = Duration::from_secs(5);

type Client = StreamOwned<ClientConnection, TcpStream>;

/// What connects through a relay.
pub(in crate::bench) struct Load<'a> {
    config: Arc<ClientConfig>,
    relay: SocketAddr,
    listener: TcpListener,
    conditions: &'a Conditions,
}

impl<'a> Load<'a> {
    /// Returns the load for a relay with this certificate, which connects to the listener.
    pub(in crate::bench) fn new(
        certificate: &str,
        relay: SocketAddr,
        listener: TcpListener,
        conditions: &'a Conditions,
    ) -> io::Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(parsed(certificate)?).map_err(io::Error::other)?;
        let config = ClientConfig::builder_with_provider(crypto::provider()?).with_protocol_versions(&[&TLS13]);
        let config = config.map_err(io::Error::other)?;
        Ok(Self {
            config: Arc::new(config.with_root_certificates(roots).with_no_client_auth()),
            relay,
            listener,
            conditions,
        })
    }

    /// Loads the relay until the window is over. Only what happens in the window counts. Calls
    /// `look` when the window opens and when it closes.
    pub(in crate::bench) fn run(
        &self,
        kind: Kind,
        window: (Duration, Duration),
        look: impl FnMut(bool) -> io::Result<()>,
    ) -> io::Result<Done> {
        match kind {
            Kind::Handshakes => self.connections(window, look),
            kind => self.bulk(kind == Kind::Decrypt, window, look),
        }
    }

    /// Moves bytes in one direction of one connection.
    fn bulk(
        &self,
        is_upload: bool,
        (opens, closes): (Duration, Duration),
        mut look: impl FnMut(bool) -> io::Result<()>,
    ) -> io::Result<Done> {
        let (client, server) = self.connect()?;
        let sockets = [client.sock.try_clone()?, server.try_clone()?];
        let ends: (Box<dyn Read + Send>, Box<dyn Write + Send>) = if is_upload {
            (Box::new(server), Box::new(client))
        } else {
            (Box::new(client), Box::new(server))
        };
        let (mut from, mut to) = ends;
        let passed = &AtomicU64::new(0);
        let (failed, failure) = mpsc::channel();
        let repeat = |mut step: Box<dyn FnMut() -> io::Result<()> + Send>| {
            let failed = failed.clone();
            move || {
                conditions::pin_to_any(&self.conditions.load_cores);
                let error = loop {
                    if let Err(error) = step() {
                        break error;
                    }
                };
                // After the window, the receiver no longer reads the channel.
                let _ = failed.send(error);
            }
        };
        let wait = |time| failure.recv_timeout(time).map_or(Ok(()), Err);
        let (data, mut room) = (vec![7; ROOM], vec![0; ROOM]);
        let send = repeat(Box::new(move || to.write_all(&data)));
        let receive = repeat(Box::new(move || match from.read(&mut room)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            bytes => {
                passed.fetch_add(bytes as u64, Ordering::Relaxed);
                Ok(())
            }
        }));
        thread::scope(|scope| {
            scope.spawn(send);
            scope.spawn(receive);
            let mut looked = || {
                wait(opens)?;
                look(true)?;
                let before = passed.load(Ordering::Relaxed);
                wait(closes - opens)?;
                look(false)?;
                Ok(passed.load(Ordering::Relaxed) - before)
            };
            let bytes = looked();
            for socket in &sockets {
                // The connections end with a reset, so no relay has to finish a backlog. A relay
                // that has failed has ended them already.
                let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
                let _ = socket.shutdown(Shutdown::Both);
            }
            bytes.map(|bytes| Done {
                bytes,
                ..Done::default()
            })
        })
    }

    /// Opens connections one after the other, and closes each after one exchange.
    fn connections(
        &self,
        (opens, closes): (Duration, Duration),
        mut look: impl FnMut(bool) -> io::Result<()>,
    ) -> io::Result<Done> {
        let began = Instant::now();
        while began.elapsed() < opens {
            self.exchange()?;
        }
        look(true)?;
        let mut completed = 0;
        while began.elapsed() < closes {
            self.exchange()?;
            completed += 1;
        }
        look(false)?;
        Ok(Done {
            offered: completed,
            completed,
            ..Done::default()
        })
    }

    fn exchange(&self) -> io::Result<()> {
        let (mut client, mut server) = self.connect()?;
        let mut message = [7; SHORT];
        client.write_all(&message)?;
        server.read_exact(&mut message)?;
        server.write_all(&message)?;
        client.read_exact(&mut message)?;
        client.conn.send_close_notify();
        client.flush()?;
        client.sock.shutdown(Shutdown::Write)?;
        let left = server.read(&mut message)?;
        drop(server);
        // Without an announced end of the relay, this is an error.
        match left + client.read(&mut message)? {
            0 => Ok(()),
            _ => Err(io::Error::other("the relay has sent too much")),
        }
    }

    /// Returns both ends of a connection through the relay, after the handshake.
    fn connect(&self) -> io::Result<(Client, TcpStream)> {
        let socket = Socket::new(Domain::for_address(self.relay), Type::STREAM, None)?;
        conditions::choose(&socket, self.conditions.chosen)?;
        socket.connect(&self.relay.into())?;
        let socket = ready(socket.into())?;
        let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
        let connection = ClientConnection::new(Arc::clone(&self.config), name).map_err(io::Error::other)?;
        let mut client = StreamOwned::new(connection, socket);
        while client.conn.is_handshaking() {
            client.conn.complete_io(&mut client.sock)?;
        }
        client.flush()?;
        let patience = Timespec::try_from(PATIENCE).map_err(io::Error::other)?;
        if poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(&patience))? == 0 {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the relay does not connect"));
        }
        let (server, _) = self.listener.accept()?;
        Ok((client, ready(server)?))
    }
}

/// Prepares one end of a connection.
fn ready(socket: TcpStream) -> io::Result<TcpStream> {
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    Ok(socket)
}
