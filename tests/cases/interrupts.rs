//! Runs that are stopped by a signal, killed, or that something else ends midway, and the runs after them.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use rustix::process::Signal;

use crate::support::cli::{Machine, Run, pattern, wait_until};
use crate::support::pool::{END, Fault, What};
use crate::support::sshd::{Account, Sshd};

const BACKUP: &str = "backup offsite tank/data@big --segment-size 64KiB";

/// With `tank/data@big` of one megabyte, whose `zfs send` waits after `at` bytes for [`go`].
fn waiting_at(machine: Machine, at: u64) -> (Machine, PathBuf) {
    machine.pool.add_dataset("tank/data");
    let (_, stream) = machine.pool.add_synthetic("tank/data", "big", None, 1_000_000);
    let file = machine.pool.folder().join("go");
    // The first `zfs send` is the one for the estimate.
    machine.pool.fault(Fault::new("send", What::PauseUntil { at, file }).skip(1).times(1));
    (machine, stream)
}

/// Lets what waits go on, so that nothing is left of it.
fn go(machine: &Machine) {
    fs::write(machine.pool.folder().join("go"), "").unwrap();
    wait_until("no process is left", || machine.processes().is_empty());
}

/// The segments with what tells whether they are the same files later.
fn inodes(machine: &Machine) -> BTreeMap<String, (u64, i64)> {
    let of = |name: String| {
        let meta = fs::metadata(machine.objects.join(&name)).unwrap();
        (name, (meta.ino(), meta.mtime_nsec()))
    };
    machine.segments().into_iter().map(of).collect()
}

/// The same command goes on: what was stored stays as it is, and the whole comes back.
fn goes_on(machine: &Machine, before: &BTreeMap<String, (u64, i64)>, stream: &PathBuf) {
    assert!(!machine.tree().keys().any(|name| name.starts_with("manifests/")), "a half backup is visible");
    assert_eq!(machine.backups().len(), 0);
    let again = machine.run(&format!("-v {BACKUP}")).exit(0);
    let told = format!("{} segments are stored already", before.len());
    assert!(again.stderr().contains(&told), "{told}: {again}");
    let after = inodes(machine);
    assert!(before.iter().all(|(name, inode)| after.get(name) == Some(inode)), "{before:?}\n{after:?}");
    assert_eq!(after.len(), fs::metadata(stream).unwrap().len().div_ceil(65_536) as usize);
    machine.run(&format!("restore offsite tank/data --to pool/back {}", machine.key())).silent();
    assert!(machine.pool.received("pool/back")[0].bytes() == fs::read(stream).unwrap());
    machine.run(&format!("check offsite {}", machine.key())).done().says(&["checked 1 backup,", "all good"]);
    assert!(machine.tree().keys().all(|name| !name.ends_with(".part")));
}

#[test]
fn a_signal_ends_the_children_and_the_same_command_goes_on() {
    let sshd = Sshd::start(Account::Ordinary);
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let places = [
            Some(Machine::ready()),
            sshd.as_ref().map(|sshd| Machine::at(&format!("{}/{code}", sshd.url()), sshd, &[])),
        ];
        for (at, machine) in places.into_iter().enumerate() {
            let Some(mut machine) = machine else { continue };
            if at == 1 {
                machine.objects = sshd.as_ref().unwrap().data().join(code.to_string());
                machine.init();
            }
            let (machine, stream) = waiting_at(machine, 500_000);
            let running = machine.start(machine.command(BACKUP));
            wait_until("all that was sent is stored", || machine.journaled() == 500_000 / 65_536);
            let before = inodes(&machine);
            running.signal(signal);
            running.end().fails(code, &["stopped by SIG", "the same command goes on"]);
            wait_until("the children are gone", || machine.processes().is_empty());
            goes_on(&machine, &before, &stream);
        }
    }
}

#[test]
fn a_child_that_ignores_sigterm_does_not_outlive_the_run() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let (machine, stream) = waiting_at(Machine::ready(), 300_000);
        machine.pool.fault(Fault::new("send", What::IgnoreTerm).skip(1));
        let running = machine.start(machine.command(BACKUP));
        wait_until("all that was sent is stored", || machine.journaled() == 300_000 / 65_536);
        let before = inodes(&machine);
        running.signal(signal);
        running.end().fails(code, &["stopped by SIG", "the same command goes on"]);
        // Like a real `zfs send`, it dies of the pipe that nobody reads.
        go(&machine);
        machine.pool.clear_faults();
        goes_on(&machine, &before, &stream);
    }
}

#[test]
fn errors_of_a_stopped_run_are_json_too() {
    let (machine, _) = waiting_at(Machine::ready(), 300_000);
    let running = machine.start(machine.command(&format!("{BACKUP} --json")));
    wait_until("something is stored", || machine.segments().len() > 1);
    running.signal(Signal::INT);
    let run = running.end().exit(130);
    let [error] = &run.json_errors()[..] else { panic!("{run}") };
    assert_eq!(error["error"]["exit_code"], 130);
    assert!(run.stdout().is_empty());
}

#[test]
fn killed_at_any_instant_the_same_command_goes_on() {
    let length = 1_000_000 / 65_536;
    for (at, stored) in [(0, 0), (65_536, 1), (400_000, 400_000 / 65_536), (END, length)] {
        let (machine, stream) = waiting_at(Machine::ready(), at);
        let mut running = machine.start(machine.command(BACKUP));
        let calls = || machine.pool.calls().iter().filter(|call| call[0] == "send").count();
        wait_until("all that was sent is stored", || calls() == 2 && machine.journaled() >= stored);
        running.child.kill().unwrap();
        assert_eq!(running.end().killed_by(), Some(9));
        let before = inodes(&machine);
        go(&machine);
        if stored == 0 {
            machine.run(BACKUP).silent();
            assert_eq!(machine.backups().len(), 1);
        } else {
            goes_on(&machine, &before, &stream);
        }
    }
}

/// A backup may take weeks, and something removes what belongs to no backup yet.
#[test]
fn what_went_while_it_ran_is_noticed_before_the_commit() {
    let (machine, stream) = waiting_at(Machine::ready(), END);
    let running = machine.start(machine.command(BACKUP));
    wait_until("all segments are stored", || machine.journaled() >= 1_000_000 / 65_536);
    fs::remove_file(machine.objects.join(&machine.segments()[3])).unwrap();
    fs::write(machine.pool.folder().join("go"), "").unwrap();
    running.end().fails(1, &["1 segment that this run had stored went", "stores them again"]);
    let before = inodes(&machine);
    goes_on(&machine, &before, &stream);
}

#[test]
fn a_base_that_went_while_it_ran_is_noticed_before_the_commit() {
    let machine = Machine::with_snapshots();
    machine.run("backup offsite tank/data@one").silent();
    let file = machine.pool.folder().join("go");
    machine.pool.fault(Fault::new("send", What::PauseUntil { at: END, file: file.clone() }).skip(1).times(1));
    let running = machine.start(machine.command("backup offsite tank/data@two --segment-size 64KiB"));
    wait_until("something is stored", || machine.segments().len() > 1);
    let id = machine.backups()[0]["id"].as_str().unwrap().to_owned();
    fs::remove_file(machine.objects.join(format!("manifests/{id}.age"))).unwrap();
    fs::write(file, "").unwrap();
    running.end().fails(1, &[&id, "which this one stands on, was removed meanwhile"]);
    assert!(!machine.tree().keys().any(|name| name.ends_with(".age") && name.starts_with("manifests/")));
}

#[test]
fn starting_over_removes_what_was_left() {
    for line in [format!("{BACKUP} --no-resume"), format!("{BACKUP} -z none"), BACKUP.replace("64KiB", "128KiB")] {
        let (machine, stream) = waiting_at(Machine::ready(), 400_000);
        let mut running = machine.start(machine.command(BACKUP));
        wait_until("all that was sent is stored", || machine.journaled() == 400_000 / 65_536);
        running.child.kill().unwrap();
        running.end();
        go(&machine);
        let before = inodes(&machine);
        machine.run(&line).silent();
        let after = inodes(&machine);
        assert!(before.keys().all(|name| !after.contains_key(name)), "{line}: {after:?}");
        machine.run(&format!("restore offsite tank/data --to pool/back {}", machine.key())).silent();
        assert!(machine.pool.received("pool/back")[0].bytes() == fs::read(stream).unwrap(), "{line}");
    }
}

#[test]
fn a_journal_that_was_cut_or_damaged_costs_time_and_nothing_else() {
    let cuts: [fn(&str) -> String; 6] = [
        |_| String::new(),
        |text| text[..40].to_owned(),
        |text| text[..text.len() - 5].to_owned(),
        |text| text.lines().next().unwrap().to_owned() + "\n",
        |text| text.replacen("[1,", "[x,", 1),
        // Rows that are not true: the repository and the stream decide.
        |text| text.replace("[0,[", "[4,["),
    ];
    for cut in cuts {
        let (machine, stream) = waiting_at(Machine::ready(), 400_000);
        let mut running = machine.start(machine.command(BACKUP));
        wait_until("all that was sent is stored", || machine.journaled() == 400_000 / 65_536);
        running.child.kill().unwrap();
        running.end();
        go(&machine);
        let folder = machine.state().join("journal");
        let journal = fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
        let text = fs::read_to_string(&journal).unwrap();
        fs::write(&journal, cut(&text)).unwrap();
        machine.run(BACKUP).silent();
        machine.run(&format!("restore offsite tank/data --to pool/back {}", machine.key())).silent();
        assert!(machine.pool.received("pool/back")[0].bytes() == fs::read(stream).unwrap());
        machine.run(&format!("check offsite {}", machine.key())).done().says(&["all good"]);
    }
}

/// Stopped after `sent` bytes of `first`; then the same name gets `second`.
fn piped_twice(first: &[u8], sent: usize, second: &[u8]) -> (Machine, BTreeMap<String, (u64, i64)>) {
    const LINE: &str = "backup offsite --stdin --name pipe --segment-size 64KiB";
    let machine = Machine::ready();
    let mut running = machine.start_fed(LINE);
    running.input().write_all(&first[..sent]).unwrap();
    wait_until("all that was sent is stored", || machine.journaled() == sent / 65_536);
    running.signal(Signal::INT);
    assert_eq!(running.end().code(), Some(130));
    let before = inodes(&machine);
    machine.run_with(LINE, second).silent();
    let back = machine.run(&format!("restore offsite pipe --output - {}", machine.key())).done();
    assert!(back.bytes() == second);
    machine.run(&format!("check offsite {}", machine.key())).done().says(&["all good"]);
    assert_eq!(machine.segments().len(), second.len().div_ceil(65_536), "nothing is left over");
    (machine, before)
}

#[test]
fn another_stream_under_the_same_name_is_stored_as_it_is() {
    let first = pattern(600_000);
    let mut changed = first.clone();
    changed[3 * 65_536 + 100] ^= 1;
    let (machine, before) = piped_twice(&first, 400_000, &changed);
    let after = inodes(&machine);
    let same: Vec<bool> = before.iter().map(|(name, inode)| after.get(name) == Some(inode)).collect();
    assert_eq!(same[..4], [true, true, true, false], "the first that differs is stored anew");

    piped_twice(&first, 400_000, &first);
    piped_twice(&first, 400_000, &pattern(600_000)[1..]);
    piped_twice(&first, 400_000, &first[..100_000]);
    piped_twice(&first, 400_000, b"short");
}

#[test]
fn two_runs_at_once_are_one_too_many() {
    let machine = Machine::with_snapshots();
    let mut running = machine.start_fed("backup offsite --stdin --name pipe --segment-size 64KiB");
    running.input().write_all(&pattern(100_000)).unwrap();
    wait_until("the first run is at work", || machine.segments().len() == 1);
    let before = machine.tree();
    machine.run("backup offsite tank/data@one").fails(6, &["another run", "try again"]);
    machine
        .run(&format!(
            "backup {} tank/data@one --writer-key {}",
            machine.url,
            machine.config().join("offsite.writer-key").display()
        ))
        .fails(6, &[]);
    machine.run("key remove offsite age-00000000").fails(6, &[]);
    assert_eq!(machine.tree(), before);
    // Reading is always possible.
    machine.run("list offsite").done();
    machine.run(&format!("check offsite {}", machine.key())).done();
    drop(running.child.stdin.take());
    let run: Run = running.end();
    run.silent();
    machine.run("backup offsite tank/data@one").silent();
    assert_eq!(machine.backups().len(), 2);
}
