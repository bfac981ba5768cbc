//! Old backups go by a policy, and nothing that is needed goes with them.

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};

use crate::forge;
use crate::support::cli::Machine;

const DAY: u64 = 86_400;

/// Backups of `tank/data`, one a day up to yesterday. Each of `fulls` begins a chain.
fn machine(days: u64, fulls: &[u64]) -> Machine {
    let machine = Machine::ready();
    machine.pool.add_dataset("tank/data").make_up_streams(30_000);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    for day in 0..days {
        let time = now - (days - day) * DAY;
        machine.pool.snapshot_with("tank/data", &format!("d{day}"), 1000 + day, 200 + day, time, (0, 24576));
        let full = if fulls.contains(&day) { "--full" } else { "" };
        machine.run(&format!("backup offsite tank/data@d{day} {full}")).silent();
    }
    machine
}

fn kept(machine: &Machine) -> Vec<String> {
    machine.backups().iter().map(|backup| backup["snapshot"].as_str().unwrap().to_owned()).collect()
}

fn ids(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|object| object["what"].as_str().unwrap().rsplit('@').next().unwrap()).collect()
}

#[test]
fn what_stays_can_be_restored_and_what_goes_is_gone() {
    let machine = machine(12, &[4, 8]);
    let before = machine.tree();
    let plan = machine.run("--json prune offsite --keep-last 2 --keep-daily 5 -n").exit(0).json();
    assert_eq!(ids(&plan["remove"]), ["d3", "d2", "d1", "d0"], "what stands on others first");
    let reasons = plan["keep"][3]["reasons"].to_string();
    assert!(
        plan["keep"][0]["reasons"] == json!(["a base of one that stays"]) && reasons.contains("daily 20"),
        "{plan}"
    );
    machine.run("prune offsite --keep-last 2 --keep-daily 5 -n").exit(0).says(&["would remove 4 of 12 backups: "]);
    assert_eq!(machine.tree(), before, "a dry run removes nothing");
    let other = machine.another();
    let signer = machine.signer();
    other.run(&format!("connect offsite {} {} --signer {signer}", machine.url, machine.key())).exit(0);
    other.run(&format!("list offsite {}", machine.key())).done();
    machine.run("prune offsite --keep-last 2 --keep-daily 5").silent();
    assert_eq!(kept(&machine), ["d4", "d5", "d6", "d7", "d8", "d9", "d10", "d11"]);
    machine.run(&format!("check offsite --read-data {}", machine.key())).done().says(&["all good"]);
    let segments: BTreeSet<String> =
        machine.segments().iter().map(|name| name.split('/').nth(1).unwrap().to_owned()).collect();
    assert_eq!(segments.len(), 8, "segments went with their backups");
    for (at, name) in kept(&machine).into_iter().enumerate() {
        machine.run(&format!("restore offsite tank/data@{name} --to pool/back{at} {}", machine.key())).silent();
        let received = machine.pool.received(&format!("pool/back{at}"));
        assert_eq!(received.last().unwrap().snapshot, name);
    }
    // Neither machine takes it for a loss, and the next backup goes on.
    other.run(&format!("list offsite {}", machine.key())).done();
    machine.pool.snapshot_with("tank/data", "next", 9000, 900, 0, (0, 24576));
    machine.run("backup offsite tank/data@next").silent();
    machine.run("prune offsite --keep-last 1").silent();
    assert_eq!(kept(&machine), ["d8", "d9", "d10", "d11", "next"], "its chain stays whole");
    machine.run("list offsite").done();
}

#[test]
fn nothing_is_removed_where_something_is_missing_or_not_said() {
    let machine = machine(4, &[1, 2, 3]);
    machine.run("prune offsite").fails(2, &["what to keep is not said"]);
    machine.run("prune offsite --keep-within soon").fails(2, &["is no time"]);
    let id = machine.backups()[1]["id"].as_str().unwrap().to_owned();
    let path = machine.objects.join(format!("manifests/{id}.age"));
    let manifest = fs::read(&path).unwrap();
    let refused = |why: &str| {
        let before = machine.tree();
        let run = machine.run("prune offsite --keep-last 1").exit(3);
        assert!(run.stderr().contains("nothing was removed") && run.stderr().contains(why), "{run}");
        assert_eq!(machine.tree(), before);
    };
    fs::remove_file(&path).unwrap();
    refused("is gone");
    fs::write(&path, &manifest[1..]).unwrap();
    refused("can't be used");
    fs::write(&path, &manifest).unwrap();
    // A record that was made up hides no loss, and one by another key says nothing.
    let made_up = machine.objects.join("removals/20260101T000000Z-0123456789abcdef.age");
    fs::create_dir_all(made_up.parent().unwrap()).unwrap();
    fs::write(&made_up, &manifest).unwrap();
    fs::copy(path.with_extension("age.minisig"), made_up.with_extension("age.minisig")).unwrap();
    refused("can't be used");
    machine.run("check offsite").exit(3).warns(&["removals/", "can't be used"]);
    fs::remove_file(&made_up).unwrap();
    machine.run("prune offsite --keep-last 1").silent();
    assert_eq!(kept(&machine), ["d3"]);
}

#[test]
fn a_record_does_not_excuse_the_loss_of_another_backup() {
    let machine = machine(3, &[0, 1, 2]);
    let last = forge::last_id(&machine);
    machine.run("prune offsite --keep-last 1").silent();
    machine.run("list offsite").done();
    fs::remove_file(machine.objects.join(format!("manifests/{last}.age"))).unwrap();
    machine.run("list offsite").exit(3).warns(&["is gone"]);
    // Without the record, what was pruned is missed by those who remember it, but not by the machine that pruned.
    let machine = self::machine(3, &[0, 1, 2]);
    let other = machine.another();
    let signer = machine.signer();
    other.run(&format!("connect offsite {} {} --signer {signer}", machine.url, machine.key())).exit(0);
    other.run(&format!("list offsite {}", machine.key())).done();
    machine.run("prune offsite --keep-last 1").silent();
    fs::remove_dir_all(machine.objects.join("removals")).unwrap();
    machine.run("list offsite").done();
    other.run(&format!("list offsite {}", machine.key())).exit(3);
}

#[test]
fn leftovers_go_when_they_are_old_and_nobody_claims_them() {
    let machine = machine(2, &[]);
    let planted = |id: &str| {
        let folder = machine.objects.join(format!("segments/{id}/000"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("000000000.zst.age"), b"left over").unwrap();
        fs::write(machine.objects.join(format!("manifests/{id}.age.minisig")), b"left over").unwrap();
    };
    let (old, new) = ("20260101T000000Z-0123456789abcdef", "20990101T000000Z-0123456789abcdef");
    planted(old);
    planted(new);
    let done = machine.run("--json prune offsite --keep-last 9").exit(0).json();
    assert_eq!(done["leftovers"], json!([{"backup": old, "objects": 2, "bytes": 18}]));
    let names: String = machine.tree().into_keys().collect();
    assert!(!names.contains(old) && names.contains(new), "{names}");
    // What an interrupted backup of this machine has stored is not left over.
    machine.pool.snapshot_with("tank/data", "late", 5000, 500, 0, (0, 24576));
    machine.pool.make_up_streams(400_000);
    machine
        .pool
        .fault(crate::support::pool::Fault::new("send", crate::support::pool::What::Truncate { at: 300_000 }).skip(1));
    machine.run("backup offsite tank/data@late --segment-size 64KiB").exit(1);
    machine.pool.clear_faults();
    let segments = machine.segments();
    machine.run("prune offsite --keep-last 9 --grace 0s").silent();
    assert_eq!(machine.segments(), segments, "and what says it is of the future is not old");
}

#[test]
fn streams_and_other_machines_are_groups_of_their_own() {
    let machine = machine(2, &[0, 1]);
    for n in 0..3 {
        machine.run_with("backup offsite --stdin --name db", format!("dump {n}").as_bytes()).silent();
        machine.run_with("backup offsite --stdin --name mail", format!("dump {n}").as_bytes()).silent();
    }
    machine.run("prune offsite --keep-last 1").silent();
    let names: Vec<String> = machine
        .backups()
        .iter()
        .map(|b| b.get("name").or(b.get("snapshot")).unwrap().as_str().unwrap().to_owned())
        .collect();
    assert_eq!(names, ["d1", "db", "mail"]);
}

/// Two backups that name one another as bases, each with an older full one of the same snapshot to lean on.
#[test]
fn a_circle_of_bases_is_not_torn_apart() {
    let machine = machine(2, &[0, 1]);
    for (name, base, guid) in [("d0", "d1", "1001"), ("d1", "d0", "1000")] {
        machine.run(&format!("backup offsite tank/data@{name} --full")).silent();
        let base = json!({"kind": "snapshot", "name": base, "guid": guid});
        forge::change(&machine, &forge::last_id(&machine), |manifest| manifest["source"]["base"] = base);
    }
    let before = machine.tree();
    machine.run("prune offsite --keep-last 2").fails(1, &["nothing was removed", "could not be restored"]);
    assert_eq!(machine.tree(), before);
}

/// Killed after each object that it deletes in turn: what the policy keeps is whole, and the next run finishes.
#[test]
fn killed_at_any_instant_nothing_that_stays_is_hurt() {
    let template = machine(8, &[0, 3, 6]);
    let keep = ["d6", "d7"].map(str::to_owned);
    let (saved, seen) = (template.path("saved objects"), fs::read(template.state().join("seen.json")).unwrap());
    copy(&template.objects, &saved);
    let whole = template.tree().len();
    let mut half_way = 0;
    for round in 0..50 {
        let mut running = template.start(template.command("prune offsite --keep-last 2"));
        // Two objects come, the record and its signature, and then three go with each of six backups.
        let gone = round * 20 / 50;
        let reached = || files(&template.objects) + gone <= whole + 2;
        while (round > 0 && !reached()) && running.child.try_wait().unwrap().is_none() {}
        running.child.kill().unwrap();
        let _ = running.end();
        let left = kept(&template);
        half_way += usize::from(left.len() > 2 && left.len() < 8);
        assert!(left.ends_with(&keep), "round {round}: {left:?}");
        template.run(&format!("check offsite {}", template.key())).exit(0);
        template.run("prune offsite --keep-last 2").silent();
        assert_eq!(kept(&template), keep, "round {round}");
        let owners: BTreeSet<String> =
            template.segments().iter().map(|name| name.split('/').nth(1).unwrap().to_owned()).collect();
        assert_eq!(owners.len(), 2, "round {round}: no segment is left behind");
        fs::remove_dir_all(&template.objects).unwrap();
        copy(&saved, &template.objects);
        fs::write(template.state().join("seen.json"), &seen).unwrap();
    }
    assert!(half_way > 0, "no kill came between the first and the last backup that goes");
}

fn files(folder: &std::path::Path) -> usize {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let count = |entry: fs::DirEntry| if entry.path().is_dir() { files(&entry.path()) } else { 1 };
    entries.flatten().map(count).sum()
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target)
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}
