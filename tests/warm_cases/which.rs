//! Which blocks are read, and in what order: lists of a snapshot, ranges, other steps.

use std::fs;
use std::time::Duration;

use crate::run::{BLOCK, MIB, Place, Running, all_once, once, one, shown, touched, volume, wait_until};
use crate::support::lazy_volume::{LazyVolumes, Settings};

fn quick(size: u64) -> Settings {
    Settings { size, cold_latency: Duration::from_millis(2), ..Settings::default() }
}

/// A page as `aws ebs list-snapshot-blocks` prints it; `rest` is put in as it is.
fn page(blocks: &[u64], rest: &str) -> String {
    let rows = blocks.iter().map(|n| format!("{{\"BlockIndex\": {n}, \"BlockToken\": \"AAABAd{n}\"}}"));
    let rows = rows.collect::<Vec<_>>().join(",\n        ");
    format!(
        "{{\n    \"Blocks\": [\n        {rows}\n    ],\n    \"ExpiryTime\": \"2026-12-01T00:00:00.000000+00:00\",\n    \
         \"VolumeSize\": 8{rest}\n}}\n"
    )
}

const SIZE: &str = ", \"BlockSize\": 524288";

#[test]
fn only_the_blocks_of_the_snapshot() {
    let Some(volumes) = one(quick(32 * MIB + 5)) else { return };
    let place = Place::new();
    let list = place.path("list.json");
    // Neither sorted nor without repetition, and the short last block is in it.
    let pages = page(&[40, 7, 6], &format!("{SIZE}, \"NextToken\": \"AAAB\"")) + &page(&[0, 7, 64, 41], SIZE);
    let wanted = [0, 6, 7, 40, 41, 64];
    fs::write(&list, &pages).unwrap();
    for straddle in ["on", "off"] {
        volumes.reset(0);
        let options = format!("--again --straddle {straddle}");
        place.warm(&format!("{options} --blocks {} {}", shown(&list), volume(&volumes, 0))).silent();
        once(&volumes, 0, wanted);
        volumes.reset(0);
        let command = place.command(&format!("{options} --blocks - {}", volume(&volumes, 0)));
        Running::fed(command, pages.as_bytes()).end().silent();
        once(&volumes, 0, wanted);
    }
    volumes.reset(0);
    let window = format!("--offset 3MiB --length {}", 17 * MIB + 1);
    place.warm(&format!("--again {window} --blocks {} {}", shown(&list), volume(&volumes, 0))).silent();
    once(&volumes, 0, [6, 7, 40]);
    // The volume as a whole, of which these were read before, and the others of the list before that.
    place.warm(&volume(&volumes, 0)).silent();
    once(&volumes, 0, (0..65).filter(|block| ![0, 41, 64].contains(block)));
    let run = place.warm(&format!("-n --blocks {} {}", shown(&list), volume(&volumes, 0))).exit(0);
    run.says(&["6 blocks of 512", "59 blocks of the volume stay as they are"]);
}

#[test]
fn lists_of_changed_blocks_and_of_none() {
    let Some(volumes) = one(quick(16 * MIB)) else { return };
    let place = Place::new();
    let changed = "{\"ChangedBlocks\": [{\"BlockIndex\": 3, \"FirstBlockToken\": \"A\"}, {\"BlockIndex\": 5}]}";
    let command = || place.command(&format!("--again --blocks - {}", volume(&volumes, 0)));
    Running::fed(command(), page(&[], SIZE).as_bytes()).end().fails(2, &["the list is empty"]);
    Running::fed(command(), changed.as_bytes()).end().silent();
    once(&volumes, 0, [3, 5]);
}

#[test]
fn lists_that_are_of_no_use() {
    let Some(volumes) = LazyVolumes::mount(vec![quick(16 * MIB), quick(16 * MIB)]) else { return };
    let place = Place::new();
    let list = place.path("list.json");
    for (text, words) in [
        (page(&[1], ", \"BlockSize\": 4096"), "its blocks have 4096 bytes, and --step is 524288"),
        (page(&[1, 32], SIZE), "block 32 is beyond the end of the volume, which has 32 blocks"),
        (page(&[u64::MAX], SIZE), "beyond the end"),
        (page(&[1], &format!("{SIZE}, \"NextToken\": \"AAAB\"")), "goes on"),
        (page(&[1], "")[..60].to_owned(), "no output of \"aws ebs list-snapshot-blocks\""),
        (page(&[1], SIZE) + "and more", "no output of \"aws ebs list-snapshot-blocks\""),
        ("hello".to_owned(), "no output of \"aws ebs list-snapshot-blocks\""),
        ("[]".to_owned(), "no output of \"aws ebs list-snapshot-blocks\""),
        ("{\"Blocks\": [{\"BlockIndex\": -1}]}".to_owned(), "no output of \"aws ebs list-snapshot-blocks\""),
        (String::new(), "empty"),
        ("\n \n".to_owned(), "empty"),
    ] {
        fs::write(&list, text).unwrap();
        let line = format!("--blocks {} {}", shown(&list), volume(&volumes, 0));
        place.warm(&line).fails(2, &[words]);
    }
    let missing = place.path("missing.json");
    let run = place.warm(&format!("--blocks {} {}", shown(&missing), volume(&volumes, 0)));
    assert!(!run.status.success() && run.stderr.contains(shown(&missing)), "{run}");
    // Standard input that has nothing at all.
    place.warm(&format!("--blocks - {}", volume(&volumes, 0))).fails(2, &["empty"]);
    fs::write(&list, page(&[1], SIZE)).unwrap();
    let both = format!("--blocks {} {} {}", shown(&list), volume(&volumes, 0), volume(&volumes, 1));
    place.warm(&both).fails(2, &["--blocks is for one volume"]);
    let step = format!("--step 1MiB --blocks {} {}", shown(&list), volume(&volumes, 0));
    place.warm(&step).fails(2, &["524288 bytes"]);
    once(&volumes, 0, []);
}

#[test]
fn other_steps() {
    let settings = Settings { chunk: MIB, ..quick(16 * MIB + 1) };
    let Some(volumes) = LazyVolumes::mount(vec![settings, quick(4 * MIB)]) else { return };
    let place = Place::new();
    for straddle in ["on", "off"] {
        volumes.reset(0);
        place.warm(&format!("--again --straddle {straddle} --step 1MiB {}", volume(&volumes, 0))).silent();
        all_once(&volumes, 0);
    }
    // Smaller than what comes in at once.
    let run = place.warm(&format!("--json --straddle off --step 4KiB {}", volume(&volumes, 1))).exit(0);
    assert_eq!((run.done(0)["touched"].as_u64(), volumes.reads(1)), (Some(1024), 1024));
    assert!(touched(&volumes, 1).values().all(|times| u64::from(*times) == BLOCK / 4096));
    // No room for two halves.
    volumes.reset(1);
    place.warm(&format!("--again --straddle on --step 4KiB {}", volume(&volumes, 1))).silent();
    assert_eq!((volumes.reads(1), volumes.cold_left(1)), (1024, 0));
    for step in ["0", "1000", "2KiB", "5000", "512"] {
        let line = format!("--step {step} {}", volume(&volumes, 0));
        place.warm(&line).fails(2, &["--step", "multiple of 512", "at least 4096"]);
    }
}

#[test]
fn what_comes_first() {
    // Read one by one, the first one of the rest hangs.
    let Some(volumes) = one(Settings { hang: vec![0], ..quick(32 * MIB) }) else { return };
    let place = Place::new();
    let ranges = format!("--first-range 20MiB-21MiB --first-range {}-{}", 4 * MIB - 1, 4 * MIB + 1);
    let line = format!("--depth 1 --straddle off {ranges} {}", volume(&volumes, 0));
    let running = place.start(&line);
    wait_until("the first ones are read, and one more hangs", || volumes.held(0) == 1);
    once(&volumes, 0, [0, 7, 8, 40, 41]);
    volumes.release(0);
    running.end().silent();
    all_once(&volumes, 0);
    let plan = place.warm(&format!("-n {line}")).exit(0);
    plan.says(&["64 blocks", "first 4 blocks, then the rest"]);
}

#[test]
fn only_what_comes_first() {
    let Some(volumes) = one(quick(32 * MIB)) else { return };
    let place = Place::new();
    for straddle in ["on", "off"] {
        volumes.reset(0);
        let ranges = format!("--first-range 30MiB-99MiB --first-range {MIB}-{}", MIB + BLOCK + 1);
        let line = format!("--again --straddle {straddle} --only-first {ranges} {}", volume(&volumes, 0));
        let run = place.warm(&format!("-v {line}")).exit(0).says(&["6 of 6 blocks touched"]);
        assert!(run.stderr.contains("58 blocks were not asked for"), "{run}");
        once(&volumes, 0, [2, 3, 60, 61, 62, 63]);
    }
    place.warm(&volume(&volumes, 0)).silent();
    all_once(&volumes, 0);
}

#[test]
fn wishes_that_make_no_sense() {
    let Some(volumes) = one(quick(16 * MIB)) else { return };
    let place = Place::new();
    for (options, words) in [
        ("--only-first", "--only-first"),
        ("--first-range 5-3", "5-3"),
        ("--first-range 5-5", "5-5"),
        ("--first-range 1GiB", "1GiB"),
        ("--first-range all", "all"),
        ("--first-range 1TiB-2TiB", "beyond the end of the volume"),
        ("--offset soon", "soon"),
        ("--length 3x", "3x"),
        ("--step big", "big"),
        ("--offset 16MiB", "beyond the end"),
        ("--verify=some", "some"),
        ("--verify=0", "--verify"),
    ] {
        place.warm(&format!("{options} {}", volume(&volumes, 0))).fails(2, &[words]);
    }
    for options in ["--depth 0", "--max-iops 0", "--give-up-after 0", "--straddle maybe", "--engine steam"] {
        place.warm(&format!("{options} {}", volume(&volumes, 0))).exit(2);
    }
    place.warm("").exit(2);
    once(&volumes, 0, []);
}
