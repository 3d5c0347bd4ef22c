//! Routes by name: the program asks for certificates where it terminates TLS, and only there.

use super::*;
use crate::tls::server::{self, Server};
use std::thread;

#[test]
fn a_route_that_ends_tls_needs_a_certificate_and_another_passes_without() {
    let setting = Setting::new();
    let owner = Server::new(&server::Authority::new("Test CA").issue(&["b.test"]));
    let ended = format!("--route=a.test={},tls=terminate", echo("127.0.0.1:0"));
    let passed = format!("--route=b.test={}", owner.address);
    let arguments = setting.arguments(&[&ended, &passed, "--tls-client-allow=DNS:*.test"]);
    let mut program = Program::proxy("sni", &arguments);
    for versions in VERSIONS {
        let issued = setting.authority.host("ann.test", 1);
        attempt(&program, &setting.config(&issued).versions(versions)).unwrap();
        let served = record(&mut program);
        for field in [" user=ann.test ", " client_cert=ann.test ", " sni=a.test "] {
            assert!(served.contains(field), "{field}: {served}");
        }
        let without = Config::new(&setting.pair).versions(versions);
        let foreign = setting.authority.host("ann.example", 2);
        let foreign = setting.config(&foreign).versions(versions);
        for (config, reason) in [(without, "tls_client_none"), (foreign, "tls_client_rule")] {
            attempt(&program, &config).unwrap_err();
            let denied = record(&mut program);
            assert!(denied.contains(&format!("end=denied:{reason}")), "{denied}");
        }
    }
    // The owner of the other name asks for no certificate.
    let config = Config::anything().name(Some("b.test"));
    thread::scope(|scope| {
        scope.spawn(|| assert_eq!(owner.accept().exchange(b"answer").unwrap(), b"question"));
        let mut client = Client::connect(&program, &config).unwrap();
        assert_eq!(client.exchange(b"question").unwrap(), b"answer");
    });
    let passed = record(&mut program);
    assert!(passed.contains(" sni=b.test ") && !passed.contains("user="), "{passed}");
}
