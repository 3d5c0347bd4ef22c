//! Starts what the operator watches: the listeners for metrics, probes and the status page, and the
//! admin socket.

use std::io;
use std::sync::Arc;

use spliceway_protocol::address::ListenAddress;
use tracing::Level;

use crate::log::announce;
use crate::monitor::admin::{Access, Admin};
use crate::monitor::challenge_server::ChallengeServer;
use crate::monitor::control::Control;
use crate::monitor::http_server::{self, Answers};
use crate::monitor::overview::Overview;
use crate::monitor::status_page::StatusPage;
use crate::monitor::status_server::StatusServer;
use crate::net::adopted::Offered;
use crate::net::listener::Transport;
use crate::session::Process;
use crate::settings::Settings;

/// Opens the listeners that the settings ask for, and serves them until the runtime ends. Returns
/// them.
///
/// # Errors
/// Returns an error if a listener cannot be opened.
pub(crate) async fn start(settings: &Settings, overview: &Arc<Overview>, control: Control) -> io::Result<Vec<Offered>> {
    let (process, mut open_listeners) = (&overview.process, Vec::new());
    if settings.admin.is_some() || settings.remote_admin.is_some() || settings.status_page.is_some() {
        let watching = Arc::clone(overview);
        let task = async move { watching.watch().await };
        process.health.spawn("the task that samples rates", task);
    }
    if let Some(address) = &settings.metrics {
        let hosts = settings.status_page.clone();
        let server = StatusServer {
            page: hosts.map(|hosts| StatusPage::new(hosts, Arc::clone(overview))),
            overview: Arc::clone(overview),
        };
        open_listeners.push(serve("metrics", address, server, process).await?);
    }
    if let Some((address, folder)) = &settings.acme_http {
        let server = ChallengeServer::new(folder.clone());
        open_listeners.push(serve("acme", address, server, process).await?);
    }
    if let Some(address) = &settings.admin {
        let overview = Arc::clone(overview);
        let server = Admin::new(overview, control.clone(), Access::Open);
        open_listeners.push(serve("admin", address, server, process).await?);
    }
    if let Some((address, tokens)) = &settings.remote_admin {
        let server = Admin::new(Arc::clone(overview), control, Access::by_tokens(Arc::clone(tokens)));
        open_listeners.push(serve("admin-remote", address, server, process).await?);
    }
    Ok(open_listeners)
}

/// Opens the listeners of an address, and answers their clients.
async fn serve(
    name: &str,
    address: &ListenAddress,
    answers: impl Answers,
    process: &Arc<Process>,
) -> io::Result<Offered> {
    let answers = Arc::new(answers);
    let mut offered = Offered {
        role: name.to_owned(),
        address: address.to_string(),
        listeners: Vec::new(),
    };
    let found = process.adopted.bind(name, address, Transport::Streams).await?;
    for listener in found.listeners {
        let own = process.own.add(&listener)?;
        let listener = Arc::new(listener);
        offered.listeners.push(Arc::clone(&listener));
        let described = listener.describe();
        announce(Level::INFO, &format_args!("{name} listening on {described}"));
        let guard = process.health.guard(&format!("the {name} listener on {described}"));
        let serving = http_server::serve(listener, Arc::clone(&answers), Arc::clone(process));
        tokio::spawn(async move {
            let _held = (guard, own);
            serving.await;
        });
    }
    Ok(offered)
}
