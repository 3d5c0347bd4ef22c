//! A new process that a test plays, message by message.
//!
//! ```text
//!   program ── starts ──▶ script ── becomes ──▶ this test program: copies bytes ◀──▶ test
//! ```

use std::env;
use std::fs;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Command;
use std::thread;

use crate::harness::{Folder, PATIENCE, Program};

const SOCKET: &str = "SPLICEWAY_TEST_SOCKET";
const PROGRAM: &str = "SPLICEWAY_TEST_PROGRAM";

/// What the program starts at an upgrade.
pub(super) struct Next {
    listener: UnixListener,
    link: PathBuf,
    _folder: Folder,
}

/// The socket of the new process.
pub(super) struct New(UnixStream);

impl Next {
    pub(super) fn new(name: &str) -> Self {
        let folder = Folder::new(&format!("next-{name}"));
        let link = folder.0.join("spliceway");
        symlink(env!("CARGO_BIN_EXE_spliceway"), &link).unwrap();
        Self {
            listener: UnixListener::bind(folder.0.join("socket")).unwrap(),
            link,
            _folder: folder,
        }
    }

    /// Starts the program, with these arguments.
    pub(super) fn start(&self, arguments: &[&str]) -> Program {
        let mut command = Command::new(&self.link);
        command.args(arguments);
        let socket = self.listener.local_addr().unwrap();
        command.env(SOCKET, socket.as_pathname().unwrap());
        command.env(PROGRAM, env::current_exe().unwrap());
        Program::spawn(command, arguments.contains(&"--metrics"))
    }

    /// The next process is this script.
    pub(super) fn is_script(&self, script: &str) {
        fs::remove_file(&self.link).unwrap();
        fs::write(&self.link, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&self.link, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// The test plays the next process.
    pub(super) fn is_played(&self) {
        self.is_script(&format!(
            "exec \"${PROGRAM}\" --exact handover::fake::a_process_that_a_test_plays"
        ));
    }

    pub(super) fn is_the_program(&self) {
        fs::remove_file(&self.link).unwrap();
        symlink(env!("CARGO_BIN_EXE_spliceway"), &self.link).unwrap();
    }

    /// Returns the new process that the program has started.
    pub(super) fn accept(&self) -> New {
        let (socket, _) = self.listener.accept().unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        New(socket)
    }
}

impl New {
    /// Returns the next message with its data, or `None` at the end.
    pub(super) fn hear(&mut self) -> Option<(String, Vec<u8>)> {
        let mut head = [0; 8];
        self.0.read_exact(&mut head).ok()?;
        let length = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap()) as usize;
        let (mut message, mut data) = (vec![0; length(&head[..4])], vec![0; length(&head[4..])]);
        self.0.read_exact(&mut message).ok()?;
        self.0.read_exact(&mut data).ok()?;
        Some((String::from_utf8(message).unwrap(), data))
    }

    /// Returns the next message with this name.
    pub(super) fn hear_one(&mut self, name: &str) -> (String, Vec<u8>) {
        loop {
            let (message, data) = self.hear().unwrap_or_else(|| panic!("no {name}"));
            if name_of(&message) == name {
                return (message, data);
            }
        }
    }

    pub(super) fn say(&mut self, message: &str) {
        let length = u32::try_from(message.len()).unwrap().to_le_bytes();
        let frame = [&length[..], &[0; 4], message.as_bytes()].concat();
        // The program may have ended.
        let _ = self.0.write_all(&frame);
    }
}

/// Returns the name of a message.
pub(super) fn name_of(message: &str) -> &str {
    message.trim_start_matches(['{', '"']).split('"').next().unwrap()
}

/// The process that the program starts. In an ordinary run of the tests, it does nothing.
#[test]
fn a_process_that_a_test_plays() {
    let Some(path) = env::var_os(SOCKET) else { return };
    let test = UnixStream::connect(path).unwrap();
    let old = UnixStream::from(io::stdin().as_fd().try_clone_to_owned().unwrap());
    thread::spawn({
        let (old, test) = (old.try_clone().unwrap(), test.try_clone().unwrap());
        move || {
            let _ = io::copy(&mut &old, &mut &test);
            let _ = test.shutdown(Shutdown::Write);
        }
    });
    let _ = io::copy(&mut &test, &mut &old);
}
