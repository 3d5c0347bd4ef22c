//! What the kernel's accounts say of a process and its children.

use std::fs;
use std::io;

/// What a relay holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resources {
    /// Descriptors that are open.
    pub(crate) descriptors: u64,
    /// Resident memory, KiB.
    pub(crate) rss_kib: u64,
    /// Descriptors of pipes: two a pipe.
    pub(crate) pipes: u64,
}

/// What a process and its children hold.
pub(crate) fn resources(pid: u32) -> io::Result<Resources> {
    let mut all = Resources::default();
    for pid in family(pid)? {
        for descriptor in fs::read_dir(format!("/proc/{pid}/fd"))? {
            all.descriptors += 1;
            // One that was closed since it was listed is no pipe any more.
            let file = fs::read_link(descriptor?.path()).unwrap_or_default();
            all.pipes += u64::from(file.as_os_str().as_encoded_bytes().starts_with(b"pipe:"));
        }
        all.rss_kib += resident_kib(&fs::read_to_string(format!("/proc/{pid}/status"))?).unwrap_or(0);
    }
    Ok(all)
}

/// A process and those below it.
fn family(pid: u32) -> io::Result<Vec<u32>> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // One that has ended since has no line.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        parents.extend(parent(&stat).map(|above| (pid, above)));
    }
    let mut family = vec![pid];
    let mut next = 0;
    while let Some(&of) = family.get(next) {
        family.extend(
            parents
                .iter()
                .filter(|(_, parent)| *parent == of)
                .map(|(below, _)| *below),
        );
        next += 1;
    }
    Ok(family)
}

/// The fourth field of a line of proc_pid_stat(5). The second is a name in brackets, and may hold both blanks and brackets.
fn parent(stat: &str) -> Option<u32> {
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

fn resident_kib(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_parent_is_found_behind_any_name() {
        assert_eq!(parent("7 (nginx: worker) S 5 7 7 0 -1"), Some(5));
        assert_eq!(parent("7 (a) S 9 (b) S 5 7 7 0 -1"), Some(5));
        assert_eq!(parent(""), None);
    }

    #[test]
    fn descriptors_and_pipes_of_a_child_are_counted() -> io::Result<()> {
        let ends: Vec<_> = (0..8).map(|_| io::pipe()).collect::<Result<_, _>>()?;
        // A child beside, whose own descriptors count too.
        let mut child = Command::new("sleep").arg("60").spawn()?;
        let held = resources(std::process::id());
        child.kill()?;
        child.wait()?;
        let held = held?;
        drop(ends);
        assert!(held.pipes >= 16, "{held:?}");
        assert!(held.descriptors >= 16 + 3, "{held:?}");
        assert!(held.rss_kib > 0, "{held:?}");
        Ok(())
    }

    #[test]
    fn a_child_belongs_to_the_family() -> io::Result<()> {
        let mut child = Command::new("sleep").arg("60").spawn()?;
        let family = family(std::process::id());
        child.kill()?;
        child.wait()?;
        assert!(family?.contains(&child.id()));
        Ok(())
    }
}
