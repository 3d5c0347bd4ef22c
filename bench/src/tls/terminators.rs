//! Programs that speak TLS on one side, with the configurations that make them equal.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256};
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::crypto::aws_lc_rs::{self, cipher_suite::TLS13_AES_256_GCM_SHA384, kx_group::X25519};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig, version};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::End;
use super::load::{Identity, NAME};
use crate::servers::{self, Folder, Server};
use crate::site::Site;

/// A program that speaks TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    Spliceway,
    Haproxy,
    Nginx,
    Stunnel,
    Hitch,
    Ghostunnel,
}

impl Program {
    pub(super) const PEERS: [Self; 5] = [Self::Haproxy, Self::Nginx, Self::Stunnel, Self::Hitch, Self::Ghostunnel];

    /// Returns its name, and that of its file.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Spliceway => "spliceway",
            Self::Haproxy => "haproxy",
            Self::Nginx => "nginx",
            Self::Stunnel => "stunnel",
            Self::Hitch => "hitch",
            Self::Ghostunnel => "ghostunnel",
        }
    }

    /// Returns why the program cannot be measured, if there is a reason.
    pub(super) fn missing(self, end: End) -> Option<String> {
        match self {
            Self::Spliceway => Server::Spliceway.missing(),
            Self::Hitch if end == End::Originate => Some("it does not originate TLS".into()),
            _ => servers::unless_installed(self.name()),
        }
    }

    /// Returns the command that starts the program in the foreground, with one thread or worker.
    pub(super) fn command(
        self,
        end: End,
        listen: SocketAddr,
        server: SocketAddr,
        files: &Files,
        folder: &Path,
    ) -> io::Result<Command> {
        let mut command = match self {
            Self::Spliceway => Command::new(Server::Spliceway.spliceway()?),
            _ => Command::new(self.name()),
        };
        let configuration = folder.join("configuration");
        match self {
            Self::Spliceway => command.args(spliceway(end, listen, server, files)),
            Self::Ghostunnel => command.args(ghostunnel(end, listen, server, files)),
            Self::Haproxy => command.arg("-db").arg("-q").arg("-f").arg(&configuration),
            Self::Nginx => command
                .args(["-e", "/dev/null", "-p"])
                .arg(folder)
                .arg("-c")
                .arg(&configuration),
            Self::Stunnel => command.arg(&configuration),
            Self::Hitch => command.arg("--config").arg(&configuration),
        };
        let text = match self {
            Self::Haproxy => haproxy(end, listen, server, files),
            Self::Nginx => nginx(&servers::nginx_module()?, folder, end, listen, server, files),
            Self::Stunnel => stunnel(end, listen, server, files),
            Self::Hitch => hitch(listen, server, files),
            Self::Spliceway | Self::Ghostunnel => return Ok(command),
        };
        fs::write(&configuration, text)?;
        Ok(command)
    }
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn spliceway(end: End, listen: SocketAddr, server: SocketAddr, files: &Files) -> Vec<String> {
    let (certificate, key) = (files.certificate.display(), files.key.display());
    words(&match end {
        End::Terminate => {
            format!("forward --workers 1 -l {listen} -r {server} --tls-cert {certificate} --tls-key {key}")
        }
        End::Originate => format!(
            "forward --workers 1 -l {listen} -r tls://{server} --target-tls-ca {certificate} --target-tls-name {NAME}"
        ),
    })
}

fn ghostunnel(end: End, listen: SocketAddr, server: SocketAddr, files: &Files) -> Vec<String> {
    let (certificate, key) = (files.certificate.display(), files.key.display());
    words(&match end {
        End::Terminate => format!(
            "server --quiet all --listen {listen} --target {server} --unsafe-target --disable-authentication \
             --cert {certificate} --key {key}"
        ),
        End::Originate => format!(
            "client --quiet all --unsafe-listen --listen {listen} --target {server} --disable-authentication \
             --cacert {certificate} --override-server-name {NAME}"
        ),
    })
}

fn haproxy(end: End, listen: SocketAddr, server: SocketAddr, files: &Files) -> String {
    let (both, certificate) = (files.both.display(), files.certificate.display());
    let (bind, to) = match end {
        End::Terminate => (format!("ssl crt {both}"), String::new()),
        End::Originate => (
            String::new(),
            format!("ssl verify required ca-file {certificate} sni str({NAME}) verifyhost {NAME}"),
        ),
    };
    format!(
        "global
    nbthread 1
    maxconn 4000
defaults
    mode tcp
    option splice-auto
    maxconn 4000
    timeout connect 60s
    timeout client 600s
    timeout server 600s
listen relay
    bind {listen} {bind}
    server upstream {server} {to}
"
    )
}

fn nginx(module: &str, folder: &Path, end: End, listen: SocketAddr, server: SocketAddr, files: &Files) -> String {
    let (certificate, key) = (files.certificate.display(), files.key.display());
    let (listens, rest) = match end {
        End::Terminate => (
            " ssl",
            format!(
                "ssl_certificate {certificate}; ssl_certificate_key {key};\n        ssl_protocols TLSv1.2 TLSv1.3;"
            ),
        ),
        End::Originate => (
            "",
            format!(
                "proxy_ssl on; proxy_ssl_verify on; proxy_ssl_trusted_certificate {certificate};
        proxy_ssl_name {NAME}; proxy_ssl_server_name on; proxy_ssl_protocols TLSv1.2 TLSv1.3;"
            ),
        ),
    };
    format!(
        "{module}daemon off;
worker_processes 1;
user root;
pid {}/pid;
error_log stderr emerg;
events {{ worker_connections 10000; }}
stream {{
    server {{
        listen {listen}{listens} backlog=4096;
        proxy_pass {server};
        {rest}
    }}
}}
",
        folder.display()
    )
}

fn stunnel(end: End, listen: SocketAddr, server: SocketAddr, files: &Files) -> String {
    let (both, certificate) = (files.both.display(), files.certificate.display());
    let rest = match end {
        End::Terminate => format!("cert = {both}"),
        End::Originate => {
            format!("client = yes\nCAfile = {certificate}\nverifyChain = yes\ncheckHost = {NAME}\nsni = {NAME}")
        }
    };
    format!(
        "foreground = yes\npid =\ndebug = 0\n[relay]\naccept = {listen}\nconnect = {server}\n{rest}\nTIMEOUTclose = 0\n"
    )
}

fn hitch(listen: SocketAddr, server: SocketAddr, files: &Files) -> String {
    let both = files.both.display();
    let at = |address: SocketAddr| format!("[{}]:{}", address.ip(), address.port());
    format!(
        "frontend = \"{}\"\nbackend = \"{}\"\npem-file = \"{both}\"\nworkers = 1\ndaemon = off\nquiet = on\nsyslog = off\n\
         user = \"root\"\ntls-protos = TLSv1.2 TLSv1.3\n",
        at(listen),
        at(server)
    )
}

/// A certificate that signs itself, with its key.
pub(super) struct Files {
    certificate: PathBuf,
    key: PathBuf,
    /// Certificate and key.
    both: PathBuf,
    chain: Vec<CertificateDer<'static>>,
    secret: Vec<u8>,
    _folder: Folder,
}

impl Files {
    pub(super) fn new(site: &Site, identity: Identity) -> io::Result<Self> {
        let algorithm = match identity {
            Identity::Ecdsa => &PKCS_ECDSA_P256_SHA256,
            Identity::Rsa => &PKCS_RSA_SHA256,
        };
        let (listen, server): (IpAddr, IpAddr) = site.addresses();
        let names = vec![NAME.to_owned(), listen.to_string(), server.to_string()];
        let key = KeyPair::generate_for(algorithm).map_err(io::Error::other)?;
        let params = CertificateParams::new(names).map_err(io::Error::other)?;
        let certificate = params.self_signed(&key).map_err(io::Error::other)?;
        let folder = Folder::new()?;
        let file = |name: &str| folder.path().join(name);
        let files = Self {
            certificate: file("certificate"),
            key: file("key"),
            both: file("both"),
            chain: vec![certificate.der().clone()],
            secret: key.serialize_der(),
            _folder: folder,
        };
        fs::write(&files.certificate, certificate.pem())?;
        for (file, text) in [
            (&files.key, key.serialize_pem()),
            (&files.both, certificate.pem() + &key.serialize_pem()),
        ] {
            fs::write(file, text)?;
            fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        }
        Ok(files)
    }

    /// Returns what a server needs that speaks TLS.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(self.secret.clone()));
        let config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&version::TLS13])
            .expect("the suite is of this version")
            .with_no_client_auth()
            .with_single_cert(self.chain.clone(), key)
            .expect("the key belongs to the certificate");
        TlsAcceptor::from(Arc::new(config))
    }

    /// Returns what clients need. They never resume a session.
    pub(super) fn connector(&self) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(self.chain[0].clone()).expect("it was made for this");
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&version::TLS13])
            .expect("the suite is of this version")
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.resumption = Resumption::disabled();
        TlsConnector::from(Arc::new(config))
    }
}

/// Returns clients that resume their sessions.
pub(super) fn resuming(connector: &TlsConnector) -> TlsConnector {
    let mut config = ClientConfig::clone(connector.config());
    config.resumption = Resumption::in_memory_sessions(8);
    TlsConnector::from(Arc::new(config))
}

/// One suite and one group that all programs have, so that all of them do the same work.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: vec![TLS13_AES_256_GCM_SHA384],
        kx_groups: vec![X25519],
        ..aws_lc_rs::default_provider()
    })
}
