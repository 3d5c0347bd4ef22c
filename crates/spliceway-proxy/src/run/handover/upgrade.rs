//! An upgrade from its order to its result, in the old process.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::give::{Given, Giving, Trouble, start};
use super::{GiveUp, Program};
use crate::monitor::overview::Overview;
use crate::net::adopted::Offered;
use crate::net::listener::SocketFile;
use crate::run::notify::Manager;

/// The time that the last answers of the admin and metrics listeners have, before the old process
/// ends.
const LAST_ANSWERS: Duration = Duration::from_millis(200);

/// What an upgrade needs, beside the listeners of the services.
pub(crate) struct Upgrade {
    pub(crate) program: Arc<Program>,
    pub(crate) manager: Arc<Manager>,
    /// The metrics and admin listeners.
    pub(crate) monitors: Vec<Offered>,
}

/// The result of an upgrade.
pub(crate) enum Upgraded {
    /// The new process serves. The text is a sentence for the operator.
    Done(Giving, String),
    /// This process serves on, for this reason. The new process has ended.
    Failed(String),
    /// This process was asked to give up. The new process was not ended yet, and may own sessions.
    GivenUp(Option<Giving>),
}

impl Upgrade {
    /// Hands over to a new process.
    ///
    /// Not cancel safe: a new process that loses its socket thinks that this one is dead. Use
    /// `give_up` instead.
    pub(crate) async fn run(&self, offered: Vec<Offered>, overview: &Overview, give_up: &Arc<GiveUp>) -> Upgraded {
        let mut giving = match start(&self.program, give_up).await {
            Ok(giving) => giving,
            Err(Some(why)) => return Upgraded::Failed(why),
            Err(None) => return Upgraded::GivenUp(None),
        };
        let offered: Vec<_> = offered.into_iter().chain(self.monitors.iter().cloned()).collect();
        let introduced = giving.introduce(&offered, &overview.process.sessions).await;
        drop(offered);
        if let Err(trouble) = introduced {
            return failed(giving, "the new process did not become ready", trouble).await;
        }
        if let Err(trouble) = giving.serve(overview).await {
            return failed(giving, "the new process does not serve", trouble).await;
        }
        if give_up.is_asked() {
            return Upgraded::GivenUp(Some(giving));
        }
        give_up.moves();
        // This process accepts clients until the sessions have moved. So no new client depends on a
        // process that cannot relay. Then clients wait in the queues of the listeners.
        match giving.sessions(&overview.process.sessions).await {
            Given::All if !give_up.is_asked() => {}
            Given::Ended => return serves_on(giving, overview),
            Given::All | Given::Part => return Upgraded::GivenUp(Some(giving)),
        }
        overview.process.gate.set(false);
        if !giving.accept(overview).await {
            return serves_on(giving, overview);
        }
        SocketFile::leave_all();
        if give_up.is_asked() {
            return Upgraded::GivenUp(Some(giving));
        }
        self.manager.hand_over(giving.pid()).await;
        let left = overview.process.sessions.len();
        let summary = giving.summary(left);
        Upgraded::Done(giving, summary)
    }
}

/// Accepts clients again, when the new process has ended.
fn serves_on(mut giving: Giving, overview: &Overview) -> Upgraded {
    overview.process.gate.set(true);
    let (mut why, moved) = (giving.failure(), giving.moved());
    if moved > 0 {
        why += &format!(". The {moved} sessions that it had taken have ended with it");
    }
    Upgraded::Failed(why)
}

/// Ends a new process that has changed nothing.
async fn failed(mut giving: Giving, step: &str, trouble: Trouble) -> Upgraded {
    if matches!(trouble, Trouble::GivenUp) {
        return Upgraded::GivenUp(Some(giving));
    }
    giving.fail(step, trouble).await;
    Upgraded::Failed(giving.failure())
}

impl Giving {
    /// Gives sessions that begin to relay, while `drain` waits for the last session. Then the new
    /// process gets the last counts.
    pub(crate) async fn finish(mut self, overview: &Overview, drain: impl Future<Output = ()>) {
        let mut drain = std::pin::pin!(drain);
        tokio::select! {
            () = &mut drain => {}
            () = self.late(&overview.process.sessions) => drain.await,
        }
        self.totals(overview).await;
        sleep(LAST_ANSWERS).await;
        self.stays_until_the_end();
    }
}
