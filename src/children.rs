//! The processes that this one started and has not yet reaped, so that a signal can end them.
//!
//! Children run in process groups of their own: Ctrl-C at a terminal reaches this program alone, which then
//! decides how each of them ends.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, kill_process_group};

static RUNNING: Mutex<Vec<Pid>> = Mutex::new(Vec::new());
static ENDING: AtomicBool = AtomicBool::new(false);
static HALF_WRITTEN: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A started process that is known to [`end_all`] until it was waited for. Dropping it kills and reaps it.
#[derive(Debug)]
pub struct TrackedChild {
    child: Child,
    pid: Pid,
    reaped: Option<ExitStatus>,
}

impl TrackedChild {
    /// Starts `command` in a process group of its own.
    pub fn spawn(command: &mut Command) -> io::Result<Self> {
        let child = command.process_group(0).spawn()?;
        let pid = Pid::from_child(&child);
        running().push(pid);
        Ok(Self { child, pid, reaped: None })
    }

    /// The process itself, to take its pipes.
    pub fn inner(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Waits for the end of the process.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.reaped {
            return Ok(status);
        }
        let status = self.child.wait()?;
        self.forget(status);
        Ok(status)
    }

    /// The exit status, if the process has ended.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.reaped.is_none()
            && let Some(status) = self.child.try_wait()?
        {
            self.forget(status);
        }
        Ok(self.reaped)
    }

    /// Ends the process and everything in its group, then reaps it.
    ///
    /// The caller must have dropped its end of the process's output before: an old `zfs send` that is blocked
    /// on a full pipe does not die of a signal until the pipe is closed (OpenZFS issue 12500).
    pub fn kill(&mut self) {
        if self.reaped.is_none() {
            let _ = kill_process_group(self.pid, Signal::KILL);
            let _ = self.wait();
        }
    }

    fn forget(&mut self, status: ExitStatus) {
        self.reaped = Some(status);
        running().retain(|pid| *pid != self.pid);
    }
}

impl Drop for TrackedChild {
    fn drop(&mut self) {
        drop(self.child.stdout.take());
        self.kill();
    }
}

/// A file that is removed when a signal stops this program before it has its final name.
pub fn remove_on_stop(path: &Path) {
    HALF_WRITTEN.lock().unwrap_or_else(PoisonError::into_inner).push(path.to_owned());
}

/// Asks every running child to end, and removes half-written files. Called once, when this program stops.
pub fn end_all() {
    ENDING.store(true, Ordering::SeqCst);
    for path in HALF_WRITTEN.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        // It has its final name already, if all went well.
        let _ = std::fs::remove_file(path);
    }
    for pid in running().iter() {
        let _ = kill_process_group(*pid, Signal::TERM);
    }
}

/// Whether this program is being stopped: what fails from then on is no failure of its own.
pub fn is_ending() -> bool {
    ENDING.load(Ordering::SeqCst)
}

fn running() -> MutexGuard<'static, Vec<Pid>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}
