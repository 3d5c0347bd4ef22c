//! The reasons for which a service may refuse a client.

use crate::kit::refusal::Refusal;
use crate::settings::{Kind, ServiceSettings};
use spliceway_protocol::Spoken;

/// Returns the reasons for which such a service may refuse a client.
pub(crate) fn refusals(service: &ServiceSettings) -> impl Iterator<Item = Refusal> {
    Refusal::all().filter(|reason| may_have(service, *reason))
}

fn may_have(service: &ServiceSettings, reason: Refusal) -> bool {
    let (kind, accepts_proxy) = (&service.kind, service.accept_proxy.is_some());
    match reason {
        Refusal::Client | Refusal::SessionsOfClient => true,
        Refusal::Loopback
        | Refusal::Private
        | Refusal::LinkLocal
        | Refusal::Cgnat
        | Refusal::Unspecified
        | Refusal::Multicast
        | Refusal::Metadata
        | Refusal::Reserved
        | Refusal::Loop
        | Refusal::TargetRule => true,
        Refusal::Balancer | Refusal::Proxy(_) => accepts_proxy,
        Refusal::TlsHandshake | Refusal::TlsName | Refusal::TlsAlert => service.tls.is_some(),
        Refusal::TlsNoCertificate => service.tls.as_ref().is_some_and(|tls| tls.acme().is_some()),
        Refusal::TlsClientNone => service.requires_client_certs(),
        Refusal::TlsClientCert | Refusal::TlsClientRevoked | Refusal::TlsClientRule => {
            service.tls.as_ref().is_some_and(|tls| tls.clients().is_some())
        }
        Refusal::HandshakeTimeout => {
            accepts_proxy || service.tls.is_some() || !matches!(kind, Kind::Forward(_) | Kind::Transparent(..))
        }
        Refusal::NoBackend | Refusal::QueueFull | Refusal::QueueTimeout => service.balance.is_some(),
        Refusal::DialsOfClient => !kind.has_fixed_targets(),
        Refusal::Users => service.has_users_by_certificate(),
        Refusal::SessionsOfUser | Refusal::Quota => {
            service.users.is_some() || service.has_users_by_certificate() || service.clients.networks().is_some()
        }
        Refusal::WrongPassword | Refusal::AuthPenalty | Refusal::AuthBusy | Refusal::NoPassword => {
            service.users.is_some()
        }
        Refusal::NotRedirected => matches!(kind, Kind::Transparent(..)),
        Refusal::NameMissing => kind.reads_names(),
        Refusal::Sessions | Refusal::Command | Refusal::Socks5(_) => kind.protocols().contains(&Spoken::Socks5),
        Refusal::NotChunked => kind.protocols().contains(&Spoken::Http) || kind.reads_names(),
        Refusal::LastRecipient | Refusal::Http(_) => kind.protocols().contains(&Spoken::Http),
        Refusal::Socks4(_) => kind.protocols().contains(&Spoken::Socks4),
        Refusal::UnknownProtocol => kind.protocols().len() > 1,
        Refusal::Tls(_) => matches!(kind, Kind::Sni(_)),
    }
}
