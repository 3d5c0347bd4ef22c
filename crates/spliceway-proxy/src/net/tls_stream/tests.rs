use std::future::poll_fn;
use std::pin::pin;

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use rustls::version::{TLS12, TLS13};
use rustls::{SupportedCipherSuite, SupportedProtocolVersion};
use spliceway::{TlsCipher, TlsSession, TrafficKey};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream, duplex};
use tokio_rustls::client::TlsStream as ClientStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::super::traffic_secrets::KernelSession;
use super::super::traffic_secrets::tests::{configs, suites};
use super::*;

/// A server whose connection the kernel may take over, and its client.
struct Rig {
    client: ClientStream<DuplexStream>,
    server: TlsStream<DuplexStream>,
}

/// The bytes that the connection below TLS takes at once.
const CAPACITY: usize = 4096;

impl Rig {
    async fn new(suite: SupportedCipherSuite, version: &'static SupportedProtocolVersion) -> Self {
        let (client, mut server) = configs(suite, version);
        let (near, far) = duplex(CAPACITY);
        let records = Records::followed(BufReader::new(far), &[]);
        server.key_log = Arc::clone(records.secrets().unwrap()) as _;
        let (client, server) = tokio::join!(
            TlsConnector::from(Arc::new(client)).connect("a.test".try_into().unwrap(), near),
            TlsAcceptor::from(Arc::new(server)).accept(records)
        );
        Self {
            client: client.unwrap(),
            server: TlsStream::new(server.unwrap(), Peer::Client),
        }
    }

    /// Encrypts a record.
    fn record(&mut self, data: &[u8]) -> Vec<u8> {
        let session = self.client.get_mut().1;
        session.writer().write_all(data).unwrap();
        self.records()
    }

    /// Returns what rustls has to send.
    fn records(&mut self) -> Vec<u8> {
        let (session, mut bytes) = (self.client.get_mut().1, Vec::new());
        while session.wants_write() {
            session.write_tls(&mut bytes).unwrap();
        }
        bytes
    }

    /// Sends bytes below TLS.
    async fn send(&mut self, bytes: &[u8]) {
        self.client.get_mut().0.write_all(bytes).await.unwrap();
    }

    /// Reads what has come, up to `max` bytes. Returns `None` if nothing has.
    async fn receive(&mut self, max: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; max];
        tokio::select! {
            biased;
            read = self.server.read(&mut bytes) => {
                bytes.truncate(read.unwrap());
                Some(bytes)
            }
            () = tokio::task::yield_now() => None,
        }
    }

    fn request(&self) -> Arc<SwitchRequest> {
        Arc::clone(self.server.switch_request().unwrap())
    }

    fn can_switch(&mut self) -> bool {
        self.server.is_between_records()
    }
}

#[tokio::test]
async fn a_connection_switches_after_data_and_between_records() {
    let mut rig = Rig::new(suites()[0], &TLS13).await;
    assert!(!rig.can_switch(), "the last record was one of the handshake");
    let record = rig.record(b"data");
    rig.send(&record).await;
    assert_eq!(rig.receive(2).await.unwrap(), b"da");
    assert!(!rig.can_switch(), "rustls has data");
    assert_eq!(rig.receive(9).await.unwrap(), b"ta");
    assert!(rig.can_switch());
    let record = rig.record(b"more");
    for (at, byte) in record.iter().enumerate() {
        rig.send(&[*byte]).await;
        let read = rig.receive(9).await;
        let is_last = at + 1 == record.len();
        assert_eq!(read.is_some(), is_last);
        assert_eq!(rig.can_switch(), is_last, "after {at} bytes of the record");
    }
}

#[tokio::test]
async fn a_message_of_the_handshake_delays_the_switch() {
    let mut rig = Rig::new(suites()[0], &TLS13).await;
    let record = rig.record(b"data");
    rig.send(&record).await;
    rig.receive(9).await.unwrap();
    rig.client.get_mut().1.refresh_traffic_keys().unwrap();
    let update = rig.records();
    let record = rig.record(b"data");
    rig.send(&update).await;
    assert!(rig.receive(9).await.is_none());
    assert!(!rig.can_switch(), "a message may be incomplete");
    rig.send(&record).await;
    rig.receive(9).await.unwrap();
    assert!(!rig.can_switch(), "the answer is not sent");
    let request = rig.request();
    request.make();
    assert!(rig.receive(9).await.is_none() && request.take_stop(), "it is sent now");
    assert!(rig.can_switch());
    // Two records by one read, of which the second one has no data.
    let mut rig = Rig::new(suites()[0], &TLS13).await;
    let mut both = rig.record(b"data");
    rig.client.get_mut().1.refresh_traffic_keys().unwrap();
    both.extend(rig.records());
    rig.send(&both).await;
    rig.receive(9).await.unwrap();
    assert!(!rig.can_switch(), "the last record may have no data");
}

#[tokio::test]
async fn unsent_records_delay_the_switch_and_do_not_stop_reads() {
    let mut rig = Rig::new(suites()[0], &TLS13).await;
    let (record, more) = (rig.record(b"data"), rig.record(b"more"));
    rig.send(&record).await;
    rig.receive(9).await.unwrap();
    let request = rig.request();
    rig.server.write_all(&[7; CAPACITY]).await.unwrap();
    assert!(!rig.can_switch(), "a part of the record is not sent");
    request.make();
    rig.send(&more).await;
    assert_eq!(rig.receive(9).await.unwrap(), b"more");
    let mut cx = Context::from_waker(std::task::Waker::noop());
    let write = Pin::new(&mut rig.server).poll_write(&mut cx, b"later");
    assert!(
        write.is_pending() && !request.take_stop(),
        "the write waits for the client"
    );
    let mut down = [0; CAPACITY];
    let (mut read, mut server) = (pin!(rig.client.read_exact(&mut down)), &mut rig.server);
    let stopped = poll_fn(|cx| {
        assert!(read.as_mut().poll(cx).is_pending(), "the last record is not complete");
        let write = Pin::new(&mut server).poll_write(cx, b"later");
        if request.take_stop() {
            assert!(write.is_pending());
            return Poll::Ready(());
        }
        Poll::Pending
    });
    stopped.await;
    read.await.unwrap();
    assert!(down == [7; CAPACITY]);
    assert!(rig.can_switch());
    // Nothing is lost if the switch is withdrawn.
    request.withdraw();
    rig.server.write_all(b"later").await.unwrap();
    let mut later = [0; 5];
    rig.client.read_exact(&mut later).await.unwrap();
    assert_eq!(&later, b"later");
}

#[tokio::test]
async fn an_ended_connection_does_not_switch() {
    for is_own_end in [true, false] {
        let mut rig = Rig::new(suites()[0], &TLS13).await;
        let record = rig.record(b"data");
        rig.send(&record).await;
        rig.receive(9).await.unwrap();
        assert!(rig.can_switch());
        if is_own_end {
            rig.server.shutdown().await.unwrap();
        } else {
            rig.client.get_mut().1.send_close_notify();
            let notify = rig.records();
            rig.send(&notify).await;
            assert_eq!(rig.receive(9).await.unwrap(), b"");
        }
        assert!(!rig.can_switch(), "{is_own_end}");
    }
}

#[tokio::test]
async fn a_stream_of_tls_1_2_says_why_it_stays() {
    let suite = rustls::crypto::aws_lc_rs::cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256;
    let rig = Rig::new(suite, &TLS12).await;
    assert_eq!(rig.server.why_it_stays(), Some(Switch::OldVersion));
    assert!(rig.server.switch_request().is_none());
}

#[tokio::test]
async fn the_extracted_keys_are_those_of_the_next_records() {
    for suite in suites() {
        for updates in 0..3 {
            let mut rig = Rig::new(suite, &TLS13).await;
            for _ in 0..updates {
                rig.client.get_mut().1.refresh_traffic_keys().unwrap();
                let record = rig.record(b"data");
                rig.send(&record).await;
                rig.receive(9).await.unwrap();
            }
            // The client reads its tickets before it.
            rig.server.write_all(b"data").await.unwrap();
            rig.client.read_exact(&mut [0; 4]).await.unwrap();
            for _ in 0..5 {
                let record = rig.record(b"data");
                rig.send(&record).await;
                rig.receive(9).await.unwrap();
            }
            let parts = rig.server.into_parts();
            let secrets = Arc::clone(parts.records.secrets().unwrap());
            let extracted = parts.connection.dangerous_extract_secrets().unwrap();
            let SupportedCipherSuite::Tls13(suite) = suite else {
                panic!("the version is 1.3");
            };
            let side = rustls::Side::Server;
            let keys = KernelSession::new(suite, side, &secrets, &extracted, Arc::default());
            let (send, receive, mut session) = keys.unwrap();
            let mut record = Vec::new();
            let client = rig.client.get_mut().1;
            client.writer().write_all(b"later").unwrap();
            client.write_tls(&mut record).unwrap();
            assert_eq!(open(&receive, &record), b"later\x17");
            // The next key, too.
            client.refresh_traffic_keys().unwrap();
            client.write_tls(&mut Vec::new()).unwrap();
            client.writer().write_all(b"after").unwrap();
            record.clear();
            client.write_tls(&mut record).unwrap();
            assert_eq!(open(&session.next_receive_key().unwrap(), &record), b"after\x17");
            let sealed = seal(&send, b"answer\x17");
            client.read_tls(&mut &sealed[..]).unwrap();
            assert_eq!(client.process_new_packets().unwrap().plaintext_bytes_to_read(), 6);
        }
    }
}

fn sealing(key: &TrafficKey) -> (LessSafeKey, Nonce) {
    let algorithm: &Algorithm = match key.cipher() {
        TlsCipher::Aes128Gcm => &AES_128_GCM,
        TlsCipher::Aes256Gcm => &AES_256_GCM,
        _ => &CHACHA20_POLY1305,
    };
    let mut nonce = *key.iv();
    for (byte, number) in nonce[4..].iter_mut().zip(key.next_record().to_be_bytes()) {
        *byte ^= number;
    }
    let sealing = LessSafeKey::new(UnboundKey::new(algorithm, key.key()).unwrap());
    (sealing, Nonce::assume_unique_for_key(nonce))
}

/// Decrypts a record.
fn open(key: &TrafficKey, record: &[u8]) -> Vec<u8> {
    let (header, content) = record.split_at(5);
    let ((key, nonce), mut content) = (sealing(key), content.to_vec());
    key.open_in_place(nonce, Aad::from(header), &mut content)
        .unwrap()
        .to_vec()
}

/// Encrypts a record.
fn seal(key: &TrafficKey, content: &[u8]) -> Vec<u8> {
    let ((key, nonce), mut sealed) = (sealing(key), content.to_vec());
    let length = u8::try_from(content.len() + 16).unwrap();
    let header = [23, 3, 3, 0, length];
    key.seal_in_place_append_tag(nonce, Aad::from(&header), &mut sealed)
        .unwrap();
    [&header[..], &sealed].concat()
}
