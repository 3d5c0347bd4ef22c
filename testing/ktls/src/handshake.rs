//! The relay's handshake: rustls has the keys until the kernel gets them.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::kernel::KernelConnection;
use rustls::pki_types::ServerName;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, UnbufferedStatus};
use rustls::{ConnectionTrafficSecrets, ExtractedSecrets};

use crate::identity::{Identity, NAME};
use crate::plan::{Plan, Role};
use crate::record_layer::{HEADER, length};

/// Derives the keys that follow a key update.
pub(crate) enum Later {
    Server(KernelConnection<ServerConnectionData>),
    Client(KernelConnection<ClientConnectionData>),
}

impl Later {
    pub(crate) fn next_send_keys(&mut self) -> Result<ConnectionTrafficSecrets, rustls::Error> {
        let next = match self {
            Self::Server(connection) => connection.update_tx_secret(),
            Self::Client(connection) => connection.update_tx_secret(),
        };
        next.map(|(_, keys)| keys)
    }

    pub(crate) fn next_receive_keys(&mut self) -> Result<ConnectionTrafficSecrets, rustls::Error> {
        let next = match self {
            Self::Server(connection) => connection.update_rx_secret(),
            Self::Client(connection) => connection.update_rx_secret(),
        };
        next.map(|(_, keys)| keys)
    }

    /// Stores a ticket for later sessions.
    pub(crate) fn store_ticket(&mut self, ticket: &[u8]) -> Result<(), rustls::Error> {
        match self {
            Self::Server(_) => Err(rustls::Error::General("a ticket of a client".to_owned())),
            Self::Client(connection) => connection.handle_new_session_ticket(ticket),
        }
    }
}

/// Shakes hands, and returns the keys. The socket blocks, and holds nothing of what follows.
pub(crate) fn shake_hands(
    plan: &Plan,
    identity: &Identity,
    socket: &TcpStream,
) -> Result<(ExtractedSecrets, Later), String> {
    match plan.role {
        Role::Server => {
            let mut config = identity.server(plan.cipher);
            config.enable_secret_extraction = true;
            let mut connection = UnbufferedServerConnection::new(Arc::new(config)).map_err(said)?;
            run(&mut connection, socket)?;
            let (secrets, later) = connection.dangerous_into_kernel_connection().map_err(said)?;
            Ok((secrets, Later::Server(later)))
        }
        Role::Client => {
            let mut config = identity.client(plan.cipher);
            config.enable_secret_extraction = true;
            let name = ServerName::try_from(NAME).expect("a name");
            let mut connection = UnbufferedClientConnection::new(Arc::new(config), name).map_err(said)?;
            run(&mut connection, socket)?;
            let (secrets, later) = connection.dangerous_into_kernel_connection().map_err(said)?;
            Ok((secrets, Later::Client(later)))
        }
    }
}

fn said(error: impl ToString) -> String {
    error.to_string()
}

/// What the connections of servers and of clients have in common.
trait Unbuffered {
    type Data;
    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;
}

impl Unbuffered for UnbufferedServerConnection {
    type Data = ServerConnectionData;
    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }
}

impl Unbuffered for UnbufferedClientConnection {
    type Data = ClientConnectionData;
    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }
}

fn run(connection: &mut impl Unbuffered, mut socket: &TcpStream) -> Result<(), String> {
    let (mut incoming, mut outgoing) = (Vec::new(), Vec::new());
    loop {
        let UnbufferedStatus { discard, state } = connection.process(&mut incoming);
        let mut needs_more = false;
        match state.map_err(said)? {
            ConnectionState::EncodeTlsData(mut data) => {
                let mut bytes = vec![0; 1 << 16];
                let length = data.encode(&mut bytes).map_err(said)?;
                outgoing.extend_from_slice(&bytes[..length]);
            }
            ConnectionState::TransmitTlsData(data) => {
                socket.write_all(&outgoing).map_err(said)?;
                outgoing.clear();
                data.done();
            }
            ConnectionState::BlockedHandshake => needs_more = true,
            ConnectionState::WriteTraffic(_) => return Ok(()),
            state => return Err(format!("{state:?} in a handshake")),
        }
        incoming.drain(..discard);
        if needs_more {
            // Nothing that follows the handshake may be read here, because the kernel decrypts it.
            incoming.extend(read_record(socket).map_err(said)?);
        }
    }
}

/// Reads one record and nothing after it.
pub(crate) fn read_record(mut socket: &TcpStream) -> io::Result<Vec<u8>> {
    let mut header = [0; HEADER];
    socket.read_exact(&mut header)?;
    let mut record = header.to_vec();
    record.resize(length(header), 0);
    socket.read_exact(&mut record[HEADER..])?;
    Ok(record)
}
