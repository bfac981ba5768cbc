//! A folder full of made-up ZFS pools for the stand-in `zfs`, and what it received.
//!
//! The names, GUIDs and streams of `Pool::real` are those of the real machine behind `tests/streams`.
#![allow(dead_code, unused_imports, reason = "each test binary uses a part of this")]

use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "standin_zfs/noise.rs"]
mod noise;
#[path = "standin_zfs/record.rs"]
pub mod record;
#[path = "standin_zfs/state.rs"]
pub mod state;
#[path = "standin_zfs/synthetic.rs"]
mod synthetic;

use state::{Dataset, FAULT_VARIABLE, STATE_VARIABLE, Snapshot, State, Stream};
pub use state::{Death, END, Fault, Received, What};
pub use synthetic::synthetic_stream;

/// GUIDs of `tank/data@s1` to `@s5`.
pub const S: [u64; 5] =
    [10836421798840580573, 13617474349262005280, 9076962664343179789, 5739995582101851078, 16236894886179084527];

pub struct Pool {
    folder: PathBuf,
}

/// The program in the place of `zfs`.
pub fn standin_zfs() -> PathBuf {
    standin("standin_zfs")
}

/// A program of the tests, built by `cargo test` among the examples.
pub fn standin(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let profile = test.ancestors().nth(2).expect("target/<profile>/deps/<test>");
    let program = profile.join("examples").join(name);
    assert!(program.exists(), "{} is missing: build it with `cargo build --examples`", program.display());
    program
}

/// A real stream of `tests/streams`.
pub fn real_stream(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/streams").join(name)
}

impl Pool {
    /// Two empty pools, `tank` to send from and `pool` to receive into. The folder is made where it is missing.
    pub fn new(folder: impl Into<PathBuf>) -> Pool {
        let pool = Pool { folder: folder.into() };
        std::fs::create_dir_all(&pool.folder).expect("the folder of the pools");
        pool.add_dataset("tank").add_dataset("pool");
        pool
    }

    /// The datasets of the real machine, each with the streams that are at hand.
    pub fn real(self) -> Pool {
        self.real_data().real_encrypted().real_project().real_others()
    }

    fn real_data(self) -> Pool {
        self.add_dataset("tank/data");
        let times = [(10, 57, 167424, 1399808), (11, 58, 154624, 1499648), (13, 60, 16384, 1156608)];
        let times = times.into_iter().chain([(14, 61, 0, 1157120), (20, 82, 0, 1157120)]);
        for (number, (txg, time, used, referenced)) in times.enumerate() {
            let name = format!("s{}", number + 1);
            self.snapshot_with("tank/data", &name, S[number], txg, 1_796_074_200 + time, (used, referenced));
        }
        self.add_bookmark("tank/data@s2", "b2");
        self.real_answer((S[0], None), "", "full.zfs", 1378720);
        self.real_answer((S[1], Some(S[0])), "", "inc_i.zfs", 253736);
        self.real_answer((S[2], Some(S[1])), "", "inc_bookmark.zfs", 194856);
        // The package of `-I` holds the very bytes of `-i` for each step.
        let package = std::fs::read(real_stream("inc_I.zfs")).expect("inc_I.zfs");
        let step = self.folder.join("inc_s3_s4.zfs");
        std::fs::write(&step, &package[550_272..589_264]).expect("a part of inc_I.zfs");
        self.add_answer(Stream { to: S[3], from: Some(S[2]), estimate: 10864, file: step, ..Stream::default() });
        self.real_answer((S[4], Some(S[3])), "", "inc_empty.zfs", 624);
        self.real_answer((S[3], Some(S[0])), "I", "inc_I.zfs", 459456);
        self.dry_run(&[
            "incremental\ts1\ttank/data@s2\t253736",
            "incremental\ts2\ttank/data@s3\t194856",
            "incremental\ts3\ttank/data@s4\t10864",
        ]);
        self
    }

    fn real_encrypted(self) -> Pool {
        self.add_dataset("tank/enc");
        self.edit("tank/enc", |d| d.encryption = "aes-256-gcm".to_owned());
        let (e1, e2) = (13119124380204079649, 3972694273707464155);
        self.snapshot_with("tank/enc", "e1", e1, 44, 1796074311, (88064, 404480));
        self.snapshot_with("tank/enc", "e2", e2, 45, 1796074312, (0, 435200));
        self.real_answer((e1, None), "w", "enc_raw_full.zfs", 337888);
        self.real_answer((e2, Some(e1)), "w", "enc_raw_inc.zfs", 75376);
        self.real_answer((e1, None), "", "enc_decrypted_full.zfs", 337888);
        self
    }

    fn real_project(self) -> Pool {
        let r = [(28, 88), (30, 90), (32, 92)];
        let trees: [(&str, &[(usize, u64)]); 5] = [
            ("tank/proj", &[(1, 2742521300914342287), (2, 8191403173377187735), (3, 4129584171708852611)]),
            ("tank/proj/child", &[(1, 897306019490054818), (2, 6405782746085252691), (3, 12549653047517710708)]),
            ("tank/proj/clone", &[(3, 12183114084881681581)]),
            ("tank/proj/empty", &[(1, 16062324142762658969), (2, 12669481334351577327), (3, 7672746599224315776)]),
            ("tank/proj/late", &[(2, 380615911217296242), (3, 9001910136542353565)]),
        ];
        for (dataset, snapshots) in trees {
            self.add_dataset(dataset);
            for &(number, guid) in snapshots {
                let (txg, time) = r[number - 1];
                self.snapshot_with(dataset, &format!("r{number}"), guid, txg, 1_796_074_200 + time, (0, 58368));
            }
        }
        self.edit("tank/proj/clone", |d| d.origin = Some("tank/proj/child@r1".to_owned()));
        self.edit("tank/proj", |d| {
            d.properties.insert("org.example:note".to_owned(), "hello".to_owned());
        });
        self.real_answer((12183114084881681581, Some(897306019490054818)), "", "clone_origin.zfs", 9464);
        self.real_answer((4129584171708852611, None), "R", "repl_R.zfs", 381328);
        self.dry_run(&[
            "full\ttank/proj@r1\t73328",
            "incremental\tr1\ttank/proj@r2\t68720",
            "incremental\tr2\ttank/proj@r3\t8304",
            "full\ttank/proj/empty@r1\t12912",
            "incremental\tr1\ttank/proj/empty@r2\t624",
            "incremental\tr2\ttank/proj/empty@r3\t624",
            "full\ttank/proj/late@r2\t13424",
            "incremental\tr2\ttank/proj/late@r3\t624",
            "full\ttank/proj/child@r1\t80208",
            "incremental\tr1\ttank/proj/child@r2\t41952",
            "incremental\tr2\ttank/proj/child@r3\t624",
            "full\ttank/proj/clone@r3\t79984",
        ]);
        self
    }

    fn real_others(self) -> Pool {
        self.add_dataset("tank/vol").add_dataset("tank/zstd");
        self.edit("tank/vol", |d| d.kind = "volume".to_owned());
        let (v1, v2, c1) = (1586926543992010433, 6539017798114300803, 17671725201668788694);
        self.snapshot_with("tank/vol", "v1", v1, 67, 1796074331, (57344, 262144));
        self.snapshot_with("tank/vol", "v2", v2, 72, 1796074332, (0, 262144));
        self.snapshot_with("tank/zstd", "c1", c1, 52, 1796074318, (0, 311296));
        self.real_answer((v1, None), "", "zvol_full.zfs", 260280);
        self.real_answer((v2, Some(v1)), "", "zvol_inc.zfs", 44280);
        self.real_answer((c1, None), "c", "comp_zstd.zfs", 299200);
        self
    }

    fn real_answer(&self, guids: (u64, Option<u64>), options: &str, file: &str, estimate: u64) {
        self.add_answer(Stream {
            to: guids.0,
            from: guids.1,
            options: options.to_owned(),
            file: real_stream(file),
            estimate,
            dry_run: Vec::new(),
        });
    }

    /// The lines of a dry run for the stream added last.
    fn dry_run(&self, lines: &[&str]) {
        let lines = lines.iter().map(|line| (*line).to_owned()).collect();
        self.update(|state| state.streams.last_mut().expect("a stream").dry_run = lines);
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn state(&self) -> State {
        State::load(&self.folder)
    }

    /// Changes anything in the state.
    pub fn update<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        State::update(&self.folder, change)
    }

    pub fn edit(&self, dataset: &str, change: impl FnOnce(&mut Dataset)) -> &Self {
        self.update(|state| change(state.datasets.get_mut(dataset).unwrap_or_else(|| panic!("no dataset {dataset}"))));
        self
    }

    pub fn add_dataset(&self, name: &str) -> &Self {
        self.update(|state| {
            let (guid, createtxg, creation) = (state.guid(), state.tick(), state.now());
            let dataset = Dataset { guid, createtxg, creation, ..Dataset::default() };
            state.datasets.insert(name.to_owned(), dataset);
        });
        self
    }

    pub fn rename_dataset(&self, old: &str, new: &str) -> &Self {
        self.update(|state| {
            let below = format!("{old}/");
            let names: Vec<String> =
                state.datasets.keys().filter(|n| *n == old || n.starts_with(&below)).cloned().collect();
            assert!(!names.is_empty(), "no dataset {old}");
            for name in names {
                let dataset = state.datasets.remove(&name).expect("it was there");
                state.datasets.insert(format!("{new}{}", &name[old.len()..]), dataset);
            }
        });
        self
    }

    /// A snapshot newer than all before it. Its GUID comes back; a stream is not there yet.
    pub fn add_snapshot(&self, dataset: &str, name: &str) -> u64 {
        let (guid, txg, creation) = self.update(|state| (state.guid(), state.tick(), state.now()));
        self.snapshot_with(dataset, name, guid, txg, creation, (0, 24576));
        guid
    }

    /// `sizes`: used, referenced.
    pub fn snapshot_with(
        &self,
        dataset: &str,
        name: &str,
        guid: u64,
        txg: u64,
        creation: u64,
        sizes: (u64, u64),
    ) -> &Self {
        let (used, referenced) = sizes;
        let name = name.to_owned();
        let snapshot =
            Snapshot { name, guid, createtxg: txg, creation, used, referenced, changed: true, ..Snapshot::default() };
        self.edit(dataset, |d| d.snapshots.push(snapshot))
    }

    /// `tank/data@s1`
    pub fn remove_snapshot(&self, full_name: &str) -> &Self {
        let (dataset, name) = full_name.split_once('@').expect("dataset@snapshot");
        self.edit(dataset, |d| d.snapshots.retain(|s| s.name != name))
    }

    /// A bookmark of `tank/data@s1` in its dataset.
    pub fn add_bookmark(&self, snapshot: &str, mark: &str) -> &Self {
        let found = self.state().snapshot(snapshot).unwrap_or_else(|| panic!("no snapshot {snapshot}")).clone();
        let dataset = snapshot.split('@').next().expect("a name");
        self.edit(dataset, |d| d.bookmarks.push(Snapshot { name: mark.to_owned(), ..found }))
    }

    /// What `zfs send` writes for a snapshot, in full or from a base.
    pub fn add_stream(&self, to: u64, from: Option<u64>, file: &Path) -> &Self {
        let size = std::fs::metadata(file).unwrap_or_else(|e| panic!("{}: {e}", file.display())).len();
        // An estimate is never exact, not even by chance.
        let estimate = size - size / 13 - 1;
        let file = file.to_owned();
        self.add_answer(Stream { to, from, estimate, file, ..Stream::default() })
    }

    /// As `add_stream`, with the options and the estimate.
    pub fn add_answer(&self, stream: Stream) -> &Self {
        self.update(|state| state.streams.push(stream));
        self
    }

    /// A new snapshot with a made-up stream of `bytes` bytes, in full or from a snapshot of the same dataset.
    /// Both the GUID and the file come back.
    pub fn add_synthetic(&self, dataset: &str, name: &str, base: Option<&str>, bytes: usize) -> (u64, PathBuf) {
        let to_name = format!("{dataset}@{name}");
        let from = base.map(|base| self.guid(&format!("{dataset}@{base}")));
        let guid = match self.state().snapshot(&to_name) {
            Some(there) => there.guid,
            None => self.add_snapshot(dataset, name),
        };
        let file = self.folder.join(format!("synthetic-{guid}-{}.zfs", from.unwrap_or(0)));
        let stream = synthetic_stream(guid, from.unwrap_or(0), &to_name, bytes, guid ^ from.unwrap_or(0));
        std::fs::write(&file, stream).expect("a synthetic stream");
        self.add_stream(guid, from, &file);
        (guid, file)
    }

    pub fn guid(&self, snapshot: &str) -> u64 {
        self.state().snapshot(snapshot).unwrap_or_else(|| panic!("no snapshot {snapshot}")).guid
    }

    /// From now on any snapshot can be sent, by a stream of about so many bytes.
    pub fn make_up_streams(&self, bytes: usize) -> &Self {
        self.update(|state| state.made_up = Some(bytes));
        self
    }

    /// From now on these commands are not permitted; `userprop` is the right to set user properties.
    pub fn deny(&self, commands: &[&str]) -> &Self {
        self.update(|state| state.denied = commands.iter().map(|command| (*command).to_owned()).collect());
        self
    }

    /// From now on this goes wrong.
    pub fn fault(&self, fault: Fault) -> &Self {
        self.update(|state| state.faults.push(fault));
        self
    }

    pub fn clear_faults(&self) -> &Self {
        self.update(|state| state.faults.clear());
        self
    }

    /// The snapshots that a dataset received whole, in order.
    pub fn received(&self, dataset: &str) -> Vec<Received> {
        self.attempts(dataset).into_iter().filter(|r| r.complete).collect()
    }

    /// Also those that broke off.
    pub fn attempts(&self, dataset: &str) -> Vec<Received> {
        self.state().received.into_iter().filter(|r| r.dataset == dataset).collect()
    }

    /// The arguments of every call so far, `zfs` itself left out.
    pub fn calls(&self) -> Vec<Vec<String>> {
        let text = std::fs::read_to_string(self.folder.join("calls")).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).expect("a logged call")).collect()
    }

    /// The stand-in, ready to run on this pool.
    pub fn zfs(&self) -> Command {
        let mut command = Command::new(standin_zfs());
        command.env(STATE_VARIABLE, &self.folder);
        command
    }

    /// Lets a program find the stand-in as `zfs`, first on its PATH, and this pool.
    pub fn serve<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let bin = self.folder.join("bin");
        std::fs::create_dir_all(&bin).expect("a folder for the PATH");
        if !bin.join("zfs").exists() {
            std::os::unix::fs::symlink(standin_zfs(), bin.join("zfs")).expect("a link to the stand-in");
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let paths = std::iter::once(bin).chain(std::env::split_paths(&path));
        command.env("PATH", std::env::join_paths(paths).expect("a PATH")).env(STATE_VARIABLE, &self.folder)
    }

    /// One fault for one process, not for the state: set it with `.env(name, value)`.
    pub fn fault_variable(fault: &Fault) -> (&'static str, String) {
        (FAULT_VARIABLE, serde_json::to_string(fault).expect("a fault as JSON"))
    }
}
