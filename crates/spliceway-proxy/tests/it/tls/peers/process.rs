//! A program at an end of TLS, driven by its stdin and stdout.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Instant;

use super::End;
use crate::harness::{PATIENCE, address_in};

/// A program that sends what it reads on stdin, and prints what it receives. It is killed when this
/// value is dropped.
///
/// Every byte of the content is at least 0x80. What the program says about itself is ASCII, so both
/// may be on stdout.
pub(super) struct Peer {
    child: Child,
    sender: Option<Box<dyn Write + Send>>,
    content: Receiver<Vec<u8>>,
    unread: Vec<u8>,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Peer {
    pub(super) fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (say, lines) = channel();
        let (receive, content) = channel();
        let stdin = child.stdin.take().unwrap();
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let also_say = say.clone();
        thread::spawn(move || separate(stdout, &receive, &also_say));
        thread::spawn(move || {
            for line in BufReader::new(stderr).split(b'\n').map_while(Result::ok) {
                // Messages of TLS in hexadecimal begin with blanks.
                if !line.starts_with(b"    ") {
                    let _ = say.send(String::from_utf8_lossy(&line).into_owned());
                }
            }
        });
        Self {
            sender: Some(Box::new(stdin)),
            child,
            content,
            unread: Vec::new(),
            lines,
            seen: Vec::new(),
        }
    }

    /// Returns the next line with this text.
    pub(super) fn line(&mut self, text: &str) -> String {
        let until = Instant::now() + PATIENCE;
        while let Ok(line) = self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            self.seen.push(line.clone());
            if line.contains(text) {
                return line;
            }
        }
        panic!("no line with {text:?} in {:#?}", self.seen);
    }

    /// Returns the address on which a server listens.
    pub(super) fn address(&mut self) -> SocketAddr {
        address_in(&self.line("ACCEPT "))
    }

    /// Closes stdin.
    pub(super) fn finish(&mut self) {
        drop(self.sender.take().expect("not finished"));
    }

    /// Returns the lines so far, read or not.
    fn said(&mut self) -> Vec<String> {
        self.seen.drain(..).chain(self.lines.try_iter()).collect()
    }

    /// Waits until the program ends. Returns whether it ended well, the rest of the content, and
    /// all lines.
    pub(super) fn end(mut self) -> (bool, Vec<u8>, String) {
        let until = Instant::now() + PATIENCE;
        loop {
            match self
                .content
                .recv_timeout(until.saturating_duration_since(Instant::now()))
            {
                Ok(more) => self.unread.extend(more),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("it does not end: {:#?}", self.said()),
            }
        }
        // Nothing more comes on stdout, but stdin may be what the program waits for.
        self.sender = None;
        let status = self.child.wait().unwrap();
        let lines = self.seen.drain(..).chain(self.lines.iter()).collect::<Vec<_>>();
        (status.success(), std::mem::take(&mut self.unread), lines.join("\n"))
    }

    /// Ends the program without any chance to say so to its own peer.
    pub(super) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl End for Peer {
    fn send(&mut self, bytes: &[u8]) {
        let sender = self.sender.as_mut().expect("not finished");
        sender.write_all(bytes).unwrap_or_else(|error| {
            panic!("{error}: {:#?}", self.said());
        });
    }

    fn receive(&mut self, length: usize) -> Vec<u8> {
        let until = Instant::now() + PATIENCE;
        while self.unread.len() < length {
            match self
                .content
                .recv_timeout(until.saturating_duration_since(Instant::now()))
            {
                Ok(more) => self.unread.extend(more),
                Err(error) => {
                    // A thread may still wait until the program reads.
                    self.kill();
                    panic!("{} of {length} bytes: {error}: {:#?}", self.unread.len(), self.said());
                }
            }
        }
        let rest = self.unread.split_off(length);
        std::mem::replace(&mut self.unread, rest)
    }

    fn take_sender(&mut self) -> Box<dyn Write + Send> {
        self.sender.take().expect("not finished")
    }

    fn put_sender(&mut self, sender: Box<dyn Write + Send>) {
        self.sender = Some(sender);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Separates content from lines.
fn separate(mut stdout: ChildStdout, content: &Sender<Vec<u8>>, lines: &Sender<String>) {
    let (mut bytes, mut line) = (vec![0; 1 << 16], Vec::new());
    while let Ok(read @ 1..) = stdout.read(&mut bytes) {
        let (of_content, of_lines): (Vec<u8>, Vec<u8>) = bytes[..read].iter().partition(|byte| **byte >= 0x80);
        if !of_content.is_empty() {
            let _ = content.send(of_content);
        }
        for byte in of_lines {
            if byte == b'\n' {
                let _ = lines.send(String::from_utf8_lossy(&line).into_owned());
                line.clear();
            } else {
                line.push(byte);
            }
        }
    }
}
