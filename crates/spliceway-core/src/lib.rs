#![cfg(target_os = "linux")]
//! core
mod pipe;
mod pool;
mod reason;
pub mod socket;
mod sys;
pub use pipe::*;
pub use pool::*;
pub use reason::*;
