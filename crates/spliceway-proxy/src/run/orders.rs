//! Carries out the orders of operators and signals, while the program serves.
//!
//! ```text
//!            ┌─ reload ──▶ reads, plans ─────────────▶ commits ──────────────┐
//!   idle ────┤                └─ drained meanwhile: refused                  ├──▶ idle
//!     ▲      ├─ upgrade ─▶ a new process prepares ─▶ takes sessions ─▶ end   │
//!     │      │                └─ drained meanwhile: given up                 │
//!     │      └─ drain ───▶ at once, also while something else runs           │
//!     └──────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A stop does not wait for any of them. A reload or an upgrade that is ordered while another one
//! runs waits for a short time.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use spliceway_operator::text::count;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::monitor::control::{By, Command, Done, NotDone, Order, WAITING_MAX};
use crate::monitor::overview::Overview;
use crate::run::change;
use crate::run::drain::{SignalRequest, Signals, serving};
use crate::run::handover::{GiveUp, Handover, Upgrade, Upgraded};
use crate::run::instance::{Changes, Instance, Plan};
use crate::run::notify::Message;
use crate::settings::{Change, Source};

/// The time for which a reload or an upgrade waits for the one before it. The commands of the
/// program wait longer for their answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// The most warnings in an answer. The log has all of them.
const WARNINGS_MAX: usize = 20;

const RELOAD_REFUSED: &str = "the reload is refused, and the previous settings stay in force";

/// What carries out orders.
pub(super) struct Orders<'a> {
    pub(super) source: Arc<Source>,
    pub(super) overview: &'a Overview,
    pub(super) upgrade: &'a Upgrade,
    pub(super) commands: mpsc::Receiver<Command>,
    pub(super) signals: &'a mut Signals,
    /// Reloads and upgrades, each with the time at which it is refused.
    pub(super) waiting: VecDeque<(Instant, Command)>,
}

/// The end of the time in which the program serves.
pub(super) struct End {
    /// When the program was asked to stop.
    pub(super) at: Instant,
    pub(super) next: Next,
}

/// The new process, if there is one.
pub(super) enum Next {
    Nobody,
    /// It has taken over.
    HandedOver(Handover),
    /// The program was asked to stop during an upgrade, before any session was handed over.
    GivenUp(Handover),
    /// The program was asked to stop while sessions were handed over. Both processes have some.
    Interrupted(Handover),
}

impl Orders<'_> {
    /// Carries out orders until the program is asked to stop, a part of it has failed, or a new
    /// process has taken over.
    pub(super) async fn carry_out(mut self, instance: &mut Instance) -> End {
        // Until a process that takes over accepts clients, the one before it carries out orders.
        tokio::select! {
            biased;
            () = self.signals.stop_request() => return self.stop(),
            _ = self.overview.process.health.stopped() => return End::now(Next::Nobody),
            () = self.overview.process.gate.is(true) => {}
        }
        loop {
            let Some(command) = self.next().await else {
                return self.stop();
            };
            match command.order {
                Order::Drain(ref name) => drain(instance, Arc::clone(name), command),
                Order::Change(ref change) => match self.change(instance, change, &command.by).await {
                    Some(changed) => command.answer(changed),
                    None => return self.stop(),
                },
                Order::Reload { end_sessions } => match self.reload(instance, end_sessions, &command.by).await {
                    Some(reloaded) => command.answer(reloaded),
                    None => return self.stop(),
                },
                Order::Upgrade => {
                    if let Some(end) = self.hand_over(instance, command).await {
                        return end;
                    }
                }
            }
        }
    }

    /// Returns the next command. Returns `None` if the program must stop.
    async fn next(&mut self) -> Option<Command> {
        if let Some((_, command)) = self.waiting.pop_front() {
            return Some(command);
        }
        tokio::select! {
            request = self.signals.next() => match request {
                SignalRequest::Stop => None,
                SignalRequest::Reload => Some(Command::of_signal(Order::Reload { end_sessions: false })),
                SignalRequest::Upgrade => Some(Command::of_signal(Order::Upgrade)),
            },
            Some(command) = self.commands.recv() => Some(command),
            _ = self.overview.process.health.stopped() => None,
        }
    }

    fn stop(&self) -> End {
        self.overview.process.health.drain();
        End::now(Next::Nobody)
    }

    /// Reloads, and tells the service manager. Returns what to tell the operator, or `None` if the
    /// program must stop.
    async fn reload(
        &mut self,
        instance: &mut Instance,
        end_sessions: bool,
        by: &By,
    ) -> Option<Result<String, NotDone>> {
        let (overview, manager) = (self.overview, &self.upgrade.manager);
        manager.tell(Message::Reloading).await;
        let plan = read_plan(instance, Arc::clone(&self.source));
        let plan = self.during("a reload", instance, plan).await?;
        let reloaded = put_into_force(instance, overview, plan, by);
        let status = match &reloaded {
            Ok(_) => serving(overview.process.metrics.open()),
            Err(wrong) => format!("the reload is refused: {wrong}"),
        };
        manager.tell(Message::Ready(&status)).await;
        let changes = match reloaded {
            Ok(changes) => changes,
            Err(wrong) => return Some(Err(NotDone::Refused(format!("{RELOAD_REFUSED}: {wrong}")))),
        };
        let warnings = warnings(instance);
        if !end_sessions {
            return Some(Ok(format!("reloaded: {changes}{warnings}")));
        }
        let ended = overview.process.sessions.close_unknown(&instance.users()).await;
        let ended = count(ended, "session");
        tracing::info!("admin: ended {ended} of removed users{by}");
        Some(Ok(format!("reloaded: {changes}; ended {ended}{warnings}")))
    }

    /// Changes services. Returns what to tell the operator, or `None` if the program must stop.
    async fn change(&mut self, instance: &mut Instance, change: &Change, by: &By) -> Option<Result<Done, NotDone>> {
        let what = "a change of services";
        let preparing = change::prepare(instance, change.clone());
        let prepared = match self.during(what, instance, preparing).await? {
            Ok(prepared) => prepared,
            Err(not_done) => return Some(Err(not_done)),
        };
        if change.is_dry_run {
            return Some(Ok(prepared.dry_run()));
        }
        let (done, folder) = match prepared.put_into_force(instance) {
            Ok(done) => done,
            Err(not_done) => return Some(Err(not_done)),
        };
        instance.show(self.overview);
        tracing::info!("admin: {}{by}", done.text);
        if let Some(folder) = folder {
            self.during(what, instance, change::sync(folder)).await?;
        }
        Some(Ok(done))
    }

    /// Waits for `work`, and carries out what need not wait. Returns `None` if the program must
    /// stop.
    async fn during<T>(&mut self, what: &str, instance: &Instance, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                () = self.signals.stop_request() => return None,
                _ = self.overview.process.health.stopped() => return None,
                done = &mut work => return Some(done),
                () = too_late(&self.waiting) => self.refuse_first(what),
                Some(command) = self.commands.recv() => match command.order {
                    Order::Drain(ref name) => drain(instance, Arc::clone(name), command),
                    Order::Reload { .. } | Order::Change(_) | Order::Upgrade => self.wait(command, what),
                },
            }
        }
    }

    /// Hands over. A stop ends the upgrade at every step. The drain of a service ends it, as long
    /// as no session was handed over. Returns `None` if this process serves on.
    async fn hand_over(&mut self, instance: &Instance, command: Command) -> Option<End> {
        let (overview, give_up, mut meanwhile) = (self.overview, Arc::new(GiveUp::new()), Meanwhile::default());
        let upgrading = self.upgrade.run(instance.listeners().collect(), overview, &give_up);
        let upgrading = share_quotas(overview, upgrading, &give_up);
        let upgraded = self.during_upgrade(upgrading, &give_up, &mut meanwhile).await;
        let Meanwhile { stopped, drains } = meanwhile;
        let why = match (upgraded, stopped) {
            (Upgraded::Done(handover, summary), None) => {
                tracing::info!("handed over: {summary}{}", command.by);
                for (_, command) in drains {
                    let why = "the program has handed over to a new process: ask that one".to_owned();
                    command.answer(Err::<Done, _>(NotDone::Busy(why)));
                }
                command.answer(Ok(format!("handed over: {summary}")));
                overview.process.set_handed_over();
                overview.process.health.drain();
                return Some(End::now(Next::HandedOver(handover)));
            }
            (upgraded, Some(at)) => {
                let next = Next::after(upgraded, give_up.undoes_all());
                return Some(End { at, next });
            }
            (Upgraded::GivenUp(handover), None) => {
                if let Some(handover) = handover {
                    handover.dismiss().await;
                }
                let drained = drains.first().map_or("a service", |(name, _)| &**name);
                format!("{drained} was drained meanwhile, and the new process would accept its clients: try again")
            }
            (Upgraded::Failed(why), None) => why,
        };
        overview.process.accounts.share(false).await;
        overview.process.metrics.upgraded(false);
        let why = format!("the upgrade failed, and this process serves on: {why}");
        tracing::error!("{why}{}", command.by);
        for (name, command) in drains {
            drain(instance, name, command);
        }
        command.answer(Err::<Done, _>(NotDone::Refused(why)));
        None
    }

    /// Waits for an upgrade, and notes what is ordered meanwhile.
    async fn during_upgrade(
        &mut self,
        upgrading: impl Future<Output = Upgraded>,
        give_up: &GiveUp,
        meanwhile: &mut Meanwhile,
    ) -> Upgraded {
        let mut upgrading = pin!(upgrading);
        loop {
            tokio::select! {
                biased;
                () = self.signals.stop_request() => {
                    match meanwhile.stopped {
                        None => tracing::info!("asked to stop during an upgrade: it is given up"),
                        Some(_) => self.signals.hurry_later(),
                    }
                    meanwhile.stopped.get_or_insert_with(Instant::now);
                    self.overview.process.health.drain();
                    give_up.request();
                }
                upgraded = &mut upgrading => return upgraded,
                () = too_late(&self.waiting) => self.refuse_first("an upgrade"),
                Some(command) = self.commands.recv() => match command.order {
                    Order::Drain(ref name) => {
                        let name = Arc::clone(name);
                        if give_up.undoes_all() {
                            give_up.request();
                        }
                        meanwhile.drains.push((name, command));
                    }
                    Order::Reload { .. } | Order::Change(_) | Order::Upgrade => self.wait(command, "an upgrade"),
                },
            }
        }
    }

    /// Lets a reload or an upgrade wait for a short time.
    fn wait(&mut self, command: Command, runs: &str) {
        if self.waiting.len() < WAITING_MAX {
            self.waiting.push_back((Instant::now() + PATIENCE, command));
        } else {
            command.answer(Err::<Done, _>(busy(runs)));
        }
    }

    fn refuse_first(&mut self, runs: &str) {
        if let Some((_, command)) = self.waiting.pop_front() {
            command.answer(Err::<Done, _>(busy(runs)));
        }
    }
}

impl Next {
    /// Returns what is left of an upgrade when the program is asked to stop. `undoes_all` says
    /// that no session was handed over.
    fn after(upgraded: Upgraded, undoes_all: bool) -> Self {
        match upgraded {
            Upgraded::GivenUp(Some(handover)) if undoes_all => Self::GivenUp(handover),
            // The stop may come when the new process already accepts clients.
            Upgraded::GivenUp(Some(handover)) | Upgraded::Done(handover, _) => Self::Interrupted(handover),
            Upgraded::GivenUp(None) | Upgraded::Failed(_) => Self::Nobody,
        }
    }
}

impl End {
    fn now(next: Next) -> Self {
        let at = Instant::now();
        Self { at, next }
    }
}

/// What was ordered during an upgrade.
#[derive(Default)]
struct Meanwhile {
    /// When the program was asked to stop.
    stopped: Option<Instant>,
    /// The services to drain.
    drains: Vec<(Arc<str>, Command)>,
}

fn busy(runs: &str) -> NotDone {
    NotDone::Busy(format!("{runs} runs: try again when it has ended"))
}

/// Waits until the first command has waited too long.
async fn too_late(waiting: &VecDeque<(Instant, Command)>) {
    match waiting.front() {
        Some((until, _)) => sleep_until(*until).await,
        None => std::future::pending().await,
    }
}

/// Returns the warnings about the settings in force, each after the end of a line.
fn warnings(instance: &Instance) -> String {
    let all = instance.settings().map_or(&[][..], |settings| &settings.warnings);
    let shown = all
        .iter()
        .take(WARNINGS_MAX)
        .map(|warning| format!("\nwarning: {warning}"));
    let mut text: String = shown.collect();
    if all.len() > WARNINGS_MAX {
        let more = count(all.len() - WARNINGS_MAX, "more warning");
        text.push_str(&format!("\nwarning: the log has {more}"));
    }
    text
}

/// Closes the listeners of a service at once, and answers when they are closed.
fn drain(instance: &Instance, name: Arc<str>, command: Command) {
    let closed = instance.drain(&name, &command.by);
    tokio::spawn(async move {
        closed.await;
        command.answer(Ok(format!("{name} accepts no new clients")));
    });
}

/// Reads the source again, and plans what it needs. Cancel safe.
async fn read_plan(instance: &Instance, source: Arc<Source>) -> Result<Plan, String> {
    // Files have the other services.
    let given = instance.settings().map(|settings| settings.origin.given().transient());
    // Files may be on a slow disk.
    let settings = tokio::task::spawn_blocking(move || source.settings(given.unwrap_or_default())).await;
    let settings = settings.unwrap_or_else(|error| Err(format!("reading it failed: {error}")))?;
    let hidden = settings.hidden.clone();
    let plan = instance.plan(settings).await;
    plan.map_err(|error| hidden.in_text(&error.to_string()))
}

/// Puts a plan into force if it is right in every part.
fn put_into_force(
    instance: &mut Instance,
    overview: &Overview,
    plan: Result<Plan, String>,
    by: &By,
) -> Result<Changes, String> {
    let plan = plan.and_then(|plan| match instance.drained_since(&plan) {
        Some(name) => Err(format!(
            "{name} was drained meanwhile: reload again to open its listeners"
        )),
        None => Ok(plan),
    });
    instance.process().metrics.reloaded(plan.is_ok());
    match plan {
        Ok(plan) => {
            let changes = instance.commit(plan);
            instance.show(overview);
            tracing::info!("reloaded: {changes}{by}");
            Ok(changes)
        }
        Err(wrong) => {
            tracing::error!("{RELOAD_REFUSED}: {wrong}{by}");
            Err(wrong)
        }
    }
}

/// Lets both processes save what users have used, and then hands over. The file of the quotas may
/// be on a slow disk, for which a stop does not wait.
async fn share_quotas(overview: &Overview, upgrading: impl Future<Output = Upgraded>, give_up: &GiveUp) -> Upgraded {
    let shared = tokio::select! {
        biased;
        () = overview.process.accounts.share(true) => true,
        () = give_up.requested() => false,
    };
    if shared {
        upgrading.await
    } else {
        Upgraded::GivenUp(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::gate::Gate;
    use crate::kit::health::Health;
    use crate::monitor::control::Control;
    use crate::run::drain::Drain;
    use crate::run::handover::Program;
    use crate::run::notify::Manager;
    use crate::session::Process;

    #[tokio::test(start_paused = true)]
    async fn an_order_that_takes_long_delays_no_drain_and_not_the_answer_to_others() {
        let process = Process::new(Health::new(), Gate::new(true), 1000);
        let mut instance = Instance::new(Arc::clone(&process), Drain::new().0);
        // Port because no client comes that would be relayed there.
        let settings = crate::cli::typed("spliceway forward -l 127.0.0.1:0 -r 127.0.0.1:9");
        let plan = instance.plan(settings.unwrap()).await.unwrap();
        instance.commit(plan);
        let overview = Overview::new(process);
        let upgrade = Upgrade {
            program: Arc::new(Program::of_this_process().unwrap()),
            manager: Arc::new(Manager::from_environment(false)),
            monitors: Vec::new(),
        };
        let (control, commands) = Control::new();
        let mut orders = Orders {
            source: Arc::new(Source::Files("/nowhere".into())),
            overview: &overview,
            upgrade: &upgrade,
            commands,
            signals: &mut Signals::new(true).unwrap(),
            waiting: VecDeque::new(),
        };
        let (settings, before) = (
            crate::cli::typed("spliceway forward -l 127.0.0.1:0 -r 127.0.0.1:9"),
            Instant::now(),
        );
        let plan = instance.plan(settings.unwrap()).await.unwrap();
        let (end, ends) = tokio::sync::oneshot::channel();
        let operator = async {
            let drained = control.order(Order::Drain("forward".into()), By::default()).await;
            assert_eq!(drained, Ok("forward accepts no new clients".to_owned().into()));
            assert_eq!(before.elapsed(), Duration::ZERO);
            let reload = control
                .order(Order::Reload { end_sessions: false }, By::default())
                .await;
            let why = "a reload runs: try again when it has ended".to_owned();
            assert_eq!(reload, Err(NotDone::Busy(why)));
            assert_eq!(before.elapsed(), PATIENCE);
            end.send(()).unwrap();
        };
        let (ended, ()) = tokio::join!(orders.during("a reload", &instance, ends), operator);
        assert_eq!(ended, Some(Ok(())));
        // The listeners of the plan are closed now.
        let wrong = put_into_force(&mut instance, &overview, Ok(plan), &By::default()).unwrap_err();
        assert!(wrong.starts_with("forward was drained meanwhile"), "{wrong}");
    }
}
