//! What goes wrong with a read, as the settings have it.

use std::collections::{HashMap, HashSet};

use fuser::Errno;

use super::settings::Settings;

/// How a read ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With all that was asked for.
    Whole,
    /// With the first 512 bytes.
    Short,
    /// Without anything.
    Failed(Errno),
}

/// The faults that are left.
pub struct Faults {
    bad: HashSet<u64>,
    flaky: HashMap<u64, u32>,
    hang: HashSet<u64>,
    short: HashSet<u64>,
    gone_after: Option<u64>,
    gone_error: Errno,
}

impl Faults {
    /// All that are set.
    pub fn new(settings: &Settings) -> Self {
        Self {
            bad: settings.bad.iter().copied().collect(),
            flaky: settings.flaky.clone(),
            hang: settings.hang.iter().copied().collect(),
            short: settings.short.iter().copied().collect(),
            gone_after: settings.gone_after,
            gone_error: Errno::from_i32(settings.gone_error.raw_os_error()),
        }
    }

    /// Whether the read with this number, from 1, finds no disk any more.
    pub fn gone(&self, read: u64) -> Option<Outcome> {
        self.gone_after.is_some_and(|last| read > last).then_some(Outcome::Failed(self.gone_error))
    }

    /// What comes of reading this chunk; what goes wrong so many times does so once less from here on.
    pub fn meet(&mut self, chunk: u64) -> Outcome {
        if self.bad.contains(&chunk) {
            return Outcome::Failed(Errno::EIO);
        }
        if let Some(left) = self.flaky.get_mut(&chunk).filter(|left| **left > 0) {
            *left -= 1;
            return Outcome::Failed(Errno::EIO);
        }
        if self.short.remove(&chunk) { Outcome::Short } else { Outcome::Whole }
    }

    /// Whether reads of this chunk get no answer.
    pub fn hangs(&self, chunk: u64) -> bool {
        self.hang.contains(&chunk)
    }

    /// No read hangs any more.
    pub fn release(&mut self) {
        self.hang.clear();
    }
}
