//! Tests of the quota file.

use std::os::unix::fs::{PermissionsExt, symlink};

use super::super::limits::Period;
use super::*;

const TODAY: Date = Date { day: 100, month: 3 };
/// For a lock that is free in a moment.
const TEST_PATIENCE: Duration = Duration::from_secs(20);

impl File {
    /// Lets a test be another process.
    pub(in super::super) fn become_process(&mut self, id: u32) {
        self.id = id;
    }
}

/// A folder that is removed at the end of a test.
struct Temporary {
    folder: PathBuf,
    file: PathBuf,
}

impl Temporary {
    fn new(name: &str) -> Self {
        let name = format!("spliceway-quotas-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        Self {
            file: folder.join("quotas"),
            folder,
        }
    }

    fn load(&self, date: Date) -> (File, Rows) {
        let (file, updated) = self.load_free(date, false);
        (file, updated.rows)
    }

    /// Loads a file that nobody uses. A program that another test starts has all descriptors of
    /// this process, with their locks, until it executes.
    fn load_free(&self, date: Date, is_shared: bool) -> (File, Updated) {
        let until = Instant::now() + TEST_PATIENCE;
        loop {
            match self.try_load(date, is_shared) {
                Err(Unusable::Busy(_)) if Instant::now() < until => replacement::wait(),
                loaded => {
                    let (mut file, updated) = loaded.unwrap();
                    file.patience = TEST_PATIENCE;
                    return (file, updated);
                }
            }
        }
    }

    fn try_load(&self, date: Date, is_shared: bool) -> Result<(File, Updated), Unusable> {
        File::load(&self.file, date, is_shared, Duration::ZERO)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.folder).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn change(user: &str, bytes: u64, is_reset: bool) -> Change {
    Change {
        user: user.into(),
        bytes,
        is_reset,
        ..Change::default()
    }
}

/// Returns the bytes of the day and the month of each user.
fn shown(rows: &Rows) -> Vec<(&str, u64, u64)> {
    let mut shown: Vec<_> = rows
        .iter()
        .map(|(user, usage)| (&**user, usage.in_period(Period::Day), usage.in_period(Period::Month)))
        .collect();
    shown.sort_unstable();
    shown
}

fn decoded(bytes: &[u8]) -> Result<Snapshot, Unusable> {
    Content::verify(bytes).and_then(|content| content.decode())
}

fn rows(snapshot: &Snapshot) -> Rows {
    let rows = snapshot.users.iter().map(|(user, row)| {
        let mut used = row.used.clone();
        used.advance(TODAY);
        (user.clone(), used)
    });
    rows.collect()
}

fn updated(file: &mut File, changes: &[Change], date: Date) -> Rows {
    file.update(changes, date).unwrap().rows
}

/// Returns the reason why a file with this content is refused.
fn refused(path: &Temporary, content: &[u8]) -> String {
    fs::write(&path.file, content).unwrap();
    let why = path.try_load(TODAY, false).unwrap_err().to_string();
    assert_eq!(fs::read(&path.file).unwrap(), content, "it stays as it was");
    why
}

#[test]
fn bytes_add_up_by_user_and_period_and_a_reset_empties_one_user() {
    let path = Temporary::new("add");
    let (mut file, rows) = path.load(TODAY);
    assert!(rows.is_empty());
    let both = [change("ann", 5, false), change("bob", 7, false)];
    assert_eq!(shown(&updated(&mut file, &both, TODAY)), [("ann", 5, 5), ("bob", 7, 7)]);
    let tomorrow = Date { day: 101, month: 3 };
    let rows = updated(&mut file, &[change("ann", 1, false)], tomorrow);
    assert_eq!(shown(&rows), [("ann", 1, 6)]);
    let rows = updated(&mut file, &[change("ann", 2, true)], tomorrow);
    assert_eq!(shown(&rows), [("ann", 2, 2)]);
    drop(file);
    let (_, rows) = path.load(tomorrow);
    assert_eq!(shown(&rows), [("ann", 2, 2), ("bob", 0, 7)]);
    assert_eq!(path.names(), ["quotas"]);
}

#[test]
fn another_process_takes_turns_and_its_rows_are_seen() {
    let path = Temporary::new("turns");
    let (mut one, _) = path.load(TODAY);
    for is_shared in [false, true] {
        let why = path.try_load(TODAY, is_shared).unwrap_err().to_string();
        let pid = std::process::id();
        assert_eq!(why, format!("another process has it open ({pid})"));
    }
    one.share(true);
    updated(&mut one, &[change("ann", 5, false)], TODAY);
    let (mut two, rows) = path.load_free(TODAY, true);
    assert_eq!(shown(&rows.rows), [("ann", 5, 5)]);
    two.become_process(1);
    updated(&mut two, &[change("bob", 7, false)], TODAY);
    assert!(one.needs_update());
    assert_eq!(shown(&updated(&mut one, &[], TODAY)), [("ann", 5, 5), ("bob", 7, 7)]);
    assert!(!one.needs_update() && one.locked.is_none());
    let rows = updated(&mut one, &[change("bob", 1, false)], TODAY);
    assert_eq!(shown(&rows), [("bob", 8, 8)]);
    // The second process serves on alone.
    one.leave();
    updated(&mut one, &[change("ann", 4, false)], TODAY);
    two.share(false);
    assert!(two.needs_update());
    assert_eq!(shown(&updated(&mut two, &[], TODAY)), [("ann", 9, 9), ("bob", 8, 8)]);
    assert!(two.locked.is_some() && two.snapshot.processes.is_empty());
    one.patience = Duration::ZERO;
    assert!(one.update(&[change("ann", 1, false)], TODAY).is_err());
}

#[test]
fn a_wrong_clock_removes_no_user_and_time_removes_old_ones() {
    let path = Temporary::new("months");
    let date = |month: u32| Date { day: 30 * month, month };
    let (mut file, _) = path.load(TODAY);
    updated(&mut file, &[change("ann", 5, false)], date(3));
    updated(&mut file, &[change("bob", 7, false)], date(500));
    drop(file);
    let (mut file, rows) = path.load(date(3));
    assert_eq!(shown(&rows), [("ann", 5, 5), ("bob", 7, 7)]);
    for month in [4, 5, 6] {
        updated(&mut file, &[change("bob", 1, false)], date(month));
    }
    drop(file);
    assert_eq!(shown(&path.load(date(6)).1), [("bob", 1, 1)]);
}

#[test]
fn a_file_that_another_program_changes_is_written_again() {
    let path = Temporary::new("again");
    let (mut file, _) = path.load(TODAY);
    updated(&mut file, &[change("ann", 5, false), change("bob", 7, false)], TODAY);
    updated(&mut file, &[], TODAY);
    let good = fs::read(&path.file).unwrap();
    let zeroes = vec![0; good.len()];
    let faults: [(&str, &dyn Fn()); 6] = [
        ("removed", &|| fs::remove_file(&path.file).unwrap()),
        ("truncated", &|| fs::write(&path.file, "").unwrap()),
        ("zeroed", &|| fs::write(&path.file, &zeroes).unwrap()),
        ("short", &|| fs::write(&path.file, &good[..good.len() - 9]).unwrap()),
        ("another", &|| {
            fs::write(path.folder.join("other"), "x").unwrap();
            fs::rename(path.folder.join("other"), &path.file).unwrap();
        }),
        ("an older one", &|| {
            fs::remove_file(&path.file).unwrap();
            drop(path.load(TODAY));
        }),
    ];
    for (name, fault) in faults {
        fault();
        assert!(file.needs_update(), "{name}");
        assert!(file.update(&[], TODAY).unwrap().written.is_some(), "{name}");
        updated(&mut file, &[], TODAY);
        assert!(!file.needs_update(), "{name}");
        let found = decoded(&fs::read(&path.file).unwrap()).unwrap();
        assert_eq!(found.updates, file.snapshot.updates, "{name}");
        assert_eq!(shown(&rows(&found)), [("ann", 5, 5), ("bob", 7, 7)], "{name}");
        let why = path.try_load(TODAY, false).unwrap_err().to_string();
        assert!(why.starts_with("another process has it open"), "{name}: {why}");
    }
    fs::remove_file(&path.file).unwrap();
    updated(&mut file, &[change("ann", 1, false)], TODAY);
    drop(file);
    assert_eq!(shown(&path.load(TODAY).1), [("ann", 6, 6), ("bob", 7, 7)]);
}

#[test]
fn a_file_that_is_removed_during_a_hand_over_keeps_its_counters() {
    let path = Temporary::new("removed");
    let (mut one, _) = path.load(TODAY);
    updated(&mut one, &[change("ann", 5, false)], TODAY);
    fs::remove_file(&path.file).unwrap();
    one.share(true);
    let (mut two, rows) = path.load_free(TODAY, true);
    assert!(
        rows.rows.is_empty(),
        "the new process may be the only one with this file"
    );
    two.become_process(1);
    updated(&mut one, &[], TODAY);
    assert_eq!(shown(&updated(&mut two, &[], TODAY)), [("ann", 5, 5)]);
    fs::remove_file(&path.file).unwrap();
    updated(&mut two, &[change("ann", 1, false)], TODAY);
    assert_eq!(shown(&updated(&mut one, &[], TODAY)), [("ann", 6, 6)]);
}

#[test]
fn no_flipped_bit_and_no_missing_byte_is_another_count() {
    let path = Temporary::new("bits");
    let (mut file, _) = path.load(TODAY);
    for (user, bytes) in [("ann", 1), ("bob", 1 << 40), ("a \"b\" é\n", 12_345)] {
        updated(&mut file, &[change(user, bytes, false)], TODAY);
    }
    drop(file);
    let good = fs::read(&path.file).unwrap();
    for index in 0..good.len() {
        let mut bytes = good.clone();
        for bit in 0..8 {
            bytes[index] = good[index] ^ 1 << bit;
            let why = decoded(&bytes).unwrap_err().to_string();
            assert!(why.ends_with(": move it away to begin with empty counters"), "{why}");
        }
        assert!(decoded(&good[..index]).is_err());
        assert!(decoded(&[&good[..index], &vec![0; good.len() - index]].concat()).is_err());
        let long = [&good[..], &good[..=index]].concat();
        assert!(decoded(&long).is_err());
    }
    assert!(decoded(&good).is_ok());
}

#[test]
fn what_is_no_quota_file_is_refused_and_stays() {
    let path = Temporary::new("refused");
    let remedy = "move it away to begin with empty counters";
    for (content, why) in [
        (&b""[..], "it is empty"),
        (b"redb\x1a\x0a\xa9\x0d\x0a", "it is no quota file, or damaged"),
        (
            b"spliceway quotas 2 ",
            "its format is that of another version, or it is damaged",
        ),
        (b"spliceway quotas 1 00", "it is damaged"),
    ] {
        assert_eq!(refused(&path, content), format!("{why}: {remedy}"));
    }
    fs::remove_file(&path.file).unwrap();
    rustix::fs::mknodat(CWD, &path.file, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let why = path.try_load(TODAY, false).unwrap_err();
    assert_eq!(why.to_string(), "it is no regular file");
    fs::remove_file(&path.file).unwrap();
    symlink("/dev/null", &path.file).unwrap();
    let why = path.try_load(TODAY, false).unwrap_err();
    assert_eq!(why.to_string(), "it is no regular file");
    assert_eq!(path.names(), ["quotas"]);
    fs::remove_file(&path.file).unwrap();
    symlink("quotas", &path.file).unwrap();
    assert!(path.try_load(TODAY, false).is_err(), "a link to itself");
}

#[test]
fn a_device_that_takes_the_name_later_is_not_replaced() {
    let path = Temporary::new("later");
    let (mut file, _) = path.load(TODAY);
    fs::remove_file(&path.file).unwrap();
    symlink("/dev/null", &path.file).unwrap();
    let why = file.update(&[change("ann", 5, false)], TODAY).unwrap_err();
    assert_eq!(why.to_string(), "it is no regular file");
    assert!(fs::symlink_metadata(&path.file).unwrap().is_symlink());
    fs::remove_file(&path.file).unwrap();
    assert_eq!(
        shown(&updated(&mut file, &[change("ann", 5, false)], TODAY)),
        [("ann", 5, 5)]
    );
}

#[test]
fn a_process_that_nobody_reaps_has_ended() {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let id = Pid::from_raw(child.id().cast_signed()).unwrap();
    let ended = waitid(WaitId::Pid(id), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
    assert!(ended.unwrap().is_some() && !lives(child.id()));
    child.wait().unwrap();
    assert!(!lives(child.id()) && lives(std::process::id()) && lives(1));
}

#[test]
fn a_link_that_leads_elsewhere_later_replaces_no_foreign_file() {
    let path = Temporary::new("elsewhere");
    let (mut file, _) = path.load(TODAY);
    updated(&mut file, &[change("ann", 5, false)], TODAY);
    let foreign = path.file.with_file_name("foreign");
    fs::write(&foreign, "theirs").unwrap();
    fs::remove_file(&path.file).unwrap();
    std::os::unix::fs::symlink(&foreign, &path.file).unwrap();
    let why = file.update(&[change("ann", 1, false)], TODAY).unwrap_err().to_string();
    assert!(why.contains("which is no quota file"), "{why}");
    assert_eq!(fs::read_to_string(&foreign).unwrap(), "theirs");
}

#[test]
fn a_pipe_with_the_name_of_the_new_file_is_named() {
    let path = Temporary::new("new-pipe");
    let (mut file, _) = path.load(TODAY);
    let mut new = path.file.clone().into_os_string();
    new.push(".new");
    rustix::fs::mknodat(rustix::fs::CWD, &new, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let why = file.update(&[change("ann", 1, false)], TODAY).unwrap_err().to_string();
    assert!(why.ends_with(".new is no regular file"), "{why}");
}

#[test]
fn links_and_modes_stay() {
    let path = Temporary::new("links");
    let folder = path.folder.join("elsewhere");
    fs::create_dir(&folder).unwrap();
    symlink("elsewhere/link", &path.file).unwrap();
    symlink("there", folder.join("link")).unwrap();
    let (mut file, _) = path.load(TODAY);
    let there = folder.join("there");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&there), 0o600);
    fs::set_permissions(&there, fs::Permissions::from_mode(0o640)).unwrap();
    updated(&mut file, &[change("ann", 5, false)], TODAY);
    assert_eq!(mode(&there), 0o640);
    assert_eq!(path.names(), ["elsewhere", "quotas"]);
    drop(file);
    assert_eq!(shown(&path.load(TODAY).1), [("ann", 5, 5)]);
}

#[test]
fn a_change_that_cannot_be_written_counts_once_later() {
    let path = Temporary::new("once");
    let (mut file, _) = path.load(TODAY);
    updated(&mut file, &[change("ann", 5, false)], TODAY);
    let new = path.folder.join("quotas.new");
    fs::create_dir(&new).unwrap();
    let changes = [change("ann", 1, false), change("bob", 2, false)];
    for _ in 0..3 {
        let why = file.update(&changes, TODAY).unwrap_err().to_string();
        assert!(why.starts_with("cannot write ") && why.contains("quotas.new"), "{why}");
    }
    fs::remove_dir(&new).unwrap();
    assert_eq!(
        shown(&updated(&mut file, &changes, TODAY)),
        [("ann", 6, 6), ("bob", 2, 2)]
    );
}
