//! The health of the program: it serves, drains, or has failed.
//!
//! ```text
//!   Serving ── signal ──▶ Draining
//!      │                     │
//!      └─ a task ends ▶ Failed ◀ a task panics
//! ```
//!
//! The accept loops watch the state, `/readyz` shows it, and the exit code depends on it.

use std::fmt;
use std::sync::Arc;
use std::thread;

use tokio::sync::{oneshot, watch};

/// The state of the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    Serving,
    /// The program was asked to stop. Sessions may finish.
    Draining,
    /// A part that must not end while the program serves has ended. The value names the part.
    /// Sessions may finish.
    Failed(Arc<str>),
}

/// The state, shared by all tasks that change it or wait for it.
#[derive(Debug, Clone)]
pub(crate) struct Health(watch::Sender<State>);

/// A guard for a task or thread that the program needs. Dropping the guard while the program
/// serves, or during a panic, marks the program as failed.
#[derive(Debug)]
pub(crate) struct Guard {
    health: Health,
    name: Arc<str>,
    is_released: bool,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(part) => write!(f, "{}: {part}", self.name()),
            _ => f.write_str(self.name()),
        }
    }
}

impl State {
    /// Returns the state without the name of a part, which may have an address or a path in it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Serving => "serving",
            Self::Draining => "draining",
            Self::Failed(_) => "failed",
        }
    }
}

impl Guard {
    /// Ends the guard: the part has ended because it was asked to.
    pub(crate) fn release(mut self) {
        self.is_released = true;
    }
}

impl Health {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(State::Serving))
    }

    pub(crate) fn state(&self) -> State {
        self.0.borrow().clone()
    }

    /// Records that the program was asked to stop.
    pub(crate) fn drain(&self) {
        self.0.send_if_modified(|state| {
            let serves = *state == State::Serving;
            if serves {
                *state = State::Draining;
            }
            serves
        });
    }

    /// Records that this part of the program has ended. The first recorded failure stays.
    pub(crate) fn fail(&self, part: &str) {
        self.0.send_if_modified(|state| {
            let first = !matches!(state, State::Failed(_));
            if first {
                *state = State::Failed(part.into());
            }
            first
        });
    }

    /// Records that this thread is panicking. The panic is a failure only outside a tokio task,
    /// because it then ends a thread that other parts rely on.
    pub(crate) fn panics(&self, thread: &str) {
        if tokio::task::try_id().is_none() {
            self.fail(&format!("the thread {thread}"));
        }
    }

    /// Waits until the program no longer serves and returns its state.
    pub(crate) async fn stopped(&self) -> State {
        let mut state = self.0.subscribe();
        // `self` holds the sender, so the channel stays open.
        let stopped = state.wait_for(|state| *state != State::Serving).await;
        stopped.map_or(State::Draining, |state| state.clone())
    }

    /// Starts a task that runs until the program stops. If the task ends earlier, the program has
    /// failed.
    pub(crate) fn spawn(&self, name: &str, task: impl Future<Output = ()> + Send + 'static) {
        let guard = self.guard(name);
        tokio::spawn(async move {
            let _guard = guard;
            task.await;
        });
    }

    /// Starts a task that runs until `stop` is resolved or dropped. If the task ends earlier, the
    /// program has failed.
    pub(crate) fn spawn_until(
        &self,
        stop: oneshot::Receiver<()>,
        name: &str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let guard = self.guard(name);
        tokio::spawn(async move {
            tokio::select! {
                _ = stop => guard.release(),
                () = task => drop(guard),
            }
        });
    }

    /// Returns a guard for the task or thread that does this part of the work.
    pub(crate) fn guard(&self, name: &str) -> Guard {
        Guard {
            health: self.clone(),
            name: name.into(),
            is_released: false,
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if thread::panicking() || (!self.is_released && self.health.state() == State::Serving) {
            self.health.fail(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guarded_part_that_ends_while_the_program_serves_has_failed() {
        let health = Health::new();
        drop(health.guard("this"));
        drop(health.guard("that"));
        assert_eq!(health.state(), State::Failed("this".into()));
    }

    #[tokio::test]
    async fn a_task_that_is_stopped_has_not_failed() {
        let health = Health::new();
        for is_stopped in [true, false] {
            let (stop, stopped) = oneshot::channel();
            let (ends, ended) = oneshot::channel::<()>();
            let _stop = (!is_stopped).then_some(stop);
            health.spawn_until(stopped, "this", async move {
                let _ends = ends;
                if is_stopped {
                    std::future::pending::<()>().await;
                } else {
                    tokio::task::yield_now().await;
                }
            });
            assert!(ended.await.is_err());
            if is_stopped {
                assert_eq!(health.state(), State::Serving);
            }
        }
        assert_eq!(health.stopped().await, State::Failed("this".into()));
    }

    #[tokio::test]
    async fn a_task_that_ends_or_panics_has_failed() {
        let health = Health::new();
        health.spawn("this", async {});
        assert_eq!(health.stopped().await, State::Failed("this".into()));
        let health = Health::new();
        health.spawn("that", async { panic!("as a test") });
        assert_eq!(health.stopped().await, State::Failed("that".into()));
    }

    #[test]
    fn a_released_part_may_end_while_the_program_serves() {
        let health = Health::new();
        health.guard("this").release();
        assert_eq!(health.state(), State::Serving);
    }

    #[test]
    fn a_guarded_part_may_end_while_the_program_drains() {
        let health = Health::new();
        let guard = health.guard("this");
        health.drain();
        drop(guard);
        assert_eq!(health.state(), State::Draining);
    }

    #[tokio::test]
    async fn a_panic_is_a_failure_outside_a_task_and_not_inside_one() {
        let health = Health::new();
        let session = tokio::spawn({
            let health = health.clone();
            async move { health.panics("worker") }
        });
        session.await.unwrap();
        assert_eq!(health.state(), State::Serving);
        let reaper = std::thread::spawn({
            let health = health.clone();
            move || health.panics("spliceway-pool")
        });
        reaper.join().unwrap();
        assert_eq!(health.state(), State::Failed("the thread spliceway-pool".into()));
    }

    #[tokio::test]
    async fn a_panic_of_a_guarded_task_is_a_failure_in_every_state() {
        let health = Health::new();
        let guard = health.guard("this");
        health.drain();
        let task = tokio::spawn(async move {
            let _guard = guard;
            panic!("as a test");
        });
        assert!(task.await.is_err());
        assert_eq!(health.state(), State::Failed("this".into()));
        health.drain();
        assert_eq!(health.stopped().await, State::Failed("this".into()));
    }
}
