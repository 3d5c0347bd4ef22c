//! TLVs about the TLS of a client, for a target that cannot see it.
//!
//! ```text
//!   ALPN ▸ AUTHORITY (the name that the client stated) ▸ SSL { flags, verify ▸ VERSION ▸ CN ▸ CIPHER }
//! ```

use std::ops::RangeInclusive;

use super::each;

const TLV_ALPN: u8 = 0x01;
const TLV_AUTHORITY: u8 = 0x02;
const TLV_SSL: u8 = 0x20;
const SSL_VERSION: u8 = 0x21;
const SSL_CN: u8 = 0x22;
const SSL_CIPHER: u8 = 0x23;
/// The types within SSL, of which some are newer than this list. Elsewhere, they mean nothing.
pub(super) const WITHIN_SSL: RangeInclusive<u8> = SSL_VERSION..=0x2f;
/// The client speaks TLS.
const CLIENT_SSL: u8 = 0x01;
/// The client has shown a certificate on this connection.
const CLIENT_CERT_CONN: u8 = 0x02;
/// The client has shown a certificate in this TLS session.
const CLIENT_CERT_SESS: u8 = 0x04;

/// What a target learns about the TLS of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tls<'a> {
    /// The version, such as `TLSv1.3`.
    pub version: &'a str,
    /// The name of the cipher suite, as OpenSSL names it.
    pub cipher: &'a str,
    /// The protocol that was negotiated (ALPN).
    pub alpn: Option<&'a str>,
    /// The name that the client stated (SNI).
    pub server_name: Option<&'a str>,
    /// Whether the client has shown a certificate, which was verified.
    pub has_certificate: bool,
    /// The common name (CN) of the certificate.
    pub common_name: Option<&'a str>,
}

impl Tls<'_> {
    /// Returns these facts as TLVs, after `tlvs` from another header. They replace the facts that
    /// `tlvs` states about TLS, because those are about a connection further away.
    ///
    /// # Panics
    /// Panics if one of the facts has more than 65535 bytes.
    pub fn after(&self, tlvs: &[u8]) -> Vec<u8> {
        let mut all = without_tls(tlvs);
        if let Some(protocol) = self.alpn {
            add(&mut all, TLV_ALPN, protocol.as_bytes());
        }
        if let Some(name) = self.server_name {
            add(&mut all, TLV_AUTHORITY, name.as_bytes());
        }
        add(&mut all, TLV_SSL, &self.ssl());
        all
    }

    fn ssl(&self) -> Vec<u8> {
        let (client, verify) = if self.has_certificate {
            (CLIENT_SSL | CLIENT_CERT_CONN | CLIENT_CERT_SESS, 0)
        } else {
            (CLIENT_SSL, 1_u32)
        };
        let mut ssl = vec![client];
        ssl.extend(verify.to_be_bytes());
        add(&mut ssl, SSL_VERSION, self.version.as_bytes());
        if let Some(name) = self.common_name {
            add(&mut ssl, SSL_CN, name.as_bytes());
        }
        add(&mut ssl, SSL_CIPHER, self.cipher.as_bytes());
        ssl
    }
}

/// Returns the TLVs that [`Header::into_tlvs`] has returned, without what they state about TLS.
///
/// [`Header::into_tlvs`]: super::Header::into_tlvs
pub fn without_tls(tlvs: &[u8]) -> Vec<u8> {
    let mut kept = Vec::new();
    for (kind, value) in each(tlvs).map_while(|tlv| tlv) {
        if !matches!(kind, TLV_ALPN | TLV_AUTHORITY | TLV_SSL) {
            add(&mut kept, kind, value);
        }
    }
    kept
}

fn add(tlvs: &mut Vec<u8>, kind: u8, value: &[u8]) {
    let length = u16::try_from(value.len()).expect("a fact fits the length of a TLV");
    tlvs.push(kind);
    tlvs.extend(length.to_be_bytes());
    tlvs.extend(value);
}

#[cfg(test)]
mod tests {
    use super::super::{Accept, Header, Version, encode};
    use super::*;

    #[test]
    fn the_facts_have_the_bytes_of_the_specification() {
        let tls = Tls {
            version: "TLSv1.3",
            cipher: "TLS_AES_256_GCM_SHA384",
            alpn: Some("h2"),
            server_name: Some("a.test"),
            has_certificate: true,
            common_name: Some("Ann"),
        };
        let expected = [
            &b"\x01\0\x02h2\x02\0\x06a.test"[..],
            b"\x20\0\x2e\x07\0\0\0\0",
            b"\x21\0\x07TLSv1.3\x22\0\x03Ann\x23\0\x16TLS_AES_256_GCM_SHA384",
        ];
        assert_eq!(tls.after(&[]), expected.concat());
    }

    #[test]
    fn a_client_without_a_certificate_is_not_verified() {
        let tls = Tls {
            version: "TLSv1.2",
            cipher: "C",
            ..Tls::default()
        };
        assert_eq!(tls.after(&[]), b"\x20\0\x13\x01\0\0\0\x01\x21\0\x07TLSv1.2\x23\0\x01C");
    }

    #[test]
    fn the_facts_replace_those_of_another_header_and_keep_the_rest() {
        let tls = Tls {
            version: "V",
            cipher: "C",
            server_name: Some("mine"),
            ..Tls::default()
        };
        let before = b"\x02\0\x05their\xea\0\x01x\x20\0\x05\x01\0\0\0\0\x01\0\x02h2";
        assert_eq!(without_tls(before), b"\xea\0\x01x");
        assert_eq!(
            tls.after(before),
            b"\xea\0\x01x\x02\0\x04mine\x20\0\x0d\x01\0\0\0\x01\x21\0\x01V\x23\0\x01C"
        );
    }

    #[test]
    fn a_header_with_the_longest_facts_is_parsed_again() {
        let name = "x".repeat(255);
        let tls = Tls {
            version: "TLSv1.3",
            cipher: "ECDHE-ECDSA-CHACHA20-POLY1305",
            alpn: Some(&name),
            server_name: Some(&name),
            has_certificate: true,
            common_name: Some(&name),
        };
        let tlvs = tls.after(&[]);
        let address = |text: &str| text.parse().ok();
        let header = encode(Version::V2, address("192.0.2.1:1"), address("192.0.2.2:2"), &tlvs);
        let mut parser = Header::new(Accept::V2);
        assert!(parser.feed(&mut &header[..]).unwrap().is_some());
        assert_eq!(parser.into_tlvs(), tlvs);
    }
}
