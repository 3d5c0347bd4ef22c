//! Any bytes that a target answers a request with.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spliceway_scenario::http_answer;

fuzz_target!(|bytes: &[u8]| http_answer(bytes));
