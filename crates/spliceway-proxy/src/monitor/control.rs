//! What operators may ask the run of the program to do: reload the configuration, change services,
//! drain a service, and hand over to a new process.
//!
//! ```text
//!   admin socket ── Command ──▶ orders ── Result ──▶ admin socket
//! ```

use std::fmt;
use std::sync::Arc;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use crate::settings::{Change, Refused};

/// The commands that may wait. An operator waits for the answer before the next command, and the
/// admin socket has as many connections.
pub(crate) const WAITING_MAX: usize = 64;

/// What to do.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Order {
    /// Read the configuration again, and apply it whole or not at all. Then end the sessions of
    /// removed users, if the operator asks for that.
    Reload { end_sessions: bool },
    /// Change services, all of them or none.
    Change(Box<Change>),
    /// Hand listeners and sessions to a new process.
    Upgrade,
    /// Close the listeners of the service with this name. Its sessions may finish.
    Drain(Arc<str>),
}

/// The name of the token of the operator who asks, for the log. There is none for signals and on a
/// socket without tokens. It is shown as what follows the text of a line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct By(pub(crate) Option<Arc<str>>);

/// An order, and the way to answer it, if an operator waits for the answer.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) order: Order,
    pub(crate) by: By,
    answer: Option<oneshot::Sender<Result<Done, NotDone>>>,
}

/// What was done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Done {
    /// A sentence for the operator.
    pub(crate) text: String,
    /// The version of the service that was changed, if it stays.
    pub(crate) version: Option<String>,
    /// Whether this service is new.
    pub(crate) is_new: bool,
}

/// Why an order was not carried out. The text is a sentence for the operator.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotDone {
    /// It was tried, and refused or failed. The state from before is in force.
    Refused(String),
    /// The program does something else, or ends.
    Busy(String),
    /// The change of a service is refused.
    Change(Refused),
}

const ENDS: &str = "this process drains: it lets its sessions finish, and then it ends. It takes no more commands. \
                    If it has handed over to a new process, ask that one";

/// Gives orders. Clones reach the same run.
#[derive(Debug, Clone)]
pub(crate) struct Control(mpsc::Sender<Command>);

impl Control {
    /// Returns the end that gives orders, and the end that receives them.
    pub(crate) fn new() -> (Self, mpsc::Receiver<Command>) {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        (Self(sender), receiver)
    }

    /// Gives an order and waits until it has been carried out. Returns what was done. If this
    /// future is dropped, the order is carried out all the same.
    pub(crate) async fn order(&self, order: Order, by: By) -> Result<Done, NotDone> {
        let (answer, answered) = oneshot::channel();
        let answer = Some(answer);
        self.0
            .try_send(Command { order, by, answer })
            .map_err(|unsent| match unsent {
                TrySendError::Full(_) => NotDone::Busy("the program has other commands to carry out first".to_owned()),
                TrySendError::Closed(_) => NotDone::Busy(ENDS.to_owned()),
            })?;
        answered.await.unwrap_or_else(|_| Err(NotDone::Busy(ENDS.to_owned())))
    }
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(name) => write!(f, " (by {name})"),
            None => Ok(()),
        }
    }
}

impl Command {
    /// Returns the command of a signal, which gets no answer.
    pub(crate) fn of_signal(order: Order) -> Self {
        Self {
            order,
            by: By::default(),
            answer: None,
        }
    }

    pub(crate) fn answer(self, result: Result<impl Into<Done>, NotDone>) {
        if let Some(answer) = self.answer {
            // Nobody waits any more if the operator has left.
            let _ = answer.send(result.map(Into::into));
        }
    }
}

impl From<String> for Done {
    fn from(text: String) -> Self {
        Self {
            text,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_order_after_the_end_of_the_run_is_told_that_the_program_drains() {
        let (control, commands) = Control::new();
        drop(commands);
        let refused = control.order(Order::Upgrade, By::default()).await;
        assert_eq!(refused, Err(NotDone::Busy(ENDS.to_owned())));
    }
}
