//! Snapshots that the program takes, and what it leaves at the source: holds, bookmarks, chains.

use serde_json::{Value, json};

use crate::support::cli::Machine;
use crate::support::pool::{Fault, What, standin_zfs};

/// A machine with `tank/data` and two datasets below, any snapshot of which can be sent.
fn machine() -> Machine {
    let machine = Machine::ready();
    machine
        .pool
        .add_dataset("tank/data")
        .add_dataset("tank/data/a")
        .add_dataset("tank/data/b")
        .make_up_streams(200_000);
    machine
}

fn backs_up(machine: &Machine, line: &str) -> Value {
    machine.run(&format!("--json backup offsite {line}")).exit(0).json()
}

fn snapshots(machine: &Machine, dataset: &str) -> Vec<String> {
    machine.pool.state().datasets[dataset].snapshots.iter().map(|snapshot| snapshot.name.clone()).collect()
}

fn bookmarks(machine: &Machine, dataset: &str) -> Vec<u64> {
    machine.pool.state().datasets[dataset].bookmarks.iter().map(|mark| mark.guid).collect()
}

fn holds(machine: &Machine) -> Vec<String> {
    let state = machine.pool.state();
    let snapshots = state.datasets.values().flat_map(|dataset| &dataset.snapshots);
    snapshots.flat_map(|snapshot| snapshot.holds.clone()).collect()
}

#[test]
fn a_dataset_is_snapshotted_backed_up_and_pinned() {
    let machine = machine();
    machine.run("backup offsite tank/data").silent();
    machine.run("backup offsite tank/data").silent();
    let names = snapshots(&machine, "tank/data");
    assert!(names.len() == 2 && names[0] != names[1], "{names:?}");
    assert!(names.iter().all(|name| name.starts_with("snapferry_20") && name.ends_with('Z')), "{names:?}");
    assert_eq!(snapshots(&machine, "tank/data/a"), [""; 0], "without -r nothing below is touched");
    assert_eq!(holds(&machine), [""; 0]);
    let pinned = bookmarks(&machine, "tank/data");
    assert_eq!(pinned.len(), 2);
    // The snapshots are gone, by whatever means: the bookmark is the base.
    for name in &names {
        machine.pool.remove_snapshot(&format!("tank/data@{name}"));
    }
    let third = backs_up(&machine, "tank/data --snapshot-name third");
    let third = &third["backups"][0];
    assert_eq!(third["base_guid"], json!(pinned[1].to_string()));
    assert_eq!(third["source"]["base"]["kind"], json!("bookmark"));
    let back = machine.run(&format!("restore offsite tank/data --to pool/back {}", machine.key()));
    back.silent();
    assert_eq!(machine.pool.received("pool/back").len(), 3);
}

#[test]
fn the_snapshot_is_held_while_it_is_sent_and_the_base_moves_only_after_the_commit() {
    let machine = machine();
    machine.run("backup offsite tank/data").silent();
    let before = bookmarks(&machine, "tank/data");
    machine.pool.fault(Fault::new("send", What::Truncate { at: 100_000 }).argument("-i").skip(1));
    machine.run("backup offsite tank/data").fails(1, &["was not finished"]);
    assert_eq!(bookmarks(&machine, "tank/data"), before);
    let held = holds(&machine);
    assert!(held.len() == 1 && held[0].starts_with("snapferry:"), "an interrupted backup goes on: {held:?}");
    let listed = machine.run("--json holds offsite").exit(0).json();
    assert!(listed["holds"][0]["why"].as_str().unwrap().contains("the same command goes on"), "{listed}");
    assert_eq!(listed["bookmarks"].as_array().unwrap().len(), 1);
    machine.run("holds offsite release").exit(0);
    assert_eq!(holds(&machine), held, "what can go on is not released");
    machine.pool.clear_faults();
    // First what was interrupted, then a new one.
    let done = backs_up(&machine, "tank/data");
    assert_eq!(done["backups"].as_array().unwrap().len(), 2, "{done}");
    assert_eq!((holds(&machine), snapshots(&machine, "tank/data").len()), (vec![], 3));
    assert_eq!(bookmarks(&machine, "tank/data").len(), 3);
}

#[test]
fn holds_that_nothing_explains_are_released_by_the_next_run() {
    let machine = machine();
    machine.run("backup offsite tank/data").silent();
    let name = snapshots(&machine, "tank/data").remove(0);
    let profile = std::fs::read_to_string(machine.config().join("offsite.toml")).unwrap();
    let uuid = profile.split("repository = \"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    let backup = machine.backups().remove(0);
    machine.pool.edit("tank/data", |dataset| dataset.bookmarks.clear());
    // As a run that was killed between its commit and its bookmark leaves it, and two of other people.
    let writer = writer_of(&machine);
    let stale = format!("snapferry:{uuid}:{writer}-{}", backup["id"].as_str().unwrap());
    let other = format!("snapferry:{uuid}:0badcafe-{}", backup["id"].as_str().unwrap());
    machine.pool.edit("tank/data", |dataset| {
        dataset.snapshots[0].holds = vec![stale.clone(), other.clone(), "keep".to_owned()];
    });
    let listed = machine.run("--json holds offsite list").exit(0).json();
    let stale_ones = listed["holds"].as_array().unwrap().iter().map(|hold| hold["stale"] == json!(true));
    assert_eq!(stale_ones.collect::<Vec<_>>(), [true, false], "{listed}");
    machine.run("holds offsite release -n").exit(0).says(&["would release", &stale]);
    assert_eq!(holds(&machine).len(), 3);
    machine.run("backup offsite tank/data").silent();
    assert_eq!(holds(&machine), [other.clone(), "keep".to_owned()]);
    assert_eq!(bookmarks(&machine, "tank/data").len(), 2, "what was committed got its bookmark: {name}");
    machine.run("holds offsite release --all").exit(0);
    assert_eq!(holds(&machine), ["keep"], "what is not ours is never touched");
    // A name that acts on a terminal does not come through.
    let id = backup["id"].as_str().unwrap();
    let hostile = format!("snapferry:{uuid}:\u{1b}[2J-{id}");
    machine.pool.edit("tank/data", |dataset| dataset.snapshots[0].holds = vec![hostile.clone()]);
    assert!(!machine.run("holds offsite").exit(0).stdout().contains('\u{1b}'));
    machine.pool.edit("tank/data", |dataset| dataset.snapshots[0].holds.clear());
    // What earlier runs hold can't be looked for: that keeps nobody from a backup.
    machine.pool.fault(Fault::new("list", What::DropColumn).argument("name,userrefs"));
    machine.run("backup offsite tank/data").silent();
    machine.run("holds offsite frobnicate").fails(2, &["neither list nor release"]);
}

/// As it stands in a tag.
fn writer_of(machine: &Machine) -> String {
    let calls = machine.pool.calls();
    let hold = calls.iter().find(|call| call[0] == "hold").expect("a hold");
    hold[1].rsplit(':').next().unwrap().split('-').next().unwrap().to_owned()
}

#[test]
fn without_the_rights_it_warns_and_backs_up() {
    let machine = machine();
    machine.pool.deny(&["hold", "bookmark", "destroy", "userprop"]);
    let run = machine.run("backup offsite tank/data");
    run.warns(&["is not held", "has no bookmark", "could not be marked"]);
    machine.run("backup offsite tank/data").exit(0);
    assert_eq!(machine.backups().len(), 2);
    assert_ne!(machine.backups()[1]["base_guid"], Value::Null);
    machine.pool.deny(&["snapshot"]);
    machine
        .run("backup offsite tank/data")
        .fails(1, &["no snapshot tank/data@snapferry_", "permission denied", "zfs allow"]);
    machine.pool.deny(&["send"]);
    machine.run("backup offsite tank/data").fails(1, &["permission denied", "zfs allow -u USER send,"]);
}

#[test]
fn recursive_is_one_instant_and_a_chain_for_each() {
    let machine = machine();
    machine.run("backup offsite tank/data -r").silent();
    let done = backs_up(&machine, "tank/data -r");
    let backups = done["backups"].as_array().unwrap();
    assert_eq!(backups.len(), 3);
    assert!(backups.iter().all(|backup| backup["base_guid"] != Value::Null), "{done}");
    let takes = machine.pool.calls().into_iter().filter(|call| call[0] == "snapshot").collect::<Vec<_>>();
    assert!(takes.len() >= 2 && takes.iter().all(|call| call.contains(&"-r".to_owned())), "{takes:?}");
    // One that fails does not keep the others from it.
    machine.pool.fault(Fault::new("send", What::Fail { exit: 1, stderr: "I/O error".into() }).argument("tank/data/a@"));
    let run = machine.run("--json backup offsite tank/data -r").exit(3);
    let said = run.json();
    assert_eq!((said["backups"].as_array().unwrap().len(), &said["failed"][0]["dataset"]), (2, &json!("tank/data/a")));
    let run = machine.run("backup offsite tank/data -r").exit(3);
    assert!(run.stderr().contains("error: tank/data/a: ") && run.stderr().contains("I/O error"), "{run}");
    machine.pool.clear_faults().fault(Fault::new("send", What::Fail { exit: 1, stderr: "I/O error".into() }));
    let run = machine.run("backup offsite tank/data -r").exit(1);
    assert!(run.stderr().contains("none of 3 datasets was backed up"), "{run}");
    machine.pool.clear_faults();
    machine.run("backup offsite tank/data -r").silent();
    // What was taken and not sent was sent now, for each of them.
    let kept = machine.backups();
    for dataset in ["tank/data", "tank/data/a", "tank/data/b"] {
        let count = kept.iter().filter(|backup| backup["dataset"] == json!(dataset)).count();
        assert_eq!(count, snapshots(&machine, dataset).len(), "{dataset}");
    }
}

#[test]
fn snapshots_of_others_are_used_and_never_made_or_destroyed() {
    let machine = machine();
    for name in ["auto-1", "hourly-1", "auto-2", "auto-3", "hourly-2"] {
        machine.pool.add_snapshot("tank/data", name);
    }
    let before = snapshots(&machine, "tank/data");
    let titles = |done: &Value| -> Vec<String> {
        let backups = done["backups"].as_array().unwrap().iter();
        backups.map(|backup| backup["source"]["snapshot"].as_str().unwrap_or("kept").to_owned()).collect()
    };
    assert_eq!(titles(&backs_up(&machine, "tank/data --match 'auto-[0-9]' --exclude '*-3'")), ["auto-2"]);
    assert_eq!(titles(&backs_up(&machine, "tank/data --match 'auto-*' --catch-up --keep-source 1")), ["auto-3"]);
    assert_eq!(titles(&backs_up(&machine, "tank/data --exclude 'hourly-*'")), ["kept"]);
    machine.run("backup offsite tank/data --match 'weekly*'").fails(4, &["no snapshot of tank/data fits"]);
    assert_eq!(snapshots(&machine, "tank/data"), before);
    let done = backs_up(&machine, "tank/data --catch-up");
    assert_eq!(titles(&done)[0], "hourly-2");
    assert_eq!(titles(&done).len(), 2, "and then one that was taken: {done}");
    machine.run("backup offsite tank/data --match '['").fails(2, &["--match"]);
    machine.run("backup offsite tank/data@auto-1 --match 'a*'").fails(2, &["a snapshot was named"]);
    machine.run("backup offsite tank/data@auto-1 --keep-source 1").fails(2, &["a snapshot was named"]);
    machine.run("backup offsite --stdin --name x --pull nas:tank/data").exit(2);
    machine.run("backup offsite tank/none").fails(4, &["dataset does not exist"]);
}

#[test]
fn our_own_snapshots_go_when_they_are_safe() {
    let machine = machine();
    machine.pool.add_snapshot("tank/data", "mine");
    for _ in 0..4 {
        machine.run("backup offsite tank/data").silent();
    }
    let names = snapshots(&machine, "tank/data");
    let lookalike = "snapferry_20200101T000000Z";
    machine.pool.add_snapshot("tank/data", lookalike);
    machine.pool.edit("tank/data", |dataset| dataset.snapshots[1].holds.push("keep".to_owned()));
    machine.run("backup offsite tank/data --keep-source 2").silent();
    let left = snapshots(&machine, "tank/data");
    assert_eq!(left[..4], ["mine", &names[1], &names[4], lookalike].map(str::to_owned), "held ones and others' stay");
    assert_eq!(left.len(), 5);
    let plain = machine.pool.calls().into_iter().filter(|call| call[0] == "destroy" && call[1].contains('@'));
    assert!(plain.into_iter().all(|call| call.len() == 2), "never -r, -d, -f or a range");
    // What the repository lost is not destroyed here, but sent again, and only then goes.
    for entry in std::fs::read_dir(machine.objects.join("manifests")).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    machine.run("check offsite --accept").exit(0);
    machine.pool.fault(Fault::new("send", What::Fail { exit: 1, stderr: "I/O error".into() }));
    let before = snapshots(&machine, "tank/data");
    machine.run("backup offsite tank/data --keep-source 1").exit(1);
    assert_eq!(snapshots(&machine, "tank/data")[..before.len()], before);
    machine.pool.clear_faults();
    let done = backs_up(&machine, "tank/data --keep-source 1");
    assert_eq!(
        done["backups"].as_array().unwrap().len(),
        5,
        "two that were left, one held, one that failed, one new: {done}"
    );
    assert_eq!(snapshots(&machine, "tank/data").len(), 4, "mine, the lookalike, the held one, the newest");
}

#[test]
fn bookmarks_of_a_long_chain_are_thinned() {
    let machine = machine();
    for _ in 0..13 {
        machine.run("backup offsite tank/data --keep-source 1").silent();
    }
    let guids: Vec<u64> = machine.backups().iter().map(|b| b["guid"].as_str().unwrap().parse().unwrap()).collect();
    let mut pinned = bookmarks(&machine, "tank/data");
    let mut expected = [0, 10, 11, 12].map(|place| guids[place]);
    pinned.sort_unstable();
    expected.sort_unstable();
    assert_eq!(pinned, expected);
    let plan = machine.run("plan offsite tank/data").exit(0);
    let text = plan.stdout();
    assert!(text.contains("* ") && text.contains("incremental from ") && text.contains("full"), "{text}");
    assert!(text.contains("a snapshot of tank/data taken now: incremental from"), "{text}");
    assert!(text.contains("because it is the newest common base"), "{text}");
    let json = machine.run("--json plan offsite tank/data --max-chain 5").exit(0).json();
    let offers = json["offers"].as_array().unwrap();
    assert!(offers[0]["objection"].as_str().unwrap().contains("more than 5") && offers[0]["chosen"] == json!(false));
    assert!(
        offers.iter().any(|offer| offer["kind"] == json!("differential") && offer["chosen"] == json!(true)),
        "{json}"
    );
    let done = backs_up(&machine, "tank/data --max-chain 1");
    assert_eq!(done["backups"][0]["base_guid"], Value::Null, "a new chain begins");
}

#[test]
fn flags_are_frozen_and_a_change_begins_a_chain() {
    let machine = machine();
    machine.run("backup offsite tank/data --send-flags=-L").silent();
    machine.run("backup offsite tank/data").silent();
    let flags = |at: usize| {
        machine
            .pool
            .calls()
            .into_iter()
            .filter(|call| call[0] == "send" && !call.contains(&"-n".to_owned()))
            .nth(at)
            .unwrap()
    };
    assert!(!flags(1).contains(&"-c".to_owned()), "those of the chain: {:?}", flags(1));
    let run = machine.run("backup offsite tank/data --send-flags '-L -c'");
    run.warns(&["a new chain begins with a full backup"]);
    assert!(!flags(2).contains(&"-i".to_owned()));
    machine.run("backup offsite tank/data --send-flags=-e").fails(2, &["is none of -L -c -w -p"]);
    machine.run("backup offsite tank/data --full-every soon").fails(2, &["is no time"]);
    machine.run("backup offsite tank/data --snapshot-name 'a/b'").fails(2, &["--snapshot-name"]);
    machine.run("backup offsite tank/data --snapshot-name '%!'").fails(2, &["--snapshot-name"]);
}

#[test]
fn a_dry_run_takes_holds_and_bookmarks_nothing() {
    let machine = machine();
    machine.run("backup offsite tank/data").silent();
    let before =
        (machine.pool.state().datasets["tank/data"].snapshots.len(), bookmarks(&machine, "tank/data"), machine.tree());
    let json = machine.run("--json backup offsite tank/data -r -n").exit(0).json();
    assert_eq!(json["backups"].as_array().unwrap().len(), 3, "{json}");
    let run = machine.run("backup offsite tank/data -r -n").exit(0);
    assert!(run.stdout().contains("would take tank/data@snapferry_"), "{run}");
    assert!(run.stdout().contains("incremental from @snapferry_") && run.stdout().contains("tank/data/b@"), "{run}");
    let after =
        (machine.pool.state().datasets["tank/data"].snapshots.len(), bookmarks(&machine, "tank/data"), machine.tree());
    assert_eq!(before, after);
}

/// An `ssh` that runs the far end's command line with a shell, as sshd does.
fn with_ssh(machine: &Machine) -> String {
    let ssh = machine.path("ssh");
    let script = "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done\n[ \"$2\" = down ] && { echo 'ssh: connect: refused' >&2; exit 255; }\necho \"$2\" >> \"$(dirname \"$0\")/hosts\"\nexec sh -c \"$3\"\n";
    std::fs::write(&ssh, script).unwrap();
    std::fs::set_permissions(&ssh, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    format!("--ssh-command {} --zfs-command {}", ssh.display(), standin_zfs().display())
}

#[test]
fn pulled_from_another_machine() {
    let machine = machine();
    machine.pool.add_dataset("tank/My Files");
    let ssh = with_ssh(&machine);
    machine.run(&format!("{ssh} backup offsite --pull root@nas:tank/data")).silent();
    machine.run(&format!("{ssh} backup offsite --pull ssh://nas:2222/tank/data")).silent();
    machine.run(&format!("{ssh} backup offsite --pull 'nas:tank/My Files'")).silent();
    let backups = machine.backups();
    assert!(backups.iter().all(|backup| backup["host"] == json!("nas")), "{backups:?}");
    assert_eq!((backups.len(), &backups[2]["dataset"]), (3, &json!("tank/My Files")));
    assert!(backups[1]["base_guid"] != Value::Null && holds(&machine).is_empty());
    machine.pool.fault(Fault::new("send", What::Fail { exit: 1, stderr: "I/O error".into() }));
    machine.run(&format!("{ssh} backup offsite --pull nas:tank/data")).fails(1, &["I/O error", "on nas: "]);
    machine.run(&format!("{ssh} backup offsite --pull down:tank/data")).fails(1, &["refused", "BatchMode"]);
    let no_zfs = ssh.replace(&standin_zfs().display().to_string(), "/no/zfs");
    machine
        .run(&format!("{no_zfs} backup offsite --pull nas:tank/data"))
        .fails(1, &["exit status 127", "--zfs-command"]);
    for bad in ["tank/data", "-oProxyCommand=id:tank", "nas:tank/$(id)", "nas:tank/a@b@c", "nas:-r"] {
        machine.run(&format!("{ssh} backup offsite --pull '{bad}'")).exit(2);
    }
    machine.run(&format!("{ssh} backup offsite tank/data --pull nas:tank/data")).exit(2);
}

#[test]
fn a_renamed_dataset_keeps_its_chain() {
    let machine = machine();
    machine.run("backup offsite tank/data/a").silent();
    machine.pool.rename_dataset("tank/data/a", "tank/renamed");
    let done = backs_up(&machine, "tank/renamed");
    assert_ne!(done["backups"][0]["base_guid"], Value::Null, "{done}");
}
