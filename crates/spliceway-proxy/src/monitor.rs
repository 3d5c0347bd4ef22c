//! The operator's servers: the admin socket, the status page, the scrape of metrics.

pub(crate) mod admin;
pub(crate) mod control;
pub(crate) mod http_server;
pub(crate) mod overview;
pub(crate) mod status_page;
pub(crate) mod status_server;
