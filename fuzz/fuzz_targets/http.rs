//! Any bytes that a client may send as an HTTP request.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spliceway_scenario::http;

fuzz_target!(|bytes: &[u8]| http(bytes));
