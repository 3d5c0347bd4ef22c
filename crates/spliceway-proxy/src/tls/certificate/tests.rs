use super::*;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use crate::tls::crypto::provider;
use crate::tls::ocsp::tests::{IS_GOOD, answer};
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, SignatureAlgorithm};
use rustls::pki_types::pem::PemObject;

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
fn each_fault_of_a_key_is_named_with_its_remedy() {
    let (certificate, key) = made_pem(&["a.test"], &PKCS_ECDSA_P256_SHA256);
    let (another, other) = made_pem(&["b.test"], &PKCS_ECDSA_P256_SHA256);
    let reversed = format!("{another}{certificate}");
    let not_own = "key.pem:1: the private key does not belong to the first certificate in certificate.pem: ";
    let own = another.lines().count() + 1;
    let belongs = format!("{not_own}it belongs to the one in line {own}, which must come first");
    let encrypted_by_openssl =
        "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nAAAA\n-----END EC PRIVATE KEY-----\n";
    let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let is_encrypted = "key.pem:1: the private key is encrypted: `openssl pkey -in key.pem";
    let is_certificate = "key.pem:1: there is a certificate, and no private key";
    let readable = "every user can read the private key in key.pem: run `chmod o= ";
    for (certificate, key, mode, expected) in [
        (&certificate, &*key, 0o644, readable),
        (
            &certificate,
            &other,
            0o600,
            &format!("{not_own}expected the key for which"),
        ),
        (&reversed, &key, 0o600, &belongs),
        (&certificate, &certificate, 0o600, is_certificate),
        (&certificate, encrypted, 0o600, is_encrypted),
        (&certificate, encrypted_by_openssl, 0o600, is_encrypted),
    ] {
        let message = message(certificate, key, mode);
        assert!(message.starts_with(expected), "{message}");
    }
}

#[test]
fn each_fault_of_a_certificate_is_named_with_its_line() {
    let (certificate, key) = made_pem(&["a.test"], &PKCS_ECDSA_P256_SHA256);
    let empty = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let second = certificate.lines().count() + 1;
    for (certificate, expected) in [
        (&*key, ":1: there is a private key, and no certificate"),
        (
            &certificate.replace("-----END CERTIFICATE-----", ""),
            ":1: the section that begins here does not end",
        ),
        (
            &certificate.replace("MII", "M!!"),
            ":2: the line has a character that is not base64",
        ),
        (
            &format!("{certificate}{empty}"),
            &format!(":{second}: the certificate is damaged ("),
        ),
        (&certificate.repeat((CHAIN_MAX_BYTES >> 8) + 1), " has 8"),
        (empty, ":1: the certificate is damaged ("),
        ("", ": the file is empty: expected a certificate"),
    ] {
        let message = message(certificate, &key, 0o600);
        assert!(message.starts_with(&format!("certificate.pem{expected}")), "{message}");
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
        (&folder.0, "this is a folder, which is not read: expected a file"),
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
    let expected = "key.pem: the file is DER and not PEM: `openssl pkey -inform der -in ";
    assert!(message(&files).contains(expected), "{}", message(&files));
    let der = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
    files.certificate = folder.0.join("certificate.der");
    std::fs::write(&files.certificate, &der).unwrap();
    let expected = "certificate.der: the file is DER and not PEM: `openssl x509 -inform der -in ";
    assert!(message(&files).contains(expected), "{}", message(&files));
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
            "the private key is RSA with 1024 bits, and clients expect 2048 to 8192: make a new one, such as by `openssl \
             genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out ",
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
fn an_answer_beside_the_certificate_is_sent_while_it_is_good() {
    let folder = Folder::new();
    let (certificate, key) = made_pem(&["a.test"], &PKCS_ECDSA_P256_SHA256);
    let files = folder.pair(&certificate, &key);
    let now = SystemTime::now();
    let read = || Pair::read(&files, &provider());
    assert_eq!(read().unwrap().to_send(now).ocsp, None);
    let own = read_chain(&files.certificate).unwrap();
    let own = Link::read(1, &own[0].1).unwrap().serial;
    for (serial, status, next, doubt) in [
        (&*own, IS_GOOD, Some("29990101000000Z"), None),
        (&*own, IS_GOOD, None, None),
        (
            &*own,
            IS_GOOD,
            Some("20200101000000Z"),
            Some("has expired at 2020-01-01T00:00:00Z"),
        ),
        (
            &*own,
            &[0x82, 0],
            None,
            Some("does not say that the certificate is good"),
        ),
        (&[1, 2, 3], IS_GOOD, None, Some("is about another certificate")),
    ] {
        let answer = answer(serial, status, next);
        std::fs::write(files.ocsp(), &answer).unwrap();
        let pair = read().unwrap();
        let sent = pair.to_send(now).ocsp.clone();
        let doubts: Vec<_> = pair.doubts.iter().map(ToString::to_string).collect();
        assert_eq!(sent, doubt.is_none().then_some(answer), "{doubts:?}");
        assert!(
            doubts.iter().zip(doubt).all(|(said, doubt)| said.contains(doubt)),
            "{doubts:?}"
        );
        assert_eq!(doubts.len(), usize::from(doubt.is_some()), "{doubts:?}");
        if doubt.is_none() && next.is_some() {
            let after = SystemTime::UNIX_EPOCH + Duration::from_secs(33_000_000_000);
            assert_eq!(pair.to_send(after).ocsp, None, "it has expired");
        }
    }
    let refused = [0x30, 3, 0x0a, 1, 6];
    for wrong in [&refused[..], b"", b"text", &[0; ocsp::ANSWER_MAX_BYTES + 1]] {
        std::fs::write(files.ocsp(), wrong).unwrap();
        let pair = read().unwrap();
        assert_eq!(pair.to_send(now).ocsp, None);
        let doubt = pair.doubts[0].to_string();
        let expected = ".ocsp:1: this is no successful OCSP response in DER, of at most 16 KiB, so clients \
                        do not get it: fetch a new one (`openssl ocsp … -respout FILE`), or remove the file";
        assert!(doubt.ends_with(expected), "{doubt}");
    }
    std::fs::remove_file(files.ocsp()).unwrap();
    std::fs::create_dir(files.ocsp()).unwrap();
    let error = read().unwrap_err().to_string();
    assert!(error.contains("certificate.pem.ocsp: this is a folder"), "{error}");
}
