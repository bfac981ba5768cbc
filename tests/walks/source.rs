//! The source goes wrong at byte N: it dies by status or by signal, ends early and calls it success, changes bits,
//! leaves bytes out, adds some, or sends something else.

use std::fs;

use snapferry::error::Exit;

use crate::bench::{Bench, SEGMENT, World, told};
use crate::support::pool::{Death, END, Fault, What, synthetic_stream};

fn line() -> String {
    format!("backup offsite tank/data@s1 --segment-size {SEGMENT}")
}

/// No manifest; and once the source is well again the same command goes on and leaves nothing behind.
fn strike(bench: &Bench, what: &What) {
    let world = bench.world();
    bench.pool.fault(Fault::new("send", what.clone()));
    let result = world.good(&line());
    bench.pool.clear_faults();
    assert!(result.is_err(), "{what:?}: {}", told(&result));
    assert_eq!(world.manifests(), Vec::<String>::new(), "{what:?}: a manifest of half a backup");
    well_again(&world, &format!("{what:?}"));
}

fn well_again(world: &World<'_>, what: &str) {
    let again = world.good(&line());
    assert!(matches!(again, Ok(Exit::Done)), "{what}: again: {}", told(&again));
    assert!(world.restored("tank/data@s1").expect(what) == world.bench.streams[0], "{what}: not identical");
    assert_eq!(world.strays(), Vec::<String>::new(), "{what}");
}

/// Around the edges of records and segments, and between.
fn places(length: u64) -> Vec<u64> {
    let segments = (1..=length / SEGMENT as u64).map(|n| n * SEGMENT as u64);
    let edges = [0, 1, 312, 624, 792, length - 624, length - 312, length - 1].into_iter().chain(segments);
    let mut places: Vec<u64> = edges.flat_map(|edge| [edge.saturating_sub(1), edge, edge + 1]).collect();
    places.sort_unstable();
    places.dedup();
    places.retain(|place| *place < length);
    places
}

#[test]
fn dies_at_byte_n() {
    let bench = Bench::new();
    for at in places(bench.streams[0].len() as u64) {
        strike(&bench, &What::Die { at, how: Death::Exit(1) });
        strike(&bench, &What::Die { at, how: Death::Signal(9) });
    }
}

/// All bytes were written, and then the status says that it failed: what a shell's pipe loses.
#[test]
fn fails_after_the_last_byte() {
    let bench = Bench::new();
    for how in [Death::Exit(1), Death::Exit(255), Death::Signal(15), Death::Signal(9)] {
        strike(&bench, &What::Die { at: END, how });
        strike(&bench, &What::Die { at: bench.streams[0].len() as u64, how });
    }
}

#[test]
fn ends_early_and_calls_it_success() {
    let bench = Bench::new();
    for at in places(bench.streams[0].len() as u64) {
        strike(&bench, &What::Truncate { at });
    }
}

#[test]
fn changes_a_bit() {
    let bench = Bench::new();
    let length = bench.streams[0].len() as u64;
    for at in places(length).into_iter().chain((0..length).step_by(1009)) {
        strike(&bench, &What::Flip { at });
    }
}

#[test]
fn sends_something_else() {
    let bench = Bench::new();
    let length = bench.streams[0].len() as u64;
    let behind = bench.folder().join("behind");
    for more in [&b"\0"[..], &[0; 312], b"warning: something\n", &bench.streams[1]] {
        fs::write(&behind, more).expect("a file");
        strike(&bench, &What::Behind { file: behind.clone() });
    }
    strike(&bench, &What::OtherGuid { guid: 4711 });
    for at in [0, 312, 5000, length - 312] {
        strike(&bench, &What::Cut { at, length: 8 });
        strike(&bench, &What::Cut { at, length: 312 });
        strike(&bench, &What::Garbage { at, length: 64 });
    }
    strike(&bench, &What::Fail { exit: 1, stderr: "cannot open 'tank/data@s1': permission denied\n".into() });
    strike(&bench, &What::Fail { exit: 0, stderr: String::new() });
}

/// What comes the second time is not what came the first time. Nothing of the first is left in the second.
#[test]
fn two_streams_are_never_spliced() {
    let bench = Bench::new();
    let guid = bench.pool.guid("tank/data@s1");
    let stream = bench.pool.state().streams.into_iter().find(|stream| stream.to == guid).expect("a stream");
    let true_stream = bench.streams[0].clone();
    for seed in 0..4 {
        let world = bench.world();
        // Longer, shorter, and of the same length as the true one.
        let length = [40_000, 60_000, 20_000, 40_000][seed as usize];
        let other = synthetic_stream(guid, 0, "tank/data@s1", length, seed);
        assert!(other != true_stream);
        fs::write(&stream.file, &other).expect("another stream");
        let last = [END, 50_000, 20_000, 3 * SEGMENT as u64][seed as usize];
        bench.pool.fault(Fault::new("send", What::Die { at: last, how: Death::Exit(1) }));
        let result = world.good(&line());
        assert!(result.is_err() && !world.strays().is_empty(), "{}", told(&result));
        bench.pool.clear_faults();
        fs::write(&stream.file, &true_stream).expect("the true stream");
        well_again(&world, &format!("seed {seed}"));
    }
}
