//! Initialises volumes made from snapshots: each block comes in when it is first read, so each gets one small read, as
//! many at once as the volume can take.
//!
//! An island: it knows nothing of backups, needs no configuration and no key, and never writes to a device. From top to
//! bottom: [`target`] finds the volumes below what a person names, [`device`] opens one, [`plan`] says which blocks in
//! which order, [`scheduler`] what is read next (with [`depth`]: how many at once), [`engine`] carries the reads, and
//! [`drive`] joins them.

#![warn(missing_docs)]

pub mod blocks;
pub mod blockset;
pub mod depth;
pub mod device;
pub mod drive;
pub mod engine;
pub mod first;
pub mod latency;
pub mod plan;
pub mod scheduler;
pub mod state;
pub mod target;
pub mod threads;
pub mod uring;
pub mod verify;
