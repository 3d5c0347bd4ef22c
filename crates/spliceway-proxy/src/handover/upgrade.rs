//! An upgrade from its order to its result, in the old process.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::give::{Giving, prepare};
use super::{Gate, Offered, Program};
use crate::instance::Instance;
use crate::listener::SocketFile;
use crate::notify::Manager;
use crate::overview::Overview;

/// The time that the last answers of the admin and metrics listeners have, before the old process
/// ends.
const LAST_ANSWERS: Duration = Duration::from_millis(200);

/// What an upgrade needs, beside the instance.
pub(crate) struct Upgrade {
    pub(crate) program: Program,
    pub(crate) manager: Arc<Manager>,
    /// The metrics and admin listeners.
    pub(crate) monitors: Vec<Offered>,
    pub(crate) gate: Gate,
}

impl Upgrade {
    /// Hands over to a new process. Returns what is left to give, and a sentence for the operator.
    ///
    /// Not cancel safe: a new process that loses its socket thinks that this one is dead.
    ///
    /// # Errors
    /// Returns the reason why this process serves on. The new process has ended.
    pub(crate) async fn run(&self, instance: &Instance, overview: &Overview) -> Result<(Giving, String), String> {
        let offered: Vec<_> = instance.listeners().chain(self.monitors.iter().cloned()).collect();
        let mut giving = prepare(&self.program, &offered, &overview.sessions).await?;
        drop(offered);
        giving.serve(overview).await?;
        // This process accepts clients until the sessions have moved. So no new client depends on a
        // process that cannot relay. Then clients wait in the queues of the listeners.
        let mut takes_over = giving.sessions(&overview.sessions).await;
        if takes_over {
            self.gate.set(false);
            takes_over = giving.accept(overview).await;
        }
        if !takes_over {
            self.gate.set(true);
            let moved = giving.moved();
            return Err(format!(
                "the new process has ended, and {moved} sessions that it had taken"
            ));
        }
        SocketFile::leave_all();
        self.manager.hand_over(giving.pid()).await;
        let left = overview.sessions.len();
        let summary = giving.summary(left);
        Ok((giving, summary))
    }
}

impl Giving {
    /// Gives sessions that begin to relay, while `drain` waits for the last session. Then the new
    /// process gets the last counts.
    pub(crate) async fn finish(mut self, overview: &Overview, drain: impl Future<Output = ()>) {
        let mut drain = std::pin::pin!(drain);
        tokio::select! {
            () = &mut drain => {}
            () = self.late(&overview.sessions) => drain.await,
        }
        self.totals(overview).await;
        sleep(LAST_ANSWERS).await;
        self.stays_until_the_end();
    }
}
