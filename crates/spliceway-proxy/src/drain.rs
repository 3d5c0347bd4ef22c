//! The way out: a signal, then what sessions have left to do, then the end.

use std::convert::Infallible;
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
            () = signals.next() => Drained::Hurried,
            () = tokio::time::sleep(limit) => Drained::TimeUp,
        }
    }
}

/// SIGTERM and SIGINT. While this is alive neither kills the process.
pub(crate) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
