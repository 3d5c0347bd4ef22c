//! Accounts: what each user may use and has used, in all services together.
//!
//! ```text
//!   login ─ enter ─┬─▶ Entered: one session of the account ─ count ─▶ bytes ─ keeper ─▶ file
//!                  └─▶ the reason to refuse the session
//! ```
//!
//! Only users with a limit have an account. There are at most as many accounts as users have logged
//! in, because a session enters its account after the password was checked.
//! [`Accounts::have_room_for`] bounds those of users whose names come from certificates.

mod calendar;
mod file;
mod keeper;
mod limits;
mod room;
mod saving;
mod series;
mod snapshot;
mod unusable;

use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use spliceway::RateLimit;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use crate::kit::refusal::Refusal;
use calendar::{Date, Usage};
use file::{File, Updated};
pub(crate) use limits::{AllLimits, Quota, Quotas, UserLimits};
use saving::Saving;
use snapshot::Change;

/// The accounts of all users.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    /// Whether any user has a limit. Without limits, a session takes no lock here.
    are_used: AtomicBool,
    all: Mutex<All>,
    /// Notified when the keeper may have something to do: a quota is used up, or limits have
    /// changed.
    keeper: Arc<Notify>,
    /// `None` if there is no file. What was used is then forgotten at the end of the program.
    file: OnceLock<Mutex<File>>,
    saving: Saving,
}

#[derive(Debug, Default)]
struct All {
    limits: AllLimits,
    accounts: HashMap<Box<str>, Arc<Account>>,
    /// What the file has of users who have no account.
    known: HashMap<Box<str>, Usage>,
    /// Whether another process counts, too, during a hand-over.
    is_shared: bool,
}

/// The account of one user.
#[derive(Debug)]
pub(crate) struct Account {
    /// The bytes that have passed in the sessions of this process, in both directions.
    counted: AtomicU64,
    /// The value of `counted` at which a quota is used up. [`NEVER`] without a quota.
    end: AtomicU64,
    /// The value of `counted` at which sessions wait, because another process may use what is left.
    /// [`NEVER`] if there is no such process.
    share: AtomicU64,
    /// Wakes sessions that wait for a new share.
    shared: Arc<Notify>,
    is_waiting: AtomicBool,
    /// The sessions that were refused.
    refused: AtomicU64,
    state: Mutex<State>,
    keeper: Arc<Notify>,
}

/// No account counts that many bytes.
const NEVER: u64 = u64::MAX;

#[derive(Debug)]
struct State {
    limits: UserLimits,
    sessions: u64,
    /// The buckets that the sessions of the user share, for bytes from and to the client.
    rates: [Option<RateLimit>; 2],
    /// What the user has used, with `settled` bytes of this process.
    usage: Usage,
    /// The part of `counted` that is in `usage`.
    settled: u64,
    /// The part of `usage` that is not in the file.
    unsaved: u64,
    /// Whether an operator has reset the account, and the file does not have it yet.
    is_reset: bool,
    /// What this process has reserved in the file, which another one may not use.
    reserved: u64,
    /// Whether other processes have reserved the last bytes of a quota.
    is_spent: bool,
}

/// One session of an account. Dropping it ends the session there.
#[derive(Debug)]
pub(crate) struct Entered(Arc<Account>);

impl Accounts {
    /// Changes the limits. Limits on sessions apply to new sessions, and quotas to all. A session
    /// keeps the rates that it began with.
    pub(crate) fn set(&self, limits: &AllLimits) {
        let (mut all, date) = (self.all(), Date::now());
        for (user, account) in &all.accounts {
            account.set(limits.of_user(user), date);
        }
        all.limits = limits.clone();
        self.are_used.store(!limits.are_none(), Ordering::Relaxed);
        drop(all);
        self.keeper.notify_one();
    }

    /// Adds a session to the account of this user. Returns `None` if the user has no limits.
    ///
    /// # Errors
    /// Returns the reason to refuse the session.
    pub(crate) fn enter(&self, user: &str) -> Result<Option<Entered>, Refusal> {
        let account = self.account_of(user);
        account.map(|account| account.enter(false)).transpose()
    }

    /// Adds a session that runs already, even above the limits.
    pub(crate) fn reenter(&self, user: &str) -> Option<Entered> {
        self.account_of(user).and_then(|account| account.enter(true).ok())
    }

    /// Counts a session that was refused, if the configuration names its user. Clients may invent
    /// other names.
    pub(crate) fn count_refusal(&self, user: &str) {
        let is_named = || self.all().limits.named.contains_key(user);
        if self.are_used.load(Ordering::Relaxed)
            && is_named()
            && let Some(account) = self.account_of(user)
        {
            account.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Resets the account of this user. Returns what the user had used, such as `1.7 MB today`, or
    /// `None` if there is no account.
    pub(crate) fn reset(&self, user: &str) -> Option<String> {
        let is_known = {
            let all = self.all();
            all.accounts.contains_key(user) || all.known.contains_key(user) || all.limits.named.contains_key(user)
        };
        let account = if is_known { self.account_of(user) } else { None }?;
        let used = account.reset(Date::now());
        self.keeper.notify_one();
        Some(used)
    }

    fn account_of(&self, user: &str) -> Option<Arc<Account>> {
        if !self.are_used.load(Ordering::Relaxed) {
            return None;
        }
        let mut all = self.all();
        let limits = all.limits.of_user(user);
        if limits.are_none() {
            return None;
        }
        if let Some(account) = all.accounts.get(user) {
            return Some(Arc::clone(account));
        }
        let date = Date::now();
        let usage = all.known.remove(user).unwrap_or_else(|| Usage::new(date));
        let account = Arc::new(Account::new(limits, usage, date, Arc::clone(&self.keeper)));
        if all.is_shared && !limits.quotas.are_none() {
            account.share.store(0, Ordering::Relaxed);
        }
        all.accounts.insert(user.into(), Arc::clone(&account));
        Some(account)
    }

    /// Returns what the file must be told.
    fn changes(&self, date: Date) -> Vec<Change> {
        let all = self.all();
        let changes = all.accounts.iter().filter_map(|(user, account)| {
            let mut state = account.state();
            account.settle(&mut state, date);
            let needs_share = || all.is_shared && account.needs_share(&state);
            let is_changed = state.unsaved > 0 || state.is_reset || needs_share();
            is_changed.then(|| Change {
                user: user.clone(),
                bytes: state.unsaved,
                is_reset: state.is_reset,
                counted: state.settled,
                is_waiting: account.is_waiting(),
                quotas: state.limits.quotas,
            })
        });
        changes.collect()
    }

    /// Records that the file has these changes, and these rows.
    fn saved(&self, changes: &[Change], updated: Updated, date: Date) {
        let mut all = self.all();
        for (index, change) in changes.iter().enumerate() {
            if let Some(account) = all.accounts.get(&change.user) {
                let share = updated.shares.get(index).copied().unwrap_or(Some(NEVER));
                account.saved(change, share);
            }
        }
        for (user, row) in updated.rows {
            match all.accounts.get(&user) {
                Some(account) => account.set_usage(row, date),
                None => drop(all.known.insert(user, row)),
            }
        }
        if std::mem::replace(&mut all.is_shared, updated.is_shared) && !updated.is_shared {
            all.lift_shares();
        }
    }

    /// Lets sessions pass bytes without a share, because the file cannot be updated. They continue,
    /// and the next update counts them.
    fn lift_shares(&self) {
        self.all().lift_shares();
    }

    /// Returns whether another process counts, too.
    fn are_shared(&self) -> bool {
        self.all().is_shared
    }

    /// Returns whether a session waits for a share.
    fn are_waiting(&self) -> bool {
        let all = self.all();
        let mut accounts = all.accounts.values();
        all.is_shared && accounts.any(|account| account.is_waiting())
    }

    /// Returns whether any user has a quota.
    fn have_quotas(&self) -> bool {
        self.all().limits.have_quotas()
    }

    /// Returns whether a session belongs to a user who has used up a quota.
    fn are_used_up(&self) -> bool {
        let all = self.all();
        let mut accounts = all.accounts.values();
        accounts.any(|account| account.is_used_up() && account.state().sessions > 0)
    }

    fn all(&self) -> MutexGuard<'_, All> {
        self.all.lock()
    }
}

impl All {
    fn lift_shares(&self) {
        for account in self.accounts.values() {
            let mut state = account.state();
            (state.reserved, state.is_spent) = (0, false);
            account.set_share(NEVER);
        }
    }

    /// Returns what the file has of a user who may have no account.
    fn usage_of(&self, user: &str, date: Date) -> Usage {
        let known = self.known.get(user).cloned();
        let mut usage = known.unwrap_or_else(|| Usage::new(date));
        usage.advance(date);
        usage
    }
}

impl Account {
    fn new(limits: UserLimits, usage: Usage, date: Date, keeper: Arc<Notify>) -> Self {
        let account = Self {
            counted: AtomicU64::new(0),
            end: AtomicU64::new(NEVER),
            share: AtomicU64::new(NEVER),
            shared: Arc::default(),
            is_waiting: AtomicBool::new(false),
            refused: AtomicU64::new(0),
            state: Mutex::new(State {
                limits,
                sessions: 0,
                rates: limits.buckets(),
                usage,
                settled: 0,
                unsaved: 0,
                is_reset: false,
                reserved: 0,
                is_spent: false,
            }),
            keeper,
        };
        account.settle(&mut account.state(), date);
        account
    }

    /// Counts bytes of a session. Returns whether a quota of the user is used up. The keeper then
    /// closes the other sessions.
    pub(crate) fn count(&self, bytes: u64) -> bool {
        let counted = self.counted.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let is_used_up = counted >= self.end.load(Ordering::Relaxed);
        if is_used_up || !self.has_share() {
            self.keeper.notify_one();
        }
        is_used_up
    }

    /// Returns whether sessions may pass bytes, whatever another process does.
    pub(crate) fn has_share(&self) -> bool {
        self.counted.load(Ordering::Relaxed) < self.share.load(Ordering::Relaxed)
    }

    /// Returns a future that waits for the next share. Look whether there is one after this call.
    pub(crate) fn next_share(&self) -> OwnedNotified {
        let next = Arc::clone(&self.shared).notified_owned();
        self.is_waiting.store(true, Ordering::SeqCst);
        self.keeper.notify_one();
        next
    }

    fn set_share(&self, share: u64) {
        // A session that waits later is not woken by this call, and sets this again.
        self.is_waiting.store(false, Ordering::SeqCst);
        self.share.store(share, Ordering::SeqCst);
        self.shared.notify_waiters();
    }

    /// Returns whether a session waits for a share.
    fn is_waiting(&self) -> bool {
        self.is_waiting.load(Ordering::SeqCst)
    }

    /// Returns whether the file must be told, although no byte was counted.
    fn needs_share(&self, state: &State) -> bool {
        let has_none = self.share.load(Ordering::Relaxed) == NEVER && !state.limits.quotas.are_none();
        has_none || state.reserved > 0 || state.is_spent || self.is_waiting()
    }

    /// Records that the file has this change. A share of `None` means that nothing is left.
    fn saved(&self, change: &Change, share: Option<u64>) {
        let mut state = self.state();
        // An operator may have reset the account meanwhile.
        if state.is_reset == change.is_reset {
            state.unsaved = state.unsaved.saturating_sub(change.bytes);
            state.is_reset = false;
        }
        state.is_spent = share.is_none();
        let share = share.unwrap_or(0);
        state.reserved = if share == NEVER { 0 } else { share };
        self.set_share(change.counted.saturating_add(share));
    }

    fn set(&self, limits: UserLimits, date: Date) {
        let mut state = self.state();
        if !limits.has_rates_of(&state.limits) {
            state.rates = limits.buckets();
        }
        state.limits = limits;
        if limits.quotas.are_none() {
            self.set_share(NEVER);
        }
        self.settle(&mut state, date);
    }

    fn enter(self: Arc<Self>, is_there_already: bool) -> Result<Entered, Refusal> {
        let mut state = self.state();
        if !is_there_already {
            if self.is_used_up() {
                return Err(Refusal::Quota);
            }
            let max = state.limits.max_conns;
            if max.is_some_and(|max| state.sessions >= max.get().into()) {
                return Err(Refusal::SessionsOfUser);
            }
        }
        state.sessions += 1;
        drop(state);
        Ok(Entered(self))
    }

    /// Adds the bytes that were counted since the last call to what the user has used, and finds
    /// out what is left.
    fn settle(&self, state: &mut State, date: Date) {
        let counted = self.counted.load(Ordering::Relaxed);
        let bytes = counted - state.settled;
        state.settled = counted;
        state.usage.advance(date);
        state.usage.add(bytes);
        state.unsaved = state.unsaved.saturating_add(bytes);
        let left = if state.is_spent {
            Some(0)
        } else {
            state.usage.left(&state.limits.quotas)
        };
        let end = left.map_or(NEVER, |left| counted.saturating_add(left));
        self.end.store(end, Ordering::Relaxed);
    }

    fn set_usage(&self, row: Usage, date: Date) {
        let mut state = self.state();
        // An operator has reset the account meanwhile.
        if !state.is_reset {
            state.usage = row;
            let unsaved = state.unsaved;
            state.usage.advance(date);
            state.usage.add(unsaved);
        }
        self.settle(&mut state, date);
    }

    /// Returns what the user had used.
    fn reset(&self, date: Date) -> String {
        let mut state = self.state();
        self.settle(&mut state, date);
        let used = state.usage.in_words(&state.limits.quotas);
        (state.usage, state.unsaved, state.is_reset) = (Usage::new(date), 0, true);
        state.is_spent = false;
        self.settle(&mut state, date);
        used
    }

    /// Returns whether the user has used up a quota.
    pub(crate) fn is_used_up(&self) -> bool {
        self.counted.load(Ordering::Relaxed) >= self.end.load(Ordering::Relaxed)
    }

    /// Returns the share of a quota that the user has used, and of two quotas the larger share. A
    /// used up quota has 1 or more. Returns `None` without a quota.
    pub(crate) fn quota_used(&self) -> Option<f64> {
        let state = self.state();
        let since = self.counted.load(Ordering::Relaxed) - state.settled;
        let shares = state.limits.quotas.iter().map(|(period, quota)| {
            let used = state.usage.in_period(period).saturating_add(since);
            used as f64 / quota.get() as f64
        });
        shares.reduce(f64::max)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl Entered {
    /// Returns the limits that the sessions of the user share, for bytes from and to the client.
    pub(crate) fn rates(&self) -> [Option<RateLimit>; 2] {
        self.0.state().rates.clone()
    }

    pub(crate) fn account(&self) -> &Arc<Account> {
        &self.0
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.state().sessions -= 1;
    }
}

#[cfg(test)]
mod tests;
