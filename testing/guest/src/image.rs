//! The root file system of a guest: programs of this machine, modules, and tests.
//!
//! It consists of archives, one after the other. The kernel unpacks all of them into memory. Files
//! keep their paths, because tests know the program and the repository by absolute paths.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::kernel::Unpacked;
use crate::suites::{PEERS, Suite};
use crate::{Folders, at, output};

/// The programs that the tests and the guest's first process call. A test skips itself if its
/// program is missing.
const PROGRAMS: &str = "sh bash env cat kill chown chmod mkfifo sleep true false id rm ls timeout sed grep \
    unshare setpriv prlimit setsid mount umount nsenter getent ip tc ss ethtool nft openssl curl strace kmod";

/// The parts of the repository that the tests read.
const READ: &[&str] = &["crates/spliceway-proxy/tests", "contrib"];

/// The modules that a guest may load.
const MODULES: &[&str] = &[
    "net",
    "lib",
    "crypto",
    "arch/x86/crypto",
    "drivers/net/dummy.ko",
    "drivers/net/tun.ko",
    "drivers/net/veth.ko",
];

/// Builds the tests, and returns the programs with the paths of their main files.
///
/// An optimized build is worth its time if many tests run: comparing bytes is slow without it.
pub(crate) fn build(folders: &Folders, optimized: bool) -> Result<Vec<(String, PathBuf)>, String> {
    let mut cargo = Command::new("cargo");
    // The selection of packages decides about features. With this one, a build that is not
    // optimized finds everything as the tests of this machine have left it.
    cargo.args(["test", "--workspace", "--test", "it", "--no-run"]);
    cargo.arg("--message-format=json-render-diagnostics");
    if optimized {
        for setting in ["opt-level=1", "debug=0", "incremental=false"] {
            cargo.arg("--config").arg(format!("profile.dev.{setting}"));
        }
        cargo.arg("--target-dir").arg(folders.target.join("build"));
    }
    let messages = output(cargo.current_dir(&folders.root))?;
    let programs = messages.lines().filter_map(|line| {
        let source = Path::new(value(line, "src_path")?).strip_prefix(&folders.root).ok()?;
        let program = value(line, "executable")?;
        Some((source.to_string_lossy().into_owned(), program.into()))
    });
    Ok(programs.collect())
}

/// Returns a string of a JSON object. The strings that are asked for have no escapes.
fn value<'a>(json: &'a str, key: &str) -> Option<&'a str> {
    let (_, rest) = json.split_once(&format!("\"{key}\":\""))?;
    rest.split('"').next()
}

/// Makes the archive without modules.
pub(crate) fn system(
    folders: &Folders,
    suites: &[&Suite],
    programs: &[(String, PathBuf)],
    only: Option<&str>,
) -> Result<PathBuf, String> {
    let image = Image::new(folders.target.join("system"))?;
    image.lay_out()?;
    for program in PROGRAMS.split_whitespace() {
        if let Some(path) = find_program(program) {
            image.add_program(&path, &path)?;
        }
    }
    if let Some(busybox) = find_program("busybox") {
        image.add_program(&busybox, Path::new("/usr/bin/busybox"))?;
    }
    for part in READ {
        let folder = folders.root.join(part);
        image.make(folder.parent().unwrap_or(&folder))?;
        output(Command::new("cp").arg("-a").args([&folder, &image.within(&folder)]))?;
    }
    let file_of = |source: &str| {
        let found = programs.iter().find(|(of, _)| of == source);
        found
            .map(|(_, path)| path)
            .ok_or_else(|| format!("cargo built no {source}"))
    };
    if suites.iter().any(|suite| suite.name == PEERS) {
        image.add_peers(folders)?;
    }
    let spliceway = file_of("crates/spliceway-proxy/src/main.rs")?;
    image.add_stripped(spliceway)?;
    let mut list = String::new();
    for suite in suites {
        let (program, folder) = (file_of(suite.source)?, folders.root.join(suite.package()));
        image.make(&folder)?;
        image.add_stripped(program)?;
        list += &format!(
            "{} {} {} {} {}\n",
            suite.name,
            suite.limit_seconds,
            folder.display(),
            program.display(),
            suite.arguments(only).join(" ")
        );
    }
    image.write("/suites", &list)?;
    image.archive()
}

/// Returns one file with the system and the modules of a kernel.
pub(crate) fn with_modules(folders: &Folders, system: &Path, name: &str, kernel: &Unpacked) -> Result<PathBuf, String> {
    let image = Image::new(folders.target.join(format!("modules-{name}")))?;
    let place = format!("/usr/lib/modules/{}", kernel.version);
    image.make(Path::new(&place))?;
    let within = image.within(Path::new(&place));
    for module in MODULES {
        // Newer packages compress each module.
        for path in [format!("kernel/{module}"), format!("kernel/{module}.xz")] {
            let (from, to) = (kernel.modules.join(&path), within.join(&path));
            if from.exists() {
                let folder = to.parent().expect("a path within the image");
                fs::create_dir_all(folder).map_err(at(folder))?;
                output(Command::new("cp").arg("-a").args([&from, &to]))?;
            }
        }
    }
    // Not every version has all of these.
    for list in ["modules.order", "modules.builtin", "modules.builtin.modinfo"] {
        let from = kernel.modules.join(list);
        if from.exists() {
            fs::copy(&from, within.join(list)).map_err(at(&from))?;
        }
    }
    // `depmod` looks below `lib`.
    let link = image.folder.join("lib");
    symlink("usr/lib", &link).map_err(at(&link))?;
    output(
        Command::new("depmod")
            .arg("-b")
            .args([&image.folder, Path::new(&kernel.version)]),
    )?;
    let modules = image.archive()?;
    let both = folders.target.join(format!("whole-{name}.cpio"));
    join(&[system, &modules], &both).map_err(at(&both))?;
    Ok(both)
}

fn join(parts: &[&Path], to: &Path) -> io::Result<()> {
    let mut whole = File::create(to)?;
    for part in parts {
        io::copy(&mut File::open(part)?, &mut whole)?;
    }
    Ok(())
}

pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    // The paths of a user's own programs come first, and mean nothing in a guest.
    let folders =
        std::env::split_paths(&path).filter(|folder| folder.starts_with("/usr") || folder.starts_with("/bin"));
    let found = folders.map(|folder| folder.join(name)).find(|path| path.is_file());
    found.or_else(|| Some(Path::new("/usr/sbin").join(name)).filter(|path| path.is_file()))
}

/// A folder that becomes an archive.
pub(crate) struct Image {
    folder: PathBuf,
}

impl Image {
    fn new(folder: PathBuf) -> Result<Self, String> {
        if folder.exists() {
            fs::remove_dir_all(&folder).map_err(at(&folder))?;
        }
        fs::create_dir_all(&folder).map_err(at(&folder))?;
        Ok(Self { folder })
    }

    /// Makes the folders, links and small files that every system has.
    fn lay_out(&self) -> Result<(), String> {
        for folder in [
            "/usr/bin",
            "/usr/sbin",
            "/usr/lib",
            "/usr/lib64",
            "/dev",
            "/proc",
            "/sys",
            "/tmp",
            "/run",
            "/etc",
            "/root",
        ] {
            self.make(Path::new(folder))?;
        }
        for (link, to) in [
            ("bin", "usr/bin"),
            ("sbin", "usr/sbin"),
            ("lib", "usr/lib"),
            ("lib64", "usr/lib64"),
        ] {
            let link = self.folder.join(link);
            symlink(to, &link).map_err(at(&link))?;
        }
        self.write(
            "/etc/passwd",
            "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n",
        )?;
        self.write("/etc/group", "root:x:0:\nnogroup:x:65534:\n")?;
        self.write("/etc/hosts", "127.0.0.1 localhost\n::1 localhost ip6-localhost\n")?;
        self.write("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n")?;
        self.write("/init", include_str!("init"))?;
        let init = self.within(Path::new("/init"));
        fs::set_permissions(&init, fs::Permissions::from_mode(0o755)).map_err(at(&init))?;
        let modprobe = self.folder.join("usr/sbin/modprobe");
        symlink("../bin/kmod", &modprobe).map_err(at(&modprobe))
    }

    /// Returns where an absolute path of the guest is on this machine.
    pub(crate) fn within(&self, path: &Path) -> PathBuf {
        self.folder.join(path.strip_prefix("/").unwrap_or(path))
    }

    pub(crate) fn make(&self, folder: &Path) -> Result<(), String> {
        let folder = self.within(folder);
        fs::create_dir_all(&folder).map_err(at(&folder))
    }

    pub(crate) fn write(&self, path: &str, text: &str) -> Result<(), String> {
        let path = self.within(Path::new(path));
        fs::write(&path, text).map_err(at(&path))
    }

    /// Adds a program at this path, and the libraries that it loads.
    pub(crate) fn add_program(&self, from: &Path, path: &Path) -> Result<(), String> {
        self.copy(from, path)?;
        self.add_libraries(from)
    }

    /// Adds a program at its own path, without symbols, which are most of a debug build.
    fn add_stripped(&self, path: &Path) -> Result<(), String> {
        let to = self.within(path);
        if to.exists() {
            return Ok(());
        }
        self.make(path.parent().unwrap_or(path))?;
        output(Command::new("strip").arg("-o").args([&to, path]))?;
        self.add_libraries(path)
    }

    pub(crate) fn add_libraries(&self, program: &Path) -> Result<(), String> {
        // A static program and a script have none, and `ldd` fails.
        let listed = Command::new("ldd").arg(program).output();
        let listed = listed.map_err(|error| format!("cannot start ldd: {error}"))?;
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        for library in listed.split_whitespace().filter(|word| word.starts_with('/')) {
            self.copy(Path::new(library), Path::new(library))?;
        }
        Ok(())
    }

    fn copy(&self, from: &Path, path: &Path) -> Result<(), String> {
        let to = self.within(path);
        if to.exists() {
            return Ok(());
        }
        self.make(path.parent().unwrap_or(path))?;
        fs::copy(from, &to).map(|_| ()).map_err(at(from))
    }

    fn archive(&self) -> Result<PathBuf, String> {
        let mut archive = self.folder.clone().into_os_string();
        archive.push(".cpio");
        let archive = PathBuf::from(archive);
        let mut find = Command::new("find")
            .arg(".")
            .current_dir(&self.folder)
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start find: {error}"))?;
        let names = find.stdout.take().expect("piped");
        let mut cpio = Command::new("cpio");
        cpio.args(["--create", "--format=newc", "--owner=0:0", "--quiet"]);
        cpio.current_dir(&self.folder).stdin(names);
        cpio.stdout(File::create(&archive).map_err(at(&archive))?);
        let status = cpio.status().map_err(|error| format!("cannot start cpio: {error}"))?;
        let found = find.wait().map_err(|error| format!("find: {error}"))?;
        if status.success() && found.success() {
            Ok(archive)
        } else {
            Err(format!("cpio failed for {}", self.folder.display()))
        }
    }
}
