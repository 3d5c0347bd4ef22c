//! Passes the compiler version to the program, because instruction counts are valid for one
//! compiler.

use std::env;
use std::process::Command;

fn main() {
    let rustc = env::var_os("RUSTC").expect("cargo names the compiler");
    let said = Command::new(rustc)
        .arg("--version")
        .output()
        .expect("the compiler runs");
    println!(
        "cargo::rustc-env=SPLICEWAY_RUSTC={}",
        String::from_utf8_lossy(&said.stdout).trim()
    );
    println!("cargo::rerun-if-changed=build.rs");
}
