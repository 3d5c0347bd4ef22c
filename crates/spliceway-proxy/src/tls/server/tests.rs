use super::*;
use std::future::poll_fn;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::kit::tls_error::{Peer, TlsError};
use crate::net::records::Records;
use crate::tls::acme::StateFolder;
use crate::tls::certificate::tests::{Folder, made_pem};
use crate::tls::watched::LOOK_AGAIN;
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, date_time_ymd};
use rustls::RootCertStore;
use rustls::client::ClientConfig;
use rustls::crypto::aws_lc_rs::kx_group;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader, duplex};
use tokio::time::sleep;
use tokio_rustls::TlsConnector;

/// A terminator whose certificates a client trusts.
struct Example {
    folder: Folder,
    terminator: Terminator,
    client: ClientConfig,
}

fn example(names: &[&str], change: impl FnOnce(&mut ServerSettings)) -> Example {
    let folder = Folder::new();
    let (certificate, key) = made_pem(names, &PKCS_ECDSA_P256_SHA256);
    let mut settings = ServerSettings {
        pairs: vec![folder.pair(&certificate, &key)],
        folder: None,
        acme: None,
        ticket_keys: None,
        is_13_only: false,
        alpn: Vec::new(),
        refuses_unknown_names: false,
        clients: None,
        uses_kernel: false,
    };
    change(&mut settings);
    Example {
        client: trusting(&certificate, &[&TLS13, &TLS12]),
        terminator: Terminator::new(settings).unwrap(),
        folder,
    }
}

fn trusting(certificate: &str, versions: &[&'static SupportedProtocolVersion]) -> ClientConfig {
    trusting_by(provider(), certificate, versions)
}

fn trusting_by(
    provider: Arc<CryptoProvider>,
    certificate: &str,
    versions: &[&'static SupportedProtocolVersion],
) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap())
        .unwrap();
    ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

/// Shakes hands, and sends bytes in both directions. Returns what both sides say.
async fn shake(
    terminator: &Terminator,
    client: ClientConfig,
    name: &'static str,
) -> (Result<Agreed, HandshakeError>, io::Result<()>) {
    let (near, far) = duplex(1 << 16);
    let connect = async {
        let name = ServerName::try_from(name).unwrap();
        let mut stream = TlsConnector::from(Arc::new(client)).connect(name, near).await?;
        stream.write_all(b"request").await?;
        stream.shutdown().await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        assert_eq!(answer, b"answer");
        Ok(())
    };
    let accept = async {
        let accepted = terminator
            .accept(Vec::new(), BufReader::new(far), None, None, |_| {})
            .await;
        let (mut stream, agreed) = accepted.map_err(|refused| refused.error)?;
        let mut request = Vec::new();
        stream.read_to_end(&mut request).await?;
        assert_eq!(request, b"request");
        stream.write_all(b"answer").await?;
        stream.shutdown().await?;
        Ok(agreed)
    };
    tokio::join!(accept, connect)
}

#[tokio::test]
async fn a_handshake_agrees_on_version_name_and_protocol() {
    let Example {
        terminator,
        client,
        folder,
    } = example(&["a.test"], |settings| {
        settings.alpn = vec!["h2".into(), "http/1.1".into()];
    });
    for (versions, version) in [(&[&TLS13][..], "1.3"), (&[&TLS12][..], "1.2")] {
        let certificate = std::fs::read_to_string(&terminator.settings.pairs[0].certificate).unwrap();
        let mut client = trusting(&certificate, versions);
        client.alpn_protocols = vec![b"http/1.1".to_vec()];
        let (agreed, connected) = shake(&terminator, client, "a.test").await;
        connected.unwrap();
        let agreed = agreed.unwrap();
        assert_eq!((agreed.version, agreed.is_resumed), (version, false));
        assert_eq!(
            (agreed.name.as_deref(), agreed.alpn.as_deref()),
            (Some("a.test"), Some("http/1.1"))
        );
        assert!(agreed.cipher.starts_with("TLS_"), "{agreed:?}");
    }
    drop((client, folder));
}

/// Polls a future that is not done. Returns whether it is done now.
async fn poll_on<F: Future>(future: Pin<&mut F>, output: &mut Option<F::Output>) -> bool {
    let mut future = future;
    if output.is_none()
        && let Poll::Ready(ready) = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
    {
        *output = Some(ready);
    }
    output.is_some()
}

/// Shakes hands while others have the only turn, except that the server answers the first hello.
/// Returns whether it needs no other turn.
async fn needs_one_turn(terminator: &Terminator, client: ClientConfig) -> bool {
    let (near, far) = duplex(1 << 16);
    let connector = TlsConnector::from(Arc::new(client));
    let mut connect = pin!(connector.connect("a.test".try_into().unwrap(), near));
    let mut accept = pin!(terminator.accept(Vec::new(), BufReader::new(far), None, None, |_| {}));
    let (mut connected, mut accepted) = (None, None);
    assert!(!poll_on(connect.as_mut(), &mut connected).await);
    assert!(!poll_on(accept.as_mut(), &mut accepted).await);
    let turn = terminator.turns.next().await;
    // More polls than there are messages.
    for _ in 0..10 {
        poll_on(connect.as_mut(), &mut connected).await;
        poll_on(accept.as_mut(), &mut accepted).await;
    }
    let is_done = accepted.is_some();
    drop(turn);
    while !poll_on(connect.as_mut(), &mut connected).await | !poll_on(accept.as_mut(), &mut accepted).await {}
    connected.unwrap().unwrap();
    accepted.unwrap().unwrap();
    is_done
}

#[tokio::test]
async fn a_handshake_signs_and_verifies_in_turns_alone() {
    let folder = Folder::new();
    let clients = ClientCertSettings {
        authorities: vec![folder.write("ca.pem", &authority(2900).0)],
        crls: Vec::new(),
        is_required: false,
        rules: Vec::new(),
    };
    let plain = example(&["a.test"], |_| {});
    let asking = example(&["a.test"], |settings| settings.clients = Some(clients));
    // The server does not know the group of the first key share, and asks for another hello.
    let mut other_groups = CryptoProvider::clone(&provider());
    other_groups.kx_groups = vec![kx_group::MLKEM768, kx_group::X25519];
    for (example, version, provider, expected) in [
        (&plain, &TLS13, provider(), true),
        (&plain, &TLS13, Arc::new(other_groups), false),
        (&plain, &TLS12, provider(), false),
        (&asking, &TLS13, provider(), false),
    ] {
        let certificate = std::fs::read_to_string(&example.terminator.settings.pairs[0].certificate);
        let client = trusting_by(provider, &certificate.unwrap(), &[version]);
        assert_eq!(needs_one_turn(&example.terminator, client).await, expected);
    }
}

#[tokio::test]
async fn a_client_resumes_its_session_even_after_a_reload() {
    let Example {
        terminator,
        client,
        folder,
    } = example(&["a.test"], |_| {});
    for expected in [false, true, true] {
        let (agreed, connected) = shake(&terminator, client.clone(), "a.test").await;
        connected.unwrap();
        assert_eq!(agreed.unwrap().is_resumed, expected);
        terminator.reload().unwrap();
    }
    drop(folder);
}

#[tokio::test]
async fn an_unknown_name_gets_the_first_certificate_or_an_alert() {
    for refuses in [false, true] {
        let Example {
            terminator,
            client,
            folder,
        } = example(&["a.test"], |settings| {
            settings.refuses_unknown_names = refuses;
        });
        let (agreed, connected) = shake(&terminator, client, "b.test").await;
        let (agreed, connected) = (agreed.unwrap_err().to_string(), connected.unwrap_err().to_string());
        if refuses {
            assert_eq!(agreed, "no certificate has the name \"b.test\"");
            assert_eq!(connected, "received fatal alert: UnrecognisedName");
        } else {
            assert!(
                agreed.starts_with("the client refuses (alert bad certificate): "),
                "{agreed}"
            );
            assert!(connected.contains("not valid for name"), "{connected}");
        }
        drop(folder);
    }
}

#[tokio::test]
async fn an_old_version_is_refused_if_only_the_newest_is_allowed() {
    let Example { terminator, folder, .. } = example(&["a.test"], |settings| settings.is_13_only = true);
    let certificate = std::fs::read_to_string(&terminator.settings.pairs[0].certificate).unwrap();
    let (agreed, connected) = shake(&terminator, trusting(&certificate, &[&TLS12]), "a.test").await;
    assert!(matches!(
        agreed.unwrap_err(),
        HandshakeError::Tls(TlsError {
            error: Error::PeerIncompatible(_),
            ..
        })
    ));
    assert!(connected.unwrap_err().to_string().contains("ProtocolVersion"));
    // The hello of TLS 1.1 has no extensions. OpenSSL sends the same alert.
    let hello = [
        &[22, 3, 1, 0, 45, 1, 0, 0, 41, 3, 2][..],
        &[7; 32],
        &[0, 0, 2, 0xc0, 0x0a, 1, 0],
    ]
    .concat();
    let (mut near, far) = duplex(1 << 10);
    near.write_all(&hello).await.unwrap();
    let refused = terminator
        .accept(Vec::new(), BufReader::new(far), None, None, |_| {})
        .await
        .unwrap_err();
    let cause = refused.error.to_string();
    assert!(
        cause.starts_with("the client speaks no version of TLS that is allowed: "),
        "{cause}"
    );
    let mut alert = [0; 7];
    near.read_exact(&mut alert).await.unwrap();
    assert_eq!(alert, [21, 3, 1, 0, 2, 2, 70]);
    drop(folder);
}

#[tokio::test]
async fn bytes_that_are_not_tls_and_an_early_end_are_errors_of_their_own() {
    let Example { terminator, folder, .. } = example(&["a.test"], |_| {});
    for (first, expected) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], ": it sends HTTP"),
        (b"CONNECT a.test:443 HTTP/1.1\r\n", ": it sends HTTP"),
        (b"SSH-2.0-test\r\n", ": it sends SSH"),
        (b"PROXY TCP4 ", ": it sends a PROXY header, which needs accept_proxy"),
        (
            b"\r\n\r\n\0\r\nQUIT\n",
            ": it sends a PROXY header, which needs accept_proxy",
        ),
        (b"\x05\x01\0", ": it sends SOCKS5"),
        (b"G", ""),
        (b"\xff", ""),
    ] {
        let (mut near, far) = duplex(1 << 10);
        near.write_all(first).await.unwrap();
        let refused = terminator
            .accept(Vec::new(), BufReader::new(far), None, None, |_| {})
            .await
            .unwrap_err();
        assert_eq!(
            refused.error.to_string(),
            format!("the client does not speak TLS{expected}")
        );
        // The client gets the alert `decode_error`.
        let mut alert = [0; 7];
        near.read_exact(&mut alert).await.unwrap();
        assert_eq!(alert, [21, 3, 1, 0, 2, 2, 50]);
    }
    let (mut near, far) = duplex(1 << 10);
    near.write_all(&[22, 3, 1]).await.unwrap();
    drop(near);
    assert!(matches!(
        terminator
            .accept(Vec::new(), BufReader::new(far), None, None, |_| {})
            .await
            .unwrap_err()
            .error,
        HandshakeError::Gone
    ));
    drop(folder);
}

#[tokio::test]
async fn a_broken_file_leaves_the_old_certificate_in_force() {
    let Example {
        terminator,
        client,
        folder,
    } = example(&["a.test"], |_| {});
    folder.write("key.pem", "broken");
    assert!(
        terminator
            .reload()
            .unwrap_err()
            .to_string()
            .contains("there is no private key")
    );
    let (agreed, connected) = shake(&terminator, client, "a.test").await;
    connected.unwrap();
    agreed.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_file_that_changes_before_the_watch_begins_is_read() {
    let Example { terminator, folder, .. } = example(&["a.test"], |_| {});
    let (certificate, key) = made_pem(&["b.test"], &PKCS_ECDSA_P256_SHA256);
    folder.pair(&certificate, &key);
    let terminator = Arc::new(terminator);
    let watch = tokio::spawn(Arc::clone(&terminator).watch("a".into()));
    // Nothing changes from here on, so the files are read once.
    // Sleeps because the watch looks at fixed times. The time does not pass.
    sleep(LOOK_AGAIN * 5 / 2).await;
    assert_eq!(terminator.counts.reloads(), [("ok", 1), ("failed", 0)]);
    assert!(terminator.pairs().know("b.test") && !terminator.pairs().know("a.test"));
    watch.abort();
    drop(folder);
}

#[tokio::test(start_paused = true)]
async fn a_key_whose_permissions_are_corrected_is_read_again() {
    let Example { terminator, folder, .. } = example(&["a.test"], |_| {});
    let terminator = Arc::new(terminator);
    let watch = tokio::spawn(Arc::clone(&terminator).watch("a".into()));
    let (certificate, key) = made_pem(&["b.test"], &PKCS_ECDSA_P256_SHA256);
    let files = folder.pair(&certificate, &key);
    for (mode, expected) in [(0o644, [("ok", 0), ("failed", 1)]), (0o600, [("ok", 1), ("failed", 1)])] {
        std::fs::set_permissions(&files.key, PermissionsExt::from_mode(mode)).unwrap();
        // Sleeps because the watch looks at fixed times. The time does not pass.
        sleep(LOOK_AGAIN * 5 / 2).await;
        assert_eq!(terminator.counts.reloads(), expected);
    }
    assert!(terminator.pairs().know("b.test"));
    watch.abort();
    drop(folder);
}

#[tokio::test]
async fn a_look_finds_files_that_came_changed_or_went() {
    let Example {
        terminator,
        client,
        folder,
    } = example(&["a.test"], |settings| {
        let folder = settings.pairs[0].certificate.parent().unwrap().to_owned();
        std::fs::rename(&settings.pairs[0].certificate, folder.join("a.crt")).unwrap();
        std::fs::rename(&settings.pairs[0].key, folder.join("a.key")).unwrap();
        settings.pairs.clear();
        settings.folder = Some(folder);
    });
    shake(&terminator, client, "a.test").await.1.unwrap();
    let names = |terminator: &Terminator| -> Vec<_> {
        terminator
            .pairs()
            .all()
            .iter()
            .flat_map(|pair| pair.names.clone())
            .collect()
    };
    assert!(terminator.look("web").is_none());
    let both = |name: &str| {
        let (certificate, key) = made_pem(&[name], &PKCS_ECDSA_P256_SHA256);
        certificate + &key
    };
    folder.write("b.pem", &both("b.test"));
    terminator.look("web").unwrap().unwrap();
    assert_eq!(names(&terminator), ["a.test".into(), "b.test".into()]);
    folder.write("b.pem", &both("other.test"));
    terminator.look("web").unwrap().unwrap();
    assert_eq!(names(&terminator), ["a.test".into(), "other.test".into()]);
    // One broken pair refuses all that has changed.
    folder.write("a.crt", "");
    folder.write("c.pem", &both("c.test"));
    assert!(
        terminator
            .look("web")
            .unwrap()
            .unwrap_err()
            .to_string()
            .contains("a.crt: the file is empty")
    );
    assert_eq!(names(&terminator), ["a.test".into(), "other.test".into()]);
    // Another look finds the same fault, which counts once.
    terminator.look("web").unwrap().unwrap_err();
    for gone in ["a.crt", "a.key"] {
        std::fs::remove_file(folder.path().join(gone)).unwrap();
    }
    terminator.look("web").unwrap().unwrap();
    assert_eq!(names(&terminator), ["other.test".into(), "c.test".into()]);
    assert_eq!(terminator.counts().reloads(), [("ok", 3), ("failed", 1)]);
    for gone in ["b.pem", "c.pem"] {
        std::fs::remove_file(folder.path().join(gone)).unwrap();
    }
    assert!(
        terminator
            .look("web")
            .unwrap()
            .unwrap_err()
            .to_string()
            .contains("expected NAME.pem")
    );
}

#[tokio::test(start_paused = true)]
async fn the_old_certificate_is_stale_until_the_files_can_be_used() {
    let Example { terminator, folder, .. } = example(&["a.test"], |_| {});
    let terminator = Arc::new(terminator);
    let key = std::fs::read_to_string(&terminator.settings.pairs[0].key).unwrap();
    let watch = tokio::spawn(Arc::clone(&terminator).watch("web".into()));
    // Sleeps because the paused clock of the test then passes the next look.
    let after_a_look = || sleep(LOOK_AGAIN + Duration::from_secs(1));
    after_a_look().await;
    assert!(terminator.stale().is_none());
    folder.write("key.pem", "broken");
    after_a_look().await;
    let stale = terminator.stale().unwrap();
    assert!(stale.why.contains("there is no private key"), "{}", stale.why);
    // The next look finds the same fault, and counts nothing.
    after_a_look().await;
    assert_eq!(terminator.stale().unwrap().since, stale.since);
    assert_eq!(terminator.counts().reloads(), [("ok", 0), ("failed", 1)]);
    folder.write("key.pem", &key);
    after_a_look().await;
    assert!(terminator.stale().is_none());
    assert_eq!(terminator.counts().reloads(), [("ok", 1), ("failed", 1)]);
    watch.abort();
}

#[test]
fn a_valid_certificate_of_acme_stays_in_force_without_its_file() {
    let state = Folder::new();
    std::fs::set_permissions(state.path(), PermissionsExt::from_mode(0o700)).unwrap();
    let state_folder = StateFolder::new(state.path().to_owned(), "https://acme.test").unwrap();
    let acme = AcmeSettings {
        names: vec!["a.test".into()],
        directory: "https://acme.test".to_owned(),
        folder: state_folder,
        email: None,
        ca: None,
        uses_http: false,
    };
    let file = acme.pairs()[0].certificate.clone();
    let folder = file.parent().unwrap().to_owned();
    std::fs::create_dir(&folder).unwrap();
    let example = example(&["b.test"], |settings| {
        settings.pairs = acme.pairs();
        settings.acme = Some(acme);
    });
    let terminator = &example.terminator;
    assert!(terminator.pairs().all().is_empty());
    let issued = |from: i32, to: i32| {
        let mut params = CertificateParams::new(["a.test".to_owned()]).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(from, 1, 1), date_time_ymd(to, 1, 1));
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().pem() + &key.serialize_pem()
    };
    let write = |text: &str| {
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    };
    write(&issued(2000, 2900));
    terminator.look("web").unwrap().unwrap();
    let stale = |terminator: &Terminator| {
        let why = terminator.look("web").unwrap().unwrap_err().to_string();
        assert_eq!(*terminator.stale().unwrap().why, why);
        assert!(terminator.pairs().know("a.test"));
        why
    };
    // The folder cannot be searched. This link does the same for root.
    let aside = folder.with_extension("aside");
    std::fs::rename(&folder, &aside).unwrap();
    symlink(&folder, &folder).unwrap();
    assert!(stale(terminator).starts_with("cannot read "));
    std::fs::remove_file(&folder).unwrap();
    std::fs::rename(&aside, &folder).unwrap();
    terminator.look("web").unwrap().unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(stale(terminator).contains("was removed"));
    // A reload of the configuration finds no certificate either.
    let after = Terminator::new(terminator.settings.clone())
        .unwrap()
        .continued(terminator);
    assert!(stale(&after).contains("was removed"));
    // One that has expired goes with its file.
    write(&issued(2000, 2001));
    terminator.look("web").unwrap().unwrap();
    std::fs::remove_file(&file).unwrap();
    terminator.look("web").unwrap().unwrap();
    assert!(terminator.pairs().all().is_empty() && terminator.stale().is_none());
}

/// Returns a CA and a list of certificates that it has revoked, which expires in this year.
fn authority(year: i32) -> (String, String) {
    use rcgen::{
        BasicConstraints, CertificateParams, CertificateRevocationListParams, IsCa, Issuer, KeyIdMethod, KeyPair,
        date_time_ymd,
    };
    let (mut params, key) = (CertificateParams::default(), KeyPair::generate().unwrap());
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key).unwrap();
    let list = CertificateRevocationListParams {
        this_update: date_time_ymd(2000, 1, 1),
        next_update: date_time_ymd(year, 1, 1),
        crl_number: 1.into(),
        issuing_distribution_point: None,
        revoked_certs: Vec::new(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let list = list.signed_by(&Issuer::new(params, key)).unwrap();
    (certificate.pem(), list.pem().unwrap())
}

#[test]
fn a_look_finds_a_changed_list_of_revoked_certificates() {
    let (folder, (certificate, list)) = (Folder::new(), authority(2900));
    let clients = ClientCertSettings {
        authorities: vec![folder.write("ca.pem", &certificate)],
        crls: vec![folder.write("crl.pem", &list)],
        is_required: true,
        rules: Vec::new(),
    };
    let example = example(&["a.test"], |settings| settings.clients = Some(clients));
    let terminator = &example.terminator;
    let before = terminator.crls()[0].1;
    assert!(terminator.look("web").is_none());
    folder.write("crl.pem", "broken");
    let bad = terminator.look("web").unwrap().unwrap_err().to_string();
    assert!(
        bad.contains("crl.pem: there is no list of revoked certificates"),
        "{bad}"
    );
    assert_eq!(terminator.crls()[0].1, before);
    folder.write("crl.pem", &authority(2901).1);
    terminator.look("web").unwrap().unwrap();
    assert!(terminator.crls()[0].1 > before);
}

#[tokio::test]
async fn a_write_after_the_alert_of_a_refusal_says_why() {
    let folder = Folder::new();
    let clients = ClientCertSettings {
        authorities: vec![folder.write("ca.pem", &authority(2900).0)],
        crls: Vec::new(),
        is_required: true,
        rules: Vec::new(),
    };
    let example = example(&["a.test"], |settings| settings.clients = Some(clients));
    let (near, far) = duplex(1 << 16);
    let connector = TlsConnector::from(Arc::new(example.client));
    let name = ServerName::try_from("a.test").unwrap();
    let (refused, connected) = tokio::join!(
        example
            .terminator
            .accept(Vec::new(), BufReader::new(far), None, None, |_| {}),
        connector.connect(name, Records::of_silent(near, false))
    );
    // The server closes its connection.
    drop(refused.expect_err("the client has no certificate"));
    let mut stream = crate::net::tls_stream::TlsStream::new(connected.unwrap(), Peer::Target);
    let error = stream.write_all(b"request").await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    assert!(error.to_string().contains("give one as target_tls_cert"), "{error}");
}
