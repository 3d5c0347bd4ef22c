use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use socket2::SockRef;
use spliceway_net::{Net, Offloads};
use tokio::net::TcpListener;

use super::*;

async fn listener(ip: &str) -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((ip, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn errno(failed: &SocketError) -> Option<Errno> {
    Errno::from_io_error(&failed.error)
}

#[tokio::test]
async fn connections_go_out_from_the_source_of_their_family() {
    let (listener, address) = listener("127.0.0.1").await;
    let settings = SocketSettings {
        source_v4: Some(Ipv4Addr::new(127, 0, 0, 2)),
        ..SocketSettings::default()
    };
    let (accepted, connected) = tokio::join!(listener.accept(), settings.connect(address, None));
    connected.unwrap();
    assert_eq!(accepted.unwrap().1.ip(), Ipv4Addr::new(127, 0, 0, 2));
}

#[tokio::test]
async fn a_target_is_not_reached_from_a_source_of_another_family() {
    let settings = SocketSettings {
        source_v4: Some(Ipv4Addr::LOCALHOST),
        ..SocketSettings::default()
    };
    let target = SocketAddr::from((Ipv6Addr::LOCALHOST, 1));
    let failed = settings.connect(target, None).await.unwrap_err();
    assert_eq!((failed.call, errno(&failed)), (Call::Source, Some(Errno::AFNOSUPPORT)));
}

#[tokio::test]
async fn a_missing_source_address_is_named_in_the_error() {
    let settings = SocketSettings {
        source_v4: Some(Ipv4Addr::new(192, 0, 2, 1)),
        ..SocketSettings::default()
    };
    let target = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let failed = settings.connect(target, None).await.unwrap_err();
    assert_eq!((failed.call, errno(&failed)), (Call::Source, Some(Errno::ADDRNOTAVAIL)));
    assert!(failed.to_string().contains("source address"), "{failed}");
}

#[tokio::test]
async fn connections_have_nodelay_and_the_keepalive_of_the_settings() {
    let (_listener, address) = listener("127.0.0.1").await;
    for keepalive in [None, Some(Duration::from_secs(77))] {
        let settings = SocketSettings {
            keepalive,
            ..SocketSettings::default()
        };
        let (stream, _) = settings.connect(address, None).await.unwrap();
        let options = SockRef::from(&stream);
        assert!(options.tcp_nodelay().unwrap());
        assert_eq!(options.keepalive().unwrap(), keepalive.is_some());
        if let Some(silence) = keepalive {
            assert_eq!(options.tcp_keepalive_time().unwrap(), silence);
            assert_eq!(options.tcp_keepalive_interval().unwrap(), silence);
        }
    }
}

#[tokio::test]
async fn connections_are_bound_to_the_interface() {
    let (_listener, address) = listener("127.0.0.1").await;
    let bound_to = |name: &str| SocketSettings {
        interface: Some(name.into()),
        ..SocketSettings::default()
    };
    let (stream, _) = bound_to("lo").connect(address, None).await.unwrap();
    assert_eq!(SockRef::from(&stream).device().unwrap().as_deref(), Some(&b"lo"[..]));
    let failed = bound_to("missing0").connect(address, None).await.unwrap_err();
    assert_eq!((failed.call, errno(&failed)), (Call::Interface, Some(Errno::NODEV)));
    assert!(failed.to_string().contains("interface"), "{failed}");
    bound_to("missing0").probe().expect("it may come yet");
}

/// Without the privilege, the program does not start, and the error names the privilege.
#[tokio::test]
async fn connections_carry_the_mark_or_the_start_fails() {
    let (_listener, address) = listener("127.0.0.1").await;
    let settings = SocketSettings {
        mark: Some(7),
        ..SocketSettings::default()
    };
    match settings.probe() {
        Ok(()) => {
            let (stream, _) = settings.connect(address, None).await.unwrap();
            assert_eq!(SockRef::from(&stream).mark().unwrap(), 7);
        }
        Err(error) => {
            assert!(error.to_string().contains("CAP_NET_ADMIN"), "{error}");
            assert_eq!(settings.connect(address, None).await.unwrap_err().call, Call::Mark);
        }
    }
}

/// Runs `work` in a network namespace after these `ip` commands, if namespaces are permitted.
fn in_namespace<F: Future<Output = ()>>(setup: &[&str], work: impl FnOnce() -> F) {
    let Some(net) = Net::chain(1, Offloads::On) else { return };
    let setup: Vec<String> = setup.iter().map(ToString::to_string).collect();
    net.node(0).ip(&setup).unwrap();
    net.node(0).inside(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(work());
    });
}

#[test]
fn routes_follow_the_mark() {
    let setup = [
        "rule add fwmark 7 table 77",
        "route add prohibit 198.51.100.0/24 table 77",
        "route add unreachable 198.51.100.0/24",
    ];
    in_namespace(&setup, || async {
        for (mark, expected) in [
            (None, Errno::HOSTUNREACH),
            (Some(7), Errno::ACCESS),
            (Some(8), Errno::HOSTUNREACH),
        ] {
            let settings = SocketSettings {
                mark,
                ..SocketSettings::default()
            };
            let failed = settings.connect(([198, 51, 100, 1], 9).into(), None).await.unwrap_err();
            assert_eq!(
                (failed.call, errno(&failed)),
                (Call::Connect, Some(expected)),
                "{mark:?}"
            );
        }
    });
}

#[test]
fn the_interface_setting_chooses_among_interfaces_of_one_network() {
    let setup = [
        "link add one type veth peer name two",
        "addr add 10.78.0.1/24 dev one",
        "addr add 10.78.0.2/24 dev two",
        "link set one up",
        "link set two up",
    ];
    in_namespace(&setup, || async {
        for (interface, source) in [("one", [10, 78, 0, 1]), ("two", [10, 78, 0, 2])] {
            let settings = SocketSettings {
                interface: Some(interface.into()),
                ..SocketSettings::default()
            };
            // No host has this address. The local address shows which interface the kernel chose
            // for the connection.
            let socket = settings.new_socket([10, 78, 0, 9].into(), None).unwrap();
            let connecting = socket.connect(&SocketAddr::from(([10, 78, 0, 9], 9)).into());
            assert_eq!(
                connecting.unwrap_err().raw_os_error(),
                Some(Errno::INPROGRESS.raw_os_error())
            );
            let local = socket.local_addr().unwrap().as_socket().unwrap();
            assert_eq!(local.ip(), IpAddr::from(source), "{interface}");
        }
    });
}

#[test]
fn connections_from_one_source_to_several_targets_share_its_ports() {
    const TARGETS: usize = 3;
    const PORTS: usize = 4;
    in_namespace(&[], || async {
        for source in ["127.0.0.2", "::1"] {
            let source: IpAddr = source.parse().unwrap();
            let mut targets = Vec::new();
            for _ in 0..TARGETS {
                targets.push(listener(if source.is_ipv4() { "127.0.0.1" } else { "::1" }).await);
            }
            let range = "/proc/sys/net/ipv4/ip_local_port_range";
            let before = std::fs::read(range).unwrap();
            std::fs::write(range, "20000 20003").unwrap();
            let settings = SocketSettings {
                keeps_client: true,
                ..SocketSettings::default()
            };
            let mut connected = Vec::new();
            for (_, target) in targets.iter().cycle().take(TARGETS * PORTS) {
                connected.push(settings.connect(*target, Some(source)).await.unwrap());
            }
            let local = connected.iter().map(|(stream, _)| stream.local_addr().unwrap());
            assert!(local.into_iter().all(|address| address.ip() == source));
            std::fs::write(range, before).unwrap();
        }
    });
}

/// Without the check, the kernel connects some of these sockets to themselves: it chooses the port
/// of the target as the source.
#[test]
fn a_connection_to_itself_is_a_refused_connection() {
    in_namespace(&[], || async {
        std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "20000 20007").unwrap();
        for (ip, is_transparent) in [
            ("127.0.0.1", false),
            ("127.0.0.1", true),
            ("0.0.0.0", false),
            ("::1", false),
        ] {
            let target = SocketAddr::new(ip.parse().unwrap(), 20002);
            let settings = SocketSettings {
                is_transparent,
                ..SocketSettings::default()
            };
            for _ in 0..100 {
                let failed = settings.connect(target, None).await.unwrap_err();
                assert_eq!((failed.call, errno(&failed)), (Call::Connect, Some(Errno::CONNREFUSED)));
            }
            // No connection has left the port in TIME_WAIT, which lasts 60 s. A program that
            // another test starts has a copy of the last socket until it executes.
            let service = Socket::new(Domain::for_address(target), Type::STREAM, None).unwrap();
            let until = Instant::now() + Duration::from_secs(20);
            while let Err(error) = service.bind(&target.into()) {
                assert!(Instant::now() < until, "{target}: {error}");
                std::thread::yield_now();
            }
        }
    });
}
