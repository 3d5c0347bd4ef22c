//! Changes of the files while the program runs.

use std::time::{Duration, Instant};

use super::*;
use crate::harness::let_pass;

impl Machine {
    /// Waits until the program connects to this address of a name.
    fn await_address(&self, program: &Program, name: &str, address: &str) {
        let (until, address) = (Instant::now() + PATIENCE, address.parse().ok());
        while self.connected(program, name) != address {
            assert!(Instant::now() < until, "{name} does not become {address:?}");
            let_pass(Duration::from_millis(50));
        }
    }

    /// Replaces a file as editors and DHCP clients do.
    fn replace(&self, file: &str, text: &str) {
        let new = self.etc.0.join("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.etc.0.join(file)).unwrap();
    }
}

#[test]
fn changes_of_the_files_count_without_a_reload() {
    let Some(machine) = Machine::new("changes") else { return };
    machine.write("hosts", "192.0.2.1 a\n");
    machine.first.has("b.", &["192.0.2.1"]);
    machine.second.has("b.", &["192.0.2.2"]);
    let mut program = machine.socks5(&[]);
    machine.await_address(&program, "a", "192.0.2.1");
    machine.write("hosts", "192.0.2.2 a\n");
    machine.await_address(&program, "a", "192.0.2.2");
    machine.replace("hosts", "192.0.2.1 a\n");
    machine.await_address(&program, "a", "192.0.2.1");
    machine.await_address(&program, "b", "192.0.2.1");
    machine.replace("resolv.conf", "nameserver 127.0.0.3\n");
    machine.await_address(&program, "b", "192.0.2.2");
    machine.replace("nsswitch.conf", "hosts: files\n");
    machine.await_address(&program, "b", "none");
    machine.replace("nsswitch.conf", "hosts: files dns\n");
    machine.await_address(&program, "b", "192.0.2.2");
    // A file that is gone keeps its last meaning.
    std::fs::remove_file(machine.etc.0.join("resolv.conf")).unwrap();
    std::fs::remove_file(machine.etc.0.join("hosts")).unwrap();
    let _ = machine.connected(&program, "b");
    let until = Instant::now() + PATIENCE;
    while program.lines_with("cannot read a file about names") < 2 {
        assert!(Instant::now() < until, "no warnings");
        assert_eq!(machine.connected(&program, "b"), "192.0.2.2".parse().ok());
        let_pass(Duration::from_millis(50));
    }
    assert_eq!(machine.connected(&program, "a"), "192.0.2.1".parse().ok());
}

#[test]
fn with_no_reload_a_change_of_resolv_conf_does_not_count() {
    let Some(machine) = Machine::new("no-reload") else {
        return;
    };
    machine.write("resolv.conf", "nameserver 127.0.0.2\noptions no-reload\n");
    machine.write("hosts", "192.0.2.1 a\n");
    machine.first.has("b.", &["192.0.2.1"]);
    let program = machine.socks5(&[]);
    machine.await_address(&program, "b", "192.0.2.1");
    machine.write("resolv.conf", "nameserver 127.0.0.3\n");
    machine.write("hosts", "192.0.2.2 a\n");
    machine.await_address(&program, "a", "192.0.2.2");
    assert_eq!(machine.connected(&program, "b"), "192.0.2.1".parse().ok());
}
