//! The failing point moved through a backup: into an empty repository, onto a chain, going on after an
//! interruption, and starting over after one.

use std::sync::Arc;
use std::time::Duration;

use snapferry::error::Exit;
use snapferry::store::StoreErrorKind::Transient;
use snapferry::store::retry::{Retry, RetryPolicy};
use snapferry::store::{ObjectInfo, Store, StoreError};

use crate::bench::{Bench, SEGMENT, Snapshot, World, is_busy, settle, told};
use crate::support::faulty::{Fault, Faulty, Operation};
use crate::support::pool::{Death, Fault as ZfsFault, What};

/// One command whose every operation is struck.
struct Walk<'b> {
    bench: &'b Bench,
    start: Snapshot,
    line: String,
    /// What is restored by its id when the backup was made.
    stream: &'b [u8],
    /// The same snapshot without a base.
    full: &'b [u8],
    /// Folders of segments that may be left: of a run that was given up.
    given_up: Vec<String>,
}

fn line(snapshot: &str) -> String {
    format!("backup offsite tank/data@{snapshot} --segment-size {SEGMENT}")
}

impl Walk<'_> {
    /// Every fault at every operation; returns how many struck.
    fn run(&self, times: u64) -> usize {
        let mut steps = 0;
        for fault in Fault::all() {
            let struck = (0..).take_while(|at| self.step(fault, *at, times)).count();
            assert!(struck >= 8, "a backup has more than {struck} operations");
            steps += struck;
        }
        steps
    }

    /// False when the failing point is beyond the last operation.
    fn step(&self, fault: Fault, at: u64, times: u64) -> bool {
        let world = self.bench.at(&self.start);
        let before = world.manifests();
        let (faulty, result) = world.strike(fault, at, times, &self.line);
        let struck = faulty.struck();
        let Some((operation, name)) = struck.first() else {
            assert!(matches!(result, Ok(Exit::Done)), "without a fault: {}", told(&result));
            return false;
        };
        let what = format!("{fault:?} at operation {at}, {operation:?} {name}: {}", told(&result));
        let lied = struck.iter().any(|(operation, _)| fault.lies_about(*operation));
        let made: Vec<_> = world.manifests().into_iter().filter(|id| !before.contains(id)).collect();
        assert!(made.len() <= 1, "{what}: made {made:?}");
        if result.is_ok() && !lied {
            assert_eq!(made.len(), 1, "{what}: success without a manifest");
        }
        if let Fault::Delay(_) = fault {
            assert!(matches!(result, Ok(Exit::Done)), "{what}");
        }
        if lied && result.is_ok() {
            self.after_a_lie(&world, &made, &what);
        } else {
            if let [id] = &made[..] {
                let restored = world.restored(id).expect(&what);
                // A base that could not be read is told of, and makes the backup a full one.
                let full = matches!(result, Ok(Exit::Partial)) && restored == self.full;
                assert!(full || restored == self.stream, "{what}: not identical");
            }
            self.again(&world, &what);
        }
        true
    }

    /// The store was honest: the same command on a good one goes on, and leaves nothing behind.
    fn again(&self, world: &World<'_>, what: &str) {
        let again = world.good(&self.line);
        assert!(matches!(again, Ok(Exit::Done)), "{what}: again: {}", told(&again));
        let made = world.manifests().into_iter().find(|id| self.is_new(id)).expect(what);
        let restored = world.restored(&made).expect(what);
        assert!(restored == self.stream || restored == self.full, "{what}: not identical after another try");
        let strays: Vec<_> = world.strays();
        let given_up = |name: &String| self.given_up.iter().any(|folder| name.starts_with(folder));
        assert!(strays.iter().all(given_up), "{what}: left over: {strays:?}");
        let check = world.good("check offsite --read-data");
        assert!(matches!(check, Ok(Exit::Done)), "{what}: check: {}", told(&check));
    }

    /// The store said that it had kept what it had not. No program can know at once, but nothing wrong comes back,
    /// `check` finds it, and another backup helps.
    fn after_a_lie(&self, world: &World<'_>, made: &[String], what: &str) {
        let whole = match made {
            [id] => match world.restored(id) {
                Ok(bytes) => {
                    assert!(bytes == self.stream, "{what}: other bytes came back");
                    true
                }
                Err(_) => false,
            },
            _ => false,
        };
        if !whole {
            let check = world.good("check offsite --read-data");
            assert!(matches!(check, Ok(Exit::Partial)), "{what}: check says {}", told(&check));
        }
        let full = format!("{} --full", self.line.replace(" --no-resume", ""));
        let again = world.good(&full);
        assert!(matches!(again, Ok(Exit::Done | Exit::Partial)), "{what}: again: {}", told(&again));
        let newest = world.manifests().into_iter().find(|id| !made.contains(id) && self.is_new(id));
        let newest = newest.unwrap_or_else(|| panic!("{what}: no other manifest"));
        world.restored(&newest).expect(what);
    }

    fn is_new(&self, id: &str) -> bool {
        !self.bench.at(&self.start).manifests().iter().any(|old| old == id)
    }
}

#[test]
fn into_an_empty_repository() {
    let bench = Bench::new();
    let (start, line) = (bench.world().snapshot(), line("s1"));
    let steps =
        Walk { bench: &bench, start, line, stream: &bench.streams[0], full: &bench.streams[0], given_up: Vec::new() }
            .run(1);
    eprintln!("{steps} steps");
}

#[test]
fn onto_a_chain() {
    let bench = Bench::new();
    let world = bench.world();
    world.must(&line("s1"));
    let start = world.snapshot();
    let steps = Walk {
        bench: &bench,
        start,
        line: line("s2"),
        stream: &bench.streams[1],
        full: &bench.full_s2,
        given_up: Vec::new(),
    }
    .run(1);
    eprintln!("{steps} steps");
}

/// As it is after a run whose source died: three segments are stored.
fn interrupted(bench: &Bench) -> Snapshot {
    let world = bench.world();
    bench
        .pool
        .fault(ZfsFault::new("send", What::Die { at: 3 * SEGMENT as u64 + 100, how: Death::Exit(1) }).argument("-L"));
    // The estimate asks `zfs send` as well, and does not die of it.
    let result = world.good(&line("s1"));
    bench.pool.clear_faults();
    assert!(result.is_err() && world.manifests().is_empty(), "{}", told(&result));
    assert_eq!(world.strays().len(), 3, "{:?}", world.strays());
    world.snapshot()
}

#[test]
fn going_on_after_an_interruption() {
    let bench = Bench::new();
    let start = interrupted(&bench);
    let steps = Walk {
        bench: &bench,
        start,
        line: line("s1"),
        stream: &bench.streams[0],
        full: &bench.streams[0],
        given_up: Vec::new(),
    }
    .run(1);
    eprintln!("{steps} steps");
}

#[test]
fn starting_over_after_an_interruption() {
    let bench = Bench::new();
    let start = interrupted(&bench);
    let world = bench.at(&start);
    let folder = world.strays()[0].rsplitn(3, '/').nth(2).expect("segments/<id>").to_owned();
    let line = format!("{} --no-resume", line("s1"));
    let steps =
        Walk { bench: &bench, start, line, stream: &bench.streams[0], full: &bench.streams[0], given_up: vec![folder] }
            .run(1);
    eprintln!("{steps} steps");
}

/// A store that goes away and stays away: every operation from the n-th on fails.
#[test]
fn a_store_that_stays_away() {
    let bench = Bench::new();
    let start = bench.world().snapshot();
    let walk = Walk {
        bench: &bench,
        start,
        line: line("s1"),
        stream: &bench.streams[0],
        full: &bench.streams[0],
        given_up: Vec::new(),
    };
    for fault in [Fault::Refuse(Transient), Fault::FailAfter(Transient)] {
        let struck = (0..).take_while(|at| walk.step(fault, *at, u64::MAX)).count();
        assert!(struck >= 10);
    }
}

/// Two failures that pass, wherever they come and whether or not the operation took effect, are not even noticed.
#[test]
fn failures_that_pass_are_overcome() {
    let bench = Bench::new();
    let start = interrupted(&bench);
    let policy =
        RetryPolicy { tries: 4, first_wait: Duration::from_micros(10), longest_wait: Duration::from_micros(50) };
    for fault in [Fault::Refuse(Transient), Fault::FailAfter(Transient)] {
        for at in 0.. {
            let world = bench.at(&start);
            let (faulty, result) = loop {
                let faulty = Faulty::new(world.store.clone(), fault, at, 2);
                let store = Arc::new(Retry::new(Shared(Arc::clone(&faulty)), policy));
                let result = world.on(Arc::clone(&store) as Arc<dyn Store>, &line("s1"));
                settle(&store, 1);
                if !is_busy(&result) {
                    break (faulty, result);
                }
            };
            let struck = faulty.struck();
            assert!(matches!(result, Ok(Exit::Done)), "{fault:?} at {at}, {struck:?}: {}", told(&result));
            assert!(world.restored("tank/data@s1").expect("a restore") == bench.streams[0]);
            assert_eq!(world.strays(), Vec::<String>::new(), "{fault:?} at {at}, {struck:?}");
            if struck.is_empty() {
                break;
            }
        }
    }
}

struct Shared(Arc<Faulty>);

impl Store for Shared {
    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.0.put(name, bytes)
    }
    fn get(&self, name: &str, limit: u64) -> Result<Vec<u8>, StoreError> {
        self.0.get(name, limit)
    }
    fn size(&self, name: &str) -> Result<u64, StoreError> {
        self.0.size(name)
    }
    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        self.0.list(prefix)
    }
    fn delete(&self, name: &str) -> Result<(), StoreError> {
        self.0.delete(name)
    }
}

/// With several transfers at once the failing point hits another operation each time; what must hold is the same.
#[test]
fn several_transfers_at_once() {
    let bench = Bench::new();
    for at in 0..16 {
        for fault in [Fault::Refuse(Transient), Fault::FailAfter(Transient)] {
            let world = bench.world();
            let (faulty, result) = world.strike(fault, at, 1, &format!("--connections 4 {}", line("s1")));
            let struck = faulty.struck();
            // A manifest that landed is looked up.
            let landed = matches!(fault, Fault::FailAfter(_))
                && struck.iter().all(|(_, name)| name.starts_with("manifests/") && name.ends_with(".age"));
            assert_eq!(result.is_ok(), landed || struck.is_empty(), "{fault:?} at {at}, {struck:?}: {}", told(&result));
            world.must(&line("s1"));
            assert!(world.restored("tank/data@s1").expect("a restore") == bench.streams[0]);
            assert_eq!(world.strays(), Vec::<String>::new(), "{fault:?} at {at}: {:?}", faulty.struck());
        }
    }
}

/// The order of writing is the format's: the manifest is the very last thing.
#[test]
fn the_manifest_is_the_last_write() {
    let bench = Bench::new();
    let world = bench.world();
    let (faulty, result) = world.strike(Fault::Lose, u64::MAX, 0, &line("s1"));
    assert!(matches!(result, Ok(Exit::Done)));
    let writes: Vec<_> = faulty.log().into_iter().filter(|(operation, _)| *operation == Operation::Put).collect();
    let [segments @ .., signature, manifest] = &writes[..] else { panic!("{writes:?}") };
    assert!(segments.len() == 5 && segments.iter().all(|(_, name)| name.starts_with("segments/")), "{writes:?}");
    assert!(signature.1.ends_with(".age.minisig") && manifest.1.ends_with(".age"), "{writes:?}");
    assert_eq!(faulty.log().last(), Some(manifest));
}
