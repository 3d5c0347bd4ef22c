//! Says what to write instead of an address or a number, if the mistake is a usual one.
//!
//! A hint proposes an address only if the parser accepts it.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;
use spliceway_protocol::address::{ListenRange, Target};

use crate::reach::sni::Route;

/// The characters that are around a value in files of other programs, or in formatted text.
const AROUND: &[char] = &['"', '\'', '`', '“', '”', '‘', '’', ';', ',', ' ', '\t'];
/// The protocols that other programs write after a port.
const PROTOCOLS: [&str; 2] = ["/tcp", "/udp"];

/// Options of targets in files of HAProxy and nginx, and those of this program.
const OPTIONS: [&str; 9] = [
    "backup",
    "check",
    "down",
    "inter",
    "max-conns",
    "max_conns",
    "max_fails",
    "maxconn",
    "weight",
];

/// Returns what to write instead of an address to listen on.
pub(super) fn of_listener(text: &str) -> Option<String> {
    let fits = |text: &str| text.parse::<ListenRange>().is_ok();
    if is_port(text) {
        return Some(format!(
            "a port has a colon before it: write 127.0.0.1:{text} for this machine, or :{text} for all addresses"
        ));
    }
    if let Some((port, target)) = text.split_once(':')
        && is_port(port)
        && target.parse::<Target>().is_ok()
    {
        return Some(format!(
            "these are two addresses: listen on :{port}, with the target {target}"
        ));
    }
    if let Some(port) = text.strip_prefix("*:").filter(|port| is_port(port)) {
        return Some(format!("all addresses are written without `*`: write :{port}"));
    }
    if is_host(text) {
        return Some(format!("the port is missing: write {text}:PORT"));
    }
    of_address(text, fits)
}

/// Returns what to write instead of a target.
pub(super) fn of_target(text: &str) -> Option<String> {
    let fits = |text: &str| text.parse::<Target>().is_ok();
    if let Some(port) = text.strip_prefix(':').or(Some(text)).filter(|port| is_port(port)) {
        return Some(format!(
            "the host is missing: write it before the port, such as 127.0.0.1:{port}"
        ));
    }
    let mut words = text.split_whitespace();
    let (first, other) = (words.next()?, words.next());
    if OPTIONS.contains(&first.split('=').next()?) || (fits(first) && other.is_some_and(|other| !fits(other))) {
        return Some("options follow the target and a comma, without spaces, such as 10.0.0.7:80,weight=2".to_owned());
    }
    if let (true, Some(other)) = (fits(first), other) {
        return Some(format!("these are several targets: give {other} as a value of its own"));
    }
    if let Some(address) = text.strip_prefix("https://") {
        let address = address.trim_end_matches('/');
        let port = if fits(address) { "" } else { ":443" };
        let target = format!("tls://{address}{port}");
        return fits(&format!("{address}{port}")).then(|| format!("for TLS to the target, write {target}"));
    }
    if is_host(text) {
        return Some(format!("the port is missing: write {text}:PORT"));
    }
    of_address(text, fits)
}

/// Returns what to write instead of a route.
pub(super) fn of_route(text: &str) -> Option<String> {
    let Some((name, target)) = text.split_once('=') else {
        let route = text.replacen([':', ' '], "=", 1);
        let is_right = route.parse::<Route>().is_ok();
        return is_right.then(|| format!("`=` separates a name from its target: write {route}"));
    };
    let target = target.split(',').next().unwrap_or(target);
    let is_right = format!("{name}=192.0.2.1:443").parse::<Route>().is_ok();
    of_target(target).filter(|_| is_right)
}

/// Returns what to write instead of a network.
pub(super) fn of_network(text: &str) -> Option<String> {
    if let Some(octets) = text.split_once(".*").map(|(octets, _)| octets) {
        let count = octets.split('.').count();
        let net = format!("{octets}{}/{}", ".0".repeat(4_usize.checked_sub(count)?), 8 * count);
        return net
            .parse::<IpNet>()
            .is_ok()
            .then(|| format!("a network has a prefix length: write {net}"));
    }
    let (ip, mask) = text.split_once('/')?;
    let net = IpNet::with_netmask(ip.parse().ok()?, mask.parse::<IpAddr>().ok()?).ok()?;
    Some(format!("a network has a prefix length: write {net}"))
}

/// Returns what to write instead of a number with a unit.
pub(super) fn of_count(text: &str) -> Option<String> {
    let unit = text.trim_start_matches(|digit: char| digit.is_ascii_digit());
    let factor = match unit {
        "k" | "K" => 1_000,
        "m" | "M" => 1_000_000,
        _ => return None,
    };
    let number = text[..text.len() - unit.len()]
        .parse::<u64>()
        .ok()?
        .checked_mul(factor)?;
    Some(format!("a number has no unit: write {number}"))
}

fn of_address(text: &str, fits: impl Fn(&str) -> bool) -> Option<String> {
    let inner = text.trim_matches(AROUND);
    if inner != text && fits(inner) {
        return Some(format!("there are characters around the address: write {inner} alone"));
    }
    if let Some((before, name)) = text.split_once('$')
        && !name.starts_with('{')
    {
        let end = name.find(|char: char| !char.is_ascii_alphanumeric() && char != '_');
        let (name, after) = name.split_at(end.unwrap_or(name.len()));
        return (!name.is_empty()).then(|| format!("a variable has braces: write {before}${{{name}}}{after}"));
    }
    if text.starts_with('/') && fits(&format!("unix:{text}")) {
        return Some(format!("a Unix socket has a prefix: write unix:{text}"));
    }
    if text.starts_with("./") || text.starts_with("../") {
        return Some("a Unix socket has a prefix and an absolute path: write unix:/PATH".to_owned());
    }
    if let Some((scheme, address)) = text.split_once("://") {
        let address = address.trim_end_matches('/');
        let port = match scheme {
            "http" if !fits(address) => ":80",
            "https" if !fits(address) => ":443",
            _ => "",
        };
        let address = format!("{address}{port}");
        let datagrams = if scheme == "udp" {
            ", and set --udp for datagrams"
        } else {
            ""
        };
        return fits(&address).then(|| format!("an address has no scheme: write {address}{datagrams}"));
    }
    if let Some(address) = PROTOCOLS.iter().find_map(|protocol| text.strip_suffix(protocol))
        && fits(address)
    {
        return Some(format!(
            "an address has no protocol: write {address}, and set --udp for datagrams"
        ));
    }
    if let Some((address, _)) = text.split_once('/')
        && fits(address)
    {
        return Some(format!("nothing may follow the port: write {address}"));
    }
    without_brackets(text, fits)
}

/// Returns what to write instead of an IPv6 address without brackets.
fn without_brackets(text: &str, fits: impl Fn(&str) -> bool) -> Option<String> {
    let is_ip = |text: &str| {
        let (ip, zone) = text.split_once('%').unwrap_or((text, ""));
        ip.parse::<Ipv6Addr>().is_ok() && !zone.contains(']')
    };
    if let Some((host, port)) = text.rsplit_once(':')
        && is_ip(host)
        && is_port(port)
    {
        let address = format!("[{host}]:{port}");
        // The interface in the address may be missing on this machine.
        let is_right = fits(&address) || host.contains('%');
        return is_right.then(|| format!("an IPv6 address has brackets: write {address}"));
    }
    let bare = text.trim_matches(['[', ']']);
    is_ip(bare).then(|| format!("the port is missing: write it after brackets, as in [{bare}]:PORT"))
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

/// Returns whether a text is an IPv4 address or a name, without a port.
fn is_host(text: &str) -> bool {
    let has_letters = text.contains(|char: char| !char.is_ascii_digit());
    has_letters && !text.contains(':') && matches!(Target::named(text, 0), Some(Target::Name(..) | Target::Ip(_)))
}
