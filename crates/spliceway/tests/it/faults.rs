//! The behaviour of a relay when any of its system calls fails in any way. The faults are injected
//! from outside the code under test.

// `SIGPIPE` in a process that does not ignore it.
mod broken_pipe;
// Frequent signals, and sinks that accept few bytes.
mod interrupted;
// A table of call × errno × time.
mod matrix;
mod row;
mod scenario;
