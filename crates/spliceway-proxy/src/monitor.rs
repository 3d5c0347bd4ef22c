//! The operator's servers: the admin socket, the status page, the scrape of metrics.

pub(crate) mod admin;
mod challenge_server;
pub(crate) mod control;
mod earlier;
mod history;
mod http_server;
pub(crate) mod overview;
mod recent;
pub(crate) mod servers;
mod status_page;
mod status_server;
