//! `spliceway doctor`: what works on this machine, in general or for one configuration.

mod backends;
mod files;
mod limits;
mod ports;
mod tls;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use spliceway_lab::doctor::{self, DoctorCommand, Form, Mark, Note, Subject, Way};

use crate::kit::limits::{Descriptors, raise_descriptors};
use crate::run::lifetime;
use crate::settings::{Given, Settings, Source, tls_files};

/// What to try.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Try what this configuration needs, instead of zero copy: its ports, backends, names,
    /// certificates, limits and files. The exit code is 1 if something will fail
    #[arg(short, long, value_name = "PATH", conflicts_with_all = ["exhaust", "transparent", "tls"])]
    config: Option<PathBuf>,
    /// The path, as for --config
    #[arg(value_name = "PATH", conflicts_with_all = ["config", "exhaust", "transparent", "tls"])]
    path: Option<PathBuf>,
    /// Print every check with its details
    #[arg(short, long)]
    verbose: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Also use up the pipe pages of this user for a moment, to see what happens then
    #[arg(long)]
    exhaust: bool,
    /// Check what transparent proxying needs, instead of zero copy. The exit code is 0 if
    /// nothing is missing
    #[arg(long, value_name = "WAY", conflicts_with = "exhaust")]
    transparent: Option<Way>,
    /// Check only the certificates of this configuration. The exit code is 0 without a fault
    #[arg(long, value_name = "PATH", conflicts_with_all = ["exhaust", "transparent"])]
    tls: Option<PathBuf>,
}

/// Does the checks, and prints what they found. The code is 0 if nothing is wrong.
pub(super) fn run(arguments: DoctorArgs) -> io::Result<ExitCode> {
    let form = match (arguments.json, arguments.verbose) {
        (true, _) => Form::Json,
        (false, true) => Form::Long,
        (false, false) => Form::Short,
    };
    if let Some(path) = arguments.tls {
        return check_tls(form, &path);
    }
    if let Some(path) = arguments.config.or(arguments.path) {
        return check_configuration(form, &path);
    }
    let command = DoctorCommand {
        form,
        exhaust: arguments.exhaust,
        transparent: arguments.transparent,
    };
    doctor::run(command, possible_sessions())
}

/// Returns how many sessions a service could have at the same time. A service raises its soft limit
/// on descriptors, so only the hard limit matters.
fn possible_sessions() -> usize {
    let descriptors = raise_descriptors(None).unwrap_or(0);
    Descriptors::divide(descriptors, 1).sessions()
}

/// Checks the certificates of a configuration. The code is 0 without a fault.
fn check_tls(form: Form, path: &Path) -> io::Result<ExitCode> {
    let services = match tls_files(path) {
        Ok(services) => services,
        Err(problem) => return Ok(lifetime::refuse(&problem)),
    };
    let sections = tls::sections(&services).into_iter();
    let sections = sections.map(|(service, notes)| (format!("Service {service}"), notes));
    doctor::report_notes(Subject::Tls, form, sections.collect())
}

/// Tries what a configuration needs. The code is 0 without a fault.
fn check_configuration(form: Form, path: &Path) -> io::Result<ExitCode> {
    let mut sections = Vec::new();
    let certificates = certificates(path);
    match Source::Files(path.to_owned()).settings(Given::default()) {
        Ok(settings) => {
            sections.push(("Configuration".to_owned(), understood(path, &settings)));
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let limits = limits::notes(&settings);
            sections.push(("Ports".to_owned(), runtime.block_on(ports::notes(&settings))));
            sections.push(("Backends".to_owned(), runtime.block_on(backends::notes(&settings))));
            sections.push(("Certificates".to_owned(), certificates));
            sections.push(("Limits".to_owned(), limits));
            sections.push(("Files".to_owned(), files::notes(&settings)));
            // A lookup of a name may still run.
            runtime.shutdown_background();
        }
        Err(faults) => {
            let note = |fault| Note::new(Mark::Fault, "configuration", "the configuration", fault);
            sections.push(("Configuration".to_owned(), faults.lines().map(note).collect()));
            sections.push(("Certificates".to_owned(), certificates));
        }
    }
    doctor::report_notes(Subject::Configuration, form, sections)
}

fn understood(path: &Path, settings: &Settings) -> Vec<Note> {
    let path = path.display().to_string();
    let mut notes = vec![Note::new(Mark::Ok, "configuration", path, "valid")];
    let warnings = settings.warnings.iter();
    notes.extend(warnings.map(|warning| Note::new(Mark::Warning, "configuration", "the configuration", warning)));
    notes
}

/// Returns the notes on certificates. A fault outside of them has a note of its own.
fn certificates(path: &Path) -> Vec<Note> {
    let sections = tls::sections(&tls_files(path).unwrap_or_default());
    let named = |service: String, note: Note| Note {
        title: format!("{service}: {}", note.title),
        ..note
    };
    let notes = sections
        .into_iter()
        .flat_map(|(service, notes)| notes.into_iter().map(move |note| named(service.clone(), note)));
    notes.collect()
}
