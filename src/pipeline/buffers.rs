//! Large buffers that are used again: a fresh one costs a page fault for every 4 KiB.

use std::sync::{Arc, Mutex, PoisonError};

/// A heap of buffers shared by the threads of a pipeline.
#[derive(Clone, Debug, Default)]
pub struct Buffers(Arc<Mutex<Vec<Vec<u8>>>>);

impl Buffers {
    /// An empty buffer, perhaps with the memory of an earlier one.
    pub fn take(&self) -> Vec<u8> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    /// Gives a buffer back.
    pub fn give(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
    }
}
