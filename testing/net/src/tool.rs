//! Checks for programs and settings that some tests need and that a machine may lack.

use std::env;
use std::net::ToSocketAddrs;

/// Returns whether `program` is in a folder of `PATH`. If not, prints that the test is skipped and
/// which Debian package has the program.
#[expect(clippy::print_stdout, reason = "a skipped test prints the reason")]
#[must_use]
pub fn has_tool(program: &str, package: &str) -> bool {
    let lacking = lacking(program, package);
    if let Some(lacking) = &lacking {
        println!("skipped: {lacking}");
    }
    lacking.is_none()
}

/// Returns whether the C library resolves `localhost`. If not, prints that the test is skipped. A
/// root file system made by debootstrap does not have `/etc/hosts`.
#[expect(clippy::print_stdout, reason = "a skipped test prints the reason")]
#[must_use]
pub fn has_localhost() -> bool {
    let is_known = ("localhost", 0).to_socket_addrs().is_ok();
    if !is_known {
        println!("skipped: needs a line for localhost in /etc/hosts");
    }
    is_known
}

/// Describes the missing package if the machine does not have `program`.
pub(crate) fn lacking(program: &str, package: &str) -> Option<String> {
    let path = env::var_os("PATH").unwrap_or_default();
    let is_there = env::split_paths(&path).any(|folder| folder.join(program).is_file());
    (!is_there).then(|| format!("needs {program} (Debian package {package})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_installed_is_named_with_its_package() {
        assert_eq!(lacking("sh", "dash"), None);
        let needs = lacking("no-such-program", "some-package").unwrap();
        assert_eq!(needs, "needs no-such-program (Debian package some-package)");
        assert!(!has_tool("no-such-program", "some-package"));
    }
}
