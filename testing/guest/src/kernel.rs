//! Debian's kernels: finds, downloads and unpacks their packages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{at, output};

/// A kernel by the release of Debian that has it.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) name: &'static str,
    pub(crate) release: &'static str,
}

/// The oldest one comes first.
pub(crate) const KERNELS: &[Kernel] = &[
    Kernel {
        name: "6.1",
        release: "bookworm",
    },
    Kernel {
        name: "6.12",
        release: "trixie",
    },
    Kernel {
        name: "newest",
        release: "trixie-backports",
    },
];

/// The files of a kernel.
pub(crate) struct Unpacked {
    pub(crate) version: String,
    pub(crate) image: PathBuf,
    /// The folder with the version as its name.
    pub(crate) modules: PathBuf,
}

impl Kernel {
    /// Returns the files of this kernel. A kernel that was once unpacked is used again: to get a
    /// newer one, delete its folder.
    ///
    /// # Errors
    /// Returns why this machine cannot have the kernel.
    pub(crate) fn obtain(&self, target: &Path) -> Result<Unpacked, String> {
        let folder = target.join("kernels").join(self.name);
        if !folder.exists() {
            let partial = target.join("kernels").join(format!("{}.partial", self.name));
            let _ = fs::remove_dir_all(&partial);
            fs::create_dir_all(&partial).map_err(at(&partial))?;
            self.download(&Apt::new(target)?, &partial)?;
            fs::rename(&partial, &folder).map_err(at(&folder))?;
        }
        find(&folder)
    }

    fn download(&self, apt: &Apt, folder: &Path) -> Result<(), String> {
        let plan = ["install", "--print-uris", "--no-install-recommends", "--target-release"];
        let plan = output(apt.get().args(plan).args([self.release, "linux-image-amd64"]))?;
        let packages = kernel_packages(&plan);
        if packages.is_empty() {
            return Err(format!("the mirror has no kernel of {}", self.release));
        }
        output(apt.get().arg("download").args(&packages).current_dir(folder))?;
        for entry in fs::read_dir(folder).map_err(at(folder))?.flatten() {
            let package = entry.path();
            if package.extension().is_some_and(|extension| extension == "deb") {
                output(Command::new("dpkg-deb").arg("--extract").args([&package, folder]))?;
                fs::remove_file(&package).map_err(at(&package))?;
            }
        }
        Ok(())
    }
}

/// Returns the packages with the files of a kernel, from the plan of an installation. Its lines
/// have the form `'URI' FILE SIZE HASH`. Older kernels are one package, and newer ones are several.
fn kernel_packages(plan: &str) -> Vec<&str> {
    let files = plan.lines().filter_map(|line| line.split_whitespace().nth(1));
    let names = files.filter_map(|file| file.split('_').next());
    names
        .filter(|name| {
            let version = ["linux-image-", "linux-binary-", "linux-modules-", "linux-base-"]
                .iter()
                .find_map(|kind| name.strip_prefix(kind));
            version.is_some_and(|version| version.starts_with(|first: char| first.is_ascii_digit()))
        })
        .collect()
}

fn find(folder: &Path) -> Result<Unpacked, String> {
    let modules = ["usr/lib/modules", "lib/modules"].map(|path| folder.join(path));
    let modules = modules
        .iter()
        .find_map(|path| fs::read_dir(path).ok()?.flatten().next())
        .ok_or_else(|| format!("{} has no modules", folder.display()))?;
    let version = modules.file_name().to_string_lossy().into_owned();
    let images = [
        folder.join(format!("boot/vmlinuz-{version}")),
        modules.path().join("vmlinuz"),
    ];
    let image = images.into_iter().find(|image| image.exists());
    Ok(Unpacked {
        image: image.ok_or_else(|| format!("{} has no vmlinuz", folder.display()))?,
        modules: modules.path(),
        version,
    })
}

/// Apt with its own lists and sources, which do not depend on what is installed. The machine's own
/// configuration stays as it is.
struct Apt {
    options: Vec<String>,
}

/// The keys of Debian's archive.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

impl Apt {
    fn new(target: &Path) -> Result<Self, String> {
        let folder = target.join("apt");
        for part in ["state/lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(folder.join(part)).map_err(at(&folder))?;
        }
        let mirror = mirror()?;
        let lines = KERNELS
            .iter()
            .map(|kernel| format!("deb [signed-by={KEYS}] {mirror} {} main\n", kernel.release));
        let (sources, installed) = (folder.join("sources.list"), folder.join("status"));
        fs::write(&sources, lines.collect::<String>()).map_err(at(&sources))?;
        fs::write(&installed, "").map_err(at(&installed))?;
        let path = |part: &str| folder.join(part).display().to_string();
        let apt = Self {
            options: vec![
                "--quiet=2".into(),
                format!("-oDir::Etc::SourceList={}", sources.display()),
                "-oDir::Etc::SourceParts=-".into(),
                format!("-oDir::State={}", path("state")),
                format!("-oDir::State::Status={}", installed.display()),
                format!("-oDir::Cache={}", path("cache")),
                "-oAPT::Architecture=amd64".into(),
                "-oAPT::Sandbox::User=root".into(),
                "-oAcquire::Languages=none".into(),
                "-oAcquire::Retries=2".into(),
            ],
        };
        output(apt.get().arg("update"))?;
        Ok(apt)
    }

    fn get(&self) -> Command {
        let mut command = Command::new("apt-get");
        command.args(&self.options);
        command
    }
}

/// Returns the address of the Debian mirror that this machine uses.
fn mirror() -> Result<String, String> {
    let addresses = output(Command::new("apt-get").args(["indextargets", "--format", "$(REPO_URI)"]))?;
    let mirror = addresses.lines().find(|address| address.ends_with("/debian/"));
    let mirror = mirror.ok_or("the sources of apt name no mirror of Debian")?;
    if Path::new(KEYS).exists() {
        Ok(mirror.to_owned())
    } else {
        Err("needs the Debian package debian-archive-keyring".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_packages_with_the_files_of_a_kernel_are_downloaded() {
        let plan = "'http://m/linux-base_4_all.deb' linux-base_4_all.deb 26 SHA256:a\n\
                    'http://m/b.deb' linux-binary-7.3.4+deb13-amd64_7.3.4-1_amd64.deb 14 SHA256:b\n\
                    'http://m/m.deb' linux-modules-7.3.4+deb13-amd64_7.3.4-1_amd64.deb 10 SHA256:c\n\
                    'http://m/i.deb' linux-image-amd64_7.3.4-1_amd64.deb 1 SHA256:d\n";
        assert_eq!(
            kernel_packages(plan),
            ["linux-binary-7.3.4+deb13-amd64", "linux-modules-7.3.4+deb13-amd64"]
        );
    }
}
