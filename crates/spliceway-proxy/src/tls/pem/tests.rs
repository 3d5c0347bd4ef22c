use super::*;

fn section(label: &str, base64: &str) -> String {
    format!("-----BEGIN {label}-----\n{base64}\n-----END {label}-----\n")
}

#[test]
fn a_damaged_section_is_named_by_its_own_line() {
    let certificate = section("CERTIFICATE", "AAAA");
    let old = certificate.replace('\n', "\r");
    for (text, expected) in [
        (section("CERTIFICATE", "A"), "c.pem:1: the certificate is damaged: copy"),
        (
            old + "\r\n\r\n" + &section("CERTIFICATE", "A").replace('\n', "\r\n"),
            "c.pem:6: the certificate is damaged: copy",
        ),
    ] {
        let message = certificates(text.as_bytes()).unwrap_err().of(&"c.pem").to_string();
        assert!(message.starts_with(expected), "{message}");
    }
    // What is not wanted may be damaged: it is named where it is wanted.
    let text = section("PRIVATE KEY", "A") + &certificate;
    assert_eq!(certificates(text.as_bytes()).unwrap()[0].0, 4);
    let message = key(text.as_bytes()).unwrap_err().of(&"k.pem").to_string();
    assert!(message.starts_with("k.pem:1: the private key is damaged"), "{message}");
    let text = section("CERTIFICATE", "A") + &section("PRIVATE KEY", "AAAA");
    assert_eq!(key(text.as_bytes()).unwrap().0, 4);
}
