//! Whatever a client sends as a datagram of SOCKS5.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spliceway_scenario::socks5_datagram;

fuzz_target!(|bytes: &[u8]| socks5_datagram(bytes));
