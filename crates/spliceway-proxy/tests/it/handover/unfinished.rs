//! Sessions that are not in relay during a hand-over: they finish in the old process, or move when
//! they have become a relay.

use std::io::Write;
use std::net::{Shutdown, TcpStream};

use super::faults::fault;
use super::{ask, upgrade};
use crate::clients::{AGREED, ASKED_FOR_PASSWORD, GREETING, GREETING_WITH_PASSWORD, ip_request, password};
use crate::harness::{Program, TextFile, accept, echo, listen, read_all, read_exactly};
use crate::udp::{associated, received, shouting, socket, wrapped};

#[test]
fn a_client_in_authentication_is_relayed_and_then_moves() {
    let (users, target) = (TextFile::new("ann:right\n"), echo("127.0.0.1:0"));
    let mut program = Program::socks5(&["--auth-file", users.path()]);
    let mut client = program.connect();
    client.write_all(&GREETING_WITH_PASSWORD).unwrap();
    assert_eq!(read_exactly(&mut client, 2), ASKED_FOR_PASSWORD);
    let login = password("ann", "right");
    client.write_all(&login[..5]).unwrap();
    let _process = upgrade(&mut program, None);
    client.write_all(&login[5..]).unwrap();
    assert_eq!(read_exactly(&mut client, 2), [1, 0]);
    client.write_all(&ip_request(target)).unwrap();
    assert_eq!(read_exactly(&mut client, 10)[..2], [5, 0]);
    ask(&mut client, 1);
    // The old process ends, because the relay has moved.
    assert!(program.exit().success());
    ask(&mut client, 2);
    fault(
        "a client in authentication",
        "it logs in at the old process, and its relay moves",
    );
}

#[test]
fn an_association_finishes_in_the_old_process() {
    let mut program = Program::socks5(&[]);
    let target = shouting("127.0.0.1:0");
    let exchange = |(_, relay): &(TcpStream, _), data: &str| {
        let (socket, _) = socket("127.0.0.1:0");
        socket.send_to(&wrapped(target, data.as_bytes()), relay).unwrap();
        assert_eq!(received(&socket), wrapped(target, data.to_uppercase().as_bytes()));
    };
    let before = associated(&program);
    let _process = upgrade(&mut program, None);
    let after = associated(&program);
    exchange(&before, "through the old process");
    exchange(&after, "through the new process");
    before.0.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&before.0), b"");
    assert!(program.exit().success(), "it has no session left");
    fault("a UDP association", "it finishes in the old process, which then ends");
}

#[test]
fn a_dial_through_a_chain_of_proxies_is_finished_and_then_moves() {
    let (upstream, address) = listen();
    let target = echo("127.0.0.1:0");
    // The test is both proxies of the chain. The second one needs no connection of its own.
    let proxy = format!("socks5://{address}");
    let mut program = Program::forward(target, &["-x", &proxy, "-x", &proxy]);
    let mut client = program.connect();
    let mut chain = accept(&upstream);
    assert_eq!(read_exactly(&mut chain, 3), GREETING);
    let _process = upgrade(&mut program, None);
    for (index, named) in [address, target].into_iter().enumerate() {
        if index > 0 {
            assert_eq!(read_exactly(&mut chain, 3), GREETING);
        }
        chain.write_all(&AGREED).unwrap();
        assert_eq!(read_exactly(&mut chain, 10), ip_request(named));
        chain.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
    }
    client.write_all(b"up").unwrap();
    assert_eq!(read_exactly(&mut chain, 2), b"up");
    assert!(program.exit().success(), "the relay has moved");
    chain.write_all(b"down").unwrap();
    assert_eq!(read_exactly(&mut client, 4), b"down");
    client.write_all(b"again").unwrap();
    assert_eq!(read_exactly(&mut chain, 5), b"again");
    fault(
        "a dial through a chain",
        "the old process finishes it, and the relay moves",
    );
}
