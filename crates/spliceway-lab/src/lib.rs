//! What `spliceway` finds out about a machine: `doctor` tries what zero copy needs, and `bench`
//! compares splice with copies, and TLS in user space with TLS in the kernel.
//!
//! The crate knows nothing of the server. Its caller raises the limit on descriptors first, and
//! prints errors.
#![forbid(unsafe_code)]

pub mod bench;
pub mod doctor;
pub mod kernel_tls;
mod report;
