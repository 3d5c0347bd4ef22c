//! Ends the TLS of an admitted client.

use tokio::time::{Instant, timeout_at};

use super::admit::{Admitted, HANDSHAKE_BUFFER_BYTES};
use super::guard::Guard;
use super::handshake::Client;
use super::tls_facts::TlsFacts;
use crate::kit::outcome::{Outcome, SessionEnd};
use crate::kit::refusal::Refusal;
use crate::net::stream::Stream;
use crate::net::tls_stream::TlsStream;
use crate::tls::counts::Failure;
use crate::tls::server::{HandshakeError, Terminator};

impl Admitted {
    /// Shakes hands with the client, within the handshake timeout. What the client sends from then
    /// on is read in clear text. `head` is what it has sent since `began`.
    pub(super) async fn end_tls(
        self,
        terminator: &Terminator,
        began: Instant,
        head: Vec<u8>,
        guard: &Guard,
    ) -> Result<Self, Outcome> {
        let deadline = began + guard.service().settings.timeouts.handshake;
        let counts = terminator.counts();
        let (stream, agreed) = match timeout_at(deadline, terminator.accept(head, self.client)).await {
            Ok(Ok(accepted)) => accepted,
            Ok(Err(error)) => {
                if let Some(failure) = Failure::of(&error) {
                    counts.failed(failure);
                }
                if let HandshakeError::UnknownName(name) = &error {
                    guard.session().facts().server_name = Some(name.clone());
                }
                return Err(outcome(&error));
            }
            Err(_) => {
                counts.failed(Failure::Timeout);
                return Err(SessionEnd::Denied(Refusal::HandshakeTimeout).into());
            }
        };
        terminator.succeeded(&agreed);
        guard.service().process.metrics.shook_hands(began.elapsed());
        let stream = TlsStream::new(stream);
        let is_truncated = stream.truncation();
        guard.set_tls(TlsFacts { agreed, is_truncated });
        Ok(Self {
            client: Client::with_capacity(HANDSHAKE_BUFFER_BYTES, Stream::Tls(Box::new(stream))),
            ..self
        })
    }
}

fn outcome(error: &HandshakeError) -> Outcome {
    let end = match error {
        HandshakeError::Gone => return SessionEnd::ClientEof.into(),
        HandshakeError::Validated(_) => SessionEnd::ClientEof,
        HandshakeError::NoCertificate => SessionEnd::Denied(Refusal::TlsNoCertificate),
        HandshakeError::Failed(_) => SessionEnd::ResetByClient,
        HandshakeError::UnknownName(_) => SessionEnd::Denied(Refusal::TlsName),
        HandshakeError::Alert(_) => SessionEnd::Denied(Refusal::TlsAlert),
        HandshakeError::LongHello | HandshakeError::Tls(_) => SessionEnd::Denied(Refusal::TlsHandshake),
    };
    Outcome::because(end, error)
}
