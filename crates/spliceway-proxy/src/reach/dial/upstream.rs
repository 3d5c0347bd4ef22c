//! Upstream proxies, as the command line specifies them.

use std::borrow::Cow;
use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use percent_encoding::percent_decode_str;
use url::Url;

use spliceway_protocol::address::{Target, ip_with_zone};
use spliceway_protocol::{Credentials, http};

/// The maximum length of a chain. Every connection needs a handshake with each proxy, within one
/// timeout.
pub(crate) const CHAIN_MAX: usize = 8;
/// The maximum length of a user name and of a password in a SOCKS5 message.
const CREDENTIAL_MAX_BYTES: usize = 255;
/// The port that IANA assigns to SOCKS.
const SOCKS_PORT: u16 = 1080;

const EXPECTED: &str = "expected socks5://[USER:PASSWORD@]HOST[:PORT], socks5h://…, http://… or, with TLS, \
    https://…, socks5+tls://… or socks5h+tls://…";

/// An upstream proxy. `Debug` and `Display` show neither its user nor its password.
#[derive(Clone)]
pub(crate) struct UpstreamProxy {
    pub(super) scheme: Scheme,
    /// Whether the proxy is behind TLS.
    pub(super) is_tls: bool,
    /// The proxy's address, which is never a Unix socket.
    pub(super) address: Target,
    pub(super) credentials: Option<Credentials>,
}

/// The protocol, and whether the proxy looks up names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scheme {
    /// SOCKS5. This program looks up names.
    Socks5,
    /// SOCKS5. The proxy looks up names.
    Socks5h,
    /// HTTP CONNECT. The proxy looks up names.
    Http,
}

/// The schemes of URLs. The flag says whether the proxy is behind TLS.
const SCHEMES: [(&str, Scheme, bool); 6] = [
    ("socks5", Scheme::Socks5, false),
    ("socks5h", Scheme::Socks5h, false),
    ("http", Scheme::Http, false),
    ("socks5+tls", Scheme::Socks5, true),
    ("socks5h+tls", Scheme::Socks5h, true),
    ("https", Scheme::Http, true),
];

/// Compares two settings of the operator, so it need not take constant time.
impl PartialEq for UpstreamProxy {
    fn eq(&self, other: &Self) -> bool {
        let key = |credentials: &Credentials| (credentials.name.clone(), credentials.secret.clone());
        (
            self.scheme,
            self.is_tls,
            &self.address,
            self.credentials.as_ref().map(key),
        ) == (
            other.scheme,
            other.is_tls,
            &other.address,
            other.credentials.as_ref().map(key),
        )
    }
}

impl FromStr for UpstreamProxy {
    type Err = String;

    /// Errors do not repeat the text, because it may contain a password.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let but = |what: &dyn fmt::Display| format!("{EXPECTED}: {what}");
        if !text.contains("://") {
            return Err(format!("the scheme is missing, {EXPECTED}"));
        }
        let (text, zone) = without_zone(text);
        let url = Url::parse(&text).map_err(|error| match error {
            url::ParseError::InvalidPort => but(&"ports are 1 to 65535"),
            error => but(&error),
        })?;
        let (_, scheme, is_tls) = SCHEMES
            .into_iter()
            .find(|(scheme, ..)| *scheme == url.scheme())
            .ok_or_else(|| format!("unknown scheme, {EXPECTED}"))?;
        if !matches!(url.path(), "" | "/") || url.query().is_some() || url.fragment().is_some() {
            return Err(but(&"nothing may follow the port"));
        }
        let host = url.host_str().unwrap_or_default();
        // A URL has brackets around an IPv6 address.
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        let port = url.port_or_known_default().unwrap_or(SOCKS_PORT);
        let address = match zone {
            Some(zone) => ip_with_zone(&format!("{host}%{zone}"), port)
                .map(Target::Ip)
                .map_err(|what| but(&what))?,
            None => Target::named(host, port).ok_or_else(|| but(&"this is not a host name"))?,
        };
        if port == 0 {
            return Err(but(&"ports are 1 to 65535"));
        }
        Ok(Self {
            scheme,
            is_tls,
            address,
            credentials: credentials(&url, scheme).map_err(|what| but(&what))?,
        })
    }
}

impl UpstreamProxy {
    /// Returns whether the proxy is behind TLS.
    pub(crate) fn speaks_tls(&self) -> bool {
        self.is_tls
    }

    /// Returns whether it is an HTTP proxy.
    pub(crate) fn speaks_http(&self) -> bool {
        self.scheme == Scheme::Http
    }

    /// Returns whether the proxy looks up the names of targets, so that their addresses are unknown
    /// here.
    pub(crate) fn looks_up_names(&self) -> bool {
        self.scheme != Scheme::Socks5
    }

    /// Returns the address of the proxy.
    pub(crate) fn address(&self) -> &Target {
        &self.address
    }

    /// Returns the head of a request for this HTTP proxy. `head` is the one for the target. Returns
    /// `None` if HTTP cannot express the user and the password, which the parser of the URL has
    /// checked.
    pub(crate) fn request_head(&self, head: &[u8]) -> Option<Vec<u8>> {
        http::for_proxy(head, self.credentials.as_ref())
    }

    /// Returns whether the proxy is given a user and a password.
    pub(crate) fn has_credentials(&self) -> bool {
        self.credentials.is_some()
    }
}

/// Takes the zone out of the address in a URL, because the parser of URLs accepts none. The zone
/// follows `%25` (RFC 6874), or `%` as in curl.
fn without_zone(text: &str) -> (Cow<'_, str>, Option<&str>) {
    let zone = text.rsplit_once('[').and_then(|(before, host)| {
        let (host, after) = host.split_once(']')?;
        let (ip, zone) = host.split_once('%').filter(|(ip, _)| ip.parse::<Ipv6Addr>().is_ok())?;
        let zone = zone.strip_prefix("25").filter(|zone| !zone.is_empty()).unwrap_or(zone);
        Some((format!("{before}[{ip}]{after}"), zone))
    });
    match zone {
        Some((text, zone)) => (text.into(), Some(zone)),
        None => (text.into(), None),
    }
}

/// Returns the user and password before the `@`, with percent-encoding decoded.
fn credentials(url: &Url, scheme: Scheme) -> Result<Option<Credentials>, &'static str> {
    let decode = |text| -> Box<[u8]> { percent_decode_str(text).collect() };
    let (name, secret) = (decode(url.username()), decode(url.password().unwrap_or_default()));
    if name.is_empty() && url.password().is_none() {
        return Ok(None);
    }
    let fits = |field: &[u8]| (1..=CREDENTIAL_MAX_BYTES).contains(&field.len());
    match scheme {
        Scheme::Http if name.contains(&b':') => Err("the user of an HTTP proxy must not contain a colon"),
        Scheme::Http if name.len() + secret.len() > 2 * CREDENTIAL_MAX_BYTES => {
            Err("user and password have at most 510 bytes together")
        }
        Scheme::Socks5 | Scheme::Socks5h if !fits(&name) || !fits(&secret) => {
            Err("user and password of a SOCKS5 proxy must have 1 to 255 bytes each")
        }
        _ => Ok(Some(Credentials { name, secret })),
    }
}

impl fmt::Display for UpstreamProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_scheme = |(_, scheme, is_tls): &&(&str, Scheme, bool)| (*scheme, *is_tls) == (self.scheme, self.is_tls);
        let scheme = SCHEMES.iter().find(is_scheme).map_or("", |(scheme, ..)| *scheme);
        write!(f, "{scheme}://{}", self.address)
    }
}

impl fmt::Debug for UpstreamProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamProxy")
            .field("url", &format_args!("{self}"))
            .field("has_credentials", &self.credentials.is_some())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> UpstreamProxy {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn each_scheme_is_read_with_its_usual_port() {
        for (text, shown) in [
            ("socks5://127.0.0.1:9050", "socks5://127.0.0.1:9050"),
            ("socks5://127.0.0.1", "socks5://127.0.0.1:1080"),
            ("SOCKS5h://example.com:1", "socks5h://example.com:1"),
            ("http://[2001:db8::1]:3128/", "http://[2001:db8::1]:3128"),
            ("http://proxy.example", "http://proxy.example:80"),
            ("socks5h://[::1]", "socks5h://[::1]:1080"),
            ("socks5://[fe80::1%25lo]:9", "socks5://[fe80::1%1]:9"),
            ("http://[fe80::1%lo]/", "http://[fe80::1%1]:80"),
            ("socks5://[fe80::1%7]:9", "socks5://[fe80::1%7]:9"),
            ("https://proxy.example", "https://proxy.example:443"),
            ("socks5+tls://proxy.example", "socks5+tls://proxy.example:1080"),
            ("socks5h+TLS://[::1]:9", "socks5h+tls://[::1]:9"),
        ] {
            assert_eq!(parsed(text).to_string(), shown);
            assert!(parsed(text).credentials.is_none());
        }
        assert!(matches!(parsed("socks5://127.0.0.1").address, Target::Ip(_)));
    }

    #[test]
    fn credentials_may_hold_any_byte() {
        let proxy = parsed("socks5://us%3Aer:p%40ss%2f%00%ff@example.com:1");
        let credentials = proxy.credentials.unwrap();
        assert_eq!(&*credentials.name, b"us:er");
        assert_eq!(&*credentials.secret, b"p@ss/\0\xff");
        let long = "a".repeat(255);
        let proxy = parsed(&format!("socks5h://{long}:{long}@example.com"));
        assert_eq!(proxy.credentials.unwrap().secret.len(), 255);
        let proxy = parsed("http://user@example.com");
        assert_eq!(proxy.credentials.map(|both| both.secret.len()), Some(0));
    }

    #[test]
    fn neither_output_nor_errors_reveal_the_password() {
        let proxy = parsed("http://somebody:hunter2@example.com:3128");
        let shown = format!("{proxy} {proxy:?}");
        assert!(!shown.contains("hunter2") && !shown.contains("somebody"), "{shown}");
        let long = "x".repeat(256);
        for text in [
            "socks5://somebody:hunter2@".to_owned(),
            "somebody:hunter2@example.com:1080".to_owned(),
            "ftp://somebody:hunter2@example.com".to_owned(),
            "socks5://somebody:hunter2@example.com:99999".to_owned(),
            "socks5://somebody:hunter2@example.com:0".to_owned(),
            "socks5://somebody:hunter2@exa mple.com".to_owned(),
            "socks5://somebody:hunter2@example.com/path".to_owned(),
            "socks5://somebody:hunter2@example.com?query".to_owned(),
            "socks5://somebody@example.com".to_owned(),
            "socks5://somebody:hunter2@[fe80::1%no-such]:9".to_owned(),
            "socks5://:hunter2@example.com".to_owned(),
            format!("socks5://{long}:hunter2@example.com"),
            "http://some%3Abody:hunter2@example.com".to_owned(),
            format!("http://{long}{long}:hunter2@example.com"),
            String::new(),
        ] {
            let error = text.parse::<UpstreamProxy>().unwrap_err();
            assert!(error.contains("expected socks5://"), "{text}: {error}");
            assert!(
                !error.contains("hunter2") && !error.contains("somebody") && !error.contains("xxx"),
                "{error}"
            );
        }
    }
}
