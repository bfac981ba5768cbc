//! Reads on threads: each is blocked in one `pread` at a time, and there are as many as reads were under way at once.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::engine::{Answer, Job, MAX_READ, aligned};
use super::scheduler::ReadError;

/// What each thread needs of stack: it calls one function.
const STACK: usize = 128 * 1024;

/// The threads and what they are to do.
#[derive(Debug)]
pub struct Threads {
    shared: Arc<Shared>,
    answers: Receiver<Answer>,
    sender: Sender<Answer>,
    started: usize,
    under_way: usize,
}

#[derive(Debug)]
struct Shared {
    files: Vec<File>,
    jobs: Mutex<Option<VecDeque<Job>>>,
    ready: Condvar,
}

impl Threads {
    /// No thread is started before there is something to read.
    pub fn new(files: Vec<File>) -> Self {
        let (sender, answers) = channel();
        let shared = Shared { files, jobs: Mutex::new(Some(VecDeque::new())), ready: Condvar::new() };
        Self { shared: Arc::new(shared), answers, sender, started: 0, under_way: 0 }
    }

    /// Hands a read to a thread.
    pub fn push(&mut self, job: Job) -> io::Result<()> {
        self.under_way += 1;
        if self.under_way > self.started {
            let (shared, sender) = (Arc::clone(&self.shared), self.sender.clone());
            let work = move || shared.work(&sender);
            match thread::Builder::new().name("read".into()).stack_size(STACK).spawn(work) {
                Ok(_) => self.started += 1,
                // Fewer threads are slower, and nothing else.
                Err(error) if self.started == 0 => return Err(error),
                Err(error) => tracing::debug!("{} threads and no more: {error}", self.started),
            }
        }
        if let Some(jobs) = self.shared.lock().as_mut() {
            jobs.push_back(job);
        }
        self.shared.ready.notify_one();
        Ok(())
    }

    /// Waits for an answer, and takes all that are there.
    pub fn wait(&mut self, patience: Duration, answers: &mut Vec<Answer>) {
        match self.answers.recv_timeout(patience) {
            Ok(answer) => answers.push(answer),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
        }
        answers.extend(self.answers.try_iter());
        self.under_way -= answers.len().min(self.under_way);
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        *self.shared.lock() = None;
        self.shared.ready.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<VecDeque<Job>>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, answers: &Sender<Answer>) {
        let mut buffer = vec![0u8; 2 * MAX_READ];
        while let Some(job) = self.next() {
            let into = aligned(&mut buffer, MAX_READ / 2, job.length as usize);
            let result = match self.files[job.file].read_at(into, job.offset) {
                Ok(bytes) => Ok(bytes as u32),
                Err(error) => Err(ReadError::System(error.raw_os_error().unwrap_or(0))),
            };
            if answers.send(Answer { ticket: job.ticket, result }).is_err() {
                return;
            }
        }
    }

    fn next(&self) -> Option<Job> {
        let mut jobs = self.lock();
        loop {
            match jobs.as_mut()?.pop_front() {
                Some(job) => return Some(job),
                None => jobs = self.ready.wait(jobs).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}
