//! The OCSP response about a certificate (RFC 6960), which clients get with it. They
//! check its signature. Some refuse a certificate whose answer is about another one, or has
//! expired. So such an answer is not sent.

use std::time::SystemTime;

use x509_cert::der::asn1::{AnyRef, GeneralizedTime};
use x509_cert::der::{Decode, Reader, SliceReader, Tag, TagNumber, Tagged};

/// The longest answer. Usual ones have 0.5 to 4 KiB.
pub(super) const ANSWER_MAX_BYTES: usize = 16 << 10;
/// What an answer says about one certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Statement {
    pub(super) is_good: bool,
    /// The time of the next answer. `None` means that there is a newer one at any time.
    pub(super) expires: Option<SystemTime>,
}

/// Returns what a successful answer says about the certificate with this serial number: nothing if
/// it is about others. Returns `None` if this is no successful answer.
pub(super) fn read(answer: &[u8], serial: &[u8]) -> Option<Option<Statement>> {
    let [whole] = parts(answer)?[..] else { return None };
    let [status, body] = parts(whole.value())?[..] else {
        return None;
    };
    if status.tag() != Tag::Enumerated || status.value() != [0] {
        return None;
    }
    let [_kind, basic] = parts(parts(body.value())?.first()?.value())?[..] else {
        return None;
    };
    let basic = parts(parts(basic.value())?.first()?.value())?;
    let data = parts(basic.first()?.value())?;
    // The version and the responder come before the time and the list, and extensions after it.
    let all = data.iter().find(|part| part.tag() == Tag::Sequence)?;
    let statements: Option<Vec<_>> = parts(all.value())?.iter().map(|one| statement(one)).collect();
    let mut about = statements?.into_iter().filter(|(number, _)| *number == serial);
    Some(about.next().map(|(_, statement)| statement))
}

/// Returns the serial number of the certificate, and what is said about it.
fn statement<'a>(one: &AnyRef<'a>) -> Option<(&'a [u8], Statement)> {
    let parts_of_one = parts(one.value())?;
    let [certificate, status, _since, others @ ..] = &parts_of_one[..] else {
        return None;
    };
    let number = parts(certificate.value())?.get(3)?.value();
    let next = others.iter().find(|part| is_first(part));
    let expires = match next {
        Some(next) => Some(GeneralizedTime::from_der(next.value()).ok()?.to_system_time()),
        None => None,
    };
    let is_good = is_first(status);
    Some((number, Statement { is_good, expires }))
}

/// Returns whether a part that has a number instead of a type has the first one.
fn is_first(part: &AnyRef<'_>) -> bool {
    part.tag().is_context_specific() && part.tag().number() == TagNumber(0)
}

/// Returns the values that follow each other.
fn parts(bytes: &[u8]) -> Option<Vec<AnyRef<'_>>> {
    let mut reader = SliceReader::new(bytes).ok()?;
    let mut parts = Vec::new();
    while !reader.is_finished() {
        parts.push(AnyRef::decode(&mut reader).ok()?);
    }
    Some(parts)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::time::Duration;

    fn value(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
        let content = parts.concat();
        let length = u8::try_from(content.len()).unwrap();
        let long: &[u8] = if length < 128 { &[] } else { &[0x81] };
        [&[tag], long, &[length], &content].concat()
    }

    /// Returns an answer about one certificate. Its signature is empty.
    pub(in crate::tls) fn answer(serial: &[u8], status: &[u8], next: Option<&str>) -> Vec<u8> {
        let sequence = |parts: &[&[u8]]| value(0x30, parts);
        let time = |text: &str| value(0x18, &[text.as_bytes()]);
        let certificate = sequence(&[&sequence(&[]), &value(4, &[]), &value(4, &[]), &value(2, &[serial])]);
        let next = next.map(|next| value(0xa0, &[&time(next)])).unwrap_or_default();
        let one = sequence(&[&certificate, status, &time("20260101000000Z"), &next]);
        let responder = value(0xa2, &[&value(4, &[b"key"])]);
        let data = sequence(&[&responder, &time("20260101000000Z"), &sequence(&[&one])]);
        let basic = sequence(&[&data, &sequence(&[]), &value(3, &[&[0]])]);
        let kind = value(6, &[&[0x2b, 6, 1, 5, 5, 7, 48, 1, 1]]);
        let body = sequence(&[&kind, &value(4, &[&basic])]);
        sequence(&[&value(10, &[&[0]]), &value(0xa0, &[&body])])
    }

    pub(in crate::tls) const IS_GOOD: &[u8] = &[0x80, 0];

    #[test]
    fn an_answer_is_about_a_certificate_and_has_a_time() {
        let good = |expires| Some(Some(Statement { is_good: true, expires }));
        let next = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let one = answer(&[7], IS_GOOD, Some("20270115080000Z"));
        assert_eq!(read(&one, &[7]), good(Some(next)));
        assert_eq!(read(&one, &[8]), Some(None));
        assert_eq!(read(&answer(&[7], IS_GOOD, None), &[7]), good(None));
        let revoked = answer(&[7], &value(0xa1, &[&value(0x18, &[b"20260101000000Z"])]), None);
        assert_eq!(read(&revoked, &[7]).unwrap().map(|one| one.is_good), Some(false));
        for length in 0..one.len() {
            assert_eq!(read(&one[..length], &[7]), None);
        }
        let mut later = one.clone();
        let status = later.windows(3).position(|part| part == [10, 1, 0]).unwrap();
        later[status + 2] = 3;
        for wrong in [&later[..], b"text", &[0x30, 3, 10, 1, 6], &[&one[..], &[0]].concat()] {
            assert_eq!(read(wrong, &[7]), None);
        }
    }
}
