use super::*;

fn section(label: &str) -> String {
    format!("-----BEGIN {label}-----\nAAAA\n-----END {label}-----\n")
}

fn about_certificate(text: &[u8]) -> String {
    find(text, Wanted::Certificate).unwrap_err().of(&"c.pem").to_string()
}

fn about_key(text: &[u8]) -> String {
    find(text, Wanted::Key).unwrap_err().of(&"k.pem").to_string()
}

#[test]
fn certificates_have_the_lines_in_which_they_begin() {
    let text = format!(
        "# a comment\n{}\n{}{}",
        section(CERTIFICATE),
        section("PRIVATE KEY"),
        section(CERTIFICATE)
    );
    let lines: Vec<_> = find(text.as_bytes(), Wanted::Certificate)
        .unwrap()
        .iter()
        .map(|section| section.line)
        .collect();
    assert_eq!(lines, [2, 9]);
    let windows = section(CERTIFICATE).replace('\n', "\r\n");
    assert_eq!(find(windows.as_bytes(), Wanted::Certificate).unwrap().len(), 1);
    assert_eq!(find(text.as_bytes(), Wanted::Key).unwrap()[0].line, 6);
}

#[test]
fn another_kind_of_file_is_named_with_its_remedy() {
    for (text, expected) in [
        (&b""[..], "c.pem: the file is empty"),
        (
            b"\x30\x82\x01\x00\x30",
            "c.pem: the file is DER and not PEM: `openssl x509 -inform der",
        ),
        (
            b"\x30\x82\x01\x00\x02\x01\x03",
            "c.pem: the file is PKCS#12 and not PEM: `openssl pkcs12",
        ),
        (
            b"\x30\x80\x06\x09",
            "c.pem: the file is PKCS#7 and not PEM: `openssl pkcs7 -inform der",
        ),
        (b"\xff\xfe-\0-\0", "c.pem: the text is UTF-16: `iconv"),
        (
            b"\n\xef\xbb\xbf-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            "c.pem:2: `-----BEGIN` is not at the start",
        ),
        (
            b"nothing",
            "c.pem: there is no certificate: expected a line `-----BEGIN CERTIFICATE-----`",
        ),
    ] {
        let message = about_certificate(text);
        assert!(message.starts_with(expected), "{message}");
    }
}

#[test]
fn another_kind_of_section_is_named_with_its_remedy() {
    for (label, expected) in [
        (
            "CERTIFICATE REQUEST",
            "c.pem:1: there is a certificate request (CSR), and no certificate: ",
        ),
        ("PUBLIC KEY", "c.pem:1: there is a public key, and no certificate: "),
        (
            "EC PRIVATE KEY",
            "c.pem:1: there is a private key, and no certificate: ",
        ),
        (
            "TRUSTED CERTIFICATE",
            "c.pem:1: there is a certificate in another format, and no certificate: `openssl",
        ),
        (
            "PKCS7",
            "c.pem:1: there is a PKCS#7 bundle, and no certificate: `openssl pkcs7",
        ),
        (
            "X",
            "c.pem:1: there is a section X, and no certificate: expected a line `-----BEGIN C",
        ),
    ] {
        let message = about_certificate(section(label).as_bytes());
        assert!(message.starts_with(expected), "{message}");
    }
    assert!(about_key(b"\x30\x2e\x02\x01\x00").starts_with("k.pem: the file is DER and not PEM: `openssl pkey"));
    for (label, expected) in [
        (
            CERTIFICATE,
            "k.pem:1: there is a certificate, and no private key: expected the file of its key",
        ),
        (
            "OPENSSH PRIVATE KEY",
            "k.pem:1: there is a key of SSH, and no private key: ",
        ),
        (
            "EC PARAMETERS",
            "k.pem:1: there is only parameters, and no private key: ",
        ),
        (
            "ENCRYPTED PRIVATE KEY",
            "k.pem:1: the private key is encrypted: `openssl pkey",
        ),
    ] {
        let message = about_key(section(label).as_bytes());
        assert!(message.starts_with(expected), "{message}");
    }
}

#[test]
fn a_damaged_section_is_named_by_its_line() {
    for (text, expected) in [
        (
            "-----BEGIN CERTIFICATE-----\nAAAA\n",
            "c.pem:1: the section that begins here does not end",
        ),
        (
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----BEGIN CERTIFICATE-----\n",
            "c.pem:1: the section that begins here does not end: expected a line `-----END CERTIFICATE-----`",
        ),
        (
            "-----BEGIN CERTIFCATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            "c.pem:3: expected `-----END CERTIFCATE",
        ),
        (
            "AAAA\n-----END CERTIFICATE-----\n",
            "c.pem:2: expected `-----BEGIN CERTIFICATE-----` before",
        ),
        (
            "-----BEGIN CERTIFICATE-----\nAAAA\nA*AA\n",
            "c.pem:3: the line has a character that is not base64",
        ),
    ] {
        let message = about_certificate(text.as_bytes());
        assert!(message.starts_with(expected), "{message}");
    }
    let old = "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\nAAAA\n\
               -----END EC PRIVATE KEY-----\n";
    assert!(about_key(old.as_bytes()).starts_with("k.pem:1: the private key is encrypted"));
    let both = section(CERTIFICATE) + &section("ENCRYPTED PRIVATE KEY");
    assert!(about_key(both.as_bytes()).starts_with("k.pem:4: the private key is encrypted"));
    let both = section(CERTIFICATE) + old;
    assert!(about_certificate(both.as_bytes()).starts_with("c.pem:4: the private key is encrypted"));
}
