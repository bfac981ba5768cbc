//! Volumes that are files: both engines, reads of one block and of two, sizes, far offsets, several at once.

use std::collections::HashMap;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::run::{BLOCK, MIB, Place, Running, all_once, has, once, one, touched, volume};
use crate::support::lazy_volume::{LazyVolumes, Settings};

const TIB: u64 = 1 << 40;
const GIB: u64 = 1 << 30;
const ENGINES: [&str; 2] = ["io-uring", "threads"];

fn quick(size: u64) -> Settings {
    Settings { size, cold_latency: Duration::from_millis(2), ..Settings::default() }
}

#[test]
fn every_block_is_touched_once_by_both_engines_and_with_reads_of_two() {
    let sizes = [33 * MIB + 1, 16 * MIB + BLOCK - 511, 16 * MIB];
    let Some(volumes) = LazyVolumes::mount(sizes.map(quick).to_vec()) else { return };
    let place = Place::new();
    for engine in ENGINES {
        for straddle in ["on", "off", "auto"] {
            for (n, size) in sizes.into_iter().enumerate() {
                volumes.reset(n);
                let state = place.path(&format!("{engine}-{straddle}-{n}"));
                let options = format!("--engine {engine} --straddle {straddle} --state {}", state.display());
                place.warm(&format!("{options} {}", volume(&volumes, n))).silent();
                all_once(&volumes, n);
                let (blocks, reads) = (size.div_ceil(BLOCK), volumes.reads(n));
                match straddle {
                    // The last block may be too short for the second half of such a read.
                    "on" => assert!((blocks.div_ceil(2)..=blocks / 2 + 2).contains(&reads), "{reads} of {blocks}"),
                    "off" => assert_eq!(reads, blocks),
                    _ => assert!((blocks / 2..=blocks).contains(&reads), "{reads} of {blocks}"),
                }
            }
        }
    }
}

#[test]
fn sizes_around_a_byte_a_sector_a_read_and_a_block() {
    let sizes = [1, 511, 512, 513, 4095, 4096, 4097, BLOCK - 1, BLOCK, BLOCK + 1, BLOCK + 4096, 2 * BLOCK + 4095];
    let Some(volumes) = LazyVolumes::mount(sizes.map(quick).to_vec()) else { return };
    let place = Place::new();
    let all: Vec<String> = (0..sizes.len()).map(|n| volume(&volumes, n)).collect();
    for (engine, straddle) in [("io-uring", "on"), ("threads", "off")] {
        let options = format!("--again --engine {engine} --straddle {straddle} --json");
        let run = place.warm(&format!("{options} {}", all.join(" "))).exit(0);
        for (n, size) in sizes.into_iter().enumerate() {
            all_once(&volumes, n);
            let (done, start) = (run.done(n), &run.events()[0]["volumes"][n]);
            assert_eq!((done["touched"].as_u64(), done["failed"].as_u64()), (Some(size.div_ceil(BLOCK)), Some(0)));
            assert_eq!(start["size"], size);
            volumes.reset(n);
        }
    }
}

#[test]
fn beyond_4_gib_and_2_tib() {
    let size = 3 * TIB + 1;
    let Some(volumes) = one(Settings { size, fill: 0.0, ..Settings::default() }) else { return };
    let place = Place::new();
    // Where it begins, how long it is, and which blocks these bytes lie in.
    let windows = [
        (2 * TIB - 10 * MIB, 20 * MIB, 2 * TIB / BLOCK - 20..2 * TIB / BLOCK + 20),
        (2 * TIB - 1, 2, 2 * TIB / BLOCK - 1..2 * TIB / BLOCK + 1),
        (4 * GIB - 10 * MIB, 20 * MIB, 4 * GIB / BLOCK - 20..4 * GIB / BLOCK + 20),
        (4 * GIB - 1, 2, 4 * GIB / BLOCK - 1..4 * GIB / BLOCK + 1),
        (3 * TIB - MIB, 4 * MIB, 3 * TIB / BLOCK - 2..3 * TIB / BLOCK + 1),
    ];
    for (at, (offset, length, blocks)) in windows.into_iter().enumerate() {
        let (engine, straddle) = (ENGINES[at % 2], ["on", "off", "auto"][at % 3]);
        let options = format!("--again --engine {engine} --straddle {straddle} --offset {offset} --length {length}");
        place.warm(&format!("{options} {}", volume(&volumes, 0))).silent();
        once(&volumes, 0, blocks);
        volumes.reset(0);
    }
    place.warm(&format!("--again --offset 2TiB --length 1MiB {}", volume(&volumes, 0))).silent();
    once(&volumes, 0, [2 * TIB / BLOCK, 2 * TIB / BLOCK + 1]);
    let beyond = format!("--offset {size} {}", volume(&volumes, 0));
    place.warm(&beyond).fails(2, &["--offset", "beyond the end", &size.to_string()]);
}

#[test]
fn several_volumes_in_one_run() {
    let slow = Settings { cold_latency: Duration::from_millis(20), par: 8, ..quick(20 * MIB + 7) };
    let holes = Settings { fill: 0.4, ..quick(32 * MIB) };
    let failing = Settings { flaky: HashMap::from([(3, 1)]), ..quick(16 * MIB) };
    let settings = vec![slow, holes, failing, quick(40 * MIB), quick(BLOCK), Settings { par: 1, ..quick(4 * MIB) }];
    let Some(volumes) = LazyVolumes::mount(settings) else { return };
    let place = Place::new();
    let all: Vec<String> = (0..volumes.count()).map(|n| volume(&volumes, n)).collect();
    for engine in ENGINES {
        let options = format!("--again --straddle off --engine {engine}");
        let run = place.warm(&format!("{options} --json {}", all.join(" "))).exit(0);
        for n in 0..volumes.count() {
            assert_eq!(run.done(n)["touched"], volumes.chunks(n), "{run}");
            assert_eq!(volumes.cold_left(n), 0);
            if n == 2 {
                assert_eq!((touched(&volumes, n)[&3], volumes.reads(n)), (2, volumes.chunks(n) + 1));
            } else {
                all_once(&volumes, n);
            }
            volumes.reset(n);
        }
    }
}

#[test]
fn short_reads_go_on_where_they_ended() {
    let settings = Settings { short: vec![0, 9, 10, 63], ..quick(32 * MIB) };
    let Some(volumes) = one(settings.clone()) else { return };
    let place = Place::new();
    for (engine, straddle) in [("io-uring", "off"), ("threads", "off"), ("io-uring", "on")] {
        let options = format!("--again --engine {engine} --straddle {straddle}");
        place.warm(&format!("{options} {}", volume(&volumes, 0))).silent();
        assert_eq!((volumes.cold_left(0), touched(&volumes, 0).len()), (0, 64));
        if straddle == "off" {
            let twice: Vec<u64> = touched(&volumes, 0).into_iter().filter(|at| at.1 == 2).map(|at| at.0).collect();
            assert_eq!((twice, volumes.reads(0)), (settings.short.clone(), 68));
        }
        volumes.reset(0);
    }
}

#[test]
fn no_more_reads_a_second_than_asked_for() {
    let Some(volumes) = one(Settings { fill: 0.0, ..quick(64 * MIB) }) else { return };
    let place = Place::new();
    let begin = Instant::now();
    place.warm(&format!("--max-iops 100 --straddle off {}", volume(&volumes, 0))).silent();
    assert!(begin.elapsed() >= Duration::from_secs(1), "128 reads in {:?}", begin.elapsed());
    all_once(&volumes, 0);
}

#[test]
fn depth_and_background_as_asked_for() {
    let Some(volumes) = one(quick(32 * MIB)) else { return };
    let place = Place::new();
    for engine in ENGINES {
        let options = format!("--again --depth 3 --engine {engine}");
        let run = place.warm(&format!("{options} --json {}", volume(&volumes, 0))).exit(0);
        all_once(&volumes, 0);
        assert!(volumes.max_in_flight(0) <= 3);
        assert_eq!(run.done(0)["deepest"], 3);
        volumes.reset(0);
        place.warm(&format!("--again --background --engine {engine} {}", volume(&volumes, 0))).silent();
        all_once(&volumes, 0);
        volumes.reset(0);
    }
}

/// The ring and its buffer may count as such, which depends on the kernel. Root has no limit of it, so that goes too.
#[test]
fn without_memory_that_may_be_locked() {
    if !has("prlimit") || !has("setpriv") {
        return;
    }
    let Some(volumes) = one(quick(16 * MIB)) else { return };
    let place = Place::new();
    for bytes in [0, 4096, 64 << 10, 128 << 10] {
        volumes.reset(0);
        let plain = place.command(&format!("--again -v {}", volume(&volumes, 0)));
        let mut command = Command::new("prlimit");
        command.arg(format!("--memlock={bytes}:{bytes}")).args(["setpriv", "--bounding-set=-ipc_lock"]);
        command.arg(plain.get_program()).args(plain.get_args());
        let run = Running::new(command).end().exit(0);
        let engine =
            if run.stderr.contains("io_uring is not to be had here") { "with threads" } else { "with io_uring" };
        run.says(&[engine]).never_says(&["warning"]);
        all_once(&volumes, 0);
    }
}
