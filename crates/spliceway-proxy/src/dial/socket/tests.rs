use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use socket2::SockRef;
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
    let (accepted, connected) = tokio::join!(listener.accept(), settings.connect(address));
    connected.unwrap();
    assert_eq!(accepted.unwrap().1.ip(), Ipv4Addr::new(127, 0, 0, 2));
}

#[tokio::test]
async fn a_target_of_another_family_than_the_source_is_not_reached() {
    let settings = SocketSettings {
        source_v4: Some(Ipv4Addr::LOCALHOST),
        ..SocketSettings::default()
    };
    let target = SocketAddr::from((Ipv6Addr::LOCALHOST, 1));
    let failed = settings.connect(target).await.unwrap_err();
    assert_eq!((failed.call, errno(&failed)), (Call::Source, Some(Errno::AFNOSUPPORT)));
}

#[tokio::test]
async fn a_source_that_this_machine_does_not_have_is_named_as_what_failed() {
    let settings = SocketSettings {
        source_v4: Some(Ipv4Addr::new(192, 0, 2, 1)),
        ..SocketSettings::default()
    };
    let target = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let failed = settings.connect(target).await.unwrap_err();
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
        let stream = settings.connect(address).await.unwrap();
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
    let stream = bound_to("lo").connect(address).await.unwrap();
    assert_eq!(SockRef::from(&stream).device().unwrap().as_deref(), Some(&b"lo"[..]));
    let failed = bound_to("missing0").connect(address).await.unwrap_err();
    assert_eq!((failed.call, errno(&failed)), (Call::Interface, Some(Errno::NODEV)));
    assert!(failed.to_string().contains("interface"), "{failed}");
    bound_to("missing0").probe().expect("it may come yet");
    for impossible in ["", "sixteen-bytes-it-", "a/b", "a b"] {
        assert!(
            bound_to(impossible).probe().is_err(),
            "{impossible:?} would bind to another, or to none"
        );
    }
}

/// Where the privilege is missing, that is what the start of the program says.
#[tokio::test]
async fn connections_carry_the_mark_or_the_start_fails() {
    let (_listener, address) = listener("127.0.0.1").await;
    let settings = SocketSettings {
        mark: Some(7),
        ..SocketSettings::default()
    };
    match settings.probe() {
        Ok(()) => {
            let stream = settings.connect(address).await.unwrap();
            assert_eq!(SockRef::from(&stream).mark().unwrap(), 7);
        }
        Err(error) => {
            assert!(error.to_string().contains("CAP_NET_ADMIN"), "{error}");
            assert_eq!(settings.connect(address).await.unwrap_err().call, Call::Mark);
        }
    }
}

/// A network namespace that lives as long as a child that reads from a pipe of ours.
struct Namespace {
    file: File,
    keeper: Child,
}

impl Namespace {
    /// `setup` is a script of sh. `None` where that is not allowed; says so.
    fn new(setup: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can make network namespaces");
            return None;
        }
        let script = format!("set -e; ip link set lo up; {setup}; echo made; exec cat");
        let mut keeper = Command::new("unshare")
            .args(["--net", "sh", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("unshare, of util-linux: {error}"));
        let mut said = String::new();
        BufReader::new(keeper.stdout.take().unwrap())
            .read_line(&mut said)
            .unwrap();
        if said != "made\n" {
            let output = keeper.wait_with_output().unwrap();
            let why = String::from_utf8_lossy(&output.stderr);
            assert!(why.contains("Operation not permitted"), "no network namespace: {why}");
            println!("skipped: {}", why.trim_end());
            return None;
        }
        let file = File::open(format!("/proc/{}/ns/net", keeper.id())).unwrap();
        Some(Self { file, keeper })
    }

    /// Runs `work` on a thread of its own, in this namespace.
    fn inside<F: Future<Output = ()>>(&self, work: impl FnOnce() -> F + Send) {
        let entered = || {
            move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(work());
        };
        let done = std::thread::scope(|scope| scope.spawn(entered).join());
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Its input ends, so it does.
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

#[test]
fn routes_follow_the_mark() {
    let setup = "ip rule add fwmark 7 table 77; ip route add prohibit 198.51.100.0/24 table 77; \
                 ip route add unreachable 198.51.100.0/24";
    let Some(namespace) = Namespace::new(setup) else { return };
    namespace.inside(|| async {
        for (mark, expected) in [
            (None, Errno::HOSTUNREACH),
            (Some(7), Errno::ACCESS),
            (Some(8), Errno::HOSTUNREACH),
        ] {
            let settings = SocketSettings {
                mark,
                ..SocketSettings::default()
            };
            let failed = settings.connect(([198, 51, 100, 1], 9).into()).await.unwrap_err();
            assert_eq!(
                (failed.call, errno(&failed)),
                (Call::Connect, Some(expected)),
                "{mark:?}"
            );
        }
    });
}

#[test]
fn the_interface_decides_where_one_address_is_on_several() {
    let setup = "ip link add one type veth peer name two; \
                 ip addr add 10.78.0.1/24 dev one; ip addr add 10.78.0.2/24 dev two; \
                 ip link set one up; ip link set two up";
    let Some(namespace) = Namespace::new(setup) else { return };
    namespace.inside(|| async {
        for (interface, source) in [("one", [10, 78, 0, 1]), ("two", [10, 78, 0, 2])] {
            let settings = SocketSettings {
                interface: Some(interface.into()),
                ..SocketSettings::default()
            };
            // Nobody has that address: where it goes out is what the kernel chose when it was asked to connect.
            let socket = settings.open([10, 78, 0, 9].into()).unwrap();
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
