//! Datagrams over links with the Ethernet MTU, and over links with a smaller MTU.

use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};

use crate::harness::{PATIENCE, Program, connect, read_exactly};
use spliceway_net::{Family, Net, Offloads, address};

/// A client at one end, a target at the other end, and the program between them.
struct Between {
    net: Net,
    _program: Program,
    _connection: TcpStream,
    client: UdpSocket,
    target: UdpSocket,
    header: Vec<u8>,
}

impl Between {
    /// Returns `None` if the machine provides no namespaces.
    fn new(family: Family) -> Option<Self> {
        let net = Net::of_three(Offloads::On)?;
        let (relay_at, target_at) = (address(0, true, family), address(1, true, family));
        let program = net.node(1).inside(|| {
            let listens = SocketAddr::new(relay_at, 0).to_string();
            Program::start(&["socks5", "-l", &listens, "--open", "--allow-private"])
        });
        let target = net.node(2).inside(|| socket(target_at));
        let listens = program.address;
        let (connection, relay, client) = net.node(0).inside(|| {
            let (connection, relay) = associated(listens);
            let client = socket(address(0, false, family));
            client.connect(relay).unwrap();
            (connection, relay, client)
        });
        assert_eq!(relay.ip(), relay_at);
        let header = [&[0, 0, 0], &written(target.local_addr().unwrap())[..]].concat();
        Some(Self {
            net,
            _program: program,
            _connection: connection,
            client,
            target,
            header,
        })
    }

    fn send(&self, data: &[u8]) {
        self.client.send(&[&self.header, data].concat()).unwrap();
    }

    /// Returns the datagram that arrives at the target, and its source.
    fn take(&self) -> (Vec<u8>, SocketAddr) {
        let mut bytes = vec![0; 65_536];
        let (length, from) = self.target.recv_from(&mut bytes).unwrap();
        bytes.truncate(length);
        (bytes, from)
    }

    fn assert_answered(&self, data: &[u8]) {
        let mut bytes = vec![0; 65_536];
        let length = self.client.recv(&mut bytes).unwrap();
        assert_eq!(bytes[..length], [&self.header, data].concat());
    }
}

fn socket(ip: IpAddr) -> UdpSocket {
    let socket = UdpSocket::bind((ip, 0)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Returns type, address and port in the SOCKS5 encoding.
fn written(address: SocketAddr) -> Vec<u8> {
    let port = address.port().to_be_bytes();
    match address.ip() {
        IpAddr::V4(ip) => [&[1][..], &ip.octets(), &port].concat(),
        IpAddr::V6(ip) => [&[4][..], &ip.octets(), &port].concat(),
    }
}

/// Returns the connection that holds an association, and the address to send datagrams to.
fn associated(program: SocketAddr) -> (TcpStream, SocketAddr) {
    let mut client = connect(program);
    client.write_all(&[5, 1, 0, 5, 3, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
    assert_eq!(read_exactly(&mut client, 6)[..5], [5, 0, 5, 0, 0]);
    let ip: IpAddr = match program.ip() {
        IpAddr::V4(_) => <[u8; 4]>::try_from(read_exactly(&mut client, 4)).unwrap().into(),
        IpAddr::V6(_) => <[u8; 16]>::try_from(read_exactly(&mut client, 16)).unwrap().into(),
    };
    let port = read_exactly(&mut client, 2);
    (client, SocketAddr::new(ip, u16::from_be_bytes([port[0], port[1]])))
}

/// IP splits such a datagram into fragments and reassembles it. A resolver's long answer is an
/// example.
#[test]
fn a_datagram_larger_than_the_mtu_arrives_whole() {
    for family in [Family::V4, Family::V6] {
        let Some(between) = Between::new(family) else { return };
        let data: Vec<u8> = (0..4_000).map(|place: u32| place.to_le_bytes()[0]).collect();
        between.send(&data);
        let (arrived, from) = between.take();
        assert_eq!(arrived, data);
        between.target.send_to(&data, from).unwrap();
        between.assert_answered(&data);
    }
}

/// The first link carries these datagrams whole, and the next link does not. The program forwards
/// each datagram on its own, in fragments. The answers return in the same way.
#[test]
fn a_flow_continues_over_a_link_with_a_smaller_mtu() {
    for family in [Family::V4, Family::V6] {
        let Some(between) = Between::new(family) else { return };
        for (node, device) in [(1, "right"), (2, "left")] {
            between
                .net
                .node(node)
                .ip(&[format!("link set {device} mtu 1300")])
                .unwrap();
        }
        let flights: Vec<Vec<u8>> = (0..64).map(|number| vec![number; 1_400]).collect();
        flights.iter().for_each(|data| between.send(data));
        for data in &flights {
            let (arrived, from) = between.take();
            assert_eq!(&arrived, data);
            between.target.send_to(data, from).unwrap();
        }
        flights.iter().for_each(|data| between.assert_answered(data));
    }
}
