//! Volumes that fail: what could not be read is told, nothing else, and the rest is read.

use std::collections::HashMap;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::Signal;

use crate::run::{BLOCK, MIB, Place, once, one, touched, volume, wait_until};
use crate::support::lazy_volume::{LazyVolumes, Settings};

const ENGINES: [&str; 2] = ["io-uring", "threads"];
/// Words of a success.
const SUCCESS: [&str; 2] = [": initialised", "Complete"];

fn quick(size: u64) -> Settings {
    Settings { size, cold_latency: Duration::from_millis(2), ..Settings::default() }
}

#[test]
fn bad_blocks_are_exactly_those_that_are_told() {
    let bad = vec![3, 17, 18, 63];
    let Some(volumes) = one(Settings { bad: bad.clone(), ..quick(32 * MIB) }) else { return };
    let place = Place::new();
    for engine in ENGINES {
        volumes.reset(0);
        let line = format!("--again --engine {engine} --straddle off {}", volume(&volumes, 0));
        let run = place.warm(&line).exit(3).never_says(&SUCCESS);
        let path = volume(&volumes, 0);
        let of = |block: u64| format!("{path}: block {block} at byte {} can't be read: ", block * 524_288);
        let mut told: Vec<&str> = run.warnings();
        let summary = told.pop().unwrap();
        told.sort_unstable_by_key(|line| (line.len(), *line));
        assert_eq!(told.len(), 4, "{run}");
        for (line, block) in told.iter().zip(&bad) {
            assert!(line.starts_with(&of(*block)) && line.contains("(os error 5)"), "{run}");
        }
        assert_eq!(summary, format!("{path}: 4 blocks could not be read: 3, 17-18, 63"));
        assert_eq!(run.stderr.lines().count(), 6, "and a summary: {run}");
        // Once, and three times again.
        let touches = touched(&volumes, 0);
        assert!((0..64).all(|block| touches[&block] == if bad.contains(&block) { 4 } else { 1 }), "{touches:?}");
        assert_eq!(volumes.cold_left(0), 4);
    }
}

#[test]
fn bad_blocks_in_events_and_without_retries() {
    let bad = vec![0, 1, 30, 31, 33];
    let Some(volumes) = one(Settings { bad: bad.clone(), ..quick(17 * MIB) }) else { return };
    let place = Place::new();
    // Of a read of two blocks that fails, each is read by itself.
    for (straddle, reads) in [("off", 34), ("on", 0), ("auto", 0)] {
        volumes.reset(0);
        let options = format!("--again --retries 0 --straddle {straddle}");
        let run = place.warm(&format!("{options} --json {}", volume(&volumes, 0))).exit(3);
        assert_eq!(run.failed_blocks(), bad, "{run}");
        let told: Vec<serde_json::Value> = run.stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(told.len() == 1 && told[0]["warning"]["message"].as_str().unwrap().contains("5 blocks"), "{run}");
        let done = run.done(0);
        assert_eq!((&done["touched"], &done["failed"], &done["left_cold"]), (&29.into(), &5.into(), &5.into()));
        assert_eq!((volumes.cold_left(0), touched(&volumes, 0).len()), (5, 34));
        if reads > 0 {
            once(&volumes, 0, 0..34);
        }
    }
    // They are tried again by the next run, and nothing else.
    volumes.reset(0);
    let run = place.warm(&format!("--retries 0 --json {}", volume(&volumes, 0))).exit(3);
    assert_eq!(run.failed_blocks(), bad);
    once(&volumes, 0, bad);
}

#[test]
fn many_bad_blocks_are_not_all_told_one_by_one() {
    let bad: Vec<u64> = (0..128).filter(|block| block % 3 == 1).collect();
    let Some(volumes) = one(Settings { bad: bad.clone(), ..quick(64 * MIB) }) else { return };
    let place = Place::new();
    let run = place.warm(&format!("--retries 0 --straddle off {}", volume(&volumes, 0))).exit(3);
    assert!(run.warnings().len() < 30, "{run}");
    let run = run.says(&["43 blocks could not be read", "further blocks"]).never_says(&SUCCESS);
    assert!(run.stderr.contains("1, 4, 7, "), "{run}");
    once(&volumes, 0, 0..128);
    let run = place.warm(&format!("--retries 0 --json {}", volume(&volumes, 0))).exit(3);
    assert_eq!(run.failed_blocks(), bad);
}

#[test]
fn flaky_blocks_are_tried_again() {
    let flaky = HashMap::from([(0, 1), (5, 2), (63, 3)]);
    let Some(volumes) = one(Settings { flaky: flaky.clone(), ..quick(32 * MIB) }) else { return };
    let place = Place::new();
    for (engine, straddle) in [("io-uring", "off"), ("threads", "on")] {
        volumes.reset(0);
        let line = format!("--again --engine {engine} --straddle {straddle} {}", volume(&volumes, 0));
        place.warm(&line).silent();
        assert_eq!(volumes.cold_left(0), 0);
        if straddle == "off" {
            let touches = touched(&volumes, 0);
            assert!((0..64).all(|block| touches[&block] == 1 + flaky.get(&block).unwrap_or(&0)), "{touches:?}");
        }
    }
    // Three times again are not enough for the last.
    volumes.reset(0);
    let run = place.warm(&format!("--again --retries 2 --straddle off --json {}", volume(&volumes, 0))).exit(3);
    assert_eq!(run.failed_blocks(), [63]);
}

#[test]
fn a_volume_that_answers_no_read_is_a_failure() {
    for chunks in [1, 9, 128] {
        let settings = Settings { bad: (0..chunks).collect(), ..quick(chunks * MIB / 2) };
        let Some(volumes) = one(settings) else { return };
        let place = Place::new();
        for straddle in ["on", "off"] {
            let line = format!("-v --again --retries 1 --straddle {straddle} {}", volume(&volumes, 0));
            let run = place.warm(&line).exit(1).never_says(&SUCCESS).says(&["NOT wholly initialised"]);
            let words = format!("snapferry: error: {} answers no read: ", volume(&volumes, 0));
            assert!(run.stderr.contains(&words) && run.stderr.contains("this run brought nothing in"), "{run}");
        }
        // A broken volume is not hammered on.
        assert!(volumes.reads(0) <= 128 * 5, "{} reads", volumes.reads(0));
        let run = place.warm(&format!("--again --retries 0 --json {}", volume(&volumes, 0))).exit(1);
        let error: serde_json::Value = serde_json::from_str(run.stderr.lines().last().unwrap()).unwrap();
        assert_eq!(error["error"]["exit_code"], 1, "{run}");
        assert!(error["error"]["message"].as_str().unwrap().contains("answers no read"), "{run}");
        assert_eq!(run.done(0)["touched"], 0);
    }
}

/// Beside a volume that works, which is read all the same.
#[test]
fn one_volume_of_two_answers_no_read() {
    let dead = Settings { bad: (0..32).collect(), ..quick(16 * MIB) };
    let Some(volumes) = LazyVolumes::mount(vec![dead, quick(16 * MIB)]) else { return };
    let place = Place::new();
    let line = format!("--retries 0 {} {}", volume(&volumes, 0), volume(&volumes, 1));
    place.warm(&line).exit(1).says(&[&format!("{} answers no read", volume(&volumes, 0))]);
    once(&volumes, 1, 0..32);
}

#[test]
fn a_volume_that_goes_away_is_told_as_such() {
    for error in [Errno::NODEV, Errno::NXIO] {
        let settings = Settings { gone_after: Some(40), gone_error: error, ..quick(64 * MIB) };
        let Some(volumes) = one(settings) else { return };
        let place = Place::new();
        for engine in ENGINES {
            volumes.reset(0);
            let line = format!("--again --straddle off --engine {engine} {}", volume(&volumes, 0));
            let run = place.warm(&line).exit(3).never_says(&SUCCESS).never_says(&["done"]);
            let number = format!("(os error {})", error.raw_os_error());
            run.says(&["answers no more", &number, "88 blocks are still cold"]);
            assert_eq!(volumes.cold_left(0), 88);
        }
        // It comes back, and goes, and comes back: each run reads 40 more.
        for left in [48, 8] {
            volumes.reset(0);
            let run = place.warm(&format!("--straddle off --json {}", volume(&volumes, 0))).exit(3);
            let done = run.done(0);
            assert_eq!((&done["touched"], &done["left_cold"]), (&(128 - left).into(), &left.into()));
            assert!(done["given_up"].is_string(), "{run}");
        }
        volumes.reset(0);
        place.warm(&format!("--straddle off {}", volume(&volumes, 0))).silent();
        assert_eq!(volumes.reads(0), 8);
    }
}

/// Unlike one that is gone, each of its blocks is asked for.
#[test]
fn a_volume_that_fails_from_the_middle_on() {
    let settings = Settings { gone_after: Some(20), gone_error: Errno::IO, ..quick(16 * MIB) };
    let Some(volumes) = one(settings) else { return };
    let place = Place::new();
    let run = place.warm(&format!("--retries 0 --straddle off --json {}", volume(&volumes, 0))).exit(3);
    assert_eq!((run.failed_blocks().len(), &run.done(0)["touched"]), (12, &20.into()), "{run}");
    once(&volumes, 0, 0..32);
}

/// A read can't be called back. The program ends only when it is answered, but what it says doesn't wait for that.
#[test]
fn a_read_that_hangs_is_told_and_the_rest_is_read() {
    for engine in ENGINES {
        let Some(volumes) = one(Settings { hang: vec![3, 40], ..quick(32 * MIB) }) else { return };
        let place = Place::new();
        let options = format!("--give-up-after 1 --straddle off --engine {engine}");
        let running = place.start(&format!("{options} --json {}", volume(&volumes, 0)));
        running.wait_for("\"event\":\"done\"");
        assert_eq!((volumes.held(0), volumes.cold_left(0)), (2, 2));
        volumes.release(0);
        let run = running.end().exit(3);
        assert_eq!(run.failed_blocks(), [3, 40], "{run}");
        assert!(run.events_of("block_failed").iter().all(|event| event["error"] == "no answer"), "{run}");
        assert_eq!((&run.done(0)["touched"], &run.done(0)["failed"]), (&62.into(), &2.into()), "{run}");
        once(&volumes, 0, 0..64);
        // And is asked for again by the next.
        volumes.release(0);
        place.warm(&volume(&volumes, 0)).silent();
        assert_eq!((volumes.reads(0), volumes.cold_left(0)), (66, 0));
    }
}

/// The other half of a read of two blocks is read by itself, as where such a read fails.
#[test]
fn a_read_of_two_blocks_that_hangs_fails_one_only() {
    let Some(volumes) = one(Settings { hang: vec![10], ..quick(16 * MIB) }) else { return };
    let place = Place::new();
    let running = place.start(&format!("--give-up-after 1 --straddle on --json {}", volume(&volumes, 0)));
    running.wait_for("\"event\":\"done\"");
    volumes.release(0);
    let run = running.end().exit(3);
    assert_eq!(run.failed_blocks(), [10], "{run}");
}

/// A late answer is an answer. `block` is read first, and hangs for more than a second.
fn late(size: u64, block: u64) {
    let slow = Settings { cold_latency: Duration::from_millis(100), par: 1, hang: vec![block], ..quick(size) };
    let Some(volumes) = one(slow) else { return };
    let place = Place::new();
    let options = "--give-up-after 1 --depth 2 --straddle off";
    let first = format!("--first-range {}-{}", block * BLOCK, block * BLOCK + 1);
    let running = place.start(&format!("{options} {first} --json {}", volume(&volumes, 0)));
    running.wait_for("block_failed");
    volumes.release(0);
    let run = running.end().exit(0);
    assert_eq!((run.failed_blocks(), &run.done(0)["touched"]), (vec![block], &32.into()), "{run}");
    once(&volumes, 0, 0..32);
}

#[test]
fn a_read_that_comes_back_late_is_no_failure_in_the_end() {
    late(16 * MIB, 3);
}

#[test]
fn nor_is_that_of_a_short_last_block() {
    late(16 * MIB - BLOCK + 513, 31);
}

#[test]
fn a_volume_of_which_every_read_hangs_ends() {
    for chunks in [8, 128] {
        let Some(volumes) = one(Settings { hang: (0..chunks).collect(), ..quick(chunks * MIB / 2) }) else { return };
        let place = Place::new();
        let running = place.start(&format!("--give-up-after 1 {}", volume(&volumes, 0)));
        // While it waits for its reads it can't end, and its last words are said before.
        wait_until("it says that nothing answers", || running.stderr().contains("answers no read"));
        volumes.release(0);
        running.end().exit(1).never_says(&SUCCESS);
    }
}

/// A signal does not wait for what hangs for ever.
#[test]
fn a_signal_while_a_read_hangs() {
    let Some(volumes) = one(Settings { hang: vec![5], ..quick(8 * MIB) }) else { return };
    let place = Place::new();
    let running = place.start(&format!("--straddle off {}", volume(&volumes, 0)));
    wait_until("all others are read", || volumes.cold_left(0) == 1 && volumes.held(0) == 1);
    running.signal(Signal::INT);
    running.wait_for("stopped by SIGINT");
    volumes.release(0);
    running.end().exit(130).says(&["the same command goes on where it was"]);
    place.warm(&format!("--straddle off {}", volume(&volumes, 0))).silent();
    assert_eq!(volumes.reads(0), 17);
}
