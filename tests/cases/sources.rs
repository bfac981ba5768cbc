//! Streams that are empty, cut, damaged or not the planned ones, and a `zfs send` that fails.

use std::fs;

use crate::support::cli::Machine;
use crate::support::pool::{Death, END, Fault, What, real_stream};

/// Nothing came of it; the same command, once the cause is gone, goes on and makes what can be restored.
fn nothing_is_kept_and_the_next_run_is_right(machine: &Machine, case: &str) {
    assert_eq!(machine.backups().len(), 0, "{case}");
    assert!(!machine.tree().keys().any(|name| name.starts_with("manifests/")), "{case}");
    machine.pool.clear_faults();
    machine.run("backup offsite tank/data@one --segment-size 64KiB").silent();
    machine.run(&format!("restore offsite tank/data@one --to pool/back {}", machine.key())).silent();
    let file = machine.snapshot("one", None);
    assert!(machine.pool.received("pool/back")[0].bytes() == fs::read(file).unwrap(), "{case}");
    machine.run(&format!("check offsite {}", machine.key())).done().says(&["all good"]);
}

#[test]
fn a_send_that_fails_or_writes_something_else_makes_no_backup() {
    let behind = real_stream("inc_empty.zfs");
    for (what, words) in [
        (What::Die { at: END, how: Death::Exit(1) }, "exit status 1"),
        (What::Die { at: END, how: Death::Signal(9) }, "killed by signal 9"),
        (What::Die { at: 200_000, how: Death::Exit(1) }, "exit status 1"),
        (What::Die { at: 200_000, how: Death::Signal(15) }, "killed by signal 15"),
        (What::Die { at: 0, how: Death::Exit(1) }, "exit status 1"),
        (What::Fail { exit: 1, stderr: "cannot send: \u{1b}[31mpermission denied\n".into() }, "permission denied"),
        (What::Truncate { at: 0 }, "the stream is empty"),
        (What::Truncate { at: 200_000 }, "the stream is cut: it ends at byte 200000"),
        (What::Flip { at: 150_000 }, "checksum"),
        (What::Garbage { at: 150_000, length: 5000 }, "the stream is damaged"),
        (What::Cut { at: 131_072, length: 312 }, "the stream is damaged"),
        (What::Behind { file: behind }, "zfs receive would ignore"),
        (What::OtherGuid { guid: 77 }, "but 0x4d had begun"),
    ] {
        let case = format!("{what:?}");
        let machine = Machine::with_snapshots();
        // The first `zfs send` is the one for the estimate.
        machine.pool.fault(Fault::new("send", what).skip(1).times(1));
        let failed = machine.run("backup offsite tank/data@one --segment-size 64KiB");
        failed.fails(1, &["the backup was not finished", words, "the same command goes on"]);
        nothing_is_kept_and_the_next_run_is_right(&machine, &case);
    }
}

/// What comes is valid, and not what was planned: a snapshot was replaced under its name, say.
#[test]
fn a_stream_of_another_snapshot_or_from_another_base_is_refused() {
    let machine = Machine::with_snapshots();
    machine.run("backup offsite tank/data@one").silent();
    let before = machine.backups();
    let guid = |name: &str| machine.pool.guid(&format!("tank/data@{name}"));
    let (one, two, three) = (guid("one"), guid("two"), guid("three"));
    for (name, base, words) in [
        ("two", None, format!("GUID {two} from base none, where {two} from base {one} was expected")),
        ("three", Some("two"), format!("GUID {three} from base {two}, where {two} from base {one} was expected")),
    ] {
        let file = machine.snapshot(name, base);
        machine.pool.update(|state| {
            let planned = state.streams.iter_mut().find(|stream| (stream.to, stream.from) == (two, Some(one)));
            planned.unwrap().file = file;
        });
        machine.run("backup offsite tank/data@two").fails(1, &["another stream than was planned", &words]);
        assert_eq!(machine.backups(), before);
    }
}

#[test]
fn an_estimate_that_is_wrong_or_missing_stops_nothing() {
    let machine = Machine::with_snapshots();
    machine.pool.make_up_streams(200_000);
    for (what, name) in [
        (What::Stdout { text: "size\t1\n".into() }, "one"),
        (What::Fail { exit: 1, stderr: "cannot estimate\n".into() }, "two"),
        (What::Stdout { text: format!("size\t{}\n", u64::MAX) }, "three"),
    ] {
        machine.pool.fault(Fault::new("send", what).argument("-n").times(1));
        machine.run(&format!("backup offsite tank/data@{name}")).silent();
    }
    machine.run(&format!("restore offsite tank/data --to pool/back {}", machine.key())).silent();
    // What was said to be huge came from an older base, which was said to be small.
    assert_eq!(machine.pool.received("pool/back").len(), 2);
}

#[test]
fn what_a_successful_send_says_is_shown_and_long_noise_blocks_nothing() {
    let machine = Machine::with_snapshots();
    machine.pool.fault(Fault::new("send", What::Noise { at: 100_000, bytes: 300_000 }).skip(1));
    let run = machine.run("backup offsite tank/data@one").exit(0);
    assert!(run.stderr().contains("says something that nobody asked for") && run.stderr().len() < 10_000, "{run}");
    assert_eq!(machine.backups().len(), 1);
}

#[test]
fn answers_of_zfs_of_another_shape_end_the_run() {
    for what in [What::DropColumn, What::Stdout { text: "tank/data@one\tx\ty\tz\n".into() }] {
        let machine = Machine::with_snapshots();
        machine.pool.fault(Fault::new("list", what));
        machine.run("backup offsite tank/data@one").fails(1, &["another shape than expected"]);
        machine.pool.clear_faults();
        machine.run("backup offsite tank/data@one").silent();
    }
}

#[test]
fn a_piped_stream_that_is_empty_or_a_broken_zfs_one_makes_no_backup() {
    let full = fs::read(real_stream("zvol_full.zfs")).unwrap();
    let flipped = |at: usize| {
        let mut stream = full.clone();
        stream[at] ^= 1;
        stream
    };
    let package = fs::read(real_stream("inc_I.zfs")).unwrap();
    let machine = Machine::ready();
    for (stream, words) in [
        (Vec::new(), "the stream is empty"),
        (full[..100].to_vec(), "the stream is cut: it ends at byte 100"),
        (full[..312].to_vec(), "the stream is cut"),
        (full[..full.len() / 2].to_vec(), "the stream is cut"),
        (full[..full.len() - 312].to_vec(), "the stream is cut"),
        (full[..full.len() - 1].to_vec(), "the stream is cut"),
        (flipped(400), "the stream is damaged"),
        (flipped(full.len() - 20), "the stream is damaged"),
        ([&full[..], b"\n"].concat(), "zfs receive would ignore"),
        ([&full[..], &full].concat(), "zfs receive would ignore"),
        (package[..package.len() - 312].to_vec(), "the stream is cut"),
        ([&package[..], &full].concat(), "zfs receive would ignore"),
    ] {
        let case = format!("{} bytes: {words}", stream.len());
        let failed = machine.run_with("backup offsite --stdin --name pipe --segment-size 64KiB", &stream);
        failed.fails(1, &["the backup was not finished", words]);
        assert_eq!(machine.backups().len(), 0, "{case}");
    }
    machine.run_with("backup offsite --stdin --name pipe --segment-size 64KiB", &full).silent();
    let back = machine.run(&format!("restore offsite pipe --output - {}", machine.key())).done();
    assert!(back.bytes() == full);
    machine.run(&format!("check offsite {}", machine.key())).done().says(&["all good"]);
}
