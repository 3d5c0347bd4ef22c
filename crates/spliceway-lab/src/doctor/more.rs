//! The experiment with `SPLICE_F_MORE`: requests and answers through a small relay, with the flag
//! and without.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};

use super::finding::{Check, Finding};

/// The bytes of an answer. Neither they nor the request fill the last segment.
const ANSWER: usize = (4 << 20) + 100;
/// The answers of one variant. Each has its own connections.
const ANSWERS: usize = 5;
/// A connection that works is never silent for this long.
const PATIENCE: Duration = Duration::from_secs(2);
/// The upper ends of the classes of the histogram, in milliseconds.
const CLASSES: [u128; 4] = [10, 100, 150, 300];

pub(super) fn checks() -> Vec<Check> {
    vec![Check::new("more", "SPLICE_F_MORE delays requests and answers", compare)]
}

/// The median time of an answer, and how long the longest silence in each of them was.
struct Series {
    time: Duration,
    silences: [usize; CLASSES.len() + 1],
}

fn compare() -> io::Result<Finding> {
    let without = series(SpliceFlags::empty())?;
    let with = series(SpliceFlags::MORE)?;
    let factor = with.time.as_secs_f64() / without.time.as_secs_f64();
    let delayed = with.silences[3];
    Ok(Finding::judged(
        factor > 2.0 && delayed * 2 > ANSWERS && without.silences[3] * 2 < ANSWERS,
        "with the flag several times slower, with gaps of 200 ms",
        format!("without: {without}; with: {with}; {factor:.1} times slower"),
    )
    .so(
        "The flag holds back the last bytes before a pause. The relay never sets it.",
        "The flag does less harm here than it usually does. The relay never sets it.",
    ))
}

impl std::fmt::Display for Series {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rate = ANSWER as f64 / self.time.as_secs_f64() / 1e6;
        write!(f, "{rate:.0} MB/s, longest gaps")?;
        let mut from = 0;
        for (class, count) in self.silences.iter().enumerate() {
            let to = CLASSES.get(class).map_or("…".to_owned(), u128::to_string);
            if *count > 0 {
                write!(f, " {from}–{to} ms: {count}")?;
            }
            from = CLASSES.get(class).copied().unwrap_or_default();
        }
        Ok(())
    }
}

fn series(flags: SpliceFlags) -> io::Result<Series> {
    let mut silences = [0; CLASSES.len() + 1];
    let mut times = [Duration::ZERO; ANSWERS];
    for time in &mut times {
        let silence;
        (*time, silence) = exchange(flags)?;
        let class = CLASSES.iter().position(|end| silence.as_millis() < *end);
        silences[class.unwrap_or(CLASSES.len())] += 1;
    }
    times.sort_unstable();
    Ok(Series {
        time: times[ANSWERS / 2],
        silences,
    })
}

/// Sends a request and its answer through a relay. Returns the time that both took, and the longest
/// time without a byte.
fn exchange(flags: SpliceFlags) -> io::Result<(Duration, Duration)> {
    let ((mut server, upstream), (downstream, mut client)) = (blocking()?, blocking()?);
    thread::scope(|scope| {
        let relay = move || {
            let relayed =
                relay(&downstream, &upstream, 1, flags).and_then(|()| relay(&upstream, &downstream, ANSWER, flags));
            // If the relay fails, no other thread may wait for it.
            let _ = (upstream.shutdown(Shutdown::Both), downstream.shutdown(Shutdown::Both));
            relayed
        };
        let relay = thread::Builder::new().spawn_scoped(scope, relay)?;
        let answer = move || {
            server.read_exact(&mut [0])?;
            server.write_all(&vec![0; ANSWER])
        };
        let answer = thread::Builder::new().spawn_scoped(scope, answer)?;
        let mut buffer = vec![0; 1 << 20];
        let started = Instant::now();
        let (mut received, mut longest, mut last) = (0, Duration::ZERO, started);
        client.write_all(b"?")?;
        while received < ANSWER {
            match client.read(&mut buffer)? {
                // The relay or the server has failed, and tells why.
                0 => break,
                bytes => received += bytes,
            }
            longest = longest.max(last.elapsed());
            last = Instant::now();
        }
        for thread in [relay, answer] {
            thread.join().map_err(|_| io::Error::other("a thread failed"))??;
        }
        if received < ANSWER {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok((last - started, longest))
    })
}

/// Relays this many bytes. It writes exactly what the pipe holds before it reads more.
fn relay(from: &TcpStream, to: &TcpStream, mut bytes: usize, flags: SpliceFlags) -> io::Result<()> {
    let (outlet, inlet) = pipe_with(PipeFlags::CLOEXEC)?;
    while bytes > 0 {
        let mut held = splice(from, None, &inlet, None, bytes.min(64 << 10), SpliceFlags::empty())?;
        if held == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes -= held;
        while held > 0 {
            held -= splice(&outlet, None, to, None, held, flags)?;
        }
    }
    Ok(())
}

fn blocking() -> io::Result<(TcpStream, TcpStream)> {
    let (near, far) = super::loopback::tcp()?;
    for end in [&near, &far] {
        end.set_nonblocking(false)?;
        end.set_read_timeout(Some(PATIENCE))?;
        end.set_write_timeout(Some(PATIENCE))?;
    }
    Ok((near, far))
}
