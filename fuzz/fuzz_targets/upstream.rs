//! Any bytes that an upstream proxy may send as its answers.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spliceway_scenario::upstream;

fuzz_target!(|bytes: &[u8]| upstream(bytes));
