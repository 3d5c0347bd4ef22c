//! Any bytes that a client may send as a SOCKS5 datagram.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spliceway_scenario::socks5_datagram;

fuzz_target!(|bytes: &[u8]| socks5_datagram(bytes));
