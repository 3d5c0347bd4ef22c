//! The program `spliceway`; see the library beside it.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    spliceway_proxy::main()
}
