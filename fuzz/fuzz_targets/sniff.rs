//! Any bytes that a client of an unknown protocol may send first.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spliceway_scenario::sniff;

fuzz_target!(|bytes: &[u8]| sniff(bytes));
