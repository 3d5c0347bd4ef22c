//! Tells the program which compiler it is from: counts of instructions hold for one.

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
