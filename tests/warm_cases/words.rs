//! What is told, to whom: plans, events, silence, summaries, the status, syslog, a terminal.

use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::run::{BLOCK, MIB, Place, Running, all_once, has, once, one, shown, volume, wait_until};
use crate::support::lazy_volume::{LazyVolumes, Settings};

fn quick(size: u64) -> Settings {
    Settings { size, cold_latency: Duration::from_millis(2), ..Settings::default() }
}

#[test]
fn a_plan_reads_nothing() {
    let Some(volumes) = LazyVolumes::mount(vec![quick(33 * MIB + 1), quick(16 * MIB)]) else { return };
    let place = Place::new();
    let both = format!("{} {}", volume(&volumes, 0), volume(&volumes, 1));
    let run = place.warm(&format!("-n {both}")).exit(0).says(&["67 blocks of 512", "32 blocks of 512", "about"]);
    assert!(run.stderr.is_empty(), "{run}");
    let run = place.warm(&format!("-n --json --offset 1MiB {both}")).exit(0);
    let plan = &run.json()["volumes"];
    assert_eq!(
        (&plan[0]["blocks"], &plan[0]["left_out"], &plan[0]["bytes"]),
        (&65.into(), &2.into(), &(32 * MIB + 1).into())
    );
    assert_eq!((&plan[1]["blocks"], &plan[1]["left_out"], &plan[1]["step"]), (&30.into(), &2.into(), &BLOCK.into()));
    assert!(plan[0]["estimated_seconds"].as_f64().unwrap() > 0.0);
    (0..2).for_each(|n| once(&volumes, n, []));
    assert!(!place.states().exists(), "a plan writes no state");
}

#[test]
fn an_event_a_line() {
    let Some(volumes) = LazyVolumes::mount(vec![Settings { rate: Some(40.0), ..quick(32 * MIB) }, quick(16 * MIB)])
    else {
        return;
    };
    let place = Place::new();
    let line = format!("--straddle off --json {} {}", volume(&volumes, 0), volume(&volumes, 1));
    let run = place.warm(&line).exit(0);
    assert!(run.stderr.is_empty(), "{run}");
    let events = run.events();
    let start = &events[0];
    assert_eq!((&start["event"], &start["volumes"][1]["blocks"]), (&"start".into(), &32.into()), "{run}");
    assert_eq!(
        (&start["volumes"][0]["device"], &start["volumes"][0]["step"]),
        (&volume(&volumes, 0).into(), &BLOCK.into())
    );
    // More than a second.
    let progress = run.events_of("progress");
    assert!(progress.len() >= 2 && progress.iter().all(|event| event["touched"].is_u64()), "{run}");
    let done = run.done(0);
    for (key, value) in [("blocks", 64), ("touched", 64), ("failed", 0), ("left_cold", 0), ("left_out", 0)] {
        assert_eq!(done[key], value, "{key}: {run}");
    }
    assert_eq!((&done["requests"], &done["bytes"]), (&64.into(), &(64 * 4096).into()), "{run}");
    assert!(done["cold"]["p99_ms"].as_f64() >= done["cold"]["p50_ms"].as_f64() && done["depth"].is_u64(), "{run}");
    assert!(events.last().unwrap()["seconds"].as_f64().unwrap() > 1.0);
}

#[test]
fn a_summary_for_who_asks_and_silence_for_all_others() {
    let Some(volumes) = one(quick(32 * MIB)) else { return };
    let place = Place::new();
    let path = volume(&volumes, 0);
    place.warm(&format!("--again {path}")).silent();
    place.warm(&format!("--again -s {path}")).silent();
    let run = place.warm(&format!("--again -v --straddle off {path}")).exit(0);
    assert!(run.stdout.is_empty(), "{run}");
    let initialised = format!("{path}: initialised: 64 of 64 blocks touched in ");
    let run = run.says(&[&initialised, " a second", "reads at once", " reads: half in ", "99 % in "]);
    // -s goes over -v.
    place.warm(&format!("--again -s -v {path}")).silent();
    assert!(run.never_says(&["failed", "warning"]).stderr.lines().all(|line| line.starts_with("snapferry: ")));
}

/// Errors are told all the same.
#[test]
fn silent_but_for_errors() {
    let Some(volumes) = one(Settings { bad: vec![4], ..quick(16 * MIB) }) else { return };
    let place = Place::new();
    let run = place.warm(&format!("-s --retries 0 {}", volume(&volumes, 0))).exit(3);
    assert!(run.stdout.is_empty() && run.warnings().len() == 2, "{run}");
    place.warm("-s /dev/there-is-no-such-device").fails(4, &["there is no such device"]);
}

#[test]
fn a_signal_asks_how_it_stands() {
    let Some(volumes) = LazyVolumes::mount(vec![Settings { hang: vec![5], ..quick(32 * MIB) }, quick(16 * MIB)]) else {
        return;
    };
    let place = Place::new();
    for options in ["", "-s"] {
        let [first, second] = [0, 1].map(|n| volume(&volumes, n));
        let running = place.start(&format!("--again {options} --straddle off {first} {second}"));
        wait_until("one is left", || volumes.held(0) == 1 && volumes.cold_left(0) + volumes.cold_left(1) == 1);
        running.signal(Signal::USR1);
        running.wait_for(&format!("snapferry: {first}: 63 of 64 blocks touched"));
        running.wait_for(&format!("snapferry: {second}: 32 of 32 blocks touched"));
        volumes.release(0);
        let run = running.end().exit(0);
        assert_eq!((run.stderr.lines().count(), run.stdout.as_str()), (2, ""), "{run}");
        (0..2).for_each(|n| {
            all_once(&volumes, n);
            volumes.reset(n);
        });
    }
}

/// Runs it with a syslog of its own; what was sent there, without the dates.
fn with_syslog(place: &Place, line: &str) -> (crate::run::Run, Vec<String>) {
    let path = place.path("log");
    let _ = std::fs::remove_file(&path);
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let running = place.start(&format!("-l --syslog-socket {} {line}", shown(&path)));
    thread::scope(|scope| {
        let ends = scope.spawn(|| running.end());
        let (mut lines, mut buffer) = (Vec::new(), [0; 2048]);
        loop {
            let last = ends.is_finished();
            match socket.recv(&mut buffer) {
                Ok(length) => lines.push(String::from_utf8(buffer[..length].to_vec()).unwrap()),
                Err(_) if last => return (ends.join().unwrap(), lines),
                Err(_) => {}
            }
        }
    })
}

#[test]
fn beginning_and_end_go_to_syslog() {
    let Some(volumes) = one(quick(16 * MIB)) else { return };
    let place = Place::new();
    let path = volume(&volumes, 0);
    let (run, lines) = with_syslog(&place, &format!("-s {path}"));
    run.silent();
    all_once(&volumes, 0);
    assert!(lines.len() >= 3 && lines.iter().all(|line| line.starts_with("<14>")), "{lines:#?}");
    assert!(lines.iter().all(|line| line.contains(" snapferry[")), "{lines:#?}");
    assert!(lines[0].contains(&format!("Start initialize of '{path}'")), "{lines:#?}");
    assert!(lines[1].contains(&format!("{} bytes", 16 * MIB)), "{lines:#?}");
    assert!(lines.last().unwrap().contains("Complete"), "{lines:#?}");
    // Once more there is nothing to do.
    let (run, lines) = with_syslog(&place, &path);
    run.silent();
    assert!(lines.len() == 1 && lines[0].starts_with("<14>") && lines[0].contains("read before"), "{lines:#?}");
}

#[test]
fn errors_go_to_syslog_as_errors() {
    let Some(volumes) = one(Settings { bad: vec![4, 9], ..quick(16 * MIB) }) else { return };
    let place = Place::new();
    let path = volume(&volumes, 0);
    let (run, lines) = with_syslog(&place, &format!("--retries 0 {path}"));
    run.exit(3);
    let errors: Vec<&String> = lines.iter().filter(|line| line.starts_with("<11>")).collect();
    for word in ["block 4 at byte 2097152", "block 9 at byte", "NOT wholly initialised"] {
        assert!(errors.iter().any(|line| line.contains(word)), "{word}: {lines:#?}");
    }
    assert!(!lines.iter().any(|line| line.contains("Complete")), "{lines:#?}");
    assert!(lines[0].starts_with("<14>"), "{lines:#?}");
    let (run, lines) = with_syslog(&place, "/dev/there-is-no-such-device");
    run.fails(4, &["there is no such device"]);
    assert!(lines.len() == 1 && lines[0].starts_with("<11>") && lines[0].contains("no such device"), "{lines:#?}");
}

#[test]
fn a_syslog_that_is_not_there_is_told() {
    let Some(volumes) = one(quick(16 * MIB)) else { return };
    let place = Place::new();
    let socket = place.path("nobody");
    let line = format!("-l --syslog-socket {} {}", shown(&socket), volume(&volumes, 0));
    let run = place.warm(&line);
    assert!(run.stderr.contains("syslog"), "{run}");
}

#[test]
fn a_line_for_each_volume_and_one_for_all_on_a_terminal() {
    if !has("script") {
        return;
    }
    let Some(volumes) = LazyVolumes::mount(vec![Settings { hang: vec![5], ..quick(32 * MIB) }, quick(16 * MIB)]) else {
        return;
    };
    let place = Place::new();
    let state = place.states();
    let line = format!(
        "{} --state-dir {} warm --straddle off {} {}",
        env!("CARGO_BIN_EXE_snapferry"),
        shown(&state),
        volume(&volumes, 0),
        volume(&volumes, 1)
    );
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command", &line, "/dev/null"]).env("TERM", "xterm");
    let running = Running::new(command);
    running.wait_for("63 of 64 blocks");
    running.wait_for("32 of 32 blocks");
    running.wait_for("95 of 96 blocks");
    volumes.release(0);
    let run = running.end().exit(0).says(&["initialised: 64 of 64 blocks touched", "initialised: 32 of 32 blocks"]);
    assert!(!run.stdout.contains("failed"), "{run}");
    (0..2).for_each(|n| all_once(&volumes, n));
}

/// A log on a full disk, or one whose reader has gone, ends no warm-up.
#[test]
fn words_that_nobody_takes_end_nothing() {
    let Some(volumes) = one(Settings { bad: vec![4], ..quick(16 * MIB) }) else { return };
    let place = Place::new();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let status = place.command(&format!("-v --retries 0 {}", volume(&volumes, 0))).stderr(full).status().unwrap();
    assert_eq!((status.code(), volumes.cold_left(0)), (Some(3), 1));
}

/// What `nohup` asks for. SIGINT is another matter: a script's shell ignores it for what it starts in the background, and
/// a script that sends it means it.
#[test]
fn a_hangup_that_is_to_be_ignored_is() {
    for (signal, code) in [(Signal::HUP, 0), (Signal::INT, 130)] {
        let Some(volumes) = one(Settings { hang: vec![5], ..quick(16 * MIB) }) else { return };
        let place = Place::new();
        let plain = place.command(&format!("--straddle off {}", volume(&volumes, 0)));
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "trap '' HUP INT; exec \"$@\"", "sh"]).arg(plain.get_program()).args(plain.get_args());
        let running = Running::new(command);
        wait_until("all others are read", || volumes.held(0) == 1 && volumes.cold_left(0) == 1);
        running.signal(signal);
        match code {
            0 => thread::sleep(Duration::from_millis(300)),
            _ => running.wait_for("stopped by SIGINT"),
        }
        volumes.release(0);
        running.end().exit(code);
    }
}
