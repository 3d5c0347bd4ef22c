//! Tests of command lines and of the settings that they mean.

use clap::Parser;

use super::*;
use crate::settings::Settings;

pub(crate) fn typed(line: &str) -> Result<Settings, String> {
    let cli = Cli::try_parse_from(line.split_whitespace()).map_err(|error| error.to_string())?;
    match cli.action() {
        Ok(Action::Serve(settings, _)) => Ok(*settings),
        Ok(_) => Err("no settings".to_owned()),
        Err(Refused::Usage(problem) | Refused::Files(problem)) => Err(problem),
    }
}

#[test]
fn the_command_line_is_consistent() {
    use clap::CommandFactory;
    Cli::command().debug_assert();
}

/// A default of the help, in brackets.
fn default_in(help: &str) -> Option<&str> {
    let (_, default) = help.rsplit_once("[default: ")?;
    default.strip_suffix(']')
}

#[test]
fn the_help_states_the_defaults() {
    use clap::CommandFactory;
    let mut command = Cli::command();
    command.build();
    let plain = typed("spliceway socks5").unwrap();
    let socks5 = command.find_subcommand("socks5").unwrap();
    let mut count = 0;
    for argument in socks5.get_arguments() {
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        // These flags need the files of a certificate.
        if argument.get_help_heading() == Some("TLS") {
            continue;
        }
        // A longer text explains where a default comes from.
        let Some(default) = default_in(&help).filter(|default| !default.contains(' ')) else {
            continue;
        };
        let flag = argument.get_long().unwrap();
        if flag.starts_with("tls-") || flag == "ktls-after" {
            // These flags need a certificate, or --ktls.
            continue;
        }
        let stated = typed(&format!("spliceway socks5 --{flag} {default}")).unwrap();
        let shown = |settings: &Settings| {
            let mut shown = format!("{settings:?}");
            // What the operator has written differs, and its meaning must not.
            for (first, last) in [("config: Service", "}"), ("written: Config", "warnings:")] {
                let start = shown.find(first).unwrap();
                let end = shown[start..].find(last).unwrap();
                shown.replace_range(start..start + end, "");
            }
            shown
        };
        assert_eq!(shown(&stated), shown(&plain), "--{flag} {default}");
        count += 1;
    }
    assert!(count >= 10, "{count} defaults");
}

#[test]
fn the_bare_form_means_forward() {
    let bare = typed("spliceway -l :80 -l [::1]:81 --to example.com:90").unwrap();
    let long = typed("spliceway forward --listen :80 --listen [::1]:81 --remote example.com:90").unwrap();
    assert_eq!(format!("{bare:?}"), format!("{long:?}"));
    assert_eq!(bare.services[0].listen.len(), 2);
}

#[test]
fn zero_turns_off_only_optional_timeouts() {
    let settings = typed("spliceway socks5 --idle-timeout 0 --half-close-timeout 0").unwrap();
    let timeouts = settings.sessions.timeouts;
    assert_eq!((timeouts.idle, timeouts.half_close), (None, None));
    assert!(typed("spliceway socks5 --connect-timeout 0").is_err());
    assert!(typed("spliceway socks5 --handshake-timeout 0s").is_err());
    assert!(typed("spliceway socks5 --drain-timeout 0").is_ok());
}

#[test]
fn a_port_range_maps_to_an_equal_range_or_to_one_port() {
    assert!(typed("spliceway -l :8000-8009 -r a:9000-9009").is_ok());
    assert!(typed("spliceway -l :8000-8009 -r a:9000").is_ok());
    let wrong = typed("spliceway -l :8000-8009 -r a:9000-9001").unwrap_err();
    assert!(
        wrong.contains("--remote: has 2 ports, and the address to listen on, :8000-8009, has 10"),
        "{wrong}"
    );
    assert!(typed("spliceway -l :8000 -r a:9000-9001").is_err());
}

#[test]
fn accept_proxy_and_proxy_from_require_each_other() {
    assert!(typed("spliceway socks5 --accept-proxy v2").is_err());
    assert!(typed("spliceway socks5 --proxy-from 10.0.0.0/8").is_err());
    assert!(typed("spliceway socks5 --accept-proxy any --proxy-from 10.0.0.0/8 --open").is_ok());
}

#[test]
fn invalid_command_lines_are_refused() {
    for line in [
        "spliceway",
        "spliceway -l :80",
        "spliceway -r example.com:80",
        "spliceway --workers 1",
        "spliceway socks5 --no-such-flag",
        "spliceway socks5 -l 127.0.0.1",
        "spliceway forward -l :80 -r example.com",
        "spliceway forward -l :80 -r example.com:0",
        "spliceway forward -l :80 -r [::1]:0",
        "spliceway forward -l :80 -r a:1 -r a:1",
        "spliceway forward -l :80 -r a:1,weight=257",
        "spliceway forward -l :80 -r a:1 --balance random",
        "spliceway socks5 --workers 0",
        "spliceway socks5 --pipe-size 3K",
        "spliceway socks5 --ktls-after 0",
        "spliceway socks5 --ktls off --ktls-after 0",
        "spliceway socks5 --ktls auto --ktls-after 64",
        "spliceway socks5 --ktls auto --ktls-after 64K",
        "spliceway socks5 --idle-timeout 10",
        "spliceway socks5 --idle-timeout 999999y",
        "spliceway socks5 --allow 10.0.0.0/33",
        "spliceway socks5 --max-conns 0",
        "spliceway socks5 --rate-in 10",
        "spliceway socks5 --rate-in 1MB --rate-in 2MB",
        "spliceway socks5 --user-max-conns 0",
        "spliceway socks5 --user-rate-in 1MB:client",
        "spliceway forward -l :80 -r a:1 --user-max-conns 1",
        "spliceway socks5 --auth ann",
        "spliceway socks5 --auth ann:a --auth-file users",
        "spliceway socks5 --dns nonsense",
        "spliceway socks5 -x ftp://a:1",
        "spliceway socks5 --log-format xml",
        "spliceway socks5 --record-interval 10ms",
    ] {
        assert!(typed(line).is_err(), "{line}");
    }
}
