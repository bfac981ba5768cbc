//! One writing run at a time for each repository and machine.

use std::fs::{File, TryLockError};
use std::path::Path;

use anyhow::{Context as _, Result};

use super::Context;
use crate::error::{Exit, Problem};
use crate::profile::make_private_dir;

/// Held until it is dropped, or until the process ends in whatever way.
#[derive(Debug)]
pub struct RunLock(#[allow(dead_code)] File);

impl RunLock {
    /// Takes the lock, but not for a dry run, which changes nothing and is in nobody's way.
    pub fn take_to_change(context: &Context, state: &Path) -> Result<Option<Self>> {
        if context.dry_run { Ok(None) } else { Self::take(state).map(Some) }
    }

    /// Takes the lock of the state folder `state`, or fails at once.
    pub fn take(state: &Path) -> Result<Self> {
        make_private_dir(state)?;
        let path = state.join("lock");
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let file = file.with_context(|| format!("cannot open the lock {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => Ok(Self(file)),
            Err(TryLockError::WouldBlock) => {
                Err(Problem::new(Exit::Busy, "another run on this repository is under way")
                    .hint("try again when it has ended")
                    .into())
            }
            Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("cannot lock {}", path.display())),
        }
    }
}
