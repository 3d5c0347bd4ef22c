//! Finds every file that the TLS of a service cannot use. A terminator ends with the first one.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use super::certificate::{BadFile, Pair};
use super::client_cert::ClientFiles;
use super::crypto::provider;
use super::names::Pairs;
use super::server::ServerSettings;
use super::shared_keys::SharedKeys;

/// Returns the first fault of each pair, of the keys of tickets, of each CA, and of each list of
/// revoked certificates. `first` is the fault that is known already. It is the only one if a file
/// is a pipe, which can be read once.
pub(crate) fn bad_files(settings: &ServerSettings, first: BadFile) -> Vec<BadFile> {
    if settings.files().any(|file| is_pipe(&file)) {
        return vec![first];
    }
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
    if bad.is_empty() {
        bad.push(first);
    }
    bad
}

fn is_pipe(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|found| found.file_type().is_fifo())
}
