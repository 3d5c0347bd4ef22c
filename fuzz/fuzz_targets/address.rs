//! Any text that a user may type as an address.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spliceway_scenario::address;

fuzz_target!(|text: &str| address(text));
