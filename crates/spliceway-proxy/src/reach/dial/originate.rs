//! Begins TLS on a connection to a target or to an upstream proxy.

use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, timeout_at};

use super::dialer::{Dialed, Dialer, TargetTls};
use super::error::{DialError, UpstreamFault};
use super::request::TlsRequest;
use super::upstream::UpstreamProxy;
use crate::kit::tls_error::Peer;
use crate::net::records::Records;
use crate::net::stream::Stream;
use crate::net::tls_stream::TlsStream;
use crate::tls::client::{Originator, PeerName};
use crate::tls::connect_error::ConnectError;
use spliceway_protocol::address::Target;

impl Dialer {
    /// Speaks TLS to the target from now on. A PROXY header goes before it, as in HAProxy.
    pub(super) async fn begin_tls(
        &self,
        dialed: Dialed,
        target: &Target,
        request: TlsRequest<'_>,
        deadline: Instant,
    ) -> Result<Dialed, DialError> {
        let begin = async {
            let mut stream = silent(&dialed.early, dialed.stream)?;
            stream.write_all(request.introduction).await?;
            let originator = originator(self)?;
            originator
                .connect_to_target(
                    records(stream, originator),
                    request.name,
                    request.protocol,
                    request.is_check,
                )
                .await
        };
        let (stream, agreed) = in_time(deadline, begin)
            .await
            .map_err(|error| DialError::Tls(target.clone(), error))?;
        let stream = TlsStream::new(stream, Peer::Target);
        let tls = TargetTls {
            agreed,
            is_truncated: stream.truncation(),
        };
        Ok(Dialed {
            stream: Stream::Tls(Box::new(stream)),
            tls: Some(Box::new(tls)),
            early: Vec::new(),
            ..dialed
        })
    }

    /// Speaks TLS to an upstream proxy from now on.
    pub(super) async fn begin_tls_to_proxy(
        &self,
        dialed: Dialed,
        proxy: &UpstreamProxy,
        deadline: Instant,
    ) -> Result<Dialed, DialError> {
        let name = PeerName::of(&proxy.address);
        let begin = async {
            let stream = silent(&dialed.early, dialed.stream)?;
            let originator = originator(self)?;
            originator.connect_to_proxy(records(stream, originator), &name).await
        };
        let connected = in_time(deadline, begin).await;
        let (stream, _) = connected.map_err(|error| proxy.fault(UpstreamFault::Tls(error)))?;
        Ok(Dialed {
            stream: Stream::Tls(Box::new(TlsStream::new(stream, Peer::Proxy))),
            early: Vec::new(),
            ..dialed
        })
    }
}

/// A client that has waited for a backend since before a reload may get one that speaks TLS, with a
/// dialer that does not.
fn originator(dialer: &Dialer) -> Result<&Originator, ConnectError> {
    dialer
        .originator()
        .map(AsRef::as_ref)
        .ok_or(ConnectError::OlderSettings)
}

/// Returns the reader below TLS. Only a socket of its own can have TLS in the kernel.
fn records(stream: Stream, originator: &Originator) -> Records<Stream> {
    let is_followed = originator.uses_kernel() && matches!(stream, Stream::Tcp(_));
    Records::of_silent(stream, is_followed)
}

/// Returns the stream, unless the other end has sent bytes before the handshake.
fn silent(early: &[u8], stream: Stream) -> Result<Stream, ConnectError> {
    if early.is_empty() {
        Ok(stream)
    } else {
        Err(ConnectError::NotTls)
    }
}

async fn in_time<T>(
    deadline: Instant,
    handshake: impl Future<Output = Result<T, ConnectError>>,
) -> Result<T, ConnectError> {
    timeout_at(deadline, handshake)
        .await
        .unwrap_or(Err(ConnectError::TimedOut))
}
