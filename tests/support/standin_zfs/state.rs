//! What the stand-in `zfs` knows of its pools: one JSON file in a folder, guarded by a lock file.
//!
//! The tests (`support/pool.rs`) and the stand-in include this same file, so that neither can misread the other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The environment variable that names the folder.
pub const STATE_VARIABLE: &str = "STANDIN_ZFS_STATE";
/// One more fault for one process: the JSON of a `Fault`, or of a list of them.
pub const FAULT_VARIABLE: &str = "STANDIN_ZFS_FAULT";

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// Counts up: transaction groups, seconds, and the names of files.
    pub clock: u64,
    pub datasets: BTreeMap<String, Dataset>,
    pub streams: Vec<Stream>,
    pub received: Vec<Received>,
    pub faults: Vec<Fault>,
    /// Commands that answer "permission denied".
    pub denied: BTreeSet<String>,
    /// As an ordinary user, `receive` without `-u` receives, cannot mount, and exits 1.
    pub unprivileged: bool,
    /// Bytes of the stream that is made up where none is at hand: for snapshots that the program takes.
    pub made_up: Option<usize>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Dataset {
    /// `filesystem` or `volume`.
    pub kind: String,
    pub guid: u64,
    pub createtxg: u64,
    pub creation: u64,
    /// `off`, or as in `aes-256-gcm`.
    pub encryption: String,
    pub key_loaded: bool,
    pub origin: Option<String>,
    /// Changed since the last snapshot.
    pub modified: bool,
    /// Bytes that still fit; `None` is enough room for everything. Looked up from the dataset towards its pool.
    pub room: Option<u64>,
    /// Local properties, `quota` among them.
    pub properties: BTreeMap<String, String>,
    /// In the order in which they were made.
    pub snapshots: Vec<Snapshot>,
    pub bookmarks: Vec<Snapshot>,
    /// What `receive -s` kept of a stream that broke off.
    pub partial: Option<Partial>,
}

impl Default for Dataset {
    fn default() -> Self {
        Dataset {
            kind: "filesystem".to_owned(),
            guid: 0,
            createtxg: 1,
            creation: 0,
            encryption: "off".to_owned(),
            key_loaded: true,
            origin: None,
            modified: false,
            room: None,
            properties: BTreeMap::new(),
            snapshots: Vec::new(),
            bookmarks: Vec::new(),
            partial: None,
        }
    }
}

/// A snapshot, or a bookmark.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// What stands behind `@` or `#`.
    pub name: String,
    pub guid: u64,
    pub createtxg: u64,
    pub creation: u64,
    pub used: u64,
    pub referenced: u64,
    /// Differs from the snapshot before it. (One that does not is no hindrance to an incremental receive.)
    pub changed: bool,
    pub holds: Vec<String>,
    /// User properties.
    pub properties: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Partial {
    pub token: String,
    pub to_guid: u64,
    pub object: u64,
    pub offset: u64,
    /// The dataset is there for this stream only.
    pub new_dataset: bool,
}

/// What `zfs send` writes for one question.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Stream {
    pub to: u64,
    pub from: Option<u64>,
    /// The options that change the bytes, in this order: `R I L e c w p h`, as in `""`, `"w"`, `"RI"`, `"Lec"`.
    pub options: String,
    pub file: PathBuf,
    /// What a dry run says, and it is not the true size.
    pub estimate: u64,
    /// The lines of a dry run before `size`, where there is more than one: `full\ttank/a@s\t123`.
    pub dry_run: Vec<String>,
}

/// One snapshot that `zfs receive` took in, or began to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Received {
    pub dataset: String,
    pub snapshot: String,
    pub guid: u64,
    pub from_guid: u64,
    /// The name in the stream.
    pub to_name: String,
    /// Every byte that this call of `zfs receive` read.
    pub path: PathBuf,
    /// Where in that file this snapshot's own stream begins, and how long it is.
    pub offset: u64,
    pub length: u64,
    /// The arguments behind `receive`.
    pub arguments: Vec<String>,
    pub complete: bool,
}

impl Received {
    /// The bytes of this snapshot's own stream.
    pub fn bytes(&self) -> Vec<u8> {
        let all = self.input();
        all[self.offset as usize..(self.offset + self.length) as usize].to_vec()
    }

    /// All bytes that came to the standard input, up to where `zfs receive` stops to read.
    pub fn input(&self) -> Vec<u8> {
        fs::read(&self.path).unwrap_or_else(|e| panic!("cannot read {}: {e}", self.path.display()))
    }
}

/// One thing that goes wrong, and when.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Fault {
    /// `send`, `receive`, `list`, …, or `*`.
    pub command: String,
    /// Only in calls with an argument that contains this.
    #[serde(default)]
    pub argument: Option<String>,
    /// This many calls pass unharmed.
    #[serde(default)]
    pub skip: u32,
    /// Then this many are struck; `None` is every one.
    #[serde(default)]
    pub times: Option<u32>,
    pub what: What,
}

impl Fault {
    pub fn new(command: &str, what: What) -> Self {
        Fault { command: command.to_owned(), argument: None, skip: 0, times: None, what }
    }
    pub fn argument(mut self, part: &str) -> Self {
        self.argument = Some(part.to_owned());
        self
    }
    pub fn skip(mut self, calls: u32) -> Self {
        self.skip = calls;
        self
    }
    pub fn times(mut self, calls: u32) -> Self {
        self.times = Some(calls);
        self
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Death {
    Exit(i32),
    Signal(i32),
}

/// `at` counts bytes of standard output, and for `receive` of standard input. `END` is behind the last one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum What {
    /// Die when `at` bytes went through.
    Die {
        at: u64,
        how: Death,
    },
    /// Say this on stderr and exit, before anything else.
    Fail {
        exit: i32,
        stderr: String,
    },
    /// Never answer.
    Hang,
    /// Answer late.
    Delay {
        ms: u64,
    },
    /// Bytes per second.
    Slow {
        rate: u64,
    },
    Pause {
        at: u64,
        ms: u64,
    },
    PauseUntil {
        at: u64,
        file: PathBuf,
    },
    /// This many bytes of lines on stderr.
    Noise {
        at: u64,
        bytes: u64,
    },
    /// Stay alive on SIGTERM.
    IgnoreTerm,
    /// Change one bit of the byte at `at`.
    Flip {
        at: u64,
    },
    /// Write over what should be there.
    Garbage {
        at: u64,
        length: u64,
    },
    /// Leave bytes out of the middle.
    Cut {
        at: u64,
        length: u64,
    },
    /// Write no more, and exit 0.
    Truncate {
        at: u64,
    },
    /// Write a whole file behind the stream.
    Behind {
        file: PathBuf,
    },
    /// Send a valid stream of a snapshot with this GUID.
    OtherGuid {
        guid: u64,
    },
    /// Exit 0 after `at` bytes of the input, and keep nothing.
    StopReading {
        at: u64,
    },
    /// Print this instead of the answer.
    Stdout {
        text: String,
    },
    /// Lines end with CR LF.
    Crlf,
    /// Each line lacks its last column.
    DropColumn,
}

pub const END: u64 = u64::MAX;

impl State {
    pub fn load(folder: &Path) -> State {
        let path = folder.join("state.json");
        let text = fs::read(&path).unwrap_or_else(|e| panic!("cannot read {}: {e}", path.display()));
        serde_json::from_slice(&text).unwrap_or_else(|e| panic!("cannot understand {}: {e}", path.display()))
    }

    /// Reads, changes and writes, while nobody else can.
    pub fn update<R>(folder: &Path, change: impl FnOnce(&mut State) -> R) -> R {
        let lock = File::create(folder.join("lock")).expect("the lock file of the state");
        lock.lock().expect("the lock of the state");
        let mut state = if folder.join("state.json").exists() {
            State::load(folder)
        } else {
            State { clock: 100, ..State::default() }
        };
        let result = change(&mut state);
        let text = serde_json::to_vec_pretty(&state).expect("the state as JSON");
        fs::write(folder.join("state.new"), text).expect("the new state");
        fs::rename(folder.join("state.new"), folder.join("state.json")).expect("the new state in place");
        result
    }

    pub fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Seconds since 1970 as in the real outputs, and rising.
    pub fn now(&mut self) -> u64 {
        1_796_075_000 + self.tick()
    }

    /// A number that looks like a GUID, and differs each time.
    pub fn guid(&mut self) -> u64 {
        self.tick().wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 << 63
    }

    /// `tank/data@s1`
    pub fn snapshot(&self, name: &str) -> Option<&Snapshot> {
        let (dataset, snapshot) = name.split_once('@')?;
        self.datasets.get(dataset)?.snapshots.iter().find(|s| s.name == snapshot)
    }

    pub fn bookmark(&self, name: &str) -> Option<&Snapshot> {
        let (dataset, bookmark) = name.split_once('#')?;
        self.datasets.get(dataset)?.bookmarks.iter().find(|s| s.name == bookmark)
    }
}
