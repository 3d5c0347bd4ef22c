//! Any bytes that a TLS client may send first.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spliceway_scenario::tls;

fuzz_target!(|bytes: &[u8]| tls(bytes));
