//! A forwarder without a runtime, two threads a connection:
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

/// One direction, its end passed on. An error shuts both sockets down, so that the other direction
/// ends too.
fn one_way(source: &TcpStream, sink: &TcpStream) -> io::Result<()> {
    let copied = spliceway_core::copy(source, sink);
    match copied {
        Ok(_) => sink.shutdown(Shutdown::Write),
        Err(error) => {
            // Either may be gone already, which is what is wanted.
            let _ = (source.shutdown(Shutdown::Both), sink.shutdown(Shutdown::Both));
            Err(error)
        }
    }
}
