//! Restores over what exists, into what is full or refuses, and those that were interrupted.

use std::fs;

use rustix::process::Signal;

use crate::forge;
use crate::support::cli::{Machine, wait_until};
use crate::support::pool::{Death, Fault, What, real_stream};

fn three() -> Machine {
    let machine = Machine::with_snapshots();
    let back_up = |name| drop(machine.run(&format!("backup offsite tank/data@{name} --segment-size 64KiB")).silent());
    ["one", "two", "three"].into_iter().for_each(back_up);
    machine
}

/// Everything came, in order, each snapshot whole.
fn assert_whole(machine: &Machine, target: &str) {
    let received: Vec<u64> = machine.pool.received(target).iter().map(|one| one.guid).collect();
    let wanted = ["one", "two", "three"].map(|name| machine.pool.guid(&format!("tank/data@{name}")));
    assert_eq!(received, wanted);
}

#[test]
fn an_existing_dataset_is_never_touched_without_force() {
    let machine = three();
    let key = machine.key();
    machine.pool.add_dataset("pool/empty").add_dataset("pool/used");
    machine.pool.add_snapshot("pool/used", "theirs");
    let before = machine.datasets();
    for target in ["pool/empty", "pool/used", "pool", "tank/data"] {
        let run = machine.run(&format!("restore offsite tank/data --to {target} {key}"));
        let words = if target == "tank/data" { "holds all of it already" } else { "exists already" };
        run.fails(1, &[words, "nothing was changed"]);
    }
    assert_eq!(machine.datasets(), before);
    assert!(!machine.pool.calls().iter().any(|call| call[0] == "receive"));

    machine.run(&format!("restore offsite tank/data --to pool/empty --force {key}")).silent();
    assert_whole(&machine, "pool/empty");
    assert_eq!(machine.pool.received("pool/empty")[0].arguments, ["-s", "-u", "-F", "pool/empty"]);
    // What `zfs receive` says is shown.
    let refused = machine.run(&format!("restore offsite tank/data --to pool/used --force {key}"));
    refused.fails(1, &["zfs receive -s -u -F pool/used: exit status 1", "must destroy them to overwrite it"]);
    machine.run(&format!("restore offsite tank/data --to nopool/x {key}")).fails(1, &["nopool"]);
    for bad in ["pool/x@y", "pool/", "-F", "pool/%recv", ""] {
        machine.run(&format!("restore offsite tank/data '--to={bad}' {key}")).fails(2, &["is no dataset name"]);
    }
}

#[test]
fn files_are_never_replaced_without_force() {
    let machine = three();
    let (key, file, folder) = (machine.key(), machine.path("out.zfs"), machine.path("out"));
    fs::write(&file, "precious").unwrap();
    let to_file = format!("restore offsite tank/data@one --output {} {key}", file.display());
    machine.run(&to_file).fails(1, &["exists already", "--force replaces it"]);
    assert_eq!(fs::read(&file).unwrap(), b"precious");
    machine.run(&format!("{to_file} --force")).silent();
    let stream = fs::read(machine.snapshot("one", None)).unwrap();
    assert!(fs::read(&file).unwrap() == stream);

    let to_folder = format!("restore offsite tank/data --output-dir {} {key}", folder.display());
    machine.run(&to_folder).silent();
    let before = crate::support::cli::tree(&folder);
    machine.run(&to_folder).fails(1, &["exists already"]);
    assert_eq!(crate::support::cli::tree(&folder), before);
    // What would be in the way of a later one is seen before the first is written.
    let first = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).min().unwrap();
    fs::remove_file(&first).unwrap();
    machine.run(&to_folder).fails(1, &["exists already"]);
    assert!(!first.exists());
    machine.run(&format!("{to_folder} --force")).silent();
    assert_eq!(crate::support::cli::tree(&folder), before);

    machine
        .run(&format!("restore offsite tank/data@one --output {} {key}", folder.display()))
        .fails(2, &["is a folder"]);
    machine
        .run(&format!("restore offsite tank/data@one --output {}/none/x {key}", folder.display()))
        .fails(1, &["cannot write"]);
    machine
        .run(&format!("restore offsite tank/data@one --output /dev/full {key}"))
        .fails(1, &["cannot write /dev/full", "No space"]);
    machine.run(&format!("restore offsite tank/data@one --output /dev/null {key}")).silent();
}

#[test]
fn a_reader_that_goes_away_is_an_error() {
    let machine = three();
    let mut command = machine.command(&format!("restore offsite tank/data@one --output - {}", machine.key()));
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.starts_with("snapferry: error: ") && !stderr.contains("panicked"), "{stderr}");
}

#[test]
fn a_restore_that_zfs_receive_ends_goes_on_with_the_same_command() {
    for (at, skip) in [(100_000, 0), (100_000, 1), (0, 1), (100_000, 2)] {
        for how in [Death::Exit(1), Death::Signal(9)] {
            let machine = three();
            machine.pool.fault(Fault::new("receive", What::Die { at, how }).skip(skip).times(1));
            let line = format!("restore offsite tank/data --to pool/back {}", machine.key());
            machine.run(&line).fails(1, &["zfs receive -s -u pool/back", "the same command goes on"]);
            assert_eq!(machine.pool.received("pool/back").len(), skip as usize);
            let calls = machine.pool.calls().len();
            machine.run(&line).silent();
            assert_whole(&machine, "pool/back");
            let calls = machine.pool.calls().split_off(calls);
            let again = calls.iter().filter(|call| call[..2] == ["receive", "-s"]).count();
            assert_eq!(again, 3 - skip as usize, "what was received is not received again");
            machine.run(&line).fails(1, &["holds all of it already"]);
        }
    }
}

#[test]
fn a_restore_that_a_signal_or_a_damaged_object_ends_goes_on_with_the_same_command() {
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let machine = three();
        let file = machine.pool.folder().join("go");
        machine
            .pool
            .fault(Fault::new("receive", What::PauseUntil { at: 100_000, file: file.clone() }).skip(1).times(1));
        let line = format!("restore offsite tank/data --to pool/back {}", machine.key());
        let running = machine.start(machine.command(&line));
        wait_until("the second stream is on its way", || {
            machine.pool.calls().iter().filter(|call| call[0] == "receive").count() == 2
        });
        running.signal(signal);
        let run = running.end();
        let expected = match signal {
            Signal::INT => (Some(130), None),
            Signal::TERM => (Some(143), None),
            _ => (None, Some(9)),
        };
        assert_eq!((run.code(), run.killed_by()), expected, "{run}");
        fs::write(file, "").unwrap();
        wait_until("no process is left", || machine.processes().is_empty());
        machine.run(&line).silent();
        assert_whole(&machine, "pool/back");
    }

    let machine = three();
    let name = machine.segments().into_iter().rfind(|name| name.contains(&forge::last_id(&machine))).unwrap();
    let path = machine.objects.join(name);
    let good = fs::read(&path).unwrap();
    fs::write(&path, vec![0; good.len()]).unwrap();
    let line = format!("restore offsite tank/data --to pool/back {}", machine.key());
    machine.run(&line).fails(1, &["check --read-data"]);
    assert_eq!(machine.pool.received("pool/back").len(), 2);
    fs::write(&path, good).unwrap();
    machine.run(&line).silent();
    assert_whole(&machine, "pool/back");
}

/// A package that broke off between two of its snapshots: it is sent again, and what is there is passed over.
#[test]
fn a_restore_that_broke_off_inside_a_package_goes_on_with_the_same_command() {
    for at in [400_000, 100_000] {
        let machine = Machine::ready();
        for (name, file) in [("a", "full.zfs"), ("b", "inc_I.zfs")] {
            machine
                .run_with(&format!("backup offsite --stdin --name {name}"), &fs::read(real_stream(file)).unwrap())
                .silent();
        }
        machine.pool.fault(Fault::new("receive", What::Die { at, how: Death::Exit(1) }).skip(1).times(1));
        let line = format!("restore offsite b --to pool/back {}", machine.key());
        machine.run(&line).fails(1, &["zfs receive"]);
        machine.run(&line).silent();
        let names: Vec<String> = machine.pool.received("pool/back").into_iter().map(|one| one.snapshot).collect();
        assert_eq!(names.join(" "), "s1 s2 s3 s4");
    }
}

#[test]
fn a_forced_restore_that_broke_off_goes_on_with_the_same_command() {
    let machine = three();
    machine.pool.add_dataset("pool/empty");
    machine.pool.fault(Fault::new("receive", What::Die { at: 100_000, how: Death::Exit(1) }).skip(1).times(1));
    let line = format!("restore offsite tank/data --to pool/empty --force {}", machine.key());
    machine.run(&line).fails(1, &["zfs receive"]);
    machine.run(&line).silent();
    assert_whole(&machine, "pool/empty");
}

#[test]
fn a_full_pool_or_a_missing_right_is_shown_in_the_words_of_zfs() {
    let room = |machine: &Machine, room: Option<u64>| {
        machine.pool.edit("pool", |pool| pool.room = room);
    };
    // A receive that ends early with status 0 breaks the pipe, or all that is left fits into it: both are noticed.
    for (case, words) in [(0, "out of space"), (1, "permission denied"), (2, "zfs receive")] {
        let machine = three();
        match case {
            0 => room(&machine, Some(100_000)),
            1 => machine.pool.update(|state| state.denied = ["receive".to_owned()].into()),
            _ => {
                machine.pool.fault(Fault::new("receive", What::StopReading { at: 50_000 }));
            }
        }
        let line = format!("restore offsite tank/data --to pool/back {}", machine.key());
        machine.run(&line).fails(1, &["zfs receive", words]);
        machine.pool.clear_faults().update(|state| state.denied.clear());
        room(&machine, None);
        machine.run(&line).silent();
        assert_whole(&machine, "pool/back");
    }
}
