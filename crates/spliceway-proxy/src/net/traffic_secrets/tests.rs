use std::io::Write;

use rcgen::generate_simple_self_signed;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{cipher_suite, default_provider};
use rustls::pki_types::PrivateKeyDer;
use rustls::version::TLS13;
use rustls::{
    ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection, SupportedCipherSuite,
    SupportedProtocolVersion,
};

use super::*;

/// A side of a connection in memory, and what its key log has got.
struct Side {
    connection: Connection,
    secrets: Arc<TrafficSecrets>,
}

pub(in crate::net) fn suites() -> [SupportedCipherSuite; 3] {
    [
        cipher_suite::TLS13_AES_128_GCM_SHA256,
        cipher_suite::TLS13_AES_256_GCM_SHA384,
        cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ]
}

/// Returns the configurations of a client and a server with this cipher.
pub(in crate::net) fn configs(
    suite: SupportedCipherSuite,
    version: &'static SupportedProtocolVersion,
) -> (ClientConfig, ServerConfig) {
    let provider = Arc::new(CryptoProvider {
        cipher_suites: vec![suite],
        ..default_provider()
    });
    let made = generate_simple_self_signed(["a.test".to_owned()]).unwrap();
    let certificate = made.cert.der().clone();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    (client.enable_secret_extraction, server.enable_secret_extraction) = (true, true);
    (client, server)
}

/// Returns a client and a server that have shaken hands with this cipher.
fn connected(suite: SupportedCipherSuite) -> (Side, Side) {
    let (mut client, mut server) = configs(suite, &TLS13);
    let secrets = [(); 2].map(|()| Arc::<TrafficSecrets>::default());
    client.key_log = Arc::clone(&secrets[0]) as _;
    server.key_log = Arc::clone(&secrets[1]) as _;
    let client = ClientConnection::new(Arc::new(client), "a.test".try_into().unwrap()).unwrap();
    let server = ServerConnection::new(Arc::new(server)).unwrap();
    let [of_client, of_server] = secrets;
    let mut sides = (Side::new(client.into(), of_client), Side::new(server.into(), of_server));
    exchange(&mut sides.0, &mut sides.1);
    sides
}

/// Passes what both sides have to send, until they have nothing more.
fn exchange(one: &mut Side, other: &mut Side) {
    while one.connection.wants_write() || other.connection.wants_write() {
        one.pass_to(other);
        other.pass_to(one);
    }
}

impl Side {
    fn new(connection: Connection, secrets: Arc<TrafficSecrets>) -> Self {
        Self { connection, secrets }
    }

    fn pass_to(&mut self, other: &mut Self) {
        let mut bytes = Vec::new();
        while self.connection.wants_write() {
            self.connection.write_tls(&mut bytes).unwrap();
        }
        let mut bytes = &bytes[..];
        while !bytes.is_empty() {
            other.connection.read_tls(&mut bytes).unwrap();
            other.connection.process_new_packets().unwrap();
            let mut data = [0; 64];
            while std::io::Read::read(&mut other.connection.reader(), &mut data).is_ok_and(|read| read > 0) {}
        }
    }

    /// Updates the keys for sending, and lets data follow, which takes the answer along.
    fn update_keys(&mut self, other: &mut Self) {
        self.connection.refresh_traffic_keys().unwrap();
        self.connection.writer().write_all(b"data").unwrap();
        self.pass_to(other);
    }

    fn session(self) -> io::Result<(TrafficKey, TrafficKey, KernelSession)> {
        let side = match &self.connection {
            Connection::Client(_) => rustls::Side::Client,
            Connection::Server(_) => rustls::Side::Server,
        };
        let Some(SupportedCipherSuite::Tls13(suite)) = self.connection.negotiated_cipher_suite() else {
            panic!("the version is 1.3");
        };
        let extracted = self.connection.dangerous_extract_secrets().unwrap();
        KernelSession::new(suite, side, &self.secrets, &extracted, Arc::default())
    }
}

fn assert_equal(sent: &TrafficKey, received: &TrafficKey) {
    assert_eq!(
        (sent.cipher(), sent.key(), sent.iv()),
        (received.cipher(), received.key(), received.iv())
    );
    assert_eq!(sent.next_record(), received.next_record());
}

#[test]
fn keys_are_found_after_any_number_of_updates() {
    for suite in suites() {
        for updates in [0, 1, 2, 5, UPDATES_MAX] {
            let (mut client, mut server) = connected(suite);
            for _ in 0..updates {
                client.update_keys(&mut server);
                // Takes the answer of the server along.
                server.connection.writer().write_all(b"data").unwrap();
                server.pass_to(&mut client);
            }
            let (up, down, mut client) = client.session().unwrap();
            let (server_sends, server_receives, mut server) = server.session().unwrap();
            assert_equal(&up, &server_receives);
            assert_equal(&server_sends, &down);
            for _ in 0..3 {
                let (next, same) = (client.next_send_key().unwrap(), server.next_receive_key().unwrap());
                assert_equal(&next, &same);
                assert_ne!(next.key(), up.key());
                assert_equal(&server.next_send_key().unwrap(), &client.next_receive_key().unwrap());
            }
        }
    }
}

#[test]
fn the_next_key_is_the_one_of_rustls() {
    for suite in suites() {
        let (mut client, mut server) = connected(suite);
        let before = Side {
            secrets: Arc::new(TrafficSecrets {
                client: Mutex::new(client.secrets.client.lock().clone()),
                server: Mutex::new(client.secrets.server.lock().clone()),
            }),
            ..connected(suite).0
        };
        client.update_keys(&mut server);
        let (after, ..) = client.session().unwrap();
        let Some(SupportedCipherSuite::Tls13(suite)) = before.connection.negotiated_cipher_suite() else {
            panic!("the version is 1.3");
        };
        let secret = before.secrets.client.lock().clone().unwrap();
        let mut direction = Direction {
            suite,
            cipher: after.cipher(),
            secret,
        };
        direction.update();
        let next = direction.key(after.next_record()).unwrap();
        assert_equal(&next, &after);
    }
}

#[test]
fn a_session_continues_in_another_process_with_the_same_keys() {
    for suite in suites() {
        let (client, _) = connected(suite);
        let (_, _, mut here) = client.session().unwrap();
        here.next_send_key().unwrap();
        let secrets = here.secrets().map(<[u8]>::to_vec);
        let SupportedCipherSuite::Tls13(suite) = suite else {
            panic!("the version is 1.3");
        };
        let there = |secrets: [&[u8]; 2]| KernelSession::resume(suite, secrets, Arc::default());
        let mut resumed = there(secrets.each_ref().map(|secret| &secret[..])).unwrap();
        assert_eq!(resumed.suite(), here.suite());
        assert_equal(&resumed.next_send_key().unwrap(), &here.next_send_key().unwrap());
        assert_equal(&resumed.next_receive_key().unwrap(), &here.next_receive_key().unwrap());
        let short = &secrets[0][1..];
        assert!(there([short, &secrets[1]]).is_err() && there([&secrets[0], short]).is_err());
    }
}

#[test]
fn keys_that_do_not_follow_from_the_secrets_are_refused() {
    let (client, _) = connected(suites()[0]);
    let (other, _) = connected(suites()[0]);
    let strange = Side {
        secrets: other.secrets,
        connection: client.connection,
    };
    let why = strange.session().unwrap_err().to_string();
    assert!(why.contains("too often"), "{why}");
    let (client, _) = connected(suites()[0]);
    let without = Side {
        secrets: Arc::default(),
        connection: client.connection,
    };
    let why = without.session().unwrap_err().to_string();
    assert!(why.contains("missing"), "{why}");
}

#[test]
fn nothing_shows_a_secret() {
    let (client, _) = connected(suites()[0]);
    assert_eq!(format!("{:?}", client.secrets), "TrafficSecrets { .. }");
    let (_, _, session) = client.session().unwrap();
    let shown = format!("{session:?}");
    assert!(!shown.contains("secret") && shown.contains("Aes128Gcm"), "{shown}");
}

#[test]
fn an_end_without_an_announcement_is_a_truncation() {
    for is_announced in [true, false] {
        let (_, _, mut session) = connected(suites()[0]).0.session().unwrap();
        session.ended(is_announced);
        assert_eq!(session.is_truncated.load(Ordering::Relaxed), !is_announced);
    }
}
