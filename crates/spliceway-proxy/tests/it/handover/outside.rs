//! What others see of a process: files, answers and descriptors.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

use serde_json::Value;

use crate::admin::Socket;
use crate::harness::{Folder, PATIENCE, Program, let_pass};

/// A folder with the sockets of a program, and its admin socket.
pub(super) struct Sockets {
    pub(super) folder: Folder,
    pub(super) admin: Socket,
}

/// The state of a program. It is equal as long as nothing has changed.
#[derive(Debug, PartialEq)]
pub(super) struct Outside {
    /// The name, the inode and the mode of each file in the folder.
    files: Vec<(String, u64, u32)>,
    status: Value,
    descriptors: usize,
}

impl Sockets {
    pub(super) fn new(name: &str) -> Self {
        Self {
            folder: Folder::new(&format!("handover-{name}")),
            admin: Socket::new(),
        }
    }

    /// Returns the address of the socket with this name.
    pub(super) fn address(&self, name: &str) -> String {
        format!("unix:{}", self.folder.0.join(name).display())
    }

    /// Returns the state of the program now.
    pub(super) fn outside(&self, program: &Program) -> Outside {
        let (code, status) = self.admin.ask("GET", "/v1/status");
        assert_eq!(code, 200, "{status}");
        let services: Vec<Value> = status["services"]
            .as_array()
            .unwrap()
            .iter()
            .map(|service| ["name", "state", "listen"].map(|key| service[key].clone()).into())
            .collect();
        let status = Value::from(vec![
            status["pid"].clone(),
            status["state"].clone(),
            status["sessions"]["active"].clone(),
            services.into(),
        ]);
        let mut files = self.files(&self.folder.0);
        files.extend(self.files(self.admin.path()));
        Outside {
            files,
            status,
            descriptors: program.descriptors(),
        }
    }

    fn files(&self, path: &Path) -> Vec<(String, u64, u32)> {
        let of = |path: &Path| {
            let found = fs::symlink_metadata(path).unwrap();
            (path.display().to_string(), found.ino(), found.mode() & 0o7777)
        };
        if !path.is_dir() {
            return vec![of(path)];
        }
        let entries = fs::read_dir(path).unwrap().map(|entry| of(&entry.unwrap().path()));
        let mut files: Vec<_> = entries.collect();
        files.sort();
        files
    }

    /// Waits until the program is as it was. Descriptors close shortly after an answer.
    pub(super) fn await_as_before(&self, program: &Program, before: &Outside) {
        let until = Instant::now() + PATIENCE;
        loop {
            let now = self.outside(program);
            if now == *before {
                return;
            }
            assert!(Instant::now() < until, "{now:#?} instead of {before:#?}");
            let_pass(std::time::Duration::from_millis(2));
        }
    }
}
