//! Reads through io_uring: one ring for all volumes. The only file with `unsafe`.
//!
//! All reads share one buffer, since nobody looks at what was read; it is never given back, so a read that is still
//! under way when the ring goes has something to write to.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use io_uring::squeue::Entry;
use io_uring::types::{Fd, Fixed, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, opcode};

use super::engine::{Answer, Job, MAX_READ, aligned};
use super::scheduler::ReadError;

/// The submission queue; more reads than this are handed over in several goes.
const ENTRIES: u32 = 1024;
/// The idle class of `ioprio_set(2)`, as the kernel packs it.
const IDLE: u16 = 3 << 13;

/// A ring with the files that are read.
pub struct Ring {
    ring: IoUring,
    files: Vec<File>,
    fds: Vec<i32>,
    registered_files: bool,
    registered_buffer: bool,
    idle: bool,
    buffer: *mut u8,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Ring {
    /// Sets a ring up and looks whether it can read. Refused by old kernels, by seccomp, and by
    /// `kernel.io_uring_disabled`.
    pub fn new(files: &[File], depth: u32) -> io::Result<Self> {
        let entries = depth.clamp(8, ENTRIES).next_power_of_two();
        let completions = depth.saturating_mul(2).clamp(2 * entries, 65_536);
        let ring = modern(entries, completions).or_else(|_| plain(entries, completions))?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Read::CODE) || !ring.params().is_feature_ext_arg() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "the kernel's io_uring is too old"));
        }
        let memory: &'static mut [u8] = Box::leak(vec![0u8; 2 * MAX_READ].into_boxed_slice());
        let buffer = aligned(memory, MAX_READ, MAX_READ).as_mut_ptr();
        let fds: Vec<i32> = files.iter().map(AsRawFd::as_raw_fd).collect();
        let registered_files = ring.submitter().register_files(&fds).is_ok();
        let vector = libc::iovec { iov_base: buffer.cast(), iov_len: MAX_READ };
        // SAFETY: the buffer was leaked above, so it outlives the ring, and nothing else uses it. RLIMIT_MEMLOCK may
        // refuse it; then it is named with each read.
        let registered_buffer = unsafe { ring.submitter().register_buffers(&[vector]) }.is_ok();
        Ok(Self { ring, files: Vec::new(), fds, registered_files, registered_buffer, idle: false, buffer })
    }

    /// Keeps the files open as long as the ring.
    pub fn keep(&mut self, files: Vec<File>) {
        self.files = files;
    }

    /// Reads at idle I/O priority from here on.
    pub fn be_idle(&mut self) {
        self.idle = true;
    }

    /// Puts a read into the submission queue.
    pub fn push(&mut self, job: Job) -> io::Result<()> {
        assert!(job.length as usize <= MAX_READ, "a read of {} bytes", job.length);
        let entry = self.entry(job).user_data(u64::from(job.ticket));
        loop {
            // SAFETY: the descriptor stays open as long as the ring (`files`), and the buffer for ever; `length` was
            // checked against it. Several reads may write to it at once: it is never read.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return Ok(());
            }
            self.ring.submit()?;
        }
    }

    fn entry(&self, job: Job) -> Entry {
        let priority = if self.idle { IDLE } else { 0 };
        let (fd, file) = (Fd(self.fds[job.file]), Fixed(job.file as u32));
        let (buffer, length, offset) = (self.buffer, job.length, job.offset);
        match (self.registered_files, self.registered_buffer) {
            (true, true) => opcode::ReadFixed::new(file, buffer, length, 0).offset(offset).ioprio(priority).build(),
            (false, true) => opcode::ReadFixed::new(fd, buffer, length, 0).offset(offset).ioprio(priority).build(),
            (true, false) => opcode::Read::new(file, buffer, length).offset(offset).ioprio(priority).build(),
            (false, false) => opcode::Read::new(fd, buffer, length).offset(offset).ioprio(priority).build(),
        }
    }

    /// Hands over what was pushed, and waits for an answer, or until `patience` is over.
    pub fn wait(&mut self, patience: Duration, answers: &mut Vec<Answer>) -> io::Result<()> {
        let limit = Timespec::from(patience);
        let submitted = self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&limit));
        match submitted.map_err(|error| error.raw_os_error()) {
            Ok(_) | Err(Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN)) => {}
            Err(errno) => return Err(io::Error::from_raw_os_error(errno.unwrap_or(libc::EIO))),
        }
        answers.extend(self.ring.completion().map(|entry| {
            let result = u32::try_from(entry.result()).map_err(|_| ReadError::System(-entry.result()));
            Answer { ticket: entry.user_data() as u32, result }
        }));
        Ok(())
    }
}

/// One thread submits and reaps, and the kernel's part of the work is done when it asks: Linux 6.1.
fn modern(entries: u32, completions: u32) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.setup_single_issuer().setup_defer_taskrun().setup_cqsize(completions).setup_clamp();
    builder.build(entries)
}

fn plain(entries: u32, completions: u32) -> io::Result<IoUring> {
    IoUring::builder().setup_cqsize(completions).setup_clamp().build(entries)
}
