//! Prints configurations: as a file, as a summary, and as a JSON schema.

use std::fmt::Write;
use std::path::Path;

use serde_json::Value as Json;

#[cfg(test)]
mod tests;

use crate::access::accounts::AllLimits;
use crate::access::policy::TargetRules;
use crate::monitor::admin;
use crate::net::listener::Transport;
use crate::settings::config::schema::Schema;
use crate::settings::config::{AUTH_VARIABLE, Config, File, List, Records, Rule, UPSTREAM_VARIABLE, Value, declared};
use crate::settings::{Kind, ServiceSettings, Settings};

/// Returns the file that means `config`. It has no secrets, and names the variables that must hold
/// them.
pub(super) fn toml(mut config: Config) -> String {
    let mut text = String::new();
    // A relative path in a file starts at the folder of the file.
    config.log.access = config.log.access.take().map(Value::<Records>::absolute);
    for file in [&mut config.acme.state, &mut config.acme.ca] {
        *file = file.take().map(Value::<File>::absolute);
    }
    config.admin.tokens = config.admin.tokens.take().map(Value::<File>::absolute);
    config.limits.quota_file = config.limits.quota_file.take().map(Value::<File>::absolute);
    for service in &mut config.service {
        let service = service.get_mut();
        service.auth_file = service.auth_file.take().map(Value::<File>::absolute);
        for files in [
            &mut service.tls_cert,
            &mut service.tls_key,
            &mut service.tls_client_ca,
            &mut service.tls_client_crl,
        ] {
            *files = files.take().map(List::<File>::absolute);
        }
        service.to_allow = service.to_allow.take().map(List::<Rule>::absolute);
        service.to_deny = service.to_deny.take().map(List::<Rule>::absolute);
        for file in [
            &mut service.tls_dir,
            &mut service.tls_ticket_key,
            &mut service.target_tls_ca,
            &mut service.target_tls_cert,
            &mut service.target_tls_key,
        ] {
            *file = file.take().map(Value::<File>::absolute);
        }
    }
    let file = toml::to_string(&config).unwrap_or_else(|error| format!("# {error}\n"));
    for variable in [AUTH_VARIABLE, UPSTREAM_VARIABLE] {
        if file.contains(&format!("\"${{{variable}}}\"")) {
            let _ = writeln!(
                text,
                "# The environment must have {variable}, because a file has no secrets."
            );
        }
    }
    text + &file
}

/// Returns what the settings of `path` mean, one line for each service.
pub(super) fn summary(path: &Path, settings: &Settings) -> String {
    let services = counted(settings.services.len(), "service");
    let mut text = format!("{}: valid, {services}\n", path.display());
    for service in &settings.services {
        let listen: Vec<_> = service.listen.iter().map(ToString::to_string).collect();
        let _ = write!(
            text,
            "  {}: {} on {}",
            service.name,
            match service.transport {
                Transport::Streams => service.kind.name(),
                Transport::Datagrams => "forward UDP",
            },
            listen.join(", ")
        );
        if !service.dns_listen.is_empty() {
            let dns: Vec<_> = service.dns_listen.iter().map(ToString::to_string).collect();
            let _ = write!(text, ", DNS on {}", dns.join(", "));
        }
        if let Kind::Forward(target) = &service.kind {
            let backends = service.balance.iter().flat_map(|balance| &balance.backends);
            let backends: Vec<_> = backends.map(|backend| &*backend.name).collect();
            let _ = match &service.balance {
                None => write!(text, " to {target}"),
                Some(balance) => write!(text, " to {} ({})", backends.join(", "), balance.policy),
            };
        }
        let TargetRules { allow, deny, .. } = &service.targets.rules;
        for (key, list) in [("to_allow", allow), ("to_deny", deny)] {
            if let Some(list) = list {
                let _ = write!(text, ", {key} with {}", counted(list.len(), "rule"));
            }
        }
        if let Kind::Sni(routes) = &service.kind {
            let _ = write!(text, ", routes: {}", routes.count());
            if routes.count_that_end_tls() > 0 {
                let _ = write!(text, " ({} with tls=terminate)", routes.count_that_end_tls());
            }
            if let Some(target) = routes.default_target() {
                let _ = write!(text, ", default {target}");
            }
            if let Some(target) = routes.silent_target() {
                let _ = write!(text, ", not TLS {target}");
            }
        }
        text.push_str(&guards(service, &settings.users));
        text.push('\n');
    }
    for warning in &settings.warnings {
        let _ = writeln!(text, "warning: {warning}");
    }
    text
}

/// Returns the TLS, the checks and the users of a service in a few words, each after a comma.
fn guards(service: &ServiceSettings, limits: &AllLimits) -> String {
    let mut text = String::new();
    if let Some(tls) = &service.tls {
        let pairs = tls.pairs();
        let mut names = pairs.all().iter().flat_map(|pair| &pair.names);
        let name = match (names.next(), names.count()) {
            (None, _) => String::new(),
            (Some(name), 0) => format!(" ({name})"),
            (Some(name), more) => format!(" ({name} and {})", counted(more, "more name")),
        };
        let _ = write!(text, ", TLS{name}");
    }
    let checks = service.balance.as_ref().and_then(|balance| balance.check.as_ref());
    if let (Some(checks), Some(written)) = (checks, &service.config.check) {
        let _ = write!(text, ", check {} every {:?}", written.text(), checks.interval);
    }
    match &service.users {
        Some(users) => {
            let names = users.names();
            let with_quota = names.iter().filter(|name| limits.has_quota(name)).count();
            let _ = write!(text, ", {}", counted(names.len(), "user"));
            if with_quota > 0 {
                let _ = write!(text, ", {} with a quota", counted(with_quota, "user"));
            }
        }
        None if service.requires_client_certs() => text.push_str(", users by certificate"),
        None if service.clients.networks().is_some() => {
            let names = service.user_names().map_or(0, |names| names.len());
            let _ = write!(text, ", {} by network", counted(names, "user"));
        }
        None if service.kind.protocols().is_empty() => {}
        None if service.config.allow.is_some() => text.push_str(", no users: every client that allow permits"),
        None => text.push_str(", no users: every client"),
    }
    text
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Returns the JSON schema of a file, as text.
pub(super) fn schema() -> String {
    text_of(&described())
}

/// Returns the OpenAPI document of the admin socket, as text.
pub(super) fn openapi() -> String {
    let service = described()["properties"]["service"]["items"].take();
    text_of(&admin::openapi(service))
}

fn text_of(json: &Json) -> String {
    serde_json::to_string_pretty(json).unwrap_or_default() + "\n"
}

/// Returns the JSON schema of a file. The help of a key is that of its flag.
fn described() -> Json {
    let tables = Schema::new();
    let mut schema = tables.json().clone();
    schema["title"] = "spliceway.toml".into();
    schema["required"] = vec!["service"].into();
    schema["properties"]["service"]["items"]["required"] = vec!["kind", "listen"].into();
    schema["properties"]["user"]["items"]["required"] = vec!["name"].into();
    schema["properties"]["client"]["items"]["required"] = vec!["name", "from"].into();
    for (path, key) in tables.all() {
        if let Some(declared) = declared(&path, &key) {
            let pointer = path.split('.').fold(String::new(), |pointer, table| {
                let items = match table {
                    "service" | "backend" | "client" => "/items",
                    // The table of [defaults.user] is no array.
                    "user" if pointer.is_empty() => "/items",
                    _ => "",
                };
                format!("{pointer}/properties/{table}{items}")
            });
            if let Some(Json::Object(key)) = schema.pointer_mut(&format!("{pointer}/properties/{key}")) {
                key.insert("description".to_owned(), declared.help().into());
            }
        }
    }
    schema
}
