//! Starts what the operator watches: the listeners for metrics, probes and the status page, the
//! admin socket, and the records of open sessions.

use std::io;
use std::sync::Arc;

use spliceway_protocol::address::ListenAddress;

use crate::admin::Admin;
use crate::control::Control;
use crate::http_server::{self, Answers};
use crate::listener;
use crate::log::announce;
use crate::overview::Overview;
use crate::policy::OwnListeners;
use crate::record;
use crate::settings::Settings;
use crate::status_page::StatusPage;
use crate::status_server::StatusServer;

/// Opens the listeners that the settings ask for, and serves them until the runtime ends.
///
/// # Errors
/// Returns an error if a listener cannot be opened.
pub(crate) async fn start(
    settings: &Settings,
    own: &OwnListeners,
    overview: Arc<Overview>,
    control: Control,
) -> io::Result<()> {
    if settings.admin.is_some() || settings.status_page.is_some() {
        let overview = Arc::clone(&overview);
        tokio::spawn(async move { overview.watch().await });
    }
    if let Some(interval) = settings.record_interval {
        let sessions = Arc::clone(&overview.sessions);
        tokio::spawn(async move { record::write_open(&sessions, interval).await });
    }
    if let Some(address) = &settings.metrics {
        let hosts = settings.status_page.clone();
        let server = StatusServer {
            page: hosts.map(|hosts| StatusPage::new(hosts, Arc::clone(&overview))),
            overview: Arc::clone(&overview),
        };
        open("metrics", address, own, server, &overview).await?;
    }
    if let Some(address) = &settings.admin {
        let overview = Arc::clone(&overview);
        let server = Admin {
            overview: Arc::clone(&overview),
            control,
        };
        open("admin", address, own, server, &overview).await?;
    }
    Ok(())
}

async fn open(
    name: &str,
    address: &ListenAddress,
    own: &OwnListeners,
    answers: impl Answers,
    overview: &Overview,
) -> io::Result<()> {
    let answers = Arc::new(answers);
    for listener in listener::bind(address).await? {
        let own = own.add(&listener)?;
        let described = listener.describe();
        announce(&format_args!("{name} listening on {described}"));
        let guard = overview.health.guard(&format!("the {name} listener on {described}"));
        let serving = http_server::serve(listener, Arc::clone(&answers), Arc::clone(&overview.metrics));
        tokio::spawn(async move {
            let _held = (guard, own);
            serving.await;
        });
    }
    Ok(())
}
