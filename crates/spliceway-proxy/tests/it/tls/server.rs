//! Targets that speak TLS, and authorities for their certificates.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};

use super::client::{Client, TLS12, TLS13};
use crate::harness::{TextFile, accept, listen};

/// An authority, which issues certificates.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate with its chain, and its key.
pub(crate) struct Issued {
    chain: Vec<CertificateDer<'static>>,
    pub(crate) pem: String,
    key: KeyPair,
}

fn of_authority(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new([]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        Self(CertifiedIssuer::self_signed(of_authority(name), KeyPair::generate().unwrap()).unwrap())
    }

    /// Returns a server that issues certificates, although it is no authority.
    pub(crate) fn server(names: &[&str]) -> Self {
        let mut params = CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
        params.is_ca = IsCa::ExplicitNoCa;
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Returns an authority that this one vouches for.
    pub(crate) fn intermediate(&self, name: &str) -> Self {
        Self(CertifiedIssuer::signed_by(of_authority(name), KeyPair::generate().unwrap(), &self.0).unwrap())
    }

    /// Returns an authority that allows no other one between it and a server.
    pub(crate) fn last(name: &str) -> Self {
        let mut params = of_authority(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn issue(&self, names: &[&str]) -> Issued {
        self.issue_with(names, |_| {})
    }

    /// Issues a certificate for these names.
    pub(crate) fn issue_with(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Issued {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, "server");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Issued {
            chain: vec![certificate.der().clone()],
            pem: certificate.pem(),
            key,
        }
    }

    pub(crate) fn file_text(&self) -> String {
        self.0.pem()
    }

    /// Returns a file with the certificate of the authority.
    pub(crate) fn file(&self) -> TextFile {
        TextFile::new(&self.0.pem())
    }
}

impl Issued {
    /// Returns a certificate that vouches for itself.
    pub(crate) fn self_signed(names: &[&str]) -> Self {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(names).unwrap();
        // As `openssl req -x509` makes them.
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        Self {
            chain: vec![certificate.der().clone()],
            pem: certificate.pem(),
            key,
        }
    }

    /// Adds the certificate of an authority to the chain.
    pub(crate) fn with(mut self, authority: &Authority) -> Self {
        self.chain.push(authority.0.der().clone());
        self.pem += &authority.0.pem();
        self
    }

    /// Returns files with the chain and the key.
    pub(crate) fn files(&self) -> [TextFile; 2] {
        let (chain, key) = (TextFile::new(&self.pem), TextFile::new(&self.key.serialize_pem()));
        std::fs::set_permissions(&key.0, PermissionsExt::from_mode(0o600)).unwrap();
        [chain, key]
    }

    fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::try_from(self.key.serialize_der()).unwrap()
    }
}

/// A target that speaks TLS.
pub(crate) struct Server {
    pub(crate) listener: TcpListener,
    pub(crate) address: SocketAddr,
    pub(crate) config: Arc<ServerConfig>,
}

/// How a target speaks TLS.
#[derive(Clone, Copy)]
pub(crate) struct Speaks<'a> {
    pub(crate) versions: &'a [&'static SupportedProtocolVersion],
    pub(crate) alpn: &'a [&'a str],
    /// The authority of the certificates that clients must have.
    pub(crate) clients_of: Option<&'a Authority>,
}

pub(crate) const ANY: Speaks<'static> = Speaks {
    versions: &[TLS13[0], TLS12[0]],
    alpn: &[],
    clients_of: None,
};

impl Server {
    pub(crate) fn new(issued: &Issued) -> Self {
        Self::speaking(issued, ANY)
    }

    pub(crate) fn speaking(issued: &Issued, speaks: Speaks<'_>) -> Self {
        let (listener, address) = listen();
        Self {
            listener,
            address,
            config: config(issued, speaks),
        }
    }

    /// Returns the target with TLS, as a forwarder names it.
    pub(crate) fn target(&self) -> String {
        format!("tls://{}", self.address)
    }

    /// Accepts a connection and shakes hands.
    pub(crate) fn accept(&self) -> Client {
        self.try_accept().unwrap()
    }

    pub(crate) fn try_accept(&self) -> std::io::Result<Client> {
        Client::serve(accept(&self.listener), &self.config)
    }
}

pub(crate) fn config(issued: &Issued, speaks: Speaks<'_>) -> Arc<ServerConfig> {
    let provider = Arc::new(default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_protocol_versions(speaks.versions).unwrap();
    let builder = match speaks.clients_of {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            roots.add(authority.0.der().clone()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        }
    };
    let mut config = builder
        .with_single_cert(issued.chain.clone(), issued.private_key())
        .unwrap();
    config.alpn_protocols = speaks.alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    Arc::new(config)
}
