//! Ends the TLS of an admitted client.

use std::sync::Arc;

use rustls::Error;
use tokio::time::timeout_at;

use super::admit::{Admitted, HANDSHAKE_BUFFER_BYTES};
use super::client::Client;
use super::guard::Guard;
use super::handshake::TlsStart;
use super::linger::lingering_close;
use super::tls_facts::TlsFacts;
use crate::kit::outcome::{Outcome, SessionEnd};
use crate::kit::refusal::Refusal;
use crate::kit::tls_error::Peer;
use crate::net::records::Records;
use crate::net::stream::Stream;
use crate::net::tls_stream::TlsStream;
use crate::tls::client_cert::{BadClientCert, BadClientCertKind};
use crate::tls::counts::Failure;
use crate::tls::failure::HandshakeError;
use crate::tls::server::{Refused, Terminator};
use spliceway_protocol::proxy;

impl Admitted {
    /// Shakes hands with the client, within the handshake timeout. What the client sends from then
    /// on is read in clear text.
    pub(super) async fn end_tls(
        self,
        terminator: &Terminator,
        TlsStart { began, head, protocol }: TlsStart,
        guard: &Guard,
    ) -> Result<Self, Outcome> {
        let deadline = began + guard.service().settings.timeouts.handshake;
        let counts = terminator.counts();
        // The record has the name, also if the handshake fails.
        let stated = |name: &str| guard.session().facts().server_name = Some(name.into());
        let reader = self.client.into_reader();
        let records = if terminator.uses_kernel() && matches!(reader.get_ref(), Stream::Tcp(_)) {
            Records::followed(reader, &head)
        } else {
            Records::unseen(reader)
        };
        let keys = records.secrets().map(|secrets| Arc::clone(secrets) as _);
        let accept = terminator.accept(head, records, protocol.as_deref(), keys, stated);
        let (stream, agreed) = match timeout_at(deadline, accept).await {
            Ok(Ok(accepted)) => accepted,
            Ok(Err(Refused { error, stream })) => {
                if let Some(failure) = Failure::of(&error) {
                    counts.failed(failure);
                }
                let outcome = outcome(&error);
                record(error, guard);
                if let Some(mut client) = stream {
                    // A client of TLS 1.3 sends its request before it can know that it is refused.
                    lingering_close(&mut client, &[]).await;
                }
                return Err(outcome);
            }
            Err(_) => {
                counts.failed(Failure::Timeout);
                return Err(SessionEnd::Denied(Refusal::HandshakeTimeout).into());
            }
        };
        terminator.succeeded(&agreed);
        guard.service().process.metrics.shook_hands(began.elapsed());
        let stream = TlsStream::new(stream, Peer::Client);
        let is_truncated = stream.truncation();
        let facts = TlsFacts {
            agreed: Some(agreed),
            shown: None,
            is_truncated,
        };
        let mut addresses = self.addresses;
        // What a balancer has stated is about TLS that ends there, and not here.
        match guard.service().send_proxy {
            Some(proxy::Version::V2Tls) => addresses.tlvs = facts.tlvs(&addresses.tlvs),
            Some(proxy::Version::V2) => addresses.tlvs = proxy::without_tls(&addresses.tlvs),
            Some(proxy::Version::V1) | None => {}
        }
        guard.set_tls(facts);
        Ok(Self {
            addresses,
            client: Client::with_capacity(HANDSHAKE_BUFFER_BYTES, Stream::Tls(Box::new(stream))),
            ..self
        })
    }
}

/// Records what a client has shown whose handshake failed.
fn record(error: HandshakeError, guard: &Guard) {
    if let HandshakeError::ClientCert(BadClientCert { shown, .. }) = error {
        guard.set_tls(TlsFacts {
            shown,
            ..TlsFacts::default()
        });
    }
}

fn outcome(error: &HandshakeError) -> Outcome {
    let end = match error {
        HandshakeError::Gone => return SessionEnd::ClientEof.into(),
        HandshakeError::Validated(_) => SessionEnd::ClientEof,
        HandshakeError::NoCertificate => SessionEnd::Denied(Refusal::TlsNoCertificate),
        HandshakeError::Failed(_) => SessionEnd::ResetByClient,
        HandshakeError::UnknownName(_) => SessionEnd::Denied(Refusal::TlsName),
        HandshakeError::ClientCert(bad) => SessionEnd::Denied(match bad.kind() {
            BadClientCertKind::None => Refusal::TlsClientNone,
            BadClientCertKind::Revoked => Refusal::TlsClientRevoked,
            BadClientCertKind::NotPermitted => Refusal::TlsClientRule,
            BadClientCertKind::Invalid => Refusal::TlsClientCert,
        }),
        HandshakeError::Tls(tls) if matches!(tls.error, Error::AlertReceived(_)) => {
            SessionEnd::Denied(Refusal::TlsAlert)
        }
        HandshakeError::NotTls(_) | HandshakeError::LongHello(_) | HandshakeError::Tls(_) => {
            SessionEnd::Denied(Refusal::TlsHandshake)
        }
    };
    Outcome::because(end, error)
}
