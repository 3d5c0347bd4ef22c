//! Keeps the certificates of a service valid.

use std::fmt::Display;
use std::future::pending;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls::crypto::CryptoProvider;
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::folder::{Locked, Revocation};
use super::https::{Connect, Https};
use super::order;
use super::settings::{AcmeSettings, roots};
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

/// What a step of the schedule has found.
enum Step {
    /// Nothing is due before this time. The last try may have failed, maybe in another process.
    Wait(SystemTime, Option<String>),
    /// Another process tries.
    Busy,
    Tried(Result<Validity, String>, SystemTime),
}

/// Renews the certificates of a service.
#[derive(Clone)]
struct Renewal {
    settings: AcmeSettings,
    provider: Arc<CryptoProvider>,
    connect: Connect,
}

impl Renewal {
    /// Does a step in a thread that serves no session, because it writes files. A reload does not
    /// stop a try that has begun.
    async fn step_aside(&self, name: &str) -> io::Result<Step> {
        let (renewal, name, runtime) = (self.clone(), name.to_owned(), Handle::current());
        let step = spawn_blocking(move || runtime.block_on(renewal.step(&name)));
        step.await.map_err(io::Error::other)?
    }

    /// Tries if a certificate is due.
    async fn step(&self, name: &str) -> io::Result<Step> {
        let (folder, now) = (&self.settings.folder, SystemTime::now());
        let (tries, next) = self.settings.next(name, &self.provider, now)?;
        if next > now {
            return Ok(Step::Wait(next, tries.why));
        }
        let Some(locked) = folder.lock()? else {
            return Ok(Step::Busy);
        };
        // Another process may have tried before this one had the lock.
        let now = SystemTime::now();
        let (mut tries, next) = self.settings.next(name, &self.provider, now)?;
        if next > now {
            return Ok(Step::Wait(next, tries.why));
        }
        tries.begin(&self.settings.directory, now, rand::random());
        folder.set_tries(&locked, name, &tries)?;
        let retry_after = Arc::default();
        let tried = match timeout(TRY_TIME, self.order(&locked, name, &retry_after)).await {
            Ok(tried) => tried,
            Err(_) => Err(format!("no result within {} s", TRY_TIME.as_secs())),
        };
        folder.remove_answers(&locked)?;
        let now = SystemTime::now();
        match &tried {
            Ok(valid) => tries.succeed(*valid, now),
            Err(why) => {
                tries.why = Some(why.clone());
                if let Some(asked) = *retry_after.lock() {
                    tries.wait_until(asked, now);
                }
            }
        }
        folder.set_tries(&locked, name, &tries)?;
        let next = tries.next(&self.settings.directory, tried.as_ref().ok().copied(), now);
        Ok(Step::Tried(tried, next))
    }

    /// Orders a certificate and puts it into force, if it fits.
    async fn order(
        &self,
        locked: &Locked,
        name: &str,
        retry_after: &Arc<Mutex<Option<SystemTime>>>,
    ) -> Result<Validity, String> {
        let folder = &self.settings.folder;
        folder.remove_answers(locked).map_err(|error| error.to_string())?;
        let config = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots(self.settings.ca.as_deref())?)
            .with_no_client_auth();
        let https = Https {
            connect: Arc::clone(&self.connect),
            config: Arc::new(config),
            retry_after: Arc::clone(retry_after),
        };
        let failed = |error: io::Error| error.to_string();
        let valid = match folder.revocation(name).map_err(failed)? {
            None => return self.issue(locked, name, &https, false).await,
            Some(Revocation::Wanted) => self.issue(locked, name, &https, true).await?,
            // The other certificate is in force since an earlier try.
            Some(Revocation::Replaced(_)) => self.read(name)?.valid,
        };
        if let Some(Revocation::Replaced(old)) = folder.revocation(name).map_err(failed)? {
            let revoked = order::revoke(&self.settings, locked, &old, &https).await;
            revoked.map_err(|error| format!("the old certificate is not revoked: {error}"))?;
            tracing::info!("acme: the old certificate of {name} is revoked");
        }
        folder.end_revocation(locked, name).map_err(failed)?;
        Ok(valid)
    }

    /// Orders a certificate and puts it into force. If the one before is to be revoked, keeps it.
    async fn issue(&self, locked: &Locked, name: &str, https: &Https, keeps_old: bool) -> Result<Validity, String> {
        let folder = &self.settings.folder;
        let issued = order::order(&self.settings, locked, name, https).await;
        let issued = issued.map_err(|error| error.to_string())?;
        let unusable = |error: &dyn Display| format!("the issued certificate cannot be used: {error}");
        let file = folder.write_new_pair(locked, name, &issued);
        let file = file.map_err(|error| unusable(&error))?;
        let files = PairFiles {
            certificate: file.clone(),
            key: file,
        };
        let pair = Pair::read(&files, &self.provider).map_err(|bad| unusable(&bad))?;
        if !pair.names.iter().any(|issued| **issued == *name) {
            return Err(unusable(&"it does not have the name"));
        }
        if keeps_old && let Ok(old) = self.read(name) {
            let kept = folder.set_replaced(locked, name, &old.key.cert[0]);
            kept.map_err(|error| error.to_string())?;
        }
        let used = folder.use_new_pair(locked, name);
        used.map_err(|error| unusable(&error))?;
        Ok(pair.valid)
    }

    /// Reads the certificate that is in force.
    fn read(&self, name: &str) -> Result<Pair, String> {
        Pair::read(&self.settings.pair(name), &self.provider).map_err(|bad| bad.to_string())
    }
}

/// Keeps the certificates of a service valid. Never returns.
pub(crate) async fn keep(terminator: Arc<Terminator>, connect: Connect, service: &'static str) {
    let Some(settings) = terminator.acme() else {
        return pending().await;
    };
    let renewal = Renewal {
        settings: settings.clone(),
        provider: provider(),
        connect,
    };
    loop {
        let now = SystemTime::now();
        let mut next = now + LOOK_AGAIN;
        for name in &settings.names {
            let (at, why) = match renewal.step_aside(name).await {
                Ok(Step::Wait(at, why)) => (at, why),
                Ok(Step::Busy) => {
                    next = next.min(now + BUSY);
                    continue;
                }
                Ok(Step::Tried(tried, at)) => {
                    terminator.counts().tried(tried.is_ok());
                    report(service, name, &tried, at);
                    (at, tried.err())
                }
                Err(error) => {
                    let why = format!("cannot use the folder for {name}: {error}");
                    tracing::error!(service, "acme: {why}");
                    (now + UNUSABLE, Some(why))
                }
            };
            terminator.counts().will_try(name, NextTry { at, why });
            next = next.min(at);
        }
        let wait = next.duration_since(SystemTime::now()).unwrap_or_default();
        // A second more than needed, because times in the folder have whole seconds.
        sleep(wait + Duration::from_secs(1)).await;
    }
}

fn report(service: &'static str, name: &str, tried: &Result<Validity, String>, next: SystemTime) {
    let next = rfc3339_seconds(next);
    match tried {
        Ok(valid) => {
            let until = rfc3339_seconds(valid.to);
            tracing::info!(
                service,
                "acme: {name} has a certificate until {until}, and renews it at {next}"
            );
        }
        Err(why) => tracing::error!(
            service,
            "acme: no new certificate for {name}: {why}. The next try is at {next}. An old certificate, if there is \
             one, stays in force"
        ),
    }
}
