//! The peers of the relay. They send what the plan says, and check what they receive.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ConnectionCommon, ServerConnection};
use socket2::SockRef;

use crate::handshake::read_record;
use crate::identity::{Identity, NAME, Secrets};
use crate::plan::{DownEnd, Item, Order, Plan, Role, UpEnd, byte_at};
use crate::record_layer::{ALERT, DATA, HANDSHAKE, HEADER, Keys, length};

/// How long a peer waits for the relay.
const PATIENCE: Duration = Duration::from_secs(120);

/// How a stream ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// `close_notify` and FIN.
    Announced,
    /// FIN alone.
    Fin,
    /// FIN within a record.
    Cut,
    /// Reset.
    Reset,
    /// Another alert.
    Alert(u8),
    /// Something else, such as a record that cannot be opened.
    Failed(String),
}

/// What a peer received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Bytes of data.
    pub bytes: usize,
    /// The place of the first byte that differs from what the other peer sent.
    pub wrong: Option<usize>,
    /// Key updates of the relay.
    pub key_updates: usize,
    /// What followed the data.
    pub end: End,
}

/// What both peers received.
#[derive(Clone, Debug)]
pub struct Peers {
    /// The peer with TLS.
    pub tls: Seen,
    /// The peer without.
    pub plain: Seen,
}

/// Plays both peers until each has received an end. `tls` and `plain` connect to the relay, or
/// accept its connection, at the same time.
///
/// # Panics
/// Panics if the handshake fails.
pub fn play(
    plan: &Plan,
    identity: &Identity,
    tls: impl FnOnce() -> TcpStream + Send,
    plain: impl FnOnce() -> TcpStream + Send,
) -> Peers {
    let (up_ended, await_up) = mpsc::channel();
    let (down_ended, await_down) = mpsc::channel();
    let (tls_connected, await_tls) = mpsc::channel();
    let (plain_connected, await_plain) = mpsc::channel();
    thread::scope(|scope| {
        let tls = scope.spawn(move || {
            let socket = prepared(tls(), plan.receive_buffers[0]);
            let [mut send, receive] = shake_hands(plan, identity, &socket);
            // A reset before the relay has both connections is another kind of session.
            drop(tls_connected);
            await_drop(await_plain);
            thread::scope(|scope| {
                let reader = scope.spawn(|| {
                    let seen = read_tls(&socket, receive, plan);
                    drop(down_ended);
                    seen
                });
                await_turn(plan, Order::DownFirst, await_down);
                let written = write_tls(&socket, &mut send, plan);
                seen_by_both(reader.join().expect("a reader that does not panic"), &written)
            })
        });
        let socket = prepared(plain(), plan.receive_buffers[1]);
        drop(plain_connected);
        await_drop(await_tls);
        let plain = thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let seen = read_plain(&socket, plan);
                drop(up_ended);
                seen
            });
            await_turn(plan, Order::UpFirst, await_up);
            let written = write_plain(&socket, plan);
            seen_by_both(reader.join().expect("a reader that does not panic"), &written)
        });
        let tls = tls.join().expect("a peer that does not panic");
        Peers { tls, plain }
    })
}

/// The kernel reports a reset only once. If the writer gets the report, the reader sees an end.
fn seen_by_both(mut seen: Seen, written: &io::Result<()>) -> Seen {
    let is_reset = written
        .as_ref()
        .is_err_and(|error| matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe));
    if is_reset && matches!(seen.end, End::Fin | End::Cut) {
        seen.end = End::Reset;
    }
    seen
}

/// Waits until the other direction has ended, if the order says so.
fn await_turn(plan: &Plan, order: Order, ended: Receiver<()>) {
    if plan.order == order {
        await_drop(ended);
    }
}

/// Waits until another thread drops its end of the channel. Nobody sends.
fn await_drop(ended: Receiver<()>) {
    let _ = ended.recv();
}

fn prepared(socket: TcpStream, receive_buffer: Option<usize>) -> TcpStream {
    socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
    socket.set_write_timeout(Some(PATIENCE)).expect("a socket");
    socket.set_nodelay(true).expect("a socket");
    if let Some(bytes) = receive_buffer {
        SockRef::from(&socket).set_recv_buffer_size(bytes).expect("a socket");
    }
    socket
}

/// Returns the keys for sending and for receiving.
fn shake_hands(plan: &Plan, identity: &Identity, socket: &TcpStream) -> [Keys; 2] {
    let secrets = Arc::new(Secrets::default());
    let key_log = Arc::clone(&secrets) as Arc<dyn rustls::KeyLog>;
    let order = match plan.role {
        Role::Server => {
            let mut config = identity.client(plan.cipher);
            config.key_log = key_log;
            let name = ServerName::try_from(NAME).expect("a name");
            let mut connection = ClientConnection::new(Arc::new(config), name).expect("valid settings");
            run(&mut connection, socket).expect("a handshake");
            [0, 1]
        }
        Role::Client => {
            let mut config = identity.server(plan.cipher);
            config.key_log = key_log;
            // The plan says when tickets are sent.
            config.send_tls13_tickets = 0;
            let mut connection = ServerConnection::new(Arc::new(config)).expect("valid settings");
            run(&mut connection, socket).expect("a handshake");
            [1, 0]
        }
    };
    let secrets = secrets.get();
    order.map(|of| Keys::new(plan.cipher, &secrets[of]))
}

fn run<Data>(connection: &mut ConnectionCommon<Data>, mut socket: &TcpStream) -> io::Result<()> {
    loop {
        while connection.wants_write() {
            connection.write_tls(&mut socket)?;
        }
        if !connection.is_handshaking() {
            return Ok(());
        }
        let record = read_record(socket)?;
        connection.read_tls(&mut &record[..])?;
        connection.process_new_packets().map_err(io::Error::other)?;
    }
}

fn write_tls(mut socket: &TcpStream, keys: &mut Keys, plan: &Plan) -> io::Result<()> {
    let (mut place, mut bytes) = (0, Vec::new());
    let mut write = |bytes: &mut Vec<u8>, is_last: bool| {
        while bytes.len() >= plan.pieces || is_last && !bytes.is_empty() {
            let piece = plan.pieces.min(bytes.len());
            socket.write_all(&bytes[..piece])?;
            bytes.drain(..piece);
        }
        io::Result::Ok(())
    };
    for item in &plan.up {
        match *item {
            Item::Data { bytes: length, padding } => {
                let content = content(plan, true, place, length);
                bytes.extend(keys.seal(DATA, &content, padding));
                place += length;
            }
            Item::Empty => bytes.extend(keys.seal(DATA, &[], 0)),
            Item::Canceled => bytes.extend(keys.seal(ALERT, &[1, 90], 0)),
            Item::Ticket => bytes.extend(keys.seal(HANDSHAKE, &ticket(), 0)),
            Item::KeyUpdate { is_requested } => {
                bytes.extend(keys.seal(HANDSHAKE, &[24, 0, 0, 1, u8::from(is_requested)], 0));
                keys.update();
            }
        }
        write(&mut bytes, false)?;
    }
    match plan.up_end {
        UpEnd::Notify | UpEnd::NotifyAndFin => bytes.extend(keys.seal(ALERT, &[1, 0], 0)),
        UpEnd::FatalAlert => bytes.extend(keys.seal(ALERT, &[2, 80], 0)),
        UpEnd::BadTag => {
            bytes.extend(keys.seal(DATA, &[0; 100], 0));
            *bytes.last_mut().expect("a record") ^= 1;
        }
        UpEnd::BadVersion => {
            bytes.extend(keys.seal(DATA, &[0; 100], 0));
            let header = bytes.len() - (100 + 22);
            bytes[header + 1] = 9;
        }
        UpEnd::TooLong => bytes.extend([&[DATA, 3, 3, 0xff, 0xff], &[0; 70_000][..]].concat()),
        UpEnd::Fin | UpEnd::Reset => {}
    }
    write(&mut bytes, true)?;
    match plan.up_end {
        UpEnd::NotifyAndFin | UpEnd::Fin => socket.shutdown(Shutdown::Write),
        UpEnd::Reset => reset(socket),
        _ => Ok(()),
    }
}

fn write_plain(mut socket: &TcpStream, plan: &Plan) -> io::Result<()> {
    let mut place = 0;
    for &length in &plan.down {
        socket.write_all(&content(plan, false, place, length))?;
        place += length;
    }
    match plan.down_end {
        DownEnd::Fin => socket.shutdown(Shutdown::Write),
        DownEnd::Reset => reset(socket),
    }
}

/// Ends the connection by a reset, also while another thread reads from it.
fn reset(socket: &TcpStream) -> io::Result<()> {
    rustix::net::connect_unspec(socket).map_err(Into::into)
}

fn content(plan: &Plan, is_up: bool, place: usize, length: usize) -> Vec<u8> {
    (place..place + length)
        .map(|place| byte_at(plan.number, is_up, place))
        .collect()
}

/// Returns the message `NewSessionTicket` (RFC 8446, section 4.6.1).
fn ticket() -> Vec<u8> {
    let (lifetime, age, nonce, ticket, extensions) = ([0, 0, 14, 16], [1, 2, 3, 4], [1, 0], [0, 4, 9, 9, 9, 9], [0, 0]);
    let body = [&lifetime[..], &age, &nonce, &ticket, &extensions].concat();
    [&[4, 0, 0, u8::try_from(body.len()).expect("short")], &body[..]].concat()
}

/// Compares received bytes with those that the other peer sends.
struct Check<'a> {
    plan: &'a Plan,
    is_up: bool,
    bytes: usize,
    wrong: Option<usize>,
    key_updates: usize,
}

impl<'a> Check<'a> {
    fn new(plan: &'a Plan, is_up: bool) -> Self {
        Self {
            plan,
            is_up,
            bytes: 0,
            wrong: None,
            key_updates: 0,
        }
    }

    fn data(&mut self, data: &[u8]) {
        let is_same = |place: usize, byte: u8| byte_at(self.plan.number, self.is_up, place) == byte;
        if self.wrong.is_none() {
            let differs = data
                .iter()
                .enumerate()
                .position(|(at, byte)| !is_same(self.bytes + at, *byte));
            self.wrong = differs.map(|at| self.bytes + at);
        }
        self.bytes += data.len();
    }

    fn ended(self, end: End) -> Seen {
        Seen {
            bytes: self.bytes,
            wrong: self.wrong,
            key_updates: self.key_updates,
            end,
        }
    }
}

fn read_plain(mut socket: &TcpStream, plan: &Plan) -> Seen {
    let (mut check, mut bytes) = (Check::new(plan, true), vec![0; plan.reads[1]]);
    loop {
        match socket.read(&mut bytes) {
            Ok(0) => return check.ended(End::Fin),
            Ok(length) => check.data(&bytes[..length]),
            Err(error) => return check.ended(failed(&error)),
        }
    }
}

fn failed(error: &io::Error) -> End {
    match error.kind() {
        ErrorKind::ConnectionReset => End::Reset,
        _ => End::Failed(error.to_string()),
    }
}

fn read_tls(mut socket: &TcpStream, mut keys: Keys, plan: &Plan) -> Seen {
    let (mut check, mut bytes) = (Check::new(plan, false), vec![0; plan.reads[0]]);
    let (mut received, mut is_announced) = (Vec::new(), false);
    loop {
        while let Some(mut record) = take_record(&mut received) {
            let Some((kind, content)) = keys.open(&mut record) else {
                return check.ended(End::Failed("a record cannot be opened".to_owned()));
            };
            match (kind, &content[..]) {
                _ if is_announced => return check.ended(End::Failed("a record after close_notify".to_owned())),
                (DATA, data) => check.data(data),
                (ALERT, [_, 0]) => is_announced = true,
                (ALERT, [_, alert]) => return check.ended(End::Alert(*alert)),
                // A request for another key update would never end.
                (HANDSHAKE, [24, 0, 0, 1, 0]) => {
                    check.key_updates += 1;
                    keys.update();
                }
                (HANDSHAKE, [4, ..]) => {}
                _ => return check.ended(End::Failed(format!("a record of type {kind}"))),
            }
        }
        match socket.read(&mut bytes) {
            Ok(0) if !received.is_empty() => return check.ended(End::Cut),
            Ok(0) if is_announced => return check.ended(End::Announced),
            Ok(0) => return check.ended(End::Fin),
            Ok(length) => received.extend_from_slice(&bytes[..length]),
            Err(error) => return check.ended(failed(&error)),
        }
    }
}

fn take_record(received: &mut Vec<u8>) -> Option<Vec<u8>> {
    let header = *received.first_chunk::<HEADER>()?;
    let length = length(header);
    (received.len() >= length).then(|| received.drain(..length).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Cipher;

    #[test]
    fn a_record_is_opened_with_the_keys_that_sealed_it() {
        for cipher in [Cipher::Aes128, Cipher::Aes256, Cipher::ChaCha20] {
            let secret = vec![7; if cipher == Cipher::Aes256 { 48 } else { 32 }];
            let [mut send, mut receive] = [(); 2].map(|()| Keys::new(cipher, &secret));
            for (content, padding) in [(&b"abc"[..], 0), (b"", 3), (b"x\0\0", 9)] {
                let mut record = send.seal(DATA, content, padding);
                assert_eq!(receive.open(&mut record), Some((DATA, content.to_vec())));
                send.update();
                receive.update();
            }
            let mut record = send.seal(DATA, b"abc", 0);
            record[HEADER] ^= 1;
            assert_eq!(receive.open(&mut record), None);
        }
    }
}
