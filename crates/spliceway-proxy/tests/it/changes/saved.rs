//! Services whose tables the program writes to files.

use std::fs;
use std::process::Command;

use super::*;
use crate::harness::Folder;

/// A program whose configuration is a folder.
pub(super) struct Rig {
    pub(super) socket: Socket,
    pub(super) target: SocketAddr,
    pub(super) folder: Folder,
}

impl Rig {
    pub(super) fn new(name: &str) -> Self {
        let (socket, target) = (Socket::new(), echo("127.0.0.1:0"));
        let folder = Folder::new(name);
        folder.file("main.toml", &config(&socket, target));
        Self { socket, target, folder }
    }

    pub(super) fn run(&self) -> Program {
        let mut command = Command::new(env!("CARGO_BIN_EXE_spliceway"));
        command.args(["run", "-c"]).arg(&self.folder.0);
        Program::spawn(command, true)
    }

    pub(super) fn text(&self, file: &str) -> String {
        fs::read_to_string(self.folder.0.join(file)).unwrap()
    }

    pub(super) fn names(&self) -> Vec<String> {
        let names = fs::read_dir(&self.folder.0).unwrap();
        let mut names: Vec<_> = names
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

#[test]
fn a_saved_service_outlives_the_program_until_it_is_removed() {
    let rig = Rig::new("saved");
    let (socket, target) = (&rig.socket, rig.target);
    let mut program = rig.run();
    let mut table = forward(target);
    table["backend"] = json!([{"to": target.to_string(), "weight": 2}]);
    table.as_object_mut().unwrap().remove("to");
    let added = send(socket, "PUT /v1/services/web?persist", &[], &table);
    assert_eq!(added.status, 201, "{added:?}");
    let expected = format!(
        "# spliceway wrote this file, and replaces it when the service changes. To stop that, remove this line.\n\
         [[service]]\nname = \"web\"\nkind = \"forward\"\nlisten = \"127.0.0.1:0\"\n\n\
         [[service.backend]]\nto = \"{target}\"\nweight = 2\n"
    );
    assert_eq!(rig.text("web.toml"), expected);
    assert_eq!(rig.names(), ["main.toml", "web.toml"]);
    // It has the same version wherever it is.
    assert!(program.reload().contains("nothing has changed"));
    let shown = send(socket, "GET /v1/services/web", &[], &Value::Null);
    assert_eq!(shown.etag, added.etag);
    let listen = address(socket, "web");
    let next = upgrade(&mut program, None);
    assert_eq!(address(socket, "web"), listen);
    next.signal(rustix::process::Signal::TERM);
    next.ends();
    // A person may edit the file.
    let edited = rig.text("web.toml").replace("weight = 2", "weight = 3");
    fs::write(rig.folder.0.join("web.toml"), edited).unwrap();
    let _program = rig.run();
    exchange(&reach(socket, "web"));
    let shown = send(socket, "GET /v1/services", &[], &Value::Null);
    let services = shown.body["services"].as_array().unwrap();
    let web = services.iter().find(|service| service["name"] == "web").unwrap();
    assert_eq!(
        (&web["place"], &web["table"]["backend"][0]["weight"]),
        (&json!("own-file"), &json!(3))
    );
    // A change of a saved service is saved.
    let changed = send(socket, "PATCH /v1/services/web", &[], &json!({"deny": "10.0.0.0/8"}));
    // The answers name the file.
    let path = rig.folder.0.join("web.toml").display().to_string();
    let expected = format!("changed web; wrote {path}");
    assert_eq!((changed.status, changed.text()), (200, &*expected));
    assert!(rig.text("web.toml").contains("deny = \"10.0.0.0/8\"\n"));
    let dry = send(socket, "DELETE /v1/services/web?dry-run", &[], &Value::Null);
    assert!(dry.text().starts_with("dry run: removed web"), "{dry:?}");
    assert_eq!(rig.names(), ["main.toml", "web.toml"]);
    let removed = socket.command(&["service", "rm", "web", "--persist"]);
    let removed = String::from_utf8(removed.stdout).unwrap();
    assert!(removed.ends_with(&format!("; removed {path}\n")), "{removed}");
    assert_eq!(rig.names(), ["main.toml"]);
}

#[test]
fn files_of_a_person_are_never_replaced_or_removed() {
    let rig = Rig::new("foreign");
    let socket = &rig.socket;
    let service = |name: &str| {
        let target = rig.target;
        format!("[[service]]\nname = \"{name}\"\nkind = \"forward\"\nlisten = \"127.0.0.1:0\"\nto = \"{target}\"\n")
    };
    let mark = "# spliceway wrote this file.\n";
    let comment = "# spliceway of the team for the web\n";
    rig.folder.file("mine.toml", &[comment, &service("mine")].concat());
    rig.folder
        .file("two.toml", &[mark, &service("a"), &service("b")].concat());
    rig.folder.file("web.toml", &service("other"));
    let _program = rig.run();
    let before: Vec<_> = rig.names().iter().map(|name| rig.text(name)).collect();
    for request in [
        "DELETE /v1/services/mine",
        "DELETE /v1/services/a",
        "DELETE /v1/services/first?persist",
        "PUT /v1/services/mine?persist",
        "PUT /v1/services/web?persist",
        "PUT /v1/services/.hidden?persist",
    ] {
        let refused = send(socket, request, &[], &forward(rig.target));
        assert_eq!(refused.status, 409, "{request}: {refused:?}");
    }
    let both = json!({"x": forward(rig.target), "y": forward(rig.target)});
    assert_eq!(send(socket, "PATCH /v1/services?persist", &[], &both).status, 409);
    let after: Vec<_> = rig.names().iter().map(|name| rig.text(name)).collect();
    assert_eq!(before, after);
    assert!(address(socket, "x").is_none());
    // A single file has no folder for others.
    let other = Socket::new();
    let (_program, _file) = start(&other, rig.target);
    let refused = send(&other, "PUT /v1/services/web?persist", &[], &forward(rig.target));
    assert!(
        refused.text().starts_with("the configuration is no folder"),
        "{refused:?}"
    );
}

#[test]
fn a_file_that_a_person_has_edited_since_is_never_replaced_or_removed() {
    let rig = Rig::new("edited");
    let socket = &rig.socket;
    let mut program = rig.run();
    let added = send(socket, "PUT /v1/services/web?persist", &[], &forward(rig.target));
    assert_eq!(added.status, 201, "{added:?}");
    let edited = rig.text("web.toml") + "deny = \"192.0.2.1\" # by Ann\n";
    rig.folder.file("web.toml", &edited);
    let deny = json!({"deny": "10.0.0.0/8"});
    for (request, body) in [("PATCH", &deny), ("DELETE", &Value::Null)] {
        let refused = send(socket, &format!("{request} /v1/services/web"), &[], body);
        assert_eq!(refused.status, 409, "{refused:?}");
        assert!(refused.text().ends_with("reload, and try again"), "{refused:?}");
        assert_eq!(rig.text("web.toml"), edited);
    }
    exchange(&reach(socket, "web"));
    assert!(program.reload().contains("changed web"));
    assert_eq!(send(socket, "PATCH /v1/services/web", &[], &deny).status, 200);
    assert_eq!(
        send(socket, "PATCH /v1/services/web", &[], &json!({"check": "connect"})).status,
        200
    );
    assert_eq!(send(socket, "DELETE /v1/services/web", &[], &Value::Null).status, 200);
    assert_eq!(rig.names(), ["main.toml"]);
}

#[test]
fn commands_save_a_service_and_remove_its_file() {
    let rig = Rig::new("saved-by-command");
    let mut program = rig.run();
    let (listen, to) = ("listen=127.0.0.1:0", format!("to={}", rig.target));
    let add = ["service", "add", "web", "kind=forward", listen, &to, "--persist"];
    assert!(rig.socket.command(&add).status.success());
    let set = ["service", "set", "web", "check=connect", "check_rise=3"];
    assert!(rig.socket.command(&set).status.success());
    let text = rig.text("web.toml");
    let (_, table) = text.split_once('\n').unwrap();
    let expected = format!(
        "[[service]]\nname = \"web\"\nkind = \"forward\"\nlisten = \"127.0.0.1:0\"\nto = \"{}\"\ncheck = \"connect\"\ncheck_rise = 3\n",
        rig.target
    );
    assert_eq!(table, expected);
    program.kill();
    let _program = rig.run();
    exchange(&reach(&rig.socket, "web"));
    assert!(rig.socket.command(&["service", "rm", "web"]).status.success());
    assert_eq!(rig.names(), ["main.toml"]);
}
