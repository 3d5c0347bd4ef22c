//! CAs with one name, with several CRLs, with few CAs below them, and very many CAs.

use rcgen::{CrlDistributionPoint, KeyPair};

use super::*;

const POINTS: [&str; 2] = ["http://crl.test/1", "http://crl.test/2"];

/// Issues a certificate with this number, which names a distribution point if one is given.
fn with_point(authority: &Authority, serial: u64, point: Option<&str>) -> Issued {
    authority.issue("cn", &[dns("b.test")], |params| {
        params.serial_number = Some(serial.into());
        params.crl_distribution_points = point.into_iter().map(at).collect();
    })
}

fn at(point: &str) -> CrlDistributionPoint {
    CrlDistributionPoint {
        uris: vec![point.to_owned()],
    }
}

/// Tries certificates with these lists, and with the lists in the other order.
fn assert_tried(setting: &Setting, lists: &[String], tried: &[(&Issued, Result<(), &str>)]) {
    for lists in [lists.concat(), lists.iter().rev().cloned().collect()] {
        let file = TextFile::new(&lists);
        let arguments = setting.arguments(&["--tls-client-crl", file.path()]);
        let mut program = Program::forward(echo("127.0.0.1:0"), &arguments);
        for (index, (issued, expected)) in tried.iter().enumerate() {
            let attempted = attempt(&program, &setting.config(issued));
            let record = record(&mut program);
            assert_eq!(attempted.is_ok(), expected.is_ok(), "{index}: {record}");
            if let Some(part) = expected.err() {
                assert!(record.contains(part), "{index}: {part}: {record}");
            }
        }
    }
}

#[test]
fn a_certificate_that_any_list_of_its_ca_has_is_refused() {
    let setting = Setting::new();
    let ca = &setting.authority;
    let (revoked, unknown) = (Err("end=denied:tls_client_revoked"), Err("it is unknown whether"));
    // An old list of everything, and a newer one of one point.
    let lists = [ca.revoke(&[], 2900), ca.revoke_at(2, &[7], POINTS[0])];
    for point in [None, Some(POINTS[0]), Some(POINTS[1])] {
        let [bad, good] = [7, 8].map(|serial| with_point(ca, serial, point));
        assert_tried(&setting, &lists, &[(&bad, revoked), (&good, Ok(()))]);
    }
    // Two parts. A certificate that names no part may be in one that is not here.
    let lists = [ca.revoke_at(1, &[], POINTS[0]), ca.revoke_at(2, &[7], POINTS[1])];
    let [bad, good] = [7, 8].map(|serial| with_point(ca, serial, None));
    let known = POINTS.map(|point| with_point(ca, 9, Some(point)));
    let tried = [
        (&bad, revoked),
        (&good, unknown),
        (&known[0], Ok(())),
        (&known[1], Ok(())),
    ];
    assert_tried(&setting, &lists, &tried);
    assert_tried(&setting, &lists[..1], &[(&known[0], Ok(())), (&known[1], unknown)]);
}

#[test]
fn cas_with_one_name_have_a_list_each() {
    let setting = Setting::new();
    let (old, new) = (&setting.authority, Authority::new("CA"));
    setting.file.write(&(old.pem.clone() + &new.pem));
    let lists = [old.revoke_again(1, &[7], 2900), new.revoke_again(2, &[8], 2900)];
    let [old_7, old_8, new_7, new_8] =
        [(old, 7), (old, 8), (&new, 7), (&new, 8)].map(|(ca, serial)| ca.host("b.test", serial));
    let revoked = Err("end=denied:tls_client_revoked");
    let tried = [(&old_7, revoked), (&old_8, Ok(())), (&new_7, Ok(())), (&new_8, revoked)];
    assert_tried(&setting, &lists, &tried);
    let unknown = Err("end=denied:tls_client_cert");
    let tried = [
        (&old_7, unknown),
        (&old_8, unknown),
        (&new_7, Ok(())),
        (&new_8, revoked),
    ];
    assert_tried(&setting, &lists[1..], &tried);
    let file = TextFile::new(&lists[1]);
    let mut program = Program::forward(refusing(), &setting.arguments(&["--tls-client-crl", file.path()]));
    let warning = format!("{}:1: the CA \"CN=CA\" has no CRL", setting.file.path());
    assert_eq!(program.lines_with(&warning), 1);
}

#[test]
fn cas_below_with_one_name_have_a_list_each() {
    let setting = Setting::new();
    let root = &setting.authority;
    let below = [(); 2].map(|()| root.intermediate("below"));
    let lists = [
        root.revoke(&[], 2900),
        below[0].revoke(&[7], 2900),
        below[1].revoke(&[8], 2900),
    ];
    let issued = |ca: &Authority, serial| {
        let mut issued = ca.host("b.test", serial);
        issued.chain += &ca.pem;
        issued
    };
    let tried = [(0, 7), (0, 8), (1, 7), (1, 8)].map(|(ca, serial)| issued(&below[ca], serial));
    let revoked = Err("end=denied:tls_client_revoked");
    let expected = [revoked, Ok(()), Ok(()), revoked];
    let tried: Vec<_> = tried.iter().zip(expected).collect();
    assert_tried(&setting, &lists, &tried);
    assert_tried(&setting, &lists[1..], &[(tried[1].0, Err("it is unknown whether"))]);
    let no_list = root.intermediate_changed("below", |params| params.key_usages.truncate(1));
    let lists = [root.revoke(&[], 2900), no_list.revoke(&[], 2900)];
    assert_tried(
        &setting,
        &lists,
        &[(&issued(&no_list, 9), Err("it is unknown whether"))],
    );
}

#[test]
fn a_ca_limits_the_cas_below_it() {
    let setting = Setting::new();
    let config = |cas: &[&Authority]| {
        let (issuer, others) = cas.split_first().unwrap();
        let mut issued = issuer.host("b.test", 1);
        issued.chain.extend(cas[..others.len()].iter().map(|ca| &*ca.pem));
        setting.config(&issued)
    };
    for (max, accepted) in [(0, [true, false, false]), (1, [true, true, false]), (2, [true; 3])] {
        let root = Authority::changed("CA", |params| {
            params.is_ca = IsCa::Ca(BasicConstraints::Constrained(max));
        });
        setting.file.write(&root.pem);
        let mut program = Program::forward(echo("127.0.0.1:0"), &setting.arguments(&[]));
        let below = root.intermediate("below");
        let further = below.intermediate("further");
        let chains = [&[&root][..], &[&below, &root], &[&further, &below, &root]];
        for (chain, is_accepted) in chains.into_iter().zip(accepted) {
            let attempted = attempt(&program, &config(chain));
            let record = record(&mut program);
            assert_eq!(attempted.is_ok(), is_accepted, "{max}: {record}");
            let why = "a CA of the client's chain allows fewer certificates of CAs below it";
            assert_eq!(record.contains(why), !is_accepted, "{record}");
        }
    }
}

#[test]
fn names_of_cas_that_no_message_can_hold_are_not_sent() {
    let setting = Setting::new();
    let key = KeyPair::generate().unwrap();
    let other = |index| {
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::CommonName, format!("{index:0250}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.self_signed(&key).unwrap().pem()
    };
    // Names of 69 and of 26 KiB.
    for count in [265, 100] {
        let others: String = (0..count).map(other).collect();
        setting.file.write(&(others + &setting.authority.pem));
        let program = Program::forward(echo("127.0.0.1:0"), &setting.arguments(&[]));
        for versions in VERSIONS {
            let config = setting.config(&setting.authority.host("b.test", 1)).versions(versions);
            attempt(&program, &config).unwrap();
        }
    }
}
