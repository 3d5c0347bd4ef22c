//! Any file that an operator may name as a certificate, a key or a list of revoked certificates.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spliceway_scenario::pem;

fuzz_target!(|text: &[u8]| pem(text));
