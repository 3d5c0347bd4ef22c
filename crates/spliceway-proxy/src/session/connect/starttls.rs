//! Asks a target for TLS in the protocol of the client, which has asked this program.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::Connecting;
use crate::kit::outcome::{ConnectFailure, Outcome, SessionEnd};
use crate::kit::tls_failure::TlsFailure;
use crate::reach::dial::Dialed;
use crate::session::departure::{Finish, departed};
use crate::session::guard::Guard;
use spliceway_protocol::sniff::POSTGRES_TLS;

/// The answer of a server that agrees.
const AGREED: [u8; 1] = *b"S";

impl Connecting {
    /// Asks the target for TLS, and waits for its answer within the connect timeout. The client has
    /// an answer already, so a target that does not agree ends the session.
    pub(in crate::session) async fn ask_for_tls(&mut self, dialed: &mut Dialed, guard: &Guard) -> Result<(), Outcome> {
        let request = [&self.introduction()[..], &POSTGRES_TLS].concat();
        self.header = None;
        dialed.is_new = false;
        let exchange = async {
            dialed.stream.write_all(&request).await?;
            dialed.stream.flush().await?;
            let mut answer = [0];
            dialed.stream.read_exact(&mut answer).await?;
            io::Result::Ok(answer)
        };
        let answer = tokio::select! {
            biased;
            answer = timeout(self.service.settings.timeouts.connect, exchange) => answer,
            left = departed(&self.client, Finish::Waits) => return Err(left),
        };
        let failed = |failure| SessionEnd::ConnectFailed(ConnectFailure::Tls(failure));
        match answer {
            Ok(Ok(AGREED)) if dialed.early.is_empty() => {
                guard.sent_ahead(request.len() as u64);
                self.ahead += request.len() as u64;
                Ok(())
            }
            Ok(Ok(_)) => {
                let why = "the target does not agree to TLS";
                Err(Outcome::because(failed(TlsFailure::Missing), &why))
            }
            Ok(Err(error)) => Err(Outcome::because(failed(TlsFailure::Closed), &error)),
            Err(_) => Err(failed(TlsFailure::Timeout).into()),
        }
    }
}
