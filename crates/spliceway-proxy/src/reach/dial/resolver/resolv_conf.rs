//! Reads the text of `/etc/resolv.conf` (resolv.conf(5)). This module does no I/O.

use std::net::SocketAddr;
use std::time::Duration;

use spliceway_protocol::address::ip_with_zone;

use super::ignored::Ignored;

const DNS_PORT: u16 = 53;
/// The maximum number of name servers, as in glibc (`MAXNS`).
const SERVERS_MAX: usize = 3;
/// The maximum number of search domains for a short name. Each of them costs two queries. glibc has
/// no limit, and Kubernetes allows 32.
const SEARCH_MAX: usize = 32;
/// The upper limits of the options, as in glibc.
const NDOTS_MAX: usize = 15;
const TIMEOUT_MAX_SECONDS: usize = 30;
const ATTEMPTS_MAX: usize = 5;

/// The servers to ask, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ResolvConf {
    /// In the order in which they are asked. Never empty.
    pub(super) servers: Vec<SocketAddr>,
    /// The search domains in lower case, each with a final dot.
    pub(super) search: Vec<Box<str>>,
    pub(super) options: Options,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Options {
    /// A name with at least this many dots is first tried as it is.
    pub(super) ndots: usize,
    /// How long a server may take in the first round.
    pub(super) timeout: Duration,
    /// How often all servers are asked. At least 1.
    pub(super) attempts: usize,
    /// Whether lookups begin with a different server each time.
    pub(super) rotate: bool,
    pub(super) edns0: bool,
    /// Whether queries use TCP only.
    pub(super) use_vc: bool,
    pub(super) no_aaaa: bool,
    /// Whether the query for AAAA waits for the answer for A.
    pub(super) single_request: bool,
    /// Whether a name without a dot is tried only with the search domains.
    pub(super) no_tld_query: bool,
    /// Whether later changes of the file are ignored.
    pub(super) no_reload: bool,
}

/// What the file depends on besides its text.
#[derive(Debug, Clone, Default)]
pub(super) struct Surroundings {
    /// The name of this machine. Its domain is searched if the file names none.
    pub(super) hostname: String,
    /// The environment variable LOCALDOMAIN, which replaces the search domains.
    pub(super) local_domain: Option<String>,
    /// The environment variable `RES_OPTIONS`, which adds options.
    pub(super) options: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ndots: 1,
            timeout: Duration::from_secs(5),
            attempts: 2,
            rotate: false,
            edns0: false,
            use_vc: false,
            no_aaaa: false,
            single_request: false,
            no_tld_query: false,
            no_reload: false,
        }
    }
}

impl ResolvConf {
    /// Returns the configuration for these servers, without search domains.
    pub(super) fn with_servers(servers: Vec<SocketAddr>) -> Self {
        Self {
            servers,
            search: Vec::new(),
            options: Options::default(),
        }
    }

    /// Reads the text of the file. A bad line is ignored.
    pub(super) fn parse(text: &[u8], around: &Surroundings, ignored: &mut Ignored) -> Self {
        let mut conf = Self::with_servers(Vec::new());
        let mut search = None;
        for (number, line) in (1..).zip(text.split(|byte| *byte == b'\n')) {
            if let Err(why) = conf.line(line, &mut search) {
                ignored.add(number, why);
            }
        }
        let of_host = || {
            around
                .hostname
                .split_once('.')
                .map(|(_, domain)| vec![domain.to_owned()])
        };
        let from_env = around.local_domain.as_deref().map(words);
        let search = from_env.or(search).or_else(of_host).unwrap_or_default();
        conf.search = search
            .iter()
            .filter_map(|domain| complete(domain))
            .take(SEARCH_MAX)
            .collect();
        for option in around.options.as_deref().unwrap_or_default().split_whitespace() {
            conf.options.set(option);
        }
        if conf.servers.is_empty() {
            conf.servers.push(SocketAddr::from(([127, 0, 0, 1], DNS_PORT)));
        }
        conf
    }

    fn line(&mut self, line: &[u8], search: &mut Option<Vec<String>>) -> Result<(), &'static str> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.iter().all(u8::is_ascii_whitespace) || line.starts_with(b"#") || line.starts_with(b";") {
            return Ok(());
        }
        let line = std::str::from_utf8(line).map_err(|_| "this is not UTF-8")?;
        let (keyword, rest) = line.split_once([' ', '\t']).unwrap_or((line, ""));
        match keyword {
            "nameserver" => {
                let text = rest
                    .trim_start()
                    .split([' ', '\t', ';', '#'])
                    .next()
                    .unwrap_or_default();
                let server = ip_with_zone(text, DNS_PORT)?;
                // Further servers are not an error for glibc either.
                if self.servers.len() < SERVERS_MAX {
                    self.servers.push(server);
                }
            }
            // The last one of these counts.
            "search" => *search = Some(words(rest)),
            "domain" => *search = Some(words(rest).into_iter().take(1).collect()),
            "options" => rest.split_whitespace().for_each(|option| self.options.set(option)),
            // Happy eyeballs sort the addresses.
            "sortlist" => {}
            _ => return Err("the keyword is unknown"),
        }
        Ok(())
    }

    /// Returns how long a server may take in this round, counted from 0. glibc waits for the same
    /// times.
    pub(super) fn patience(&self, round: usize) -> Duration {
        let doubled = self.options.timeout * (1 << round.min(ATTEMPTS_MAX));
        let each = if round == 0 {
            doubled
        } else {
            doubled / u32::try_from(self.servers.len()).unwrap_or(1)
        };
        each.max(Duration::from_secs(1))
    }

    /// Returns the whole names that `host` may stand for, in the order that resolv.conf(5)
    /// specifies. A name with a final dot is complete. A name with enough dots is probably
    /// complete, so it is first tried as it is.
    pub(super) fn whole_names(&self, host: &str) -> Vec<String> {
        if host.ends_with('.') {
            return vec![host.to_owned()];
        }
        let dots = host.matches('.').count();
        let whole = format!("{host}.");
        let mut names: Vec<String> = self
            .search
            .iter()
            .map(|domain| match &**domain {
                "." => whole.clone(),
                domain => format!("{host}.{domain}"),
            })
            .collect();
        if dots >= self.options.ndots {
            names.insert(0, whole);
        } else if dots > 0 || !self.options.no_tld_query || names.is_empty() {
            names.push(whole);
        }
        let mut seen = std::collections::HashSet::new();
        names.retain(|name| seen.insert(name.clone()));
        names
    }
}

impl Options {
    /// Sets one option. Unknown options are ignored, as in glibc.
    fn set(&mut self, option: &str) {
        let (name, value) = option.split_once(':').unwrap_or((option, ""));
        let number = |most: usize| {
            let digits = value
                .find(|digit: char| !digit.is_ascii_digit())
                .map_or(value, |end| &value[..end]);
            // A number that is too long is too high.
            digits
                .parse()
                .unwrap_or(if digits.is_empty() { 0 } else { most })
                .min(most)
        };
        match name {
            "ndots" => self.ndots = number(NDOTS_MAX),
            "timeout" => self.timeout = Duration::from_secs(number(TIMEOUT_MAX_SECONDS) as u64),
            "attempts" => self.attempts = number(ATTEMPTS_MAX).max(1),
            "rotate" => self.rotate = true,
            "edns0" => self.edns0 = true,
            "use-vc" => self.use_vc = true,
            "no-aaaa" => self.no_aaaa = true,
            "single-request" | "single-request-reopen" => self.single_request = true,
            "no-tld-query" | "no_tld_query" => self.no_tld_query = true,
            "no-reload" => self.no_reload = true,
            _ => {}
        }
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Returns the domain in lower case with a final dot.
fn complete(domain: &str) -> Option<Box<str>> {
    let domain = domain.trim_matches('.').to_ascii_lowercase();
    Some((domain + ".").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str, around: &Surroundings) -> ResolvConf {
        ResolvConf::parse(text.as_bytes(), around, &mut Ignored::default())
    }

    fn plain(text: &str) -> ResolvConf {
        parsed(text, &Surroundings::default())
    }

    fn servers(text: &str) -> Vec<String> {
        plain(text).servers.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_first_three_servers_count_in_their_order() {
        let text = "nameserver 192.0.2.1\nnameserver\t2001:db8::1 # no\nnameserver fe80::1%1\nnameserver 192.0.2.4\n";
        assert_eq!(servers(text), ["192.0.2.1:53", "[2001:db8::1]:53", "[fe80::1%1]:53"]);
        assert_eq!(servers("nameserver fe80::1%lo"), ["[fe80::1%1]:53"]);
        assert_eq!(servers(""), ["127.0.0.1:53"]);
    }

    #[test]
    fn a_bad_line_costs_that_line() {
        let text = b"nameserver\xff 192.0.2.1\nnameserver 1.2.3\nnamserver 192.0.2.2\n nameserver 192.0.2.3\n\
            nameserver fe80::1%no-such\nnameserver 192.0.2.9\r\n; comment\n#nameserver 192.0.2.5\n\n";
        let mut ignored = Ignored::default();
        let conf = ResolvConf::parse(text, &Surroundings::default(), &mut ignored);
        assert_eq!(conf.servers, ["192.0.2.9:53".parse().unwrap()]);
        assert_eq!((ignored.count, ignored.first.unwrap().0), (5, 1));
    }

    #[test]
    fn the_last_of_search_and_domain_counts_and_the_environment_wins() {
        for (text, expected) in [
            (
                "domain A.example b\nsearch One.example. two.example",
                &["one.example.", "two.example."][..],
            ),
            ("search one.example\ndomain a.example b.example", &["a.example."]),
            ("search .", &["."]),
            ("", &["corp.example."]),
        ] {
            let mut around = Surroundings {
                hostname: "h.corp.example".into(),
                ..Surroundings::default()
            };
            assert_eq!(
                parsed(text, &around)
                    .search
                    .iter()
                    .map(|domain| &**domain)
                    .collect::<Vec<_>>(),
                expected
            );
            around.local_domain = Some("env.example".into());
            assert_eq!(parsed(text, &around).search, ["env.example.".into()]);
        }
        let many = (0..40).map(|number| format!(" d{number}")).collect::<String>();
        assert_eq!(plain(&format!("search{many}")).search.len(), SEARCH_MAX);
    }

    #[test]
    fn options_have_the_limits_of_glibc() {
        let text =
            "options ndots:99 timeout:99\noptions attempts:99 rotate edns0 use-vc no-aaaa single-request unknown";
        let options = plain(text).options;
        let set = Options {
            ndots: 15,
            timeout: Duration::from_secs(30),
            attempts: 5,
            rotate: true,
            edns0: true,
            use_vc: true,
            no_aaaa: true,
            single_request: true,
            ..Options::default()
        };
        assert_eq!(options, set);
        let around = Surroundings {
            options: Some("ndots:0 attempts:0 no-reload".into()),
            ..Surroundings::default()
        };
        let options = parsed("options ndots:3", &around).options;
        assert_eq!((options.ndots, options.attempts, options.no_reload), (0, 1, true));
    }

    #[test]
    fn servers_get_5_s_in_the_first_round_and_a_share_of_10_s_in_the_next() {
        let seconds = |conf: &ResolvConf, round| conf.patience(round).as_millis();
        let three = plain("nameserver 192.0.2.1\nnameserver 192.0.2.2\nnameserver 192.0.2.3");
        assert_eq!((seconds(&three, 0), seconds(&three, 1)), (5000, 3333));
        let none = plain("options timeout:0");
        assert_eq!((seconds(&none, 0), seconds(&none, 4)), (1000, 1000));
    }

    #[test]
    fn names_are_completed_as_resolv_conf_specifies() {
        let search = "search one.example two.example";
        for (options, host, names) in [
            ("", "a", &["a.one.example.", "a.two.example.", "a."][..]),
            ("", "a.b", &["a.b.", "a.b.one.example.", "a.b.two.example."]),
            ("", "a.", &["a."]),
            (
                "options ndots:2",
                "a.b",
                &["a.b.one.example.", "a.b.two.example.", "a.b."],
            ),
            ("options ndots:0", "a", &["a.", "a.one.example.", "a.two.example."]),
            ("options no-tld-query", "a", &["a.one.example.", "a.two.example."]),
            (
                "options no-tld-query ndots:2",
                "a.b",
                &["a.b.one.example.", "a.b.two.example.", "a.b."],
            ),
            ("search .", "a", &["a."]),
        ] {
            let conf = plain(&format!("{search}\n{options}\n"));
            assert_eq!(conf.whole_names(host), names, "{options} {host}");
        }
    }
}
