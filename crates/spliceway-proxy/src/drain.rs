//! The way out: a signal, then what sessions have left to do, then the end.

use std::convert::Infallible;
use std::fs;
use std::io;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

/// Held by everything that is to finish before the process does.
#[derive(Clone)]
pub(crate) struct Alive(#[allow(dead_code, reason = "it is held, never used")] mpsc::Sender<Infallible>);

/// Waits for the last [`Alive`] to go.
pub(crate) struct Drain(mpsc::Receiver<Infallible>);

/// How a drain ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drained {
    /// Nothing is left.
    Empty,
    /// Time is up, with sessions left.
    TimeUp,
    /// Asked a second time.
    Hurried,
}

impl Drain {
    pub(crate) fn new() -> (Alive, Self) {
        let (sender, receiver) = mpsc::channel(1);
        (Alive(sender), Self(receiver))
    }

    /// Waits until nothing is alive, `limit` is over, or another signal comes.
    pub(crate) async fn wait(&mut self, limit: Duration, signals: &mut StopSignals) -> Drained {
        tokio::select! {
            biased;
            _ = self.0.recv() => Drained::Empty,
            () = signals.hurry() => Drained::Hurried,
            () = tokio::time::sleep(limit) => Drained::TimeUp,
        }
    }
}

/// SIGTERM, SIGINT, and SIGHUP where that was not ignored before. While this is alive none of them kills the process.
pub(crate) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Option<Signal>,
    /// A hangup was the first of them.
    hung_up: bool,
}

impl StopSignals {
    pub(crate) fn new() -> io::Result<Self> {
        let hangup = match hangup_is_ignored() {
            true => None,
            false => Some(signal(SignalKind::hangup())?),
        };
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup,
            hung_up: false,
        })
    }

    pub(crate) async fn next(&mut self) {
        let Self {
            terminate,
            interrupt,
            hangup,
            hung_up,
        } = self;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            Some(()) = async { hangup.as_mut()?.recv().await } => *hung_up = true,
        }
    }

    /// A second SIGTERM or SIGINT. Hangups do not count: of a terminal that goes away both the kernel and the shell tell, and a service
    /// manager may send both signals at once.
    async fn hurry(&mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => {}
                _ = self.interrupt.recv() => {}
            }
            if !std::mem::take(&mut self.hung_up) {
                return;
            }
        }
    }
}

/// Whether whoever started this wanted it to outlive the terminal, as nohup(1) does: then SIGHUP is to stay ignored. Without `/proc`
/// nobody can tell, and it is handled.
fn hangup_is_ignored() -> bool {
    // Signal 1 is the lowest bit.
    const HANGUP: u64 = 1;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|signals| u64::from_str_radix(signals.trim(), 16).ok());
    ignored.is_some_and(|signals| signals & HANGUP != 0)
}
