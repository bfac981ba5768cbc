//! `zfs send` as a reader.

use std::io::{self, Read};
use std::process::{ChildStdout, Stdio};
use std::thread::JoinHandle;

use super::command::{Prepared, Zfs, ZfsError, collect_stderr};
use crate::children::TrackedChild;

/// Asked for the pipe: fewer wake-ups than with the kernel's 64 KiB.
const PIPE_SIZE: usize = 1024 * 1024;

/// A running `zfs send`.
///
/// End of file means that the command ended with status 0; anything else is an error, at the end of the stream
/// and ever after.
pub struct SendStream {
    child: TrackedChild,
    stdout: Option<ChildStdout>,
    stderr: Option<JoinHandle<String>>,
    command: String,
    failed: bool,
}

impl SendStream {
    /// Starts `zfs send` with these arguments (flags, base, snapshot).
    pub fn spawn(zfs: &Zfs, send_args: &[String]) -> Result<Self, ZfsError> {
        let mut args = vec!["send"];
        args.extend(send_args.iter().map(String::as_str));
        let Prepared { mut command, shown } = zfs.command(&args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = TrackedChild::spawn(&mut command).map_err(|error| ZfsError::not_started(&shown, &error))?;
        let stdout = child.inner().stdout.take();
        let stderr = child.inner().stderr.take().map(collect_stderr);
        if let Some(pipe) = &stdout {
            // A smaller pipe is only slower.
            let _ = rustix::pipe::fcntl_setpipe_size(pipe, PIPE_SIZE);
        }
        Ok(Self { child, stdout, stderr, command: shown, failed: false })
    }

    /// Closes our end, waits, and turns any status but 0 into an error.
    fn reap(&mut self) -> io::Result<()> {
        self.stdout = None;
        let status = self.child.wait().ok();
        let stderr = self.stderr.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        if status.is_some_and(|status| status.success()) {
            if !stderr.is_empty() {
                tracing::warn!("{}: {stderr}", self.command);
            }
            return Ok(());
        }
        self.failed = true;
        Err(io::Error::other(ZfsError::ended(self.command.clone(), status, stderr)))
    }
}

impl Read for SendStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.failed {
            return Err(io::Error::other(format!("{} failed", self.command)));
        }
        let Some(stdout) = &mut self.stdout else { return Ok(0) };
        match stdout.read(buf)? {
            0 if !buf.is_empty() => self.reap().map(|()| 0),
            got => Ok(got),
        }
    }
}
