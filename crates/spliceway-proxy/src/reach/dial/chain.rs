//! Connects through a chain of upstream proxies. Each proxy is asked to connect to the next one,
//! and the last proxy is asked to connect to the target.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout_at};

use super::dialer::{Dialed, Dialer};
use super::error::{DialError, UpstreamFault};
use super::request::{Caller, Passage, Purpose};
use super::resolver::LookupError;
use super::upstream::{Scheme, UpstreamProxy};
use crate::kit::tls_error::TlsError;
use spliceway_protocol::address::Target;
use spliceway_protocol::client::{self, Handshake, Language, Step};

/// The buffer space for each read of a proxy's answer. It bounds the size of [`Dialed::early`].
const READ_BYTES: usize = 2 << 10;

impl Dialer {
    /// Connects to `target` through all upstream proxies. If the last proxy accepts only addresses,
    /// the addresses of a name are tried in turn, each with its own connection.
    pub(super) async fn dial_through(
        &self,
        passage: Passage,
        target: &Target,
        via: &str,
        caller: Caller,
    ) -> Result<Dialed, DialError> {
        let proxies = &self.settings.upstreams;
        let takes_addresses = proxies.last().is_some_and(|last| last.scheme == Scheme::Socks5);
        let (name, targets) = match target {
            Target::Name(name, port) if takes_addresses => {
                let (name, addresses) = self.look_up(name, *port, Purpose::Target(None), caller).await?;
                (Some(name), addresses.into_iter().map(Target::Ip).collect())
            }
            target => (None, vec![target.clone()]),
        };
        let mut failed = None;
        for target in &targets {
            match self
                .connect_through_all(passage, target, name.as_deref(), via, caller)
                .await
            {
                // As in happy eyeballs, a denial is reported rather than another failure.
                Err(error) if error.is_of_the_target() && Instant::now() < caller.deadline => {
                    failed = failed
                        .filter(|before: &DialError| before.denied().is_some())
                        .or(Some(error));
                }
                done => return done,
            }
        }
        Err(failed.unwrap_or(DialError::Unresolved(LookupError::NoAddress)))
    }

    async fn connect_through_all(
        &self,
        passage: Passage,
        target: &Target,
        name: Option<&str>,
        via: &str,
        caller: Caller,
    ) -> Result<Dialed, DialError> {
        // If the last proxy looks up a name, its addresses cannot be checked here. A target address
        // can be checked.
        self.policy.check_passed_on(name, target)?;
        let proxies = &self.settings.upstreams;
        let connected = self.connect(&proxies[0].address, Purpose::Proxy, caller).await;
        let dialed = connected.map_err(|error| proxies[0].unreachable(error))?;
        let mut dialed = self.secured(dialed, &proxies[0], caller).await?;
        for (proxy, next) in proxies.iter().zip(&proxies[1..]) {
            let connected = self.connect_to_next(&mut dialed, proxy, next, via, caller).await;
            connected.map_err(|error| next.unreachable(error))?;
            dialed = self.secured(dialed, next, caller).await?;
        }
        let last = &proxies[proxies.len() - 1];
        if passage == Passage::Request && last.scheme == Scheme::Http {
            dialed.proxy = Some(Box::new(last.clone()));
            return Ok(dialed);
        }
        request_connection(&mut dialed, last, target, via, caller.deadline).await?;
        Ok(dialed)
    }

    /// Speaks TLS to the proxy at the other end, if the operator says so.
    async fn secured(&self, dialed: Dialed, proxy: &UpstreamProxy, caller: Caller) -> Result<Dialed, DialError> {
        if !proxy.is_tls {
            return Ok(dialed);
        }
        Box::pin(self.begin_tls_to_proxy(dialed, proxy, caller.deadline)).await
    }

    async fn connect_to_next(
        &self,
        dialed: &mut Dialed,
        proxy: &UpstreamProxy,
        next: &UpstreamProxy,
        via: &str,
        caller: Caller,
    ) -> Result<(), DialError> {
        match &next.address {
            Target::Name(name, port) if proxy.scheme == Scheme::Socks5 => {
                let (_, addresses) = self.look_up(name, *port, Purpose::Proxy, caller).await?;
                request_connection(dialed, proxy, &Target::Ip(addresses[0]), via, caller.deadline).await
            }
            address => request_connection(dialed, proxy, address, via, caller.deadline).await,
        }
    }
}

impl UpstreamProxy {
    pub(super) fn fault(&self, fault: UpstreamFault) -> DialError {
        DialError::Upstream(self.to_string().into(), fault)
    }

    fn unreachable(&self, error: DialError) -> DialError {
        self.fault(UpstreamFault::Unreachable(Box::new(error)))
    }
}

/// Asks `proxy`, at the other end of `dialed`, to connect to `target`.
async fn request_connection(
    dialed: &mut Dialed,
    proxy: &UpstreamProxy,
    target: &Target,
    via: &str,
    deadline: Instant,
) -> Result<(), DialError> {
    let connected = timeout_at(deadline, shake_hands(dialed, proxy, target, via)).await;
    connected
        .unwrap_or(Err(UpstreamFault::Silent))
        .map_err(|fault| proxy.fault(fault))
}

async fn shake_hands(
    dialed: &mut Dialed,
    proxy: &UpstreamProxy,
    target: &Target,
    via: &str,
) -> Result<(), UpstreamFault> {
    let language = match proxy.scheme {
        Scheme::Socks5 | Scheme::Socks5h => Language::Socks5,
        Scheme::Http => Language::Http,
    };
    let (mut handshake, first) = Handshake::start(language, target, proxy.credentials.as_ref(), via)?;
    dialed.is_new = false;
    dialed.stream.write_all(&first).await?;
    dialed.stream.flush().await?;
    loop {
        let mut left = &dialed.early[..];
        let step = handshake.feed(&mut left)?;
        let taken = dialed.early.len() - left.len();
        dialed.early.drain(..taken);
        match step {
            Step::Connected => return Ok(()),
            Step::Send(bytes) => {
                dialed.stream.write_all(&bytes).await?;
                dialed.stream.flush().await?;
            }
            Step::Wait => {
                dialed.early.reserve(READ_BYTES);
                if dialed.stream.read_buf(&mut dialed.early).await? == 0 {
                    return Err(UpstreamFault::Closed);
                }
            }
        }
    }
}

impl From<client::Error> for UpstreamFault {
    fn from(error: client::Error) -> Self {
        Self::Answered(error)
    }
}

impl From<io::Error> for UpstreamFault {
    fn from(error: io::Error) -> Self {
        match error.downcast::<TlsError>() {
            // A proxy of TLS 1.3 refuses the certificate after the handshake.
            Ok(tls) => Self::Tls(tls.error.into()),
            Err(error) => Self::Io(error),
        }
    }
}

#[cfg(test)]
mod tests;
