//! The place of a run: its own network and mount namespaces if the machine permits them.

use std::env;
use std::fmt;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

/// Set in the process that runs inside the namespaces.
const INSIDE: &str = "SPLICEWAY_ATTACK_INSIDE";

/// The namespaces to request. The second set works without root if user namespaces are enabled.
const WAYS: [&[&str]; 2] = [&["--net", "--mount"], &["--map-root-user", "--net", "--mount"]];

/// A folder for this run's files, and whether a small file system could be mounted on part of it.
pub(crate) struct Place {
    pub(crate) folder: PathBuf,
    pub(crate) small: Option<PathBuf>,
    isolated: bool,
}

pub(crate) enum Isolation {
    Inside(Place),
    /// The run took place in another process.
    Ended(ExitCode),
}

/// Runs this program again inside its own namespaces, or continues here without them.
pub(crate) fn isolate() -> io::Result<Isolation> {
    if env::var_os(INSIDE).is_some() {
        run("ip", &["link", "set", "lo", "up"])?;
        // A flood of connections uses up the default port range in seconds. If this write fails,
        // the run is slower.
        let _ = fs::write("/proc/sys/net/ipv4/ip_local_port_range", "1024 65535");
        let place = Place::new(true)?;
        return Ok(Isolation::Inside(place));
    }
    let permitted = |way: &&&[&str]| {
        let mut command = Command::new("unshare");
        command.args(**way).arg("true").stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let Some(way) = WAYS.iter().find(permitted) else {
        return Place::new(false).map(Isolation::Inside);
    };
    let mut again = Command::new("unshare");
    again.args(*way).arg("--").arg(env::current_exe()?);
    let status = again.args(env::args_os().skip(1)).env(INSIDE, "1").status()?;
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    Ok(Isolation::Ended(ExitCode::from(code)))
}

impl Place {
    fn new(isolated: bool) -> io::Result<Self> {
        let folder = env::temp_dir().join(format!("spliceway-attack-{}", std::process::id()));
        let small = folder.join("small");
        fs::create_dir_all(&small)?;
        let path = small.to_string_lossy();
        // Two pages. The first hundred log lines fill them.
        let mount = ["-t", "tmpfs", "-o", "size=8k", "spliceway-attack", &path];
        let mounted = isolated && run("mount", &mount).is_ok();
        Ok(Self {
            small: mounted.then(|| small.clone()),
            folder,
            isolated,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(small) = &self.small {
            let _ = run("umount", &[&small.to_string_lossy()]);
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let network = if self.isolated {
            "a network namespace of its own"
        } else {
            "the machine's loopback"
        };
        let disk = if self.small.is_some() {
            "a tmpfs of 8 KiB"
        } else {
            "/dev/full, as no tmpfs could be mounted"
        };
        write!(f, "network: {network}; full disk: {disk}")
    }
}

fn run(program: &str, arguments: &[&str]) -> io::Result<()> {
    let status = Command::new(program).args(arguments).stderr(Stdio::null()).status()?;
    match status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("{program} {}: {status}", arguments.join(" ")))),
    }
}
