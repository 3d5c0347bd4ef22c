//! Listens on Unix sockets. The file of a socket is removed only if no other program uses it.

use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Access, Mode, OFlags, access, fchmod, open};
use rustix::io::Errno;
use socket2::{Domain, SockAddr, Socket, Type};
use spliceway_protocol::address::is_abstract;
use tokio::net::UnixListener;

use super::abstract_socket::{self, is_owner};
use super::options::BACKLOG;
use crate::net::holder;

/// The default mode: only the user of this program and root may connect. By default, other users of
/// the machine must not use the proxy.
const MODE: u32 = 0o600;
/// The bits with which other users may connect: connect(2) requires write permission. An ACL for
/// other users is visible in the group bits.
pub(crate) const OTHERS_MAY_CONNECT: u32 = 0o022;

/// Whether another process uses the sockets from now on, so their files stay.
static LEFT: AtomicBool = AtomicBool::new(false);

/// Whether this process owns the files of the sockets that it has received. Until then, they belong
/// to the process that hands over.
pub(in crate::net) type Ownership = Arc<AtomicBool>;

/// The file of a socket that this process listens on. Dropping this value removes the file if it
/// belongs to this process, and if the path still refers to the same file.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// The device and the inode. While the socket is open, no other file has both.
    inode: (u64, u64),
    /// `None` for a file that this process has created.
    received: Option<Ownership>,
    /// The mode that the file gets when it belongs to this process, if that differs.
    next_mode: Option<u32>,
}

impl SocketFile {
    /// Listens on `path`. Users with write permission in `mode` may connect. An existing socket
    /// without a listener is left over from a killed program and is removed.
    ///
    /// If two programs start at the same moment with the same path, each may mistake the other's
    /// socket for a leftover. The path then belongs to the second program.
    ///
    /// # Errors
    /// Returns an error if another program listens there, if the file is not a socket, or if the
    /// directory is missing or not writable.
    pub(super) fn listen(path: &Path, mode: Option<u32>) -> io::Result<(Self, UnixListener)> {
        make_way(path)?;
        let mode = mode.unwrap_or(MODE);
        let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
        // The kernel gives the file the mode of the socket, without the bits of the umask.
        fchmod(&socket, Mode::from_raw_mode(mode))?;
        socket.bind(&SockAddr::unix(path)?)?;
        let file = Self {
            path: path.to_owned(),
            inode: inode(&fs::symlink_metadata(path)?),
            received: None,
            next_mode: None,
        };
        if fs::symlink_metadata(path)?.mode() & 0o7777 != mode {
            set_mode(path, mode)?;
        }
        socket.listen(BACKLOG)?;
        Ok((file, UnixListener::from_std(socket.into())?))
    }

    /// Tells whether [`Self::listen`] would succeed. Connects to nothing, and changes nothing.
    ///
    /// # Errors
    /// As [`Self::listen`].
    pub(super) fn try_out(path: &Path) -> io::Result<()> {
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(found) if !found.file_type().is_socket() => return Err(no_socket()),
            Ok(_) if holder::has_listener(path) => return Err(in_use()),
            Ok(_) | Err(_) => {}
        }
        let folder = path.parent().unwrap_or(Path::new("/"));
        Ok(access(folder, Access::WRITE_OK | Access::EXEC_OK)?)
    }

    /// Returns the file of a socket that another process has bound to `path`. It belongs to this
    /// process when `ownership` says so. Returns `None` if the file is not there any more.
    pub(super) fn receive(path: &Path, ownership: &Ownership) -> Option<Self> {
        let found = fs::symlink_metadata(path).ok()?;
        Some(Self {
            path: path.to_owned(),
            inode: inode(&found),
            received: Some(Arc::clone(ownership)),
            next_mode: None,
        })
    }

    /// Records the mode that the file gets when it belongs to this process.
    pub(in crate::net) fn set_next_mode(&mut self, mode: Option<u32>) {
        self.next_mode = Some(mode.unwrap_or(MODE));
    }

    /// Returns whether only the user of this program and root may connect, once the file has its
    /// last mode.
    pub(super) fn is_private(&self) -> bool {
        match self.next_mode {
            Some(mode) => mode & OTHERS_MAY_CONNECT == 0,
            None => is_private(&self.path),
        }
    }

    /// Leaves the files of all sockets to the process that has taken them over.
    pub(crate) fn leave_all() {
        LEFT.store(true, Ordering::Relaxed);
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let belongs_here = |received: &Ownership| received.load(Ordering::Relaxed);
        if LEFT.load(Ordering::Relaxed) || !self.received.as_ref().is_none_or(belongs_here) {
            return;
        }
        if fs::symlink_metadata(&self.path).is_ok_and(|found| inode(&found) == self.inode) {
            // If this fails, the next start removes the file.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A change of the mode of a socket, in two steps: nobody may connect too early or too late.
///
/// ```text
///   old mode ─ narrow ─▶ what both allow ─ the new settings apply ─ widen ─▶ new mode
/// ```
pub(crate) struct ModeChange<'a> {
    path: &'a Path,
    from: u32,
    to: u32,
}

impl<'a> ModeChange<'a> {
    pub(crate) fn new(path: &'a Path, from: Option<u32>, to: Option<u32>) -> Self {
        let (from, to) = (from.unwrap_or(MODE), to.unwrap_or(MODE));
        Self { path, from, to }
    }

    /// Takes away what the new mode does not allow. Call this before the new settings apply.
    pub(crate) fn narrow(&self) -> io::Result<()> {
        let both = self.from & self.to;
        if both == self.from {
            return Ok(());
        }
        set_mode(self.path, both)
    }

    /// Sets the new mode. Call this when no client can get the old settings any more.
    pub(crate) fn widen(&self) -> io::Result<()> {
        if self.to == self.from & self.to {
            return Ok(());
        }
        set_mode(self.path, self.to)
    }
}

/// Sets the mode of the socket at `path`. The file may have been replaced by a link or by another
/// file, which keeps its mode.
fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    if is_abstract(path) {
        abstract_socket::set_mode(path, Some(mode));
        return Ok(());
    }
    let file = open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let found = fs::File::from(file);
    if !found.metadata()?.file_type().is_socket() {
        return Err(io::Error::other("the file is not a socket any more"));
    }
    // A descriptor of this kind has no call of its own that every kernel knows.
    let link = format!("/proc/self/fd/{}", found.as_raw_fd());
    fs::set_permissions(link, Permissions::from_mode(mode))
}

/// Returns whether only the user of this program and root may connect to the socket at `path`. The
/// parent directories are not checked, because they may change, and most operators set the mode of
/// the socket.
pub(super) fn is_private(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|file| file.mode() & OTHERS_MAY_CONNECT == 0 && is_owner(file.uid()))
}

fn inode(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

fn no_socket() -> io::Error {
    io::Error::new(io::ErrorKind::AlreadyExists, "a file exists there that is not a socket")
}

fn in_use() -> io::Error {
    io::Error::new(io::ErrorKind::AddrInUse, "another program listens there")
}

/// Removes a socket without a listener.
fn make_way(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(no_socket());
        }
        Ok(_) => {}
    }
    // The socket is non-blocking, because connect(2) would otherwise wait while the backlog is
    // full.
    let caller = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    match caller
        .connect(&SockAddr::unix(path)?)
        .map_err(|error| Errno::from_io_error(&error))
    {
        Err(Some(Errno::CONNREFUSED)) => fs::remove_file(path),
        Ok(()) | Err(Some(Errno::AGAIN)) => Err(in_use()),
        Err(Some(Errno::NOENT)) => Ok(()),
        Err(errno) => Err(errno.map_or_else(|| io::Error::other("cannot tell if the socket is in use"), Into::into)),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;
    use tokio::net::UnixStream;

    /// A directory for one test. Dropping this value removes the directory.
    pub(in crate::net::listener) struct Folder(PathBuf);

    impl Folder {
        pub(in crate::net::listener) fn new() -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let folder = std::env::temp_dir().join(format!("spliceway-{}-{number}", std::process::id()));
            fs::create_dir(&folder).unwrap();
            Self(folder)
        }

        pub(in crate::net::listener) fn path(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[tokio::test]
    async fn only_the_owner_may_connect_unless_a_mode_is_set() {
        let folder = Folder::new();
        let path = folder.path("a.sock");
        for (asked, expected) in [(None, 0o600), (Some(0o666), 0o666), (Some(0o660), 0o660)] {
            let _listening = SocketFile::listen(&path, asked).unwrap();
            assert_eq!(mode(&path), expected);
            UnixStream::connect(&path).await.unwrap();
        }
    }

    #[tokio::test]
    async fn between_the_two_steps_of_a_change_both_modes_must_allow_a_client() {
        let folder = Folder::new();
        let path = folder.path("a.sock");
        for (from, to, between) in [
            (None, Some(0o666), 0o600),
            (Some(0o666), None, 0o600),
            (Some(0o660), Some(0o606), 0o600),
            (Some(0o620), Some(0o660), 0o620),
            (Some(0o660), Some(0o660), 0o660),
        ] {
            let _listening = SocketFile::listen(&path, from).unwrap();
            let change = ModeChange::new(&path, from, to);
            change.narrow().unwrap();
            assert_eq!(mode(&path), between, "{from:?} {to:?}");
            change.widen().unwrap();
            assert_eq!(mode(&path), to.unwrap_or(MODE), "{from:?} {to:?}");
        }
    }

    #[test]
    fn no_mode_is_set_through_a_link_or_on_another_file() {
        let folder = Folder::new();
        let (path, file) = (folder.path("a.sock"), folder.path("file"));
        fs::write(&file, "theirs").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        std::os::unix::fs::symlink(&file, &path).unwrap();
        set_mode(&path, 0o666).unwrap_err();
        set_mode(&file, 0o666).unwrap_err();
        assert_eq!(mode(&file), 0o644);
    }

    #[tokio::test]
    async fn the_file_is_removed_with_its_listener() {
        let folder = Folder::new();
        let path = folder.path("a.sock");
        drop(SocketFile::listen(&path, None).unwrap());
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_socket_of_a_killed_program_is_replaced() {
        let folder = Folder::new();
        let path = folder.path("a.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "the standard library leaves it");
        let _listening = SocketFile::listen(&path, None).unwrap();
        UnixStream::connect(&path).await.unwrap();
    }

    #[tokio::test]
    async fn a_socket_with_a_listener_is_left_alone() {
        let folder = Folder::new();
        let path = folder.path("a.sock");
        let (_file, theirs) = SocketFile::listen(&path, None).unwrap();
        let error = SocketFile::listen(&path, None).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{error}");
        let (_theirs, client) = tokio::join!(theirs.accept(), UnixStream::connect(&path));
        client.unwrap();
    }

    #[tokio::test]
    async fn a_socket_with_a_full_backlog_is_left_alone() {
        let folder = Folder::new();
        let path = folder.path("a.sock");
        let theirs = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        theirs.bind(&SockAddr::unix(&path).unwrap()).unwrap();
        theirs.listen(0).unwrap();
        let _waiting = std::os::unix::net::UnixStream::connect(&path).unwrap();
        let error = SocketFile::listen(&path, None).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{error}");
    }

    #[tokio::test]
    async fn a_file_that_is_not_a_socket_is_left_alone() {
        let folder = Folder::new();
        let path = folder.path("a.sock");
        fs::write(&path, "kept").unwrap();
        assert!(SocketFile::listen(&path, None).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "kept");
        let link = folder.path("link.sock");
        std::os::unix::fs::symlink(folder.path("nowhere"), &link).unwrap();
        assert!(SocketFile::listen(&link, None).is_err());
        assert!(link.is_symlink());
    }

    #[tokio::test]
    async fn a_received_file_is_removed_only_by_its_owner() {
        let folder = Folder::new();
        let (path, ownership) = (folder.path("a.sock"), Ownership::default());
        let (ours, _listener) = SocketFile::listen(&path, None).unwrap();
        drop(SocketFile::receive(&path, &ownership).unwrap());
        assert!(path.exists());
        let received = SocketFile::receive(&path, &ownership).unwrap();
        ownership.store(true, Ordering::Relaxed);
        drop(received);
        assert!(!path.exists());
        drop(ours);
    }

    #[tokio::test]
    async fn a_file_that_replaced_the_socket_is_left_alone() {
        let folder = Folder::new();
        let path = folder.path("a.sock");
        let ours = SocketFile::listen(&path, None).unwrap();
        fs::remove_file(&path).unwrap();
        let _theirs = SocketFile::listen(&path, None).unwrap();
        drop(ours);
        UnixStream::connect(&path).await.unwrap();
    }
}
