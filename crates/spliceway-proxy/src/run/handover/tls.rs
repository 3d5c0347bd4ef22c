//! The TLS of a session that moves. The kernel has it, so it is TLS 1.3.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustls::{CipherSuite, SupportedCipherSuite};
use serde::{Deserialize, Serialize};
use spliceway::KernelTlsState;

use crate::net::kernel_support;
use crate::net::kernel_tls::{self, Departure};
use crate::net::stream::Stream;
use crate::reach::dial::TargetTls;
use crate::session::{Facts, TlsFacts};
use crate::tls;
use crate::tls::agreed::{Agreed, iana_name};
use crate::tls::client::AgreedWithServer;
use crate::tls::client_name::{ClientCert, Fingerprint};

/// The version of TLS, as records have it.
const VERSION: &str = "1.3";

/// What both processes must know about TLS, except for the secrets.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct TlsMessage {
    /// The ends in the kernel: the client, and the target or the proxy before it.
    ends: [Option<End>; 2],
    /// What the client has agreed on.
    client: Option<WithClient>,
    /// What the target has agreed on.
    target: Option<WithTarget>,
}

/// An end in the kernel.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct End {
    /// The number of the cipher suite (IANA).
    suite: u16,
    /// The length of each secret.
    secret_len: usize,
    sent: i64,
    owes_update: bool,
    has_ended: bool,
    has_notified: bool,
    is_write_over: bool,
    truncated: bool,
}

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct WithClient {
    name: Option<Box<str>>,
    alpn: Option<Box<str>>,
    resumed: bool,
    cert: Option<Cert>,
}

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Cert {
    name: Box<str>,
    is_host: bool,
    common_name: Option<Box<str>>,
    fingerprint: [u8; 32],
}

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct WithTarget {
    alpn: Option<Box<str>>,
    resumed: bool,
    verified: bool,
}

/// Returns the message about the TLS of a session, and the secrets of its ends. Returns `None`
/// while an end cannot move.
pub(super) fn leave(facts: &Facts, ends: [&Stream; 2]) -> Option<(TlsMessage, Vec<u8>)> {
    let (mut message, mut secrets) = (TlsMessage::default(), Vec::new());
    for (end, stream) in message.ends.iter_mut().zip(ends) {
        if let Stream::Kernel(stream) = stream {
            let left = kernel_tls::leave(stream)?;
            left.secrets.iter().for_each(|secret| secrets.extend(secret));
            *end = Some(End::from(&left));
        }
    }
    let agreed = facts.tls.as_ref().and_then(|tls| tls.agreed.as_ref());
    message.client = agreed.map(|agreed| WithClient {
        name: agreed.name.clone(),
        alpn: agreed.alpn.clone(),
        resumed: agreed.is_resumed,
        cert: agreed.client_cert.as_deref().map(|cert| Cert {
            name: cert.name.clone(),
            is_host: cert.is_host,
            common_name: cert.common_name.clone(),
            fingerprint: cert.fingerprint.0,
        }),
    });
    message.target = facts.target_tls.as_ref().map(|tls| WithTarget {
        alpn: tls.agreed.alpn.clone(),
        resumed: tls.agreed.is_resumed,
        verified: tls.agreed.is_verified,
    });
    Some((message, secrets))
}

impl TlsMessage {
    /// Returns the length of all secrets.
    pub(super) fn secrets_len(&self) -> usize {
        let ends = self.ends.iter().flatten();
        ends.map(|end| end.secret_len.saturating_mul(2))
            .fold(0, usize::saturating_add)
    }

    /// Continues the TLS of both ends, and adds what is known about it to the facts. `secrets` has
    /// as many bytes as [`Self::secrets_len`] says.
    pub(super) fn arrive(self, sockets: [Stream; 2], secrets: &[u8], facts: &mut Facts) -> io::Result<[Stream; 2]> {
        let ends = self.ends.each_ref().map(Option::as_ref);
        let are_truncated = ends.map(|end| Arc::new(AtomicBool::new(end.is_some_and(|end| end.truncated))));
        // A stream that is cut at one end must not look complete at the other one.
        let are_both = ends.iter().all(Option::is_some);
        let cut_by = |other: usize| are_both.then(|| Arc::clone(&are_truncated[other]));
        let [client, target] = sockets;
        let (of_client, of_target) = secrets.split_at(ends[0].map_or(0, |end| 2 * end.secret_len));
        let client = continue_end(ends[0], client, of_client, &are_truncated[0], cut_by(1))?;
        let target = continue_end(ends[1], target, of_target, &are_truncated[1], cut_by(0))?;
        facts.in_kernel = ends.map(|end| end.is_some());
        let ciphers = ends.map(|end| end.map_or("", |end| iana_name(CipherSuite::from(end.suite))));
        let [client_truncated, target_truncated] = are_truncated;
        facts.tls = self.client.map(|agreed| {
            Box::new(TlsFacts {
                agreed: Some(agreed.facts(ciphers[0])),
                shown: None,
                is_truncated: client_truncated,
            })
        });
        facts.target_tls = self.target.map(|agreed| {
            Box::new(TargetTls {
                agreed: agreed.facts(ciphers[1]),
                is_truncated: target_truncated,
            })
        });
        Ok([client, target])
    }
}

/// Continues the TLS of one end, if it has TLS.
fn continue_end(
    end: Option<&End>,
    socket: Stream,
    secrets: &[u8],
    is_truncated: &Arc<AtomicBool>,
    is_cut: Option<Arc<AtomicBool>>,
) -> io::Result<Stream> {
    let Some(end) = end else {
        return Ok(socket);
    };
    let Stream::Tcp(socket) = socket else {
        return Err(io::Error::other("TLS is not on TCP"));
    };
    let no_suite = || io::Error::other(format!("this program lacks cipher suite {:#06x} of TLS", end.suite));
    let suite = tls::cipher_suite(end.suite).ok_or_else(no_suite)?;
    let state = end.state(suite).ok_or_else(no_suite)?;
    let (sent, received) = secrets.split_at(end.secret_len);
    let is_truncated = Arc::clone(is_truncated);
    let stream = kernel_tls::arrive(socket, suite, &state, [sent, received], is_truncated, is_cut)?;
    Ok(Stream::Kernel(stream))
}

impl From<&Departure> for End {
    fn from(left: &Departure) -> Self {
        let Departure {
            suite,
            state,
            is_truncated,
            secrets: [sent, _],
        } = left;
        Self {
            suite: (*suite).into(),
            secret_len: sent.len(),
            sent: state.sent,
            owes_update: state.owes_update,
            has_ended: state.has_ended,
            has_notified: state.has_notified,
            is_write_over: state.is_write_over,
            truncated: *is_truncated,
        }
    }
}

impl End {
    fn state(&self, suite: SupportedCipherSuite) -> Option<KernelTlsState> {
        let mut state = KernelTlsState::new(kernel_support::cipher(suite.suite())?);
        state.sent = self.sent;
        (state.owes_update, state.has_ended) = (self.owes_update, self.has_ended);
        (state.has_notified, state.is_write_over) = (self.has_notified, self.is_write_over);
        Some(state)
    }
}

impl WithClient {
    fn facts(self, cipher: &'static str) -> Agreed {
        Agreed {
            version: VERSION,
            cipher,
            name: self.name,
            alpn: self.alpn,
            is_resumed: self.resumed,
            client_cert: self.cert.map(|cert| {
                Box::new(ClientCert {
                    name: cert.name,
                    is_host: cert.is_host,
                    common_name: cert.common_name,
                    fingerprint: Fingerprint(cert.fingerprint),
                })
            }),
        }
    }
}

impl WithTarget {
    fn facts(self, cipher: &'static str) -> AgreedWithServer {
        AgreedWithServer {
            version: VERSION,
            cipher,
            alpn: self.alpn,
            is_resumed: self.resumed,
            is_verified: self.verified,
            // Only checks need it.
            expires: None,
        }
    }
}
