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
use crate::report;
use crate::report::apart::Apart;
use crate::scenario::Figure;
use crate::scenarios::bulk::LOOPBACK;

/// The pipe's own size: 16 pages.
const PIPE: usize = 64 << 10;
const CHUNK: usize = 1 << 20;

const FIGURES: &[Figure] = &[Figure::lower("time", "ms", 2), Figure::higher("rate", "MB/s", 0)];

/// Prints both.
pub(crate) fn run(bytes: u64, exchanges: usize, rounds: usize) -> io::Result<()> {
    let Some(conditions) = machine::isolate()? else {
        return Ok(());
    };
    report::print_apart(&measure(bytes, exchanges, rounds)?, &conditions);
    Ok(())
}

/// Of an answer, with the flag and without it: so many answers a round, a connection each, one at a time.
pub(crate) fn measure(bytes: u64, exchanges: usize, rounds: usize) -> io::Result<Apart> {
    machine::pin_to(machine::LOAD_CORE)?;
    let title = format!("`SPLICE_F_MORE`, {exchanges} answers of {bytes} bytes, each");
    let mut apart = Apart::new("more", title, rounds, FIGURES, ["without", "with"]);
    for _ in 0..rounds {
        for (row, flags) in [SpliceFlags::empty(), SpliceFlags::MORE].into_iter().enumerate() {
            let each = time(bytes, exchanges, flags)?.as_secs_f64() / exchanges as f64;
            apart.add(row, 0, each * 1e3);
            apart.add(row, 1, bytes as f64 / 1e6 / each);
        }
    }
    Ok(apart)
}

fn time(bytes: u64, exchanges: usize, flags: SpliceFlags) -> io::Result<Duration> {
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
