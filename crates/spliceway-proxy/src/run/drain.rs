//! Ends the program: receives the signals that stop it and waits for sessions to finish.

use std::convert::Infallible;
use std::fs;
use std::io;
use std::time::Duration;

use signal_hook::consts::SIGXCPU;
use spliceway_operator::text::count;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::kit::alive::{Alive, Ended};

/// Waits until the last [`Alive`] is dropped.
pub(super) struct Drain(Ended);

/// How a drain ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Drained {
    /// No session is left.
    Empty,
    /// The time is up, and some sessions are still running.
    TimeUp,
    /// A second signal asked the program to stop.
    Hurried,
}

/// Returns a time limit in words. A `Duration` shows no time as "0ns".
pub(super) fn shown(limit: Duration) -> String {
    if limit.is_zero() {
        "0s".to_owned()
    } else {
        format!("{limit:?}")
    }
}

/// Returns the status of a program that serves this number of sessions.
pub(super) fn serving(sessions: u64) -> String {
    format!("serving: {}", count(sessions, "session"))
}

impl Drain {
    pub(super) fn new() -> (Alive, Self) {
        let (alive, ended) = Alive::new();
        (alive, Self(ended))
    }

    /// Waits until no [`Alive`] is left, `limit` has passed, or another signal arrives. Meanwhile,
    /// `reports` tells how far the drain is.
    pub(super) async fn wait(
        &mut self,
        limit: Duration,
        signals: &mut Signals,
        reports: impl Future<Output = Infallible>,
    ) -> Drained {
        tokio::select! {
            biased;
            () = self.0.wait() => Drained::Empty,
            () = signals.hurry() => Drained::Hurried,
            () = tokio::time::sleep(limit) => Drained::TimeUp,
            never = reports => match never {},
        }
    }
}

/// What a signal asks the program to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SignalRequest {
    Stop,
    Reload,
    /// Hand over to a new process.
    Upgrade,
}

/// The signals SIGTERM and SIGINT, and also SIGHUP, SIGUSR2 and SIGXCPU. While this value exists,
/// none of these signals kills the process.
///
/// SIGHUP asks for a reload. If the settings come from the command line, it asks to stop when the
/// terminal of the program has gone, and it stays ignored if it was ignored at the start (nohup).
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    upgrade: Signal,
    hangup: Option<Signal>,
    /// The limit on CPU time is reached.
    cpu_time: Signal,
    /// Whether SIGHUP stops the program if no terminal is left.
    needs_terminal: bool,
    /// Whether SIGHUP has stopped the program.
    hung_up: bool,
    /// Whether SIGHUP has asked for a reload that nobody has received yet.
    asks_for_reload: bool,
    /// Whether the program was asked a second time to stop, and nobody has received it yet.
    asks_to_hurry: bool,
}

impl Signals {
    /// `has_file` says that the settings come from a file.
    pub(super) fn new(has_file: bool) -> io::Result<Self> {
        let hangup = if hangup_is_ignored() && !has_file {
            None
        } else {
            Some(signal(SignalKind::hangup())?)
        };
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            upgrade: signal(SignalKind::user_defined2())?,
            hangup,
            cpu_time: signal(SignalKind::from_raw(SIGXCPU))?,
            needs_terminal: !has_file && has_terminal(),
            hung_up: false,
            asks_for_reload: false,
            asks_to_hurry: false,
        })
    }

    /// Cancel safe.
    pub(super) async fn next(&mut self) -> SignalRequest {
        if std::mem::take(&mut self.asks_for_reload) {
            return SignalRequest::Reload;
        }
        tokio::select! {
            _ = self.terminate.recv() => SignalRequest::Stop,
            _ = self.interrupt.recv() => SignalRequest::Stop,
            _ = self.upgrade.recv() => SignalRequest::Upgrade,
            _ = self.cpu_time.recv() => {
                tracing::error!("the limit on CPU time (RLIMIT_CPU) is reached: the program stops");
                SignalRequest::Stop
            }
            Some(()) = async { self.hangup.as_mut()?.recv().await } => {
                self.hung_up = self.needs_terminal && !has_terminal();
                if self.hung_up {
                    SignalRequest::Stop
                } else {
                    SignalRequest::Reload
                }
            }
        }
    }

    /// Waits for a signal that stops the program. Other signals are returned later, by
    /// [`Self::next`]. Cancel safe.
    pub(super) async fn stop_request(&mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                Some(()) = async { self.hangup.as_mut()?.recv().await } => {
                    self.hung_up = self.needs_terminal && !has_terminal();
                    if self.hung_up {
                        return;
                    }
                    self.asks_for_reload = true;
                }
            }
        }
    }

    /// Records that the program was asked to stop again, for [`Drain::wait`].
    pub(super) fn hurry_later(&mut self) {
        self.asks_to_hurry = !std::mem::take(&mut self.hung_up);
    }

    /// Waits for SIGTERM or SIGINT. Cancel safe.
    pub(super) async fn stop(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Waits for a second SIGTERM or SIGINT. SIGHUP does not count. Neither does the first signal
    /// after a SIGHUP that has stopped the program. When a terminal closes, both the kernel and the
    /// shell send SIGHUP. A service manager may send SIGHUP together with SIGTERM.
    pub(super) async fn hurry(&mut self) {
        if std::mem::take(&mut self.asks_to_hurry) {
            return;
        }
        loop {
            self.stop().await;
            if !std::mem::take(&mut self.hung_up) {
                return;
            }
        }
    }
}

/// Returns whether the process has a controlling terminal. When a terminal closes, the kernel takes
/// it from every process of its session, and then sends SIGHUP.
fn has_terminal() -> bool {
    fs::File::open("/dev/tty").is_ok()
}

/// Returns whether SIGHUP was ignored at the start, for example because of nohup(1). In that case,
/// the program must outlive the terminal, so SIGHUP stays ignored. Without `/proc`, the program
/// cannot know this, and it handles SIGHUP.
fn hangup_is_ignored() -> bool {
    // SIGHUP is signal 1, which is the lowest bit.
    const HANGUP: u64 = 1;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|signals| u64::from_str_radix(signals.trim(), 16).ok());
    ignored.is_some_and(|signals| signals & HANGUP != 0)
}
