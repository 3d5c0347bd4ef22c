//! The kernel's accounting of a process and its children.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::io::Errno;

/// The resources that a relay holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// The number of open descriptors.
    pub descriptors: u64,
    /// Resident memory in KiB.
    pub rss_kib: u64,
    /// The number of pipe descriptors: two for each pipe.
    pub pipes: u64,
}

/// Returns the resources that a process and its children hold.
pub fn resources(pid: u32) -> io::Result<Resources> {
    let mut all = Resources::default();
    for member in family(pid)? {
        let held = unless_child_ended(member != pid, resources_of_process(member))?;
        all.descriptors += held.descriptors;
        all.rss_kib += held.rss_kib;
        all.pipes += held.pipes;
    }
    Ok(all)
}

fn resources_of_process(pid: u32) -> io::Result<Resources> {
    let mut held = Resources::default();
    for descriptor in fs::read_dir(format!("/proc/{pid}/fd"))? {
        held.descriptors += 1;
        // A descriptor that was closed since the listing no longer counts as a pipe.
        let file = fs::read_link(descriptor?.path()).unwrap_or_default();
        held.pipes += u64::from(file.as_os_str().as_encoded_bytes().starts_with(b"pipe:"));
    }
    held.rss_kib = resident_kib(&fs::read_to_string(format!("/proc/{pid}/status"))?).unwrap_or(0);
    Ok(held)
}

/// Returns the CPU time of a process and its children, all threads included. It includes the
/// interrupt work for a relay's packets while the relay runs.
pub fn cpu_time(pid: u32) -> io::Result<Duration> {
    let members = family(pid)?.into_iter();
    members
        .map(|member| unless_child_ended(member != pid, time_of_process(member)))
        .sum()
}

/// Returns the CPU time of all other processes so far. It leaves out the calling process, its
/// descendants, and kernel threads, which also work for the caller. A process that has ended counts
/// as part of the parent that waited for it.
pub fn time_of_others() -> io::Result<Duration> {
    let all = processes()?;
    let own = descendants(std::process::id(), &all);
    let others = all.iter().filter(|(pid, _)| !own.contains(pid));
    let ticks: u64 = others.filter_map(|(_, stat)| ticks_with_ended(stat)).sum();
    Ok(Duration::from_secs(ticks) / rustix::param::clock_ticks_per_second() as u32)
}

/// Adds fields 14 to 17 of a proc_pid_stat(5) line: the time of a process, and of its children that
/// have ended. A kernel thread has none (`PF_KTHREAD` in field 9).
fn ticks_with_ended(stat: &str) -> Option<u64> {
    const KERNEL_THREAD: u64 = 0x0020_0000;
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let flags: u64 = fields.get(6)?.parse().ok()?;
    let times: Result<Vec<u64>, _> = fields.get(11..15)?.iter().map(|field| field.parse()).collect();
    (flags & KERNEL_THREAD == 0).then_some(times.ok()?.iter().sum())
}

/// A child may end between the listing of processes and the reading of its files. It then counts as
/// nothing.
fn unless_child_ended<T: Default>(is_child: bool, read: io::Result<T>) -> io::Result<T> {
    match read {
        Err(error) if is_child && matches!(Errno::from_io_error(&error), Some(Errno::NOENT | Errno::SRCH)) => {
            Ok(T::default())
        }
        read => read,
    }
}

/// Returns the CPU time of a process: the larger of two figures. The first is the sum of the
/// scheduler's nanoseconds for the current threads (proc(5), `schedstat`). The second is the sum
/// for all threads that the process ever had. The kernel computes it from the same nanoseconds, and
/// reports it in ticks of 10 ms, rounded down.
fn time_of_process(pid: u32) -> io::Result<Duration> {
    let mut live = Duration::ZERO;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread that has ended since the listing is only in the second sum.
        live += scheduled(&task?.path().join("schedstat")).unwrap_or_default();
    }
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let ticks = ticks(&stat).ok_or_else(|| io::Error::other("no CPU time in stat"))?;
    Ok(live.max(Duration::from_secs(ticks) / rustix::param::clock_ticks_per_second() as u32))
}

/// Returns the CPU time of the thread that does a core's deferred interrupt work. Returns zero if
/// that thread is not visible, as in a container.
pub fn softirq_time(core: usize) -> Duration {
    static THREADS: OnceLock<Vec<(String, PathBuf)>> = OnceLock::new();
    let threads = THREADS.get_or_init(|| {
        let folders = fs::read_dir("/proc").into_iter().flatten().flatten();
        let named =
            folders.filter_map(|folder| Some((fs::read_to_string(folder.path().join("comm")).ok()?, folder.path())));
        named.filter(|(name, _)| name.starts_with("ksoftirqd/")).collect()
    });
    let name = format!("ksoftirqd/{core}\n");
    let thread = threads.iter().find(|(of, _)| *of == name);
    thread
        .and_then(|(_, folder)| scheduled(&folder.join("schedstat")).ok())
        .unwrap_or_default()
}

/// Reads the first field of `schedstat`: nanoseconds on a core.
fn scheduled(schedstat: &Path) -> io::Result<Duration> {
    let text = fs::read_to_string(schedstat)?;
    let nanoseconds = text.split_whitespace().next().and_then(|field| field.parse().ok());
    nanoseconds
        .map(Duration::from_nanos)
        .ok_or_else(|| io::Error::other("no CPU time in schedstat"))
}

/// Adds fields 14 and 15 of a proc_pid_stat(5) line: user and system time of every thread,
/// including threads that ended.
fn ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

/// Returns a process and its descendants.
fn family(pid: u32) -> io::Result<Vec<u32>> {
    Ok(descendants(pid, &processes()?))
}

/// Returns all processes, each with its proc_pid_stat(5) line. A process that has ended since the
/// listing has an empty line.
fn processes() -> io::Result<Vec<(u32, String)>> {
    let mut all = Vec::new();
    for entry in fs::read_dir("/proc")? {
        if let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) {
            all.push((pid, fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default()));
        }
    }
    Ok(all)
}

fn descendants(pid: u32, all: &[(u32, String)]) -> Vec<u32> {
    let mut family = vec![pid];
    let mut next = 0;
    while let Some(&of) = family.get(next) {
        let is_child = |(_, stat): &&(u32, String)| parent(stat) == Some(of);
        family.extend(all.iter().filter(is_child).map(|(below, _)| *below));
        next += 1;
    }
    family
}

/// Returns the fourth field of a proc_pid_stat(5) line. The second field is a name in brackets,
/// which may contain blanks and brackets.
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
    fn the_parent_is_found_after_any_process_name() {
        assert_eq!(parent("7 (nginx: worker) S 5 7 7 0 -1"), Some(5));
        assert_eq!(parent("7 (a) S 9 (b) S 5 7 7 0 -1"), Some(5));
        assert_eq!(parent(""), None);
    }

    #[test]
    fn the_time_of_an_ended_thread_still_counts() -> io::Result<()> {
        let used = Duration::from_millis(100);
        // This leaves out the children, because other tests start and end children meanwhile.
        let before = time_of_process(std::process::id())?;
        let thread = std::thread::spawn(move || {
            while scheduled(Path::new("/proc/thread-self/schedstat"))? < used {}
            io::Result::Ok(())
        });
        thread.join().expect("it does not panic")?;
        // The kernel reports user time and system time, each in whole ticks.
        let after = time_of_process(std::process::id())?;
        assert!(
            after - before >= used - Duration::from_millis(20),
            "{:?}",
            after - before
        );
        Ok(())
    }

    #[test]
    fn user_and_system_time_are_added() {
        let stat = "7 (a) S 5 7 7 0 -1 4194304 100 200 0 0 30 12 5 6 20 0 1 0 1000";
        assert_eq!(ticks(stat), Some(42));
        assert_eq!(ticks_with_ended(stat), Some(53));
        let thread = "7 (kworker/0:1) I 2 0 0 0 -1 69238880 0 0 0 0 30 12 0 0 20 0 1 0 1000";
        assert_eq!(ticks_with_ended(thread), None);
    }

    #[test]
    fn only_processes_outside_the_family_are_others() {
        let line = |pid: u32, parent: u32| (pid, format!("{pid} (a) S {parent} 1 1 0 -1 0"));
        let all = [line(1, 0), line(5, 1), line(6, 5), line(7, 1), line(8, 6)];
        assert_eq!(descendants(5, &all), [5, 6, 8]);
        assert!(time_of_others().is_ok());
    }

    #[test]
    fn descriptors_and_pipes_of_a_child_are_counted() -> io::Result<()> {
        let ends: Vec<_> = (0..8).map(|_| io::pipe()).collect::<Result<_, _>>()?;
        // A child process. Its own descriptors count too.
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
    fn a_child_that_has_ended_counts_as_nothing() {
        let gone = || -> io::Result<u64> { Err(Errno::NOENT.into()) };
        assert_eq!(unless_child_ended(true, gone()).unwrap(), 0);
        assert!(unless_child_ended(false, gone()).is_err());
        let denied: io::Result<u64> = Err(Errno::ACCESS.into());
        assert!(unless_child_ended(true, denied).is_err());
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
