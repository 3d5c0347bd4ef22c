//! The query of a list of sessions.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use spliceway_protocol::address::canonical;
use spliceway_protocol::rule::canonical_network;

use crate::session::Session;

/// The sessions of one page, if the query does not say how many.
const LIMIT: usize = 100;
pub(super) const LIMIT_MAX: usize = 1000;

/// Which sessions to list.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Query {
    service: Option<String>,
    user: Option<String>,
    client: Option<Client>,
    /// The most sessions to return.
    pub(super) limit: usize,
    /// The slot with which the list begins.
    pub(super) after: usize,
}

/// Which users to list.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UserQuery {
    /// The most users to return.
    pub(super) limit: usize,
    /// The list begins after this name.
    pub(super) after: String,
}

impl UserQuery {
    /// Parses the part of a URI after `?`.
    ///
    /// # Errors
    /// Returns a sentence that says what was expected.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut query = Self {
            limit: LIMIT,
            after: String::new(),
        };
        for (name, value) in url::form_urlencoded::parse(text.as_bytes()) {
            match &*name {
                "limit" => query.limit = limit(&value)?,
                "after" => query.after = value.into_owned(),
                _ => {
                    let name = name.escape_debug();
                    return Err(format!("the query has no `{name}`: use limit and after"));
                }
            }
        }
        Ok(query)
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Client {
    Network(IpNet),
    Address(SocketAddr),
    Unix,
}

impl Query {
    /// Parses the part of a URI after `?`.
    ///
    /// # Errors
    /// Returns a sentence that says what was expected.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut query = Self {
            limit: LIMIT,
            ..Self::default()
        };
        for (name, value) in url::form_urlencoded::parse(text.as_bytes()) {
            match &*name {
                "service" => query.service = Some(value.into_owned()),
                "user" => query.user = Some(value.into_owned()),
                "client" => query.client = Some(Client::parse(&value)?),
                "limit" => query.limit = limit(&value)?,
                "after" => query.after = after(&value)?,
                _ => {
                    return Err(format!(
                        "the query has no `{}`: use service, user, client, limit and after",
                        name.escape_debug()
                    ));
                }
            }
        }
        Ok(query)
    }

    /// Returns whether the list includes this session.
    pub(super) fn selects(&self, session: &Session) -> bool {
        if self
            .service
            .as_ref()
            .is_some_and(|service| **service != *session.service)
        {
            return false;
        }
        if self.user.is_none() && self.client.is_none() {
            return true;
        }
        let facts = session.facts();
        let is_user = |user: &String| facts.user.as_deref() == Some(user);
        let is_client = |client: &Client| client.is(facts.client);
        self.user.as_ref().is_none_or(is_user) && self.client.as_ref().is_none_or(is_client)
    }
}

impl Client {
    fn parse(text: &str) -> Result<Self, String> {
        if text == "unix" {
            return Ok(Self::Unix);
        }
        let network = text.parse().map(|network| Self::Network(canonical_network(network)));
        let network = network.or_else(|_| text.parse().map(|ip: IpAddr| Self::Network(ip.to_canonical().into())));
        let address = text.parse().map(|address| Self::Address(canonical(address)));
        network.or(address).map_err(|_| {
            wrong(
                "client",
                "an address, an address and a port, a network, or `unix`",
                text,
            )
        })
    }

    fn is(&self, client: Option<SocketAddr>) -> bool {
        match (self, client.map(canonical)) {
            (Self::Unix, None) => true,
            (Self::Network(network), Some(client)) => network.contains(&client.ip()),
            (Self::Address(address), Some(client)) => *address == client,
            _ => false,
        }
    }
}

/// Parses a query that only has flags: `NAME`, `NAME=true` or `NAME=false`. Returns whether each of
/// them is set.
///
/// # Errors
/// Returns a sentence that says what was expected.
pub(super) fn flags<const N: usize>(text: &str, names: [&str; N]) -> Result<[bool; N], String> {
    let mut flags = [false; N];
    for (name, value) in url::form_urlencoded::parse(text.as_bytes()) {
        let Some(index) = names.iter().position(|known| *known == name) else {
            let name = name.escape_debug();
            return Err(format!("the query has no `{name}`: use {}", names.join(" and ")));
        };
        flags[index] = match &*value {
            "" | "true" => true,
            "false" => false,
            _ => return Err(wrong(&name, "true or false", &value)),
        };
    }
    Ok(flags)
}

fn limit(text: &str) -> Result<usize, String> {
    let limit = text.parse().ok().filter(|limit| (1..=LIMIT_MAX).contains(limit));
    limit.ok_or_else(|| wrong("limit", &format!("a number from 1 to {LIMIT_MAX}"), text))
}

fn after(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| wrong("after", "the `next` of a page", text))
}

fn wrong(name: &str, expected: &str, found: &str) -> String {
    let found: Cow<'_, str> = found.chars().take(64).collect();
    format!("`{name}` is `{}`: expected {expected}", found.escape_debug())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_selects_by_service_user_and_client() {
        let sessions = crate::session::Sessions::default();
        let (session, _) = sessions.add("socks5".into(), Some("192.0.2.7:4000".parse().unwrap()));
        session.facts().user = Some("ann b".into());
        for (query, expected) in [
            ("", true),
            ("service=socks5&user=ann+b&client=192.0.2.0/24", true),
            ("user=ann%20b&client=192.0.2.7", true),
            ("client=192.0.2.7:4000", true),
            ("client=::ffff:192.0.2.7", true),
            ("client=::ffff:192.0.2.0/120", true),
            ("client=[::ffff:192.0.2.7]:4000", true),
            ("client=::ffff:192.0.2.8", false),
            ("client=::/0", false),
            ("service=http", false),
            ("user=ann", false),
            ("client=192.0.2.7:4001", false),
            ("client=192.0.2.8", false),
            ("client=unix", false),
        ] {
            assert_eq!(Query::parse(query).unwrap().selects(&session), expected, "{query}");
        }
    }

    #[test]
    fn a_flag_is_set_by_its_name_or_by_true() {
        for (query, expected) in [
            ("", Ok([false, false])),
            ("a", Ok([true, false])),
            ("a=true&b=", Ok([true, true])),
            ("b=false", Ok([false, false])),
            ("c", Err("the query has no `c`: use a and b")),
            ("a=yes", Err("`a` is `yes`: expected true or false")),
        ] {
            assert_eq!(flags(query, ["a", "b"]), expected.map_err(str::to_owned));
        }
    }

    #[test]
    fn a_query_that_is_wrong_says_what_was_expected() {
        for (query, expected) in [
            ("limit=0", "`limit` is `0`: expected a number from 1 to 1000"),
            ("limit=1001", "`limit` is `1001`: expected a number from 1 to 1000"),
            ("after=x", "`after` is `x`: expected the `next` of a page"),
            (
                "client=a",
                "`client` is `a`: expected an address, an address and a port, a network, or `unix`",
            ),
            (
                "order=id",
                "the query has no `order`: use service, user, client, limit and after",
            ),
        ] {
            assert_eq!(Query::parse(query).unwrap_err(), expected);
        }
    }
}
