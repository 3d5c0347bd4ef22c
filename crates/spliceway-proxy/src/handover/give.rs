//! The old process: starts the new one, gives it the listeners, and then the sessions.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use super::gate::Offered;
use super::link::{Link, NotSent};
use super::message::{SessionMessage, ToNew, ToOld, VERSION, micros};
use super::owner::{Answer, Giver};
use super::state::ServiceState;
use super::{Program, VARIABLE};
use crate::metrics::Metrics;
use crate::notify;
use crate::overview::Overview;
use crate::service::Service;
use crate::session::Moving;
use crate::sessions::Sessions;

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

/// A new process that serves, and takes sessions.
pub(crate) struct Giving {
    link: Link,
    /// `None` when the process has been reaped.
    child: Option<Child>,
    pid: u32,
    pauses: Vec<Duration>,
    refused: usize,
    /// The last reason for which a session was not taken.
    why: Option<String>,
}

/// A session on its way.
struct Sent {
    id: u64,
    moving: Moving,
    giver: Giver,
    suspended: Instant,
}

/// Starts the new process, and lets it prepare. Nothing of this process changes.
///
/// # Errors
/// Returns the reason why the new process does not take over. It has then ended.
pub(crate) async fn prepare(program: &Program, offered: &[Offered], sessions: &Sessions) -> Result<Giving, String> {
    if std::process::id() == 1 {
        return Err("process 1 cannot hand over, because its end ends the container".to_owned());
    }
    let (child, link) = start(program).map_err(|error| format!("cannot start {program}: {error}"))?;
    let pid = child.id();
    tracing::info!("process {pid} prepares to take over");
    let mut giving = Giving {
        link,
        pid,
        child: Some(child),
        pauses: Vec::new(),
        refused: 0,
        why: None,
    };
    match timeout(START, giving.introduce(offered, sessions)).await {
        Ok(Ok(())) => Ok(giving),
        Ok(Err(why)) => {
            let ended = giving.end().await;
            Err(why.unwrap_or_else(|| format!("the new process did not become ready: {ended}")))
        }
        Err(_) => {
            giving.end().await;
            Err(format!("the new process was not ready after {} s", START.as_secs()))
        }
    }
}

fn start(program: &Program) -> io::Result<(Child, Link)> {
    let (here, there) = StdUnixStream::pair()?;
    let mut command = Command::new(&program.path);
    notify::pass_on(&mut command);
    let child = command
        .args(&program.arguments)
        .env(VARIABLE, VERSION.to_string())
        .stdin(Stdio::from(OwnedFd::from(there)))
        .spawn()?;
    Ok((child, Link::new(here)?))
}

impl Giving {
    /// Sends the listeners, and waits until the new process is ready. An error has the reason of
    /// the new process, if it gave one.
    async fn introduce(&mut self, offered: &[Offered], sessions: &Sessions) -> Result<(), Option<String>> {
        // If the new process has refused and ended, its reason can still be read.
        let _is_sent = self.send_listeners(offered, sessions).await;
        match self.link.hear().await {
            Ok(Some(ToOld::Ready)) => Ok(()),
            Ok(Some(ToOld::Refused { why })) => Err(Some(why)),
            Ok(Some(_) | None) => Err(None),
            Err(error) => Err(Some(error.to_string())),
        }
    }

    async fn send_listeners(&mut self, offered: &[Offered], sessions: &Sessions) -> Result<(), NotSent> {
        self.link.give(&ToNew::Hello { version: VERSION }, &[], &[]).await?;
        for (group, offered) in offered.iter().enumerate() {
            for listener in offered.descriptors() {
                let message = ToNew::Listener {
                    role: offered.role.clone(),
                    address: offered.address.clone(),
                    group,
                };
                self.link.give(&message, &[], &[listener]).await?;
            }
        }
        let last_session = sessions.last_id();
        self.link.give(&ToNew::Prepare { last_session }, &[], &[]).await
    }

    /// Lets the new process start its services. It does not accept clients yet.
    ///
    /// # Errors
    /// Returns how the new process has ended.
    pub(crate) async fn serve(&mut self, overview: &Overview) -> Result<(), String> {
        let totals = totals(&overview.metrics).await;
        let data = [totals.as_bytes()];
        let served = async {
            let sent = self.link.give(&ToNew::Serve, &data, &[]).await;
            let is_served = sent.is_ok() && matches!(self.link.hear().await, Ok(Some(ToOld::Serving)));
            is_served && self.state(overview, ServiceState::of).await.is_ok()
        };
        if timeout(ANSWER, served).await == Ok(true) {
            return Ok(());
        }
        Err(format!("the new process does not serve: {}", self.end().await))
    }

    /// Gives what the services know, and the state that `status` shows. Not cancel safe.
    async fn state(&mut self, overview: &Overview, of: fn(&Service) -> ServiceState) -> Result<(), NotSent> {
        for served in overview.services().iter() {
            let state = of(&served.service).encode().map_err(NotSent::Refused);
            let sent = match state {
                Ok(state) => self.link.give(&ToNew::Service, &[&state], &[]).await,
                Err(refused) => Err(refused),
            };
            match sent {
                Err(NotSent::Refused(error)) => {
                    tracing::warn!(%error, service = served.service.name, "the state of a service does not move");
                }
                sent => sent?,
            }
        }
        let status = serde_json::to_vec(&overview.status().await).unwrap_or_default();
        match self.link.give(&ToNew::Status, &[&status], &[]).await {
            // Without it, `status` counts from here.
            Err(NotSent::Refused(_)) => Ok(()),
            sent => sent,
        }
    }

    /// Gives every session that is in relay. Returns `false` if the new process has ended.
    pub(crate) async fn sessions(&mut self, sessions: &Sessions) -> bool {
        let mut slot = Some(0);
        while let Some(from) = slot {
            let (found, next) = sessions.slice(from);
            slot = next;
            for together in found.chunks(TOGETHER) {
                let asked = together.iter().filter_map(|(_, session)| session.ask_to_move());
                self.batch(asked.collect()).await;
                if self.child.is_none() {
                    return false;
                }
            }
        }
        true
    }

    async fn batch(&mut self, asked: Vec<oneshot::Receiver<Moving>>) {
        let (mut sent, mut is_broken) = (Vec::with_capacity(asked.len()), false);
        for asked in asked {
            // The session may have ended, or cannot be suspended now.
            let Ok(Ok(moving)) = timeout(SUSPEND, asked).await else {
                continue;
            };
            match self.send(moving).await {
                Ok(one) => sent.push(one),
                Err(NotSent::Refused(error)) => {
                    self.refused += 1;
                    self.why = Some(error.to_string());
                }
                Err(NotSent::Broken) => {
                    is_broken = true;
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
        if is_broken {
            self.end().await;
        }
    }

    /// Sends a session. If the whole of it was not sent, it continues here.
    async fn send(&mut self, moving: Moving) -> Result<Sent, NotSent> {
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
        match timeout(ANSWER, give).await {
            Ok(given) => given?,
            Err(_) => return Err(NotSent::Broken),
        }
        giver.offered();
        Ok(Sent {
            id,
            moving,
            giver,
            suspended,
        })
    }

    /// Lets the new process accept clients, when this process does not accept any more. Returns
    /// `false` if the new process has ended without an answer. It has then accepted no client.
    pub(crate) async fn accept(&mut self, overview: &Overview) -> bool {
        let totals = totals(&overview.metrics).await;
        let gives = async {
            self.state(overview, ServiceState::of).await?;
            self.link.give(&ToNew::Accept, &[totals.as_bytes()], &[]).await
        };
        let is_given = matches!(timeout(ANSWER, gives).await, Ok(Ok(())));
        let accepts = is_given && matches!(self.last_words().await, Ok(Some(ToOld::Accepting)));
        if !accepts {
            self.end().await;
        }
        self.child.is_some()
    }

    /// Returns the next message of the new process. If there is none in time, the new process is
    /// killed and reaped.
    async fn last_words(&mut self) -> io::Result<Option<ToOld>> {
        let Self { link, child, .. } = self;
        let mut hear = std::pin::pin!(link.hear());
        match timeout(ANSWER, &mut hear).await {
            Ok(heard) => heard,
            Err(_) => {
                reap(child).await;
                // This socket may already hold the answer. It stays open if another process has
                // inherited the other end.
                timeout(LEFT_BEHIND, hear).await.unwrap_or(Ok(None))
            }
        }
    }

    /// Returns the answer about a session. `None` means that there is none, and that the new
    /// process has been reaped.
    async fn answer(&mut self, session: u64) -> Option<Answer> {
        match self.last_words().await {
            Ok(Some(ToOld::Taken { session: taken })) if taken == session => return Some(Answer::Taken),
            Ok(Some(ToOld::NotTaken { session: refused, why })) if refused == session => {
                self.why = Some(why);
                return Some(Answer::Refused);
            }
            Ok(Some(_)) | Err(_) => tracing::error!("the new process gives a wrong answer"),
            Ok(None) => {}
        }
        self.end().await;
        None
    }

    /// Gives sessions that begin to relay, until the new process has ended.
    pub(crate) async fn late(&mut self, sessions: &Sessions) {
        while self.sessions(sessions).await {
            sleep(SEARCH).await;
        }
    }

    /// Gives the last state of services and metrics.
    pub(crate) async fn totals(&mut self, overview: &Overview) {
        let totals = totals(&overview.metrics).await;
        let gives = async {
            self.state(overview, ServiceState::of_clients).await?;
            self.link.give(&ToNew::Totals, &[totals.as_bytes()], &[]).await
        };
        // A new process that has ended does not need them.
        let _ = timeout(ANSWER, gives).await;
    }

    /// Kills the new process, if it has not ended, and returns how it ended.
    pub(crate) async fn end(&mut self) -> String {
        reap(&mut self.child).await
    }

    /// Returns a sentence about what was moved.
    pub(crate) fn summary(&mut self, left: usize) -> String {
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

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the number of sessions that have moved.
    pub(crate) fn moved(&self) -> usize {
        self.pauses.len()
    }
}

async fn totals(metrics: &Metrics) -> String {
    // Without them, the counters start again.
    metrics.totals().await.unwrap_or_default()
}

async fn reap(child: &mut Option<Child>) -> String {
    let Some(mut child) = child.take() else {
        return "it has ended".to_owned();
    };
    let reaped = tokio::task::spawn_blocking(move || {
        // Usually, it has ended, and has a status of its own.
        if let Ok(Some(status)) = child.try_wait() {
            return Ok(status);
        }
        child.kill()?;
        child.wait()
    });
    match reaped.await {
        Ok(Ok(status)) => status.to_string(),
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    }
}

#[cfg(test)]
mod tests;
