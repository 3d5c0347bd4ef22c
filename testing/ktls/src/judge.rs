//! What the peers of a session must have seen (note 017, "Ends of a stream").

use crate::peer::{End, Peers, Seen};
use crate::plan::{DownEnd, Item, Order, Plan, Role, UpEnd};

/// Compares what the peers saw with the plan. `early_answers`: the relay delivers answers of
/// targets that close before they have read everything.
///
/// # Errors
/// Says what is wrong.
pub fn judge(plan: &Plan, peers: &Peers, early_answers: bool) -> Result<(), String> {
    let (tls, plain) = (&peers.tls, &peers.plain);
    for (name, seen, planned) in [("TLS", tls, plan.down_bytes()), ("plain", plain, plan.up_bytes())] {
        if let Some(place) = seen.wrong {
            return Err(format!("the {name} peer received a wrong byte at {place}"));
        }
        if seen.bytes > planned {
            return Err(format!("the {name} peer received {} bytes of {planned}", seen.bytes));
        }
    }
    match (plan.up_end, plan.down_end) {
        (UpEnd::Notify | UpEnd::NotifyAndFin | UpEnd::Fin, DownEnd::Fin) => {
            all("plain", plain, plan.up_bytes(), &[End::Fin])?;
            all("TLS", tls, plan.down_bytes(), &[End::Announced])?;
            let is_request = |item: &Item| *item == Item::KeyUpdate { is_requested: true };
            // The download ends after the request, so the answer comes before its end.
            if plan.order == Order::UpFirst && plan.up.iter().any(is_request) && tls.key_updates == 0 {
                return Err("a request for a key update was not answered".to_owned());
            }
            Ok(())
        }
        // The connection to a target may fail at once. Its client then gets FIN alone, which does
        // not look complete.
        (_, DownEnd::Reset) if early_answers && plan.role == Role::Server => {
            ends("TLS", tls, &[End::Reset, End::Fin, End::Announced])
        }
        (_, DownEnd::Reset) if early_answers => ends("TLS", tls, &[End::Reset, End::Fin]),
        (_, DownEnd::Reset) => ends("TLS", tls, &[End::Reset]),
        (UpEnd::Reset, DownEnd::Fin) if early_answers && plan.role == Role::Client => {
            ends("plain", plain, &[End::Reset, End::Fin])
        }
        (UpEnd::BadTag, DownEnd::Fin) => {
            // The alert `bad_record_mac`, if it comes before the reset.
            let is_whole = tls.bytes == plan.down_bytes() && tls.end == End::Announced;
            if !is_whole {
                ends("TLS", tls, &[End::Alert(20), End::Reset])?;
            }
            ends("plain", plain, &[End::Reset])
        }
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
