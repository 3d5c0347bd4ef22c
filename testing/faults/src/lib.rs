//! Makes system calls fail from outside the code that makes them: the kernel asks a thread of this
//! crate about each of them.
//!
//! ```text
//!   thread under test ── splice, pipe2, … ──▶ kernel ── seccomp user notification ──▶ supervisor
//!                     ◀── an errno, a value, or the call's own outcome ──  (first matching rule)
//! ```
//!
//! [`Faults::on_this_thread`] puts a filter on the calling thread, on threads it starts from then
//! on and on programs those start (seccomp(2), `SECCOMP_RET_USER_NOTIF`). All other threads, and
//! all other system calls, go at full speed. So a test covers the product as it ships, without a
//! hook in it.
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
//! [`SignalStorm`] interrupts a thread some thousand times a second, so that its calls return
//! `EINTR` and short counts.
//!
//! This crate cannot shorten a call (small socket buffers do), and does not filter threads that run
//! already. A thread has one [`Faults`] in its life, because the kernel gives each chain of filters
//! one listener. The crate needs Linux 5.9 on x86-64 or AArch64.

mod call;
mod faults;
mod rule;
mod storm;
mod sys;

pub use call::Call;
pub use faults::{Faults, Seen};
pub use rule::{Fault, Rule, When};
pub use storm::SignalStorm;
pub use sys::{die_of_broken_pipes, ignores_broken_pipes, in_fork, set_low_water_mark};
