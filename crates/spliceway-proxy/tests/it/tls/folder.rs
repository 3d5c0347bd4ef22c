//! Certificates in a folder.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::harness::{Folder, Program, connect, echo, refused_to_start, refusing};

use super::client::{Client, Config, made};

/// Puts a certificate for this name and its key into one file, in the way of a tool that replaces
/// files.
fn put(folder: &Path, name: &str) -> CertificateDer<'static> {
    let (certificate, key) = made(&[name]);
    let new = folder.join(".new");
    fs::write(&new, certificate.clone() + &key).unwrap();
    fs::set_permissions(&new, PermissionsExt::from_mode(0o600)).unwrap();
    fs::rename(new, folder.join(format!("{name}.pem"))).unwrap();
    CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()
}

/// Returns the certificate that a client gets for a name, after an exchange with an echo.
fn served(program: &Program, name: Option<&'static str>) -> CertificateDer<'static> {
    let mut client = Client::connect(program, &Config::anything().name(name)).unwrap();
    assert_eq!(client.exchange(b"abc").unwrap(), b"abc");
    client.certificate()
}

#[test]
fn the_name_selects_a_file_and_the_first_one_is_for_others() {
    let folder = Folder::new("tls-dir");
    let path = folder.0.to_str().unwrap();
    let (b, a) = (put(&folder.0, "b.test"), put(&folder.0, "a.test"));
    let program = Program::forward(echo("127.0.0.1:0"), &["--tls-dir", path]);
    assert!(served(&program, Some("b.test")) == b);
    assert!(served(&program, Some("unknown.test")) == a);
    assert!(served(&program, None) == a);
}

#[test]
fn one_broken_file_of_a_folder_is_named_at_the_start() {
    let folder = Folder::new("tls-dir-broken");
    let path = folder.0.to_str().unwrap();
    let target = refusing().to_string();
    let arguments = ["forward", "-l", "127.0.0.1:0", "-r", &target, "--tls-dir", path];
    let stderr = refused_to_start(&arguments);
    assert!(
        stderr.contains("--tls-dir: ") && stderr.contains("expected NAME.pem"),
        "{stderr}"
    );
    put(&folder.0, "a.test");
    fs::write(folder.0.join("b.crt"), made(&["b.test"]).0).unwrap();
    let stderr = refused_to_start(&arguments);
    for part in [
        "--tls-dir: ",
        "b.crt has a certificate and no private key",
        "NAME.key beside",
    ] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
}

#[test]
fn a_thousand_certificates_change_under_load_and_no_handshake_fails() {
    const NAMES: usize = 1000;
    let folder = Folder::new("tls-dir-thousand");
    let path = folder.0.to_str().unwrap();
    let names: Vec<_> = (0..NAMES).map(|number| &*format!("n{number}.test").leak()).collect();
    let old: Vec<_> = names.iter().map(|name| put(&folder.0, name)).collect();
    let mut program = Program::forward(echo("127.0.0.1:0"), &["--tls-dir", path]);
    let address = program.address;
    let mut handshakes = 0;
    thread::scope(|scope| {
        let shakes_until_new = |first: usize| {
            let (names, old) = (&names, &old);
            move || {
                for count in 1.. {
                    let at = (first + count * 7) % NAMES;
                    let config = Config::anything().name(Some(names[at]));
                    let mut client = Client::over(connect(address), &config).unwrap();
                    assert_eq!(client.exchange(b"abc").unwrap(), b"abc");
                    if client.certificate() != old[at] {
                        return count;
                    }
                }
                0
            }
        };
        let clients = [0, 3].map(|first| scope.spawn(shakes_until_new(first)));
        let new: Vec<_> = names.iter().map(|name| put(&folder.0, name)).collect();
        // A look may have come while the files were written. Then another one follows.
        while served(&program, Some(names[NAMES - 1])) != new[NAMES - 1] {
            program.line("read the changed TLS files");
        }
        handshakes = clients.map(|client| client.join().unwrap()).into_iter().sum();
    });
    assert!(handshakes > 2, "{handshakes}");
    assert_eq!(program.sum("spliceway_tls_reloads_total", &["result=\"failed\""]), 0);
}
