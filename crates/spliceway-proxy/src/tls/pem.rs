//! Certificates, keys and lists of revoked certificates in PEM.
//!
//! rustls decodes each section that `spliceway_protocol::pem` has found, so that a damaged one is
//! named by its own line.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use spliceway_protocol::pem::{Fault, Section, Wanted, find};

/// Returns the certificates of a file, each with the line in which it begins. There is at least
/// one.
pub(super) fn certificates(text: &[u8]) -> Result<Vec<(usize, CertificateDer<'static>)>, Fault> {
    find(text, Wanted::Certificate)?.iter().map(decoded).collect()
}

/// Returns the lists of revoked certificates of a file, each with the line in which it begins.
/// There is at least one.
pub(super) fn crls(text: &[u8]) -> Result<Vec<(usize, CertificateRevocationListDer<'static>)>, Fault> {
    find(text, Wanted::Crl)?.iter().map(decoded).collect()
}

/// Returns the first key of a file, and the line in which it begins.
pub(super) fn key(text: &[u8]) -> Result<(usize, PrivateKeyDer<'static>), Fault> {
    decoded(&find(text, Wanted::Key)?[0])
}

fn decoded<T: PemObject>(section: &Section<'_>) -> Result<(usize, T), Fault> {
    let one = T::from_pem_slice(section.text).map_err(|_| section.damaged())?;
    Ok((section.line, one))
}

#[cfg(test)]
mod tests;
