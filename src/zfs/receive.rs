//! `zfs receive` as a writer.

use std::io::{self, Write};
use std::process::{ChildStdin, Stdio};
use std::thread::JoinHandle;

use super::command::{Prepared, Zfs, ZfsError, collect_stderr};
use super::names::Dataset;
use crate::children::TrackedChild;

/// How a stream is received. `-u` is always given: nothing is mounted, so nothing live is mounted over; and `-s`,
/// so that what an interrupted receive has taken is kept.
#[derive(Clone, Debug)]
pub struct ReceiveOptions {
    /// The dataset that comes to be, or grows.
    pub target: Dataset,
    /// `-F`: over an existing dataset.
    pub force: bool,
    /// `-x mountpoint`: for streams that carry properties, whose mount point may be in use here.
    pub ignore_mountpoint: bool,
}

impl ReceiveOptions {
    /// The arguments after `zfs`.
    pub fn args(&self) -> Vec<&str> {
        let mut args = vec!["receive", "-s", "-u"];
        if self.force {
            args.push("-F");
        }
        if self.ignore_mountpoint {
            args.extend(["-x", "mountpoint"]);
        }
        args.push(self.target.as_str());
        args
    }
}

/// A running `zfs receive`. Nothing counts before [`ReceiveStream::finish`] returned `Ok`.
#[must_use]
pub struct ReceiveStream {
    child: TrackedChild,
    stdin: Option<ChildStdin>,
    stderr: Option<JoinHandle<String>>,
    command: String,
}

impl ReceiveStream {
    /// Starts `zfs receive`.
    pub fn spawn(zfs: &Zfs, options: &ReceiveOptions) -> Result<Self, ZfsError> {
        let Prepared { mut command, shown } = zfs.command(&options.args());
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = TrackedChild::spawn(&mut command).map_err(|error| ZfsError::not_started(&shown, &error))?;
        let stdin = child.inner().stdin.take();
        let stderr = child.inner().stderr.take().map(collect_stderr);
        if let Some(pipe) = &stdin {
            let _ = rustix::pipe::fcntl_setpipe_size(pipe, 1024 * 1024);
        }
        Ok(Self { child, stdin, stderr, command: shown })
    }

    /// Ends the stream and waits. `Ok` carries what the command said, if anything.
    pub fn finish(mut self) -> Result<String, ZfsError> {
        self.stdin = None;
        self.reap()
    }

    /// The error of a command that stopped reading before the end: what it said itself, or that it ended early.
    pub fn failure(mut self) -> ZfsError {
        self.stdin = None;
        match self.reap() {
            Err(error) => error,
            Ok(stderr) => ZfsError {
                kind: super::command::ZfsErrorKind::Failed,
                command: self.command.clone(),
                ending: "it ended before it had read the whole stream".into(),
                stderr,
            },
        }
    }

    fn reap(&mut self) -> Result<String, ZfsError> {
        let status = self.child.wait().ok();
        let stderr = self.stderr.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        if status.is_some_and(|status| status.success()) {
            Ok(stderr)
        } else {
            Err(ZfsError::ended(self.command.clone(), status, stderr))
        }
    }
}

impl Write for ReceiveStream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match &mut self.stdin {
            Some(stdin) => stdin.write(buf),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
