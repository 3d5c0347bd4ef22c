//! Relays of the core, without a runtime, in any scenario.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spliceway_scenario::{Plan, over_splicers};

fuzz_target!(|plan: Plan| over_splicers(&plan));
