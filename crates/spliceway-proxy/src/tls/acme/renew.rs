//! Keeps the certificates of a service valid.

use std::fmt::Display;
use std::future::pending;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::crypto::CryptoProvider;
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::folder::{Locked, Revocation};
use super::https::{Connect, Https};
use super::order;
use super::schedule::{Known, Task, Tries};
use super::settings::{AcmeSettings, Due};
use crate::kit::clock::rfc3339_seconds;
use crate::tls::certificate::{Pair, PairFiles, Validity};
use crate::tls::counts::NextTry;
use crate::tls::crypto::provider;
use crate::tls::server::Terminator;

/// The time limit for one try.
const TRY_TIME: Duration = Duration::from_secs(300);
/// The longest time between two looks at the schedule: another process may have tried.
/// The operator may also have asked to revoke a certificate.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// The wait while another process tries.
const BUSY: Duration = Duration::from_secs(10);
/// The wait after an error of the folder. No request was sent.
const UNUSABLE: Duration = Duration::from_secs(60);

/// What a try has done.
enum Done {
    Issued(Validity),
    /// There is no old certificate to revoke any more. The text says why.
    RevocationEnded(&'static str),
}

/// Renews the certificates of a service.
#[derive(Clone)]
struct Renewal {
    settings: AcmeSettings,
    provider: Arc<CryptoProvider>,
    connect: Connect,
    terminator: Arc<Terminator>,
    service: Arc<str>,
}

impl Renewal {
    /// Does a step in a thread that serves no session, because it writes files. A reload does not
    /// stop a try that has begun.
    async fn step_aside(&self, name: &str, is_first: bool) -> io::Result<Option<NextTry>> {
        let (renewal, name, runtime) = (self.clone(), name.to_owned(), Handle::current());
        let step = spawn_blocking(move || runtime.block_on(renewal.step(&name, is_first)));
        step.await.map_err(io::Error::other)?
    }

    /// Does what is due, and returns what is next. Returns `None` while another process tries.
    async fn step(&self, name: &str, is_first: bool) -> io::Result<Option<NextTry>> {
        let now = SystemTime::now();
        let due = self.settings.next(name, &self.provider, now)?;
        if due.at > now {
            let next = due.shown(now);
            if let Some(why) = next.why.as_ref().filter(|_| is_first) {
                let (service, at) = (&*self.service, rfc3339_seconds(next.at));
                let file = self.settings.folder.pair(name).with_extension("json");
                let file = file.display();
                tracing::warn!(
                    service,
                    "acme: the last try for {name} failed: {why}. The next one is at {at}, or at once if {file} is removed"
                );
            }
            return Ok(Some(next));
        }
        let Some(locked) = self.settings.folder.lock()? else {
            return Ok(None);
        };
        // Another process may have tried before this one had the lock.
        let now = SystemTime::now();
        let due = self.settings.next(name, &self.provider, now)?;
        if due.at > now {
            return Ok(Some(due.shown(now)));
        }
        self.attempt(&locked, name, due).await?;
        let now = SystemTime::now();
        Ok(Some(self.settings.next(name, &self.provider, now)?.shown(now)))
    }

    /// Tries to do what is due.
    async fn attempt(&self, locked: &Locked, name: &str, due: Due) -> io::Result<()> {
        let (folder, Due { mut known, task, .. }) = (&self.settings.folder, due);
        known.tries(task).begin(SystemTime::now(), rand::random());
        folder.set_known(locked, name, &known)?;
        folder.remove_answers(locked)?;
        let retry_after = Arc::default();
        let tried = async {
            let https = Https {
                connect: Arc::clone(&self.connect),
                originator: Arc::new(self.settings.originator()?),
                retry_after: Arc::clone(&retry_after),
            };
            match task {
                Task::Order => self.issue(locked, name, &https).await.map(Done::Issued),
                Task::Revoke => {
                    let revoked = self.revoke(locked, name, &https).await.map(Done::RevocationEnded);
                    revoked.map_err(|why| format!("the old certificate of {name} is not revoked: {why}"))
                }
            }
        };
        let tried = match timeout(TRY_TIME, tried).await {
            Ok(tried) => tried,
            Err(_) => Err(format!("no result within {} s", TRY_TIME.as_secs())),
        };
        folder.remove_answers(locked)?;
        let (now, tries) = (SystemTime::now(), known.tries(task));
        match &tried {
            Ok(Done::Issued(valid)) => tries.succeed(*valid, now),
            Ok(Done::RevocationEnded(_)) => *tries = Tries::default(),
            Err(why) => {
                tries.why = Some(why.clone());
                if let Some(asked) = *retry_after.lock() {
                    tries.wait_until(asked, now);
                }
            }
        }
        folder.set_known(locked, name, &known)?;
        self.report(name, task, &tried, &known);
        Ok(())
    }

    /// Orders a certificate and puts it into force, if it fits. Keeps the one before if it is to be
    /// revoked.
    async fn issue(&self, locked: &Locked, name: &str, https: &Https) -> Result<Validity, String> {
        let folder = &self.settings.folder;
        let unusable = |error: &dyn Display| format!("the issued certificate cannot be used: {error}");
        let failed = |error: io::Error| format!("cannot write to the folder of acme: {error}");
        folder.adopt_pair(locked, name).map_err(failed)?;
        let issued = order::order(&self.settings, locked, name, https).await;
        let issued = issued.map_err(|error| error.to_string())?;
        let file = folder.write_new_pair(locked, name, &issued).map_err(failed)?;
        let files = PairFiles {
            certificate: file.clone(),
            key: file,
        };
        let pair = Pair::read(&files, &self.provider).map_err(|bad| unusable(&bad))?;
        if !pair.names.iter().any(|issued| **issued == *name) {
            return Err(unusable(&"it does not have the name"));
        }
        let old = self.settings.in_force(name, &self.provider).map_err(failed)?;
        if self.settings.revocation(name, old.as_ref()).map_err(failed)? == Some(Revocation::Wanted) {
            let kept = match &old {
                Some(old) => folder.set_replaced(locked, name, &old.key.cert[0]),
                None => folder.end_revocation(locked, name),
            };
            kept.map_err(failed)?;
        }
        folder.use_new_pair(locked, name).map_err(failed)?;
        Ok(pair.valid)
    }

    /// Revokes the certificate before the one in force, unless it has expired.
    async fn revoke(&self, locked: &Locked, name: &str, https: &Https) -> Result<&'static str, String> {
        let failed = |error: io::Error| format!("cannot use the folder of acme: {error}");
        let current = self.settings.in_force(name, &self.provider).map_err(failed)?;
        let revocation = self.settings.revocation(name, current.as_ref()).map_err(failed)?;
        let result = match revocation {
            Some(Revocation::Replaced(old, expires)) if expires > SystemTime::now() => {
                let revoked = order::revoke(&self.settings, locked, &old, https).await;
                revoked.map_err(|error| error.to_string())?;
                "is revoked"
            }
            _ => "has expired, so it is not revoked",
        };
        self.settings.folder.end_revocation(locked, name).map_err(failed)?;
        Ok(result)
    }

    /// Counts orders, and writes the result of a try to the log.
    fn report(&self, name: &str, task: Task, tried: &Result<Done, String>, known: &Known) {
        let service = &*self.service;
        if task == Task::Order {
            self.terminator.counts().tried(tried.is_ok());
        }
        match (task, tried) {
            (_, Ok(Done::Issued(valid))) => {
                let next = rfc3339_seconds(known.order.next(Some(*valid), SystemTime::now()));
                let until = rfc3339_seconds(valid.to);
                tracing::info!(
                    service,
                    "acme: {name} has a certificate until {until}. The next order is at {next}"
                );
            }
            (_, Ok(Done::RevocationEnded(why))) => {
                tracing::info!(service, "acme: the old certificate of {name} {why}");
            }
            (Task::Order, Err(why)) => {
                let next = rfc3339_seconds(known.order.not_before());
                tracing::error!(
                    service,
                    "acme: no new certificate for {name}: {why}. The next try is at {next}. An old certificate, if \
                     there is one, stays in force"
                );
            }
            (Task::Revoke, Err(why)) => {
                let next = rfc3339_seconds(known.revocation.not_before());
                tracing::error!(service, "acme: {why}. The next try is at {next}");
            }
        }
    }
}

/// Keeps the certificates of a service valid. Never returns.
pub(crate) async fn keep(terminator: Arc<Terminator>, connect: Connect, service: Arc<str>) {
    let Some(settings) = terminator.acme().cloned() else {
        return pending().await;
    };
    let renewal = Renewal {
        settings,
        provider: provider(),
        connect,
        terminator: Arc::clone(&terminator),
        service,
    };
    let mut is_first = true;
    loop {
        let now = SystemTime::now();
        let mut earliest = now + LOOK_AGAIN;
        for name in &renewal.settings.names {
            let next = match renewal.step_aside(name, is_first).await {
                Ok(Some(next)) => next,
                Ok(None) => {
                    earliest = earliest.min(now + BUSY);
                    continue;
                }
                Err(error) => {
                    let why = format!("cannot use the folder for {name}: {error}");
                    tracing::error!(service = &*renewal.service, "acme: {why}");
                    NextTry {
                        at: now + UNUSABLE,
                        why: Some(why),
                    }
                }
            };
            earliest = earliest.min(next.at);
            terminator.counts().will_try(name, next);
        }
        is_first = false;
        let wait = earliest.duration_since(SystemTime::now()).unwrap_or_default();
        // A second more than needed, because times in the folder have whole seconds.
        sleep(wait + Duration::from_secs(1)).await;
    }
}
