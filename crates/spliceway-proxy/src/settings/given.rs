//! The services that were given at run time, by the admin socket, and not by files.
//!
//! A reload keeps them, and an upgrade hands them to the new process. They belong to the settings:
//! a change makes new settings, which are in force or dropped as a whole.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Map, Value as Json};
use toml::Spanned;

use super::config::{self, Service};
use super::faults::{Fault, Faults};

/// The limit on one table, which has room for a thousand routes of TLS names.
const TABLE_MAX_BYTES: usize = 128 << 10;
/// The limit on all tables together, as for files.
const ALL_MAX_BYTES: usize = 16 << 20;
/// The most services that are given at run time. Files of 16 MiB have room for as many.
const SERVICES_MAX: usize = 60_000;
/// The offset of the first table, behind those of all files with the values of their variables.
const FIRST: usize = 1 << 28;
/// The distance of two tables. A table in TOML may be longer than in JSON.
const STEP: usize = 2 * TABLE_MAX_BYTES;

/// The table of a service, as the operator has written it.
pub(super) type Table = Map<String, Json>;

/// Services by their names. Clones share the tables.
#[derive(Debug, Clone, Default)]
pub(crate) struct Given {
    services: BTreeMap<Arc<str>, Arc<GivenService>>,
    bytes: usize,
}

#[derive(Debug)]
pub(super) struct GivenService {
    pub(super) table: Table,
    /// The file that has the table too. A reload reads it from there.
    pub(super) file: Option<PathBuf>,
    /// The offset where the locations in the table begin. No other table has it, because settings
    /// remember locations.
    at: usize,
    bytes: usize,
}

impl Given {
    pub(super) const NONE: Self = Self {
        services: BTreeMap::new(),
        bytes: 0,
    };

    /// Returns the services whose tables are in this JSON, which another process has encoded.
    ///
    /// # Errors
    /// Returns an error if it has another form.
    pub(crate) fn decode(json: &[u8]) -> Result<Self, String> {
        let tables: BTreeMap<String, Table> = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        let mut given = Self::default();
        for (name, table) in tables {
            given.set(&name, table, None)?;
        }
        Ok(given)
    }

    /// Returns the tables that are not in files, for another process. Returns `None` if there are
    /// none.
    pub(crate) fn encode(&self) -> Option<Vec<u8>> {
        let transient = self.transient();
        let tables = transient
            .services
            .iter()
            .map(|(name, service)| (&**name, &service.table));
        let tables: BTreeMap<_, _> = tables.collect();
        // Text and numbers can always be encoded.
        (!tables.is_empty()).then(|| serde_json::to_vec(&tables).unwrap_or_default())
    }

    /// Returns the services that no file has.
    pub(crate) fn transient(&self) -> Self {
        let mut transient = self.clone();
        transient.services.retain(|_, service| service.file.is_none());
        transient.bytes = transient.services.values().map(|service| service.bytes).sum();
        transient
    }

    pub(super) fn get(&self, name: &str) -> Option<&Arc<GivenService>> {
        self.services.get(name)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.services.is_empty()
    }

    /// Sets the table of a service.
    ///
    /// # Errors
    /// Returns an error if there are too many services, or if they are too long.
    pub(super) fn set(&mut self, name: &str, mut table: Table, file: Option<PathBuf>) -> Result<(), String> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        table.insert("name".to_owned(), name.into());
        let bytes = text_of(&table)?.len();
        if bytes > TABLE_MAX_BYTES {
            let most = TABLE_MAX_BYTES >> 10;
            return Err(format!("the table is too long: expected at most {most} KiB"));
        }
        self.remove(name);
        if self.services.len() >= SERVICES_MAX {
            return Err(format!(
                "expected at most {SERVICES_MAX} services that are given at run time"
            ));
        }
        if self.bytes + bytes > ALL_MAX_BYTES {
            let most = ALL_MAX_BYTES >> 20;
            return Err(format!(
                "expected at most {most} MiB in all services that are given at run time"
            ));
        }
        self.bytes += bytes;
        // Two services share locations only after so many changes that no old one is left.
        let slot = COUNT.fetch_add(1, Ordering::Relaxed) % ((usize::MAX - FIRST) / STEP);
        let service = GivenService {
            table,
            file,
            at: FIRST + slot * STEP,
            bytes,
        };
        self.services.insert(name.into(), Arc::new(service));
        Ok(())
    }

    pub(super) fn remove(&mut self, name: &str) {
        if let Some(service) = self.services.remove(name) {
            self.bytes -= service.bytes;
        }
    }

    /// Returns the tables of all services, or of those with these names, without what is wrong.
    pub(super) fn tables<'a>(
        &self,
        names: impl Iterator<Item = &'a str>,
        faults: &mut Faults,
    ) -> Vec<Spanned<Service>> {
        let services = names.filter_map(|name| self.services.get(name));
        let tables = services.flat_map(|service| {
            let text = text_of(&service.table).map_err(|problem| Fault::new(Some(service.at), "", problem));
            let text = faults.keep(text);
            text.map(|text| config::source::tables(&text, service.at, &config::source::variable, faults))
                .unwrap_or_default()
        });
        tables.collect()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.services.keys().map(|name| &**name)
    }

    /// Returns whether the offset is in a table of a service that was given at run time.
    pub(super) fn has(at: usize) -> bool {
        at >= FIRST
    }

    /// Returns the name of the service whose table has this offset, for messages.
    pub(super) fn location(&self, at: usize) -> String {
        let mut services = self.services.iter();
        let found = services.find(|(_, service)| (service.at..service.at + STEP).contains(&at));
        found.map_or_else(|| "a removed one".to_owned(), |(name, _)| shown(name))
    }
}

fn shown(name: &str) -> String {
    format!("`{}`", name.escape_debug())
}

/// Returns the table as in a file, with the keys in the order of a printed file.
///
/// # Errors
/// Returns an error if a service has no such value.
pub(super) fn text_of(table: &Table) -> Result<String, String> {
    let mut text = "[[service]]\n".to_owned();
    let rank = |key: &str| {
        <Service as config::Table>::KEYS
            .iter()
            .position(|known| known.name == key)
    };
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_cached_key(|(key, _)| (rank(key).unwrap_or(usize::MAX), *key));
    for (key, value) in entries {
        match value {
            Json::Array(backends) if key == "backend" => {
                for backend in backends {
                    text += "\n[[service.backend]]\n";
                    let entries = backend.as_object().into_iter().flatten();
                    for (key, value) in entries {
                        text += &line(key, value).map_err(|problem| format!("backend.{problem}"))?;
                    }
                }
            }
            value => text += &line(key, value)?,
        }
    }
    Ok(text)
}

/// Returns the line of a key. A value with tables in it would leave the table of the service.
fn line(key: &str, value: &Json) -> Result<String, String> {
    let is_simple = |value: &Json| matches!(value, Json::Bool(_) | Json::Number(_) | Json::String(_));
    let fits = match value {
        Json::Array(values) => values.iter().all(is_simple),
        value => is_simple(value),
    };
    if !fits {
        let key = key.escape_debug();
        return Err(format!(
            "{key}: expected text, a number, true, false, or an array of text; without a value, leave the key out"
        ));
    }
    let line = Table::from_iter([(key.to_owned(), value.clone())]);
    toml::to_string(&line).map_err(|error| format!("{}: {error}", key.escape_debug()))
}

/// Returns the version of a table. The same table has the same version, in any process.
pub(crate) fn version(table: &Json) -> String {
    let mut hasher = DefaultHasher::new();
    table.to_string().hash(&mut hasher);
    format!("\"{:016x}\"", hasher.finish())
}
