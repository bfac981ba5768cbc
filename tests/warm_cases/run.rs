//! Ways to run `warm`, and to look at what came of it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::lazy_volume::{LazyVolumes, Settings};

/// Bytes of a block.
pub const BLOCK: u64 = 512 << 10;
pub const MIB: u64 = 1 << 20;

/// Nothing that a test waits for takes longer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where the program runs: nothing is there but a folder for what it keeps.
pub struct Place {
    folder: TempDir,
}

impl Place {
    pub fn new() -> Self {
        Self { folder: tempfile::Builder::new().prefix("warm-").tempdir().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Where the state of the only volume is kept unless a test says otherwise.
    pub fn states(&self) -> PathBuf {
        self.path("states")
    }

    /// `snapferry --state-dir STATES warm` and the words of `line`, which are split as a shell does; without any
    /// environment.
    pub fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_snapferry"));
        command.env_clear().arg("--state-dir").arg(self.states()).arg("warm");
        command.args(shlex::split(line).unwrap_or_else(|| panic!("not to be split: {line}")));
        command
    }

    /// From beginning to end.
    pub fn warm(&self, line: &str) -> Run {
        self.start(line).end()
    }

    pub fn start(&self, line: &str) -> Running {
        Running::new(self.command(line))
    }
}

/// One volume.
pub fn one(settings: Settings) -> Option<LazyVolumes> {
    LazyVolumes::mount(vec![settings])
}

/// The path of volume `n`, for a command line.
pub fn volume(volumes: &LazyVolumes, n: usize) -> String {
    volumes.path(n).to_str().unwrap().to_owned()
}

/// How often each chunk was touched, without those that were not.
pub fn touched(volumes: &LazyVolumes, n: usize) -> BTreeMap<u64, u32> {
    (0..).zip(volumes.touches(n)).filter(|(_, touches)| *touches > 0).collect()
}

/// These chunks were touched, each once, and no others.
#[track_caller]
pub fn once(volumes: &LazyVolumes, n: usize, chunks: impl IntoIterator<Item = u64>) {
    let wanted: BTreeMap<u64, u32> = chunks.into_iter().map(|chunk| (chunk, 1)).collect();
    let found = touched(volumes, n);
    let all: BTreeSet<u64> = wanted.keys().chain(found.keys()).copied().collect();
    let wrong = all.into_iter().filter(|chunk| wanted.get(chunk) != found.get(chunk));
    let wrong: Vec<(u64, u32)> = wrong.map(|chunk| (chunk, found.get(&chunk).copied().unwrap_or(0))).collect();
    let first = &wrong[..wrong.len().min(20)];
    assert!(wrong.is_empty(), "volume {n}: {} chunks were touched too often or too rarely: {first:?}", wrong.len());
}

/// Every chunk was touched once, and all are here.
#[track_caller]
pub fn all_once(volumes: &LazyVolumes, n: usize) {
    once(volumes, n, 0..volumes.chunks(n));
    assert_eq!(volumes.cold_left(n), 0, "volume {n}");
}

#[track_caller]
pub fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a program of the system is there; says loudly if not.
pub fn has(program: &str) -> bool {
    match Command::new(program).arg("--version").stdin(Stdio::null()).output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            eprintln!("SKIPPED: {program} is needed, and not there");
            false
        }
        _ => true,
    }
}

/// Runs a program of the system, which must succeed; what it printed.
#[track_caller]
pub fn tool(program: &str, arguments: &[&OsStr]) -> String {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

pub fn shown(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A run that has not ended. Dropping it kills it.
pub struct Running {
    line: String,
    child: Child,
    ended: bool,
    stdout: Pipe,
    stderr: Pipe,
}

struct Pipe {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Pipe {
    fn new(mut from: impl Read + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&bytes);
        let read = move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = from.read(&mut buffer) {
                into.lock().unwrap().extend(&buffer[..length]);
            }
        };
        Self { bytes, reader: Some(thread::spawn(read)) }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().unwrap()).into_owned()
    }
}

impl Running {
    pub fn new(command: Command) -> Self {
        Self::fed(command, b"")
    }

    /// With `input` on standard input.
    pub fn fed(mut command: Command, input: &[u8]) -> Self {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let line = words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ");
        command.stdin(if input.is_empty() { Stdio::null() } else { Stdio::piped() });
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        if let Some(mut stdin) = child.stdin.take() {
            // Less than a pipe takes. The program may not read it.
            let _ = stdin.write_all(input);
        }
        let (stdout, stderr) = (Pipe::new(child.stdout.take().unwrap()), Pipe::new(child.stderr.take().unwrap()));
        Self { line, child, ended: false, stdout, stderr }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub fn stdout(&self) -> String {
        self.stdout.text()
    }

    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// Waits until it says `text` on standard output or standard error.
    #[track_caller]
    pub fn wait_for(&self, text: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !self.stdout().contains(text) && !self.stderr().contains(text) {
            let said = || format!("--- stdout\n{}\n--- stderr\n{}", self.stdout(), self.stderr());
            assert!(Instant::now() < deadline, "waited in vain for {text:?}: {}\n{}", self.line, said());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for its end.
    #[track_caller]
    pub fn end(mut self) -> Run {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None => assert!(Instant::now() < deadline, "it does not end: {}\n{}", self.line, self.stderr()),
            }
            thread::sleep(Duration::from_millis(2));
        };
        self.ended = true;
        for pipe in [&mut self.stdout, &mut self.stderr] {
            pipe.reader.take().unwrap().join().unwrap();
        }
        Run { line: self.line.clone(), status, stdout: self.stdout(), stderr: self.stderr() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            // It may wait for a read that is answered only when the volume goes.
            let _ = self.child.kill();
        }
    }
}

/// A run that has ended.
#[derive(Debug)]
pub struct Run {
    line: String,
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl std::fmt::Display for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { line, status, stdout, stderr } = self;
        write!(f, "{line}\n{status}\n--- stdout\n{stdout}\n--- stderr\n{stderr}")
    }
}

impl Run {
    #[track_caller]
    pub fn exit(self, code: i32) -> Self {
        assert_eq!(self.status.code(), Some(code), "{self}");
        self
    }

    #[track_caller]
    pub fn killed(self) -> Self {
        assert_eq!(self.status.signal(), Some(Signal::KILL.as_raw()), "{self}");
        self
    }

    /// A success that has nothing to tell.
    #[track_caller]
    pub fn silent(self) {
        assert!(self.status.success() && self.stdout.is_empty() && self.stderr.is_empty(), "{self}");
    }

    /// Ended with `code`, and with one line for the error and perhaps one for the advice, after warnings and a summary; `words` are
    /// in these lines.
    #[track_caller]
    pub fn fails(self, code: i32, words: &[&str]) -> Self {
        let run = self.exit(code);
        let told =
            |line: &&str| !line.starts_with("snapferry: warning: ") && !line.contains(": NOT wholly initialised: ");
        let lines: Vec<&str> = run.stderr.lines().filter(told).collect();
        let error = lines.first().and_then(|line| line.strip_prefix("snapferry: error: "));
        let error = error.unwrap_or_else(|| panic!("no error line: {run}"));
        match lines[1..] {
            [] => {}
            [hint] if hint.starts_with("snapferry: hint: ") => {}
            _ => panic!("more than an error and a hint: {run}"),
        }
        assert!(!error.ends_with('.') && !error.starts_with(|c: char| c.is_uppercase()), "{run}");
        for word in words {
            assert!(lines.join("\n").contains(word), "{word:?} is not in the error: {run}");
        }
        run
    }

    #[track_caller]
    pub fn says(self, words: &[&str]) -> Self {
        for word in words {
            let said = self.stdout.contains(word) || self.stderr.contains(word);
            assert!(said, "{word:?} is nowhere: {self}");
        }
        self
    }

    #[track_caller]
    pub fn never_says(self, words: &[&str]) -> Self {
        for word in words {
            let said = self.stdout.contains(word) || self.stderr.contains(word);
            assert!(!said, "{word:?}: {self}");
        }
        self
    }

    /// What it warned of, without the common beginning.
    pub fn warnings(&self) -> Vec<&str> {
        self.stderr.lines().filter_map(|line| line.strip_prefix("snapferry: warning: ")).collect()
    }

    /// All of standard output as one JSON value.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self}"))
    }

    /// Standard output as JSON, a value a line.
    #[track_caller]
    pub fn events(&self) -> Vec<Value> {
        let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {self}"));
        self.stdout.lines().map(parse).collect()
    }

    /// Those events of the kind `name`.
    #[track_caller]
    pub fn events_of(&self, name: &str) -> Vec<Value> {
        self.events().into_iter().filter(|event| event["event"] == name).collect()
    }

    /// What the last event, `done`, says of volume `n`.
    #[track_caller]
    pub fn done(&self, n: usize) -> Value {
        let events = self.events();
        let last = events.last().unwrap_or_else(|| panic!("no event: {self}"));
        assert_eq!(last["event"], "done", "{self}");
        last["volumes"][n].clone()
    }

    /// Blocks that events call failed, in the order of their numbers.
    #[track_caller]
    pub fn failed_blocks(&self) -> Vec<u64> {
        let events = self.events_of("block_failed");
        let mut blocks: Vec<u64> = events.iter().map(|event| event["block"].as_u64().unwrap()).collect();
        assert!(events.iter().all(|event| event["offset"] == event["block"].as_u64().unwrap() * BLOCK), "{self}");
        blocks.sort_unstable();
        blocks
    }
}
