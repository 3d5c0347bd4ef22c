//! The behaviour of a relay when system calls fail, whichever of them and however. The faults come
//! from outside the code under test.

mod broken_pipe; // SIGPIPE in a process that does not ignore it
mod interrupted; // signals all the time, sinks that take little
mod matrix; // call × errno × when, as a table
mod row;
mod scenario;
