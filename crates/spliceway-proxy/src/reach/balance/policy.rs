//! The policies: which backend a new session gets. This module does no I/O and gets the time and
//! random numbers as arguments.

use std::fmt;
use std::net::IpAddr;

use blake2::Blake2b512;
use blake2::digest::Digest;
use clap::ValueEnum;
use clap::builder::PossibleValue;

use crate::kit::client_key::ClientKey;

/// A backend with fewer sessions than this takes every client whose hash prefers it. So the bound
/// on load never separates the few sessions of a quiet service.
const LOAD_FLOOR: u64 = 32;
/// The bound on the load of a backend with source hashing: 5/4 of its fair share, the value that
/// the authors of "Consistent Hashing with Bounded Loads" recommend as a compromise.
const LOAD_BOUND: (u64, u64) = (5, 4);

/// How sessions are spread over backends.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// One after another
    RoundRobin,
    /// The backend with the fewest sessions
    LeastConn,
    /// Two at random, and then the one with fewer sessions
    P2c,
    /// The same backend for the same client address
    SourceHash,
    /// The first one that is available
    First,
}

/// What a policy knows about a backend that may take the next session.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    /// The share of sessions that it should get, from 1 to 256.
    pub(super) weight: u32,
    /// The sessions that it has now.
    pub(super) active: u32,
    /// The hash of its name.
    pub(super) hash: u64,
    /// The turns that it is owed, in units of its weight. Only [`turn`] changes it.
    pub(super) credit: i64,
}

impl Policy {
    /// Returns the index of a candidate, or `None` if there are none. `client` is the hash of the
    /// client's address. `random` returns a number below its argument.
    pub(super) fn choose(
        self,
        candidates: &mut [Candidate],
        client: Option<u64>,
        random: &mut dyn FnMut(u64) -> u64,
    ) -> Option<usize> {
        match (self, client) {
            (_, _) if candidates.is_empty() => None,
            (Self::First, _) => Some(0),
            (Self::RoundRobin, _) => turn(candidates, |_| true),
            (Self::P2c, _) => p2c(candidates, random),
            (Self::SourceHash, Some(client)) => by_hash(candidates, client),
            // A client of a Unix socket has no address.
            (Self::LeastConn | Self::SourceHash, _) => least(candidates),
        }
    }
}

/// Returns the selected candidate whose turn it is, as nginx's smooth weighted round-robin does: in
/// each round, every candidate has as many turns as its weight, evenly spread.
fn turn(candidates: &mut [Candidate], is_selected: impl Fn(&Candidate) -> bool) -> Option<usize> {
    let (mut total, mut best) = (0, None);
    for index in 0..candidates.len() {
        if !is_selected(&candidates[index]) {
            continue;
        }
        let weight = i64::from(candidates[index].weight);
        candidates[index].credit += weight;
        total += weight;
        if best.is_none_or(|best: usize| candidates[index].credit > candidates[best].credit) {
            best = Some(index);
        }
    }
    candidates[best?].credit -= total;
    best
}

/// Returns the candidate with the fewest sessions for its weight. Equal candidates take turns.
fn least(candidates: &mut [Candidate]) -> Option<usize> {
    let least = candidates
        .iter()
        .copied()
        .reduce(|least, one| if one.is_less_loaded(&least) { one } else { least })?;
    turn(candidates, |one| !least.is_less_loaded(one))
}

/// Returns the less loaded one of two candidates, which are drawn by weight.
fn p2c(candidates: &[Candidate], random: &mut dyn FnMut(u64) -> u64) -> Option<usize> {
    let first = draw(candidates, None, random)?;
    let Some(second) = draw(candidates, Some(first), random) else {
        return Some(first);
    };
    let is_second = candidates[second].is_less_loaded(&candidates[first]);
    Some(if is_second { second } else { first })
}

fn draw(candidates: &[Candidate], except: Option<usize>, random: &mut dyn FnMut(u64) -> u64) -> Option<usize> {
    let drawn = || (0..candidates.len()).filter(|index| Some(*index) != except);
    let total: u64 = drawn().map(|index| u64::from(candidates[index].weight)).sum();
    if total == 0 {
        return None;
    }
    let mut left = random(total);
    let mut drawn = drawn();
    drawn.find(|index| {
        let weight = u64::from(candidates[*index].weight);
        let is_here = left < weight;
        left = left.saturating_sub(weight);
        is_here
    })
}

/// Returns the candidate that the hash of the client prefers, among those that are not too loaded
/// (weighted rendezvous hashing). When a candidate leaves, only its own clients move.
fn by_hash(candidates: &[Candidate], client: u64) -> Option<usize> {
    let weights: u64 = candidates.iter().map(|one| u64::from(one.weight)).sum();
    let sessions: u64 = candidates.iter().map(|one| u64::from(one.active)).sum::<u64>() + 1;
    let has_room = |one: &Candidate| {
        let share = (LOAD_BOUND.0 * sessions * u64::from(one.weight)).div_ceil(LOAD_BOUND.1 * weights);
        u64::from(one.active) < share.max(LOAD_FLOOR)
    };
    let score = |one: &Candidate| {
        // A number between 0 and 1, without either.
        let uniform = ((mixed(client ^ one.hash) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        f64::from(one.weight) / -uniform.ln()
    };
    // The bounds add up to more than the sessions, so one candidate has room.
    let with_room = candidates.iter().enumerate().filter(|(_, one)| has_room(one));
    let best = with_room.max_by(|(_, a), (_, b)| score(a).total_cmp(&score(b)));
    best.map(|(index, _)| index)
}

/// Spreads the differences between two numbers over all bits (the finalizer of SplitMix64). It must
/// never change, because all processes and all versions should send a client to the same backend.
fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// Returns the same number in every process and every version, so that several instances send a
/// client to the same backend.
pub(super) fn hash_of_name(name: &str) -> u64 {
    let digest = Blake2b512::digest(name);
    digest.iter().take(8).fold(0, |hash, byte| hash << 8 | u64::from(*byte))
}

pub(super) fn hash_of_client(client: ClientKey) -> u64 {
    match client.ip() {
        IpAddr::V4(ip) => mixed(ip.to_bits().into()),
        // The other half is 0, because a /64 network is one client.
        IpAddr::V6(ip) => mixed((ip.to_bits() >> 64) as u64),
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.to_possible_value();
        f.write_str(name.as_ref().map_or("", PossibleValue::get_name))
    }
}

impl Candidate {
    fn is_less_loaded(&self, other: &Self) -> bool {
        let load = |one: &Self, other: &Self| u64::from(one.active) * u64::from(other.weight);
        load(self, other) < load(other, self)
    }
}

#[cfg(test)]
mod tests;
