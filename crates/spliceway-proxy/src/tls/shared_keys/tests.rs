use super::*;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::os::unix::fs::PermissionsExt;

use crate::tls::certificate::tests::Folder;

/// A moment in the middle of a period.
fn noon() -> SystemTime {
    SystemTime::UNIX_EPOCH + LIFE * 80_000 + LIFE / 2
}

fn keys(secrets: &[u8], names: &[u8]) -> SharedKeys {
    let secrets = secrets.iter().map(|byte| [*byte; KEY_BYTES]);
    SharedKeys::new(secrets.collect(), names, noon())
}

#[test]
fn machines_with_one_key_and_the_same_names_share_tickets() {
    let ticket = keys(&[1], b"a.test\0").encrypt(b"session", noon()).unwrap();
    let decrypt = |keys: SharedKeys| keys.decrypt(&ticket, noon());
    assert_eq!(decrypt(keys(&[1], b"a.test\0")).unwrap(), b"session");
    assert_eq!(decrypt(keys(&[1], b"b.test\0")), None);
    assert_eq!(decrypt(keys(&[2], b"a.test\0")), None);
    let shared = keys(&[1], b"a.test\0");
    for bit in 0..ticket.len() * 8 {
        let mut changed = ticket.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(shared.decrypt(&changed, noon()), None, "{bit}");
        assert_eq!(shared.decrypt(&ticket[..bit / 8], noon()), None, "{bit}");
    }
    assert_eq!(format!("{shared:?}"), "SharedKeys(1)");
}

#[test]
fn a_rotation_keeps_tickets_until_the_line_is_removed() {
    let old = keys(&[1], b"").encrypt(b"old", noon()).unwrap();
    let rotated = keys(&[2, 1], b"");
    assert_eq!(rotated.decrypt(&old, noon()).unwrap(), b"old");
    let new = rotated.encrypt(b"new", noon()).unwrap();
    assert_eq!(keys(&[1], b"").decrypt(&new, noon()), None);
    let without = keys(&[2], b"");
    assert_eq!(without.decrypt(&new, noon()).unwrap(), b"new");
    assert_eq!(without.decrypt(&old, noon()), None);
}

#[test]
fn a_ticket_ends_although_its_key_stays() {
    let shared = keys(&[1], b"");
    let second = Duration::from_secs(1);
    let start = SystemTime::UNIX_EPOCH + LIFE * 80_000;
    for (made, age, is_good) in [
        (start, LIFE * 2 - second, true),
        (start, LIFE * 2, false),
        (start + LIFE - second, LIFE, true),
        (start + LIFE - second, LIFE + second, false),
        (start, LIFE * 1000, false),
    ] {
        let ticket = shared.encrypt(b"session", made).unwrap();
        assert!(shared.decrypt(&ticket, made).is_some());
        assert_eq!(shared.decrypt(&ticket, made + age).is_some(), is_good, "{age:?}");
    }
}

#[test]
fn the_clock_of_another_machine_may_be_ahead_by_a_bound() {
    let (ahead, behind) = (keys(&[1], b""), keys(&[1], b""));
    let next = SystemTime::UNIX_EPOCH + LIFE * 80_001;
    let ticket = ahead.encrypt(b"session", next).unwrap();
    let second = Duration::from_secs(1);
    assert!(behind.decrypt(&ticket, next - second).is_some());
    assert!(behind.decrypt(&ticket, next - AHEAD_MAX).is_some());
    assert!(behind.decrypt(&ticket, next - AHEAD_MAX - second).is_none());
    assert!(behind.decrypt(&ticket, next - LIFE).is_none());
    assert!(behind.decrypt(&ticket, next - 2 * LIFE).is_none());
    // A machine may have a clock without a battery.
    let lost = SystemTime::UNIX_EPOCH - second;
    assert!(behind.decrypt(&ticket, lost).is_none());
    let ticket = behind.encrypt(b"session", lost).unwrap();
    assert!(behind.decrypt(&ticket, lost).is_some() && ahead.decrypt(&ticket, noon()).is_none());
}

#[test]
fn tickets_from_before_there_was_a_file_stay_good() {
    let own = Arc::new(Tickets::new());
    let old = own.encrypt(b"session").unwrap();
    let shared = Arc::new(keys(&[1], b""));
    let ticketer = ticketer(Some(&shared), &own);
    assert_eq!(ticketer.decrypt(&old).unwrap(), b"session");
    let new = ticketer.encrypt(b"session").unwrap();
    assert_eq!(ticketer.decrypt(&new).unwrap(), b"session");
    assert_eq!(own.decrypt(&new), None);
}

#[test]
fn faults_of_a_file_have_their_place_and_no_byte_of_a_key() {
    let folder = Folder::new();
    let key = STANDARD.encode([7; KEY_BYTES]);
    let pairs = Pairs::new(Vec::new());
    let fault = |text: &str, mode| {
        let file = folder.write("keys", text);
        std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
        let fault = SharedKeys::read(&file, &pairs).unwrap_err().to_string();
        fault.replace(&file.display().to_string(), "FILE")
    };
    assert_eq!(
        fault(&key, 0o644),
        "every user can read the ticket keys in FILE: run `chmod o= FILE`"
    );
    assert_eq!(
        fault("", 0o600),
        "FILE has no ticket key: `openssl rand -base64 32 > FILE` writes one"
    );
    let secret = "c2VjcmV0";
    for text in [format!("{key}\n{secret}\n"), format!("{key}\n{secret}!\n")] {
        let fault = fault(&text, 0o600);
        assert!(fault.starts_with("FILE:2: the "), "{fault}");
        assert!(fault.ends_with("expected 32 bytes in base64, as `openssl rand -base64 32` writes them"));
        assert!(!fault.contains(secret), "{fault}");
    }
    let fault = fault(&format!("{key}\n").repeat(20), 0o600);
    assert!(
        fault.starts_with("FILE:17: there are more than 16 ticket keys: "),
        "{fault}"
    );
}

#[test]
fn the_order_of_certificates_does_not_matter() {
    use crate::tls::certificate::Pair;
    use crate::tls::certificate::tests::made_pem;
    use crate::tls::crypto::provider;
    use rcgen::PKCS_ECDSA_P256_SHA256;

    let folder = Folder::new();
    let file = folder.write("keys", &STANDARD.encode([7; KEY_BYTES]));
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    let read = |names: &[&[&str]]| {
        let pair = |names: &&[&str]| {
            let folder = Folder::new();
            let (certificate, key) = made_pem(names, &PKCS_ECDSA_P256_SHA256);
            Pair::read(&folder.pair(&certificate, &key), &provider()).unwrap()
        };
        SharedKeys::read(&file, &Pairs::new(names.iter().map(pair).collect())).unwrap()
    };
    let both = read(&[&["a.test"], &["b.test", "c.test"]]);
    assert!(both == read(&[&["c.test", "b.test"], &["a.test"], &["b.test"]]));
    assert!(both != read(&[&["a.test"], &["b.test"]]));
    assert!(both != read(&[&["a.test"], &["b.testc.test"]]));
}

#[test]
fn certificates_without_names_of_hosts_differ_by_what_they_have() {
    use crate::tls::certificate::tests::made;
    use crate::tls::crypto::provider;
    use rcgen::{CertificateParams, KeyPair, SanType};

    let folder = Folder::new();
    let file = folder.write("keys", &STANDARD.encode([7; KEY_BYTES]));
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    let read = |pair| SharedKeys::read(&file, &Pairs::new(vec![pair])).unwrap();
    // Another machine has another certificate for the same address.
    assert!(read(made(&["10.0.0.1"])) == read(made(&["10.0.0.1"])));
    assert!(read(made(&["10.0.0.1"])) != read(made(&["10.0.0.2"])));
    assert!(read(made(&["a.test", "10.0.0.1"])) != read(made(&["a.test", "10.0.0.2"])));
    let with_uri = |uri: &str| {
        let mut params = CertificateParams::new(["a.test".to_owned()]).unwrap();
        params.subject_alt_names.push(SanType::URI(uri.try_into().unwrap()));
        let key = KeyPair::generate().unwrap();
        let (certificate, folder) = (params.self_signed(&key).unwrap(), Folder::new());
        let files = folder.pair(&certificate.pem(), &key.serialize_pem());
        read(Pair::read(&files, &provider()).unwrap())
    };
    assert!(with_uri("spiffe://a") == with_uri("spiffe://a"));
    assert!(with_uri("spiffe://a") != with_uri("spiffe://b"));
    // Nothing but the whole certificate tells these apart.
    assert!(read(made(&[])) != read(made(&[])));
}
