//! The commands that talk to a running program.

mod conversation;
pub(crate) mod reload;
pub(crate) mod status;
pub(crate) mod top;
pub(crate) mod upgrade_command;
pub(crate) mod users_command;
