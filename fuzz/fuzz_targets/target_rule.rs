//! Any text that an operator may type as a target rule.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spliceway_scenario::target_rule;

fuzz_target!(|text: &str| target_rule(text));
