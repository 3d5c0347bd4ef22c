//! Files in PEM as operators have them.

use rustls::pki_types::pem::{PemObject, SectionKind};
use spliceway_protocol::pem::{Wanted, find};

/// Checks that the sections of a file are those that rustls decodes, in the same order, unless a
/// fault is named. Also checks that a fault is one line of text.
///
/// # Panics
/// Panics if a property does not hold.
pub fn pem(text: &[u8]) {
    for wanted in [Wanted::Certificate, Wanted::Key, Wanted::Crl] {
        let max = if wanted == Wanted::Key { 1 } else { usize::MAX };
        let whole = all(text).collect::<Result<Vec<_>, _>>();
        let whole = whole.map(|all| all.into_iter().filter(|(kind, _)| is(wanted, *kind)).take(max));
        let sections = match find(text, wanted) {
            Ok(sections) => sections,
            Err(fault) => {
                let fault = fault.of(&"file").to_string();
                assert!(fault.starts_with("file:") && !fault.contains(['\r', '\n']), "{fault:?}");
                continue;
            }
        };
        let each = sections.iter().map(|section| one(section.text));
        let Ok(each) = each.collect::<Result<Vec<_>, _>>() else {
            let fault = sections[0].damaged().of(&"file").to_string();
            assert!(fault.starts_with(&format!("file:{}: ", sections[0].line)), "{fault:?}");
            continue;
        };
        let lines: Vec<_> = sections.iter().map(|section| section.line).collect();
        assert!(!lines.is_empty() && lines[0] > 0 && lines.is_sorted_by(|one, next| one < next));
        // A damaged section of another kind hides what follows it from rustls alone.
        if let Ok(whole) = whole {
            assert_eq!(each, whole.collect::<Vec<_>>(), "rustls finds other sections");
        }
    }
}

fn all(text: &[u8]) -> impl Iterator<Item = Result<(SectionKind, Vec<u8>), rustls::pki_types::pem::Error>> {
    <(SectionKind, Vec<u8>)>::pem_slice_iter(text)
}

fn one(text: &[u8]) -> Result<(SectionKind, Vec<u8>), rustls::pki_types::pem::Error> {
    <(SectionKind, Vec<u8>)>::from_pem_slice(text)
}

fn is(wanted: Wanted, kind: SectionKind) -> bool {
    match wanted {
        Wanted::Certificate => kind == SectionKind::Certificate,
        Wanted::Key => matches!(
            kind,
            SectionKind::PrivateKey | SectionKind::RsaPrivateKey | SectionKind::EcPrivateKey
        ),
        Wanted::Crl => kind == SectionKind::Crl,
    }
}
