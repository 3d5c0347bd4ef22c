//! Takes the place of `acme` in a build without the feature `tls`. The settings refuse all that
//! would use it.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::server::ClientHello;
use spliceway_protocol::address::Target;

use super::certificate::PairFiles;
use super::client::Originator;
use super::counts::NextTry;
use super::server::Terminator;
use crate::net::stream::Stream;

const REFUSED: &str = "the settings refuse ACME";

pub(crate) type Connect = Arc<dyn Fn(Target) -> Connecting + Send + Sync>;
pub(crate) type Connecting = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AcmeSettings {
    pub(crate) names: Vec<Box<str>>,
    pub(crate) directory: String,
    pub(crate) folder: StateFolder,
    pub(crate) email: Option<Box<str>>,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) uses_http: bool,
}

impl AcmeSettings {
    pub(crate) fn pairs(&self) -> Vec<PairFiles> {
        unreachable!("{REFUSED}")
    }

    pub(crate) fn originator(&self) -> Result<Originator, String> {
        unreachable!("{REFUSED}")
    }

    pub(crate) fn next_try(&self, _: &str, _: &CryptoProvider, _: SystemTime) -> io::Result<NextTry> {
        unreachable!("{REFUSED}")
    }

    pub(crate) fn answer(&self, _: &str, _: &Arc<CryptoProvider>) -> Option<Arc<ServerConfig>> {
        unreachable!("{REFUSED}")
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StateFolder;

impl StateFolder {
    pub(crate) fn new(_: PathBuf, _: &str) -> Result<Self, &'static str> {
        Err("needs a build with TLS: expected one with the cargo feature `tls`")
    }

    pub(crate) fn path(&self) -> &Path {
        unreachable!("{REFUSED}")
    }

    pub(crate) fn pair(&self, _: &str) -> PathBuf {
        unreachable!("{REFUSED}")
    }

    pub(crate) fn answer(&self, _: &str) -> io::Result<Option<String>> {
        unreachable!("{REFUSED}")
    }
}

pub(crate) fn is_validation(_: &ClientHello<'_>) -> bool {
    unreachable!("{REFUSED}")
}

pub(crate) async fn keep(_: Arc<Terminator>, _: Connect, _: Arc<str>) {
    unreachable!("{REFUSED}")
}
