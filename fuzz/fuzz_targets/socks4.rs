//! Any bytes that a client may send as a SOCKS4 request.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spliceway_scenario::socks4;

fuzz_target!(|bytes: &[u8]| socks4(bytes));
