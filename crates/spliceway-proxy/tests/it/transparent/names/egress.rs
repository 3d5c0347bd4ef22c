//! The rules in contrib/egress, in front of the program.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};

use rustix::io::Errno;
use rustix::net::sockopt::ip_mtu;
use socket2::{Domain, Protocol, Socket, Type};
use spliceway_net::{Family, address};

use super::{GOOD, Guarded, LISTED, OTHER};
use crate::harness::{PATIENCE, Program, TextFile, accept, contrib, read_all, read_exactly, was_reached};
use crate::sni::{alert, named};
use crate::transparent::{CLIENT, GATEWAY, Network, TARGET};

/// The address of the gateway in the network of its clients.
const AT_CLIENTS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

/// Returns the rules for the interface of the client, with this DNS server. One more client may
/// administer the gateway.
fn rules(resolver: &str) -> String {
    let rules = std::fs::read_to_string(contrib("egress/egress.nft")).unwrap();
    let rules = rules.replace("\"lan\"", "\"left\"").replace("192.168.0.53", resolver);
    let example = "# iifname $clients ip saddr 192.168.0.2 ";
    assert!(rules.contains(example), "{rules}");
    rules.replace(example, "iifname $clients ip saddr 10.77.0.1 ")
}

/// The files of contrib/egress let nothing else out of the network.
#[test]
fn the_rules_in_contrib_let_only_listed_names_and_dns_out() {
    let Some(guarded) = Guarded::new() else { return };
    let config = std::fs::read_to_string(contrib("egress/spliceway.toml")).unwrap();
    let mut config = config
        .replace("192.168.0.0/16", "10.77.0.0/24")
        .replace("github.com", "good.test");
    config += "allow_private = \"10.77.1.0/24\"\ndns = \"127.0.0.2\"\n[admin]\nmetrics = \"127.0.0.1:0\"\n";
    let file = TextFile::new(&config);
    let _program = guarded.network.at_gateway(|| Program::run(&file));
    guarded.network.load(&rules(LISTED));
    let net = &guarded.network.0;
    net.node(GATEWAY)
        .inside(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1"))
        .unwrap();
    let (good, other) = (guarded.listen(GOOD, 443), guarded.listen(OTHER, 443));
    let udp = |ip: &str, port: u16| {
        let address = SocketAddr::new(ip.parse().unwrap(), port);
        net.node(TARGET).inside(|| UdpSocket::bind(address).unwrap())
    };
    let (quic, dns) = (udp(GOOD, 443), udp(LISTED, 53));
    dns.set_read_timeout(Some(PATIENCE)).unwrap();
    let client = net.node(CLIENT).inside(|| UdpSocket::bind("0.0.0.0:0").unwrap());
    client.send_to(b"quic", (GOOD, 443)).unwrap();
    client.send_to(b"query", (LISTED, 53)).unwrap();
    assert_eq!(dns.recv(&mut [0; 9]).unwrap(), 5);
    // The first datagram would have arrived before the second one.
    quic.set_nonblocking(true).unwrap();
    assert!(quic.recv(&mut [0; 9]).is_err());
    let mut tls = guarded.connect(&format!("{OTHER}:443"));
    tls.write_all(&named("good.test")).unwrap();
    assert_eq!(
        read_exactly(&mut accept(&good), named("good.test").len()),
        named("good.test")
    );
    let mut refused = guarded.connect(&format!("{OTHER}:443"));
    refused.write_all(&named("evil.test")).unwrap();
    assert_eq!(read_all(&refused), alert(112));
    assert!(!was_reached(&other));
}

/// An operator who loads the rules over SSH from the interface of the clients keeps that session,
/// and may open another one. Everything else that a client sends to the gateway is dropped.
#[test]
fn the_rules_in_contrib_do_not_lock_the_operator_out() {
    let Some(network) = Network::new() else { return };
    let listen = |port| network.at_gateway(|| TcpListener::bind((AT_CLIENTS, port)).unwrap());
    let (ssh, other) = (listen(22), listen(0));
    // No rule has the port of this session.
    let mut operator = network.connect(other.local_addr().unwrap());
    let mut session = accept(&other);
    network.load(&rules("10.77.0.1"));
    // The prompt after the command.
    session.write_all(b"$ ").unwrap();
    assert_eq!(read_exactly(&mut operator, 2), b"$ ");
    operator.write_all(b"exit").unwrap();
    assert_eq!(read_exactly(&mut session, 4), b"exit");
    let mut next = network.connect(ssh.local_addr().unwrap());
    next.write_all(b"again").unwrap();
    assert_eq!(read_exactly(&mut accept(&ssh), 5), b"again");
    // The port of the program has no listener, so a redirected connection would be refused.
    let client = network.0.node(CLIENT).inside(|| {
        let client = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        client.set_nonblocking(true).unwrap();
        let _ = client.connect(&other.local_addr().unwrap().into());
        client
    });
    datagram_passes(&network, 67);
    assert!(!was_reached(&other), "the connection is before the datagram");
    assert!(client.take_error().unwrap().is_none(), "no answer");
}

/// Sends a datagram to everybody, as a client of DHCP does. The gateway gets it, and none of those
/// that were sent to another port before.
fn datagram_passes(network: &Network, port: u16) {
    let at_gateway = |port| network.at_gateway(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap());
    let (dhcp, other) = (at_gateway(port), at_gateway(0));
    dhcp.set_read_timeout(Some(PATIENCE)).unwrap();
    let client = network.0.node(CLIENT).inside(|| UdpSocket::bind("0.0.0.0:0").unwrap());
    client.set_broadcast(true).unwrap();
    let dropped = (AT_CLIENTS, other.local_addr().unwrap().port());
    client.send_to(b"dropped", dropped).unwrap();
    client.send_to(b"discover", (Ipv4Addr::BROADCAST, port)).unwrap();
    assert_eq!(dhcp.recv(&mut [0; 9]).unwrap(), 8);
    other.set_nonblocking(true).unwrap();
    let nothing = other.recv(&mut [0; 9]).unwrap_err();
    assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
}

/// The DNS server may be in the network of the clients. Its answers to the gateway arrive, and so
/// do the errors of ICMP about what the gateway sends.
#[test]
fn the_rules_in_contrib_let_answers_to_the_gateway_in() {
    let Some(network) = Network::new() else { return };
    network.load(&rules("10.77.0.1"));
    let at_client = SocketAddr::new(address(0, false, Family::V4), 53);
    let server = network.0.node(CLIENT).inside(|| UdpSocket::bind(at_client).unwrap());
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    let gateway = network.at_gateway(|| UdpSocket::bind("0.0.0.0:0").unwrap());
    gateway.connect(at_client).unwrap();
    gateway.set_read_timeout(Some(PATIENCE)).unwrap();
    gateway.send(b"query").unwrap();
    let (length, from) = server.recv_from(&mut [0; 9]).unwrap();
    assert_eq!((length, from.ip()), (5, AT_CLIENTS.into()));
    assert_eq!(ip_mtu(&gateway).unwrap(), 1500);
    let icmp = || Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4)).unwrap();
    let icmp = network.0.node(CLIENT).inside(icmp);
    let to = SocketAddr::new(AT_CLIENTS.into(), 0);
    icmp.send_to(&too_big(1400, from, at_client), &to.into()).unwrap();
    server.send_to(b"answer", from).unwrap();
    // The error has arrived before the answer.
    let error = gateway.recv(&mut [0; 9]).unwrap_err();
    assert_eq!(Errno::from_io_error(&error), Some(Errno::MSGSIZE));
    assert_eq!(ip_mtu(&gateway).unwrap(), 1400);
    assert_eq!(gateway.recv(&mut [0; 9]).unwrap(), 6);
}

/// Returns the error of ICMP that a datagram of 1,500 bytes does not fit into `mtu` bytes.
fn too_big(mtu: u16, from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let (SocketAddr::V4(from), SocketAddr::V4(to)) = (from, to) else {
        panic!("IPv4 addresses")
    };
    let mut ip = [
        &[0x45, 0, 0x05, 0xdc, 0, 1, 0x40, 0, 64, 17, 0, 0][..],
        &from.ip().octets(),
    ]
    .concat();
    ip.extend(to.ip().octets());
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum);
    ip.extend(from.port().to_be_bytes());
    ip.extend(to.port().to_be_bytes());
    ip.extend([0x05, 0xc8, 0, 0]);
    let mut error = [&[3, 4, 0, 0, 0, 0][..], &mtu.to_be_bytes(), &ip].concat();
    let sum = checksum(&error);
    error[2..4].copy_from_slice(&sum);
    error
}

/// Returns the checksum of the Internet (RFC 1071) of an even number of bytes.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes
        .chunks_exact(2)
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    (!u16::try_from(folded).unwrap()).to_be_bytes()
}

/// A client of IPv6 asks for a router and for its neighbours, and for addresses.
#[test]
fn the_rules_in_contrib_let_ipv6_begin_and_nothing_else() {
    let Some(network) = Network::new() else { return };
    network.load(&rules("10.77.0.1"));
    datagram_passes(&network, 67);
    datagram_passes(&network, 547);
    let raw = || Socket::new(Domain::IPV6, Type::RAW, Some(Protocol::ICMPV6)).unwrap();
    let gateway = network.at_gateway(raw);
    gateway.set_read_timeout(Some(PATIENCE)).unwrap();
    let client = network.0.node(CLIENT).inside(raw);
    client.set_unicast_hops_v6(255).unwrap();
    let IpAddr::V6(at_gateway) = address(0, true, Family::V6) else {
        panic!("an IPv6 address")
    };
    let to = SocketAddr::new(at_gateway.into(), 0).into();
    // A ping, and then a request for a router. The kernel fills in the checksums.
    client.send_to(&[128, 0, 0, 0, 0, 1, 0, 1], &to).unwrap();
    client.send_to(&[133, 0, 0, 0, 0, 0, 0, 0], &to).unwrap();
    let mut types = Vec::new();
    while types.last() != Some(&133) {
        let mut message = [0; 100];
        assert!((&gateway).read(&mut message).unwrap() > 0);
        types.push(message[0]);
    }
    assert!(!types.contains(&128), "{types:?}");
}
