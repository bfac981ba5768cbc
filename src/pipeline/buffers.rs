//! Large buffers that are used again: a fresh one costs a page fault for every 4 KiB.

use std::sync::{Arc, Mutex, PoisonError};

/// A heap of buffers shared by the threads of a pipeline.
#[derive(Clone, Debug, Default)]
pub struct Buffers(Arc<Mutex<Vec<Vec<u8>>>>);

impl Buffers {
    /// A buffer, perhaps an earlier one with what it held: whoever takes it clears or overwrites it.
    pub fn take(&self) -> Vec<u8> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    /// Gives a buffer back.
    pub fn give(&self, buffer: Vec<u8>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
    }
}
