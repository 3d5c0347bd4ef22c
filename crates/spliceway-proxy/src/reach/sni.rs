//! The routes of TLS clients: which target a client gets for the name and the protocols that it
//! states in its ClientHello.
//!
//! Only the configuration names targets. What a client states selects one of them, and is never
//! looked up.

use std::collections::BTreeMap;
use std::str::FromStr;

use crate::reach::dial::{Destination, TLS_PREFIX};
use crate::tls::client::PeerName;
use spliceway_protocol::address::Target;
use spliceway_protocol::tls::{ClientHello, Refusal};

/// The longest name and the longest label of a name, in bytes (RFC 1035).
const NAME_MAX_BYTES: usize = 253;
const LABEL_MAX_BYTES: usize = 63;
/// The longest name of a protocol, in bytes (RFC 7301).
const PROTOCOL_MAX_BYTES: usize = 255;

/// A route as the operator writes it: `NAME[/PROTOCOL]=TARGET[,tls=terminate]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Route {
    /// A name, or the end of names: a dot and what follows it.
    pattern: Box<str>,
    choice: Choice,
}

/// A target for the clients of one name.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Choice {
    /// The protocol that a client must offer. `None` means any client.
    protocol: Option<Box<[u8]>>,
    target: Destination,
    ends_tls: bool,
}

/// Where a client goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chosen<'a> {
    pub(crate) target: &'a Destination,
    /// Whether the program ends the client's TLS. Otherwise, the target does.
    pub(crate) ends_tls: bool,
    /// The protocol of the route. A program that ends TLS agrees on it.
    pub(crate) protocol: Option<&'a [u8]>,
}

/// The routes of a service.
#[derive(Debug, Clone)]
pub(crate) struct Routes {
    choices: BTreeMap<Box<str>, Vec<Choice>>,
    /// The target of clients that have no route.
    default: Option<Destination>,
    /// The target of clients that do not speak TLS, or send nothing.
    not_tls: Option<Destination>,
    /// The protocol in which clients may ask for TLS.
    starttls: Option<StartTls>,
    count: usize,
}

/// A protocol whose clients ask for TLS before they speak it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StartTls {
    Postgres,
}

impl Routes {
    /// Returns the routes, and those that have the name and the protocol of an earlier one: their
    /// indices, and the earlier targets.
    pub(crate) fn new(routes: Vec<Route>) -> (Self, Vec<(usize, Destination)>) {
        let (count, mut twice) = (routes.len(), Vec::new());
        let mut choices = BTreeMap::<Box<str>, Vec<Choice>>::new();
        for (index, Route { pattern, choice }) in routes.into_iter().enumerate() {
            let choices = choices.entry(pattern).or_default();
            match choices.iter().find(|other| other.protocol == choice.protocol) {
                Some(other) => twice.push((index, other.target.clone())),
                None => choices.push(choice),
            }
        }
        let routes = Self {
            choices,
            default: None,
            not_tls: None,
            starttls: None,
            count,
        };
        (routes, twice)
    }

    /// Sets the targets of clients without a route, and of clients that do not speak TLS.
    pub(crate) fn with_others(mut self, default: Option<Destination>, not_tls: Option<Destination>) -> Self {
        (self.default, self.not_tls) = (default, not_tls);
        self
    }

    /// Sets the protocol in which clients may ask for TLS.
    pub(crate) fn with_starttls(self, starttls: Option<StartTls>) -> Self {
        Self { starttls, ..self }
    }

    pub(crate) fn starttls(&self) -> Option<StartTls> {
        self.starttls
    }

    /// Returns where a client goes: to the target of the most specific name with a route for one of
    /// the client's protocols, or for any protocol. A route for a protocol comes before one for
    /// any.
    ///
    /// # Errors
    /// Returns the reason for a refusal if the client has no route, and there is no default.
    pub(crate) fn choose(&self, hello: &ClientHello) -> Result<Chosen<'_>, Refusal> {
        let mut refusal = match &hello.name {
            None => Refusal::NoName,
            Some(_) => Refusal::UnknownName,
        };
        let name = hello.name.as_deref().unwrap_or_default();
        let ends = name.match_indices('.').map(|(at, _)| &name[at..]);
        for choices in std::iter::once(name)
            .chain(ends)
            .filter_map(|key| self.choices.get(key))
        {
            let offered = |choice: &&Choice| {
                let protocol = choice.protocol.as_ref();
                protocol.is_some_and(|protocol| hello.protocols.contains(protocol))
            };
            let any = || choices.iter().find(|choice| choice.protocol.is_none());
            if let Some(choice) = choices.iter().find(offered).or_else(any) {
                return Ok(Chosen {
                    target: &choice.target,
                    ends_tls: choice.ends_tls,
                    protocol: choice.protocol.as_deref(),
                });
            }
            refusal = Refusal::UnknownProtocol;
        }
        self.default.as_ref().map(Chosen::passed_on).ok_or(refusal)
    }

    /// Returns where a client goes whose first bytes cannot be TLS.
    ///
    /// # Errors
    /// Returns the reason for a refusal if there is no such target, and no default.
    pub(crate) fn choose_without_tls(&self) -> Result<Chosen<'_>, Refusal> {
        let target = self.not_tls.as_ref().or(self.default.as_ref());
        target.map(Chosen::passed_on).ok_or(Refusal::Missing)
    }

    /// Returns the target for a client that sends nothing. The default target does not count: a TLS
    /// server would wait for the client, too.
    pub(crate) fn silent_target(&self) -> Option<&Destination> {
        self.not_tls.as_ref()
    }

    /// Returns the targets of all routes.
    pub(crate) fn targets(&self) -> impl Iterator<Item = &Destination> {
        self.choices.values().flatten().map(|choice| &choice.target)
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Returns the number of routes that terminate TLS.
    pub(crate) fn count_that_end_tls(&self) -> usize {
        self.choices.values().flatten().filter(|choice| choice.ends_tls).count()
    }

    pub(crate) fn default_target(&self) -> Option<&Destination> {
        self.default.as_ref()
    }
}

impl<'a> Chosen<'a> {
    fn passed_on(target: &'a Destination) -> Self {
        Self {
            target,
            ends_tls: false,
            protocol: None,
        }
    }
}

impl Route {
    /// Returns whether the program terminates the TLS of the clients.
    pub(crate) fn ends_tls(&self) -> bool {
        self.choice.ends_tls
    }

    /// Returns a name that has this route.
    pub(crate) fn example(&self) -> String {
        let prefix = if self.pattern.starts_with('.') { "any" } else { "" };
        format!("{prefix}{}", self.pattern)
    }
}

const EXPECTED: &str = "expected NAME=HOST:PORT or *.NAME=HOST:PORT, such as example.com=10.0.0.7:443. \
    A protocol (ALPN) may follow the name: example.com/h2=10.0.0.8:443";

impl FromStr for Route {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (from, target) = text.split_once('=').ok_or(EXPECTED)?;
        let (name, protocol) = match from.split_once('/') {
            Some((name, protocol)) => (name, Some(protocol)),
            None => (from, None),
        };
        if protocol.is_some_and(|protocol| protocol.is_empty() || protocol.len() > PROTOCOL_MAX_BYTES) {
            return Err(EXPECTED.to_owned());
        }
        let (target, ends_tls) = match target.rsplit_once(',') {
            None => (target, false),
            Some((target, "tls=terminate")) => (target, true),
            Some(_) => return Err("expected HOST:PORT or unix:PATH, and then only ,tls=terminate".to_owned()),
        };
        let target = target_of(target)?;
        if target.tls.is_some() && !ends_tls {
            let why = "clients of this route speak TLS to the target themselves: remove tls://, or write \
                       ,tls=terminate after the target";
            return Err(why.to_owned());
        }
        let choice = Choice {
            protocol: protocol.map(|protocol| protocol.as_bytes().into()),
            target,
            ends_tls,
        };
        let pattern = pattern(name)?;
        Ok(Self { pattern, choice })
    }
}

/// Parses a target with one port. `tls://` may stand before it.
pub(crate) fn target_of(text: &str) -> Result<Destination, String> {
    let (text, is_tls) = match text.strip_prefix(TLS_PREFIX) {
        Some(text) => (text, true),
        None => (text, false),
    };
    let target: Target = text.parse()?;
    match target.port() {
        Some(0) => Err("expected a port from 1 to 65535".to_owned()),
        _ => Ok(Destination {
            tls: is_tls.then(|| PeerName::of(&target)),
            target,
        }),
    }
}

/// Returns the key of a name in [`Routes`], in the form in which clients' names are compared.
fn pattern(typed: &str) -> Result<Box<str>, String> {
    let name = typed.strip_suffix('.').unwrap_or(typed);
    let name = name.strip_prefix("*.").unwrap_or(name);
    let is_name = name.len() <= NAME_MAX_BYTES
        && name
            .split('.')
            .all(|label| (1..=LABEL_MAX_BYTES).contains(&label.len()))
        && matches!(Target::named(name, 0), Some(Target::Name(..)));
    let dot = if typed.starts_with("*.") { "." } else { "" };
    match typed {
        "*" => Err("expected a name: the target of all other clients is --default-target".to_owned()),
        _ if !is_name => Err(format!("{EXPECTED}. A name is ASCII (xn--…), and no IP address")),
        _ => Ok(format!("{dot}{}", name.to_ascii_lowercase()).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(all: &[&str], default: Option<&str>) -> Routes {
        let all = all.iter().map(|text| text.parse().unwrap()).collect();
        let default = default.map(|text| target_of(text).unwrap());
        Routes::new(all).0.with_others(default, None)
    }

    fn hello(name: Option<&str>, protocols: &[&str]) -> ClientHello {
        ClientHello {
            name: name.map(Into::into),
            protocols: protocols.iter().map(|protocol| protocol.as_bytes().into()).collect(),
            bytes: Vec::new(),
        }
    }

    const ROUTES: [&str; 8] = [
        "example.com=a:1",
        "Example.com/h2=b:1",
        "example.com/acme-tls/1=c:1",
        "*.example.com=d:1",
        "*.deep.example.com.=e:1",
        "exact.deep.example.com=unix:/run/f=1",
        "picky.example.net/h2=g:1",
        "*.net/h3=h:1",
    ];

    #[test]
    fn the_most_specific_name_and_a_protocol_decide() {
        let routes = routes(&ROUTES, None);
        for (name, protocols, expected) in [
            ("example.com", &[][..], Ok("a:1")),
            ("example.com", &["http/1.1"], Ok("a:1")),
            ("example.com", &["http/1.1", "h2"], Ok("b:1")),
            ("example.com", &["acme-tls/1"], Ok("c:1")),
            // The first route in the order of the configuration.
            ("example.com", &["acme-tls/1", "h2"], Ok("b:1")),
            ("www.example.com", &["h2"], Ok("d:1")),
            ("a.b.c.example.com", &[], Ok("d:1")),
            ("a.deep.example.com", &[], Ok("e:1")),
            ("deep.example.com", &[], Ok("d:1")),
            ("exact.deep.example.com", &[], Ok("unix:/run/f=1")),
            ("picky.example.net", &["h2"], Ok("g:1")),
            ("picky.example.net", &["h3"], Ok("h:1")),
            ("picky.example.net", &["h1"], Err(Refusal::UnknownProtocol)),
            ("example.net", &["h3"], Ok("h:1")),
            ("net", &["h3"], Err(Refusal::UnknownName)),
            ("com", &[], Err(Refusal::UnknownName)),
            ("badexample.com", &[], Err(Refusal::UnknownName)),
            ("example.com.evil.test", &[], Err(Refusal::UnknownName)),
        ] {
            let chosen = routes.choose(&hello(Some(name), protocols));
            let target = chosen.map(|chosen| chosen.target.to_string());
            assert_eq!(target, expected.map(str::to_owned), "{name} {protocols:?}");
        }
        assert_eq!(routes.choose(&hello(None, &["h2"])), Err(Refusal::NoName));
    }

    #[test]
    fn a_route_ends_tls_only_if_it_says_so() {
        let all = [
            "example.com=a:1,tls=terminate",
            "example.com/acme-tls/1=b:1",
            "*.example.com=tls://c:1,tls=terminate",
            "unix.test=unix:/run/d,tls=terminate",
            "plain.test=e:1",
        ];
        let routes = routes(&all, Some("z:1"));
        assert_eq!((routes.count(), routes.count_that_end_tls()), (5, 3));
        for (name, protocols, target, ends_tls) in [
            ("example.com", &["h2"][..], "a:1", true),
            ("example.com", &["acme-tls/1"], "b:1", false),
            ("www.example.com", &["acme-tls/1"], "tls://c:1", true),
            ("unix.test", &[], "unix:/run/d", true),
            ("plain.test", &[], "e:1", false),
            ("other.test", &[], "z:1", false),
        ] {
            let hello = hello(Some(name), protocols);
            let chosen = routes.choose(&hello).unwrap();
            assert_eq!(
                (&*chosen.target.to_string(), chosen.ends_tls),
                (target, ends_tls),
                "{name}"
            );
        }
        assert!(!routes.choose_without_tls().unwrap().ends_tls);
    }

    #[test]
    fn the_default_has_all_clients_without_a_route() {
        let routes = routes(&ROUTES, Some("z:1"));
        for hello in [
            hello(None, &[]),
            hello(Some("other.test"), &["h2"]),
            hello(Some("picky.example.net"), &[]),
        ] {
            assert_eq!(routes.choose(&hello).unwrap().target.to_string(), "z:1");
        }
        let hello = hello(Some("example.com"), &[]);
        assert_eq!(routes.choose(&hello).unwrap().target.to_string(), "a:1");
    }

    #[test]
    fn an_invalid_route_is_refused() {
        let label = "a".repeat(64);
        for text in [
            "",
            "example.com",
            "example.com=",
            "=a:1",
            "/h2=a:1",
            "example.com/=a:1",
            "example.com=a",
            "example.com=a:0",
            "example.com=a:1-2",
            "example.com=a:1,",
            "example.com=a:1,tls=pass",
            "example.com=a:1,tls=terminate,tls=terminate",
            "example.com=a:1,weight=2",
            "example.com=,tls=terminate",
            "example.com=tls://a:1",
            "192.0.2.1=a:1",
            "::1=a:1",
            "[::1]=a:1",
            "*=a:1",
            "*.=a:1",
            ".example.com=a:1",
            "a..b=a:1",
            "a.*.b=a:1",
            "*example.com=a:1",
            "bücher.example=a:1",
            "a b=a:1",
            &format!("{label}.example=a:1"),
            &format!("{}=a:1", "a.".repeat(130)),
            &format!("example.com/{}=a:1", "a".repeat(256)),
        ] {
            assert!(text.parse::<Route>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_same_name_and_protocol_twice_is_refused() {
        for (all, expected) in [
            (["a.test=a:1", "b.test=a:1", "A.test.=b:1"], 2),
            (["*.a.test/h2=a:1", "*.a.test/h2=a:1", "a.test=b:1"], 1),
        ] {
            let all = all.iter().map(|text| text.parse().unwrap()).collect();
            let twice: Vec<_> = Routes::new(all).1.iter().map(|(index, _)| *index).collect();
            assert_eq!(twice, [expected]);
        }
    }
}
