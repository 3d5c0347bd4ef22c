//! What `spliceway doctor --tls` says about certificates that ACME issues, and about settings.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use super::client::Pair;
use crate::harness::{Folder, TextFile, refusing};

/// Returns the code, and the text in one line.
fn doctor(file: &TextFile) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spliceway"));
    let output = command.args(["doctor", "-v", "--tls", file.path()]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    (
        output.status.code(),
        text.split_whitespace().collect::<Vec<_>>().join(" "),
    )
}

#[test]
fn doctor_says_when_acme_orders_each_certificate() {
    let folder = Folder::new("doctor-acme");
    let state = folder.0.join("acme");
    let (pair, ca) = (Pair::new(&["a.test"]), Pair::new(&["localhost"]));
    let file = TextFile::new(&format!(
        "[acme]\nstate = {state:?}\naccept_terms = true\nca = {:?}\n[[service]]\nkind = \"forward\"\n\
         listen = \"127.0.0.1:0\"\nto = \"{}\"\nacme = [\"a.test\", \"b.test\"]\n",
        ca.certificate.path(),
        refusing(),
    ));
    let server = state.join("acme-v02.api.letsencrypt.org_directory");
    let [of_a, of_b] = ["a", "b"].map(|name| format!("{} [acme] ", server.join(format!("{name}.test.pem")).display()));
    let first = "the program orders the first certificate of b.test as soon as it runs: until then, clients of this";
    let (code, text) = doctor(&file);
    assert_eq!(code, Some(0), "{text}");
    for part in ["the program creates the folder when it starts", &(of_b.clone() + first)] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!state.exists());
    fs::create_dir_all(&server).unwrap();
    fs::set_permissions(&state, PermissionsExt::from_mode(0o700)).unwrap();
    let issued = [pair.key.path(), pair.certificate.path()].map(|path| fs::read_to_string(path).unwrap());
    let path = server.join("a.test.pem");
    fs::write(&path, issued.concat()).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    let known = r#"{"order": {"failures": 1, "not_before": 0, "why": "no such name"}}"#;
    fs::write(server.join("b.test.json"), known).unwrap();
    let (code, text) = doctor(&file);
    assert_eq!(code, Some(0), "{text}");
    let renewed = of_a + "the program renews the certificate of a.test ";
    let failed = of_b + "the last try for b.test has failed: no such name. Then the program orders the first";
    for part in [
        "only its owner may use it; the server is",
        "a.test; it expires at 4096",
        &renewed,
        &failed,
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    ca.certificate.write("nothing");
    let (code, text) = doctor(&file);
    assert!(
        code == Some(1) && text.contains(&format!("[acme] {}", ca.certificate.path())),
        "{text}"
    );
}

#[test]
fn a_fault_of_one_service_does_not_hide_the_files_of_another() {
    let (pair, folder) = (Pair::new(&["a.test"]), Folder::new("doctor-open"));
    fs::set_permissions(&folder.0, PermissionsExt::from_mode(0o755)).unwrap();
    let service = |name, keys: &str| {
        let to = refusing();
        format!("[[service]]\nname = \"{name}\"\nkind = \"forward\"\nlisten = \"127.0.0.1:0\"\nto = \"{to}\"\n{keys}\n")
    };
    let [_, certificate, _, key] = pair.arguments();
    let file = TextFile::new(&format!(
        "[acme]\nstate = {:?}\naccept_terms = true\n{}{}",
        folder.0,
        service("issued", "acme = \"a.test\""),
        service("own", &format!("tls_cert = \"{certificate}\"\ntls_key = \"{key}\"")),
    ));
    let (code, text) = doctor(&file);
    let place = format!(
        "Service issued fault the settings [config] {}:2:9: acme_state: other users may",
        file.path()
    );
    assert!(code == Some(1) && text.contains(&place), "{text}");
    assert!(text.contains("Service own ok "), "{text}");
}
