//! Any bytes that a DNS client may send.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spliceway_scenario::dns;

fuzz_target!(|bytes: &[u8]| dns(bytes));
