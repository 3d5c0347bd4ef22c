//! Zones of link-local addresses, by the name and by the number of an interface.

use super::*;
use crate::harness::refused_to_start;

impl Machine {
    /// Returns the number of the interface `outer`.
    fn outer(&self) -> String {
        let mut command = Command::new("ip");
        let output = self.inside(|| command.args(["-o", "link", "show", "outer"]).output().unwrap());
        let text = String::from_utf8(output.stdout).unwrap();
        text.split(':').next().unwrap().to_owned()
    }
}

#[test]
fn a_name_server_may_have_a_zone() {
    let Some(machine) = Machine::new("zone-server") else {
        return;
    };
    let server = NameServer::default();
    let scope = machine.outer();
    machine.inside(|| {
        let at: SocketAddr = format!("[fe80::53%{scope}]:53").parse().unwrap();
        server.serve(UdpSocket::bind(at).unwrap(), TcpListener::bind(at).unwrap());
    });
    server.has("a.example.", &["192.0.2.1"]);
    for zone in ["outer", &scope] {
        machine.write("resolv.conf", format!("nameserver fe80::53%{zone}\n"));
        machine.same("a.example", &["192.0.2.1"]);
        for dns in [format!("fe80::53%{zone}"), format!("[fe80::53%{zone}]:53")] {
            let program = machine.socks5(&["--dns", &dns]);
            assert_eq!(
                machine.connected(&program, "a.example"),
                "192.0.2.1".parse().ok(),
                "{dns}"
            );
        }
    }
}

#[test]
fn listeners_targets_and_upstream_proxies_may_have_a_zone() {
    let Some(machine) = Machine::new("zones") else { return };
    let scope = machine.outer();
    let inner: IpAddr = "fe80::53".parse().unwrap();
    for zone in ["outer", &scope] {
        let to = format!("[fe80::53%{zone}]:{}", machine.port());
        let at = format!("[fe80::53%{zone}]:0");
        let proxy = machine.start(&["socks5", "-l", &at, "--open", "--allow-private"]);
        let forward = machine.start(&["forward", "-l", &at, "-r", &to, "-r", &to.replace("::53", "::54")]);
        let _client = machine.inside(|| forward.connect());
        assert_eq!(accept(&machine.target).local_addr().unwrap().ip(), inner);
        let port = proxy.address.port();
        for url in [
            format!("socks5://[fe80::53%25{zone}]:{port}"),
            format!("socks5://[fe80::53%{zone}]:{port}"),
        ] {
            let chain = machine.start(&[
                "forward",
                "-l",
                "127.0.0.1:0",
                "-r",
                &format!("192.0.2.1:{}", machine.port()),
                "-x",
                &url,
            ]);
            let _client = machine.inside(|| chain.connect());
            assert_eq!(
                accept(&machine.target).local_addr().unwrap().ip().to_canonical(),
                ips(&["192.0.2.1"]).pop_first().unwrap()
            );
        }
        let (target, address) = machine.inside(|| {
            datagrams(
                to.replace("outer", &scope)
                    .replace(&format!(":{}", machine.port()), ":0")
                    .parse::<SocketAddr>()
                    .unwrap(),
            )
        });
        let to = format!("[fe80::53%{zone}]:{}", address.port());
        let forward = machine.start(&["forward", "--udp", "-l", "127.0.0.1:0", "-r", &to]);
        let (client, _) = machine.inside(|| datagrams("127.0.0.1:0"));
        client.send_to(b"zone", forward.address).unwrap();
        assert_eq!(target.recv(&mut [0; 8]).unwrap(), 4);
    }
}

#[test]
fn an_unknown_interface_is_an_error_that_says_so() {
    let wrong = "[fe80::1%no-such]:0";
    for arguments in [
        &["forward", "-l", "127.0.0.1:0", "-r", wrong][..],
        &["forward", "-l", wrong, "-r", "127.0.0.1:0"],
        &["socks5", "-l", "127.0.0.1:0", "-x", "socks5://[fe80::1%no-such]:1"],
        &["socks5", "-l", "127.0.0.1:0", "--dns", "fe80::1%no-such"],
        &["socks5", "-l", "127.0.0.1:0", "--dns", "127.0.0.1,[fe80::1%no-such]:53"],
    ] {
        let error = refused_to_start(arguments);
        assert!(
            error.contains("not the name or number of an interface"),
            "{arguments:?}: {error}"
        );
    }
}
