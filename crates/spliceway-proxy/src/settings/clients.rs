//! Users by network: the tables of clients, and the services that know users in this way.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use ipnet::IpNet;
use spliceway_protocol::rule::canonical_network;
use toml::Spanned;

use super::faults::{Fault, Faults};
use super::origin::Origin;
use crate::access::policy::{ClientPolicy, Networks};
use crate::net::listener::Transport;
use crate::settings::config::{Client, ClientsArg, Config, Service, User, all, parsed};

/// The tables of all users.
pub(super) struct UserTables {
    /// The tables of users, and then those of clients.
    pub(super) all: Vec<Spanned<User>>,
    /// The networks of the clients, and their names.
    pub(super) networks: Arc<Networks>,
}

impl UserTables {
    /// Returns the tables of a configuration. What is wrong in those of users is found later.
    pub(super) fn new(config: &Config, origin: &Origin, faults: &mut Faults) -> Self {
        let (mut networks, mut known) = (Networks::default(), HashMap::new());
        let mut all = config.user.clone();
        for table in &config.client {
            faults.enter(Some(table.span().start));
            if let Some(name) = name(table, faults) {
                networks.add_name(&name);
                add(&mut networks, &mut known, table.get_ref(), &name, origin, faults);
                all.push(Spanned::new(table.span(), table.get_ref().clone().into_user()));
            }
        }
        faults.enter(None);
        Self {
            all,
            networks: Arc::new(networks),
        }
    }
}

fn name(table: &Spanned<Client>, faults: &mut Faults) -> Option<Arc<str>> {
    let name = table.get_ref().name.as_ref().map(|name| name.parsed().into());
    if name.is_none() {
        let missing = "is missing: expected a name for these clients, such as name = \"build\"";
        faults.add(Fault::new(Some(table.span().start), "name", missing));
    }
    if table.get_ref().from.is_none() {
        let missing = "is missing: expected the networks of these clients, such as from = \"10.1.0.0/16\"";
        faults.add(Fault::new(Some(table.span().start), "from", missing));
    }
    name
}

/// Adds the networks of a table. `known` has the user and the location of each network before.
fn add(
    networks: &mut Networks,
    known: &mut HashMap<IpNet, (Arc<str>, Option<usize>)>,
    table: &Client,
    name: &Arc<str>,
    origin: &Origin,
    faults: &mut Faults,
) {
    for value in table.from.iter().flat_map(|from| from.iter()) {
        let net = canonical_network(value.parsed()).trunc();
        match known.entry(net) {
            Entry::Vacant(entry) => {
                entry.insert((Arc::clone(name), value.at()));
                networks.add(net, name);
            }
            Entry::Occupied(entry) => {
                let (other, at) = entry.get();
                let there = origin.location(*at);
                let problem = format!("{net} is also a network of {other}, at {there}: remove one of them");
                faults.add(Fault::new(value.at(), "from", problem));
            }
        }
    }
}

/// Returns which clients a service serves, and which users they are by their networks.
pub(super) fn client_policy(
    service: &Service,
    transport: Transport,
    networks: &Arc<Networks>,
    faults: &mut Faults,
) -> ClientPolicy {
    let policy = ClientPolicy::new(all(&service.allow), all(&service.deny));
    let Some(key) = &service.clients else {
        return policy;
    };
    let others = [
        ("auth", service.auth.is_some()),
        ("auth_file", service.auth_file.is_some()),
        ("tls_client_ca", service.tls_client_ca.is_some()),
    ];
    for (other, _) in others.into_iter().filter(|(_, is_given)| *is_given) {
        let problem =
            format!("contradicts {other}: a service knows its users by network or by {other}; expected one of them");
        faults.add(Fault::new(key.at(), "clients", problem));
    }
    if transport == Transport::Datagrams {
        let why = "is only for connections, and this service forwards datagrams (--udp)";
        faults.add(Fault::new(key.at(), "clients", why));
    }
    if networks.names().is_empty() && !faults.have_one_of(&["client"]) {
        let why = "needs tables [[client]]: expected at least one, with a name and its networks";
        faults.add(Fault::new(key.at(), "clients", why));
    }
    let is_required = parsed(&service.clients) == Some(ClientsArg::Required);
    policy.with_networks(Arc::clone(networks), is_required)
}

/// Returns a warning if there are tables of clients, and no service uses them.
pub(super) fn without_effect<'a>(
    config: &Config,
    mut services: impl Iterator<Item = &'a ClientPolicy>,
) -> Option<Fault> {
    let first = config.client.first()?;
    let problem = "no service has the key `clients`, so the tables [[client]] have no effect";
    let is_used = services.any(|clients| clients.networks().is_some());
    (!is_used).then(|| Fault::new(Some(first.span().start), "", problem))
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::time::Instant;

    use crate::settings::{Given, Source};

    /// With `--nocapture`, this test prints the time for which a reload reads a file. docs/design
    /// has the command.
    #[test]
    fn ten_thousand_tables_with_a_thousand_names_in_a_file_are_read() {
        const TABLES: usize = 10_000;
        let folder = std::env::temp_dir().join(format!("spliceway-clients-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let names = (0..1000).map(|number| format!("host{number}.example.com:443\n"));
        std::fs::write(folder.join("names"), names.collect::<String>()).unwrap();
        let mut text = String::new();
        for number in 0..TABLES {
            let (high, low) = (number / 256, number % 256);
            let _ = write!(
                text,
                "[[client]]\nname = \"client-{number}\"\nfrom = \"10.{high}.{low}.0/24\"\n\
                 to_allow = [\"@names\", \"own{number}.example.com\"]\nmax_conns = 100\nrate_in = \"10MB\"\n"
            );
        }
        text += "[[service]]\nkind = \"http\"\nlisten = \"127.0.0.1:0\"\nclients = \"required\"\n";
        let path = folder.join("spliceway.toml");
        std::fs::write(&path, &text).unwrap();
        let started = Instant::now();
        let settings = Source::Files(path).settings(Given::default()).unwrap();
        println!("{:?} for {TABLES} tables in {} bytes", started.elapsed(), text.len());
        let service = &settings.services[0];
        assert_eq!(service.user_targets.len(), TABLES);
        let rules = service
            .user_targets
            .iter()
            .map(|user| user.targets.rules.allow.as_ref().unwrap());
        assert!(rules.clone().all(|rules| rules.len() == 1001));
        let shared = rules.clone().zip(rules.skip(1));
        assert!(shared.into_iter().all(|(one, next)| one.shares_a_list_with(next)));
        assert_eq!(settings.users.named.len(), TABLES);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
