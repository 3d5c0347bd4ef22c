//! The files that say how names are looked up. They are read again when they change.
//!
//! ```text
//!   /etc/resolv.conf ──┐   once a second at most:
//!   /etc/hosts ────────┼─▶ has the file changed? ──▶ Snapshot
//!   /etc/nsswitch.conf ┘
//! ```
//!
//! A file that cannot be read any more keeps its last meaning, with a warning.

use parking_lot::Mutex;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use super::hosts::Hosts;
use super::ignored::Ignored;
use super::nsswitch::Plan;
use super::resolv_conf::{ResolvConf, Surroundings};

/// The shortest time between two looks at the files.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The largest file that is read. A list of blocked hosts has some 10 MB.
const FILE_MAX_BYTES: u64 = 32 << 20;
/// The socket of systemd-resolved that nss-resolve uses.
const RESOLVED: &str = "/run/systemd/resolve/io.systemd.Resolve";
/// The addresses at which systemd-resolved answers DNS queries.
const RESOLVED_STUBS: [[u8; 4]; 2] = [[127, 0, 0, 53], [127, 0, 0, 54]];

/// What the files say.
#[derive(Debug, Clone)]
pub(super) struct Snapshot {
    pub(super) conf: Arc<ResolvConf>,
    pub(super) hosts: Arc<Hosts>,
    pub(super) plan: Arc<Plan>,
    /// The number of changes that make cached answers invalid.
    pub(super) generation: u64,
}

/// The files and their last meaning.
pub(super) struct Files {
    around: Surroundings,
    state: Mutex<State>,
}

struct State {
    looked: Option<Instant>,
    conf: Watched,
    hosts: Watched,
    switch: Watched,
    snapshot: Snapshot,
}

/// A file, and what is known about it.
struct Watched {
    path: PathBuf,
    stamp: Option<Stamp>,
    /// Why the file could not be read the last time.
    failed: Option<String>,
}

/// If this is equal, the file is the same.
#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    file: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// The files of this machine. All services share them.
static SYSTEM: LazyLock<Arc<Files>> = LazyLock::new(|| {
    let around = Surroundings {
        hostname: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        local_domain: std::env::var("LOCALDOMAIN").ok(),
        options: std::env::var("RES_OPTIONS").ok(),
    };
    Arc::new(Files::new(Path::new("/etc"), around))
});

impl Files {
    /// Returns the files of this machine.
    pub(super) fn system() -> Arc<Self> {
        Arc::clone(&SYSTEM)
    }

    /// Returns the files in this folder.
    pub(super) fn new(folder: &Path, around: Surroundings) -> Self {
        let watched = |name| Watched {
            path: folder.join(name),
            stamp: None,
            failed: None,
        };
        let snapshot = Snapshot {
            conf: Arc::new(ResolvConf::parse(b"", &around, &mut Ignored::default())),
            hosts: Arc::default(),
            plan: Arc::default(),
            generation: 0,
        };
        Self {
            around,
            state: Mutex::new(State {
                looked: None,
                conf: watched("resolv.conf"),
                hosts: watched("hosts"),
                switch: watched("nsswitch.conf"),
                snapshot,
            }),
        }
    }

    /// Returns the name of this machine.
    pub(super) fn hostname(&self) -> &str {
        &self.around.hostname
    }

    /// Returns what the files say now, or said a second ago.
    pub(super) fn current(&self) -> Snapshot {
        let mut state = self.state.lock();
        let now = Instant::now();
        if state
            .looked
            .is_none_or(|looked| now.duration_since(looked) >= LOOK_AGAIN)
        {
            state.looked = Some(now);
            state.look(&self.around);
        }
        state.snapshot.clone()
    }

    /// Makes the next lookup look at the files.
    #[cfg(test)]
    pub(super) fn expire(&self) {
        self.state.lock().looked = None;
    }
}

impl State {
    fn look(&mut self, around: &Surroundings) {
        let mut ignored = Ignored::default();
        if let Some(text) = self.hosts.changed() {
            self.snapshot.hosts = Arc::new(Hosts::parse(&text, &mut ignored));
            self.hosts.log_ignored(&ignored);
        }
        let mut is_new = false;
        let may_change = !self.snapshot.conf.options.no_reload;
        if let Some(text) = may_change.then(|| self.conf.changed()).flatten() {
            ignored = Ignored::default();
            let conf = ResolvConf::parse(&text, around, &mut ignored);
            self.conf.log_ignored(&ignored);
            is_new |= *self.snapshot.conf != conf;
            self.snapshot.conf = Arc::new(conf);
        }
        if let Some(text) = self.switch.changed() {
            let plan = Plan::parse(&text);
            is_new |= *self.snapshot.plan != plan;
            self.snapshot.plan = Arc::new(plan);
        }
        let snapshot = &mut self.snapshot;
        if is_new {
            snapshot.generation += 1;
            if let Some(why) = snapshot.reason_for_system() {
                tracing::info!(
                    "the C library looks up names, and nothing is cached, because of {why} in /etc/nsswitch.conf"
                );
            }
        }
    }
}

impl Snapshot {
    /// Returns why the C library must look up all names, or `None` if it need not.
    pub(super) fn reason_for_system(&self) -> Option<&str> {
        match &*self.plan {
            Plan::System(why) => Some(why),
            Plan::Own(plan) if plan.resolved && !self.asks_resolved() && Path::new(RESOLVED).exists() => {
                Some("the source \"resolve\" without its server in /etc/resolv.conf")
            }
            Plan::Own(_) => None,
        }
    }

    /// Returns whether the servers are systemd-resolved.
    fn asks_resolved(&self) -> bool {
        self.conf
            .servers
            .iter()
            .any(|server| RESOLVED_STUBS.map(Into::into).contains(&server.ip()))
    }
}

impl Watched {
    /// Returns the text of the file if it has changed since the last time.
    fn changed(&mut self) -> Option<Vec<u8>> {
        match self.read() {
            Ok(text) => {
                self.failed = None;
                text
            }
            // A missing file means the defaults.
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.stamp.is_none() => None,
            Err(error) => {
                let why = error.to_string();
                if self.failed.as_ref() != Some(&why) {
                    tracing::warn!(file = %self.path.display(), error = why, "cannot read a file about names: what it said before counts");
                    self.failed = Some(why);
                }
                None
            }
        }
    }

    fn read(&mut self) -> io::Result<Option<Vec<u8>>> {
        // An open of a FIFO must not wait for a writer.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let file = File::options().read(true).custom_flags(flags).open(&self.path)?;
        let meta = file.metadata()?;
        let stamp = Stamp {
            file: (meta.dev(), meta.ino()),
            size: meta.len(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        };
        if self.stamp.as_ref() == Some(&stamp) {
            return Ok(None);
        }
        if !meta.is_file() {
            return Err(io::Error::other("this is not a regular file"));
        }
        if meta.len() > FILE_MAX_BYTES {
            return Err(io::Error::other("the file is larger than 32 MiB"));
        }
        let mut text = Vec::new();
        file.take(FILE_MAX_BYTES).read_to_end(&mut text)?;
        self.stamp = Some(stamp);
        Ok(Some(text))
    }

    fn log_ignored(&self, ignored: &Ignored) {
        if let Some((line, why)) = ignored.first {
            tracing::warn!(file = %self.path.display(), lines = ignored.count, line, why, "ignored bad lines of a file about names");
        }
    }
}
