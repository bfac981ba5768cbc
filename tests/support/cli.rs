//! A machine of its own for the program: its folders and keys, a pool of the stand-in `zfs`, and ways to run it and
//! to look at what came of it.
#![allow(dead_code, reason = "each test binary uses a part of this")]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use super::pool::Pool;
use super::sshd::Sshd;

pub const PASSPHRASE: &str = "correct horse, battery staple";

/// Nothing that a test waits for takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where the program runs. Its profile is `offsite`.
pub struct Machine {
    folder: TempDir,
    pub pool: Pool,
    /// The repository.
    pub url: String,
    /// Its objects, as this machine sees them, whatever the way to them.
    pub objects: PathBuf,
    /// Options of every run.
    options: Vec<String>,
}

impl Machine {
    /// With a repository to be in a folder of its own.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let objects = folder.path().join("repository");
        let machine = Self {
            pool: Pool::new(folder.path().join("zfs")),
            url: objects.to_str().unwrap().to_owned(),
            objects,
            options: Vec::new(),
            folder,
        };
        make_identity(&machine.identity());
        write_private(&machine.passphrase(), &format!("{PASSPHRASE}\n"));
        machine
    }

    /// With a repository to be at the account of `sshd`.
    pub fn with(sshd: &Sshd) -> Self {
        Self::at(&format!("{}/archive", sshd.url()), sshd, &[])
    }

    /// With a repository to be at `url`, which is `archive` of the account of `sshd`; `words` are for ssh.
    pub fn at(url: &str, sshd: &Sshd, words: &[&str]) -> Self {
        let command = sshd.ssh_command().into_iter().chain(words.iter().map(|word| (*word).to_owned()));
        let command = command.collect::<Vec<_>>().join(" ");
        let (url, objects) = (url.to_owned(), sshd.data().join("archive"));
        Self { url, objects, options: vec!["--ssh-command".into(), command], ..Self::new() }
    }

    /// With a repository that is opened by [`Self::identity`].
    pub fn ready() -> Self {
        let machine = Self::new();
        machine.init();
        machine
    }

    /// The same with `tank/data@one` to `@three`, made up, of 300 kB each.
    pub fn with_snapshots() -> Self {
        let machine = Self::ready();
        machine.pool.add_dataset("tank/data");
        machine.snapshot("one", None);
        machine.snapshot("two", Some("one"));
        machine.snapshot("three", Some("two"));
        machine
    }

    /// A snapshot of `tank/data`, and the file of its stream.
    pub fn snapshot(&self, name: &str, base: Option<&str>) -> PathBuf {
        self.pool.add_synthetic("tank/data", name, base, 300_000).1
    }

    pub fn init(&self) -> Run {
        self.run(&format!("init offsite '{}' --recipient {}", self.url, recipient_of(&self.identity()))).exit(0)
    }

    /// Another one, with nothing but the way to the same repository.
    pub fn another(&self) -> Self {
        Self { url: self.url.clone(), objects: self.objects.clone(), options: self.options.clone(), ..Self::new() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn identity(&self) -> PathBuf {
        self.path("identity.txt")
    }

    pub fn passphrase(&self) -> PathBuf {
        self.path("passphrase")
    }

    pub fn config(&self) -> PathBuf {
        self.path("config")
    }

    /// The folder with journals and memories of the one repository that is known here.
    pub fn state(&self) -> PathBuf {
        let mut folders = fs::read_dir(self.config().join("state")).unwrap();
        let found = folders.next().unwrap().unwrap().path();
        assert!(folders.next().is_none(), "more than one repository");
        found
    }

    /// `--identity FILE`
    pub fn key(&self) -> String {
        format!("--identity {}", self.identity().display())
    }

    /// Whose signatures are trusted, as it stands in the profile.
    pub fn signer(&self) -> String {
        let profile: toml::Table = fs::read_to_string(self.config().join("offsite.toml")).unwrap().parse().unwrap();
        profile["signer"].as_str().unwrap().to_owned()
    }

    /// The program with the words of `line`, which are split as a shell does.
    pub fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_snapferry"));
        for name in ["REPOSITORY", "CONFIG_DIR", "STATE_DIR", "SSH_COMMAND"] {
            command.env_remove(format!("SNAPFERRY_{name}"));
        }
        self.pool.serve(&mut command);
        command.arg("--config-dir").arg(self.config()).args(&self.options);
        command.args(shlex::split(line).unwrap_or_else(|| panic!("not to be split: {line}")));
        command.stdin(Stdio::null());
        command
    }

    pub fn run(&self, line: &str) -> Run {
        self.start(self.command(line)).end()
    }

    /// With `input` on standard input.
    pub fn run_with(&self, line: &str, input: &[u8]) -> Run {
        let mut running = self.start_fed(line);
        let mut stdin = running.child.stdin.take().unwrap();
        thread::scope(|scope| {
            // The program may stop reading early.
            scope.spawn(move || drop(stdin.write_all(input)));
            running.end()
        })
    }

    /// With a pipe on standard input, which is [`Running::input`].
    pub fn start_fed(&self, line: &str) -> Running {
        let mut command = self.command(line);
        command.stdin(Stdio::piped());
        self.start(command)
    }

    pub fn start(&self, mut command: Command) -> Running {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let line = words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (stdout, stderr) = (collect(child.stdout.take().unwrap()), collect(child.stderr.take().unwrap()));
        Running { line, child, stdout, stderr, secrets: self.secrets() }
    }

    /// What must never be seen.
    fn secrets(&self) -> Vec<String> {
        let mut secrets = vec![PASSPHRASE.to_owned(), "AGE-SECRET-KEY-1".to_owned()];
        if let Ok(text) = fs::read_to_string(self.config().join("offsite.writer-key"))
            && let Ok(key) = serde_json::from_str::<Value>(&text)
        {
            secrets.extend(["catalogue", "signing"].iter().filter_map(|part| key[part].as_str().map(str::to_owned)));
        }
        secrets
    }

    /// The backups that `list --json` shows.
    pub fn backups(&self) -> Vec<Value> {
        self.run("list offsite --json").json()["backups"].as_array().unwrap().clone()
    }

    /// Every object with its bytes' hash.
    pub fn tree(&self) -> BTreeMap<String, blake3::Hash> {
        tree(&self.objects)
    }

    /// The names of the segments that are stored.
    pub fn segments(&self) -> Vec<String> {
        let names = self.tree().into_keys().filter(|name| name.starts_with("segments/") && name.ends_with(".age"));
        names.collect()
    }

    /// How many segments the journals of unfinished backups call stored.
    pub fn journaled(&self) -> usize {
        let journals = fs::read_dir(self.state().join("journal")).into_iter().flatten();
        let rows = |text: String| text.matches('\n').count().saturating_sub(1);
        journals.map(|entry| fs::read_to_string(entry.unwrap().path()).map_or(0, rows)).sum()
    }

    /// The datasets and snapshots of the pools.
    pub fn datasets(&self) -> Value {
        serde_json::to_value(self.pool.state().datasets).unwrap()
    }

    /// The processes that this machine's runs left, or that they are.
    pub fn processes(&self) -> Vec<String> {
        let mark = self.pool.folder().as_os_str().as_encoded_bytes();
        let is_ours = |path: &PathBuf| {
            fs::read(path.join("environ")).is_ok_and(|text| text.windows(mark.len()).any(|part| part == mark))
        };
        let paths = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path()).filter(is_ours);
        let words = |path: PathBuf| String::from_utf8_lossy(&fs::read(path.join("cmdline")).unwrap_or_default()).into();
        paths.map(words).map(|words: String| words.replace('\0', " ")).collect()
    }
}

/// All files below `folder`, by their names.
pub fn tree(folder: &Path) -> BTreeMap<String, blake3::Hash> {
    fn walk(root: &Path, folder: &Path, found: &mut BTreeMap<String, blake3::Hash>) {
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(root, &path, found);
            } else if let Ok(bytes) = fs::read(&path) {
                found.insert(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned(), blake3::hash(&bytes));
            }
        }
    }
    let mut found = BTreeMap::new();
    walk(folder, folder, &mut found);
    found
}

/// Made by the real `age-keygen`.
pub fn make_identity(path: &Path) {
    tool("age-keygen", &["-o", path.to_str().unwrap()]);
}

pub fn recipient_of(identity: &Path) -> String {
    tool("age-keygen", &["-y", identity.to_str().unwrap()])
}

/// Runs a program of the system, which must be there and succeed; what it printed.
pub fn tool(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{program} is needed by this test: {error}"));
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

pub fn write_private(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// Bytes that no two places share; every other 4 KiB of them compress well.
pub fn pattern(length: usize) -> Vec<u8> {
    let word = |n: u64| if (n / 512).is_multiple_of(2) { n } else { n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (n << 40) };
    (0..length as u64 / 8 + 1).flat_map(|n| word(n).to_le_bytes()).take(length).collect()
}

#[track_caller]
pub fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn collect(mut from: impl std::io::Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).unwrap();
        bytes
    })
}

/// A run that has not ended.
pub struct Running {
    line: String,
    pub child: Child,
    stdout: JoinHandle<Vec<u8>>,
    stderr: JoinHandle<Vec<u8>>,
    secrets: Vec<String>,
}

impl Running {
    /// The pipe to its standard input.
    pub fn input(&mut self) -> &mut std::process::ChildStdin {
        self.child.stdin.as_mut().unwrap()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its end.
    pub fn end(mut self) -> Run {
        let status = self.child.wait().unwrap();
        let (stdout, stderr) = (self.stdout.join().unwrap(), self.stderr.join().unwrap());
        let run = Run { line: self.line, output: Output { status, stdout, stderr } };
        for secret in self.secrets {
            let shown = [&run.output.stdout, &run.output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
            assert!(!shown.iter().any(|text| text.contains(&secret)), "a secret is shown by {run}");
        }
        run
    }
}

/// A run that has ended. No secret was in what it printed.
pub struct Run {
    line: String,
    output: Output,
}

impl std::fmt::Display for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let stdout: String = String::from_utf8_lossy(&self.output.stdout).chars().take(4000).collect();
        write!(f, "{}\n{}\n--- stdout\n{stdout}\n--- stderr\n{}", self.line, self.output.status, self.stderr())
    }
}

impl Run {
    pub fn code(&self) -> Option<i32> {
        self.output.status.code()
    }

    pub fn killed_by(&self) -> Option<i32> {
        self.output.status.signal()
    }

    pub fn bytes(&self) -> &[u8] {
        &self.output.stdout
    }

    #[track_caller]
    pub fn stdout(&self) -> &str {
        std::str::from_utf8(&self.output.stdout).unwrap_or_else(|_| panic!("no text: {self}"))
    }

    pub fn stderr(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.output.stderr)
    }

    #[track_caller]
    pub fn exit(self, code: i32) -> Self {
        assert_eq!(self.code(), Some(code), "{self}");
        self
    }

    /// A success that has nothing to tell on standard error.
    #[track_caller]
    pub fn done(self) -> Self {
        assert!(self.code() == Some(0) && self.output.stderr.is_empty(), "{self}");
        self
    }

    /// A success that has nothing to tell at all.
    #[track_caller]
    pub fn silent(self) -> Self {
        assert!(self.output.stdout.is_empty(), "{self}");
        self.done()
    }

    /// Ended with `code`, and with one line for the error and perhaps one for the advice, as the design has them;
    /// `words` are in these lines.
    #[track_caller]
    pub fn fails(self, code: i32, words: &[&str]) -> Self {
        let run = self.exit(code);
        let stderr = run.stderr().into_owned();
        let told = |line: &&str| !line.starts_with("snapferry: warning: ");
        let lines: Vec<&str> = stderr.lines().filter(told).collect();
        let error = lines.first().and_then(|line| line.strip_prefix("snapferry: error: "));
        let error = error.unwrap_or_else(|| panic!("no error line: {run}"));
        match lines[1..] {
            [] => {}
            [hint] if hint.starts_with("snapferry: hint: ") => {}
            _ => panic!("more than an error and a hint: {run}"),
        }
        assert!(!error.ends_with('.') && !error.starts_with(|c: char| c.is_uppercase()), "{run}");
        assert!(!stderr.chars().any(|c| c.is_control() && c != '\n'), "{run}");
        for word in words {
            assert!(lines.join("\n").contains(word), "{word:?} is not in the error: {run}");
        }
        run
    }

    #[track_caller]
    pub fn warns(self, words: &[&str]) -> Self {
        let stderr = self.stderr().into_owned();
        let warnings: String = stderr.lines().filter(|line| line.starts_with("snapferry: warning: ")).collect();
        for word in words {
            assert!(warnings.contains(word), "{word:?} is in no warning: {self}");
        }
        self
    }

    #[track_caller]
    pub fn says(self, words: &[&str]) -> Self {
        for word in words {
            assert!(self.stdout().contains(word), "{word:?} is not in the output: {self}");
        }
        self
    }

    /// All of standard output as one JSON value.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.output.stdout).unwrap_or_else(|error| panic!("{error}: {self}"))
    }

    /// Standard error as JSON, a value a line.
    #[track_caller]
    pub fn json_errors(&self) -> Vec<Value> {
        let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {self}"));
        self.stderr().lines().map(parse).collect()
    }
}
