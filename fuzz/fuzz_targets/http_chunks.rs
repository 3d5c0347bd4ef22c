//! Any bytes that a client may send as a chunked body.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spliceway_scenario::http_chunks;

fuzz_target!(|bytes: &[u8]| http_chunks(bytes));
