//! Which texts are addresses, and how addresses are shown.

use super::unix_socket::PATH_MAX_BYTES;
use super::*;

#[test]
fn an_address_reads_back_as_it_was_written() {
    for text in [
        ":80",
        "127.0.0.1:0",
        "[::1]:1080",
        "localhost:1080",
        "unix:/run/a,b-1.sock",
        "unix:/run/a.sock,mode=0660",
        "unix:@a/b-1,c",
        "unix:@a,mode=0666",
        "fd:web.socket",
        "fd:3",
    ] {
        assert_eq!(text.parse::<ListenAddress>().unwrap().to_string(), text);
        let range: ListenRange = text.parse().unwrap();
        assert_eq!((range.count, range.to_string()), (1, text.to_owned()));
    }
    for text in [
        "192.0.2.1:1",
        "[2001:db8::1]:65535",
        "a_b.example.com.:80",
        "a-b:80",
        "unix:/run/a-b:1-2.sock",
        "unix:@a-b:1-2",
    ] {
        assert_eq!(text.parse::<Target>().unwrap().to_string(), text);
        let range: TargetRange = text.parse().unwrap();
        assert_eq!((range.count, range.to_string()), (1, text.to_owned()));
    }
}

#[test]
fn an_invalid_address_is_refused_with_the_expected_form() {
    for text in [
        "",
        "80",
        "localhost",
        ":",
        ":+1",
        "::1:80",
        "a b:80",
        "http://a:80",
        "a\n:80",
        "[::1]",
        "[::1:80",
    ] {
        assert!(
            text.parse::<ListenAddress>().unwrap_err().starts_with("expected :PORT"),
            "{text}"
        );
        assert!(
            text.parse::<Target>().unwrap_err().starts_with("expected HOST:PORT"),
            "{text}"
        );
    }
    assert_eq!(":65536".parse::<ListenAddress>(), Err(TOO_HIGH));
    assert_eq!("a:70000".parse::<ListenAddress>(), Err(TOO_HIGH));
    assert_eq!("a:70000".parse::<Target>(), Err(TOO_HIGH));
    assert!(":80".parse::<Target>().is_err());
    assert!("fd:web".parse::<Target>().is_err());
    for text in [
        "fd:",
        "fd:a b",
        "fd:a:b",
        "unix:/run/a.sock,mode=",
        "unix:/run/a.sock,mode=66",
        "unix:/run/a.sock,mode=0868",
        "unix:/run/a.sock,mode=+660",
        "unix:/run/a.sock,mode=4755",
        "unix:/run/a.sock,mod=0660",
        "unix:/run/a.sock,user=www,mode=0660",
        "127.0.0.1:80,mode=0660",
    ] {
        assert!(text.parse::<ListenAddress>().is_err(), "{text}");
    }
    let long = format!("unix:/{}", "a".repeat(PATH_MAX_BYTES));
    assert!(long.parse::<Target>().is_err());
    assert!(long[..long.len() - 1].parse::<Target>().is_ok());
}

#[test]
fn a_mapped_address_becomes_ipv4_and_a_scope_stays() {
    for (text, expected) in [
        ("[::ffff:192.0.2.1]:80", "192.0.2.1:80"),
        ("192.0.2.1:80", "192.0.2.1:80"),
        ("[2001:db8::1]:80", "[2001:db8::1]:80"),
        ("[::192.0.2.1]:80", "[::192.0.2.1]:80"),
        ("[fe80::1%3]:80", "[fe80::1%3]:80"),
    ] {
        let address: SocketAddr = text.parse().unwrap();
        assert_eq!(canonical(address), expected.parse().unwrap(), "{text}");
    }
}

#[test]
fn a_zone_is_the_name_or_the_number_of_an_interface() {
    for (text, shown) in [
        ("[fe80::1%lo]:80", "[fe80::1%1]:80"),
        ("[fe80::1%1]:80", "[fe80::1%1]:80"),
        ("[fe80::1%77]:80", "[fe80::1%77]:80"),
    ] {
        assert_eq!(text.parse::<Target>().unwrap().to_string(), shown);
        assert_eq!(text.parse::<ListenAddress>().unwrap().to_string(), shown);
    }
    for text in ["[fe80::1%no-such]:80", "[fe80::1%]:80", "[fe80::1%+1]:80"] {
        assert_eq!(text.parse::<Target>(), Err(NO_INTERFACE), "{text}");
        assert_eq!(text.parse::<ListenAddress>(), Err(NO_INTERFACE), "{text}");
    }
    for text in ["[192.0.2.1%lo]:80", "[a%lo]:80", "fe80::1%lo:80"] {
        let wrong = text.parse::<Target>().unwrap_err();
        assert!(wrong.starts_with("expected HOST"), "{text}");
    }
    assert_eq!(ip_with_zone("fe80::1%lo", 53), Ok("[fe80::1%1]:53".parse().unwrap()));
    assert_eq!(ip_with_zone("192.0.2.1", 53), Ok("192.0.2.1:53".parse().unwrap()));
}

#[test]
fn a_port_range_lists_its_ports_and_maps_onto_another_range() {
    let range: ListenRange = "[::1]:8000-8002".parse().unwrap();
    let each: Vec<_> = range.iter().map(|address| address.to_string()).collect();
    assert_eq!(each, ["[::1]:8000", "[::1]:8001", "[::1]:8002"]);
    for text in [":1-65535", "127.0.0.1:8000-8000", "web-1:65534-65535"] {
        let range: ListenRange = text.parse().unwrap();
        let last = range.iter().last().unwrap();
        assert!(last.to_string().ends_with(text.rsplit('-').next().unwrap()), "{last}");
    }
    let scoped: ListenRange = "[fe80::1%3]:8000-8001".parse().unwrap();
    assert_eq!(scoped.iter().last().unwrap().to_string(), "[fe80::1%3]:8001");
    let targets: TargetRange = "a-b.example.com:90-92".parse().unwrap();
    assert_eq!(
        (targets.count, targets.to_string()),
        (3, "a-b.example.com:90-92".to_owned())
    );
    assert_eq!(targets.nth(2).to_string(), "a-b.example.com:92");
    for (text, expected) in [
        ("a-b.example.com:92", true),
        ("a-b.example.com:93", false),
        ("a:90", false),
        ("unix:/a", false),
    ] {
        assert_eq!(targets.contains(&text.parse().unwrap()), expected, "{text}");
    }
    let one: TargetRange = "192.0.2.1:90".parse().unwrap();
    assert_eq!(one.nth(2).to_string(), "192.0.2.1:90", "one target is everybody's");
}

#[test]
fn an_invalid_port_range_is_refused() {
    for text in [
        ":2-1",
        ":0-1",
        ":1-",
        ":-1",
        ":1-65536",
        ":1-2-3",
        "fd:web:1-2",
        ":1-+2",
        "a:1-:2",
    ] {
        assert!(text.parse::<ListenRange>().is_err(), "{text}");
    }
    assert!("a:0-1".parse::<TargetRange>().is_err());
}

#[test]
fn an_address_in_place_of_a_name_is_an_address() {
    assert_eq!(
        Target::named("127.0.0.1", 1),
        Some(Target::Ip(([127, 0, 0, 1], 1).into()))
    );
    assert_eq!(
        Target::named("::1", 1),
        Some(Target::Ip((std::net::Ipv6Addr::LOCALHOST, 1).into()))
    );
    assert_eq!(Target::named(&"a".repeat(256), 1), None);
    assert!(Target::named(&"a".repeat(255), 1).is_some());
}
