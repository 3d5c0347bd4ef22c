//! Why the kernel has no TLS for this program.

use std::fmt::{self, Display, Formatter};
use std::io;

/// The error of [`KernelTls::probe`](spliceway::KernelTls::probe), with the remedy.
#[derive(Debug)]
pub struct Unsupported<'a>(pub &'a io::Error);

impl Display for Unsupported<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let remedy = match self.0.kind() {
            io::ErrorKind::NotFound => "load the module `tls` (modprobe tls), and start the program again",
            io::ErrorKind::ResourceBusy => "use Linux 6.14 or later, which can change the keys of a connection",
            io::ErrorKind::PermissionDenied => "let the program use the socket option TCP_ULP",
            _ => "load the module `tls`, and use Linux 6.14 or later",
        };
        write!(f, "the kernel refuses TLS ({}): {remedy}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn a_kernel_without_tls_is_refused_with_a_remedy() {
        for (errno, remedy) in [
            (Errno::NOENT, "modprobe tls"),
            (Errno::BUSY, "6.14"),
            (Errno::PERM, "TCP_ULP"),
            (Errno::INVAL, "6.14"),
        ] {
            let why = Unsupported(&errno.into()).to_string();
            assert!(why.contains(remedy) && why.contains("os error"), "{why}");
        }
    }
}
