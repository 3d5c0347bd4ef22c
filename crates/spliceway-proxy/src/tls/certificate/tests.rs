use super::*;
use std::os::unix::fs::PermissionsExt;

use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, SignatureAlgorithm};
use rustls::crypto::aws_lc_rs::default_provider;

/// Returns a certificate for these names, signed by itself, and its key, in PEM.
pub(crate) fn made_pem(names: &[&str], algorithm: &'static SignatureAlgorithm) -> (String, String) {
    let key = KeyPair::generate_for(algorithm).unwrap();
    let names: Vec<_> = names.iter().map(ToString::to_string).collect();
    let certificate = CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
    (certificate.pem(), key.serialize_pem())
}

pub(crate) fn made(names: &[&str]) -> Pair {
    made_with(names, &PKCS_ECDSA_P256_SHA256)
}

pub(crate) fn made_with(names: &[&str], algorithm: &'static SignatureAlgorithm) -> Pair {
    let folder = Folder::new();
    let (certificate, key) = made_pem(names, algorithm);
    Pair::read(&folder.pair(&certificate, &key), &default_provider()).unwrap()
}

/// A folder that is removed at the end of the test.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("spliceway-tls-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// Writes a file that only this user can read.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        path
    }

    pub(crate) fn pair(&self, certificate: &str, key: &str) -> PairFiles {
        PairFiles {
            certificate: self.write("certificate.pem", certificate),
            key: self.write("key.pem", key),
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the message about this pair, without the names of folders.
fn message(certificate: &str, key: &str, mode: u32) -> String {
    let folder = Folder::new();
    let files = folder.pair(certificate, key);
    std::fs::set_permissions(&files.key, PermissionsExt::from_mode(mode)).unwrap();
    let error = Pair::read(&files, &default_provider()).unwrap_err().to_string();
    error.replace(&format!("{}/", folder.0.display()), "")
}

#[test]
fn a_pair_has_its_names_in_lower_case_and_its_validity() {
    let pair = made(&["A.example.test", "*.B.test"]);
    assert_eq!(pair.names, ["a.example.test".into(), "*.b.test".into()]);
    assert!(pair.valid.from < SystemTime::now() && pair.valid.to > SystemTime::now());
}

#[test]
fn keys_of_each_format_are_read() {
    for algorithm in [
        &rcgen::PKCS_ECDSA_P256_SHA256,
        &rcgen::PKCS_ECDSA_P384_SHA384,
        &rcgen::PKCS_ED25519,
        &rcgen::PKCS_RSA_SHA256,
    ] {
        made_with(&["a.test"], algorithm);
    }
}

#[test]
fn each_fault_of_a_file_is_named_with_its_remedy() {
    let (certificate, key) = made_pem(&["a.test"], &PKCS_ECDSA_P256_SHA256);
    let (_, other) = made_pem(&["a.test"], &PKCS_ECDSA_P256_SHA256);
    let cut = certificate.replace("-----END CERTIFICATE-----", "");
    let empty = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    for (certificate, key, mode, expected) in [
        (
            &*certificate,
            &*key,
            0o644,
            "every user can read the private key in key.pem: run `chmod o= ",
        ),
        (
            &certificate,
            &other,
            0o600,
            "the key in key.pem does not belong to the first certificate in certificate.pem",
        ),
        (
            &certificate,
            &certificate,
            0o600,
            "key.pem has no private key: expected a line such as",
        ),
        (
            &certificate,
            encrypted,
            0o600,
            "the private key in key.pem is encrypted: `openssl pkey -in key.pem",
        ),
        (&key, &key, 0o600, "certificate.pem has no certificate: expected a line"),
        (&cut, &key, 0o600, "certificate.pem is not valid PEM"),
        (empty, &key, 0o600, "the certificate in certificate.pem is not valid: "),
        ("", "", 0o600, "certificate.pem has no certificate"),
    ] {
        let message = message(certificate, key, mode);
        assert!(message.starts_with(expected), "{message}");
    }
}

#[test]
fn a_missing_and_an_endless_file_are_errors() {
    for (path, expected) in [
        ("/nonexistent", "cannot read /nonexistent: No such file"),
        ("/dev/zero", "/dev/zero is longer than 1024 KiB"),
    ] {
        let files = PairFiles {
            certificate: path.into(),
            key: path.into(),
        };
        let error = Pair::read(&files, &default_provider()).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}
