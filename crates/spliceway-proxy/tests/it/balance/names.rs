//! A name whose addresses are all backends, with a DNS server on loopback.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use hickory_proto::op::{Message, OpCode};
use hickory_proto::rr::{RData, Record, RecordType};

use super::{serve, shares};
use crate::harness::{PATIENCE, Program, TextFile, let_pass};

/// A DNS server that answers each query for an IPv4 address with these, and a TTL of 0. Without
/// addresses, it does not answer.
pub(crate) fn dns(addresses: &Arc<Mutex<Vec<Ipv4Addr>>>) -> SocketAddr {
    let (socket, addresses) = (UdpSocket::bind("127.0.0.1:0").unwrap(), Arc::clone(addresses));
    let address = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((bytes, from)) = socket.recv_from(&mut buffer) {
            if addresses.lock().unwrap().is_empty() {
                continue;
            }
            let question = Message::from_vec(&buffer[..bytes]).unwrap();
            let query = question.queries[0].clone();
            let mut answer = Message::response(question.metadata.id, OpCode::Query);
            answer.add_query(query.clone());
            for ip in addresses.lock().unwrap().iter() {
                if query.query_type() == RecordType::A {
                    answer.add_answer(Record::from_rdata(
                        query.name().clone(),
                        0,
                        RData::from(std::net::IpAddr::from(*ip)),
                    ));
                }
            }
            socket.send_to(&answer.to_vec().unwrap(), from).unwrap();
        }
    });
    address
}

/// Returns two backends on one port of two addresses.
pub(crate) fn two_on_one_port() -> u16 {
    loop {
        let one = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = one.local_addr().unwrap().port();
        // Another program may use the port on the second address.
        if let Ok(two) = TcpListener::bind(("127.0.0.2", port)) {
            thread::spawn(move || serve(&one, b'a'));
            thread::spawn(move || serve(&two, b'b'));
            return port;
        }
    }
}

#[test]
fn each_address_of_a_name_is_a_backend_and_changes_are_followed() {
    let addresses = Arc::new(Mutex::new(vec![
        Ipv4Addr::new(127, 0, 0, 1),
        Ipv4Addr::new(127, 0, 0, 2),
    ]));
    let (dns, port) = (dns(&addresses), two_on_one_port());
    let text = |to: &str| {
        format!(
            "[admin]\nmetrics = \"127.0.0.1:0\"\n[[service]]\nkind = \"forward\"\nlisten = \"127.0.0.1:0\"\n\
             balance = \"round-robin\"\neach_address = true\ndns = \"{dns}\"\nto = \"{to}\"\n"
        )
    };
    let file = TextFile::new(&text(&format!("web.example.:{port}")));
    let mut program = Program::run(&file);
    assert_eq!(
        shares(&program, 10).into_iter().collect::<Vec<_>>(),
        [('a', 5), ('b', 5)]
    );
    file.write(&text(&format!("web.example.:{port},weight=2")));
    assert!(program.reload().contains("changed forward"));
    addresses.lock().unwrap().remove(0);
    let (until, first) = (Instant::now() + PATIENCE, format!("backend=\"127.0.0.1:{port}\""));
    while program.get("/metrics").contains(&first) {
        assert!(Instant::now() < until, "the address stays");
        let_pass(Duration::from_millis(10));
    }
    assert_eq!(shares(&program, 5).into_iter().collect::<Vec<_>>(), [('b', 5)]);
    file.write(&text(&format!("127.0.0.1:{port}")));
    assert!(program.reload().contains("changed forward"));
    assert_eq!(shares(&program, 1).into_iter().collect::<Vec<_>>(), [('a', 1)]);
    assert!(
        program.get("/readyz").starts_with("HTTP/1.1 200"),
        "its tasks have not failed"
    );
}
