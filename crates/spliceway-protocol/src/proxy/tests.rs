use super::*;

/// Returns the outcome of `header`, and checks that `rest` stays in the input. The outcome must be
/// the same for every split into two reads, and for single bytes.
fn fed(accept: Accept, header: &[u8], rest: &[u8]) -> Result<Option<Source>, Refusal> {
    let bytes = [header, rest].concat();
    let mut all = &bytes[..];
    let result = Header::new(accept).feed(&mut all);
    if let Ok(Some(_)) = result {
        assert_eq!(all, rest, "what follows the header stays");
    }
    for cut in 0..=header.len() {
        let (mut first, mut second) = bytes.split_at(cut);
        let mut parser = Header::new(accept);
        let got = match parser.feed(&mut first) {
            Ok(None) => parser.feed(&mut second),
            got => got,
        };
        assert_eq!(got, result, "cut at {cut}");
        if let Ok(Some(_)) = got {
            assert_eq!([first, second].concat(), rest, "cut at {cut}");
        }
    }
    let mut parser = Header::new(accept);
    let mut each = header.iter().map(|byte| parser.feed(&mut &[*byte][..]));
    let got = each.find(|got| *got != Ok(None)).unwrap_or(Ok(None));
    assert_eq!(got, result, "byte by byte");
    result
}

fn proxied(client: &str, reached: &str) -> Result<Option<Source>, Refusal> {
    Ok(Some(Source::Proxied {
        client: client.parse().unwrap(),
        reached: reached.parse().unwrap(),
    }))
}

/// Returns a version 2 header with this command, family, length and payload.
fn v2(command: u8, family: u8, length: u16, payload: &[u8]) -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
    header.extend([command, family]);
    header.extend(length.to_be_bytes());
    header.extend(payload);
    header
}

const IPV4: [u8; 12] = [192, 0, 2, 1, 198, 51, 100, 2, 0xDC, 0x04, 0x01, 0xBB];

const LONGEST: &[u8] =
    b"PROXY UNKNOWN ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n";

#[test]
fn a_line_names_the_client_at_every_split_and_leaves_later_bytes() {
    for accept in [Accept::V1, Accept::Any] {
        assert_eq!(
            fed(accept, b"PROXY TCP4 192.0.2.1 198.51.100.2 56324 443\r\n", b"\r\nPROXY"),
            proxied("192.0.2.1:56324", "198.51.100.2:443")
        );
        assert_eq!(
            fed(accept, b"PROXY TCP6 2001:db8::1 ::ffff:198.51.100.2 1 65535\r\n", b""),
            proxied("[2001:db8::1]:1", "198.51.100.2:65535")
        );
    }
}

#[test]
fn an_unknown_header_means_the_peer_itself() {
    assert_eq!(LONGEST.len(), LINE_MAX_BYTES);
    for line in [&b"PROXY UNKNOWN\r\n"[..], LONGEST, b"PROXY UNKNOWN +1 nonsense\r\n"] {
        assert_eq!(fed(Accept::V1, line, b"GET"), Ok(Some(Source::Own)));
    }
}

#[test]
fn a_line_of_more_than_107_bytes_is_refused_at_the_107th() {
    let mut line = LONGEST[..LINE_MAX_BYTES - 2].to_vec();
    line.extend(b"6\r\n");
    assert_eq!(fed(Accept::V1, &line, b""), Err(Refusal::TooLong));
    let mut parser = Header::new(Accept::Any);
    assert_eq!(parser.feed(&mut &line[..LINE_MAX_BYTES - 1]), Ok(None));
    assert_eq!(parser.feed(&mut &b"6"[..]), Err(Refusal::TooLong));
}

#[test]
fn an_invalid_line_is_refused() {
    for line in [
        &b"PROXY \r\n"[..],
        b"PROXY TCP4\r\n",
        b"PROXY TCP5 192.0.2.1 198.51.100.2 56324 443\r\n",
        b"PROXY TCP4 192.0.2.1 198.51.100.2 56324\r\n",
        b"PROXY TCP4 192.0.2.1 198.51.100.2 56324 65536\r\n",
        b"PROXY TCP4 192.0.2.1 198.51.100.2 56324 +443\r\n",
        b"PROXY TCP4 192.0.2.1 198.51.100.2 56324 443 \r\n",
        b"PROXY TCP4 192.0.2.1  198.51.100.2 56324 443\r\n",
        b"PROXY TCP4 192.0.2.256 198.51.100.2 56324 443\r\n",
        b"PROXY TCP4 2001:db8::1 2001:db8::2 56324 443\r\n",
        b"PROXY TCP6 192.0.2.1 198.51.100.2 56324 443\r\n",
        b"PROXY TCP4 192.0.2.1 198.51.100.2 56324 443\n",
        b"PROXY TCP4 192.0.2.1 198.51.100.2 56324 443\r\r\n",
        b"PROXY TCP4 \xFF 198.51.100.2 56324 443\r\n",
    ] {
        let text = line.escape_ascii();
        assert_eq!(fed(Accept::Any, line, b""), Err(Refusal::Malformed), "{text}");
    }
}

#[test]
fn a_binary_header_may_be_split_and_leaves_later_bytes() {
    let ipv4 = v2(0x21, 0x11, 12, &IPV4);
    let mut addresses = Vec::new();
    addresses.extend("2001:db8::1".parse::<std::net::Ipv6Addr>().unwrap().octets());
    addresses.extend("::ffff:198.51.100.2".parse::<std::net::Ipv6Addr>().unwrap().octets());
    addresses.extend([0, 1, 0xFF, 0xFF]);
    let ipv6 = v2(0x21, 0x21, 36, &addresses);
    for accept in [Accept::V2, Accept::Any] {
        assert_eq!(
            fed(accept, &ipv4, b"\r\n\r\n\0"),
            proxied("192.0.2.1:56324", "198.51.100.2:443")
        );
        assert_eq!(
            fed(accept, &ipv6, b""),
            proxied("[2001:db8::1]:1", "198.51.100.2:65535")
        );
    }
}

#[test]
fn bytes_after_the_addresses_are_skipped_by_the_header_s_length() {
    let tlv = |kind: u8, length: u16, value: &[u8]| [&[kind][..], &length.to_be_bytes(), value].concat();
    for more in [
        tlv(0x04, 3, b"abc"),
        [tlv(0x02, 11, b"example.com"), tlv(0xE0, 0, b"")].concat(),
        // A TLV that claims more bytes than the header has, and one that ends before its length
        // field.
        tlv(0x04, u16::MAX, b"abc"),
        vec![0x04],
    ] {
        let header = v2(0x21, 0x11, 12 + more.len() as u16, &[&IPV4[..], &more].concat());
        assert_eq!(
            fed(Accept::V2, &header, b"abc"),
            proxied("192.0.2.1:56324", "198.51.100.2:443")
        );
    }
}

#[test]
fn the_longest_header_is_read_and_not_kept() {
    let header = v2(
        0x21,
        0x11,
        u16::MAX,
        &[&IPV4[..], &vec![0x5A; usize::from(u16::MAX) - 12]].concat(),
    );
    let mut parser = Header::new(Accept::V2);
    let (mut first, mut last) = header.split_at(header.len() - 1);
    assert_eq!(parser.feed(&mut first), Ok(None));
    assert!(
        matches!(parser.state, State::Skipping { left: 1, .. }),
        "{:?}",
        parser.state
    );
    assert_eq!(parser.feed(&mut last), proxied("192.0.2.1:56324", "198.51.100.2:443"));
}

#[test]
fn local_and_non_tcp_headers_mean_the_peer_itself() {
    for header in [
        v2(0x20, 0x00, 0, b""),
        v2(0x20, 0x11, 12, &IPV4),
        // Only the length matters, whatever the family is.
        v2(0x20, 0x11, 3, b"abc"),
        v2(0x20, 0xFF, 3, b"abc"),
        v2(0x21, 0x00, 0, b""),
        v2(0x21, 0x01, 5, b"abcde"),
        v2(0x21, 0x12, 12, &IPV4),
        v2(0x21, 0x31, 216, &[0; 216]),
    ] {
        assert_eq!(fed(Accept::V2, &header, b"xyz"), Ok(Some(Source::Own)), "{header:?}");
    }
}

#[test]
fn an_invalid_binary_header_is_refused() {
    for header in [
        v2(0x11, 0x11, 12, &IPV4),
        v2(0x31, 0x11, 12, &IPV4),
        v2(0x22, 0x11, 12, &IPV4),
        v2(0x21, 0x13, 12, &IPV4),
        v2(0x21, 0x41, 12, &IPV4),
        v2(0x21, 0x11, 11, &IPV4),
        v2(0x21, 0x21, 35, &[0; 35]),
        v2(0x21, 0x31, 215, &[0; 215]),
    ] {
        assert_eq!(fed(Accept::V2, &header, b""), Err(Refusal::Malformed), "{header:?}");
    }
}

#[test]
fn a_missing_header_is_refused_at_the_first_wrong_byte() {
    for bytes in [&b"G"[..], b"PROXy", b"\x05", b"\r\n\r\n\r", b"PROXY\t"] {
        assert_eq!(fed(Accept::Any, bytes, b""), Err(Refusal::Missing), "{bytes:?}");
        let (mut before, mut last) = bytes.split_at(bytes.len() - 1);
        let mut parser = Header::new(Accept::Any);
        assert_eq!(parser.feed(&mut before), Ok(None));
        assert_eq!(parser.feed(&mut last), Err(Refusal::Missing));
    }
}

#[test]
fn the_other_version_is_refused() {
    assert_eq!(fed(Accept::V2, b"PROXY UNKNOWN\r\n", b""), Err(Refusal::Version));
    assert_eq!(fed(Accept::V1, &v2(0x20, 0, 0, b""), b""), Err(Refusal::Version));
}

#[test]
fn headers_are_written_byte_for_byte_as_specified() {
    let (client, reached) = ("192.0.2.1:56324".parse().ok(), "198.51.100.2:443".parse().ok());
    let line = encode(Version::V1, client, reached, b"");
    assert_eq!(line, b"PROXY TCP4 192.0.2.1 198.51.100.2 56324 443\r\n");
    assert_eq!(encode(Version::V2, client, reached, b""), v2(0x21, 0x11, 12, &IPV4));
    assert_eq!(encode(Version::V1, None, reached, b""), b"PROXY UNKNOWN\r\n");
    assert_eq!(encode(Version::V2, client, None, b"\xE0\0\0"), v2(0x20, 0x00, 0, b""));
}

#[test]
fn headers_read_back_and_never_mix_families() {
    let addresses = ["192.0.2.1:1", "[2001:db8::1]:2", "[::ffff:198.51.100.2]:3"];
    let canonical = ["192.0.2.1:1", "[2001:db8::1]:2", "198.51.100.2:3"];
    for (client, expected_client) in addresses.iter().zip(canonical) {
        for (reached, expected_reached) in addresses.iter().zip(canonical) {
            for version in [Version::V1, Version::V2] {
                let header = encode(version, client.parse().ok(), reached.parse().ok(), b"");
                assert_eq!(
                    fed(Accept::Any, &header, b"rest"),
                    proxied(expected_client, expected_reached)
                );
            }
        }
    }
}

#[test]
fn settings_are_read_as_they_are_written() {
    assert_eq!("v1".parse(), Ok(Version::V1));
    assert_eq!("any".parse(), Ok(Accept::Any));
    assert!("V3".parse::<Accept>().is_err() && "any".parse::<Version>().is_err());
}

/// Returns the TLVs that the parser passes on. The TLVs must be the same if the header arrives in
/// single bytes.
fn tlvs_of(payload: &[u8]) -> Vec<u8> {
    let header = v2(
        0x21,
        0x11,
        (IPV4.len() + payload.len()) as u16,
        &[&IPV4, payload].concat(),
    );
    let (mut whole, mut parts) = (Header::new(Accept::V2), Header::new(Accept::V2));
    assert!(whole.feed(&mut &header[..]).unwrap().is_some());
    for byte in &header {
        parts.feed(&mut &[*byte][..]).unwrap();
    }
    let tlvs = whole.into_tlvs();
    assert_eq!(parts.into_tlvs(), tlvs);
    tlvs
}

/// Returns TLVs with the checksum of their header in the TLV at this offset.
fn summed(tlvs: &[u8], at: usize) -> Vec<u8> {
    let payload = [&IPV4, tlvs].concat();
    let sum = crc32c(v2(0x21, 0x11, payload.len() as u16, &payload).into_iter());
    let mut tlvs = tlvs.to_vec();
    tlvs[at + 3..at + 7].copy_from_slice(&sum.to_be_bytes());
    tlvs
}

#[test]
fn a_header_with_a_wrong_checksum_is_refused() {
    assert_eq!(crc32c(b"123456789".iter().copied()), 0xe306_9283, "as in the standard");
    let right = summed(b"\x02\0\x01a\x03\0\x04\0\0\0\0\x04\0\x01x", 4);
    let header = v2(
        0x21,
        0x11,
        (IPV4.len() + right.len()) as u16,
        &[&IPV4[..], &right].concat(),
    );
    assert_eq!(
        fed(Accept::V2, &header, b"rest"),
        proxied("192.0.2.1:56324", "198.51.100.2:443")
    );
    // Any other address, port, TLV or checksum has another sum.
    let sum_bytes = HEAD_BYTES + IPV4.len() + 7..HEAD_BYTES + IPV4.len() + 11;
    for at in (HEAD_BYTES..HEAD_BYTES + IPV4.len())
        .chain(sum_bytes)
        .chain([header.len() - 1])
    {
        let mut damaged = header.clone();
        damaged[at] ^= 1;
        assert_eq!(fed(Accept::V2, &damaged, b"rest"), Err(Refusal::Malformed), "{at}");
    }
    let short = [&IPV4[..], b"\x03\0\x02ab"].concat();
    let short = v2(0x21, 0x11, short.len() as u16, &short);
    assert_eq!(fed(Accept::V2, &short, b""), Err(Refusal::Malformed));
    // The addresses of such a header are not used.
    let local = v2(0x20, 0x11, 19, &[&IPV4[..], b"\x03\0\x04abcd"].concat());
    assert_eq!(fed(Accept::V2, &local, b"rest"), Ok(Some(Source::Own)));
}

#[test]
fn tlvs_are_passed_on_without_checksum_and_padding_up_to_a_limit() {
    let authority = b"\x02\0\x01a";
    let endpoint = [&b"\xEA\0\x05"[..], b"\x01vpce"].concat();
    let padding = b"\x04\0\x02\0\0";
    let kept = [&authority[..], &endpoint].concat();
    let summed = summed(
        &[&authority[..], &[3, 0, 4, 0, 0, 0, 0], padding, &endpoint].concat(),
        4,
    );
    assert_eq!(tlvs_of(&summed), kept);
    let ssl = b"\x20\0\x0a\x01\0\0\0\0\x22\0\x02cn";
    let stray = b"\x21\0\x01v\x22\0\x04root\x2f\0\0";
    assert_eq!(
        tlvs_of(&[&stray[..], ssl, stray, b"\x30\0\x02ns"].concat()),
        [&ssl[..], b"\x30\0\x02ns"].concat()
    );
    assert_eq!(
        tlvs_of(&[&authority[..], b"\x02\0\x05a"].concat()),
        b"",
        "longer than the header"
    );
    assert_eq!(tlvs_of(&[&authority[..], b"\x02"].concat()), b"");
    for (bytes, passes) in [(TLVS_MAX_BYTES, true), (TLVS_MAX_BYTES + 1, false)] {
        let mut large = vec![0xE0, 0, 0];
        large.resize(bytes, b'x');
        large[1..3].copy_from_slice(&((bytes - 3) as u16).to_be_bytes());
        assert_eq!(tlvs_of(&large) == large, passes, "{bytes}");
    }
    let client = "192.0.2.1:56324".parse().ok();
    let reached = "198.51.100.2:443".parse().ok();
    let sent = encode(Version::V2, client, reached, &kept);
    assert_eq!(
        sent,
        v2(0x21, 0x11, (12 + kept.len()) as u16, &[&IPV4[..], &kept].concat())
    );
}
