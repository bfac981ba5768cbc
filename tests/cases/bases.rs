//! Full or incremental, from which base, with which flags, and when there is nothing to do.

use std::fs;

use serde_json::json;

use crate::forge;
use crate::support::cli::Machine;
use crate::support::pool::Pool;

/// The `zfs send` that made the last stream.
fn last_send(pool: &Pool) -> String {
    let mut calls = pool.calls().into_iter().map(|call| call.join(" "));
    calls.rfind(|call| call.starts_with("send ") && !call.contains(" -n ")).unwrap_or_default()
}

#[test]
fn the_base_is_the_newest_common_one_by_guid_and_transaction_group() {
    type Change = fn(&Machine);
    let cases: [(&str, Change, &str); 9] = [
        ("newest", |_| {}, "-i tank/data@two "),
        ("renamed snapshot", |m| rename(&m.pool, "two", "zwei"), "-i tank/data@zwei "),
        (
            "bookmark of a destroyed snapshot",
            |m| {
                m.pool.add_bookmark("tank/data@two", "mark").remove_snapshot("tank/data@two");
            },
            "-i tank/data#mark ",
        ),
        ("clocks that lie", |m| clock(&m.pool, "one", u64::MAX / 4), "-i tank/data@two "),
        ("a clock before 1970", |m| clock(&m.pool, "two", 0), "-i tank/data@two "),
        (
            "another snapshot of the same name",
            |m| {
                m.pool.remove_snapshot("tank/data@two").edit("tank/data", |dataset| dataset.bookmarks.clear());
                m.snapshot("two", None);
                newest(&m.pool, "three");
                m.snapshot("three", Some("one"));
            },
            "-i tank/data@one ",
        ),
        (
            "a backup that is gone from the repository",
            |m| {
                let id = forge::last_id(m);
                fs::remove_file(m.objects.join(format!("manifests/{id}.age"))).unwrap();
                m.run("check offsite --accept").exit(0);
                m.snapshot("three", Some("one"));
            },
            "-i tank/data@one ",
        ),
        (
            "a chain whose beginning is gone from the repository",
            |m| {
                let id = m.backups()[0]["id"].as_str().unwrap().to_owned();
                fs::remove_file(m.objects.join(format!("manifests/{id}.age"))).unwrap();
                m.run("check offsite --accept").exit(3);
                m.snapshot("three", None);
            },
            "",
        ),
        (
            "all bases destroyed",
            |m| {
                m.pool.remove_snapshot("tank/data@one").remove_snapshot("tank/data@two");
                m.pool.edit("tank/data", |dataset| dataset.bookmarks.clear());
                m.snapshot("three", None);
                let plan = m.run("backup offsite tank/data@three -n").done();
                plan.says(&["tank/data@three: full", "no common snapshot"]);
            },
            "",
        ),
    ];
    for (case, change, base) in cases {
        let machine = Machine::with_snapshots();
        ["one", "two"].iter().for_each(|name| drop(machine.run(&format!("backup offsite tank/data@{name}")).silent()));
        change(&machine);
        let run = machine.run("-v backup offsite tank/data@three").exit(0);
        assert_eq!(last_send(&machine.pool), format!("send -L -c {base}tank/data@three"), "{case}");
        let kind = if base.is_empty() { "tank/data@three: full" } else { "tank/data@three: incremental from " };
        assert!(run.stderr().contains(kind), "{case}: {run}");
        let restored = machine.run(&format!("restore offsite tank/data@three --to pool/back {}", machine.key()));
        restored.silent();
        assert_eq!(machine.pool.received("pool/back").last().unwrap().guid, machine.pool.guid("tank/data@three"));
    }
}

fn rename(pool: &Pool, old: &str, new: &str) {
    pool.edit("tank/data", |dataset| {
        dataset.snapshots.iter_mut().find(|snapshot| snapshot.name == old).unwrap().name = new.to_owned();
    });
}

fn clock(pool: &Pool, name: &str, creation: u64) {
    pool.edit("tank/data", |dataset| {
        dataset.snapshots.iter_mut().find(|snapshot| snapshot.name == name).unwrap().creation = creation;
    });
}

fn newest(pool: &Pool, name: &str) {
    let txg = pool.update(|state| state.tick());
    pool.edit("tank/data", |dataset| {
        dataset.snapshots.iter_mut().find(|snapshot| snapshot.name == name).unwrap().createtxg = txg;
    });
}

#[test]
fn a_renamed_dataset_goes_on_with_its_chain() {
    let machine = Machine::with_snapshots();
    machine.run("backup offsite tank/data@one").silent();
    machine.pool.rename_dataset("tank/data", "tank/new name");
    machine.run("backup offsite 'tank/new name@two'").silent();
    assert_eq!(last_send(&machine.pool), "send -L -c -i tank/new name@one tank/new name@two");
    machine.run(&format!("restore offsite 'tank/new name' --to pool/back {}", machine.key())).silent();
    assert_eq!(machine.pool.received("pool/back").len(), 2);
}

#[test]
fn an_encrypted_dataset_is_sent_raw_all_along() {
    let mut machine = Machine::ready();
    machine.pool = Pool::new(machine.path("real")).real();
    machine.run("backup offsite tank/enc@e1").silent();
    assert_eq!(last_send(&machine.pool), "send -w tank/enc@e1");
    machine.run("backup offsite tank/enc@e2").silent();
    assert_eq!(last_send(&machine.pool), "send -w -i tank/enc@e1 tank/enc@e2");
    assert!(machine.backups().iter().all(|backup| backup["raw"] == true));
    machine.run(&format!("restore offsite tank/enc --to pool/back {}", machine.key())).silent();
    assert_eq!(machine.pool.state().datasets["pool/back"].encryption, "aes-256-gcm");
}

/// A chain keeps the flags that it began with, even if this version would choose others.
#[test]
fn flags_are_kept_for_the_life_of_a_chain() {
    let machine = Machine::with_snapshots();
    machine.run("backup offsite tank/data@one").silent();
    forge::change(&machine, &forge::last_id(&machine), |manifest| manifest["source"]["flags"] = json!(["-L"]));
    for (name, base) in [("two", "one"), ("three", "two")] {
        machine.run(&format!("backup offsite tank/data@{name}")).silent();
        assert_eq!(last_send(&machine.pool), format!("send -L -i tank/data@{base} tank/data@{name}"));
    }
}

#[test]
fn what_is_kept_is_not_sent_again_unless_asked_for() {
    let machine = Machine::with_snapshots();
    machine.run("backup offsite tank/data@one").silent();
    let before = (machine.tree(), last_send(&machine.pool));
    machine.run("backup offsite tank/data@one").silent();
    let told = machine.run("-v backup offsite tank/data@one").exit(0);
    assert!(told.stderr().contains("nothing to do"), "{told}");
    let json = machine.run("backup offsite tank/data@one --json").done().json();
    assert!(json["already_kept"] == true && json["id"] == forge::last_id(&machine), "{json}");
    assert_eq!((machine.tree(), last_send(&machine.pool)), before);

    machine.run("backup offsite tank/data@two").silent();
    machine.snapshot("two", None);
    machine.run("backup offsite tank/data@two --full").silent();
    assert_eq!(last_send(&machine.pool), "send -L -c tank/data@two");
    machine.snapshot("three", Some("one"));
    machine.run("backup offsite tank/data@three --base @one").silent();
    assert_eq!(last_send(&machine.pool), "send -L -c -i tank/data@one tank/data@three");
    assert_eq!(machine.backups().len(), 4);
    machine.run(&format!("check offsite {}", machine.key())).done().says(&["all good"]);
}

#[test]
fn a_dry_run_changes_nothing() {
    let machine = Machine::with_snapshots();
    let fresh = || (machine.tree(), machine.datasets(), crate::support::cli::tree(&machine.config()));
    let before = fresh();
    let plan = machine.run("backup offsite tank/data@one -n").done();
    plan.says(&["would do: tank/data@one: full, about", "segments of 16.00 MiB, zstd:3"]);
    let json = machine.run("backup offsite tank/data@one -n --json").done().json();
    assert!(json["source"]["snapshot"] == "one" && json["segment_size"] == 16 << 20, "{json}");
    machine.run("backup offsite --stdin --name x -n").done().says(&["standard input as x"]);
    let recipient = crate::support::cli::recipient_of(&machine.identity());
    machine.run(&format!("key add offsite -n --recipient {recipient} {}", machine.key())).done();
    machine.run(&format!("-n init other {} --recipient {recipient}", machine.path("other").display())).exit(0);
    machine.run(&format!("-n connect other {} {} --signer {}", machine.url, machine.key(), machine.signer())).exit(0);
    machine.run("check offsite -n").done();
    assert_eq!(fresh(), before);
    assert!(!machine.path("other").exists());
}

#[test]
fn what_does_not_exist_is_named() {
    let machine = Machine::with_snapshots();
    machine.run("backup offsite tank/data@two").fails(1, &[]); // no full stream of it is at hand
    let machine = Machine::with_snapshots();
    machine.run("backup offsite tank/data@one").silent();
    let before = (machine.tree(), machine.datasets());
    for (line, code, words) in [
        ("backup offsite tank/none@one", 4, "dataset does not exist"),
        ("backup offsite nopool/data@one", 4, "nopool/data"),
        ("backup offsite tank/data@none", 4, "tank/data@none does not exist"),
        ("backup offsite tank/data@two --base @none", 4, "the base none does not exist"),
        ("backup offsite tank/data@two --base '#one'", 4, "the base one does not exist"),
        ("backup offsite tank/data@three --base @two", 4, "no complete backup of the base two is kept"),
        ("backup offsite tank/data@one --base @two", 2, "not older"),
        ("backup offsite tank/data@one --base tank@one", 2, "same dataset"),
        ("backup nowhere tank/data@one", 4, "there is no profile \"nowhere\""),
        ("list ./nothing-here", 4, "there is no repository at"),
        ("restore offsite tank/data@two --to pool/back --identity IDENTITY", 4, "no backup is called"),
        ("restore offsite tank/none --to pool/back --identity IDENTITY", 4, "no backup is called"),
        ("list offsite tank/none", 4, "no backup is called"),
        ("backup offsite tank/data@two --zfs-command /no/zfs", 1, "/no/zfs"),
    ] {
        let line = line.replace("IDENTITY", machine.identity().to_str().unwrap());
        machine.run(&line).fails(code, &[words]);
        assert_eq!((machine.tree(), machine.datasets()), before, "{line}");
    }
    let json = machine.run("list offsite tank/none --json").exit(4).json();
    assert_eq!(json["backups"], json!([]), "an empty list is an answer");
}

#[test]
fn names_with_blanks_and_colons_and_at_the_length_limit() {
    let machine = Machine::ready();
    let long = format!("tank/{}", "d".repeat(200));
    let snapshot = "s".repeat(255 - 1 - long.len());
    let odd = [("tank/My Files: a", "Mon day_10:00:00-x.y"), (&long, snapshot.as_str())];
    for (at, (dataset, name)) in odd.into_iter().enumerate() {
        machine.pool.add_dataset(dataset);
        let (_, file) = machine.pool.add_synthetic(dataset, name, None, 50_000);
        let full = format!("{dataset}@{name}");
        machine.run(&format!("backup offsite '{full}'")).silent();
        machine.run(&format!("list offsite '{full}'")).done().says(&[&full]);
        machine.run(&format!("restore offsite '{full}' --to 'pool/b a:{at}' {}", machine.key())).silent();
        assert!(machine.pool.received(&format!("pool/b a:{at}"))[0].bytes() == fs::read(&file).unwrap());
        let folder = machine.path(&format!("streams {at}"));
        machine
            .run(&format!("restore offsite '{full}' --output-dir '{}' {}", folder.display(), machine.key()))
            .silent();
        assert_eq!(fs::read_dir(folder).unwrap().count(), 1);
    }
    let calls = machine.pool.calls().len();
    for bad in
        [&format!("{long}@{snapshot}x"), "tank/a%b@x", "tank/data@x%y", "/tank", "-r@x", "tank/é@x", "tank/a\tb@x"]
    {
        machine.run(&format!("backup offsite -- '{bad}'")).fails(2, &["is no ", " name: "]);
    }
    assert_eq!(machine.pool.calls().len(), calls, "nothing was asked of zfs");
}
