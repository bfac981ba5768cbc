//! A repository in memory, pools of the stand-in, and the commands run in this process on a store of the test's
//! choice.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use age::secrecy::ExposeSecret;
use anyhow::Result;
use clap::Parser;
use snapferry::cli::{Cli, Command};
use snapferry::commands::catalogue::{Catalogue, Rows};
use snapferry::commands::repository::Repository;
use snapferry::commands::{Context, backup, check, init, key, restore};
use snapferry::error::{Exit, exit_of, message_of};
use snapferry::format::names;
use snapferry::pipeline::codec::Codec;
use snapferry::store::Store;
use snapferry::store::memory::MemoryStore;
use tempfile::TempDir;

use crate::support::faulty::{Fault, Faulty, contents, memory_of};
use crate::support::pool::{Pool, standin_zfs};

pub const SEGMENT: usize = 8192;

/// A folder in memory where there is one: thousands of small files are flushed to it.
pub fn quick_folder() -> TempDir {
    let shared = Path::new("/dev/shm");
    if shared.is_dir() { tempfile::tempdir_in(shared) } else { tempfile::tempdir() }.expect("a folder")
}

/// A pool with three snapshots, and a fresh repository for it that is copied for every step of a walk.
pub struct Bench {
    pub pool: Pool,
    zfs: PathBuf,
    pub identity: PathBuf,
    pub recipient: String,
    /// `tank/data@s1` in full, and the two steps from there.
    pub streams: [Vec<u8>; 3],
    /// `tank/data@s2` in full.
    pub full_s2: Vec<u8>,
    fresh: Snapshot,
    folder: TempDir,
}

/// All that is there between two commands: objects, and what this machine keeps.
#[derive(Clone)]
pub struct Snapshot {
    objects: Vec<(String, Vec<u8>)>,
    files: Vec<(PathBuf, Vec<u8>)>,
}

/// A repository and a machine, to be thrown away.
pub struct World<'b> {
    pub bench: &'b Bench,
    pub store: Arc<MemoryStore>,
    pub config: TempDir,
}

impl Bench {
    pub fn new() -> Bench {
        let folder = quick_folder();
        let pool = Pool::new(folder.path().join("pools"));
        pool.add_dataset("tank/data");
        let step =
            |name, base, bytes| fs::read(pool.add_synthetic("tank/data", name, base, bytes).1).expect("a stream");
        let streams = [step("s1", None, 40_000), step("s2", Some("s1"), 12_000), step("s3", Some("s2"), 3_000)];
        pool.add_synthetic("tank/data", "s3", None, 45_000);
        pool.add_synthetic("tank/data", "s3", Some("s1"), 14_000);
        let full_s2 = fs::read(pool.add_synthetic("tank/data", "s2", None, 44_000).1).expect("a stream");
        let zfs = folder.path().join("zfs");
        let script = format!(
            "#!/bin/sh\nSTANDIN_ZFS_STATE='{}' exec '{}' \"$@\"\n",
            pool.folder().display(),
            standin_zfs().display()
        );
        fs::write(&zfs, script).expect("a wrapper");
        fs::set_permissions(&zfs, fs::Permissions::from_mode(0o755)).expect("its mode");
        let (identity, recipient) = new_identity(folder.path(), "identity");
        let fresh = Snapshot { objects: Vec::new(), files: Vec::new() };
        let mut bench = Bench { pool, zfs, identity, recipient, streams, full_s2, fresh, folder };
        let world = bench.empty();
        world.must(&bench.init_line());
        bench.fresh = world.snapshot();
        bench
    }

    pub fn init_line(&self) -> String {
        format!("init offsite /nowhere --recipient {} --identity {}", self.recipient, self.identity.display())
    }

    pub fn zfs(&self) -> &Path {
        &self.zfs
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Nothing yet, not even a repository.
    pub fn empty(&self) -> World<'_> {
        self.at(&Snapshot { objects: Vec::new(), files: Vec::new() })
    }

    /// Just after `init`.
    pub fn world(&self) -> World<'_> {
        self.at(&self.fresh)
    }

    pub fn at(&self, snapshot: &Snapshot) -> World<'_> {
        let config = quick_folder();
        for (path, bytes) in &snapshot.files {
            let path = config.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            fs::write(&path, bytes).expect("a file");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its mode");
        }
        World { bench: self, store: memory_of(&snapshot.objects), config }
    }
}

/// A new age identity file, and its recipient.
pub fn new_identity(folder: &Path, name: &str) -> (PathBuf, String) {
    let identity = age::x25519::Identity::generate();
    let path = folder.join(name);
    fs::write(&path, format!("{}\n", identity.to_string().expose_secret())).expect("an identity file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its mode");
    (path, identity.to_public().to_string())
}

impl World<'_> {
    pub fn snapshot(&self) -> Snapshot {
        let mut files = Vec::new();
        collect(self.config.path(), self.config.path(), &mut files);
        Snapshot { objects: contents(self.store.as_ref()), files }
    }

    /// Runs a command on a store, one transfer at once unless it says otherwise, so that its operations come in
    /// one order.
    pub fn on(&self, store: Arc<dyn Store>, line: &str) -> Result<Exit> {
        let mut words: Vec<String> = ["snapferry", "--quiet", "--config-dir"].map(str::to_owned).to_vec();
        words.push(self.config.path().display().to_string());
        words.push(format!("--state-dir={}", self.config.path().join("state").display()));
        words.push(format!("--zfs-command={}", self.bench.zfs.display()));
        let connections = if line.contains("--connections") { "" } else { "--connections 1" };
        words.extend(connections.split_whitespace().chain(line.split_whitespace()).map(str::to_owned));
        let cli = Cli::try_parse_from(&words).unwrap_or_else(|error| panic!("{line}: {error}"));
        let mut context = Context::new(cli.global)?;
        context.store = Some(store);
        match cli.command {
            Command::Init(args) => init::run(&context, args),
            Command::Backup(args) => backup::run(&context, args),
            Command::Check(args) => check::run(&context, args),
            Command::Restore(args) => restore::run(&context, args),
            Command::Key(args) => key::run(&context, args),
            other => panic!("{other:?} is not run here"),
        }
    }

    /// Runs a command on a store that goes wrong, and waits until none of its threads works on it any more: the
    /// program itself just exits.
    pub fn strike(&self, fault: Fault, at: u64, times: u64, line: &str) -> (Arc<Faulty>, Result<Exit>) {
        loop {
            let faulty = Faulty::new(self.store.clone(), fault, at, times);
            let result = self.on(Arc::clone(&faulty) as Arc<dyn Store>, line);
            settle(&faulty, 1);
            if !is_busy(&result) {
                return (faulty, result);
            }
        }
    }

    /// Runs a command on the good store.
    pub fn good(&self, line: &str) -> Result<Exit> {
        self.strike(Fault::Lose, u64::MAX, 0, line).1
    }

    /// A command that has to succeed.
    pub fn must(&self, line: &str) {
        match self.good(line) {
            Ok(Exit::Done) => {}
            other => panic!("{line}: {}", told(&other)),
        }
    }

    /// A file that does not exist yet.
    pub fn file(&self, name: &str) -> PathBuf {
        self.config.path().join(name)
    }

    pub fn restore_line(&self, backup: &str, to: &str) -> String {
        format!("restore offsite {backup} {to} --identity {}", self.bench.identity.display())
    }

    /// The stream of a backup as a restore from the good store gives it.
    pub fn restored(&self, backup: &str) -> Result<Vec<u8>> {
        let file = self.file("restored");
        let _ = fs::remove_file(&file);
        self.good(&self.restore_line(backup, &format!("--output {}", file.display())))?;
        Ok(fs::read(file).expect("what was restored"))
    }

    pub fn names(&self) -> Vec<String> {
        self.store.list("").expect("a listing").into_iter().map(|object| object.name).collect()
    }

    /// The backups whose manifests are in the repository, good or bad.
    pub fn manifests(&self) -> Vec<String> {
        let found = self.names().into_iter().filter_map(|name| names::parse_manifest(&name));
        found.map(|id| id.to_string()).collect()
    }

    /// The objects that belong to no backup, nor to the repository itself.
    pub fn strays(&self) -> Vec<String> {
        let store = Arc::clone(&self.store) as Arc<dyn Store>;
        let config = self.config.path().display().to_string();
        let cli = Cli::try_parse_from(["snapferry", "--config-dir", &config, "man"]).expect("a command");
        let mut context = Context::new(cli.global).expect("a context");
        context.store = Some(store);
        let repository = Repository::open(&context, "offsite", None).expect("the repository");
        let reader = repository.writer_reader().expect("a writer key");
        let catalogue = Catalogue::load(&repository, &reader, Rows::Keep).expect("the catalogue");
        let mut known = vec![names::DESCRIPTOR.to_owned(), names::RESCUE.to_owned()];
        for backup in &catalogue.backups {
            let manifest = &backup.manifest;
            let extension = Codec::from_info(&manifest.codec).expect("a codec").extension();
            known.extend([names::manifest(&manifest.id), names::signature(&manifest.id)]);
            known.extend((0..manifest.segments.len() as u64).map(|n| names::segment(&manifest.id, n, extension)));
        }
        self.names().into_iter().filter(|name| !known.contains(name) && names::parse_slot(name).is_none()).collect()
    }
}

/// A result in few words: errors carry a whole backtrace.
pub fn told(result: &Result<Exit>) -> String {
    match result {
        Ok(exit) => format!("exit {exit:?}"),
        Err(error) => format!("{:?}: {}", exit_of(error), message_of(error)),
    }
}

/// A child that another test has forked, and that has not begun yet, holds our lock as well. A command takes its lock
/// before it changes anything.
pub fn is_busy(result: &Result<Exit>) -> bool {
    result.as_ref().is_err_and(|error| exit_of(error) == Exit::Busy)
}

/// Waits until no more than the test's own hands hold the store.
pub fn settle<S>(store: &Arc<S>, own: usize) {
    let started = Instant::now();
    while Arc::strong_count(store) > own {
        assert!(started.elapsed() < Duration::from_secs(60), "a thread of the command never ends");
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<(PathBuf, Vec<u8>)>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect(root, &path, files);
        } else {
            let name = path.strip_prefix(root).expect("below").to_owned();
            files.push((name, fs::read(&path).expect("a file")));
        }
    }
}

/// The files of a folder, name and content, hidden ones too.
pub fn files_of(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    collect(folder, folder, &mut files);
    files.sort();
    files.into_iter().map(|(name, bytes)| (name.display().to_string(), bytes)).collect()
}
