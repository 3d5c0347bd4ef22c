//! The new process as the old one sees it: started, spoken to with deadlines, and ended.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::pin::pin;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::give_up::GiveUp;
use super::link::{DATA_MAX_BYTES, Link, NotSent};
use super::message::{ToNew, ToOld, VERSION};
use super::trouble::Trouble;
use super::{LONG_MAX_BYTES, Program, VARIABLE};
use crate::kit::harmless::reason;
use crate::run::notify;

/// The time in which the new process must be ready. It reads its configuration, and may look up
/// names.
pub(super) const START: Duration = Duration::from_secs(30);
/// The time in which the new process must answer each message after that.
pub(super) const ANSWER: Duration = Duration::from_secs(10);
/// The time to read what a process has sent before it was reaped. Nothing more can arrive.
pub(super) const LEFT_BEHIND: Duration = Duration::from_secs(1);
/// The time in which a process that is told to end may remove what it has created.
pub(super) const EXIT_GRACE: Duration = Duration::from_secs(1);
/// The time between two attempts to send a frame that the system does not accept now.
const RETRY: Duration = Duration::from_millis(20);

/// The new process, and the socket to it.
pub(super) struct NewProcess {
    link: Link,
    /// `None` when the process has been reaped.
    child: Option<Child>,
    pid: u32,
    give_up: Arc<GiveUp>,
    /// The first reason why it was ended.
    failure: Option<String>,
}

impl NewProcess {
    /// Starts the new process. Nothing of this process changes.
    ///
    /// # Errors
    /// Returns the reason why there is no new process, or `None` if this process gives up.
    pub(super) async fn start(program: &Arc<Program>, give_up: &Arc<GiveUp>) -> Result<Self, Option<String>> {
        if std::process::id() == 1 {
            let why = "process 1 cannot hand over, because its end ends the container";
            return Err(Some(why.to_owned()));
        }
        let starting = Arc::clone(program);
        // The file may be on a slow disk.
        let mut starting = spawn_blocking(move || spawn(&starting));
        let started = match give_up.at_once(START, &mut starting).await {
            // Until it runs another program, a new process has a copy of every listener.
            Err(Trouble::GivenUp) => timeout(EXIT_GRACE, starting).await.map_err(|_| None)?,
            Err(_) => Ok(Err(io::Error::other(format!("no answer within {} s", START.as_secs())))),
            Ok(started) => started,
        };
        let started = started.map_err(io::Error::other).and_then(|started| started);
        let (child, link) = started.map_err(|error| Some(format!("cannot start {program}: {error}")))?;
        let new = Self::new(child, link, Arc::clone(give_up));
        tracing::info!("process {} prepares to take over", new.pid);
        Ok(new)
    }

    pub(super) fn new(child: Child, link: Link, give_up: Arc<GiveUp>) -> Self {
        Self {
            link,
            pid: child.id().unwrap_or_default(),
            child: Some(child),
            give_up,
            failure: None,
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    pub(super) fn is_reaped(&self) -> bool {
        self.child.is_none()
    }

    pub(super) fn give_up(&self) -> Arc<GiveUp> {
        Arc::clone(&self.give_up)
    }

    /// Sends a frame that the new process needs. If the system has reached a limit, this method
    /// tries again. The caller has a deadline.
    pub(super) async fn send(
        &mut self,
        message: &ToNew,
        data: &[&[u8]],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), NotSent> {
        loop {
            match self.link.send(message, data, descriptors).await {
                Err(not_sent) if not_sent.is_temporary() => sleep(RETRY).await,
                sent => return sent,
            }
        }
    }

    /// Sends a frame within a deadline. A frame that the system refuses is not sent again.
    pub(super) async fn try_send(
        &mut self,
        message: &ToNew,
        data: &[&[u8]],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Result<(), NotSent>, Trouble> {
        let sent = self.link.send(message, data, descriptors);
        self.give_up.soon(ANSWER, sent).await
    }

    /// Sends a message whose data may be longer than a frame. Too much data is left out, because
    /// the new process can do without it.
    pub(super) async fn send_long(&mut self, message: &ToNew, mut data: &[u8]) -> Result<(), NotSent> {
        if data.len() > LONG_MAX_BYTES {
            tracing::warn!(
                bytes = data.len(),
                ?message,
                "the data of a hand-over is too long, and is left out"
            );
            data = &[];
        }
        while let Some((part, rest)) = data
            .split_at_checked(DATA_MAX_BYTES)
            .filter(|(_, rest)| !rest.is_empty())
        {
            self.send(&ToNew::Part, &[part], &[]).await?;
            data = rest;
        }
        self.send(message, &[data], &[]).await
    }

    /// Returns the next answer, or why there is none. A process that has refused and ended may have
    /// left its reason, although nothing can be sent to it.
    pub(super) async fn answer_after(&mut self, sent: Result<(), NotSent>) -> Result<ToOld, Trouble> {
        if let Err(NotSent::Refused(error)) = sent {
            return Err(Trouble::Wrong(format!("a message cannot be sent: {error}")));
        }
        answer(self.link.receive_message().await)
    }

    /// Returns the reason that a process has left, to which nothing can be sent any more.
    pub(super) async fn left_behind(&mut self) -> Trouble {
        match timeout(LEFT_BEHIND, self.answer_after(Err(NotSent::Broken))).await {
            Ok(Err(trouble)) => trouble,
            _ => Trouble::Closed,
        }
    }

    /// Returns the next answer. If there is none in time, the new process is ended and reaped.
    pub(super) async fn answer_or_end(&mut self) -> Result<ToOld, Trouble> {
        let mut received = pin!(self.link.receive_message());
        match self.give_up.soon(ANSWER, &mut received).await {
            Ok(received) => answer(received),
            Err(trouble) => {
                end(&mut self.child, false).await;
                // This socket may already hold the answer. It stays open if another process has
                // inherited the other end.
                match timeout(LEFT_BEHIND, received).await {
                    Ok(Ok(None)) | Err(_) => Err(trouble),
                    Ok(received) => answer(received),
                }
            }
        }
    }

    /// Ends the new process because of this trouble, and remembers the first reason.
    pub(super) async fn fail(&mut self, step: &str, trouble: Trouble) {
        let is_ending = matches!(trouble, Trouble::Refused(_) | Trouble::Closed);
        let ended = end(&mut self.child, is_ending).await;
        self.failure.get_or_insert(trouble.describe(step, &ended));
    }

    /// Returns why the new process has ended.
    pub(super) fn failure(&mut self) -> String {
        self.failure.take().unwrap_or_default()
    }

    /// Ends the new process, if it has not ended.
    pub(super) async fn end(mut self) {
        end(&mut self.child, false).await;
    }

    /// Asks the new process to stop, because this one does.
    pub(super) async fn request_stop(&mut self) {
        // A signal would be the second one, if a service manager sends one to all processes.
        let sent = timeout(EXIT_GRACE, self.link.send(&ToNew::Stop, &[], &[])).await;
        if !matches!(sent, Ok(Ok(()))) {
            terminate(self.child.as_ref());
        }
    }

    /// Waits until the new process has ended. Ends it at `until`, or when `hurry` is ready.
    pub(super) async fn wait_until(mut self, until: Instant, hurry: impl Future<Output = ()>) {
        let Some(child) = &mut self.child else { return };
        tokio::select! {
            _ = child.wait() => {}
            () = sleep_until(until) => {}
            () = hurry => {}
        }
        self.end().await;
    }

    /// Lets the new process see the end of this one, and not before: this one has not saved yet
    /// what users have used.
    pub(super) fn leave_open(self) {
        self.link.leave_open();
    }
}

fn spawn(program: &Program) -> io::Result<(Child, Link)> {
    let (here, there) = StdUnixStream::pair()?;
    let mut command = Command::new(&program.path);
    notify::pass_on(command.as_std_mut());
    let child = command
        .args(&program.arguments)
        .env(VARIABLE, VERSION.to_string())
        .stdin(Stdio::from(OwnedFd::from(there)))
        .spawn()?;
    Ok((child, Link::new(here)?))
}

fn answer(received: io::Result<Option<ToOld>>) -> Result<ToOld, Trouble> {
    match received {
        Ok(Some(ToOld::Refused { why })) => Err(Trouble::Refused(reason(&why))),
        Ok(Some(answer)) => Ok(answer),
        Ok(None) => Err(Trouble::Closed),
        Err(error) => Err(Trouble::Wrong(reason(&error.to_string()))),
    }
}

/// Reaps the process, and returns how it ended. A process that is not ending by itself is told to,
/// so that it removes what it has created, and then killed.
async fn end(child: &mut Option<Child>, is_ending: bool) -> String {
    let Some(mut process) = child.take() else {
        return "it has ended".to_owned();
    };
    for is_told in [false, true] {
        if is_told {
            terminate(Some(&process));
        } else if !is_ending {
            continue;
        }
        match timeout(EXIT_GRACE, process.wait()).await {
            Ok(Ok(status)) => return status.to_string(),
            Ok(Err(error)) => return error.to_string(),
            Err(_) => {}
        }
    }
    let killed = process.kill().await;
    killed.map_or_else(
        |error| error.to_string(),
        |()| "it did not end, and was killed".to_owned(),
    )
}

fn terminate(child: Option<&Child>) {
    let pid = child
        .and_then(Child::id)
        .and_then(|pid| Pid::from_raw(pid.cast_signed()));
    if let Some(pid) = pid {
        // The process is not reaped yet, so no other one has its number.
        let _ = kill_process(pid, Signal::TERM);
    }
}
