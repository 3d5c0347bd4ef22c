//! Tests of printed configurations, of the schema, and of the documents about keys.

use std::sync::Arc;

use clap::Parser;

use super::*;
use crate::cli::Cli;
use crate::settings::config;
use crate::settings::{Depth, Given, Origin, Settings, Source, settle};

/// Returns the settings that a file means, without what the operator has written.
fn settings_of(toml: &str) -> String {
    let path = std::env::temp_dir().join(format!("spliceway-print-{}-{:p}", std::process::id(), toml));
    std::fs::write(&path, toml).unwrap();
    let environment = |name: &str| match name {
        "SPLICEWAY_AUTH" => Ok("ann:wonderland".to_owned()),
        "SPLICEWAY_UPSTREAM_PROXY" => Ok("socks5://a:b%24%7B@192.0.2.1 http://192.0.2.2:3128".to_owned()),
        _ => Err("is not defined"),
    };
    let settings = Source::Files(path.clone());
    let settings = settings.settings_with(Given::default(), &environment, Depth::Settings);
    std::fs::remove_file(&path).unwrap();
    shown(settings.unwrap_or_else(|wrong| panic!("{wrong}: {toml}")))
}

fn shown(mut settings: Settings) -> String {
    settings.warnings.clear();
    settings.origin = Arc::new(Origin::CommandLine);
    for service in &mut settings.services {
        Arc::get_mut(service).unwrap().config = config::Service::default();
    }
    format!("{settings:?}")
}

#[test]
fn the_printed_file_means_what_the_command_line_means() {
    for line in [
        "-l :80 -r example.com:80",
        "-l :8000-8009 -r [2001:db8::1]:9000-9009 --nofile 64",
        "-l unix:/run/${a}.sock,mode=0660 -r example.com:80",
        "-l :80 -r a.example:80,weight=3 -r [2001:db8::1]:80,backup -r unix:/run/a --balance p2c",
        "-l :80 -r srv:_http._tcp.a.example,max-conns=9 -r a.example:80 --each-address --queue 0 --eject-after 0",
        "-l :80 -r a.example:80 --check send:PING\\r\\n --check-expect +PONG --check-rise 1 --slow-start 0",
        "forward -l fd:web -r unix:/run/app.sock --send-proxy v2 --mark 0x64 --bind-interface eth0",
        "sni -l :443 --route A.example=[2001:db8::1]:443 --route *.b.example/h2=unix:/run/b --handshake-timeout 3s",
        "sni -l :443 --route a.example=a:443 --default-target b:443 --accept-proxy v2 --proxy-from 192.0.2.1",
        "socks5",
        "socks5 -l 127.0.0.1:0 -l [::1]:0 --idle-timeout 0 --half-close-timeout 1h30m --drain-timeout 0",
        "socks5 --handshake-timeout 500ms --connect-timeout 1m --auth-penalty 0 --advertise 192.0.2.1",
        "socks5 --auth ann:wonderland --allow 10.0.0.0/8 --allow 192.0.2.1 --deny 10.1.0.0/16",
        "http -l :3128 --open --allow-private --max-conns 1000 --max-conns-per-ip 10 --max-dials-per-ip 7",
        "http --allow-private=10.1.0.0/16 --allow-private=fd00::/8",
        "http --to-allow *.example.com:80,443 --to-allow [2001:db8::/32]:1-9 --to-deny 10.0.0.0/8 --to-deny :25",
        "http -x socks5://a:b%24%7B@192.0.2.1 -x http://192.0.2.2:3128",
        "http -x socks5h://192.0.2.1 --dns 192.0.2.53,[2001:db8::53]:5353",
        "transparent -l :9040 --allow 10.0.0.0/8 --tproxy --transparent-source",
        "transparent -l :9040 --open --names --to-allow *.example.com:443 --to-deny bad.example.com",
        "sni -l :5432 --route a.test=192.0.2.1:5432 --starttls postgres",
        "transparent -l :9040 --open --names-learn --handshake-timeout 2s",
        "transparent -l 127.0.0.1:9040 --mark 100 -x socks5://192.0.2.1",
        "forward -l :80 -r 192.0.2.1:80 --transparent-source",
        "mixed --accept-proxy any --proxy-from 10.0.0.0/8 --open --dns system",
        "mixed --rate-in 10MB --rate-in 1.5MiB:client --rate-out 500kB:connection --nofile 4096",
        "mixed --auth ann:wonderland --user-quota 10GB/day --user-quota 1TB/month --quota-file /var/lib/q",
        "mixed --auth ann:wonderland --user-max-conns 9 --user-rate-in 1.5MiB --user-rate-out none",
        "mixed --splice off --pipe-size 256k --spin 20us --workers 3 --log-level off --metrics [::1]:9100",
        "mixed --ktls auto --ktls-after 1.5MB",
        "mixed --ktls auto --ktls-after 0",
        "mixed --log-format json --access-log /var/log/a.log --record-interval 5m",
        "mixed --log-format text --access-log - --record-interval 0",
        "mixed --bind-source 192.0.2.9 --bind-source 2001:db8::9 --splice on --pipe-size 1M",
    ] {
        let words = std::iter::once("spliceway").chain(line.split_whitespace());
        let config = Cli::try_parse_from(words).unwrap().config().unwrap();
        let settings = shown(settle(&config, Origin::CommandLine).unwrap());
        let printed = toml(config);
        assert_eq!(settings_of(&printed), settings, "{line}\n{printed}");
        assert!(!printed.contains("wonderland") && !printed.contains("a:b"), "{printed}");
    }
}

/// Returns the first location where `value` does not fit `schema`. It knows what the schema uses.
fn misfit(schema: &Json, value: &Json, location: &str) -> Option<String> {
    let object = schema.as_object().unwrap();
    for (rule, expected) in object {
        let fits = match rule.as_str() {
            "type" => {
                let kind = match value {
                    Json::String(_) => "string",
                    Json::Bool(_) => "boolean",
                    Json::Number(_) => "integer",
                    Json::Array(_) => "array",
                    _ => "object",
                };
                expected == kind
                    || expected
                        .as_array()
                        .is_some_and(|kinds| kinds.iter().any(|one| one == kind))
            }
            "enum" => expected.as_array().unwrap().contains(value),
            "pattern" if expected == r"\S" => value.as_str().is_none_or(|text| !text.trim().is_empty()),
            "pattern" => value.as_str().is_none_or(|text| text.contains("${")),
            "minItems" => value.as_array().is_none_or(|all| !all.is_empty()),
            "minimum" => value.as_i64().is_none_or(|number| number >= expected.as_i64().unwrap()),
            "required" => {
                let mut keys = expected.as_array().unwrap().iter();
                keys.all(|key| value.get(key.as_str().unwrap()).is_some())
            }
            "anyOf" => expected
                .as_array()
                .unwrap()
                .iter()
                .any(|one| misfit(one, value, location).is_none()),
            "items" => {
                let mut all = value.as_array().into_iter().flatten();
                if let Some(misfit) = all.find_map(|value| misfit(expected, value, location)) {
                    return Some(misfit);
                }
                true
            }
            "properties" => {
                for (key, value) in value.as_object().into_iter().flatten() {
                    let location = format!("{location}.{key}");
                    let Some(expected) = expected.get(key) else {
                        return Some(location);
                    };
                    if let Some(misfit) = misfit(expected, value, &location) {
                        return Some(misfit);
                    }
                }
                true
            }
            "additionalProperties" => expected == false,
            "$schema" | "title" | "description" => true,
            rule => panic!("the test does not know the rule {rule}"),
        };
        if !fits {
            return Some(format!("{location}: {rule} {expected}"));
        }
    }
    None
}

fn files_in(folder: &str) -> Vec<(String, Json)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let files = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let files = files.map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|extension| extension == "toml"));
    files
        .filter_map(|path| {
            let text = std::fs::read_to_string(&path).unwrap();
            Some((path.display().to_string(), ::toml::from_str(&text).ok()?))
        })
        .collect()
}

#[test]
fn the_schema_accepts_the_examples_and_rejects_unknown_keys() {
    let schema: Json = serde_json::from_str(&schema()).unwrap();
    let examples = files_in("../../contrib/examples");
    assert_eq!(examples.len(), 7);
    for (path, value) in examples {
        assert_eq!(misfit(&schema, &value, ""), None, "{path}");
    }
    let broken = files_in("tests/it/broken").into_iter();
    let rejected = broken.filter(|(_, value)| misfit(&schema, value, "").is_some());
    let names: Vec<_> = rejected.map(|(path, _)| path).collect();
    for name in [
        "misspelt-key",
        "misspelt-table",
        "level",
        "password.",
        "without-kind",
        "text-for-a-switch",
    ] {
        assert!(names.iter().any(|path| path.contains(name)), "{name}: {names:?}");
    }
}

#[test]
fn every_key_has_a_flag_with_a_help_text_and_a_line_in_the_documents() {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let document = std::fs::read_to_string(document).unwrap();
    for (path, key) in Schema::new().all() {
        let has_flag = declared(&path, &key).is_some_and(|key| !key.help().is_empty());
        assert!(
            has_flag || ["name", "kind", "clients", "from"].contains(&key.as_str()) || path == "service.backend",
            "{path}.{key} has no flag"
        );
        let heading = match path.as_str() {
            "service" | "service.backend" | "user" | "client" => format!("## `[[{path}]]`"),
            path => format!("## `[{path}]`"),
        };
        let section = document
            .split_once(&heading)
            .unwrap_or_else(|| panic!("no {heading}"))
            .1;
        let section = section.split("\n## ").next().unwrap();
        assert!(
            section.contains(&format!("| `{key}` |")),
            "{path}.{key} is not in the documents"
        );
    }
}
