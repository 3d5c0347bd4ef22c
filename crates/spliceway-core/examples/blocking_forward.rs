//! A forwarder without a runtime, with two threads for each connection:
//! `blocking_forward 127.0.0.1:8080 127.0.0.1:80`.

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

fn main() -> io::Result<()> {
    let (Some(listen), Some(remote)) = (std::env::args().nth(1), std::env::args().nth(2)) else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "usage: blocking_forward LISTEN REMOTE",
        ));
    };
    let listener = TcpListener::bind(&listen)?;
    eprintln!("listening on {}", listener.local_addr()?);
    loop {
        let (client, from) = listener.accept()?;
        let remote = remote.clone();
        thread::spawn(move || {
            if let Err(error) = relay(&client, &remote) {
                eprintln!("{from}: {error}");
            }
        });
    }
}

fn relay(client: &TcpStream, remote: &str) -> io::Result<()> {
    let upstream = &TcpStream::connect(remote)?;
    thread::scope(|scope| {
        let down = scope.spawn(move || one_way(upstream, client));
        one_way(client, upstream)?;
        down.join().expect("a direction does not panic")
    })
}

/// Copies one direction and passes its end on. On an error, it shuts both sockets down, so that the
/// other direction also ends.
fn one_way(source: &TcpStream, sink: &TcpStream) -> io::Result<()> {
    let copied = spliceway_core::copy(source, sink);
    match copied {
        Ok(_) => sink.shutdown(Shutdown::Write),
        Err(error) => {
            // An error here means that a socket is already closed, as intended.
            let _ = (source.shutdown(Shutdown::Both), sink.shutdown(Shutdown::Both));
            Err(error)
        }
    }
}
