//! Certificates that a directory issues by ACME (RFC 8555), and that renew themselves.
//!
//! ```text
//!   schedule ─ due? ─▶ lock the folder ─ order ─▶ NAME.pem ─▶ the watch of files reads it
//!                                         │
//!                     the server validates the name ─▶ challenge (TLS) or monitor (HTTP)
//! ```
//!
//! Processes with one folder share the certificates. One of them tries at a time, and the others
//! read what it has written.

mod challenge;
mod folder;
mod https;
mod order;
mod renew;
mod schedule;
mod settings;

pub(super) use challenge::is_validation;
pub(crate) use folder::StateFolder;
pub(crate) use https::Connect;
pub(crate) use renew::keep;
pub(crate) use settings::AcmeSettings;
