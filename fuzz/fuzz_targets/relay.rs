//! Relays of the tokio layer in any scenario.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spliceway_scenario::{Plan, over_tokio};

fuzz_target!(|plan: Plan| over_tokio(&plan));
