//! Starts what the operator watches: the listeners for metrics, probes and the status page, the
//! admin socket, and the records of open sessions.

use std::io;
use std::sync::Arc;

use spliceway_protocol::address::ListenAddress;

use crate::log::announce;
use crate::monitor::admin::Admin;
use crate::monitor::control::Control;
use crate::monitor::http_server::{self, Answers};
use crate::monitor::overview::Overview;
use crate::monitor::status_page::StatusPage;
use crate::monitor::status_server::StatusServer;
use crate::net::listener::Transport;
use crate::run::handover::Offered;
use crate::run::instance::Shared;
use crate::session::record;
use crate::settings::Settings;

/// Opens the listeners that the settings ask for, and serves them until the runtime ends. Returns
/// them.
///
/// # Errors
/// Returns an error if a listener cannot be opened.
pub(crate) async fn start(
    settings: &Settings,
    shared: &Shared,
    overview: Arc<Overview>,
    control: Control,
) -> io::Result<Vec<Offered>> {
    let mut open_listeners = Vec::new();
    if settings.admin.is_some() || settings.status_page.is_some() {
        let watching = Arc::clone(&overview);
        let task = async move { watching.watch().await };
        shared.health.spawn("the task that samples rates", task);
    }
    if let Some(interval) = settings.record_interval {
        let sessions = Arc::clone(&overview.sessions);
        let task = async move { record::write_open(&sessions, interval).await };
        shared
            .health
            .spawn("the task that writes records of open sessions", task);
    }
    if let Some(address) = &settings.metrics {
        let hosts = settings.status_page.clone();
        let server = StatusServer {
            page: hosts.map(|hosts| StatusPage::new(hosts, Arc::clone(&overview))),
            overview: Arc::clone(&overview),
        };
        open_listeners.push(open("metrics", address, shared, server, &overview).await?);
    }
    if let Some(address) = &settings.admin {
        let overview = Arc::clone(&overview);
        let server = Admin {
            overview: Arc::clone(&overview),
            control,
        };
        open_listeners.push(open("admin", address, shared, server, &overview).await?);
    }
    Ok(open_listeners)
}

async fn open(
    name: &str,
    address: &ListenAddress,
    shared: &Shared,
    answers: impl Answers,
    overview: &Overview,
) -> io::Result<Offered> {
    let answers = Arc::new(answers);
    let mut offered = Offered {
        role: name.to_owned(),
        address: address.to_string(),
        listeners: Vec::new(),
    };
    let found = shared.adopted.bind(name, address, Transport::Streams).await?;
    for listener in found.listeners {
        let own = shared.own.add(&listener)?;
        let listener = Arc::new(listener);
        offered.listeners.push(Arc::clone(&listener));
        let described = listener.describe();
        announce(&format_args!("{name} listening on {described}"));
        let guard = overview.health.guard(&format!("the {name} listener on {described}"));
        let metrics = Arc::clone(&overview.metrics);
        let serving = http_server::serve(listener, shared.gate.clone(), Arc::clone(&answers), metrics);
        tokio::spawn(async move {
            let _held = (guard, own);
            serving.await;
        });
    }
    Ok(offered)
}
