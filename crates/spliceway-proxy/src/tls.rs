//! TLS: certificates, and both ends of encrypted connections.
//!
//! ```text
//!   files ─ certificate ─▶ Pair ─ names ─▶ Pairs ─┐
//!                                                 ├─ server ─▶ Terminator ─ accept ─▶ TlsStream
//!                                ServerSettings ──┘
//!   files of CAs, ClientRule ─ client_cert ─▶ ClientVerifier ─┘
//!
//!   files ─ verifier ─▶ Verifier ─┐
//!   files ─ certificate ─▶ Pair ──┼─ client ─▶ Originator ─ connect ─▶ TlsStream
//!                ClientSettings ──┘
//! ```
//!
//! The operator has the files, or [`acme`] writes them.

#[cfg_attr(not(feature = "tls"), path = "tls/no_acme.rs")]
pub(crate) mod acme;
pub(crate) mod agreed;
mod anchors;
mod bad_crl;
pub(crate) mod bad_files;
pub(crate) mod certificate;
pub(crate) mod chain;
pub(crate) mod client;
pub(crate) mod client_cert;
pub(crate) mod client_name;
pub(crate) mod client_rule;
pub(crate) mod connect_error;
pub(crate) mod counts;
mod crl;
#[cfg_attr(not(feature = "tls"), path = "tls/no_crypto.rs")]
mod crypto;
pub(crate) mod failure;
pub(crate) mod folder;
pub(crate) mod inspect;
mod issuers;
pub(crate) mod names;
mod ocsp;
mod pem;
mod rsa;
pub(crate) mod server;
mod shared_keys;
mod stamp;
mod ticket_file;
pub(crate) mod tickets;
mod turns;
mod verifier;
mod watched;

use rustls::SupportedCipherSuite;

/// Whether this build has the cryptography of TLS.
pub(crate) const IS_SUPPORTED: bool = cfg!(feature = "tls");

/// Returns the cipher suite with this number (IANA), if this build has it.
pub(crate) fn cipher_suite(number: u16) -> Option<SupportedCipherSuite> {
    let provider = IS_SUPPORTED.then(crypto::provider)?;
    let mut suites = provider.cipher_suites.iter();
    suites.find(|suite| u16::from(suite.suite()) == number).copied()
}
