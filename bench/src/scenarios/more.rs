//! What `SPLICE_F_MORE` costs on the write leg: a plain relay of two threads a connection, with the flag and without it. The flag says
//! that more is coming, so what does not fill a segment waits for it, 200 ms at most: at the end of a request, and of an answer whose
//! connection stays open.

use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, recv};
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};

use crate::http::{self, Server};
use crate::machine;
use crate::scenarios::bulk::LOOPBACK;

/// The pipe's own size: 16 pages.
const PIPE: usize = 64 << 10;
const CHUNK: usize = 1 << 20;

/// Prints both rates.
#[expect(clippy::print_stdout, reason = "the table is what the program is for")]
pub(crate) fn run(bytes: u64, exchanges: usize, rounds: usize) -> io::Result<()> {
    let Some(conditions) = machine::isolate()? else {
        return Ok(());
    };
    machine::pin_to(machine::LOAD_CORE)?;
    println!(
        "SPLICE_F_MORE: {exchanges} answers of {bytes} bytes, a connection each, one at a time; the middle of {rounds} rounds"
    );
    println!("{}; {conditions}", machine::describe());
    println!("{:<28}{:>14}{:>14}", "", "ms/exchange", "MB/s");
    let arms = [("without", SpliceFlags::empty()), ("with", SpliceFlags::MORE)];
    let mut times = [const { Vec::new() }; 2];
    for _ in 0..rounds {
        for ((_, flags), times) in arms.iter().zip(&mut times) {
            times.push(measure(bytes, exchanges, *flags)?);
        }
    }
    for ((name, _), times) in arms.iter().zip(&mut times) {
        times.sort();
        let each = times[times.len() / 2].as_secs_f64() / exchanges as f64;
        println!("{name:<28}{:>14.2}{:>14.0}", each * 1e3, bytes as f64 / 1e6 / each);
    }
    Ok(())
}

fn measure(bytes: u64, exchanges: usize, flags: SpliceFlags) -> io::Result<Duration> {
    let server = Server::start(bytes)?;
    let relay = Relay::start(server.address, flags)?;
    let started = Instant::now();
    for _ in 0..exchanges {
        exchange(relay.address, bytes)?;
    }
    Ok(started.elapsed())
}

/// Asks, and closes when all of the answer is there.
fn exchange(with: SocketAddr, bytes: u64) -> io::Result<()> {
    let mut socket = TcpStream::connect(with)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(http::PATIENCE))?;
    socket.write_all(b"GET / HTTP/1.1\r\n\r\n")?;
    let mut nowhere = vec![0; CHUNK];
    let (mut head, mut received) = (0, 0);
    while head == 0 || received < head + bytes {
        // The head comes in one piece, and is looked at; the rest is thrown away.
        let flags = if head == 0 { RecvFlags::PEEK } else { RecvFlags::TRUNC };
        let (_, read) = recv(&socket, &mut nowhere[..], flags)?;
        match read {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read if head == 0 => {
                let end = nowhere[..read].windows(4).position(|at| at == b"\r\n\r\n");
                head = end.ok_or(io::ErrorKind::InvalidData)? as u64 + 4;
            }
            read => received += read as u64,
        }
    }
    Ok(())
}

/// A relay in threads of this process, on the relay's core. It ends when it is dropped.
struct Relay {
    address: SocketAddr,
    stopped: Arc<AtomicBool>,
}

impl Relay {
    fn start(upstream: SocketAddr, flags: SpliceFlags) -> io::Result<Self> {
        let listener = TcpListener::bind((LOOPBACK, 0))?;
        let address = listener.local_addr()?;
        let stopped = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopped);
        thread::spawn(move || {
            machine::pin_to(machine::RELAY_CORE)?;
            while !stop.load(Ordering::Relaxed) {
                let (client, _) = listener.accept()?;
                thread::spawn(move || relay(&client, upstream, flags));
            }
            io::Result::Ok(())
        });
        Ok(Self { address, stopped })
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        // It looks when somebody connects.
        let _ = TcpStream::connect(self.address);
    }
}

fn relay(client: &TcpStream, upstream: SocketAddr, flags: SpliceFlags) -> io::Result<()> {
    let upstream = TcpStream::connect(upstream)?;
    client.set_nodelay(true)?;
    upstream.set_nodelay(true)?;
    thread::scope(|scope| {
        scope.spawn(|| pass(client, &upstream, flags));
        pass(&upstream, client, flags)
    })
}

/// One direction until its end. What is in the pipe is written whole, by its exact count, before more is read.
fn pass(from: &TcpStream, to: &TcpStream, flags: SpliceFlags) -> io::Result<()> {
    let (outlet, inlet) = pipe_with(PipeFlags::CLOEXEC)?;
    loop {
        let mut held = splice(from, None, &inlet, None, PIPE, SpliceFlags::empty())?;
        if held == 0 {
            return to.shutdown(Shutdown::Write);
        }
        while held > 0 {
            held -= splice(&outlet, None, to, None, held, flags)?;
        }
    }
}
