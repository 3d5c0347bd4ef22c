//! Programs with other libraries of TLS. The sources of those with Go and Java are with the tests,
//! which build them where they run. A guest has no compiler.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::image::{Image, find_program};
use crate::{Folders, at, output};

/// The sources, from the root of the repository.
const SOURCES: &str = "crates/spliceway-proxy/tests/it/tls/peers/own";

/// Programs of packages.
const PACKAGED: [&str; 3] = ["gnutls-cli", "tstclnt", "certutil"];

/// The modules that NSS loads by their names, from the folder of its libraries.
const NSS: [&str; 3] = ["libsoftokn3.so", "libfreebl3.so", "libfreeblpriv3.so"];

/// Where a guest has the part of Java that the program needs, with its class.
const JAVA: &str = "/opt/java";

impl Image {
    /// Adds the programs that this machine has or can build.
    pub(crate) fn add_peers(&self, folders: &Folders) -> Result<(), String> {
        let sources = folders.root.join(SOURCES);
        if let Some(go) = find_program("go") {
            let to = self.within(Path::new("/usr/bin/spliceway-peer-go"));
            let mut build = Command::new(go);
            build.args(["build", "-o"]).arg(to).arg(".").env("CGO_ENABLED", "0");
            output(build.current_dir(&sources))?;
        }
        for program in PACKAGED.iter().filter_map(|name| find_program(name)) {
            self.add_program(&program, &program)?;
        }
        for module in NSS.map(|name| Path::new("/usr/lib/x86_64-linux-gnu").join(name)) {
            if module.exists() {
                self.add_program(&module, &module)?;
            }
        }
        if let Some((javac, jlink)) = find_program("javac").zip(find_program("jlink")) {
            self.add_java(&javac, &jlink, &sources.join("Peer.java"))?;
        }
        Ok(())
    }

    fn add_java(&self, javac: &Path, jlink: &Path, source: &Path) -> Result<(), String> {
        let to = self.within(Path::new(JAVA));
        self.make(Path::new("/opt"))?;
        let mut link = Command::new(jlink);
        link.args(["--add-modules", "java.base,jdk.crypto.ec", "--strip-debug", "--output"]);
        output(link.arg(&to))?;
        output(Command::new(javac).arg("-d").args([&to, source]))?;
        for part in ["bin/java", "lib/server/libjvm.so"] {
            self.add_libraries(&to.join(part))?;
        }
        // An emulated processor compiles slowly.
        let script = format!("#!/bin/sh\nexec {JAVA}/bin/java -XX:TieredStopAtLevel=1 -cp {JAVA} Peer \"$@\"\n");
        let path = "/usr/bin/spliceway-peer-java";
        self.write(path, &script)?;
        let path = self.within(Path::new(path));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(at(&path))
    }
}
