//! Takes the place of `crypto` in a build without the feature `tls`.

use std::io;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::PrivateKeyDer;

const REFUSED: &str = "--tls needs a build with TLS: expected one with the cargo feature `tls`";

pub(super) fn provider() -> io::Result<Arc<CryptoProvider>> {
    Err(io::Error::other(REFUSED))
}

pub(super) fn identity(_: &str) -> io::Result<(String, PrivateKeyDer<'static>)> {
    Err(io::Error::other(REFUSED))
}
