//! Names the errnos that socket calls return, for metric labels and records.

use std::io;

use rustix::io::Errno;

/// Returns the errno of this error. Returns `None` if no call here is known to return it. This
/// keeps the number of labels small.
pub(crate) fn known(error: &io::Error) -> Option<Errno> {
    Errno::from_io_error(error).filter(|errno| NAMES.iter().any(|(known, _)| known == errno))
}

/// Returns the C name of an errno that is known, or `other`.
pub(crate) fn name(errno: Option<Errno>) -> &'static str {
    let known = NAMES.iter().find(|(known, _)| Some(*known) == errno);
    known.map_or("other", |(_, name)| name)
}

/// The errnos in the manual pages of accept(2), socket(2) and connect(2), and the errors that
/// routes and peers cause in these calls.
const NAMES: [(Errno, &str); 31] = [
    (Errno::ACCESS, "EACCES"),
    (Errno::ADDRINUSE, "EADDRINUSE"),
    (Errno::ADDRNOTAVAIL, "EADDRNOTAVAIL"),
    (Errno::AFNOSUPPORT, "EAFNOSUPPORT"),
    (Errno::BADF, "EBADF"),
    (Errno::CONNABORTED, "ECONNABORTED"),
    (Errno::CONNREFUSED, "ECONNREFUSED"),
    (Errno::CONNRESET, "ECONNRESET"),
    (Errno::HOSTDOWN, "EHOSTDOWN"),
    (Errno::HOSTUNREACH, "EHOSTUNREACH"),
    (Errno::INTR, "EINTR"),
    (Errno::INVAL, "EINVAL"),
    (Errno::MFILE, "EMFILE"),
    (Errno::NETDOWN, "ENETDOWN"),
    (Errno::NETUNREACH, "ENETUNREACH"),
    (Errno::NFILE, "ENFILE"),
    (Errno::NOBUFS, "ENOBUFS"),
    (Errno::NOMEM, "ENOMEM"),
    (Errno::NONET, "ENONET"),
    (Errno::NOPROTOOPT, "ENOPROTOOPT"),
    (Errno::NOTCONN, "ENOTCONN"),
    (Errno::OPNOTSUPP, "EOPNOTSUPP"),
    (Errno::PERM, "EPERM"),
    (Errno::PIPE, "EPIPE"),
    (Errno::PROTO, "EPROTO"),
    (Errno::PROTONOSUPPORT, "EPROTONOSUPPORT"),
    (Errno::TIMEDOUT, "ETIMEDOUT"),
    (Errno::NOTSOCK, "ENOTSOCK"),
    (Errno::AGAIN, "EAGAIN"),
    (Errno::BUSY, "EBUSY"),
    (Errno::NOSYS, "ENOSYS"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_errno_has_its_name_and_an_unknown_one_is_other() {
        let name_of = |error: io::Error| name(known(&error));
        assert_eq!(name_of(Errno::MFILE.into()), "EMFILE");
        assert_eq!(name_of(Errno::NAMETOOLONG.into()), "other");
        assert_eq!(name_of(io::Error::other("no errno at all")), "other");
    }
}
