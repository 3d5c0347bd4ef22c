//! What a relay makes of system calls that fail, whichever of them and however: the calls are made to fail from outside our code.

mod broken_pipe; // SIGPIPE where nobody ignores it
mod interrupted; // signals all the time, sinks that take little
mod matrix; // call × errno × when, as a table
mod row;
mod scenario;
