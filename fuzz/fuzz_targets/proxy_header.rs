//! Any bytes that a load balancer may send before its client's bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spliceway_scenario::proxy_header;

fuzz_target!(|bytes: &[u8]| proxy_header(bytes));
