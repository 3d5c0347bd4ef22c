//! An upgrade from its order to its result, in the old process: starts the new one, sends it the
//! listeners, and then the sessions.

use std::sync::Arc;
use std::time::Duration;

use spliceway_operator::text::count;
use tokio::time::{Instant, sleep, timeout};

use super::Program;
use super::give_up::GiveUp;
use super::link::NotSent;
use super::message::{ToNew, ToOld, VERSION};
use super::new_process::{ANSWER, NewProcess, START};
use super::sessions::{self, Left, Tally};
use super::state::ServiceState;
use super::trouble::{Stopped, Trouble};
use crate::kit::pid_file;
use crate::log;
use crate::metrics::Metrics;
use crate::monitor::overview::Overview;
use crate::net::adopted::Offered;
use crate::net::listener::SocketFile;
use crate::run::notify::Manager;
use crate::session::{Service, Sessions};

/// The time between two searches for sessions that have begun to relay.
const SEARCH: Duration = Duration::from_millis(20);
/// The time that the last answers of the admin and metrics listeners have, before the old process
/// ends.
const LAST_ANSWERS: Duration = Duration::from_millis(200);

/// What an upgrade needs, beside the listeners of the services.
pub(in crate::run) struct Upgrade {
    pub(in crate::run) program: Arc<Program>,
    pub(in crate::run) manager: Arc<Manager>,
    /// The metrics and admin listeners.
    pub(in crate::run) monitors: Vec<Offered>,
}

/// The result of an upgrade.
pub(in crate::run) enum Upgraded {
    /// The new process serves. The text is a sentence for the operator.
    Done(Handover, String),
    /// This process serves on, for this reason. The new process has ended.
    Failed(String),
    /// This process was asked to give up. The new process was not ended yet, and may own sessions.
    GivenUp(Option<Handover>),
}

/// A hand-over that has begun.
pub(in crate::run) struct Handover {
    new: NewProcess,
    tally: Tally,
}

impl Upgrade {
    /// Hands over to a new process.
    ///
    /// Not cancel safe: a new process that loses its socket thinks that this one is dead. Use
    /// `give_up` instead.
    pub(in crate::run) async fn run(
        &self,
        offered: Vec<Offered>,
        overview: &Overview,
        give_up: &Arc<GiveUp>,
    ) -> Upgraded {
        let mut handover = match NewProcess::start(&self.program, give_up).await {
            Ok(new) => Handover::new(new),
            Err(Some(why)) => return Upgraded::Failed(why),
            Err(None) => return Upgraded::GivenUp(None),
        };
        match self.hand_over(&mut handover, offered, overview, give_up).await {
            Ok(()) => {
                let left = Left::of(overview, &handover.tally);
                let summary = handover.tally.summary(handover.new.pid(), &left);
                Upgraded::Done(handover, summary)
            }
            Err(Stopped::GivenUp) => Upgraded::GivenUp(Some(handover)),
            Err(Stopped::Ended) => {
                // This process may have paused already.
                overview.process.gate.set(true);
                Upgraded::Failed(handover.failure())
            }
        }
    }

    async fn hand_over(
        &self,
        handover: &mut Handover,
        offered: Vec<Offered>,
        overview: &Overview,
        give_up: &GiveUp,
    ) -> Result<(), Stopped> {
        let process = &overview.process;
        let offered = offered.into_iter().chain(self.monitors.iter().cloned());
        let given = overview
            .settings()
            .and_then(|settings| settings.origin.given().encode());
        handover
            .send_listeners(offered.collect(), given, &process.sessions)
            .await?;
        handover.start_services(overview).await?;
        give_up.check()?;
        give_up.begin_sessions();
        // This process accepts clients until the sessions are handed over. So no new client depends
        // on a process that cannot relay. Then clients wait in the queues of the listeners.
        handover.send_sessions(&process.sessions).await?;
        give_up.check()?;
        process.gate.set(false);
        handover.accept(overview).await?;
        SocketFile::leave_all();
        pid_file::leave();
        log::follow_renames();
        give_up.check()?;
        self.manager.hand_over(handover.new.pid()).await;
        Ok(())
    }
}

/// The steps, in their order.
impl Handover {
    fn new(new: NewProcess) -> Self {
        let tally = Tally::default();
        Self { new, tally }
    }

    /// Sends the listeners and the services that were `given` at run time, and waits until the new
    /// process is ready.
    async fn send_listeners(
        &mut self,
        offered: Vec<Offered>,
        given: Option<Vec<u8>>,
        sessions: &Sessions,
    ) -> Result<(), Stopped> {
        let (give_up, new) = (self.new.give_up(), &mut self.new);
        let ready = async {
            let sent = send_listeners(new, &offered, given.as_deref(), sessions).await;
            match new.answer_after(sent).await? {
                ToOld::Ready => Ok(()),
                other => Err(Trouble::unexpected(&other)),
            }
        };
        let ready = give_up.at_once(START, ready).await.unwrap_or_else(Err);
        self.end_unless(ready, "the new process did not become ready").await
    }

    /// Lets the new process start its services. It does not accept clients yet.
    async fn start_services(&mut self, overview: &Overview) -> Result<(), Stopped> {
        let (give_up, new) = (self.new.give_up(), &mut self.new);
        let started = async {
            let totals = totals(&overview.process.metrics).await;
            let sent = new.send_long(&ToNew::Serve, totals.as_bytes()).await;
            match new.answer_after(sent).await? {
                ToOld::Serving => {}
                other => return Err(Trouble::unexpected(&other)),
            }
            match send_state(new, overview, ServiceState::with_backends).await {
                Ok(()) => Ok(()),
                not_sent => new.answer_after(not_sent).await.map(drop),
            }
        };
        let started = give_up.at_once(ANSWER, started).await.unwrap_or_else(Err);
        self.end_unless(started, "the new process does not serve").await
    }

    /// Sends every session that is in relay.
    async fn send_sessions(&mut self, sessions: &Sessions) -> Result<(), Stopped> {
        sessions::send_all(&mut self.new, sessions, &mut self.tally).await
    }

    /// Lets the new process accept clients, when this process does not accept any more. A new
    /// process that has ended without an answer has accepted no client.
    async fn accept(&mut self, overview: &Overview) -> Result<(), Stopped> {
        let (give_up, new) = (self.new.give_up(), &mut self.new);
        let sends = async {
            let totals = totals(&overview.process.metrics).await;
            send_state(new, overview, ServiceState::with_backends).await?;
            new.send_long(&ToNew::Accept, totals.as_bytes()).await
        };
        let trouble = match give_up.soon(ANSWER, sends).await {
            Ok(Ok(())) => match self.new.answer_or_end().await {
                Ok(ToOld::Accepting) => return Ok(()),
                Ok(other) => Trouble::unexpected(&other),
                Err(trouble) => trouble,
            },
            Ok(Err(_)) => self.new.left_behind().await,
            Err(trouble) => trouble,
        };
        self.new.fail("the new process does not accept clients", trouble).await;
        Err(Stopped::Ended)
    }

    /// Sends sessions that begin to relay, while `drain` waits for the last session. Then the new
    /// process gets the last counts.
    pub(in crate::run) async fn finish(mut self, overview: &Overview, drain: impl Future<Output = ()>) {
        let mut drain = std::pin::pin!(drain);
        tokio::select! {
            () = &mut drain => {}
            () = self.send_late_sessions(&overview.process.sessions) => drain.await,
        }
        self.send_totals(overview).await;
        sleep(LAST_ANSWERS).await;
        self.new.leave_open();
    }

    /// Sends sessions that begin to relay, until the new process has ended.
    async fn send_late_sessions(&mut self, sessions: &Sessions) {
        while self.send_sessions(sessions).await.is_ok() {
            sleep(SEARCH).await;
        }
    }

    /// Sends the last state of services and metrics.
    async fn send_totals(&mut self, overview: &Overview) {
        let totals = totals(&overview.process.metrics).await;
        let sends = async {
            send_state(&mut self.new, overview, ServiceState::without_backends).await?;
            self.new.send_long(&ToNew::Totals, totals.as_bytes()).await
        };
        // A new process that has ended does not need them.
        let _ = timeout(ANSWER, sends).await;
    }
}

/// The end of a new process that does not take over, or that must stop.
impl Handover {
    /// Ends a new process that owns nothing yet, if a step has failed. If this process gives up,
    /// the new process does not end yet.
    async fn end_unless(&mut self, done: Result<(), Trouble>, step: &str) -> Result<(), Stopped> {
        match done {
            Ok(()) => Ok(()),
            Err(Trouble::GivenUp) => Err(Stopped::GivenUp),
            Err(trouble) => {
                self.new.fail(step, trouble).await;
                Err(Stopped::Ended)
            }
        }
    }

    /// Returns why the new process has ended.
    fn failure(&mut self) -> String {
        let (mut why, taken) = (self.new.failure(), self.tally.taken());
        if taken > 0 {
            why += &format!(
                ". It had taken {}, and they have ended with it",
                count(taken, "session")
            );
        }
        why
    }

    /// Ends the new process, which owns nothing.
    pub(in crate::run) async fn dismiss(self) {
        self.new.end().await;
    }

    /// Asks the new process to stop, because this one does. It lets the sessions finish that it has
    /// taken.
    pub(in crate::run) async fn request_stop(&mut self) {
        self.new.request_stop().await;
    }

    /// Waits until the new process, which was asked to stop, has ended. Ends it at `until`, or when
    /// `hurry` is ready.
    pub(in crate::run) async fn wait_until(self, until: Instant, hurry: impl Future<Output = ()>) {
        self.new.wait_until(until, hurry).await;
    }
}

async fn send_listeners(
    new: &mut NewProcess,
    offered: &[Offered],
    given: Option<&[u8]>,
    sessions: &Sessions,
) -> Result<(), NotSent> {
    new.send(&ToNew::Hello { version: VERSION }, &[], &[]).await?;
    for (group, offered) in offered.iter().enumerate() {
        for listener in offered.descriptors() {
            let message = ToNew::Listener {
                role: offered.role.clone(),
                address: offered.address.clone(),
                group,
            };
            new.send(&message, &[], &[listener]).await?;
        }
    }
    if let Some(given) = given {
        new.send_long(&ToNew::Given, given).await?;
    }
    let last_session = sessions.last_id();
    new.send(&ToNew::Prepare { last_session }, &[], &[]).await
}

/// Sends what the services know. The new process can do without it. Not cancel safe.
async fn send_state(
    new: &mut NewProcess,
    overview: &Overview,
    of: fn(&Service) -> ServiceState,
) -> Result<(), NotSent> {
    for served in overview.services().iter() {
        match of(&served.service).encode() {
            Ok(state) => new.send_long(&ToNew::Service, &state).await?,
            Err(error) => {
                tracing::warn!(%error, service = &*served.service.name, "the state of a service is not handed over");
            }
        }
    }
    Ok(())
}

async fn totals(metrics: &Metrics) -> String {
    // Without them, the counters start again.
    metrics.totals().await.unwrap_or_default()
}

#[cfg(test)]
mod tests;
