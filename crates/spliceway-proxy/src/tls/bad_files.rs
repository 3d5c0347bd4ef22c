//! Finds every file that the TLS of a service cannot use. A terminator ends with the first one.

use super::certificate::{BadFile, Pair};
use super::client_cert::ClientFiles;
use super::crypto::provider;
use super::names::Pairs;
use super::server::ServerSettings;
use super::shared_keys::SharedKeys;

/// Returns the first fault of each pair, of the keys of tickets, of each CA, and of each list of
/// revoked certificates.
pub(crate) fn bad_files(settings: &ServerSettings) -> Vec<BadFile> {
    let (provider, mut bad) = (provider(), Vec::new());
    let files = settings.all_pairs().unwrap_or_else(|why| {
        bad.push(why);
        settings.pairs.clone()
    });
    let mut pairs = Vec::new();
    for files in &files {
        match Pair::read(files, &provider) {
            Ok(pair) => pairs.push(pair),
            Err(why) => bad.push(why),
        }
    }
    let pairs = Pairs::new(pairs);
    bad.extend(
        settings
            .ticket_keys
            .iter()
            .filter_map(|file| SharedKeys::read(file, &pairs).err()),
    );
    if let Some(clients) = &settings.clients {
        bad.extend(ClientFiles::read(clients, &provider).bad);
    }
    bad
}
