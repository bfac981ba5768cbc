//! No API: this library target exists for the tests, benches and fuzzing of the `snapferry` program, and promises
//! nothing to anybody else.
//!
//! The map: [`commands`] holds one verb a file and joins the islands [`zfs`], [`pipeline`], [`store`] and [`warm`], which
//! never import one another; [`mod@format`] is the bytes at rest and imports nothing of ours. `ARCHITECTURE.md` has
//! the rest.

#![deny(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used)]

pub mod children;
pub mod cli;
pub mod commands;
pub mod error;
pub mod format;
pub mod pipeline;
pub mod profile;
pub mod progress;
pub mod retention;
pub mod signals;
pub mod ssh;
pub mod store;
pub mod warm;
pub mod zfs;
