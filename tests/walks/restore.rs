//! The failing point moved through a restore of a chain, into files and into a pool, and through a check.

use std::fs;
use std::path::Path;

use snapferry::error::Exit;
use snapferry::store::StoreErrorKind::{Broken, Denied};

use crate::bench::{Bench, SEGMENT, Snapshot, World, files_of, told};
use crate::support::faulty::{Fault, Faulty, Operation};
use crate::support::pool::{Death, Fault as ZfsFault, What};

/// A full backup and two incremental ones.
pub fn chain(bench: &Bench) -> Snapshot {
    let world = bench.world();
    for snapshot in ["s1", "s2", "s3"] {
        world.must(&format!("backup offsite tank/data@{snapshot} --segment-size {SEGMENT}"));
    }
    world.snapshot()
}

/// Every fault at every operation of `step`, which returns what was struck.
fn walk(least: usize, mut step: impl FnMut(Fault, u64) -> Vec<(Operation, String)>) {
    for fault in Fault::all() {
        let mut at = 0;
        while !step(fault, at).is_empty() {
            at += 1;
        }
        assert!(at as usize >= least, "it has more than {at} operations");
    }
}

#[test]
fn into_files() {
    let bench = Bench::new();
    let start = chain(&bench);
    walk(20, |fault, at| {
        let world = bench.at(&start);
        let (folder, line) = to_files(&world);
        let (faulty, result) = world.strike(fault, at, 1, &line);
        let struck = faulty.struck();
        let what = format!("{fault:?} at {at}, {struck:?}: {}", told(&result));
        let files = files_of(&folder);
        match result {
            Ok(_) => assert_eq!(files.len(), 3, "{what}: success with {} files", files.len()),
            Err(_) => assert!(!struck.is_empty() && !matches!(fault, Fault::Delay(_)), "{what}"),
        }
        for (place, (name, bytes)) in files.iter().enumerate() {
            assert!(name.starts_with(&format!("00{}-", place + 1)), "{what}: {name} was left");
            assert!(*bytes == bench.streams[place], "{what}: {name} is not identical");
        }
        assert!(!faulty.log().iter().any(|(operation, _)| matches!(operation, Operation::Put | Operation::Delete)));
        struck
    });
}

fn to_files(world: &World<'_>) -> (std::path::PathBuf, String) {
    let folder = world.file("streams");
    fs::create_dir(&folder).expect("a folder");
    let line = world.restore_line("tank/data@s3", &format!("--output-dir {}", folder.display()));
    (folder, line)
}

#[test]
fn into_a_pool() {
    let bench = Bench::new();
    let start = chain(&bench);
    walk(20, |fault, at| {
        let world = bench.at(&start);
        forget_received(&bench);
        let line = world.restore_line("tank/data@s3", "--to pool/restored");
        let (faulty, result) = world.strike(fault, at, 1, &line);
        let struck = faulty.struck();
        let what = format!("{fault:?} at {at}, {struck:?}: {}", told(&result));
        only_beginnings(&bench, &what);
        if result.is_err() {
            assert!(!struck.is_empty() && !matches!(fault, Fault::Delay(_)), "{what}");
            let again = world.good(&line);
            assert!(matches!(again, Ok(Exit::Done)), "{what}: again: {}", told(&again));
        }
        whole_chain(&bench, &what);
        struck
    });
}

fn forget_received(bench: &Bench) {
    let _ = fs::remove_dir_all(bench.pool.folder().join("received"));
    bench.pool.update(|state| {
        state.received.clear();
        state.datasets.remove("pool/restored");
    });
}

/// Whatever `zfs receive` got is the beginning of a true stream.
fn only_beginnings(bench: &Bench, what: &str) {
    let received = bench.pool.folder().join("received");
    let files = if received.is_dir() { files_of(&received) } else { Vec::new() };
    for (name, bytes) in files {
        let true_beginning = bench.streams.iter().any(|stream| stream.starts_with(&bytes));
        assert!(true_beginning, "{what}: zfs receive got other bytes ({name}, {} bytes)", bytes.len());
    }
}

fn whole_chain(bench: &Bench, what: &str) {
    let received = bench.pool.received("pool/restored");
    assert_eq!(received.len(), 3, "{what}: {} streams were received", received.len());
    for (received, stream) in received.iter().zip(&bench.streams) {
        assert!(received.bytes() == *stream, "{what}: {} is not identical", received.snapshot);
        assert!(received.arguments.iter().any(|argument| argument == "-u"), "{:?}", received.arguments);
    }
}

#[test]
fn check_never_passes_over_what_it_read() {
    let bench = Bench::new();
    let start = chain(&bench);
    let line = format!("check offsite --read-data --identity {}", bench.identity.display());
    walk(20, |fault, at| {
        let world = bench.at(&start);
        let (faulty, result) = world.strike(fault, at, 1, &line);
        let struck = faulty.struck();
        let what = format!("{fault:?} at {at}, {struck:?}: {}", told(&result));
        let refused = matches!(fault, Fault::Refuse(_) | Fault::FailAfter(_));
        let read = matches!(struck.first(), Some((Operation::Get, _)))
            && matches!(fault, Fault::Lose | Fault::Flip | Fault::Truncate | Fault::Empty | Fault::Swap);
        if !struck.is_empty() && (refused || read) {
            assert!(!matches!(result, Ok(Exit::Done)), "{what}");
        }
        if struck.is_empty() || matches!(fault, Fault::Delay(_)) {
            assert!(matches!(result, Ok(Exit::Done)), "{what}");
        }
        assert!(!faulty.log().iter().any(|(operation, _)| matches!(operation, Operation::Put | Operation::Delete)));
        struck
    });
}

/// One object that can't be read, such as on a bad place of a disk, keeps nothing else from being checked and restored.
#[test]
fn one_object_that_cannot_be_read() {
    let bench = Bench::new();
    let start = chain(&bench);
    let world = bench.at(&start);
    let (_, recipient) = crate::bench::new_identity(bench.folder(), "other");
    world.must(&format!("key add offsite --recipient {recipient} --identity {}", bench.identity.display()));
    let start = world.snapshot();
    let check = format!("check offsite --read-data --identity {}", bench.identity.display());
    let in_backups = |name: &String| name.starts_with("manifests/") || name.starts_with("segments/");
    for (name, kind) in
        world.names().into_iter().filter(in_backups).flat_map(|name| [Broken, Denied].map(|kind| (name.clone(), kind)))
    {
        let world = bench.at(&start);
        let faulty = Faulty::of_object(world.store.clone(), Fault::Refuse(kind), &name);
        let result = world.on(faulty.clone(), &check);
        assert!(matches!(result, Ok(Exit::Partial)), "{name} {kind:?}: {}", told(&result));
        let mut whole = 0;
        for (snapshot, stream) in ["s1", "s2", "s3"].iter().zip(&bench.streams) {
            let file = world.file(snapshot);
            let line = world.restore_line(&format!("tank/data@{snapshot}"), &format!("--output {}", file.display()));
            match world.on(faulty.clone(), &line) {
                Ok(_) => assert!(fs::read(&file).expect("a file") == *stream, "{name}: {snapshot}"),
                Err(_) => continue,
            }
            whole += 1;
        }
        assert_eq!(whole, 2, "{name} {kind:?}: {whole} of 3 backups came back");
    }
    for name in world.names().into_iter().filter(|name| name.starts_with("keys/")) {
        let world = bench.at(&start);
        let faulty = Faulty::of_object(world.store.clone(), Fault::Refuse(Broken), &name);
        let (first, other) = (bench.identity.display().to_string(), bench.folder().join("other"));
        let opens = |identity: &str| world.on(faulty.clone(), &format!("check offsite --identity {identity}")).is_ok();
        assert_ne!(opens(&first), opens(&other.display().to_string()), "{name}: the other slot opens it");
    }
}

/// With several transfers and both cores the failing point hits another operation each time.
#[test]
fn several_transfers_at_once() {
    let bench = Bench::new();
    let start = chain(&bench);
    for fault in [Fault::Flip, Fault::Swap, Fault::Lose] {
        for at in 0..30 {
            let world = bench.at(&start);
            let (folder, line) = to_files(&world);
            let (_, result) = world.strike(fault, at, 1, &format!("--connections 4 {line}"));
            let files = files_of(&folder);
            assert!(result.is_err() || files.len() == 3, "{fault:?} at {at}: {}", told(&result));
            for (place, (name, bytes)) in files.iter().enumerate() {
                assert!(*bytes == bench.streams[place], "{fault:?} at {at}: {name}");
            }
        }
    }
}

/// `zfs receive` dies at byte N, by status and by signal, or stops to read and says that all is well.
#[test]
fn a_receive_that_dies() {
    let bench = Bench::new();
    let start = chain(&bench);
    let length = bench.streams[0].len() as u64;
    let places = [0, 1, 311, 312, SEGMENT as u64, 20_000, length - 312, length - 1, length];
    let ways = |at| {
        let stops = What::StopReading { at };
        [What::Die { at, how: Death::Exit(1) }, What::Die { at, how: Death::Signal(9) }, stops]
    };
    for (skip, what) in places.into_iter().flat_map(ways).flat_map(|what| [(0, what.clone()), (1, what)]) {
        let world = bench.at(&start);
        forget_received(&bench);
        // The second stream is shorter; some places lie behind its end.
        bench.pool.fault(ZfsFault::new("receive", what.clone()).skip(skip).times(1));
        let line = world.restore_line("tank/data@s3", "--to pool/restored");
        let result = world.good(&line);
        bench.pool.clear_faults();
        let told = format!("{what:?} of receive {skip}: {}", told(&result));
        only_beginnings(&bench, &told);
        if bench.pool.received("pool/restored").len() < 3 {
            assert!(result.is_err(), "{told}: success without the whole chain");
            let again = world.good(&line);
            assert!(matches!(again, Ok(Exit::Done)), "{told}: again: {}", crate::bench::told(&again));
        }
        whole_chain(&bench, &told);
    }
}

#[test]
fn a_full_device() {
    let bench = Bench::new();
    let world = bench.at(&chain(&bench));
    let result = world.good(&world.restore_line("tank/data@s1", "--output /dev/full"));
    let error = result.expect_err("success on a full device");
    let text = snapferry::error::message_of(&error);
    assert!(text.contains("/dev/full") && text.contains("No space left"), "{text}");
}

#[test]
fn a_full_disk() {
    let bench = Bench::new();
    let world = bench.at(&chain(&bench));
    let mount = world.file("small");
    fs::create_dir(&mount).expect("a folder");
    let Some(_mounted) = Tmpfs::mount(&mount, 32 * 1024) else { return };
    let file = mount.join("stream");
    let result = world.good(&world.restore_line("tank/data@s1", &format!("--output {}", file.display())));
    let text = snapferry::error::message_of(&result.expect_err("success on a full disk"));
    assert!(text.contains("No space left"), "{text}");
    assert_eq!(files_of(&mount), [], "what could not be finished is removed");
}

/// A file system of a few pages; only root can make one.
struct Tmpfs<'p>(&'p Path);

impl Tmpfs<'_> {
    fn mount(place: &Path, bytes: u64) -> Option<Tmpfs<'_>> {
        let options = format!("size={bytes}");
        let mounted =
            std::process::Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(place).output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(Tmpfs(place));
        }
        eprintln!("SKIPPED: a small file system can't be mounted here; run this as root");
        None
    }
}

impl Drop for Tmpfs<'_> {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0).status();
    }
}
