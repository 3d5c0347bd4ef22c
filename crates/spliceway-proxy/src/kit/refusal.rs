//! The reasons for which the proxy refuses a client.

use spliceway_protocol::{http, proxy, socks4, socks5, tls};

/// Declares the reasons with their texts, and the parsers that have reasons of their own.
macro_rules! refusals {
    (own { $($(#[$doc:meta])* $name:ident = $text:literal,)* } parsers { $($parser:ident = $reason:ty,)* }) => {
        /// Why the proxy refuses a client. The text is `reason` in metrics and records.
        #[derive(Debug, Clone, Copy)]
        pub(crate) enum Refusal {
            $($(#[$doc])* $name,)*
            $($parser($reason),)*
        }

        impl Refusal {
            /// Returns every reason. Parsers share some texts, such as `version`.
            pub(crate) fn all() -> impl Iterator<Item = Self> {
                let own = [$(Self::$name),*].into_iter();
                own$(.chain(<$reason>::ALL.map(Self::$parser)))*
            }

            pub(crate) fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                    $(Self::$parser(reason) => reason.as_str(),)*
                }
            }
        }

        $(impl From<$reason> for Refusal {
            fn from(reason: $reason) -> Self {
                Self::$parser(reason)
            }
        })*
    };
}

refusals! {
    own {
        /// The address of the client is not allowed.
        Client = "client",
        /// The connection does not come from a trusted load balancer.
        Balancer = "proxy_from",
        /// The client has reached its limit on sessions.
        SessionsOfClient = "max_conns_per_ip",
        /// The client has reached its limit on running dials.
        DialsOfClient = "max_dials_per_ip",
        /// The session needs a second permit, and none is left.
        Sessions = "max_conns",
        /// The user has reached the limit on sessions.
        SessionsOfUser = "user_max_conns",
        /// Too many users have accounts.
        Users = "users_max",
        /// The user has used up a quota.
        Quota = "quota",
        /// The client has connected to the listener itself.
        NotRedirected = "not_redirected",
        /// A redirected client states no name, and no rule allows its address.
        NameMissing = "name_missing",
        HandshakeTimeout = "handshake_timeout",
        /// The client speaks no TLS, or none that the service accepts.
        TlsHandshake = "tls_handshake",
        /// ACME has issued no certificate yet.
        TlsNoCertificate = "tls_no_certificate",
        /// No certificate has the name that the client states.
        TlsName = "tls_name",
        /// The client does not accept the certificate, or ends the handshake for another reason.
        TlsAlert = "tls_alert",
        /// The client has no certificate.
        TlsClientNone = "tls_client_none",
        /// The certificate of the client is not valid.
        TlsClientCert = "tls_client_cert",
        /// The certificate of the client is revoked.
        TlsClientRevoked = "tls_client_revoked",
        /// No rule permits the certificate of the client.
        TlsClientRule = "tls_client_rule",
        /// The first byte belongs to none of the protocols.
        UnknownProtocol = "version",
        WrongPassword = "auth",
        /// The client must wait after failed logins.
        AuthPenalty = "auth_penalty",
        /// Too many other passwords are being checked.
        AuthBusy = "auth_busy",
        NoPassword = "auth_required",
        /// This service does not support the command, which is a known one.
        Command = "command",
        /// The body is not chunked, although the head declares it.
        NotChunked = "framing",
        /// The proxy answers the request itself, as the `Max-Forwards` field demands.
        LastRecipient = "max_forwards",
        /// All backends are ejected, or were tried.
        NoBackend = "no_backend",
        /// All backends are full, and too many clients wait.
        QueueFull = "queue_full",
        /// All backends are full, and no session ended in time.
        QueueTimeout = "queue_timeout",
        // The policy does not allow the target.
        Loopback = "loopback",
        Private = "private",
        LinkLocal = "link_local",
        Cgnat = "cgnat",
        Unspecified = "unspecified",
        Multicast = "multicast",
        Metadata = "metadata",
        Reserved = "reserved",
        Loop = "loop",
        TargetRule = "target_rule",
    }
    parsers {
        Proxy = proxy::Refusal,
        Socks5 = socks5::Refusal,
        Socks4 = socks4::Refusal,
        Http = http::Refusal,
        Tls = tls::Refusal,
    }
}

/// Reasons with one text are one reason, because they have one series.
impl PartialEq for Refusal {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_listed_once() {
        let own = Refusal::all().take_while(|reason| !matches!(reason, Refusal::Proxy(_)));
        let mut labels: Vec<_> = own.map(Refusal::as_str).collect();
        let count = labels.len();
        labels.sort_unstable();
        labels.dedup();
        assert_eq!(labels.len(), count);
        assert!(labels.contains(&"target_rule"));
    }
}
