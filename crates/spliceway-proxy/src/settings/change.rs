//! A change of services at run time: what the operator asks for, and the settings after it.
//!
//! ```text
//!   settings in force ─ Change::apply ─▶ Changed: settings to plan and commit, or dropped
//!                                           └─ a file to replace just before the commit
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value as Json;

use super::config::{self, List, Value};
use super::given::{self, Table, version};
use super::{Origin, ServiceSettings, Settings};

/// The beginning of a file that a change may replace.
const MARK: &str = "# spliceway wrote this file";
/// The first line of such a file.
const FIRST_LINE: &str = "# spliceway wrote this file, and replaces it when the service changes. \
                          To stop that, remove this line.\n";

/// What to change. All of it takes effect, or nothing.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Change {
    pub(crate) edits: BTreeMap<String, Edit>,
    pub(crate) condition: Condition,
    /// Whether to find out what would change, and to change nothing.
    pub(crate) is_dry_run: bool,
    /// Whether to write the service to a file.
    pub(crate) persists: bool,
}

/// A change of one service.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Edit {
    /// Give the service this table.
    Put(Table),
    /// Change some keys of the table (RFC 7396).
    Merge(Table),
    /// As `Merge`, and add a service that there is not.
    MergeOrAdd(Table),
    Remove,
    /// Remove a service, if there is one.
    RemoveAny,
    AddBackend(String),
    RemoveBackend(String),
}

/// The state of the service that the operator expects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Condition {
    None,
    /// There is no such service.
    Absent,
    /// There is such a service.
    Present,
    /// The service has one of these versions.
    Versions(Vec<String>),
}

/// The settings after a change, and what else it needs.
pub(crate) struct Changed {
    pub(crate) settings: Settings,
    /// The version of the service, if the change is about one that stays.
    pub(crate) version: Option<String>,
    /// Whether this service is new.
    pub(crate) is_new: bool,
    pub(crate) file: Option<FileChange>,
}

/// A file that changes with a service.
pub(crate) struct FileChange {
    pub(crate) path: PathBuf,
    /// The text that the program has written or read. `None` if there must be no file.
    pub(crate) before: Option<String>,
    /// `None` removes the file.
    pub(crate) text: Option<String>,
}

/// Why a change is refused. The text is a sentence for the operator.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// There is no such service or backend.
    Missing(String),
    /// The service is not in the expected state.
    Unexpected(String),
    /// The service belongs to a file of the operator.
    Foreign(String),
    /// The settings after the change would have a fault.
    Invalid(String),
}

/// A service as the operator sees it.
pub(crate) struct Shown {
    /// The table. That of a service in a file has the defaults for all services.
    pub(crate) table: Json,
    pub(crate) place: Place,
}

/// Where the table of a service is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// Only in this process and those after it.
    Memory,
    /// In a file that a change replaces.
    OwnFile(PathBuf),
    /// In a file of the operator.
    File(PathBuf),
    CommandLine,
}

impl Settings {
    /// Returns the service with this name, as the operator sees it.
    pub(crate) fn shown(&self, name: &str) -> Option<Shown> {
        let service = self.services.iter().find(|service| *service.name == *name)?;
        Some(self.show(service))
    }

    /// Returns one of the services as the operator sees it.
    pub(crate) fn show(&self, service: &ServiceSettings) -> Shown {
        if let Some(given) = self.origin.given().get(&service.name) {
            return Shown {
                table: Json::Object(given.table.clone()),
                place: given.file.clone().map_or(Place::Memory, Place::OwnFile),
            };
        }
        let Some((files, at)) = self.place_of(service) else {
            return Shown {
                table: self.effective(service),
                place: Place::CommandLine,
            };
        };
        let path = files.file(at).map(|(path, _)| path.to_owned()).unwrap_or_default();
        match files.parsed_if_right(at, own_table) {
            Some(table) => Shown {
                table: Json::Object(table),
                place: Place::OwnFile(path),
            },
            None => Shown {
                table: self.effective(service),
                place: Place::File(path),
            },
        }
    }

    /// Returns the table of a service with the defaults for all services.
    fn effective(&self, service: &ServiceSettings) -> Json {
        let mut table = serde_json::to_value(&service.config).unwrap_or_default();
        table["name"] = (&*service.name).into();
        if let Some(files) = self.origin.files() {
            hide_variables(&mut table, files);
        }
        table
    }

    /// Returns the text of the service's own file, as the program has written or read it.
    fn text_before(&self, name: &str, service: Option<&&Arc<ServiceSettings>>) -> Option<String> {
        match self.origin.given().get(name) {
            Some(given) => own_text(&given.table).ok().filter(|_| given.file.is_some()),
            None => {
                let (files, at) = self.place_of(service?)?;
                files.file(at).map(|(_, text)| text.to_owned())
            }
        }
    }

    /// Returns the files, and an offset in the table of the service.
    fn place_of(&self, service: &ServiceSettings) -> Option<(&config::Sources, usize)> {
        let config = &service.config;
        let at = config.listen.as_ref().and_then(List::at);
        let at = at.or(config.kind.as_ref().and_then(Value::at))?;
        Some((self.origin.files()?, at))
    }
}

/// Shows each value with a variable in it as the files have it.
fn hide_variables(value: &mut Json, files: &config::Sources) {
    match value {
        Json::String(text) => {
            if let Some(written) = files.written(text) {
                *text = written;
            }
        }
        Json::Array(values) => values.iter_mut().for_each(|value| hide_variables(value, files)),
        Json::Object(values) => values.values_mut().for_each(|value| hide_variables(value, files)),
        _ => {}
    }
}

/// Returns the text of a file with this service.
fn own_text(table: &Table) -> Result<String, String> {
    Ok(FIRST_LINE.to_owned() + &given::text_of(table)?)
}

/// Returns the table in a file that a change may replace: it has the mark, and one service.
fn own_table(text: &str) -> Option<Table> {
    if !text.starts_with(MARK) {
        return None;
    }
    let mut file: Table = toml::from_str(text).ok()?;
    let services = file.remove("service").filter(|_| file.is_empty())?;
    match services.as_array().map(Vec::as_slice) {
        Some([Json::Object(table)]) => Some(table.clone()),
        _ => None,
    }
}

impl Change {
    /// Returns the settings after the change. This reads the files that changed services name.
    ///
    /// # Errors
    /// Returns why the change is refused.
    pub(crate) fn apply(&self, settings: &Settings) -> Result<Changed, Refused> {
        let mut given = settings.origin.given().clone();
        let known = |service: &&Arc<ServiceSettings>| self.edits.contains_key(&*service.name);
        let services = settings.services.iter().filter(known);
        let services: HashMap<_, _> = services.map(|service| (&*service.name, service)).collect();
        let (mut changed, mut version_after, mut is_new, mut file) = (BTreeSet::new(), None, false, None);
        for (name, edit) in &self.edits {
            let shown = services.get(name.as_str()).map(|service| settings.show(service));
            self.condition.check(name, shown.as_ref())?;
            let place = shown.as_ref().map(|shown| shown.place.clone());
            check_place(name, place.as_ref())?;
            is_new = shown.is_none();
            let table = match shown.map(|shown| shown.table) {
                Some(Json::Object(table)) => Some(table),
                _ => None,
            };
            let is_known = table.is_some();
            let table = edit.apply(name, table)?;
            if table.is_some() || is_known {
                changed.insert(name.as_str());
            }
            let own = match place {
                Some(Place::OwnFile(path)) => Some(path),
                _ if self.persists && table.is_some() => Some(new_file(name, &settings.origin)?),
                _ => None,
            };
            match table {
                Some(table) => {
                    let invalid = |problem| Refused::Invalid(format!("service `{}`: {problem}", name.escape_debug()));
                    given.set(name, table, own.clone()).map_err(invalid)?;
                    version_after = given.get(name).map(|given| version(&Json::Object(given.table.clone())));
                }
                None => given.remove(name),
            }
            if let Some(path) = own {
                if self.edits.len() > 1 {
                    let why = format!("{name} is in a file: change one such service in each request");
                    return Err(Refused::Foreign(why));
                }
                let text = given.get(name).map(|given| own_text(&given.table)).transpose();
                let text = text.map_err(Refused::Invalid)?;
                let before = settings.text_before(name, services.get(name.as_str()));
                file = Some(FileChange { path, before, text });
            }
        }
        let settings = settings.with(given, &changed).map_err(Refused::Invalid)?;
        Ok(Changed {
            settings,
            version: version_after.filter(|_| self.edits.len() == 1),
            is_new,
            file,
        })
    }
}

fn check_place(name: &str, place: Option<&Place>) -> Result<(), Refused> {
    match place {
        Some(Place::File(path)) => {
            let path = path.display();
            let why = format!("{name} comes from {path}: edit it there, and reload");
            Err(Refused::Foreign(why))
        }
        Some(Place::CommandLine) => {
            let why = format!("{name} comes from the command line, and needs a restart for other flags");
            Err(Refused::Foreign(why))
        }
        _ => Ok(()),
    }
}

/// Returns the path for the file of a service that has none.
fn new_file(name: &str, origin: &Origin) -> Result<PathBuf, Refused> {
    // The folder may have been removed since.
    let is_folder = |files: &&config::Sources| files.folder() == Some(files.path()) || files.path().is_dir();
    let Some(folder) = origin.files().filter(is_folder).map(config::Sources::path) else {
        let why = "the configuration is no folder, so the service has no file: put the file into a folder that the \
                   program may write to, and start it with `run FOLDER` (for the packaged service, docs/packages.md). \
                   Or do not ask for persistence";
        return Err(Refused::Foreign(why.to_owned()));
    };
    if name.starts_with('.') {
        let why = "files that begin with a dot are not read: give the service another name";
        return Err(Refused::Foreign(why.to_owned()));
    }
    let path = folder.join(format!("{name}.toml"));
    if path.symlink_metadata().is_ok() {
        let why = format!(
            "{} exists already: remove it, or give the service another name",
            path.display()
        );
        return Err(Refused::Foreign(why));
    }
    Ok(path)
}

impl Condition {
    fn check(&self, name: &str, shown: Option<&Shown>) -> Result<(), Refused> {
        let fits = match (self, shown) {
            (Self::None, _) | (Self::Absent, None) | (Self::Present, Some(_)) => true,
            (Self::Versions(versions), Some(shown)) => versions.contains(&version(&shown.table)),
            _ => false,
        };
        if fits {
            return Ok(());
        }
        let name = name.escape_debug();
        Err(Refused::Unexpected(match shown {
            Some(_) if *self == Self::Absent => {
                format!("there is a service `{name}` already: change it (`spliceway service set`), or remove it before")
            }
            Some(_) => format!("service `{name}` has changed meanwhile: read it again"),
            None => format!("there is no service `{name}`"),
        }))
    }
}

impl Edit {
    /// Returns the table after the edit, or `None` if the service is removed.
    fn apply(&self, name: &str, table: Option<Table>) -> Result<Option<Table>, Refused> {
        let missing = || Refused::Missing(format!("there is no service `{}`", name.escape_debug()));
        let after = match self {
            Self::Put(table) => table.clone(),
            Self::MergeOrAdd(patch) => merged(table.unwrap_or_default(), patch),
            Self::Merge(patch) => merged(table.ok_or_else(missing)?, patch),
            Self::Remove => return table.map(|_| None).ok_or_else(missing),
            Self::RemoveAny => return Ok(None),
            Self::AddBackend(to) => {
                let mut table = table.ok_or_else(missing)?;
                add_backend(&mut table, to);
                table
            }
            Self::RemoveBackend(to) => {
                let mut table = table.ok_or_else(missing)?;
                if !remove_backend(&mut table, to) {
                    let (name, to) = (name.escape_debug(), to.escape_debug());
                    let why = format!("service `{name}` has no backend `{to}`");
                    return Err(Refused::Missing(why));
                }
                if !has_backends(&table) {
                    let name = name.escape_debug();
                    let why = format!(
                        "this is the last backend of service `{name}`: add another one first, or remove the service \
                         (`spliceway service rm {name}`)"
                    );
                    return Err(Refused::Invalid(why));
                }
                table
            }
        };
        match after.get("name") {
            Some(Json::String(other)) if other != name => {
                let (name, other) = (name.escape_debug(), other.escape_debug());
                let why = format!("service `{name}`: name: is `{other}`: expected the name in the path, or none");
                Err(Refused::Invalid(why))
            }
            _ => Ok(Some(after)),
        }
    }
}

/// Returns a table with the keys of a patch. A null removes a key.
fn merged(mut table: Table, patch: &Table) -> Table {
    for (key, value) in patch {
        match (value, table.get_mut(key)) {
            (Json::Null, _) => drop(table.remove(key)),
            (Json::Object(patch), Some(Json::Object(old))) => *old = merged(std::mem::take(old), patch),
            (Json::Object(patch), _) => {
                let new = merged(Table::new(), patch);
                table.insert(key.clone(), Json::Object(new));
            }
            (value, _) => drop(table.insert(key.clone(), value.clone())),
        }
    }
    table
}

/// Returns the address of a backend without what follows a comma.
fn address(to: &str) -> &str {
    to.split(',').next().unwrap_or(to)
}

/// Adds a backend, or gives one with the same address these options.
fn add_backend(table: &mut Table, to: &str) {
    if let Some(Json::Array(backends)) = table.get_mut("backend") {
        let new = serde_json::json!({ "to": to });
        match backends.iter_mut().find(|backend| is_at(backend, to)) {
            Some(backend) => *backend = new,
            None => backends.push(new),
        }
        return;
    }
    let mut targets = targets(table);
    match targets.iter_mut().find(|old| address(old) == address(to)) {
        Some(old) => to.clone_into(old),
        None => targets.push(to.to_owned()),
    }
    table.insert("to".to_owned(), targets.into());
}

/// Returns whether there was such a backend.
fn remove_backend(table: &mut Table, to: &str) -> bool {
    if let Some(Json::Array(backends)) = table.get_mut("backend") {
        let before = backends.len();
        backends.retain(|backend| !is_at(backend, to));
        return backends.len() < before;
    }
    let mut targets = targets(table);
    let before = targets.len();
    targets.retain(|old| address(old) != address(to));
    let is_removed = targets.len() < before;
    table.insert("to".to_owned(), targets.into());
    is_removed
}

fn has_backends(table: &Table) -> bool {
    let has_tables = |tables: &Json| tables.as_array().is_some_and(|tables| !tables.is_empty());
    table.get("backend").is_some_and(has_tables) || !targets(table).is_empty()
}

fn is_at(backend: &Json, to: &str) -> bool {
    backend["to"].as_str().is_some_and(|old| address(old) == address(to))
}

/// Returns the targets of a forwarder. The key has text with spaces, or an array.
fn targets(table: &Table) -> Vec<String> {
    match table.get("to") {
        Some(Json::String(text)) => text.split_whitespace().map(str::to_owned).collect(),
        Some(Json::Array(targets)) => targets.iter().filter_map(Json::as_str).map(str::to_owned).collect(),
        _ => Vec::new(),
    }
}
