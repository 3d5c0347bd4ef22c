//! Checks the other files for clients: those of ACME, keys of tickets, CAs and CRLs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustls::crypto::CryptoProvider;

use super::finding::{Finding, Subject, Verdict, permissions};
use crate::kit::clock;
use crate::tls::acme::AcmeSettings;
use crate::tls::certificate::BadFile;
use crate::tls::client_cert::{ClientCertSettings, ClientFiles};
use crate::tls::counts::NextTry;
use crate::tls::shared_keys::SharedKeys;

/// What was found in each file.
type Found = Vec<(String, Vec<Finding>)>;

/// Returns what is known about the CAs and the CRLs for the certificates of clients.
pub(super) fn certificates(settings: &ClientCertSettings, provider: &Arc<CryptoProvider>) -> Found {
    let files = ClientFiles::read(settings, provider);
    let of_files = |paths: &[PathBuf], subject, gain| -> Found {
        let found = paths.iter().map(|path| {
            let mut findings = of_file(path, &files, subject);
            if !findings.iter().any(|finding| finding.verdict == Verdict::Faulty) {
                findings.extend(permissions(&[path], gain));
            }
            (path.display().to_string(), findings)
        });
        found.collect()
    };
    let mut found = of_files(&settings.authorities, Subject::ClientCas, "choose the CAs of clients");
    found.extend(of_files(
        &settings.crls,
        Subject::Crl,
        "choose which clients are revoked",
    ));
    found
}

/// Returns what is known about a file with CAs or with CRLs.
fn of_file(path: &Path, files: &ClientFiles, subject: Subject) -> Vec<Finding> {
    let faulty = |bad: &BadFile| Finding::new(Verdict::Faulty, subject, bad.to_string());
    let bad = files.bad.iter().filter(|bad| bad.file() == path);
    let doubts = files.doubts.iter().filter(|doubt| doubt.file() == path);
    let doubts = doubts.map(|doubt| Finding {
        subject,
        ..Finding::from(doubt)
    });
    let findings: Vec<_> = bad.map(faulty).chain(doubts).collect();
    if !findings.is_empty() {
        return findings;
    }
    let mut fine = Vec::new();
    for ca in files.cas.iter().filter(|ca| ca.file == path) {
        let (line, name) = (ca.link.line, ca.link.subject.to_string());
        let to = clock::rfc3339_seconds(ca.link.valid.to);
        // Quotes escape what a terminal would obey.
        fine.push(format!("line {line}: the CA {name:?}; its certificate expires at {to}"));
    }
    for crl in files.crls.iter().filter(|crl| crl.file == path) {
        let (line, name, revoked) = (crl.line, crl.issuer().to_string(), crl.revoked.len());
        let to = clock::rfc3339_seconds(crl.valid.to);
        let noun = if revoked == 1 { "certificate" } else { "certificates" };
        fine.push(format!(
            "line {line}: {name:?} has revoked {revoked} {noun}; the CRL expires at {to}"
        ));
    }
    if fine.is_empty() {
        let text = "the file has only CRLs that newer ones in other files replace: remove it from tls_client_crl";
        return vec![Finding::new(Verdict::Doubtful, subject, text.to_owned())];
    }
    let fine = fine.into_iter();
    fine.map(|text| Finding::new(Verdict::Fine, subject, text)).collect()
}

/// Returns what is known about a file with keys of tickets.
pub(super) fn ticket_keys(path: &Path) -> (String, Vec<Finding>) {
    let finding = |verdict, text| Finding::new(verdict, Subject::TicketKeys, text);
    let findings = match SharedKeys::count(path) {
        Err(bad) => vec![finding(Verdict::Faulty, bad.to_string())],
        Ok(count) => {
            let writable = permissions(&[path], "forge tickets");
            let text = match count {
                1 => "1 key, which encrypts and decrypts tickets".to_owned(),
                count => format!("{count} keys: the first one encrypts tickets, and all decrypt them"),
            };
            let fine = writable.is_empty().then(|| finding(Verdict::Fine, text));
            fine.into_iter().chain(writable).collect()
        }
    };
    (path.display().to_string(), findings)
}

/// Returns what is known about the certificates that ACME issues. No server is asked.
pub(super) fn acme(settings: &AcmeSettings, provider: &CryptoProvider) -> Found {
    let finding = |verdict, text| Finding::new(verdict, Subject::Acme, text);
    let folder = settings.folder.path();
    let mut findings = vec![finding(
        Verdict::Fine,
        if folder.exists() {
            format!(
                "the folder is there, and only its owner may use it; the server is {:?}",
                settings.directory
            )
        } else {
            "the program creates the folder when it starts".to_owned()
        },
    )];
    if let Err(why) = settings.originator() {
        findings.push(finding(Verdict::Faulty, why));
    }
    let now = SystemTime::now();
    let names = settings.names.iter().map(|name| {
        let file = settings.folder.pair(name);
        let (verdict, text) = match settings.next_try(name, provider, now) {
            Ok(next) => of_name(name, file.exists(), &next, now),
            Err(error) => (
                Verdict::Faulty,
                format!("cannot read what the folder has for {name}: {error}"),
            ),
        };
        (file.display().to_string(), vec![finding(verdict, text)])
    });
    let folder = (folder.display().to_string(), findings);
    [folder].into_iter().chain(names).collect()
}

/// Says when the program orders a certificate for a name.
fn of_name(name: &str, has_certificate: bool, next: &NextTry, now: SystemTime) -> (Verdict, String) {
    let when = if next.at <= now {
        "as soon as it runs".to_owned()
    } else {
        format!("at {}", clock::rfc3339_seconds(next.at))
    };
    let verb = if has_certificate {
        "renews the certificate of"
    } else {
        "orders the first certificate of"
    };
    let plan = format!("the program {verb} {name} {when}");
    match &next.why {
        Some(why) => (
            Verdict::Doubtful,
            format!("the last try for {name} has failed: {why}. Then {plan}"),
        ),
        None if has_certificate => (Verdict::Fine, plan),
        None => (
            Verdict::Doubtful,
            format!("{plan}: until then, clients of this name are refused"),
        ),
    }
}
