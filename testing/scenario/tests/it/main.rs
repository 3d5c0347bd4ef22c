//! What must hold in a scenario holds in those drawn at random, and in those that the fuzzers kept.

use std::path::{Path, PathBuf};
use std::{env, fs};

use proptest::prelude::*;
use spliceway_scenario::{Plan, address, over_movers, over_tokio, socks5};

/// Of each kind. `PROPTEST_CASES` is for longer searches.
const CASES: u32 = 250;

/// Shrinks with the bytes it is drawn from.
fn plans() -> impl Strategy<Value = Plan> {
    prop::collection::vec(any::<u8>(), 0..160).prop_map(|bytes| Plan::from_bytes(&bytes))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn all_that_must_hold_does_in_random_scenarios_over_tokio(plan in plans()) {
        over_tokio(&plan);
    }

    #[test]
    fn all_that_must_hold_does_in_random_scenarios_over_movers(plan in plans()) {
        over_movers(&plan);
    }

    #[test]
    fn a_handshake_is_decided_by_its_bytes_however_they_are_cut(bytes in handshakes()) {
        socks5(&bytes);
    }

    #[test]
    fn an_address_that_is_accepted_reads_back(text in r"[\[\]:.a-f0-9-]{0,40}|\PC{0,20}") {
        address(&text);
    }
}

fn cases() -> u32 {
    let asked = env::var("PROPTEST_CASES").ok();
    asked.and_then(|cases| cases.parse().ok()).unwrap_or(CASES)
}

/// Bytes that are mostly those of a handshake, as random ones never come past its first.
fn handshakes() -> impl Strategy<Value = Vec<u8>> {
    let usual = prop::sample::select(vec![0, 1, 2, 3, 4, 5, 10, b'a', b'.', 255]);
    prop::collection::vec(prop_oneof![4 => usual, 1 => any::<u8>()], 0..40).prop_map(|mut bytes| {
        for (place, byte) in [(1, 5), (2, 1), (3, 0), (4, 5), (5, 1)] {
            if bytes.len() > place + 10 {
                bytes[place] = byte;
            }
        }
        bytes
    })
}

#[test]
fn all_that_must_hold_does_in_what_the_fuzzers_kept() {
    for (name, bytes) in kept("relay").chain(kept("mover")) {
        // Shown when it fails.
        println!("{}: {:?}", name.display(), Plan::from_bytes(&bytes));
        over_tokio(&Plan::from_bytes(&bytes));
        over_movers(&Plan::from_bytes(&bytes));
    }
    kept("socks5").for_each(|(_, bytes)| socks5(&bytes));
    for (_, bytes) in kept("address") {
        std::str::from_utf8(&bytes).into_iter().for_each(address);
    }
}

/// The inputs in the repository for a fuzz target, of which there are some.
fn kept(target: &str) -> impl Iterator<Item = (PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)
        .expect("a folder of inputs")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "no inputs for {target}");
    paths.into_iter().map(|path| {
        let bytes = fs::read(&path).expect("an input");
        (path, bytes)
    })
}
