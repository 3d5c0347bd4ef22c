//! Any bytes that a client may send as a SOCKS5 handshake.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spliceway_scenario::socks5;

fuzz_target!(|bytes: &[u8]| socks5(bytes));
