//! The addresses of Unix sockets: paths, and the names of abstract sockets.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// `sun_path` has 108 bytes, and the last byte is 0.
pub(super) const PATH_MAX_BYTES: usize = 107;
/// An abstract name has no zero byte at its end, but one at its beginning.
const ABSTRACT_MAX_BYTES: usize = 108;
/// What the name of an abstract socket (unix(7)) begins with. Such a socket has no file.
const ABSTRACT: &str = "@";
const EXPECTED_ABSTRACT_NAME: &str =
    "the name of an abstract socket has 1 to 107 ASCII characters without spaces: expected unix:@NAME";
const EXPECTED_ABSOLUTE_PATH: &str =
    "the path of a Unix socket must be absolute: expected unix:/PATH, such as unix:/run/app.sock";
const EXPECTED_SHORTER_PATH: &str = "the path of a Unix socket has at most 107 bytes, and no zero byte";
/// What is wrong with the path or the name of a socket.
pub(super) const EXPECTED_SOCKET: [&str; 3] = [EXPECTED_ABSTRACT_NAME, EXPECTED_ABSOLUTE_PATH, EXPECTED_SHORTER_PATH];
/// The modes of an abstract socket: for the user of the program and root, or for everybody.
pub(super) const ABSTRACT_MODES: [u32; 2] = [0o600, 0o666];
pub(super) const EXPECTED_ABSTRACT_MODE: &str =
    "an abstract socket has no file: expected ,mode=0600 for this user and root, or ,mode=0666 for everybody";

/// Returns whether this is the name of an abstract socket, and no path.
#[must_use]
pub fn is_abstract(path: &Path) -> bool {
    // A path is absolute.
    path.as_os_str().as_bytes().starts_with(ABSTRACT.as_bytes())
}

/// Returns the address of a Unix socket in the form of the system, in which a zero byte begins the
/// name of an abstract socket.
#[must_use]
pub fn system_path(path: &Path) -> Cow<'_, Path> {
    match path.as_os_str().as_bytes().strip_prefix(ABSTRACT.as_bytes()) {
        Some(name) => PathBuf::from(OsStr::from_bytes(&[b"\0", name].concat())).into(),
        None => path.into(),
    }
}

/// Returns the path if it is valid and absolute, or the name of an abstract socket. A relative path
/// would depend on the program's working directory.
pub(super) fn socket_path(text: &str) -> Result<Box<Path>, &'static str> {
    if let Some(name) = text.strip_prefix(ABSTRACT) {
        let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic());
        let is_right = is_name && text.len() <= ABSTRACT_MAX_BYTES;
        return is_right.then(|| Path::new(text).into()).ok_or(EXPECTED_ABSTRACT_NAME);
    }
    if !text.starts_with('/') {
        return Err(EXPECTED_ABSOLUTE_PATH);
    }
    let is_right = text.len() <= PATH_MAX_BYTES && !text.contains('\0');
    is_right.then(|| Path::new(text).into()).ok_or(EXPECTED_SHORTER_PATH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::{ListenAddress, Target};

    #[test]
    fn an_abstract_socket_has_a_name_and_two_modes() {
        let longest = format!("unix:@{}", "a".repeat(107));
        let parsed: Target = longest.parse().unwrap();
        let Target::Unix(path) = &parsed else {
            panic!("{parsed}")
        };
        assert!(is_abstract(path) && system_path(path).as_os_str().as_bytes().starts_with(b"\0aa"));
        assert_eq!(system_path(Path::new("/run/@a")), Path::new("/run/@a"));
        for text in [
            "unix:@",
            "unix:@a b",
            "unix:@a\0b",
            "unix:@\u{e9}",
            &format!("{longest}a"),
        ] {
            assert!(
                text.parse::<Target>().is_err() && text.parse::<ListenAddress>().is_err(),
                "{text}"
            );
        }
        assert!("unix:@a,mode=0600".parse::<ListenAddress>().is_ok());
        assert_eq!(
            "unix:@a,mode=0660".parse::<ListenAddress>(),
            Err(EXPECTED_ABSTRACT_MODE)
        );
    }

    #[test]
    fn a_path_or_a_name_that_is_wrong_has_its_own_message() {
        for (text, why) in [
            ("unix:./a", EXPECTED_ABSOLUTE_PATH),
            ("unix:a.sock", EXPECTED_ABSOLUTE_PATH),
            ("unix:", EXPECTED_ABSOLUTE_PATH),
            ("unix:/a\0", EXPECTED_SHORTER_PATH),
            ("unix:@a b", EXPECTED_ABSTRACT_NAME),
            (&format!("unix:/{}", "a".repeat(PATH_MAX_BYTES)), EXPECTED_SHORTER_PATH),
        ] {
            assert_eq!(text.parse::<Target>(), Err(why));
            assert_eq!(text.parse::<ListenAddress>(), Err(why));
        }
    }
}
