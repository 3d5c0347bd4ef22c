//! The access log: where the records of sessions go.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, OnceLock};
use std::thread;

use rustix::fs::OFlags;
use rustix::io::Errno;
use spliceway_operator::text::count;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::Level;

use super::line::{Format, Line};
use super::queue::{Destination, Lines, Report};
use super::stderr::{LOG, STARTED, write};
use super::throttle::LogThrottle;
use crate::kit::created;
use crate::kit::health::Health;

/// Where records go.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum AccessLog {
    /// Among the other lines of the log, on stderr.
    #[default]
    Stderr,
    Stdout,
    File(PathBuf),
    /// There are no records.
    Off,
}

const NO_FILE: &str = "there is no log file to open again";
/// The mode of a new file. Records name clients and users.
const MODE: u32 = 0o640;
/// The thread also writes lines of the log.
const STACK_BYTES: usize = 256 << 10;

static ACCESS: OnceLock<Access> = OnceLock::new();
pub(super) static LINES: LazyLock<Lines> = LazyLock::new(Lines::default);
/// How often the operator has opened the file again, and how often that has failed.
static REOPENED: AtomicU64 = AtomicU64::new(0);
static NOT_REOPENED: AtomicU64 = AtomicU64::new(0);

/// What has been started.
#[derive(Clone, Copy)]
struct Access {
    route: Route,
    format: Format,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Route {
    /// Among the lines of the log.
    Log,
    /// To the thread of the access log. A signal opens a file again.
    Own {
        is_file: bool,
    },
    Nowhere,
}

/// Opens the access log, and starts its thread if it needs one.
///
/// # Errors
/// Returns an error if the file cannot be opened, or if the system cannot create a thread.
pub(super) fn start(access: &AccessLog, format: Format, health: &Health) -> io::Result<()> {
    let route = match access {
        AccessLog::Stderr => Route::Log,
        AccessLog::Off => Route::Nowhere,
        AccessLog::Stdout => {
            write_on_thread(
                Output::new("the access log on stdout".to_owned(), Target::Stdout),
                health,
            )?;
            Route::Own { is_file: false }
        }
        AccessLog::File(path) => {
            let name = format!("the access log {}", path.display());
            let open = created::watch(path, || OpenFile::open(path.clone()));
            let open = open.map_err(|error| io::Error::new(error.kind(), format!("cannot open {name}: {error}")))?;
            write_on_thread(Output::new(name, Target::File(open)), health)?;
            Route::Own { is_file: true }
        }
    };
    let _ = ACCESS.set(Access { route, format });
    Ok(())
}

fn write_on_thread(output: Output, health: &Health) -> io::Result<()> {
    let guard = health.guard("the thread that writes the access log");
    let thread = thread::Builder::new().name("spliceway-access".into());
    let spawned = thread.stack_size(STACK_BYTES).spawn(move || {
        let _guard = guard;
        LINES.write_to(output)
    });
    spawned.map(drop)
}

/// Writes the record of a session. `is_failure` makes it a warning if it goes to the log.
pub(crate) fn record(is_failure: bool, fill: impl FnOnce(&mut Line)) {
    let (Some(access), Some(look)) = (ACCESS.get(), STARTED.get()) else {
        return;
    };
    let (mut line, to) = match access.route {
        Route::Nowhere => return,
        Route::Own { .. } => (Line::new(access.format), &*LINES),
        Route::Log => {
            let (level, is_enabled) = if is_failure {
                (Level::WARN, tracing::enabled!(Level::WARN))
            } else {
                (Level::INFO, tracing::enabled!(Level::INFO))
            };
            if !is_enabled {
                return;
            }
            let line = Line::of_log(access.format, level, "session", look.is_colored);
            (line, &*LOG)
        }
    };
    fill(&mut line);
    line.end(|line| to.push(line));
}

/// Waits until every record is written, but not beyond `until`.
pub(super) fn flush(until: Instant) {
    if ACCESS
        .get()
        .is_some_and(|access| matches!(access.route, Route::Own { .. }))
    {
        LINES.flush(until);
    }
}

/// Opens the file again whenever the process receives USR1, so that a tool may have renamed it.
/// Without a file, the signal has no effect.
///
/// # Errors
/// Returns an error if the system does not let the program handle the signal.
pub(crate) fn reopen_at_signal(health: &Health) -> io::Result<()> {
    let mut signals = signal(SignalKind::user_defined1())?;
    health.spawn("the task that handles USR1", async move {
        while signals.recv().await.is_some() {
            if is_file() {
                LINES.reopen(None);
            } else {
                tracing::info!("USR1: {NO_FILE}");
            }
        }
    });
    Ok(())
}

/// Opens the file again, and returns a sentence that says so.
///
/// # Errors
/// Returns a sentence that says why another file or none is in use.
pub(crate) async fn reopen() -> Result<String, String> {
    if !is_file() {
        return Err(NO_FILE.to_owned());
    }
    let (answer, answered) = oneshot::channel();
    LINES.reopen(Some(answer));
    answered
        .await
        .unwrap_or_else(|_| Err("the access log has ended".to_owned()))
}

/// Follows renames from now on, because another process may be the one that is asked to open the
/// file again: the old process and the new one of an upgrade have the same file.
pub(crate) fn follow_renames() {
    LINES.follow();
}

fn is_file() -> bool {
    let access = ACCESS.get();
    access.is_some_and(|access| access.route == Route::Own { is_file: true })
}

/// Returns how often the file was to open the file again, by result.
pub(crate) fn reopens() -> [(&'static str, u64); 2] {
    [("ok", &REOPENED), ("failed", &NOT_REOPENED)].map(|(result, count)| (result, count.load(Ordering::Relaxed)))
}

/// The destination of the thread.
struct Output {
    /// What messages call it.
    name: String,
    target: Target,
    failures: LogThrottle,
    reports: LogThrottle,
}

enum Target {
    Stdout,
    File(OpenFile),
}

impl Output {
    fn new(name: String, target: Target) -> Self {
        Self {
            name,
            target,
            failures: LogThrottle::default(),
            reports: LogThrottle::default(),
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.target {
            Target::Stdout => write(io::stdout(), bytes),
            Target::File(open) => write(&open.file, bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Destination for Output {
    fn is_torn(&self) -> bool {
        matches!(&self.target, Target::File(open) if open.is_torn)
    }

    fn follow(&mut self) -> bool {
        let Target::File(open) = &mut self.target else {
            return false;
        };
        if !open.has_another_at_its_path() {
            return false;
        }
        let again = OpenFile::open(open.path.clone());
        let is_open = again.is_ok();
        if let Ok(again) = again {
            *open = again;
        }
        is_open
    }

    fn reopen(&mut self) -> Result<String, String> {
        let Target::File(open) = &mut self.target else {
            return Err(NO_FILE.to_owned());
        };
        let again = OpenFile::open(open.path.clone());
        let count = if again.is_ok() { &REOPENED } else { &NOT_REOPENED };
        count.fetch_add(1, Ordering::Relaxed);
        match again {
            Ok(again) => {
                *open = again;
                let done = format!("opened {} again", self.name);
                tracing::info!("{done}");
                Ok(done)
            }
            Err(error) => {
                let name = &self.name;
                let why = format!("cannot open {name} again: {error}. The file that was open stays in use");
                tracing::error!("{why}");
                Err(why)
            }
        }
    }

    fn failed(&mut self, error: &io::Error) {
        if self.failures.admits(Instant::now()) {
            tracing::error!("cannot write {}: {error}. Records are dropped and counted", self.name);
        }
    }

    /// The access log has only records, so the log says how many are missing.
    fn report_dropped(&mut self, dropped: u64, works: bool) -> Report {
        if !works || !self.reports.admits(Instant::now()) {
            return Report::Later;
        }
        tracing::warn!(
            "{} works again: {} missing, because the reader or the disk was too slow or failed",
            self.name,
            count(dropped, "record")
        );
        Report::Told
    }
}

/// A file that is open for records.
struct OpenFile {
    path: PathBuf,
    file: File,
    /// Whether the file ends in the middle of a line. A program before this one may have died
    /// there.
    is_torn: bool,
}

impl OpenFile {
    /// Opens or creates a regular file. Opening anything else could wait for a reader for ever, and
    /// would not be possible again after a rename.
    fn open(path: PathBuf) -> io::Result<Self> {
        // A FIFO does not wait for its reader.
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(MODE).custom_flags(flags);
        let file = options.open(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => expected("a file in a folder that exists", &error),
            io::ErrorKind::PermissionDenied => expected("a file that this user may write", &error),
            io::ErrorKind::IsADirectory => not_a_file(),
            _ if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => not_a_file(),
            _ => error,
        })?;
        if !file.metadata()?.is_file() {
            return Err(not_a_file());
        }
        let is_torn = last_byte(&path).is_some_and(|byte| byte != b'\n');
        Ok(Self { path, file, is_torn })
    }

    /// Returns whether the path leads to another file, because this one was renamed.
    fn has_another_at_its_path(&self) -> bool {
        let inode = |file: io::Result<Metadata>| file.map(|file| (file.dev(), file.ino()));
        match (inode(self.file.metadata()), inode(fs::metadata(&self.path))) {
            (Ok(own), Ok(found)) => own != found,
            // If there is no other file yet, this one stays in use.
            _ => false,
        }
    }
}

fn expected(what: &str, error: &io::Error) -> io::Error {
    io::Error::other(format!("{error}: expected {what}"))
}

fn not_a_file() -> io::Error {
    io::Error::other("expected a regular file, or `-` for stdout")
}

/// Returns the last byte of a file, or `None` if it is empty or cannot be read.
fn last_byte(path: &Path) -> Option<u8> {
    let flags = OFlags::NONBLOCK.bits() as i32;
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let mut byte = [0];
    file.seek(SeekFrom::End(-1)).ok()?;
    file.read_exact(&mut byte).ok()?;
    Some(byte[0])
}
