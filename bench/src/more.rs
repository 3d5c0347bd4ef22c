//! Measures the cost of `SPLICE_F_MORE` on the write leg: a plain relay with two threads per
//! connection, with and without the flag. The flag announces more bytes. Bytes that do not fill a
//! segment therefore wait for more, for at most 200 ms. This happens at the end of a request, and
//! at the end of an answer whose connection stays open.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, recv};
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};

use spliceway_machine as machine;

use crate::figures::Figures;
use crate::{LOAD_CORE, RELAY_CORE};

/// The default pipe size: 16 pages.
const PIPE: usize = 64 << 10;
const CHUNK: usize = 1 << 20;
/// A working connection is never silent for this long.
const PATIENCE: Duration = Duration::from_secs(20);

/// Prints the duration of an answer with and without the flag. Each round has `exchanges` answers,
/// one at a time. Each answer has its own connection.
#[expect(clippy::print_stdout, reason = "this is the program's result")]
pub(crate) fn run(bytes: u64, exchanges: usize, rounds: usize) -> io::Result<()> {
    let Some(conditions) = machine::isolate()? else {
        return Ok(());
    };
    machine::pin_to(LOAD_CORE)?;
    let mut times = Figures::new(
        format!("{exchanges} answers of {bytes} bytes ({conditions})"),
        "ms each",
        2,
    );
    for _ in 0..rounds {
        for (name, flags) in [
            ("without SPLICE_F_MORE", SpliceFlags::empty()),
            ("with SPLICE_F_MORE", SpliceFlags::MORE),
        ] {
            times.add(
                name,
                time(bytes, exchanges, flags)?.as_secs_f64() / exchanges as f64 * 1e3,
            );
        }
    }
    println!("{}", times.table());
    Ok(())
}

fn time(bytes: u64, exchanges: usize, flags: SpliceFlags) -> io::Result<Duration> {
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let relay = Relay::start(server.local_addr()?, flags)?;
    let started = Instant::now();
    thread::scope(|scope| {
        let serving = scope.spawn(|| (0..exchanges).try_for_each(|_| serve(&server, bytes)));
        (0..exchanges).try_for_each(|_| exchange(relay.address, bytes))?;
        serving.join().expect("it does not panic")
    })?;
    Ok(started.elapsed())
}

/// Answers one connection, and leaves it open until the client closes.
fn serve(server: &TcpListener, bytes: u64) -> io::Result<()> {
    let (mut socket, _) = server.accept()?;
    socket.set_nodelay(true)?;
    socket.read_exact(&mut [0])?;
    let chunk = vec![7; CHUNK];
    let mut left = bytes;
    while left > 0 {
        let most = usize::try_from(left).map_or(CHUNK, |left| left.min(CHUNK));
        socket.write_all(&chunk[..most])?;
        left -= most as u64;
    }
    socket.read_to_end(&mut Vec::new()).map(drop)
}

/// Sends a request, and closes after the complete answer has arrived.
fn exchange(with: SocketAddr, bytes: u64) -> io::Result<()> {
    let mut socket = TcpStream::connect(with)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.write_all(b"?")?;
    let mut nowhere = vec![0; CHUNK];
    let mut received = 0;
    while received < bytes {
        match recv(&socket, &mut nowhere[..], RecvFlags::TRUNC)? {
            (_, 0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            (_, bytes) => received += bytes as u64,
        }
    }
    Ok(())
}

/// A relay in threads of this process, on the relay's core. Dropping it ends it.
struct Relay {
    address: SocketAddr,
    stopped: Arc<AtomicBool>,
}

impl Relay {
    fn start(upstream: SocketAddr, flags: SpliceFlags) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let stopped = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopped);
        thread::spawn(move || {
            machine::pin_to(RELAY_CORE)?;
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
        // The relay checks `stopped` when a client connects.
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

/// Relays one direction until its end. It writes the exact number of bytes in the pipe before it
/// reads more.
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
