//! TLS: certificates, and the ends of encrypted connections.
//!
//! ```text
//!   files ─ certificate ─▶ Pair ─ names ─▶ Pairs ─┐
//!                                                 ├─ server ─▶ Terminator ─ accept ─▶ TlsStream
//!                                   TlsSettings ──┘
//! ```

pub(crate) mod certificate;
pub(crate) mod names;
pub(crate) mod server;
