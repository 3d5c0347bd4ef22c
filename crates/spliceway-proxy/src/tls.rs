//! TLS: certificates, and the server's end of encrypted connections.
//!
//! ```text
//!   files ─ certificate ─▶ Pair ─ names ─▶ Pairs ─┐
//!                                                 ├─ server ─▶ Terminator ─ accept ─▶ TlsStream
//!                                ServerSettings ──┘
//! ```

pub(crate) mod certificate;
pub(crate) mod names;
pub(crate) mod server;
