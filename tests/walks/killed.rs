//! The program killed at any instant: after each change that shows in the repository's folder.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::bench::Bench;
use crate::machine::{Machine, backup_line};
use crate::support::pool::{Fault, What};

fn names(folder: &Path, found: &mut BTreeSet<String>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            names(&entry.path(), found);
        } else {
            found.insert(entry.path().display().to_string());
        }
    }
}

/// Waits until the folder has changed so often. False when the process has ended before.
fn wait_for_change(child: &mut Child, folder: &Path, changes: u32) -> bool {
    let started = Instant::now();
    let (mut last, mut seen) = (None, 0);
    while seen <= changes {
        assert!(started.elapsed() < Duration::from_secs(120), "the program neither goes on nor ends");
        let mut now = BTreeSet::new();
        names(folder, &mut now);
        if last.as_ref() != Some(&now) {
            // The first look is no change.
            seen += 1;
            last = Some(now);
        } else if child.try_wait().expect("its state").is_some() {
            return false;
        }
    }
    true
}

fn spawn(machine: &Machine<'_>, line: &str) -> Child {
    let mut command = machine.command(line);
    command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the program starts")
}

/// After the n-th change, with each signal. A backup makes about sixteen changes; files are flushed to a real disk,
/// so that each can be seen.
///
/// A loaded machine looks too seldom to see each change: the source then sends more slowly.
fn walk(signal: Signal, folder: impl Fn() -> tempfile::TempDir) {
    let mut seen = 0;
    for rate in [1_000_000, 300_000, 100_000] {
        seen = walk_at(rate, signal, &folder);
        if seen > 6 {
            return;
        }
    }
    panic!("only {seen} changes were seen");
}

fn walk_at(rate: u64, signal: Signal, folder: &impl Fn() -> tempfile::TempDir) -> u32 {
    let bench = Bench::new();
    bench.pool.fault(Fault::new("send", What::Slow { rate }));
    let start = Machine::new(&bench, folder());
    for changes in 1.. {
        let machine = start.copy(folder());
        let mut child = spawn(&machine, &backup_line("s1"));
        let killed = wait_for_change(&mut child, &machine.repo(), changes);
        if killed {
            kill_process(Pid::from_child(&child), signal).expect("it can be killed");
        }
        let output = child.wait_with_output().expect("its end");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let what = format!("{signal:?} after change {changes}: {}, {said}", output.status);
        let ended_before_the_signal = output.status.success();
        if killed && !ended_before_the_signal {
            match signal {
                Signal::KILL => assert_eq!(output.status.signal(), Some(9), "{what}"),
                Signal::TERM => assert_eq!(output.status.code(), Some(143), "{what}"),
                _ => assert_eq!(output.status.code(), Some(130), "{what}"),
            }
        }
        goes_on(&machine, &what);
        if !killed {
            return changes;
        }
    }
    unreachable!("a backup ends")
}

/// What is visible is whole; the same command ends well; and nothing is left over.
fn goes_on(machine: &Machine<'_>, what: &str) {
    let visible = machine.objects().iter().any(|name| name.starts_with("manifests/") && name.ends_with(".age"));
    let (ended, bytes) = machine.restored("tank/data@s1");
    assert_eq!(visible, bytes.is_some(), "{what}: {}", ended.stderr);
    assert!(bytes.is_none_or(|bytes| bytes == machine.bench.streams[0]), "{what}: not identical");
    machine.must(&backup_line("s1"));
    let (_, bytes) = machine.restored("tank/data@s1");
    assert!(bytes.is_some_and(|bytes| bytes == machine.bench.streams[0]), "{what}: not identical after another try");
    machine.must(&format!("check offsite --identity {}", machine.identity()));
    let objects = machine.objects();
    let of = |folder: &str| objects.iter().filter(|name| name.starts_with(folder)).count();
    let counts = (of("manifests/"), of("segments/"), of("keys/"), objects.len());
    assert_eq!(counts, (2, 5, 1, 10), "{what}: left over: {objects:?}");
}

#[test]
fn backup_by_sigkill() {
    walk(Signal::KILL, || tempfile::tempdir().expect("a folder"));
}

#[test]
fn backup_by_sigterm() {
    walk(Signal::TERM, || tempfile::tempdir().expect("a folder"));
}

/// The file of a restore appears whole or not at all.
#[test]
fn restore() {
    let bench = Bench::new();
    let machine = Machine::with_chain(&bench, tempfile::tempdir().expect("a folder"));
    for signal in [Signal::KILL, Signal::TERM, Signal::INT] {
        for changes in 1..4 {
            let folder = machine.file("out");
            let _ = fs::remove_dir_all(&folder);
            fs::create_dir(&folder).expect("a folder");
            let target = folder.join("stream");
            let line =
                format!("restore offsite tank/data@s1 --output {} --identity {}", target.display(), machine.identity());
            let mut child = spawn(&machine, &line);
            if wait_for_change(&mut child, &folder, changes) {
                kill_process(Pid::from_child(&child), signal).expect("it can be killed");
            }
            child.wait().expect("its end");
            if let Ok(bytes) = fs::read(&target) {
                assert!(bytes == bench.streams[0], "{signal:?} after change {changes}: half a file");
            }
            if signal != Signal::KILL {
                let mut left = BTreeSet::new();
                names(&folder, &mut left);
                left.remove(&target.display().to_string());
                assert!(left.is_empty(), "{signal:?} after change {changes}: {left:?}");
            }
            machine.must(&format!("{line} --force"));
            assert!(fs::read(&target).expect("a file") == bench.streams[0]);
        }
    }
}
