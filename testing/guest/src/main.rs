//! Runs the tests in Debian's kernels, which an emulator boots, and prints a table.
//!
//! ```text
//!   kernel.rs   downloads and unpacks the packages of a kernel
//!   image.rs    makes the root file system: programs, modules, tests
//!   peers.rs    adds programs with other libraries of TLS
//!   suites.rs   which tests run
//!   boot.rs     boots the kernel, and follows its console until it ends
//!   report.rs   reads the console
//! ```
//!
//! A guest has no disk and no network card, so it cannot change or reach anything. The script
//! `init` is its first process.
#![forbid(unsafe_code)]

mod boot;
mod image;
mod kernel;
mod peers;
mod report;
mod suites;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use boot::Guest;
use kernel::{KERNELS, Kernel};
use suites::{SUITES, Suite};

const USAGE: &str = "usage: cargo xtask guest [option…]

Runs the tests in other kernels, by emulation.

  --kernel NAME   kernel to boot; may be repeated (all)
  --suite NAME    suite to run; may be repeated (all)
  --only TEXT     only the tests of these suites whose names contain the text
  --quick         a few suites in the oldest kernel, in about a minute, without optimized builds
  --memory MIB    memory of a guest (3072)
  --list          print the kernels and the suites, and boot nothing
";

/// What the command line says.
struct Options {
    kernels: Vec<&'static Kernel>,
    suites: Vec<&'static Suite>,
    only: Option<String>,
    memory: u32,
    quick: bool,
    list: bool,
}

impl Options {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let (mut kernels, mut suites, mut only) = (Vec::new(), Vec::new(), None);
        let (mut memory, mut list, mut quick) = (3072, false, false);
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--kernel" => kernels.push(find(KERNELS, |kernel| kernel.name, &value()?)?),
                "--suite" => suites.push(find(SUITES, |suite| suite.name, &value()?)?),
                "--only" => only = Some(value()?),
                "--memory" => memory = value()?.parse().map_err(|error| format!("--memory: {error}"))?,
                "--quick" => quick = true,
                "--list" => list = true,
                _ => return Err(USAGE.to_owned()),
            }
        }
        if kernels.is_empty() {
            // The oldest kernel differs most from the kernels of developers.
            kernels.extend(KERNELS.iter().take(if quick { 1 } else { KERNELS.len() }));
        }
        if suites.is_empty() {
            suites.extend(SUITES.iter().filter(|suite| suite.quick || !quick));
        }
        Ok(Self {
            kernels,
            suites,
            only,
            memory,
            quick,
            list,
        })
    }
}

/// Returns the entry of a table that has this name.
fn find<T>(table: &'static [T], name_of: fn(&T) -> &'static str, name: &str) -> Result<&'static T, String> {
    table.iter().find(|entry| name_of(entry) == name).ok_or_else(|| {
        let names: Vec<&str> = table.iter().map(name_of).collect();
        format!("no `{name}`; there are {}", names.join(", "))
    })
}

/// Everything that is made below the target folder.
struct Folders {
    root: PathBuf,
    target: PathBuf,
}

/// The programs that this program calls, and their Debian packages.
const NEEDED: &[(&str, &str)] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("cpio", "cpio"),
    ("busybox", "busybox-static"),
    ("depmod", "kmod"),
    ("strip", "binutils"),
    ("apt-get", "apt"),
    ("dpkg-deb", "dpkg"),
];

fn main() -> ExitCode {
    let outcome = Options::parse(std::env::args().skip(1)).and_then(|options| {
        if options.list {
            list();
            return Ok(true);
        }
        run(&options)
    });
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stdout, reason = "the list is this program's result")]
fn list() {
    for kernel in KERNELS {
        println!("{:<12}the kernel of {}", kernel.name, kernel.release);
    }
    for suite in SUITES {
        println!("{:<12}{}", suite.name, suite.purpose);
        for (test, reason) in suite.omitted {
            println!("{:<12}  without {test}: {reason}", "");
        }
    }
}

/// Returns whether all suites passed in every kernel that could be had.
#[expect(clippy::print_stdout, reason = "the table is this program's result")]
fn run(options: &Options) -> Result<bool, String> {
    if let Some((program, package)) = NEEDED
        .iter()
        .find(|(program, _)| image::find_program(program).is_none())
    {
        println!("skipped: needs {program} (Debian package {package})");
        return Ok(true);
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let root = root
        .canonicalize()
        .map_err(|error| format!("{}: {error}", root.display()))?;
    let folders = Folders {
        target: root.join("target/guest"),
        root,
    };
    fs::create_dir_all(&folders.target).map_err(|error| format!("{}: {error}", folders.target.display()))?;
    let mut kernels = Vec::new();
    for kernel in &options.kernels {
        match kernel.obtain(&folders.target) {
            Ok(unpacked) => kernels.push((kernel.name, unpacked)),
            Err(why) => println!("skipped: kernel {}: {why}", kernel.name),
        }
    }
    if kernels.is_empty() {
        return Ok(true);
    }
    let programs = image::build(&folders, !options.quick)?;
    let system = image::system(&folders, &options.suites, &programs, options.only.as_deref())?;
    let images: Result<Vec<PathBuf>, String> = kernels
        .iter()
        .map(|(name, unpacked)| image::with_modules(&folders, &system, name, unpacked))
        .collect();
    let mut all_passed = true;
    println!("{}", report::COLUMNS);
    for ((name, unpacked), initramfs) in kernels.iter().zip(images?) {
        let guest = Guest {
            kernel: &unpacked.image,
            initramfs,
            log: folders.target.join(format!("{name}.log")),
            memory: options.memory,
            limit: BOOT_LIMIT + options.suites.iter().map(|suite| suite.limit()).sum::<Duration>(),
        };
        let report = guest.run(&options.suites)?;
        all_passed &= report::show(name, &unpacked.version, &report, &guest.log);
    }
    Ok(all_passed)
}

/// The longest time until the first suite starts, and after the last one.
const BOOT_LIMIT: Duration = Duration::from_secs(180);

/// Runs a command, and returns what it prints. Its error output goes to this program's.
fn output(command: &mut Command) -> Result<String, String> {
    let name = format!("{command:?}");
    let output = command
        .stderr(std::process::Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot start {name}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("{name} failed ({})", output.status))
    }
}

/// Adds the path to an error.
fn at(path: &Path) -> impl FnOnce(std::io::Error) -> String {
    let path = path.display().to_string();
    move |error| format!("{path}: {error}")
}
