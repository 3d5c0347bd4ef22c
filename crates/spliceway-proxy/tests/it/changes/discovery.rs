//! The scripts of `contrib/discovery`, with a program and servers that speak the formats of Docker,
//! Consul and Nomad.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use spliceway_net::has_tool;

use super::*;
use crate::harness::{Folder, contrib};

/// A script that runs until the value is dropped.
struct Script {
    child: Child,
    lines: Receiver<String>,
}

impl Script {
    /// Starts a script that finds the program, and before it the programs in this folder.
    fn start(name: &str, arguments: &[&str], socket: &Socket, folder: &Folder, address: (&str, &str)) -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_spliceway")).parent().unwrap();
        let path = std::env::var("PATH").unwrap();
        let path = format!("{}:{}:{path}", folder.0.display(), program.display());
        let mut command = Command::new(contrib("discovery").join(name));
        command
            .args(arguments)
            .env("PATH", path)
            .env("SPLICEWAY_ADMIN", socket.address());
        command.env(address.0, address.1).env("no_proxy", "*");
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || {
            let mut lines = stdout.lines().map_while(Result::ok);
            lines.try_for_each(|line| sender.send(line))
        });
        Self { child, lines }
    }

    /// Waits for the line about the next change.
    fn expect(&self, expected: &str) {
        let line = self.lines.recv_timeout(PATIENCE).unwrap();
        assert!(line.starts_with(expected), "{expected}: {line}");
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a target that sends one byte to each client.
fn target(byte: u8) -> u16 {
    let (listener, address) = listen();
    thread::spawn(move || {
        let mut clients = Vec::new();
        for mut client in listener.incoming().map_while(Result::ok) {
            let _ = client.write_all(&[byte]);
            // The session stays open, so the next client gets another target.
            clients.push(client);
        }
    });
    address.port()
}

/// Returns the bytes of as many targets as there are sessions.
fn reached(socket: &Socket, name: &str, sessions: usize) -> BTreeSet<u8> {
    let mut clients: Vec<_> = (0..sessions).map(|_| reach(socket, name)).collect();
    clients.iter_mut().map(|client| read_exactly(client, 1)[0]).collect()
}

/// The labels of containers with this address to listen on, and this port.
fn labels(listen: &str, port: u16) -> Value {
    json!({"maintainer": "ann", "spliceway.listen": listen, "spliceway.port": port.to_string()})
}

/// A container, as `docker inspect` prints it.
fn container(labels: &Value, network: &str, is_running: bool) -> Value {
    let has_address = is_running && network == "bridge";
    let (address, state) = if has_address {
        ("127.0.0.1", "running")
    } else {
        ("", "exited")
    };
    json!({
        "Id": "8dfafdbc3a40".repeat(5),
        "Name": "/web-1",
        "State": {"Status": state, "Running": is_running, "Paused": false, "Restarting": false},
        "Config": {"Image": "nginx", "Labels": labels},
        "NetworkSettings": {
            "Ports": {"80/tcp": null},
            "Networks": {network: {"IPAddress": address, "IPPrefixLen": 16, "Gateway": "172.17.0.1"}},
        },
    })
}

/// The part of Docker that the script uses.
struct Docker {
    folder: Folder,
    /// The pipe of the events.
    events: Option<File>,
}

impl Docker {
    const PROGRAM: &str = r#"#!/bin/sh
folder=$(dirname "$0")
case "$*" in
"ps --all --quiet --filter label=spliceway.listen") cat "$folder/ids" ;;
"inspect "*)
    cat "$folder/containers"
    # Every second time, a container has vanished meanwhile.
    rmdir "$folder/all-exist" 2>/dev/null || { mkdir "$folder/all-exist"; exit 1; } ;;
"events --since "*" --format {{json .}} --filter type=container --filter label=spliceway.listen --filter event=start --filter event=die")
    exec cat "$folder/events" ;;
*) echo "docker: unknown command: $*" >&2; exit 1 ;;
esac
"#;

    fn new() -> Self {
        let folder = Folder::new("docker");
        folder.file("docker", Self::PROGRAM);
        fs::set_permissions(folder.0.join("docker"), fs::Permissions::from_mode(0o755)).unwrap();
        Self { folder, events: None }
    }

    /// Sets the containers.
    fn set(&self, containers: &[Value]) {
        let ids = (0..containers.len()).map(|number| format!("{number:012x}\n"));
        self.folder.file("ids", &ids.collect::<String>());
        self.folder.file("containers", &json!(containers).to_string());
    }

    fn send_event(&self, action: &str, container: &Value) {
        let mut attributes = container["Config"]["Labels"].clone();
        attributes["image"] = "nginx".into();
        attributes["name"] = "web-1".into();
        let id = "8dfafdbc3a40".repeat(5);
        let event = json!({
            "status": action, "id": id, "from": "nginx", "Type": "container", "Action": action,
            "Actor": {"ID": id, "Attributes": attributes},
            "scope": "local", "time": 1_795_771_200, "timeNano": 1_795_771_200_123_456_789_u64,
        });
        writeln!(self.events.as_ref().unwrap(), "{event}").unwrap();
    }

    /// Starts the script, with another pipe than that of the script before.
    fn discover(&mut self, socket: &Socket) -> Script {
        let path = self.folder.0.join("events");
        let _ = fs::remove_file(&path);
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        // A pipe that is open for both does not wait for the other side.
        self.events = Some(File::options().read(true).write(true).open(path).unwrap());
        Script::start("docker", &[], socket, &self.folder, ("DOCKER_HOST", ""))
    }
}

#[test]
fn containers_with_a_label_are_targets_while_they_run() {
    if !has_tool("python3", "python3") {
        return;
    }
    let socket = Socket::new();
    let (_program, _file) = start(&socket, echo("127.0.0.1:0"));
    let [one, other] = [b'a', b'b'].map(|byte| labels("127.0.0.1:0", target(byte)));
    let [a, b] = [&one, &other].map(|labels| container(labels, "bridge", true));
    let c = container(&labels("127.0.0.2:0", target(b'c')), "host", true);
    let [a_ended, c_ended] =
        [(&one, "bridge"), (&c["Config"]["Labels"], "host")].map(|(labels, network)| container(labels, network, false));
    let mut docker = Docker::new();
    let isolated = container(&labels("127.0.0.1:0", target(b'i')), "none", true);
    docker.set(&[a.clone(), isolated]);
    let script = docker.discover(&socket);
    script.expect("added docker-127-0-0-1-0; listens on 127.0.0.1:");
    assert_eq!(reached(&socket, "docker-127-0-0-1-0", 2), [b'a'].into());
    // A label must not add another target.
    let mut hostile = labels("127.0.0.1:0", 9);
    hostile["spliceway.port"] = "9 unix:/run/spliceway/admin.sock".into();
    docker.set(&[a.clone(), container(&hostile, "bridge", true), b.clone()]);
    docker.send_event("start", &b);
    script.expect("skipped: expected labels such as spliceway.listen=:8080");
    script.expect("changed docker-127-0-0-1-0");
    assert_eq!(reached(&socket, "docker-127-0-0-1-0", 2), [b'a', b'b'].into());
    docker.set(&[a_ended.clone(), b]);
    docker.send_event("die", &a_ended);
    script.expect("changed docker-127-0-0-1-0");
    assert_eq!(reached(&socket, "docker-127-0-0-1-0", 2), [b'b'].into());
    // The script misses the events of a while.
    drop(script);
    docker.set(&[a_ended, c.clone()]);
    let script = docker.discover(&socket);
    script.expect("removed docker-127-0-0-1-0; no longer listens on 127.0.0.1:");
    script.expect("added docker-127-0-0-2-0; listens on 127.0.0.2:");
    assert_eq!(reached(&socket, "docker-127-0-0-2-0", 1), [b'c'].into());
    docker.set(&[c_ended]);
    docker.send_event("die", &c);
    script.expect("removed docker-127-0-0-2-0");
    exchange(&reach(&socket, "first"));
}

/// A server that answers when the test tells it.
struct Catalog {
    listener: TcpListener,
    url: String,
    /// The path before the index, and the field of the answer that has the index.
    path: &'static str,
    field: &'static str,
}

impl Catalog {
    fn new(path: &'static str, field: &'static str) -> Self {
        let (listener, address) = listen();
        let url = format!("http://{address}");
        Self {
            listener,
            url,
            path,
            field,
        }
    }

    /// Returns the next request, which must wait for a state after this index.
    fn asked(&self, index: u64) -> TcpStream {
        let mut client = accept(&self.listener);
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.extend(read_exactly(&mut client, 1));
        }
        let expected = format!("GET {}&index={index} HTTP/1.1\r\n", self.path);
        let head = String::from_utf8(head).unwrap();
        assert!(head.starts_with(&expected), "{expected}: {head}");
        client
    }

    fn answer(&self, mut client: TcpStream, index: u64, instances: &Value) {
        let (field, body) = (self.field, instances.to_string());
        let length = body.len();
        write!(
            client,
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n{field}: {index}\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
    }
}

/// Runs a script against a catalog whose instances appear and disappear.
fn follow(script: &str, variable: &str, catalog: &Catalog, instance: fn(&str, u16) -> Value) {
    if !has_tool("python3", "python3") {
        return;
    }
    let (socket, folder) = (Socket::new(), Folder::new(script));
    let (_program, _file) = start(&socket, echo("127.0.0.1:0"));
    let [a, b, c] = [b'a', b'b', b'c'].map(|byte| instance(&(byte as char).to_string(), target(byte)));
    let name = format!("{script}-web");
    let discover = || {
        let address = (variable, &*catalog.url);
        Script::start(script, &["web", "127.0.0.1:0"], &socket, &folder, address)
    };
    let first = discover();
    catalog.answer(catalog.asked(0), 17, &json!([a, b]));
    first.expect(&format!("added {name}; listens on 127.0.0.1:"));
    assert_eq!(reached(&socket, &name, 2), [b'a', b'b'].into());
    let hostile = instance("::9]:80 unix:/run/spliceway/admin.sock [::8", 80);
    catalog.answer(catalog.asked(17), 18, &json!([hostile, b, instance("d", 0)]));
    first.expect("skipped: expected a host and a port, found '::9]:80 unix:");
    first.expect("skipped: expected a host and a port");
    first.expect(&format!("changed {name}"));
    assert_eq!(reached(&socket, &name, 2), [b'b'].into());
    let waits = catalog.asked(18);
    // The script misses the changes of a while.
    drop((first, waits));
    let second = discover();
    catalog.answer(catalog.asked(0), 19, &json!([c]));
    second.expect(&format!("changed {name}"));
    assert_eq!(reached(&socket, &name, 2), [b'c'].into());
    // The catalog starts again with a smaller index.
    catalog.answer(catalog.asked(19), 3, &json!([]));
    second.expect(&format!("removed {name}"));
    catalog.answer(catalog.asked(0), 4, &json!([a]));
    second.expect(&format!("added {name}"));
    assert_eq!(reached(&socket, &name, 1), [b'a'].into());
    catalog.asked(4);
}

#[test]
fn healthy_instances_in_consul_are_targets() {
    let catalog = Catalog::new("/v1/health/service/web?passing&wait=5m", "X-Consul-Index");
    follow("consul", "CONSUL_HTTP_ADDR", &catalog, |id, port| {
        // An instance without an address has that of its node.
        let address = match id {
            "a" => "",
            _ if id.len() > 1 => id,
            _ => "127.0.0.1",
        };
        json!({
            "Node": {"ID": "40e4a748-2192-161a-0510-9bf59fe950b5", "Node": "one", "Address": "127.0.0.1",
                     "Datacenter": "dc1", "TaggedAddresses": {"lan": "127.0.0.1", "wan": "127.0.0.1"}},
            "Service": {"ID": id, "Service": "web", "Tags": [], "Address": address, "Port": port,
                        "Weights": {"Passing": 1, "Warning": 1}},
            "Checks": [{"Node": "one", "CheckID": "serfHealth", "Name": "Serf Health Status", "Status": "passing"}],
        })
    });
}

#[test]
fn instances_in_nomad_are_targets() {
    let catalog = Catalog::new("/v1/service/web?wait=5m", "X-Nomad-Index");
    follow("nomad", "NOMAD_ADDR", &catalog, |id, port| {
        json!({
            "Address": if id.len() > 1 { id } else { "127.0.0.1" }, "AllocID": "a831f7f2-4c01-39dc-c742-f2b8ca178a49", "CreateIndex": 10,
            "Datacenter": "dc1", "ID": format!("_nomad-task-{id}-web-http"), "JobID": "web", "ModifyIndex": 10,
            "Namespace": "default", "NodeID": "7406e90b-de16-d118-80fe-60d0f2730cb3", "Port": port,
            "ServiceName": "web", "Tags": [],
        })
    });
}
