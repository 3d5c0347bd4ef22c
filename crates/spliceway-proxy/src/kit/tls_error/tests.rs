use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::{ServerName, UnixTime};
use rustls::{
    CertRevocationListError, ContentType, ExtendedKeyPurpose, HandshakeType, InconsistentKeys, OtherError,
    PeerMisbehaved,
};

use super::*;

const PEERS: [Peer; 3] = [Peer::Client, Peer::Target, Peer::Proxy];

macro_rules! each {
    ($of:ident: $($name:ident)*) => { [$($of::$name),*].into_iter() };
}

fn messages() -> impl Iterator<Item = InvalidMessage> {
    use InvalidMessage as M;
    each!(InvalidMessage:
        CertificatePayloadTooLarge HandshakePayloadTooLarge InvalidCcs InvalidContentType
        InvalidCertificateStatusType InvalidCertRequest InvalidDhParams
        InvalidEmptyPayload InvalidKeyUpdate InvalidServerName MessageTooLarge
        MessageTooShort MissingKeyExchange NoSignatureSchemes UnknownProtocolVersion
        UnsupportedCompression UnsupportedCurveType EmptyTicketValue IllegalEmptyValue
        PreSharedKeyIsNotFinalExtension UnknownHelloRetryRequestExtension
        UnknownCertificateExtension
    )
    .chain([
        M::MissingData("ServerName"),
        M::TrailingData("ServerName"),
        M::UnexpectedMessage("ServerName"),
    ])
    .chain([M::IllegalEmptyList("ServerNames"), M::DuplicateExtension(7)])
}

fn misbehaviours() -> impl Iterator<Item = PeerMisbehaved> {
    each!(PeerMisbehaved:
        AttemptedDowngradeToTls12WhenTls13IsSupported BadCertChainExtensions
        CipherSuiteDifferedOnRetry DisallowedEncryptedExtension
        DuplicateClientHelloExtensions DuplicateEncryptedExtensions
        DuplicateHelloRetryRequestExtensions DuplicateNewSessionTicketExtensions
        DuplicateServerHelloExtensions DuplicateServerNameTypes
        EarlyDataAttemptedInSecondClientHello EarlyDataExtensionWithoutResumption
        EarlyDataOfferedWithVariedCipherSuite EchAcceptanceVariedAfterRetry
        HandshakeHashVariedAfterRetry IllegalHelloRetryRequestWithEmptyCookie
        IllegalHelloRetryRequestWithNoChanges IllegalHelloRetryRequestWithOfferedGroup
        IllegalHelloRetryRequestWithUnofferedCipherSuite
        IllegalHelloRetryRequestWithUnofferedNamedGroup
        IllegalHelloRetryRequestWithUnsupportedVersion
        IllegalHelloRetryRequestWithWrongSessionId IllegalHelloRetryRequestWithInvalidEch
        IllegalMiddleboxChangeCipherSpec IllegalTlsInnerPlaintext IncorrectBinder
        InvalidCertCompression InvalidMaxEarlyDataSize InvalidKeyShare
        KeyEpochWithPendingFragment KeyUpdateReceivedInQuicConnection
        MessageInterleavedWithHandshakeMessage MissingBinderInPskExtension MissingKeyShare
        MissingPskExtensionInSecondClientHello MissingPskModesExtension
        MissingQuicTransportParameters OfferedDuplicateCertificateCompressions
        OfferedDuplicateKeyShares OfferedEarlyDataWithOldProtocolVersion
        OfferedEmptyApplicationProtocol OfferedIncorrectCompressions
        PskExtensionMustBeLast PskExtensionWithMismatchedIdsAndBinders
        RefusedToFollowHelloRetryRequest RejectedEarlyDataInterleavedWithHandshakeMessage
        ResumptionAttemptedWithVariedEms ResumptionOfferedWithVariedCipherSuite
        ResumptionOfferedWithVariedEms ResumptionOfferedWithIncompatibleCipherSuite
        SelectedDifferentCipherSuiteAfterRetry SelectedInvalidPsk
        SelectedTls12UsingTls13VersionExtension SelectedUnofferedApplicationProtocol
        SelectedUnofferedCertCompression SelectedUnofferedCipherSuite
        SelectedUnofferedCompression SelectedUnofferedKxGroup SelectedUnofferedPsk
        SelectedUnusableCipherSuiteForVersion ServerEchoedCompatibilitySessionId
        ServerHelloMustOfferUncompressedEcPoints ServerNameDifferedOnRetry
        ServerNameMustContainOneHostName SignedKxWithWrongAlgorithm
        SignedHandshakeWithUnadvertisedSigScheme TooManyEmptyFragments
        TooManyKeyUpdateRequests TooManyRenegotiationRequests TooManyWarningAlertsReceived
        TooMuchEarlyDataReceived UnexpectedCleartextExtension UnsolicitedCertExtension
        UnsolicitedEncryptedExtension UnsolicitedSctList UnsolicitedServerHelloExtension
        WrongGroupForKeyShare UnsolicitedEchExtension
    )
}

fn incompatibilities() -> impl Iterator<Item = PeerIncompatible> {
    each!(PeerIncompatible:
        EcPointsExtensionRequired ExtendedMasterSecretExtensionRequired
        IncorrectCertificateTypeExtension KeyShareExtensionRequired
        NamedGroupsExtensionRequired NoCertificateRequestSignatureSchemesInCommon
        NoCipherSuitesInCommon NoEcPointFormatsInCommon NoKxGroupsInCommon
        NoSignatureSchemesInCommon NullCompressionRequired ServerDoesNotSupportTls12Or13
        ServerSentHelloRetryRequestWithUnknownExtension
        ServerTlsVersionIsDisabledByOurConfig SignatureAlgorithmsExtensionRequired
        SupportedVersionsExtensionRequired Tls12NotOffered Tls12NotOfferedOrEnabled
        Tls13RequiredForQuic UncompressedEcPointsRequired
        UnsolicitedCertificateTypeExtension
    )
    .chain([PeerIncompatible::ServerRejectedEncryptedClientHello(None)])
}

#[expect(deprecated, reason = "the verifier of rustls may still return the old form")]
fn certificates() -> impl Iterator<Item = CertificateError> {
    use CertificateError as C;
    let time = UnixTime::since_unix_epoch(Duration::ZERO);
    let other = |name: &str| C::Other(OtherError(Arc::new(io::Error::other(name.to_owned()))));
    each!(CertificateError:
        BadEncoding Expired NotValidYet Revoked UnhandledCriticalExtension UnknownIssuer
        UnknownRevocationStatus ExpiredRevocationList BadSignature
        UnsupportedSignatureAlgorithm NotValidForName InvalidPurpose InvalidOcspResponse
        ApplicationVerificationFailure
    )
    .chain([
        C::ExpiredContext { time, not_after: time },
        C::NotValidYetContext { time, not_before: time },
        C::ExpiredRevocationListContext {
            time,
            next_update: time,
        },
        C::UnsupportedSignatureAlgorithmContext {
            signature_algorithm_id: vec![6, 1],
            supported_algorithms: Vec::new(),
        },
        C::UnsupportedSignatureAlgorithmForPublicKeyContext {
            signature_algorithm_id: vec![6, 1],
            public_key_algorithm_id: vec![6, 1],
        },
        C::NotValidForNameContext {
            expected: ServerName::try_from("a.test").unwrap(),
            presented: vec!["DnsName(\"b.test\")".to_owned()],
        },
        C::InvalidPurposeContext {
            required: ExtendedKeyPurpose::ServerAuth,
            presented: vec![ExtendedKeyPurpose::ClientAuth],
        },
    ])
    .chain(
        [
            "CaUsedAsEndEntity",
            "EndEntityUsedAsCa",
            "PathLenConstraintViolated",
            "NameConstraintViolation",
            "UnsupportedCertVersion",
            "MaximumSignatureChecksExceeded",
            "TrailingData(CertificateExtensions)",
            "RequiredEkuNotFoundContext(RequiredEkuNotFoundContext { required: KeyUsage })",
            "the error of a verifier",
        ]
        .map(other),
    )
}

#[expect(deprecated, reason = "the verifier of rustls may still return the old form")]
fn lists() -> impl Iterator<Item = CertRevocationListError> {
    each!(CertRevocationListError:
        BadSignature UnsupportedSignatureAlgorithm InvalidCrlNumber
        InvalidRevokedCertSerialNumber IssuerInvalidForCrl ParseError
        UnsupportedCrlVersion UnsupportedCriticalExtension UnsupportedDeltaCrl
        UnsupportedIndirectCrl UnsupportedRevocationReason
    )
    .chain([CertRevocationListError::UnsupportedSignatureAlgorithmContext {
        signature_algorithm_id: vec![6, 1],
        supported_algorithms: Vec::new(),
    }])
}

/// Returns every error of rustls with every content.
fn all() -> Vec<Error> {
    let types = (0..=u8::MAX).map(|number| Error::InappropriateMessage {
        expect_types: vec![ContentType::ApplicationData],
        got_type: number.into(),
    });
    let handshakes = (0..=u8::MAX).map(|number| Error::InappropriateHandshakeMessage {
        expect_types: vec![HandshakeType::ClientHello, HandshakeType::ServerHello],
        got_type: number.into(),
    });
    let alerts = (0..=u8::MAX).map(|number| Error::AlertReceived(number.into()));
    let other = OtherError(Arc::new(io::Error::other("BadDer")));
    let single = each!(Error:
        NoCertificatesPresented UnsupportedNameType DecryptError EncryptError
        FailedToGetCurrentTime FailedToGetRandomBytes HandshakeNotComplete
        PeerSentOversizedRecord NoApplicationProtocol BadMaxFragmentSize
    );
    single
        .chain(types)
        .chain(handshakes)
        .chain(alerts)
        .chain(messages().map(Error::from))
        .chain(misbehaviours().map(Error::from))
        .chain(incompatibilities().map(Error::from))
        .chain(certificates().map(Error::from))
        .chain(lists().map(Error::from))
        .chain(each!(InconsistentKeys: KeyMismatch Unknown).map(Error::from))
        .chain([Error::General("a sentence".to_owned()), Error::Other(other)])
        .collect()
}

/// Returns the words that are the name of a variant, or a part of its content in `Debug`.
fn debug_words(text: &str) -> Vec<&str> {
    /// Names in certificates (RFC 5280), and of suites.
    const TERMS: [&str; 4] = ["serverAuth", "clientAuth", "nameConstraints", "ChaCha20-Poly1305"];
    let has_case_inside = |word: &str| {
        let pairs = word.as_bytes().windows(2);
        pairs
            .into_iter()
            .any(|pair| pair[0].is_ascii_lowercase() && pair[1].is_ascii_uppercase())
    };
    let is_bad = |word: &&str| {
        let bare = word.trim_matches(|char: char| !char.is_ascii_alphanumeric());
        !TERMS.contains(&bare) && has_case_inside(bare) || word.contains(['{', '}', '[', ']'])
    };
    text.split_whitespace().filter(is_bad).collect()
}

#[test]
fn no_error_shows_the_names_of_rustls() {
    for error in all() {
        for peer in PEERS {
            let text = TlsError {
                error: error.clone(),
                peer,
            }
            .to_string();
            assert_eq!(debug_words(&text), Vec::<&str>::new(), "{error:?}: {text}");
            assert!(text.len() > 8 && !text.contains("  "), "{error:?}: {text}");
        }
    }
}

#[test]
fn each_side_gets_the_setting_that_helps() {
    let text = |error: Error, peer| TlsError { error, peer }.to_string();
    let alert = |alert, peer| text(Error::AlertReceived(alert), peer);
    for (text, setting) in [
        (
            alert(AlertDescription::CertificateRequired, Peer::Target),
            "give one as target_tls_cert",
        ),
        (
            alert(AlertDescription::UnknownCA, Peer::Proxy),
            "CA of the certificate of target_tls_cert",
        ),
        (
            alert(AlertDescription::UnknownCA, Peer::Client),
            "the file of tls_cert lacks",
        ),
        (
            text(CertificateError::UnknownIssuer.into(), Peer::Target),
            "as target_tls_ca",
        ),
        (
            text(CertificateError::UnknownIssuer.into(), Peer::Client),
            "tls_client_ca",
        ),
        (text(Error::NoApplicationProtocol, Peer::Client), "tls_alpn"),
        (
            text(
                PeerIncompatible::SupportedVersionsExtensionRequired.into(),
                Peer::Client,
            ),
            "tls_min is 1.3",
        ),
    ] {
        assert!(text.contains(setting), "{setting}: {text}");
    }
}

#[test]
fn names_become_words_and_sentences_stay() {
    for (name, words) in [
        ("UnknownPSKIdentity", "unknown PSK identity"),
        ("UnknownCA", "unknown CA"),
        (
            "SelectedTls12UsingTls13VersionExtension",
            "selected TLS 1.2 using TLS 1.3 version extension",
        ),
        ("TrailingData(Time)", "trailing data"),
        ("Context { id: [6] }", "context"),
        ("A sentence (with words).", "A sentence (with words)."),
        ("", ""),
    ] {
        assert_eq!(Words(name).to_string(), words);
    }
}

#[test]
fn an_error_of_the_system_stays_as_it_is() {
    let reset = || io::Error::from(io::ErrorKind::ConnectionReset);
    let same = TlsError::explain(reset(), Peer::Target);
    assert_eq!(same.to_string(), reset().to_string());
    assert!(TlsError::of(&same).is_none());
    let alert = Error::AlertReceived(AlertDescription::UnknownCA);
    let explained = TlsError::explain(io::Error::new(io::ErrorKind::InvalidData, alert.clone()), Peer::Client);
    assert_eq!(explained.kind(), io::ErrorKind::InvalidData);
    assert!(TlsError::of(&explained).is_some_and(|tls| tls.error == alert));
}
