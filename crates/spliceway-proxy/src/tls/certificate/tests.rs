use super::*;
use std::os::unix::fs::PermissionsExt;

use crate::tls::crypto::provider;
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, SignatureAlgorithm};

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
    Pair::read(&folder.pair(&certificate, &key), &provider()).unwrap()
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

    pub(crate) fn path(&self) -> &Path {
        &self.0
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
    let error = Pair::read(&files, &provider()).unwrap_err().to_string();
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
    let not_base64 = certificate.replace("MII", "M!!");
    let bad_chain = format!("{certificate}-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let long = certificate.repeat((CHAIN_MAX_BYTES >> 8) + 1);
    let empty = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let encrypted_by_openssl =
        "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nAAAA\n-----END EC PRIVATE KEY-----\n";
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
        (
            &certificate,
            encrypted_by_openssl,
            0o600,
            "the private key in key.pem is encrypted: ",
        ),
        (
            &not_base64,
            &key,
            0o600,
            "certificate.pem is not valid PEM: a line between BEGIN and END is not base64: ",
        ),
        (
            &bad_chain,
            &key,
            0o600,
            "certificate 2 in certificate.pem is not valid: ",
        ),
        (&long, &key, 0o600, "certificate.pem has 8"),
        (&key, &key, 0o600, "certificate.pem has no certificate: expected a line"),
        (
            &cut,
            &key,
            0o600,
            "certificate.pem is not valid PEM: it ends before the line `-----END CERTIFICATE-----`",
        ),
        (empty, &key, 0o600, "the certificate in certificate.pem is not valid: "),
        ("", "", 0o600, "certificate.pem has no certificate"),
    ] {
        let message = message(certificate, key, mode);
        assert!(message.starts_with(expected), "{message}");
    }
}

/// Reads the certificate from a path, with the key of another.
fn message_of(path: &Path) -> String {
    let files = PairFiles {
        certificate: path.into(),
        key: path.into(),
    };
    Pair::read(&files, &provider()).unwrap_err().to_string()
}

#[test]
fn a_path_that_leads_to_no_file_is_an_error_at_once() {
    let folder = Folder::new();
    let huge = folder.0.join("huge");
    let file = std::fs::File::create(&huge).unwrap();
    // The file has no blocks on the disk.
    file.set_len(1 << 40).unwrap();
    for (path, expected) in [
        (Path::new("/nonexistent"), "No such file"),
        (Path::new("/dev/zero"), "this is a device, which is not read"),
        (&folder.0, "this is a directory, which is not read"),
        (&huge, "larger than 1 MiB, which is the limit"),
    ] {
        let message = message_of(path);
        assert!(
            message.starts_with(&format!("cannot read {}: ", path.display())),
            "{message}"
        );
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn a_file_in_another_format_is_named() {
    let folder = Folder::new();
    let (certificate, key) = made_pem(&["a.test"], &PKCS_ECDSA_P256_SHA256);
    let mut files = folder.pair(&certificate, &key);
    let der = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    std::fs::write(&files.key, der.secret_der()).unwrap();
    let message = |files: &PairFiles| Pair::read(files, &provider()).unwrap_err().to_string();
    let expected = " is in DER or PKCS#12: expected PEM, which `openssl x509 -inform DER`";
    assert!(message(&files).contains(&format!("key.pem{expected}")));
    let der = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
    files.certificate = folder.0.join("certificate.der");
    std::fs::write(&files.certificate, &der).unwrap();
    assert!(message(&files).contains(&format!("certificate.der{expected}")));
}

#[test]
fn text_around_a_certificate_and_the_ends_of_lines_do_not_matter() {
    let (certificate, key) = made_pem(&["a.test"], &PKCS_ECDSA_P256_SHA256);
    let both = |change: fn(&str) -> String| [change(&certificate), change(&key)];
    for [certificate, key] in [
        both(|text| text.replace('\n', "\r\n")),
        both(|text| text.replace('\n', "\r")),
        both(|text| format!("\u{feff}{text}")),
        both(|text| format!("Subject: M\0ller\n{text}the end")),
        both(|text| format!("-----BEGIN EC PARAMETERS-----\nAAAA\n-----END EC PARAMETERS-----\n{text}")),
        // A file may have both.
        [format!("{key}{certificate}"), format!("{certificate}{key}")],
    ] {
        let folder = Folder::new();
        let pair = Pair::read(&folder.pair(&certificate, &key), &provider()).unwrap();
        assert_eq!(pair.names, ["a.test".into()]);
    }
}

/// Certificates that OpenSSL made, with their keys: `openssl req -x509 -newkey …`.
#[test]
fn a_key_that_cannot_be_used_is_named_with_what_is_expected() {
    for (name, expected) in [
        (
            "rsa1024",
            "expected RSA with 2048 to 8192 bits, ECDSA with P-256, P-384 or P-521, or Ed25519",
        ),
        (
            "ed448",
            "expected RSA with 2048 to 8192 bits, ECDSA with P-256, P-384 or P-521, or Ed25519",
        ),
        ("version1", "is of version 1, which has no names of hosts"),
    ] {
        let made = match name {
            "rsa1024" => include_str!("tests/rsa1024.pem"),
            "ed448" => include_str!("tests/ed448.pem"),
            _ => include_str!("tests/version1.pem"),
        };
        let message = message(made, made, 0o600);
        assert!(message.contains(expected), "{name}: {message}");
    }
}

#[test]
fn an_answer_beside_the_certificate_is_sent_if_it_is_one() {
    let folder = Folder::new();
    let (certificate, key) = made_pem(&["a.test"], &PKCS_ECDSA_P256_SHA256);
    let files = folder.pair(&certificate, &key);
    let sent = || Pair::read(&files, &provider()).map(|pair| pair.key.ocsp.clone());
    assert_eq!(sent().unwrap(), None);
    let answer = [0x30, 7, 0x0a, 1, 0, 0xa0, 2, 0x30, 0];
    std::fs::write(files.ocsp(), answer).unwrap();
    assert_eq!(sent().unwrap().as_deref(), Some(&answer[..]));
    let refused = [0x30, 3, 0x0a, 1, 6];
    let mut late = answer;
    late[4] = 1;
    for wrong in [&answer[..8], &refused, &late, b"", b"text", &[0; OCSP_MAX_BYTES + 1]] {
        std::fs::write(files.ocsp(), wrong).unwrap();
        let error = sent().unwrap_err().to_string();
        assert!(
            error.contains("certificate.pem.ocsp is no successful answer"),
            "{error}"
        );
    }
}
