//! Makes system calls fail from outside the code that makes them. For each such call, the kernel
//! asks a thread of this crate.
//!
//! ```text
//!   thread under test ── splice, pipe2, … ──▶ kernel ── seccomp user notification ──▶ supervisor
//!                     ◀── an errno, a value, or the call's own outcome ──  (first matching rule)
//! ```
//!
//! [`Faults::on_this_thread`] installs a filter on the calling thread (seccomp(2),
//! `SECCOMP_RET_USER_NOTIF`). The threads that it then starts inherit the filter, and so do the
//! programs that those threads start. All other threads and all other system calls run at full
//! speed. So a test covers the product as it ships, without a hook in it.
//!
//! ```no_run
//! use spliceway_faults::{Call, Fault, Faults, Rule, When};
//!
//! std::thread::spawn(|| {
//!     let rule = Rule::new(Call::SpliceIn, When::Nth(3), Fault::Errno(libc::ENOMEM));
//!     let faults = Faults::on_this_thread(vec![rule, Rule::watch(Call::SpliceOut)])?;
//!     // … relay something on this thread …
//!     assert_eq!(faults.seen(Call::SpliceIn).injected, 1);
//!     assert!(faults.seen(Call::SpliceOut).passed_since > 0, "it was spliced again");
//!     Ok::<_, std::io::Error>(())
//! });
//! ```
//!
//! [`SignalStorm`] interrupts a thread several thousand times per second, so that its calls return
//! `EINTR` and short counts.
//!
//! This crate cannot make a call return a short count (small socket buffers do that). It does not
//! filter threads that already run. A thread can have only one [`Faults`] in its life, because the
//! kernel gives each chain of filters one listener. The crate needs Linux 5.9 on x86-64 or AArch64.

mod call;
mod faults;
mod rule;
mod storm;
mod sys;

pub use call::Call;
pub use faults::{Faults, Seen};
pub use rule::{Fault, Rule, When};
pub use storm::SignalStorm;
pub use sys::{SocketOption, die_of_broken_pipes, ignores_broken_pipes, in_fork, set_option};
