//! The folder that has the account, the certificates and what is known about tries.
//!
//! ```text
//!   SERVER/            one for each ACME server, so that none replaces what another has issued
//!     NAME.pem         the key, the certificate and its chain
//!     NAME.json        the failures, and when the next tries are allowed
//!     NAME.revoke      an order of the operator to replace the certificate and to revoke it; once
//!                      there is another one, the old one
//!     NAME.challenge   the answer to TLS-ALPN-01 while a try runs
//!     _lock            locked during a try, so one process tries at a time
//!     _account.json    the account and its key
//!     _token-TOKEN     the answer to HTTP-01 while a try runs
//! ```
//!
//! The files of the program begin with `_`, and no NAME does. Any process with the folder answers a
//! challenge: the validation of a try may reach another one.

use std::fmt::{self, Display, Formatter};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustls::pki_types::CertificateDer;

use super::schedule::Known;
use crate::tls::certificate::expiry;

/// The permissions of everybody but the owner.
const OF_OTHERS: u32 = 0o077;
/// The longest file that is read, except for certificates.
const FILE_MAX_BYTES: u64 = 64 << 10;
/// The longest token of a challenge.
const TOKEN_MAX_CHARS: usize = 128;
const LOCK: &str = "_lock";
/// A file that is being written.
const WRITE: &str = "_write";
const ACCOUNT: &str = "_account.json";
const TOKEN: &str = "_token-";

/// The folder of an ACME server, within that of the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StateFolder(PathBuf);

/// The lock of the folder. Dropping it gives the lock back.
#[derive(Debug)]
pub(super) struct Locked(#[expect(dead_code, reason = "the lock lasts as long as the file is open")] File);

/// An order of the operator to replace a certificate and to revoke it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Revocation {
    /// The certificate is still in force.
    Wanted,
    /// Another certificate has taken the place of this one, which expires at that time.
    Replaced(CertificateDer<'static>, SystemTime),
}

/// Why the folder cannot be used, with the remedy.
#[derive(Debug)]
pub(crate) enum UnusableFolder {
    Failed(PathBuf, io::Error),
    NotAFolder(PathBuf),
    /// The folder above it is missing.
    NoParent(PathBuf),
    OpenToOthers(PathBuf),
}

impl StateFolder {
    /// Checks the folder of the operator, which may be missing. Creates nothing. `directory` is the
    /// URL of the server.
    ///
    /// # Errors
    /// Returns an error if others may use the folder, or if it cannot be created.
    pub(crate) fn new(path: PathBuf, directory: &str) -> Result<Self, UnusableFolder> {
        let own = Self(path.join(folder_name(directory)));
        match fs::metadata(&path) {
            Ok(found) if !found.is_dir() => Err(UnusableFolder::NotAFolder(path)),
            Ok(found) if found.mode() & OF_OTHERS != 0 => Err(UnusableFolder::OpenToOthers(path)),
            Ok(_) => Ok(own),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                match fs::metadata(parent.unwrap_or(Path::new("."))) {
                    Ok(_) => Ok(own),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Err(UnusableFolder::NoParent(path)),
                    Err(error) => Err(UnusableFolder::Failed(path, error)),
                }
            }
            Err(error) => Err(UnusableFolder::Failed(path, error)),
        }
    }

    /// Returns the folder of the operator.
    pub(crate) fn path(&self) -> &Path {
        self.0.parent().expect("the folder of a server is within another")
    }

    /// Returns the file with the certificate of a name, and its key.
    pub(crate) fn pair(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.pem"))
    }

    /// Creates the folder if it is missing, and locks it. Returns `None` while another process, or
    /// another service of this one, has the lock.
    pub(super) fn lock(&self) -> io::Result<Option<Locked>> {
        for folder in [self.path(), &self.0] {
            match DirBuilder::new().mode(0o700).create(folder) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        let file = self.file(LOCK, |options| options.create(true).truncate(false).write(true))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Locked(file))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns what is known about a name. A file that cannot be understood counts as none.
    pub(super) fn known(&self, name: &str) -> io::Result<Known> {
        let text = self.read(&format!("{name}.json"))?.unwrap_or_default();
        Ok(serde_json::from_str(&text).unwrap_or_default())
    }

    pub(super) fn set_known(&self, _: &Locked, name: &str, known: &Known) -> io::Result<()> {
        let text = serde_json::to_string(known).map_err(io::Error::other)?;
        self.replace(&format!("{name}.json"), &text)
    }

    /// Returns the account, as it was written.
    pub(super) fn account(&self) -> io::Result<Option<String>> {
        self.read(ACCOUNT)
    }

    pub(super) fn set_account(&self, _: &Locked, account: &str) -> io::Result<()> {
        self.replace(ACCOUNT, account)
    }

    /// Forgets an account that the server does not know any more.
    pub(super) fn forget_account(&self, _: &Locked) -> io::Result<()> {
        fs::remove_file(self.0.join(ACCOUNT))
    }

    /// If this server has issued no certificate for a name, puts the newest one of the other
    /// servers into force.
    pub(super) fn adopt_pair(&self, _: &Locked, name: &str) -> io::Result<()> {
        if self.pair(name).exists() {
            return Ok(());
        }
        let mut newest = None;
        for entry in fs::read_dir(self.path())? {
            let pair = Self(entry?.path()).pair(name);
            if let Ok(time) = fs::metadata(&pair).and_then(|found| found.modified()) {
                newest = newest.max(Some((time, pair)));
            }
        }
        match newest {
            Some((_, pair)) => self.replace(&format!("{name}.pem"), &fs::read_to_string(pair)?),
            None => Ok(()),
        }
    }

    /// Writes a certificate with its key to a file that is not used yet.
    pub(super) fn write_new_pair(&self, _: &Locked, name: &str, text: &str) -> io::Result<PathBuf> {
        let new = format!("{name}.new");
        self.replace(&new, text)?;
        Ok(self.0.join(new))
    }

    /// Puts the certificate that was written before into force.
    pub(super) fn use_new_pair(&self, _: &Locked, name: &str) -> io::Result<()> {
        fs::rename(self.0.join(format!("{name}.new")), self.pair(name))?;
        File::open(&self.0)?.sync_all()
    }

    /// Returns whether the operator wants a certificate replaced and revoked. `current` is the one
    /// in force: a program that ended too early has not replaced it.
    pub(super) fn revocation(
        &self,
        name: &str,
        current: Option<&CertificateDer<'_>>,
    ) -> io::Result<Option<Revocation>> {
        let Some(text) = self.read(&format!("{name}.revoke"))? else {
            return Ok(None);
        };
        let old = STANDARD.decode(text.trim()).map(CertificateDer::from).ok();
        let replaced = old.filter(|old| current != Some(old)).and_then(|old| {
            let expires = expiry(&old)?;
            Some(Revocation::Replaced(old, expires))
        });
        Ok(Some(replaced.unwrap_or(Revocation::Wanted)))
    }

    /// Keeps a certificate that is to be revoked, because another one takes its place.
    pub(super) fn set_replaced(&self, _: &Locked, name: &str, certificate: &CertificateDer<'_>) -> io::Result<()> {
        self.replace(&format!("{name}.revoke"), &STANDARD.encode(certificate))
    }

    pub(super) fn end_revocation(&self, _: &Locked, name: &str) -> io::Result<()> {
        fs::remove_file(self.0.join(format!("{name}.revoke")))
    }

    /// Returns the answer to TLS-ALPN-01 for a name, while a try runs.
    pub(super) fn challenge(&self, name: &str) -> io::Result<Option<String>> {
        self.read(&format!("{name}.challenge"))
    }

    pub(super) fn set_challenge(&self, _: &Locked, name: &str, answer: &str) -> io::Result<()> {
        self.replace(&format!("{name}.challenge"), answer)
    }

    /// Returns the answer to HTTP-01 for a token, while a try runs.
    pub(crate) fn answer(&self, token: &str) -> io::Result<Option<String>> {
        if !is_token(token) {
            return Ok(None);
        }
        self.read(&format!("{TOKEN}{token}"))
    }

    pub(super) fn set_answer(&self, _: &Locked, token: &str, answer: &str) -> io::Result<()> {
        if !is_token(token) {
            return Err(io::Error::other("the server sent an invalid token"));
        }
        self.replace(&format!("{TOKEN}{token}"), answer)
    }

    /// Removes the answers to all challenges. Nobody else tries while the folder is locked.
    pub(super) fn remove_answers(&self, _: &Locked) -> io::Result<()> {
        for entry in fs::read_dir(&self.0)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(TOKEN) || name.ends_with(".challenge") {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    fn read(&self, name: &str) -> io::Result<Option<String>> {
        let file = match File::open(self.0.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut text = String::new();
        file.take(FILE_MAX_BYTES).read_to_string(&mut text)?;
        Ok(Some(text))
    }

    /// Replaces a file whole: after a crash, it is the old one or the new one.
    fn replace(&self, name: &str, text: &str) -> io::Result<()> {
        let mut file = self.file(WRITE, |options| options.create(true).truncate(true).write(true))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(self.0.join(WRITE), self.0.join(name))?;
        File::open(&self.0)?.sync_all()
    }

    /// Opens a file that only this user may use.
    fn file(&self, name: &str, how: impl FnOnce(&mut OpenOptions) -> &mut OpenOptions) -> io::Result<File> {
        how(OpenOptions::new().mode(0o600)).open(self.0.join(name))
    }
}

/// Returns the name of the folder for a server. Different URLs have different names.
fn folder_name(directory: &str) -> String {
    let mut name = String::new();
    for byte in directory.strip_prefix("https://").unwrap_or(directory).bytes() {
        match byte {
            b'/' => name.push('_'),
            b'-' | b'.' => name.push(byte.into()),
            _ if byte.is_ascii_alphanumeric() => name.push(byte.into()),
            _ => name.push_str(&format!("%{byte:02X}")),
        }
    }
    name
}

/// Returns whether a text has the form of a token: base64url, as RFC 8555 has it.
fn is_token(text: &str) -> bool {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=TOKEN_MAX_CHARS).contains(&text.len()) && text.bytes().all(is_valid)
}

impl Display for UnusableFolder {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(path, error) => write!(f, "cannot use the folder {}: {error}", path.display()),
            Self::NoParent(path) => {
                let parent = path.parent().unwrap_or(path).display();
                write!(
                    f,
                    "the folder above {} is missing: run `mkdir -p {parent}`",
                    path.display()
                )
            }
            Self::NotAFolder(path) => write!(f, "{} is not a folder", path.display()),
            Self::OpenToOthers(path) => {
                let path = path.display();
                write!(
                    f,
                    "other users may use the folder {path}, which has private keys: run `chmod go= {path}`"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const URL: &str = "https://localhost:1/dir";
    const SERVER: &str = "localhost%3A1_dir";

    /// A path that is removed when the value is dropped.
    struct Path(PathBuf);

    impl Path {
        fn new(name: &str) -> Self {
            Self(std::env::temp_dir().join(format!("spliceway-acme-{name}-{}", std::process::id())))
        }

        fn mode(&self, name: &str) -> u32 {
            fs::metadata(self.0.join(name)).unwrap().mode() & 0o777
        }
    }

    impl Drop for Path {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn nobody_else_may_read_what_is_created() {
        let path = Path::new("modes");
        let folder = StateFolder::new(path.0.clone(), URL).unwrap();
        assert!(!path.0.exists());
        let locked = folder.lock().unwrap().unwrap();
        folder.set_account(&locked, "{}").unwrap();
        folder.write_new_pair(&locked, "a.test", "pem").unwrap();
        folder.use_new_pair(&locked, "a.test").unwrap();
        for folder in ["", SERVER] {
            assert_eq!(path.mode(folder), 0o700, "{folder}");
        }
        for file in ["_lock", "_account.json", "a.test.pem"] {
            assert_eq!(path.mode(&format!("{SERVER}/{file}")), 0o600, "{file}");
        }
        fs::set_permissions(&path.0, PermissionsExt::from_mode(0o750)).unwrap();
        let refused = StateFolder::new(path.0.clone(), URL).unwrap_err().to_string();
        assert!(refused.contains("chmod go= "), "{refused}");
    }

    #[test]
    fn one_holder_has_the_lock_at_a_time() {
        let path = Path::new("lock");
        let folder = StateFolder::new(path.0.clone(), URL).unwrap();
        let locked = folder.lock().unwrap();
        assert!(locked.is_some() && folder.lock().unwrap().is_none());
        drop(locked);
        assert!(folder.lock().unwrap().is_some());
    }

    #[test]
    fn only_a_token_of_a_running_try_has_an_answer() {
        let path = Path::new("answers");
        let folder = StateFolder::new(path.0.clone(), URL).unwrap();
        let locked = folder.lock().unwrap().unwrap();
        folder.set_account(&locked, "secret").unwrap();
        folder.set_answer(&locked, "a-B_9", "answer").unwrap();
        folder.set_challenge(&locked, "a.test", "00").unwrap();
        assert_eq!(folder.answer("a-B_9").unwrap().as_deref(), Some("answer"));
        for other in ["", "b", "../_account.json", "x/../../_account.json", &"a".repeat(129)] {
            assert_eq!(folder.answer(other).unwrap(), None, "{other}");
        }
        assert!(folder.set_answer(&locked, "../x", "answer").is_err());
        folder.remove_answers(&locked).unwrap();
        assert_eq!(folder.answer("a-B_9").unwrap(), None);
        assert_eq!(folder.challenge("a.test").unwrap(), None);
        assert_eq!(folder.account().unwrap().as_deref(), Some("secret"));
    }

    #[test]
    fn what_is_known_about_tries_survives_and_a_broken_file_does_not_stop() {
        let path = Path::new("tries");
        let folder = StateFolder::new(path.0.clone(), URL).unwrap();
        let locked = folder.lock().unwrap().unwrap();
        assert_eq!(folder.known("a.test").unwrap(), Known::default());
        let mut known = Known::default();
        known.order.begin(SystemTime::now(), 0.5);
        folder.set_known(&locked, "a.test", &known).unwrap();
        assert_eq!(folder.known("a.test").unwrap(), known);
        fs::write(folder.0.join("a.test.json"), "{").unwrap();
        assert_eq!(folder.known("a.test").unwrap(), Known::default());
    }

    #[test]
    fn no_name_of_a_host_is_that_of_a_file_of_the_program() {
        let path = Path::new("names");
        let folder = StateFolder::new(path.0.clone(), URL).unwrap();
        let locked = folder.lock().unwrap().unwrap();
        for name in ["token-service.a.test", "account", "lock", "write"] {
            folder.write_new_pair(&locked, name, "pem").unwrap();
            folder.use_new_pair(&locked, name).unwrap();
            folder.set_known(&locked, name, &Known::default()).unwrap();
        }
        folder.set_account(&locked, "secret").unwrap();
        folder.remove_answers(&locked).unwrap();
        for name in ["token-service.a.test", "account", "lock", "write"] {
            assert_eq!(fs::read_to_string(folder.pair(name)).unwrap(), "pem", "{name}");
        }
        assert_eq!(folder.account().unwrap().as_deref(), Some("secret"));
    }

    #[test]
    fn each_server_has_a_folder_of_its_own() {
        let names = [
            ("https://acme.test/directory", "acme.test_directory"),
            ("https://acme.test:14000/a/dir?x=1", "acme.test%3A14000_a_dir%3Fx%3D1"),
            ("https://acme.test/a_dir", "acme.test_a%5Fdir"),
        ];
        for (directory, expected) in names {
            assert_eq!(folder_name(directory), expected);
        }
    }

    #[test]
    fn the_newest_certificate_serves_until_a_new_server_has_issued_one() {
        let path = Path::new("adopt");
        let of = |host: &str| StateFolder::new(path.0.clone(), &format!("https://{host}/dir")).unwrap();
        for (host, seconds) in [("old", 1), ("newest", 3), ("older", 2)] {
            let (folder, locked) = (of(host), of(host).lock().unwrap().unwrap());
            folder.write_new_pair(&locked, "a.test", host).unwrap();
            folder.use_new_pair(&locked, "a.test").unwrap();
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            let file = File::options().append(true).open(folder.pair("a.test")).unwrap();
            file.set_modified(time).unwrap();
        }
        let (folder, locked) = (of("new"), of("new").lock().unwrap().unwrap());
        folder.adopt_pair(&locked, "b.test").unwrap();
        assert!(!folder.pair("b.test").exists());
        folder.adopt_pair(&locked, "a.test").unwrap();
        assert_eq!(fs::read_to_string(folder.pair("a.test")).unwrap(), "newest");
        let (old, locked) = (of("old"), of("old").lock().unwrap().unwrap());
        old.adopt_pair(&locked, "a.test").unwrap();
        assert_eq!(fs::read_to_string(old.pair("a.test")).unwrap(), "old");
    }
}
