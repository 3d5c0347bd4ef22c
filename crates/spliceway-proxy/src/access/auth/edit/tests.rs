use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::Barrier;
use std::thread;

use super::*;

/// A hash of the lowest cost.
const HASH: &str = "$argon2id$v=19$m=8,t=1,p=1$c29tZXNhbHQxMjM0$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

/// A folder with a user file, removed when the value is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("spliceway-edit-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn users(&self) -> PathBuf {
        self.0.join("users")
    }

    fn text(&self) -> String {
        fs::read_to_string(self.users()).unwrap()
    }

    fn edit(&self, what: What, name: &str) -> Result<Vec<String>, EditError> {
        let edit = Edit {
            path: self.users(),
            kind: FileKind::Users,
            name: name.to_owned(),
            what,
        };
        edit.check().and_then(|()| edit.apply(HASH))
    }

    /// Returns the names of all files in the folder.
    fn files(&self) -> Vec<String> {
        let files = fs::read_dir(&self.0).unwrap();
        files
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_change_keeps_every_other_byte() {
    let folder = Folder::new("bytes");
    for (before, what, name, after) in [
        ("# a\n\nann:a\n# b\n", What::Add, "bob", "# a\n\nann:a\n# b\nbob:HASH\n"),
        ("ann:a", What::Add, "bob", "ann:a\nbob:HASH\n"),
        ("ann:a\r\n# b\r\n", What::Add, "bob", "ann:a\r\n# b\r\nbob:HASH\r\n"),
        (
            "\u{feff}ann:a\n# b\nbob:b",
            What::SetPassword,
            "ann",
            "\u{feff}ann:HASH\n# b\nbob:b",
        ),
        (
            "ann:a\n\nbob:b\n# ann:a\n",
            What::SetPassword,
            "bob",
            "ann:a\n\nbob:HASH\n# ann:a\n",
        ),
        ("ann:a\n# b\nbob:b", What::SetPassword, "bob", "ann:a\n# b\nbob:HASH\n"),
        ("ann:a\nanna:b\n# b\n", What::Remove, "ann", "anna:b\n# b\n"),
        ("ann:a\r\nbob:b\r\n", What::Remove, "bob", "ann:a\r\n"),
        // A file that was damaged by hand. No line of the user stays.
        ("ann:a\nx\nann:$6$b\ny", What::Remove, "ann", "x\ny"),
        (
            "ann:$2y$05$a\nbob:$2y$05$b\n",
            What::SetPassword,
            "bob",
            "ann:$2y$05$a\nbob:HASH\n",
        ),
    ] {
        fs::write(folder.users(), before).unwrap();
        folder.edit(what, name).unwrap();
        assert_eq!(folder.text(), after.replace("HASH", HASH), "{before:?} {what:?} {name}");
        assert_eq!(folder.files(), ["users"]);
    }
}

#[test]
fn a_change_that_means_nothing_leaves_the_file() {
    let folder = Folder::new("refused");
    let refusal = |what, name: &str| folder.edit(what, name).unwrap_err().to_string();
    for what in [What::SetPassword, What::Remove] {
        assert!(refusal(what, "ann").contains("No such file"));
    }
    assert!(folder.files().is_empty());
    let text = "# users\nann:a\n";
    fs::write(folder.users(), text).unwrap();
    let before = fs::metadata(folder.users()).unwrap().ino();
    for (what, name, expected) in [
        (
            What::Add,
            "ann",
            "users:2 (ann) is there already; `spliceway user passwd`",
        ),
        (
            What::SetPassword,
            "bob",
            "there is no user `bob`; `spliceway user list`",
        ),
        (What::Remove, "a", "there is no user `a`"),
        (What::Remove, "# users", "there is no user `# users`"),
    ] {
        let told = refusal(what, name);
        assert!(told.contains(expected), "{told}");
    }
    assert_eq!(
        (folder.text().as_str(), fs::metadata(folder.users()).unwrap().ino()),
        (text, before)
    );
    fs::write(
        folder.users(),
        "ann:a\n# ".to_owned() + &"x".repeat(file::FILE_MAX_BYTES - 10),
    )
    .unwrap();
    assert!(refusal(What::Add, "bob").contains("larger than 4 MiB"));
    assert_eq!(folder.files(), ["users"]);
}

#[test]
fn a_new_file_is_private_and_an_old_one_keeps_its_mode_and_link() {
    let folder = Folder::new("mode");
    let mode = || fs::metadata(folder.users()).unwrap().permissions().mode() & 0o7777;
    folder.edit(What::Add, "ann").unwrap();
    assert_eq!(mode(), 0o600);
    fs::set_permissions(folder.users(), fs::Permissions::from_mode(0o640)).unwrap();
    folder.edit(What::Add, "bob").unwrap();
    assert_eq!(mode(), 0o640);
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(folder.users(), Some(1234), Some(5678)).unwrap();
        folder.edit(What::Remove, "ann").unwrap();
        let owner = fs::metadata(folder.users()).unwrap();
        assert_eq!((owner.uid(), owner.gid(), mode()), (1234, 5678, 0o640));
    }
    fs::rename(folder.users(), folder.0.join("real")).unwrap();
    symlink("real", folder.users()).unwrap();
    folder.edit(What::Add, "eve").unwrap();
    assert!(fs::symlink_metadata(folder.users()).unwrap().is_symlink());
    assert!(fs::read_to_string(folder.0.join("real")).unwrap().contains("eve:"));
}

#[test]
fn writers_at_the_same_time_lose_no_user() {
    const WRITERS: usize = 8;
    const EACH: usize = 20;
    let folder = Folder::new("writers");
    let start = Barrier::new(WRITERS);
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (folder, start) = (&folder, &start);
            scope.spawn(move || {
                start.wait();
                for number in 0..EACH {
                    folder.edit(What::Add, &format!("user-{writer}-{number}")).unwrap();
                }
            });
        }
    });
    let (names, warnings) = listed(&folder.users(), FileKind::Users).unwrap();
    assert_eq!(
        (names.len(), &warnings[..], folder.files().len()),
        (WRITERS * EACH, &[][..], 1)
    );
}

#[test]
fn half_of_a_new_file_is_no_obstacle() {
    let folder = Folder::new("half");
    fs::write(folder.users(), "ann:a\n").unwrap();
    fs::write(folder.0.join("users.new"), "eve:e\n".repeat(100)).unwrap();
    folder.edit(What::Add, "bob").unwrap();
    assert_eq!(folder.text(), format!("ann:a\nbob:{HASH}\n"));
    assert_eq!(folder.files(), ["users"]);
    // Another name for another file must not be written.
    symlink("users", folder.0.join("users.new")).unwrap();
    assert!(folder.edit(What::Add, "eve").is_err());
    assert_eq!(folder.text(), format!("ann:a\nbob:{HASH}\n"));
}

#[test]
fn warnings_name_each_password_in_clear_text_and_each_fault() {
    let folder = Folder::new("warnings");
    fs::write(folder.users(), "# users\nann:a\nbob:$apr1$b\n").unwrap();
    let users = folder.users();
    let users = users.display();
    let warnings = folder.edit(What::Add, "eve").unwrap();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].starts_with(&format!("{users}:3 (bob): the password has a hash of another program")));
    assert!(warnings[1].starts_with(&format!(
        "{users}:2 (ann) is a clear-text password; `spliceway user passwd`"
    )));
    let many: String = (0..25).map(|number| format!("user{number}:a\n")).collect();
    fs::write(folder.users(), many).unwrap();
    let (names, warnings) = listed(&folder.users(), FileKind::Users).unwrap();
    assert_eq!((names.len(), warnings.len()), (25, NAMED_MAX + 1));
    assert!(warnings[NAMED_MAX].contains(": 15 more clear-text passwords"));
    fs::write(folder.users(), "ann:a\n").unwrap();
    let warnings = folder.edit(What::Remove, "ann").unwrap();
    assert!(warnings[0].contains("the file has no users"), "{warnings:?}");
}
