//! What the peers of a session must have seen (note 017, "Ends of a stream").

use crate::peer::{End, Peers, Seen};
use crate::plan::{DownEnd, Plan, Role, UpEnd};

/// Compares what the peers saw with the plan.
///
/// # Errors
/// Says what is wrong.
pub fn judge(plan: &Plan, peers: &Peers) -> Result<(), String> {
    let (tls, plain) = (&peers.tls, &peers.plain);
    for (name, seen) in [("TLS", tls), ("plain", plain)] {
        if let Some(place) = seen.wrong {
            return Err(format!("the {name} peer received a wrong byte at {place}"));
        }
    }
    match (plan.up_end, plan.down_end) {
        (UpEnd::Notify | UpEnd::NotifyAndFin | UpEnd::Fin, DownEnd::Fin) => {
            all("plain", plain, plan.up_bytes(), &[End::Fin])?;
            all("TLS", tls, plan.down_bytes(), &[End::Announced])
        }
        // FIN alone does not look complete. An early answer of a target does, because the client of
        // a protocol such as HTTP knows its length: it ends regularly although the target resets.
        (_, DownEnd::Reset) if plan.role == Role::Server => ends("TLS", tls, &[End::Reset, End::Fin, End::Announced]),
        (_, DownEnd::Reset) => ends("TLS", tls, &[End::Reset, End::Fin]),
        (UpEnd::Reset, DownEnd::Fin) if plan.role == Role::Client => ends("plain", plain, &[End::Reset, End::Fin]),
        (_, DownEnd::Fin) => ends("plain", plain, &[End::Reset]),
    }
}

fn all(name: &str, seen: &Seen, bytes: usize, expected: &[End]) -> Result<(), String> {
    if seen.bytes != bytes {
        return Err(format!(
            "the {name} peer received {} bytes of {bytes}, and then {:?}",
            seen.bytes, seen.end
        ));
    }
    ends(name, seen, expected)
}

fn ends(name: &str, seen: &Seen, expected: &[End]) -> Result<(), String> {
    if expected.contains(&seen.end) {
        Ok(())
    } else {
        Err(format!(
            "the {name} peer received {} bytes, and then {:?} instead of {expected:?}",
            seen.bytes, seen.end
        ))
    }
}
