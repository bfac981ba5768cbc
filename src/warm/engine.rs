//! What carries reads to devices and brings them back: a ring, or threads where there is none.

use std::fs::File;
use std::io;
use std::time::Duration;

use super::scheduler::ReadError;
use super::threads::Threads;
use super::uring::Ring;

/// The largest read (bytes): two halves across a border, on a device of 64 KiB sectors.
pub const MAX_READ: usize = 128 * 1024;

/// A read for an engine.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// Comes back with the result.
    pub ticket: u32,
    /// Which of the files.
    pub file: usize,
    /// Bytes from its beginning.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
}

/// A read that has come back. What was read is of no interest.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// As it was given.
    pub ticket: u32,
    /// Bytes, or why not.
    pub result: Result<u32, ReadError>,
}

/// Either of them.
#[derive(Debug)]
pub enum Engine {
    /// io_uring.
    Ring(Box<Ring>),
    /// `pread` on as many threads as reads are under way.
    Threads(Threads),
}

/// Which engine is to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineChoice {
    /// A ring, or threads where that is refused.
    Auto,
    /// A ring or an error.
    Ring,
    /// Threads.
    Threads,
}

impl Engine {
    /// For reads of `files`, at most `depth` of them at once. Tells why it is threads if it is not by choice.
    pub fn new(choice: EngineChoice, files: Vec<File>, depth: u32) -> io::Result<(Self, Option<String>)> {
        if choice == EngineChoice::Threads {
            return Ok((Self::Threads(Threads::new(files)), None));
        }
        match Ring::new(&files, depth) {
            Ok(mut ring) => {
                ring.keep(files);
                Ok((Self::Ring(Box::new(ring)), None))
            }
            Err(error) if choice == EngineChoice::Ring => Err(error),
            Err(error) => Ok((Self::Threads(Threads::new(files)), Some(error.to_string()))),
        }
    }

    /// What it is called.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ring(_) => "io_uring",
            Self::Threads(_) => "threads",
        }
    }

    /// Reads at idle I/O priority from here on; `false` where this engine can't.
    pub fn be_idle(&mut self) -> bool {
        match self {
            Self::Ring(ring) => {
                ring.be_idle();
                true
            }
            Self::Threads(_) => false,
        }
    }

    /// Takes a read; it may wait for [`Self::wait`] to be issued.
    pub fn push(&mut self, job: Job) -> io::Result<()> {
        match self {
            Self::Ring(ring) => ring.push(job),
            Self::Threads(threads) => threads.push(job),
        }
    }

    /// Issues what was pushed, and waits for at least one answer, or until `patience` is over.
    pub fn wait(&mut self, patience: Duration, answers: &mut Vec<Answer>) -> io::Result<()> {
        match self {
            Self::Ring(ring) => ring.wait(patience, answers),
            Self::Threads(threads) => {
                threads.wait(patience, answers);
                Ok(())
            }
        }
    }
}

/// A piece of `length` bytes in `buffer` that begins at a multiple of `alignment`, as direct reads want it.
pub fn aligned(buffer: &mut [u8], alignment: usize, length: usize) -> &mut [u8] {
    let from = buffer.as_ptr().align_offset(alignment);
    &mut buffer[from..from + length]
}
