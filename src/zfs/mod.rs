//! Both ends of the pipe: what is on a pool, `zfs send`, `zfs receive`, and the check of a stream in passing.
//!
//! No shell: every child is started by argument vector, names are validated, and output is parsed from the
//! `-H -p` form.

pub mod change;
pub mod choice;
pub mod command;
pub mod message;
pub mod names;
pub mod output;
pub mod plan;
pub mod receive;
pub mod remote;
pub mod send;
pub mod stream;
