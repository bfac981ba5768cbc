//! Runs that are stopped or killed, the runs after them, and states that can't be used.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::run::{MIB, Place, Running, all_once, once, one, shown, touched, volume, wait_until};
use crate::support::lazy_volume::{LazyVolumes, Settings};

fn quick(size: u64) -> Settings {
    Settings { size, cold_latency: Duration::from_millis(2), ..Settings::default() }
}

/// How many blocks a state says were touched: a bit each, behind its first line; 0 if there is none yet.
fn written_down(state: &Path) -> u64 {
    let Ok(bytes) = fs::read(state) else { return 0 };
    let end = bytes.iter().position(|byte| *byte == b'\n').unwrap();
    bytes[end + 1..].iter().map(|byte| u64::from(byte.count_ones())).sum()
}

#[test]
fn a_signal_stops_it_in_order_and_the_same_command_goes_on() {
    // Two seconds and more.
    let slow = Settings { rate: Some(50.0), par: 8, ..quick(60 * MIB) };
    let Some(volumes) = LazyVolumes::mount(vec![slow; 4]) else { return };
    let place = Place::new();
    let runs = [
        (Signal::INT, 130, "SIGINT", "io-uring", "off"),
        (Signal::TERM, 143, "SIGTERM", "threads", "off"),
        (Signal::HUP, 129, "SIGHUP", "io-uring", "on"),
        (Signal::INT, 130, "SIGINT", "threads", "auto"),
    ];
    let start = |n: usize| {
        let state = place.path(&format!("state-{n}"));
        let (_, _, _, engine, straddle) = runs[n];
        let options = format!("--depth 8 --engine {engine} --straddle {straddle} --state {}", shown(&state));
        Running::new(place.command(&format!("{options} {}", volume(&volumes, n))))
    };
    let running: Vec<Running> = (0..runs.len()).map(start).collect();
    for (n, (running, (signal, code, name, ..))) in running.into_iter().zip(runs).enumerate() {
        wait_until("some are read", || volumes.reads(n) >= 20);
        running.signal(signal);
        let run = running.end().fails(code, &[&format!("stopped by {name}"), "the same command goes on where it was"]);
        assert_eq!(run.stderr.lines().count(), 3, "{run}");
        let read = touched(&volumes, n).len() as u64;
        assert!((20..120).contains(&read), "{read}");
        assert_eq!(written_down(&place.path(&format!("state-{n}"))), read);
    }
    let running: Vec<Running> = (0..runs.len()).map(start).collect();
    running.into_iter().for_each(|running| running.end().silent());
    (0..runs.len()).for_each(|n| all_once(&volumes, n));
}

#[test]
fn a_stopped_run_says_so_in_its_events() {
    let Some(volumes) = one(Settings { rate: Some(50.0), par: 8, ..quick(32 * MIB) }) else { return };
    let place = Place::new();
    let running = place.start(&format!("--depth 4 --json {}", volume(&volumes, 0)));
    wait_until("some are read", || volumes.reads(0) >= 8);
    running.signal(Signal::INT);
    let run = running.end().exit(130);
    let events = run.events();
    assert_eq!(events.last().unwrap()["stopped_by"], "SIGINT", "{run}");
    let done = run.done(0);
    assert!(done["left_cold"].as_u64().unwrap() > 0 && done["failed"] == 0, "{run}");
    let error: Value = serde_json::from_str(run.stderr.trim()).unwrap();
    assert!(error["error"]["message"].as_str().unwrap().contains("SIGINT"), "{run}");
    let run = place.warm(&format!("--json {}", volume(&volumes, 0))).exit(0);
    assert_eq!(run.events()[0]["volumes"][0]["touched_before"], done["touched"], "{run}");
    all_once(&volumes, 0);
}

/// Again and again, and no block is read twice but those that were under way.
#[test]
fn a_killed_run_goes_on_where_it_was() {
    let slow = Settings { rate: Some(60.0), par: 8, ..quick(60 * MIB) };
    let Some(volumes) = LazyVolumes::mount(vec![slow; 3]) else { return };
    let place = Place::new();
    thread::scope(|scope| {
        for (n, options) in
            ["--engine io-uring --straddle off", "--engine threads --straddle off", "--straddle on"].iter().enumerate()
        {
            let (place, volumes) = (&place, &volumes);
            scope.spawn(move || killed_twice(place, volumes, n, options));
        }
    });
}

fn killed_twice(place: &Place, volumes: &LazyVolumes, n: usize, options: &str) {
    let folder = place.path(&format!("folder-{n}"));
    let state = folder.join("state");
    let line = format!("--depth 8 {options} --state {} {}", shown(&state), volume(volumes, n));
    for kill_after in [25, 70] {
        let running = place.start(&line);
        wait_until("some more are read", || touched(volumes, n).len() >= kill_after);
        running.signal(Signal::KILL);
        running.end().killed();
        let (saved, read) = (written_down(&state), touched(volumes, n).len() as u64);
        // Of eight reads, each of which may touch two blocks.
        assert!(saved < 120 && saved + 16 >= read, "{saved} of {read}");
    }
    place.warm(&line).silent();
    assert_eq!((volumes.cold_left(n), written_down(&state)), (0, 120));
    let touches = touched(volumes, n);
    let again: u32 = touches.values().map(|times| times - 1).sum();
    assert!(touches.len() == 120 && again <= 2 * 16, "{again} in vain: {touches:?}");
    // Nothing else is left by the one that was killed, such as half a state.
    let names: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["state"]);
}

#[test]
fn a_finished_volume_is_not_read_again_unless_asked_for() {
    let Some(volumes) = one(quick(16 * MIB)) else { return };
    let place = Place::new();
    let line = format!("--state {} {}", shown(&place.path("state")), volume(&volumes, 0));
    place.warm(&line).silent();
    volumes.reset(0);
    place.warm(&line).silent();
    place.warm(&format!("-v {line}")).exit(0).says(&["all 32 blocks were read before", "--again"]);
    let run = place.warm(&format!("--json {line}")).exit(0);
    assert_eq!((run.events().len(), &run.events_of("finished_before")[0]["blocks"]), (1, &32.into()), "{run}");
    assert_eq!(volumes.reads(0), 0);
    place.warm(&format!("--again {line}")).silent();
    all_once(&volumes, 0);
}

/// One is finished, the other not.
#[test]
fn a_finished_volume_beside_another() {
    let Some(volumes) = LazyVolumes::mount(vec![quick(16 * MIB), quick(16 * MIB)]) else { return };
    let place = Place::new();
    let [first, second] = [0, 1].map(|n| volume(&volumes, n));
    place.warm(&first).silent();
    let run = place.warm(&format!("--json {first} {second}")).exit(0);
    assert_eq!((run.events_of("finished_before").len(), run.events_of("start").len()), (1, 1), "{run}");
    assert_eq!(run.done(0)["device"], *second);
    all_once(&volumes, 0);
    all_once(&volumes, 1);
}

#[test]
fn states_that_can_not_be_used() {
    let Some(volumes) = LazyVolumes::mount(vec![quick(16 * MIB), quick(16 * MIB)]) else { return };
    let place = Place::new();
    let state = place.path("state");
    let line = |n: usize| format!("--state {} {}", shown(&state), volume(&volumes, n));
    place.warm(&line(0)).silent();
    let whole = fs::read(&state).unwrap();

    let refused = |run: crate::run::Run, words: &[&str]| {
        run.fails(1, &[&[shown(&state)], words].concat());
        assert_eq!(volumes.reads(1), 0);
    };
    let hint = "--again";
    refused(place.warm(&line(1)), &["is of another volume", hint]);
    refused(place.warm(&format!("--step 1MiB {}", line(0))), &["is of another volume", hint]);
    for cut in [0, 10, whole.len() - 1] {
        fs::write(&state, &whole[..cut]).unwrap();
        refused(place.warm(&line(0)), &["is damaged", hint]);
    }
    fs::write(&state, [&whole[..], b"more"].concat()).unwrap();
    refused(place.warm(&line(0)), &["is damaged", hint]);
    // What is no state at all is never replaced.
    fs::write(&state, "precious").unwrap();
    for again in ["", "--again"] {
        refused(place.warm(&format!("{again} {}", line(0))), &["is no state of a warm-up, but something else"]);
        assert_eq!(fs::read(&state).unwrap(), b"precious");
    }
    fs::write(&state, &whole).unwrap();
    assert_eq!(volumes.reads(0), 32);
    // The way out that it names.
    place.warm(&format!("--again {}", line(1))).silent();
    all_once(&volumes, 1);
    place.warm(&line(1)).silent();
    all_once(&volumes, 1);
    refused_places(&place, &volumes);
}

/// Where no state can be written.
fn refused_places(place: &Place, volumes: &LazyVolumes) {
    volumes.reset(1);
    let (folder, file) = (place.path("folder"), place.path("file"));
    fs::create_dir(&folder).unwrap();
    fs::write(&file, "").unwrap();
    for again in ["", "--again"] {
        for path in [&folder, &file.join("state"), Path::new("/proc/no/state")] {
            let run = place.warm(&format!("{again} --state {} {}", path.display(), volume(volumes, 1)));
            run.fails(1, &[shown(path)]);
        }
    }
    once(volumes, 1, []);
    let (first, second) = (volume(volumes, 0), volume(volumes, 1));
    place.warm(&format!("--state {} {first} {second}", shown(&file))).fails(2, &["--state is for one volume"]);
    assert_eq!(fs::read(&file).unwrap(), b"");
}

/// In a private view of the machine, where nothing of the real `/run` is touched.
#[test]
fn states_are_kept_in_run_unless_told_otherwise() {
    let Some(volumes) = one(quick(16 * MIB)) else { return };
    let place = Place::new();
    let Some(mut command) = crate::names::in_private_run(&place) else { return };
    command.arg(env!("CARGO_BIN_EXE_snapferry")).arg("warm").arg(volume(&volumes, 0));
    Running::new(command).end().silent();
    all_once(&volumes, 0);
    let kept: Vec<_> = fs::read_dir(place.path("run/snapferry")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(kept.len() == 1 && kept[0].extension().is_some_and(|end| end == "warm"), "{kept:?}");
    assert_eq!(written_down(&kept[0]), 32);
    // The folder that another one was told to use.
    volumes.reset(0);
    place.warm(&volume(&volumes, 0)).silent();
    all_once(&volumes, 0);
    assert_eq!(fs::read_dir(place.states()).unwrap().count(), 1);
}

/// Twice at once would be all the work twice.
#[test]
fn one_run_at_a_time_for_each_volume() {
    let Some(volumes) = one(Settings { hang: vec![5], ..quick(16 * MIB) }) else { return };
    let place = Place::new();
    let running = place.start(&format!("--straddle off {}", volume(&volumes, 0)));
    wait_until("all others are read", || volumes.cold_left(0) == 1 && volumes.held(0) == 1);
    place.warm(&volume(&volumes, 0)).fails(6, &["another run warms this volume up"]);
    volumes.release(0);
    running.end().silent();
}
