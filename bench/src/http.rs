//! A server of one file: the cheapest that a client of HTTP takes for one. Bodies go by `sendfile` from memory.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create, sendfile};

use crate::scenarios::bulk::LOOPBACK;

/// Nothing that works is silent for so long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes of a `sendfile`: the body is this piece of memory over and over.
const CHUNK: usize = 1 << 20;

/// Serves on the cores of the thread that started it, until it is dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    stopped: Arc<AtomicBool>,
}

impl Server {
    /// Answers every request with so many bytes.
    pub(crate) fn start(bytes: u64) -> io::Result<Self> {
        let listener = TcpListener::bind((LOOPBACK, 0))?;
        let address = listener.local_addr()?;
        let memory = File::from(memfd_create("spliceway-bench", MemfdFlags::CLOEXEC)?);
        memory.set_len(CHUNK as u64)?;
        let memory = Arc::new(memory);
        let stopped = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopped);
        thread::spawn(move || {
            while let Ok((socket, _)) = listener.accept() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let memory = Arc::clone(&memory);
                // A client that got too little says so.
                thread::spawn(move || serve(socket, &memory, bytes));
            }
        });
        Ok(Self { address, stopped })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        // It looks when somebody connects.
        let _ = TcpStream::connect(self.address);
    }
}

/// Answers, and answers again until the client closes.
fn serve(mut socket: TcpStream, memory: &File, bytes: u64) -> io::Result<()> {
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    let mut request = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match socket.read(&mut buffer)? {
            0 => return Ok(()),
            read => request.extend_from_slice(&buffer[..read]),
        }
        // Nobody sends a request before the answer to the one before.
        if !request.ends_with(b"\r\n\r\n") {
            continue;
        }
        request.clear();
        // In one piece: a `write!` to the socket is a call for each of its parts.
        let head =
            format!("HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: {bytes}\r\n\r\n");
        socket.write_all(head.as_bytes())?;
        let mut left = bytes;
        while left > 0 {
            let most = usize::try_from(left).map_or(CHUNK, |left| left.min(CHUNK));
            left -= sendfile(&socket, memory, Some(&mut 0), most)? as u64;
        }
    }
}
