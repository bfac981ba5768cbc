//! Runs the `zfs` program for answers, here or at the other end of ssh (streams: `send.rs`, `receive.rs`; changes:
//! `change.rs`).

use std::ffi::OsString;
use std::io::{self, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};

use thiserror::Error;

use super::names::Dataset;
use super::output::{self, Hold, Version};
use super::remote::Remote;
use crate::children::TrackedChild;

/// What is kept of a child's standard error: its beginning and its end (bytes each).
const STDERR_KEPT: usize = 4096;
/// No answer is larger: 100,000 snapshots need about 10 MB.
const MAX_ANSWER: u64 = 256 * 1024 * 1024;
/// Arguments of one command: thousands would be more than a command line takes.
const NAMES_AT_ONCE: usize = 200;

/// A `zfs` command that failed, with what it said.
#[derive(Debug, Error)]
#[error("{command}: {ending}{}", said(stderr))]
pub struct ZfsError {
    /// Why, as far as code decides on it.
    pub kind: ZfsErrorKind,
    /// As a person would type it.
    pub command: String,
    /// `exit status 1`, `killed by signal 9`, or why it could not be started.
    pub ending: String,
    /// What it printed on standard error.
    pub stderr: String,
}

/// What code decides on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZfsErrorKind {
    /// The program can't be started.
    NotStarted,
    /// The ssh in front of it got no connection, or lost it.
    Unreachable,
    /// `dataset does not exist`.
    NoSuchDataset,
    /// `permission denied`.
    Denied,
    /// Anything else.
    Failed,
}

fn said(stderr: &str) -> String {
    if stderr.is_empty() { String::new() } else { format!(": {stderr}") }
}

impl ZfsError {
    pub(super) fn not_started(command: &str, error: &io::Error) -> Self {
        let ending = format!("cannot be started: {error}");
        Self { kind: ZfsErrorKind::NotStarted, command: command.to_owned(), ending, stderr: String::new() }
    }

    pub(super) fn ended(command: String, status: Option<ExitStatus>, stderr: String) -> Self {
        let lower = stderr.to_lowercase();
        let kind = match () {
            // ssh's own, and 127 is a shell's at the other end: zfs has neither.
            () if command.starts_with(REMOTE_MARK) && status.is_some_and(|status| status.code() == Some(255)) => {
                ZfsErrorKind::Unreachable
            }
            () if command.starts_with(REMOTE_MARK) && status.is_some_and(|status| status.code() == Some(127)) => {
                ZfsErrorKind::NotStarted
            }
            () if lower.contains("dataset does not exist")
                || lower.contains("no such pool")
                || lower.contains("could not find any snapshots") =>
            {
                ZfsErrorKind::NoSuchDataset
            }
            () if lower.contains("permission denied") => ZfsErrorKind::Denied,
            () => ZfsErrorKind::Failed,
        };
        Self { kind, command, ending: describe(status), stderr }
    }

    /// Whether what it said contains this, whatever the case.
    pub fn says(&self, text: &str) -> bool {
        self.stderr.to_lowercase().contains(text)
    }
}

fn describe(status: Option<ExitStatus>) -> String {
    use std::os::unix::process::ExitStatusExt;
    match status {
        None => "its exit status is unknown".into(),
        Some(status) => match (status.code(), status.signal()) {
            (Some(code), _) => format!("exit status {code}"),
            (None, Some(signal)) => format!("killed by signal {signal}"),
            (None, None) => "ended abnormally".into(),
        },
    }
}

/// How a command at the other end of ssh begins where it is shown.
pub(super) const REMOTE_MARK: &str = "on ";

/// Reads a child's standard error to its end, so that it never blocks on a full pipe, and keeps the beginning and
/// the end of it as one line.
pub(super) fn collect_stderr(mut stderr: impl Read + Send + 'static) -> JoinHandle<String> {
    thread::spawn(move || {
        let (mut head, mut tail, mut buffer) = (Vec::new(), Vec::new(), [0u8; 4096]);
        loop {
            match stderr.read(&mut buffer) {
                Ok(0) => break,
                Ok(got) => {
                    let room = STDERR_KEPT.saturating_sub(head.len()).min(got);
                    head.extend_from_slice(&buffer[..room]);
                    tail.extend_from_slice(&buffer[room..got]);
                    let excess = tail.len().saturating_sub(STDERR_KEPT);
                    tail.drain(..excess);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        head.extend_from_slice(&tail);
        harmless(&String::from_utf8_lossy(&head))
    })
}

/// One line without control characters.
pub(super) fn harmless(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let joined = lines.collect::<Vec<_>>().join("; ");
    joined.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// The `zfs` program, here or at the other end of ssh.
#[derive(Clone, Debug)]
pub struct Zfs {
    program: OsString,
    remote: Option<Remote>,
}

/// A command and how it is shown to a person.
pub(super) struct Prepared {
    pub(super) command: Command,
    pub(super) shown: String,
}

impl Zfs {
    /// `program` is a name on PATH or a path.
    pub fn new(program: impl Into<OsString>) -> Self {
        Self { program: program.into(), remote: None }
    }

    /// The same program, run at the other end of ssh.
    pub fn at(self, remote: Remote) -> Self {
        Self { remote: Some(remote), ..self }
    }

    /// The host that it runs on, unless that is this machine.
    pub fn remote(&self) -> Option<&Remote> {
        self.remote.as_ref()
    }

    pub(super) fn command(&self, args: &[&str]) -> Prepared {
        let words = std::iter::once(self.program.to_string_lossy()).chain(args.iter().map(|arg| (*arg).into()));
        let words: Vec<String> = words.map(|word| word.into_owned()).collect();
        let (mut command, shown) = match &self.remote {
            None => {
                let mut command = Command::new(&self.program);
                // Messages are parsed and quoted: they must not depend on the user's language.
                command.args(args).env("LC_ALL", "C");
                (command, words.join(" "))
            }
            Some(remote) => (remote.command(&words), format!("{REMOTE_MARK}{}: {}", remote.name(), words.join(" "))),
        };
        command.stdin(Stdio::null());
        Prepared { command, shown }
    }

    pub(super) fn answer(&self, args: &[&str]) -> Result<String, ZfsError> {
        let (text, ended) = self.ask(args)?;
        ended.map(|()| text)
    }

    /// What a command printed, and how it ended.
    fn ask(&self, args: &[&str]) -> Result<(String, Result<(), ZfsError>), ZfsError> {
        let Prepared { mut command, shown } = self.command(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = TrackedChild::spawn(&mut command).map_err(|error| ZfsError::not_started(&shown, &error))?;
        let stderr = child.inner().stderr.take().map(collect_stderr);
        let mut answer = Vec::new();
        let read = match child.inner().stdout.take() {
            Some(stdout) => stdout.take(MAX_ANSWER).read_to_end(&mut answer),
            None => Ok(0),
        };
        let status = child.wait().ok();
        let stderr = stderr.and_then(|thread| thread.join().ok()).unwrap_or_default();
        let good = read.is_ok() && status.is_some_and(|status| status.success());
        let ended = if good { Ok(()) } else { Err(ZfsError::ended(shown, status, stderr)) };
        Ok((String::from_utf8_lossy(&answer).into_owned(), ended))
    }

    /// Snapshots and bookmarks of `dataset` alone, oldest first.
    pub fn versions(&self, dataset: &Dataset) -> Result<Vec<Version>, ZfsError> {
        let columns = output::VERSION_COLUMNS;
        let args = ["list", "-H", "-p", "-d", "1", "-t", "snapshot,bookmark", "-o", columns, dataset.as_str()];
        let text = self.answer(&args)?;
        let mut found = output::versions(&text, dataset.as_str()).map_err(|what| self.unreadable(&args, what))?;
        found.sort_by_key(|version| version.createtxg);
        Ok(found)
    }

    fn unreadable(&self, args: &[&str], what: String) -> ZfsError {
        let command = self.command(args).shown;
        ZfsError { kind: ZfsErrorKind::Failed, command, ending: what, stderr: String::new() }
    }

    /// File systems and volumes at and below `dataset`, a parent before its children.
    pub fn datasets(&self, dataset: &Dataset) -> Result<Vec<Dataset>, ZfsError> {
        let args = ["list", "-H", "-p", "-r", "-t", "filesystem,volume", "-o", "name", dataset.as_str()];
        let text = self.answer(&args)?;
        let names = text.lines().filter(|line| !line.is_empty()).map(|name| name.parse::<Dataset>());
        let mut found: Vec<Dataset> =
            names.collect::<Result<_, _>>().map_err(|error| self.unreadable(&args, error.to_string()))?;
        found.sort();
        Ok(found)
    }

    /// The local values of a user property on the snapshots of `dataset` alone: snapshot name and value.
    pub fn snapshot_property(&self, dataset: &Dataset, property: &str) -> Result<Vec<(String, String)>, ZfsError> {
        let args = [
            "get",
            "-H",
            "-p",
            "-d",
            "1",
            "-t",
            "snapshot",
            "-s",
            "local",
            "-o",
            "name,value",
            property,
            dataset.as_str(),
        ];
        let text = self.answer(&args)?;
        output::named_values(&text, dataset.as_str()).map_err(|what| self.unreadable(&args, what))
    }

    /// The holds on all snapshots of `dataset` alone, or of all pools.
    pub fn holds(&self, dataset: Option<&Dataset>) -> Result<Vec<Hold>, ZfsError> {
        let mut args = vec!["list", "-H", "-p", "-t", "snapshot", "-o", "name,userrefs"];
        if let Some(dataset) = dataset {
            args.extend(["-d", "1", dataset.as_str()]);
        }
        let text = self.answer(&args)?;
        let held = output::held(&text).map_err(|what| self.unreadable(&args, what))?;
        let mut holds = Vec::new();
        for names in held.chunks(NAMES_AT_ONCE) {
            let mut args = vec!["holds", "-H"];
            args.extend(names.iter().map(String::as_str));
            match self.answer(&args) {
                Ok(text) => holds.extend(output::holds(&text).map_err(|what| self.unreadable(&args, what))?),
                // One was destroyed meanwhile: the rest is asked for one by one.
                Err(error) if error.kind == ZfsErrorKind::NoSuchDataset => {
                    for name in names {
                        let text = self.answer(&["holds", "-H", name]).unwrap_or_default();
                        holds.extend(output::holds(&text).unwrap_or_default());
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(holds)
    }

    /// The bookmarks of all pools: dataset, name and GUID.
    pub fn bookmarks(&self) -> Result<Vec<(String, String, u64)>, ZfsError> {
        let args = ["list", "-H", "-p", "-t", "bookmark", "-o", "name,guid"];
        output::bookmarks(&self.answer(&args)?).map_err(|what| self.unreadable(&args, what))
    }

    /// A property's value; `None` where ZFS shows `-`.
    pub fn property(&self, dataset: &Dataset, property: &str) -> Result<Option<String>, ZfsError> {
        let text = self.answer(&["get", "-H", "-p", "-o", "value", property, dataset.as_str()])?;
        Ok(output::value(&text).map(str::to_owned))
    }

    /// Whether `dataset` exists on this machine.
    pub fn exists(&self, dataset: &Dataset) -> Result<bool, ZfsError> {
        match self.answer(&["list", "-H", "-o", "name", dataset.as_str()]) {
            Ok(_) => Ok(true),
            Err(error) if error.kind == ZfsErrorKind::NoSuchDataset => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// About how many bytes `zfs send` with these arguments will write. `None` when it can't say.
    pub fn estimate(&self, send_args: &[String]) -> Option<u64> {
        let mut args = vec!["send", "-n", "-v", "-P"];
        args.extend(send_args.iter().map(String::as_str));
        self.answer(&args).ok().as_deref().and_then(output::estimate)
    }

    /// The GUID of the snapshot that an interrupted receive with this resume token was taking.
    pub fn guid_of_token(&self, token: &str) -> Result<Option<u64>, ZfsError> {
        // A token begins with a digit: it can't be taken for an option. On a machine that does not hold the snapshot
        // that was sent, the command shows what is in the token all the same, and then fails.
        let (text, ended) = self.ask(&["send", "-n", "-v", "-P", "-t", token])?;
        output::token_guid(&text).map_or_else(|| ended.map(|()| None), |guid| Ok(Some(guid)))
    }

    /// Gives up what an interrupted `zfs receive -s` has kept.
    pub fn abort_receive(&self, dataset: &Dataset) -> Result<(), ZfsError> {
        self.answer(&["receive", "-A", dataset.as_str()]).map(drop)
    }
}
