//! Small facts and tools without policy: errors of the system, health, limits, files, time.

pub(crate) mod alive;
pub(crate) mod client_key;
pub(crate) mod clock;
pub(crate) mod created;
pub(crate) mod errno;
pub(crate) mod first_poll;
pub(crate) mod harmless;
pub(crate) mod health;
pub(crate) mod heap;
pub(crate) mod limits;
pub(crate) mod named_file;
pub(crate) mod outcome;
pub(crate) mod pid_file;
pub(crate) mod refusal;
pub(crate) mod replacement;
pub(crate) mod tls_error;
pub(crate) mod tls_failure;
