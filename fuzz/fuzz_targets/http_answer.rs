//! Any bytes that a target may send as the answer to a request.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spliceway_scenario::http_answer;

fuzz_target!(|bytes: &[u8]| http_answer(bytes));
