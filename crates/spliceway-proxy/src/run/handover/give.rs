//! The old process: starts the new one, gives it the listeners, and then the sessions.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::give_up::GiveUp;
use super::link::{DATA_MAX_BYTES, Link, NotSent};
use super::message::{SessionMessage, ToNew, ToOld, VERSION, micros};
use super::owner::{Answer, Giver};
use super::state::ServiceState;
use super::{LONG_MAX_BYTES, Program, VARIABLE};
use crate::kit::harmless::reason;
use crate::metrics::Metrics;
use crate::monitor::overview::Overview;
use crate::net::adopted::Offered;
use crate::run::notify;
use crate::session::Moving;
use crate::session::service::Service;
use crate::session::sessions::Sessions;

/// The time in which the new process must be ready. It reads its configuration, and may look up
/// names.
const START: Duration = Duration::from_secs(30);
/// The time in which the new process must answer each message after that.
const ANSWER: Duration = Duration::from_secs(10);
/// The time to read what a process has sent before it was reaped. Nothing more can arrive.
const LEFT_BEHIND: Duration = Duration::from_secs(1);
/// The time in which the task of a session must suspend its relay. A worker may be busy.
const SUSPEND: Duration = Duration::from_secs(1);
/// The number of sessions that are suspended at the same time. Each waits for those before it, so
/// more would make every pause longer. Fewer would wait more often for the other process.
const TOGETHER: usize = 16;
/// The time between two searches for sessions that have begun to relay.
const SEARCH: Duration = Duration::from_millis(20);
/// The time in which a process that is told to end may remove what it has created.
const EXIT_GRACE: Duration = Duration::from_secs(1);
/// The time between two attempts to send a frame that the system does not accept now.
const RETRY: Duration = Duration::from_millis(20);

/// A new process that serves, and takes sessions.
pub(crate) struct Giving {
    link: Link,
    /// `None` when the process has been reaped.
    child: Option<Child>,
    pid: u32,
    give_up: Arc<GiveUp>,
    pauses: Vec<Duration>,
    refused: usize,
    /// The last reason for which a session was not taken.
    why: Option<String>,
    /// Why the new process has ended.
    failure: Option<String>,
}

/// A session on its way.
struct Sent {
    id: u64,
    moving: Moving,
    giver: Giver,
    suspended: Instant,
}

/// Why the new process does not continue.
#[derive(Debug)]
pub(super) enum Trouble {
    /// It says that it does not take over.
    Refused(String),
    /// It has closed its socket, because it ends.
    Closed,
    /// It has not answered in this time.
    Late(Duration),
    /// Its answer makes no sense, or the socket does not work.
    Wrong(String),
    /// This process gives up the upgrade.
    GivenUp,
}

/// What has become of the sessions in relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    All,
    /// The new process has ended.
    Ended,
    /// This process has given up the upgrade.
    Part,
}

/// Starts the new process. Nothing of this process changes.
///
/// # Errors
/// Returns the reason why there is no new process, or `None` if this process gives up.
pub(super) async fn start(program: &Arc<Program>, give_up: &Arc<GiveUp>) -> Result<Giving, Option<String>> {
    if std::process::id() == 1 {
        return Err(Some(
            "process 1 cannot hand over, because its end ends the container".to_owned(),
        ));
    }
    let starting = Arc::clone(program);
    // The file may be on a slow disk.
    let mut starting = spawn_blocking(move || spawn(&starting));
    let started = match give_up.at_once(START, &mut starting).await {
        // Until it runs another program, a new process has a copy of every listener.
        None if give_up.is_asked() => timeout(EXIT_GRACE, starting).await.ok(),
        started => started,
    };
    let started = match started {
        Some(started) => started.map_err(io::Error::other).and_then(|started| started),
        None if give_up.is_asked() => return Err(None),
        None => Err(io::Error::other(format!("no answer within {} s", START.as_secs()))),
    };
    let (child, link) = started.map_err(|error| Some(format!("cannot start {program}: {error}")))?;
    let pid = child.id().unwrap_or_default();
    tracing::info!("process {pid} prepares to take over");
    Ok(Giving {
        link,
        pid,
        child: Some(child),
        give_up: Arc::clone(give_up),
        pauses: Vec::new(),
        refused: 0,
        why: None,
        failure: None,
    })
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

impl Giving {
    /// Sends the listeners, and waits until the new process is ready.
    pub(super) async fn introduce(&mut self, offered: &[Offered], sessions: &Sessions) -> Result<(), Trouble> {
        let give_up = Arc::clone(&self.give_up);
        let introduced = async {
            let sent = self.send_listeners(offered, sessions).await;
            match self.hear_after(sent).await? {
                ToOld::Ready => Ok(()),
                other => Err(Trouble::unexpected(&other)),
            }
        };
        give_up
            .at_once(START, introduced)
            .await
            .unwrap_or_else(|| Err(late(&give_up, START)))
    }

    async fn send_listeners(&mut self, offered: &[Offered], sessions: &Sessions) -> Result<(), NotSent> {
        self.give(&ToNew::Hello { version: VERSION }, &[], &[]).await?;
        for (group, offered) in offered.iter().enumerate() {
            for listener in offered.descriptors() {
                let message = ToNew::Listener {
                    role: offered.role.clone(),
                    address: offered.address.clone(),
                    group,
                };
                self.give(&message, &[], &[listener]).await?;
            }
        }
        let last_session = sessions.last_id();
        self.give(&ToNew::Prepare { last_session }, &[], &[]).await
    }

    /// Lets the new process start its services. It does not accept clients yet.
    pub(super) async fn serve(&mut self, overview: &Overview) -> Result<(), Trouble> {
        let give_up = Arc::clone(&self.give_up);
        let served = async {
            let totals = totals(&overview.process.metrics).await;
            let sent = self.give_long(&ToNew::Serve, totals.as_bytes()).await;
            match self.hear_after(sent).await? {
                ToOld::Serving => {}
                other => return Err(Trouble::unexpected(&other)),
            }
            match self.state(overview, ServiceState::of).await {
                Ok(()) => Ok(()),
                Err(not_sent) => self.hear_after(Err(not_sent)).await.map(drop),
            }
        };
        give_up
            .at_once(ANSWER, served)
            .await
            .unwrap_or_else(|| Err(late(&give_up, ANSWER)))
    }

    /// Sends a frame that the other process needs. If the system has reached a limit, this method
    /// tries again. The caller has a deadline.
    async fn give(&mut self, message: &ToNew, data: &[&[u8]], descriptors: &[BorrowedFd<'_>]) -> Result<(), NotSent> {
        loop {
            match self.link.give(message, data, descriptors).await {
                Err(not_sent) if not_sent.is_temporary() => sleep(RETRY).await,
                sent => return sent,
            }
        }
    }

    /// Sends a message whose data may be longer than a frame. Too much data is left out, because
    /// the new process can do without it.
    async fn give_long(&mut self, message: &ToNew, mut data: &[u8]) -> Result<(), NotSent> {
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
            self.give(&ToNew::Part, &[part], &[]).await?;
            data = rest;
        }
        self.give(message, &[data], &[]).await
    }

    /// Returns the next message, or why there is none. A process that has refused and ended may
    /// have left its reason, although nothing can be sent to it.
    async fn hear_after(&mut self, sent: Result<(), NotSent>) -> Result<ToOld, Trouble> {
        if let Err(NotSent::Refused(error)) = sent {
            return Err(Trouble::Wrong(format!("a message cannot be sent: {error}")));
        }
        match self.link.hear().await {
            Ok(Some(ToOld::Refused { why })) => Err(Trouble::Refused(reason(&why))),
            Ok(Some(heard)) => Ok(heard),
            Ok(None) => Err(Trouble::Closed),
            Err(error) => Err(Trouble::Wrong(reason(&error.to_string()))),
        }
    }

    /// Gives what the services know, and the state that `status` shows. The new process can do
    /// without both. Not cancel safe.
    async fn state(&mut self, overview: &Overview, of: fn(&Service) -> ServiceState) -> Result<(), NotSent> {
        for served in overview.services().iter() {
            match of(&served.service).encode() {
                Ok(state) => self.give_long(&ToNew::Service, &state).await?,
                Err(error) => {
                    tracing::warn!(%error, service = served.service.name, "the state of a service does not move");
                }
            }
        }
        let status = serde_json::to_vec(&overview.status().await).unwrap_or_default();
        self.give_long(&ToNew::Status, &status).await
    }

    /// Gives every session that is in relay.
    pub(super) async fn sessions(&mut self, sessions: &Sessions) -> Given {
        let mut slot = Some(0);
        while let Some(from) = slot {
            let (found, next) = sessions.slice(from);
            slot = next;
            for together in found.chunks(TOGETHER) {
                if self.give_up.is_asked() {
                    return Given::Part;
                }
                let asked = together.iter().filter_map(|(_, session)| session.ask_to_move());
                self.batch(asked.collect()).await;
                if self.child.is_none() {
                    return Given::Ended;
                }
            }
        }
        Given::All
    }

    async fn batch(&mut self, asked: Vec<oneshot::Receiver<Moving>>) {
        let (mut sent, mut trouble) = (Vec::with_capacity(asked.len()), None);
        for asked in asked {
            // The session may have ended, or cannot be suspended now.
            let Some(Ok(moving)) = self.give_up.soon(SUSPEND, asked).await else {
                continue;
            };
            match self.send(moving).await {
                Ok(Ok(one)) => sent.push(one),
                Ok(Err(NotSent::Refused(error))) => {
                    self.refused += 1;
                    self.why = Some(error.to_string());
                }
                Ok(Err(NotSent::Broken)) => {
                    trouble = Some(Trouble::Closed);
                    break;
                }
                Err(late) => {
                    trouble = Some(late);
                    break;
                }
            }
        }
        for mut one in sent {
            match self.answer(one.id).await {
                Some(answer) => one.giver.answered(answer),
                None => one.giver.gone(),
            }
            if one.giver.owns() {
                self.refused += 1;
                drop(one.moving);
            } else {
                self.pauses.push(one.suspended.elapsed());
                one.moving.taken();
            }
        }
        if let Some(mut trouble) = trouble {
            if matches!(trouble, Trouble::Closed) && self.child.is_some() {
                trouble = self.left_behind().await;
            }
            self.fail(SESSIONS, trouble).await;
        }
    }

    /// Returns the reason that a process has left, to which nothing can be sent any more.
    async fn left_behind(&mut self) -> Trouble {
        match timeout(LEFT_BEHIND, self.hear_after(Err(NotSent::Broken))).await {
            Ok(Err(trouble)) => trouble,
            _ => Trouble::Closed,
        }
    }

    /// Sends a session. If the whole of it was not sent, it continues here.
    async fn send(&mut self, moving: Moving) -> Result<Result<Sent, NotSent>, Trouble> {
        let (parcel, suspended) = (moving.parcel(), Instant::now());
        let (session, ends) = (parcel.record.session(), &parcel.suspended);
        let mut message = SessionMessage::new(&session.facts(), &ends.state);
        (message.id, message.service) = (session.id, session.service.to_owned());
        message.age_us = micros(session.started.elapsed());
        message.shown_idle_us = session.facts().idle(suspended).map(micros);
        message.rates = ends.rates.balances();
        let data = [&ends.state.a_to_b.in_flight[..], &ends.state.b_to_a.in_flight];
        let sockets = [ends.client.as_fd(), ends.upstream.as_fd()];
        let (id, mut giver) = (session.id, Giver::default());
        let message = ToNew::Session(Box::new(message));
        let give = self.link.give(&message, &data, &sockets);
        let given = self.give_up.soon(ANSWER, give).await;
        if let Err(not_sent) = given.ok_or_else(|| late(&self.give_up, ANSWER))? {
            return Ok(Err(not_sent));
        }
        giver.offered();
        Ok(Ok(Sent {
            id,
            moving,
            giver,
            suspended,
        }))
    }

    /// Lets the new process accept clients, when this process does not accept any more. Returns
    /// `false` if the new process has ended without an answer. It has then accepted no client.
    pub(super) async fn accept(&mut self, overview: &Overview) -> bool {
        let give_up = Arc::clone(&self.give_up);
        let gives = async {
            let totals = totals(&overview.process.metrics).await;
            self.state(overview, ServiceState::of).await?;
            self.give_long(&ToNew::Accept, totals.as_bytes()).await
        };
        let trouble = match give_up.soon(ANSWER, gives).await {
            Some(Ok(())) => match self.last_words().await {
                Ok(ToOld::Accepting) => return true,
                Ok(other) => Trouble::unexpected(&other),
                Err(trouble) => trouble,
            },
            Some(Err(_)) => self.left_behind().await,
            None => late(&give_up, ANSWER),
        };
        self.fail("the new process does not accept clients", trouble).await;
        false
    }

    /// Returns the next message of the new process. If there is none in time, the new process is
    /// ended and reaped.
    async fn last_words(&mut self) -> Result<ToOld, Trouble> {
        let give_up = Arc::clone(&self.give_up);
        let Self { link, child, .. } = self;
        let mut hear = std::pin::pin!(link.hear());
        let heard = match give_up.soon(ANSWER, &mut hear).await {
            Some(heard) => heard,
            None => {
                end(child, false).await;
                // This socket may already hold the answer. It stays open if another process has
                // inherited the other end.
                match timeout(LEFT_BEHIND, hear).await {
                    Ok(Ok(None)) | Err(_) => return Err(late(&give_up, ANSWER)),
                    Ok(heard) => heard,
                }
            }
        };
        match heard {
            Ok(Some(ToOld::Refused { why })) => Err(Trouble::Refused(reason(&why))),
            Ok(Some(heard)) => Ok(heard),
            Ok(None) => Err(Trouble::Closed),
            Err(error) => Err(Trouble::Wrong(reason(&error.to_string()))),
        }
    }

    /// Returns the answer about a session. `None` means that there is none, and that the new
    /// process has been reaped.
    async fn answer(&mut self, session: u64) -> Option<Answer> {
        let trouble = match self.last_words().await {
            Ok(ToOld::Taken { session: taken }) if taken == session => return Some(Answer::Taken),
            Ok(ToOld::NotTaken { session: refused, why }) if refused == session => {
                self.why = Some(reason(&why));
                return Some(Answer::Refused);
            }
            Ok(other) => Trouble::unexpected(&other),
            Err(trouble) => trouble,
        };
        self.fail(SESSIONS, trouble).await;
        None
    }

    /// Gives sessions that begin to relay, until the new process has ended.
    pub(super) async fn late(&mut self, sessions: &Sessions) {
        while self.sessions(sessions).await == Given::All {
            sleep(SEARCH).await;
        }
    }

    /// Gives the last state of services and metrics.
    pub(super) async fn totals(&mut self, overview: &Overview) {
        let totals = totals(&overview.process.metrics).await;
        let gives = async {
            self.state(overview, ServiceState::of_clients).await?;
            self.give_long(&ToNew::Totals, totals.as_bytes()).await
        };
        // A new process that has ended does not need them.
        let _ = timeout(ANSWER, gives).await;
    }

    /// Ends the new process because of this trouble, and remembers the first reason.
    pub(super) async fn fail(&mut self, step: &str, trouble: Trouble) {
        let ended = end(
            &mut self.child,
            matches!(trouble, Trouble::Refused(_) | Trouble::Closed),
        )
        .await;
        let failure = match trouble {
            Trouble::Refused(why) => why,
            Trouble::Closed => format!("{step}: {ended}"),
            Trouble::Late(time) => format!(
                "{step}: no answer within {} s, so this process has ended it",
                time.as_secs()
            ),
            Trouble::Wrong(what) => format!("{step}: {what}. So this process has ended it"),
            Trouble::GivenUp => format!("{step}: the upgrade was given up"),
        };
        self.failure.get_or_insert(failure);
    }

    /// Returns why the new process has ended.
    pub(super) fn failure(&mut self) -> String {
        self.failure.take().unwrap_or_default()
    }

    /// Ends the new process, which owns nothing.
    pub(crate) async fn dismiss(mut self) {
        end(&mut self.child, false).await;
    }

    /// Asks the new process to stop, because this one does. It lets the sessions finish that it has
    /// taken.
    pub(crate) async fn ask_to_stop(&mut self) {
        // A signal would be the second one, if a service manager sends one to all processes.
        let asked = timeout(EXIT_GRACE, self.link.give(&ToNew::Stop, &[], &[])).await;
        if !matches!(asked, Ok(Ok(()))) {
            tell(self.child.as_ref(), Signal::TERM);
        }
    }

    /// Waits until the new process, which was asked to stop, has ended. Ends it at `until`, or when
    /// `hurry` is ready.
    pub(crate) async fn ends_until(mut self, until: Instant, hurry: impl Future<Output = ()>) {
        let Some(child) = &mut self.child else { return };
        tokio::select! {
            _ = child.wait() => {}
            () = sleep_until(until) => {}
            () = hurry => {}
        }
        end(&mut self.child, false).await;
    }

    /// Returns a sentence about what was moved.
    pub(super) fn summary(&mut self, left: usize) -> String {
        self.pauses.sort_unstable();
        let moved = self.pauses.len();
        let mut summary = format!("process {} serves; moved {moved} sessions", self.pid);
        if let Some(longest) = self.pauses.last() {
            let part = |percent: usize| self.pauses[(moved * percent / 100).min(moved - 1)].as_secs_f64() * 1e3;
            summary += &format!(
                " (paused {:.1} ms in the median, {:.1} ms at p99, {:.1} ms at most)",
                part(50),
                part(99),
                longest.as_secs_f64() * 1e3
            );
        }
        if left > 0 {
            summary += &format!("; {left} sessions finish in process {}", std::process::id());
        }
        if let Some(why) = &self.why {
            summary += &format!("; {} were not taken: {why}", self.refused);
        }
        summary
    }

    /// Lets the new process see the end of this one, and not before: this one has not saved yet
    /// what users have used.
    pub(super) fn stays_until_the_end(self) {
        self.link.leave_open();
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the number of sessions that have moved.
    pub(super) fn moved(&self) -> usize {
        self.pauses.len()
    }
}

/// The step in which sessions move.
const SESSIONS: &str = "the new process does not take sessions";

impl Trouble {
    fn unexpected(heard: &ToOld) -> Self {
        Self::Wrong(reason(&format!("an unexpected answer: {heard:?}")))
    }
}

/// Returns why there is no answer.
fn late(give_up: &GiveUp, limit: Duration) -> Trouble {
    match give_up.is_asked() {
        true => Trouble::GivenUp,
        false => Trouble::Late(limit),
    }
}

async fn totals(metrics: &Metrics) -> String {
    // Without them, the counters start again.
    metrics.totals().await.unwrap_or_default()
}

/// Reaps the process, and returns how it ended. A process that is not ending by itself is told to,
/// so that it removes what it has created, and then killed.
async fn end(child: &mut Option<Child>, is_ending: bool) -> String {
    let Some(mut process) = child.take() else {
        return "it has ended".to_owned();
    };
    for is_told in [false, true] {
        if is_told {
            tell(Some(&process), Signal::TERM);
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

fn tell(child: Option<&Child>, signal: Signal) {
    let pid = child
        .and_then(Child::id)
        .and_then(|pid| Pid::from_raw(pid.cast_signed()));
    if let Some(pid) = pid {
        // The process is not reaped yet, so no other one has its number.
        let _ = kill_process(pid, signal);
    }
}

#[cfg(test)]
mod tests;
