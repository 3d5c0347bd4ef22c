//! Accounts: what each user may use, in all services together.
//!
//! ```text
//!   login ─ enter ─┬─▶ Entered: one session of the account, until it is dropped
//!                  └─▶ the reason to refuse the session
//! ```
//!
//! Only users with a limit have an account. There are at most as many accounts as users have logged
//! in, because a session enters its account after the password was checked.

mod limits;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use spliceway::RateLimit;

pub(crate) use limits::{AllLimits, UserLimits};

/// The reason to refuse a session whose user has reached the limit on sessions.
pub(crate) const TOO_MANY_OF_USER: &str = "user_max_conns";

/// The accounts of all users.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    /// Whether any user has a limit. Without limits, a session takes no lock here.
    are_used: AtomicBool,
    all: Mutex<All>,
}

#[derive(Debug, Default)]
struct All {
    limits: AllLimits,
    accounts: HashMap<Box<str>, Arc<Account>>,
}

/// The account of one user.
#[derive(Debug)]
pub(crate) struct Account {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    limits: UserLimits,
    sessions: u32,
    /// The buckets that the sessions of the user share, for bytes from and to the client.
    rates: [Option<RateLimit>; 2],
}

/// One session of an account. Dropping it ends the session there.
#[derive(Debug)]
pub(crate) struct Entered(Arc<Account>);

impl Accounts {
    /// Changes the limits. Limits on sessions apply to new sessions. A session keeps the rates that
    /// it began with.
    pub(crate) fn set(&self, limits: &AllLimits) {
        let mut all = self.all();
        for (user, account) in &all.accounts {
            account.set(limits.of(user));
        }
        all.limits = limits.clone();
        self.are_used.store(!limits.are_none(), Ordering::Relaxed);
    }

    /// Adds a session to the account of this user. Returns `None` if the user has no limits.
    ///
    /// # Errors
    /// Returns the reason to refuse the session.
    pub(crate) fn enter(&self, user: &str) -> Result<Option<Entered>, &'static str> {
        self.of(user).map(|account| account.enter(false)).transpose()
    }

    /// Does the same for a session that runs already, even above the limits.
    pub(crate) fn reenter(&self, user: &str) -> Option<Entered> {
        self.of(user).and_then(|account| account.enter(true).ok())
    }

    fn of(&self, user: &str) -> Option<Arc<Account>> {
        if !self.are_used.load(Ordering::Relaxed) {
            return None;
        }
        let mut all = self.all();
        let limits = all.limits.of(user);
        if limits.are_none() {
            return None;
        }
        if let Some(account) = all.accounts.get(user) {
            return Some(Arc::clone(account));
        }
        let account = Arc::new(Account::new(limits));
        all.accounts.insert(user.into(), Arc::clone(&account));
        Some(account)
    }

    fn all(&self) -> MutexGuard<'_, All> {
        unpoisoned(&self.all)
    }
}

impl Account {
    fn new(limits: UserLimits) -> Self {
        Self {
            state: Mutex::new(State {
                limits,
                sessions: 0,
                rates: limits.buckets(),
            }),
        }
    }

    fn set(&self, limits: UserLimits) {
        let mut state = self.state();
        if !limits.has_rates_of(&state.limits) {
            state.rates = limits.buckets();
        }
        state.limits = limits;
    }

    fn enter(self: Arc<Self>, is_there_already: bool) -> Result<Entered, &'static str> {
        let mut state = self.state();
        let is_full = state.limits.max_conns.is_some_and(|max| state.sessions >= max.get());
        if is_full && !is_there_already {
            return Err(TOO_MANY_OF_USER);
        }
        state.sessions += 1;
        drop(state);
        Ok(Entered(self))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        unpoisoned(&self.state)
    }
}

impl Entered {
    /// Returns the limits that the sessions of the user share, for bytes from and to the client.
    pub(crate) fn rates(&self) -> [Option<RateLimit>; 2] {
        self.0.state().rates.clone()
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.state().sessions -= 1;
    }
}

/// Locks the mutex and ignores poisoning, because the data is valid at every instant.
fn unpoisoned<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
