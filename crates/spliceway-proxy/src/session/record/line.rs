//! The fields of a record.

use std::time::Duration;

use spliceway::{RelaySummary, RelayWaits};
use spliceway_protocol::address::Target;

use crate::access::datagram_counts::DatagramSummary;
use crate::log::Line;
use crate::session::facts::{Facts, Phase, Session};
use crate::session::tls_facts::fill_target;

/// Adds what all records have. `relay` has all bytes, also those before a relay.
pub(super) fn fill(
    line: &mut Line,
    session: &Session,
    facts: &Facts,
    relay: &RelaySummary,
    datagrams: Option<&DatagramSummary>,
) {
    line.number("id", session.id);
    line.text("service", &session.service);
    match &facts.client {
        Some(client) => line.address("client", client),
        None => line.word("client", "unix"),
    }
    if let Some(user) = &facts.user {
        line.text("user", user);
    }
    if let Some(protocol) = facts.protocol {
        line.text("protocol", protocol.name());
    }
    if let Some(name) = &facts.server_name {
        line.text("sni", name);
    }
    if let Some(tls) = &facts.tls {
        tls.fill(line);
    }
    match &facts.target {
        Some(Target::Ip(address)) => line.address("target", address),
        Some(target) => line.display("target", target),
        None => {}
    }
    if let Some(reason) = facts.would_deny {
        line.display("would_deny", &reason.as_str());
    }
    if let Some(upstream) = &facts.dialled {
        line.address("upstream", upstream);
    }
    if let Some(tls) = &facts.target_tls {
        fill_target(tls, line);
    }
    if let Some(side) = facts.kernel_tls() {
        line.text("kernel_tls", side);
    }
    counts(line, relay);
    waits(line, &facts.waits());
    if let Some(datagrams) = datagrams {
        datagram_counts(line, datagrams);
    }
    if let Phase::Datagrams(stats) = &facts.phase
        && let Some(why) = stats.first_denial()
    {
        line.text("datagrams_denied", why);
    }
    if let Some(time) = facts.connect {
        line.number("connect_ms", millis(time));
    }
    line.number("duration_ms", millis(session.started.elapsed()));
}

fn counts(line: &mut Line, relay: &RelaySummary) {
    line.number("bytes_up", relay.a_to_b.bytes);
    line.number("bytes_down", relay.b_to_a.bytes);
    line.number("spliced_up", relay.a_to_b.spliced);
    line.number("spliced_down", relay.b_to_a.spliced);
    // The bytes that were in flight when the session ended, if there were any.
    for (name, lost) in [("lost_up", relay.a_to_b.lost), ("lost_down", relay.b_to_a.lost)] {
        if lost > 0 {
            line.number(name, lost);
        }
    }
}

/// Adds the times for which a direction waited for something other than its source, if any.
fn waits(line: &mut Line, waits: &RelayWaits) {
    let (up, down) = (&waits.a_to_b, &waits.b_to_a);
    for (name, time) in [
        ("blocked_up_ms", up.sink),
        ("blocked_down_ms", down.sink),
        ("limited_up_ms", up.rate_limit),
        ("limited_down_ms", down.rate_limit),
    ] {
        if millis(time) > 0 {
            line.number(name, millis(time));
        }
    }
}

fn datagram_counts(line: &mut Line, datagrams: &DatagramSummary) {
    line.number("datagrams_up", datagrams.up.datagrams);
    line.number("datagrams_down", datagrams.down.datagrams);
    line.number("datagram_bytes_up", datagrams.up.bytes);
    line.number("datagram_bytes_down", datagrams.down.bytes);
    line.number("datagrams_dropped", datagrams.dropped_in_all());
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
