//! The content of the quota file: one line with its format and checksum, and then JSON.
//!
//! ```text
//!   spliceway quotas 1 CHECKSUM
//!   {"updates":7,"months":[24322],"users":{"ann":{"used":{"day":[[20783,5,0]],"month":[[24322,9,0]]}}}}
//! ```

use std::collections::HashMap;

use blake2::Blake2b512;
use blake2::digest::Digest;
use serde::{Deserialize, Serialize};

use super::calendar::{Date, KEPT, Usage};
use super::limits::Quotas;
use super::unusable::Unusable;

const MAGIC: &[u8] = b"spliceway quotas ";
const VERSION: &[u8] = b"1 ";
/// The hexadecimal digits of the checksum.
const CHECKSUM_DIGITS: usize = 32;

/// The most that a process may use until its next update, if it has used less until this one.
const LEAST_SHARE: u64 = 1 << 20;
/// What is left of a quota when a process no longer waits for what another one has reserved.
pub(super) const REMNANT: u64 = 64 << 10;

/// What the file has.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Snapshot {
    /// The number of updates so far.
    pub(super) updates: u64,
    /// The latest months in which somebody has used something, the last one first. Rows without
    /// bytes in one of them are removed. No clock that is wrong removes one.
    months: Vec<u32>,
    /// The processes that share the file during a hand-over.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) processes: Vec<u32>,
    pub(super) users: HashMap<Box<str>, Row>,
}

/// What the file has of one user.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Row {
    pub(super) used: Usage,
    /// The bytes that each process may use until its next update, which are not in `used`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    reserved: Vec<(u32, u64)>,
}

/// The change of one user: what to add, after the row was emptied if `is_reset` is true.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) user: Box<str>,
    pub(super) bytes: u64,
    pub(super) is_reset: bool,
    /// For a file that is shared: what this process had counted, and whether sessions wait.
    pub(super) counted: u64,
    pub(super) is_waiting: bool,
    pub(super) quotas: Quotas,
}

impl Snapshot {
    /// Returns the bytes of a file, and their checksum.
    pub(super) fn encode(&self) -> (Vec<u8>, String) {
        let mut json = serde_json::to_vec(self).expect("names and numbers");
        json.push(b'\n');
        let sum = checksum(&json);
        let mut bytes = [MAGIC, VERSION, sum.as_bytes(), b"\n"].concat();
        bytes.append(&mut json);
        (bytes, sum)
    }
}

/// The bytes of a file that are as they were written.
pub(super) struct Content<'a> {
    pub(super) sum: String,
    json: &'a [u8],
}

impl<'a> Content<'a> {
    /// Compares the bytes with their checksum.
    ///
    /// # Errors
    /// Returns an error if any bit differs from what was written.
    pub(super) fn verify(bytes: &'a [u8]) -> Result<Self, Unusable> {
        if bytes.is_empty() {
            return Err(Unusable::content("it is empty"));
        }
        let rest = bytes.strip_prefix(MAGIC);
        let rest = rest.ok_or_else(|| Unusable::content("it is no quota file, or damaged"))?;
        let rest = rest.strip_prefix(VERSION);
        let rest = rest.ok_or_else(|| Unusable::content("its format is that of another version, or it is damaged"))?;
        let damaged = || Unusable::content("it is damaged");
        let (sum, rest) = rest.split_at_checked(CHECKSUM_DIGITS).ok_or_else(damaged)?;
        let json = rest.strip_prefix(b"\n").ok_or_else(damaged)?;
        let found = checksum(json);
        if sum != found.as_bytes() {
            return Err(damaged());
        }
        Ok(Self { sum: found, json })
    }

    pub(super) fn decode(&self) -> Result<Snapshot, Unusable> {
        serde_json::from_slice(self.json).map_err(|_| Unusable::content("it is damaged"))
    }
}

impl Snapshot {
    /// Returns what the file has of a user, with what this change adds.
    pub(super) fn changed(&self, change: &Change, date: Date) -> Row {
        let mut row = self.users.get(&change.user).cloned().unwrap_or_default();
        if change.is_reset {
            row.used = Usage::default();
        }
        row.used.advance(date);
        row.used.add(change.bytes);
        row
    }

    /// Records that somebody has used something in this month, and removes users who have used
    /// nothing lately.
    pub(super) fn count_month(&mut self, month: u32) {
        if self.months.first() == Some(&month) {
            return;
        }
        self.months.retain(|one| *one != month);
        self.months.insert(0, month);
        self.months.truncate(KEPT);
        self.users.retain(|_, row| row.used.is_of(&self.months));
    }

    /// Removes what this process has reserved, or all processes.
    pub(super) fn release(&mut self, process: Option<u32>) {
        for row in self.users.values_mut() {
            row.release(process);
        }
    }
}

impl Row {
    pub(super) fn reserves_as(&self, other: &Self) -> bool {
        self.reserved == other.reserved
    }

    fn release(&mut self, process: Option<u32>) {
        self.reserved
            .retain(|(one, _)| process.is_some_and(|process| *one != process));
    }

    /// Reserves what a process may use until its next update, and returns it. The sum of what is
    /// used and reserved never exceeds a quota. `None` means that nothing is left to wait for.
    pub(super) fn reserve(&mut self, process: u32, quotas: &Quotas, used: u64, is_waiting: bool) -> Option<u64> {
        self.release(Some(process));
        let left = self.used.left(quotas)?;
        let others = self
            .reserved
            .iter()
            .fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
        let free = left.saturating_sub(others);
        if free == 0 && left <= REMNANT {
            return None;
        }
        if used == 0 && !is_waiting {
            return Some(0);
        }
        // The other process gets half, and this one what it needs for some updates.
        let half = if free <= REMNANT { free } else { free / 2 };
        let share = half.min(used.saturating_mul(4).max(LEAST_SHARE));
        if share > 0 {
            self.reserved.push((process, share));
        }
        Some(share)
    }
}

fn checksum(bytes: &[u8]) -> String {
    let digest = Blake2b512::digest(bytes);
    let half = digest.iter().take(CHECKSUM_DIGITS / 2);
    half.map(|byte| format!("{byte:02x}")).collect()
}
