//! Relays that are separate programs: a Go relay, HAProxy, nginx, and spliceway's own program.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Resource, getrlimit};

use crate::kind::{BACKLOG, build_before};

/// A program that relays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    Go,
    Haproxy,
    Nginx,
    Spliceway,
    SplicewayNoLog,
    SplicewayBefore,
}

impl Server {
    /// Returns the reason why the program cannot be started here, if there is one.
    pub(crate) fn missing(self) -> Option<String> {
        match self {
            Self::Go => go_relay().as_ref().err().cloned(),
            Self::Haproxy => unless_installed("haproxy"),
            Self::Nginx => unless_installed("nginx").or_else(|| nginx_module().err().map(|why| why.to_string())),
            Self::Spliceway | Self::SplicewayNoLog | Self::SplicewayBefore => {
                self.spliceway().err().map(|error| error.to_string())
            }
        }
    }

    /// Returns the command that starts the program in the foreground. Its files are in `folder`.
    pub(crate) fn command(self, listen: SocketAddr, targets: &[SocketAddr], folder: &Path) -> io::Result<Command> {
        match self {
            Self::Go => {
                let relay = go_relay().as_ref().map_err(|why| io::Error::other(why.clone()))?;
                let mut command = Command::new(format!("/proc/{}/fd/{}", std::process::id(), relay.as_raw_fd()));
                command.arg(listen.to_string());
                command.args(targets.iter().map(SocketAddr::to_string));
                Ok(command)
            }
            Self::Haproxy => {
                let file = folder.join("haproxy.cfg");
                fs::write(&file, haproxy_configuration(listen, targets))?;
                let mut command = Command::new("haproxy");
                command.arg("-db").arg("-q").arg("-f").arg(file);
                Ok(command)
            }
            Self::Nginx => {
                let file = folder.join("nginx.conf");
                fs::write(&file, nginx_configuration(&nginx_module()?, listen, targets, folder))?;
                let mut command = Command::new("nginx");
                command.args(["-e", "/dev/null", "-p"]).arg(folder).arg("-c").arg(file);
                Ok(command)
            }
            Self::Spliceway | Self::SplicewayNoLog | Self::SplicewayBefore => {
                let mut command = Command::new(self.spliceway()?);
                command.args(["forward", "--workers", "1", "-l", &listen.to_string()]);
                for to in targets {
                    command.args(["-r", &to.to_string()]);
                }
                if self == Self::SplicewayNoLog {
                    command.args(["--access-log", "off"]);
                }
                Ok(command)
            }
        }
    }
}

impl Server {
    /// Returns the path of spliceway's program, which `cargo xtask bench` builds in this program's
    /// folder.
    pub(crate) fn spliceway(self) -> io::Result<PathBuf> {
        let bench = match self {
            Self::SplicewayBefore => build_before().ok_or(io::ErrorKind::NotFound)?,
            _ => env::current_exe()?,
        };
        let built = bench.with_file_name("spliceway");
        match built.is_file() {
            true => Ok(built),
            false => Err(io::Error::other(format!("{} is not built", built.display()))),
        }
    }
}

/// Returns the Go relay, which is built once. The file is removed as soon as it is open, so that it
/// cannot be left behind.
fn go_relay() -> &'static Result<File, String> {
    static BUILT: OnceLock<Result<File, String>> = OnceLock::new();
    BUILT.get_or_init(|| {
        if let Some(why) = unless_installed("go") {
            return Err(why);
        }
        build_go_relay().map_err(|error| format!("go build: {error}"))
    })
}

fn build_go_relay() -> io::Result<File> {
    let folder = Folder::new()?;
    let (source, program) = (folder.path().join("relay.go"), folder.path().join("relay"));
    fs::write(&source, include_str!("../peers/relay.go"))?;
    let built = Command::new("go")
        .args(["build", "-o"])
        .args([&program, &source])
        // The standard library is enough, so the build must not download anything.
        .envs([("GOTOOLCHAIN", "local"), ("GOPROXY", "off"), ("GOFLAGS", "")])
        .current_dir(folder.path())
        .output()?;
    match built.status.success() {
        true => File::open(program),
        false => Err(io::Error::other(
            String::from_utf8_lossy(&built.stderr).trim().to_owned(),
        )),
    }
}

/// The connections that each target permits, within the limit of descriptors. Both programs
/// allocate memory for all of them when they start.
const PER_TARGET: u64 = 16_384;

/// Returns a configuration for as many connections as the descriptors permit. Each connection
/// needs two descriptors. A quarter of the connections, HAProxy's default, have a pipe, which needs
/// two more.
fn haproxy_configuration(listen: SocketAddr, targets: &[SocketAddr]) -> String {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(1 << 20);
    let connections = (descriptors.saturating_sub(200) * 2 / 5).min(most_connections(targets));
    let servers = targets.iter().enumerate();
    let servers: String = servers
        .map(|(at, to)| format!("    server upstream{at} {to}\n"))
        .collect();
    format!(
        "global
    nbthread 1
    maxconn {connections}
defaults
    mode tcp
    option splice-auto
    maxconn {connections}
    timeout connect 60s
    timeout client 600s
    timeout server 600s
listen relay
    bind {listen} backlog {BACKLOG}
{servers}"
    )
}

fn most_connections(targets: &[SocketAddr]) -> u64 {
    match targets.len() as u64 {
        1 => PER_TARGET,
        many => 3 * many * PER_TARGET,
    }
}

/// Returns a configuration for as many connections as the descriptors permit. Each client needs
/// two connections.
fn nginx_configuration(module: &str, listen: SocketAddr, targets: &[SocketAddr], folder: &Path) -> String {
    let folder = folder.display();
    let connections = getrlimit(Resource::Nofile)
        .current
        .map_or(PER_TARGET, |most| most.min(most_connections(targets) * 5 / 2));
    let servers: String = targets.iter().map(|to| format!("        server {to};\n")).collect();
    format!(
        "{module}daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr emerg;
events {{
    worker_connections {connections};
}}
stream {{
    upstream targets {{
{servers}    }}
    server {{
        listen {listen} backlog={BACKLOG};
        proxy_pass targets;
    }}
}}
"
    )
}

/// Returns the line that loads the `stream` module. Debian's nginx needs it, because the module is
/// not built in. The line is empty for other builds.
pub(crate) fn nginx_module() -> io::Result<String> {
    let said = Command::new("nginx").arg("-V").output()?.stderr;
    let said = String::from_utf8_lossy(&said);
    if !said.contains("--with-stream=dynamic") {
        return Ok(String::new());
    }
    let folder = said
        .split_whitespace()
        .find_map(|option| option.strip_prefix("--modules-path="))
        .ok_or_else(|| io::Error::other("nginx does not say where its modules are"))?;
    let module = format!("{folder}/ngx_stream_module.so");
    match Path::new(&module).is_file() {
        true => Ok(format!("load_module {module};\n")),
        // Without this check, nginx would end with status 1 and no reason.
        false => Err(io::Error::other(format!(
            "there is no {module} (Debian package libnginx-mod-stream)"
        ))),
    }
}

pub(crate) fn unless_installed(program: &str) -> Option<String> {
    let folders = env::var_os("PATH").unwrap_or_default();
    match env::split_paths(&folders).any(|folder| folder.join(program).is_file()) {
        true => None,
        false => Some(format!("there is no {program} on PATH")),
    }
}

/// Pins a command to one core.
pub(crate) fn on_core(core: usize, command: &Command) -> Command {
    let mut pinned = under(&["taskset".into(), "-c".into(), core.to_string()], command);
    pinned.stdin(Stdio::null());
    pinned
}

/// Returns a command that another one runs: the words before it.
pub(crate) fn under(words: &[String], command: &Command) -> Command {
    let own = command.get_args().map(OsStr::to_owned);
    let mut line = words
        .iter()
        .map(OsString::from)
        .chain([command.get_program().to_owned()])
        .chain(own);
    let mut outer = Command::new(line.next().expect("the command has a name"));
    outer.args(line);
    outer
}

/// A folder for the files of one run. Dropping it removes the folder.
#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> io::Result<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let made = MADE.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("spliceway-bench-{}-{made}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // If this fails, a few hundred bytes remain in the folder for temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}
