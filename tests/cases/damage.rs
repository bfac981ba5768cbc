//! Objects that are changed, swapped, cut, missing or old, manifests that somebody else signed, and repositories that
//! were put back.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;
use snapferry::format::age_file;
use snapferry::format::keys::WriterKey;

use crate::forge;
use crate::support::cli::{Machine, Run, pattern};

/// Two backups of streams that fill four segments each; segments have one size.
fn two_streams() -> Machine {
    let machine = Machine::ready();
    for (name, stream) in [("first", pattern(4 * 65_536)), ("second", pattern(5 * 65_536)[65_536..].to_vec())] {
        let line = format!("backup offsite --stdin --name {name} -z none --segment-size 64KiB");
        machine.run_with(&line, &stream).silent();
    }
    machine
}

fn segment(machine: &Machine, id: &str, number: usize) -> PathBuf {
    machine.objects.join(format!("segments/{id}/000/{number:09}.raw.age"))
}

fn ids(machine: &Machine) -> [String; 2] {
    let ids: Vec<String> = machine.backups().iter().map(|backup| backup["id"].as_str().unwrap().to_owned()).collect();
    ids.try_into().unwrap()
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    let at = at.min(bytes.len() - 1);
    bytes[at] ^= 1;
    fs::write(path, bytes).unwrap();
}

fn swap(one: &Path, other: &Path) {
    let (first, second) = (fs::read(one).unwrap(), fs::read(other).unwrap());
    fs::write(one, second).unwrap();
    fs::write(other, first).unwrap();
}

/// Every check that reads finds something; what it says. The plain one may not see it.
fn checks(machine: &Machine, plain: bool) -> Run {
    let code = machine.run("check offsite").code();
    assert!(code == Some(3) || !plain && code == Some(0), "the plain check: {code:?}");
    machine.run(&format!("check offsite {}", machine.key())).exit(3);
    machine.run("check offsite --read-data").exit(3)
}

#[test]
fn damaged_segments_are_found_and_never_restored() {
    type Damage = fn(&Machine, &[String; 2]);
    // Whether the plain check must find it (an age file's length varies), and how many objects the reading one names.
    let cases: [(&str, Damage, bool, usize); 8] = [
        ("changed in its header", |m, [_, id]| flip(&segment(m, id, 1), 30), false, 1),
        ("changed in its middle", |m, [_, id]| flip(&segment(m, id, 1), 30_000), false, 1),
        ("changed at its end", |m, [_, id]| flip(&segment(m, id, 1), usize::MAX), false, 1),
        ("swapped", |m, [_, id]| swap(&segment(m, id, 1), &segment(m, id, 2)), false, 2),
        (
            "replayed from another backup",
            |m, [other, id]| fs::write(segment(m, id, 1), fs::read(segment(m, other, 1)).unwrap()).unwrap(),
            false,
            1,
        ),
        (
            "truncated",
            |m, [_, id]| fs::File::options().write(true).open(segment(m, id, 1)).unwrap().set_len(60_000).unwrap(),
            true,
            1,
        ),
        (
            "longer",
            |m, [_, id]| fs::File::options().write(true).open(segment(m, id, 1)).unwrap().set_len(70_000).unwrap(),
            true,
            1,
        ),
        ("missing", |m, [_, id]| fs::remove_file(segment(m, id, 1)).unwrap(), true, 1),
    ];
    for (case, damage, plain, named) in cases {
        let machine = two_streams();
        let ids = ids(&machine);
        damage(&machine, &ids);
        let read = checks(&machine, plain);
        let name = format!("segments/{}/000/000000001.raw.age", ids[1]);
        assert!(read.stderr().contains(&name), "{case}: {read}");
        let findings = machine.run("check offsite --read-data --json").exit(3).json();
        assert_eq!(findings["findings"].as_array().unwrap().len(), named, "{case}: {findings}");
        let file = machine.path("out");
        let restored = machine.run(&format!("restore offsite second --output {} {}", file.display(), machine.key()));
        restored.fails(1, &[&name, "check --read-data"]);
        assert!(!file.exists(), "{case}");
        let leftovers = fs::read_dir(file.parent().unwrap()).unwrap();
        let leftovers =
            leftovers.filter(|entry| entry.as_ref().unwrap().file_name().to_str().unwrap().ends_with(".part"));
        assert_eq!(leftovers.count(), 0, "{case}");
        // The other backup is none the worse for it.
        let other = machine.run(&format!("restore offsite first --output - {}", machine.key())).done();
        assert!(other.bytes() == pattern(4 * 65_536), "{case}");
    }
}

#[test]
fn nothing_unchecked_reaches_zfs_receive() {
    let machine = Machine::with_snapshots();
    machine.run("backup offsite tank/data@one -z none --segment-size 64KiB").silent();
    machine.run("backup offsite tank/data@two -z none --segment-size 64KiB").silent();
    let id = forge::last_id(&machine);
    flip(&segment(&machine, &id, 2), 40_000);
    machine
        .run(&format!("restore offsite tank/data --to pool/back {}", machine.key()))
        .fails(1, &["000000002.raw.age"]);
    let attempts = machine.pool.attempts("pool/back");
    assert!(attempts.len() == 2 && attempts[0].complete && !attempts[1].complete);
    assert_eq!(attempts[1].input().len(), 2 * 65_536, "all before the damaged segment, nothing of it");

    // What is missing is told before anything is begun.
    fs::remove_file(segment(&machine, &id, 3)).unwrap();
    let calls = machine.pool.calls().len();
    machine.run(&format!("restore offsite tank/data --to pool/other {}", machine.key())).fails(1, &["it is missing"]);
    assert_eq!(machine.pool.calls().len(), calls);
}

#[test]
fn manifests_that_were_changed_or_swapped_are_reported_and_never_used() {
    type Damage = fn(&Path, &[String; 2]);
    let cases: [(&str, Damage, &str, i32); 6] = [
        ("changed", |m, [_, id]| flip(&m.join(format!("{id}.age")), 500), "its signature does not fit", 4),
        ("signature changed", |m, [_, id]| flip(&m.join(format!("{id}.age.minisig")), 90), "signature", 4),
        ("signature empty", |m, [_, id]| fs::write(m.join(format!("{id}.age.minisig")), "").unwrap(), "signature", 4),
        ("signature missing", |m, [_, id]| fs::remove_file(m.join(format!("{id}.age.minisig"))).unwrap(), "missing", 4),
        ("swapped", |m, [a, b]| swap(&m.join(format!("{a}.age")), &m.join(format!("{b}.age"))), "does not fit", 4),
        (
            "another backup's under its name",
            |m, [a, b]| {
                for end in ["age", "age.minisig"] {
                    fs::copy(m.join(format!("{a}.{end}")), m.join(format!("{b}.{end}"))).unwrap();
                }
            },
            "its signature was made for something else",
            5,
        ),
    ];
    for (case, damage, words, code) in cases {
        let machine = two_streams();
        let ids = ids(&machine);
        damage(&machine.objects.join("manifests"), &ids);
        machine.run("list offsite").exit(3).warns(&[&ids[1], words]);
        let listed = machine.run("list offsite --json").exit(3).json();
        assert!(listed["damaged"].as_array().unwrap().iter().any(|one| one["id"] == ids[1]), "{case}: {listed}");
        checks(&machine, true).warns(&[&ids[1]]);
        let restored = machine.run(&format!("restore offsite second --output - {}", machine.key()));
        assert!(restored.bytes().is_empty(), "{case}");
        restored.fails(code, &[words]);
    }
}

/// Who knows the recipients, as the far end does, can make a well-formed manifest; only a writer can sign it.
#[test]
fn a_manifest_signed_by_somebody_else_is_never_used() {
    let machine = Machine::with_snapshots();
    machine.run("backup offsite tank/data@one").silent();
    let (id, trusted) = (forge::last_id(&machine), forge::writer_key(&machine));
    let stranger = WriterKey::generate(trusted.repository, trusted.recipient.clone()).unwrap();
    let manifests = machine.objects.join("manifests");
    // A newer backup of the same name, made up.
    let (forged, sealed) =
        ("29990101T000000Z-0000000000000000", fs::read(manifests.join(format!("{id}.age"))).unwrap());
    let json = age_file::open(&sealed, &[&trusted.catalogue], 1 << 20).unwrap();
    let json = zstd::encode_all(
        &String::from_utf8(zstd::decode_all(&json[..]).unwrap()).unwrap().replace(&id, forged).into_bytes()[..],
        3,
    );
    let recipient: age::x25519::Recipient = trusted.recipient.parse().unwrap();
    let sealed = age_file::seal(&json.unwrap(), &[&recipient, &trusted.catalogue.to_public()]).unwrap();
    fs::write(manifests.join(format!("{forged}.age")), sealed).unwrap();
    forge::sign(&machine, forged, &stranger);

    machine.run("list offsite").exit(3).warns(&[forged, "it is signed by somebody else"]);
    checks(&machine, true).warns(&[forged, "it is signed by somebody else"]);
    machine.run(&format!("restore offsite {forged} --output - {}", machine.key())).fails(5, &["somebody else"]);
    // The true one is restored, and the base of the next, and the forged one is told of.
    machine.run(&format!("restore offsite tank/data --to pool/back {}", machine.key())).exit(3).warns(&[forged]);
    assert_eq!(machine.pool.received("pool/back").len(), 1);
    machine.run("backup offsite tank/data@two").exit(3).warns(&[forged]);
    machine
        .run(&format!("connect copy {} {} --signer {}", machine.url, machine.key(), machine.signer()))
        .exit(3)
        .warns(&[forged]);

    // The right manifest with the wrong signature: nothing is left to be restored.
    let machine = Machine::with_snapshots();
    machine.run("backup offsite tank/data@one").silent();
    let trusted = forge::writer_key(&machine);
    forge::sign(
        &machine,
        &forge::last_id(&machine),
        &WriterKey::generate(trusted.repository, trusted.recipient).unwrap(),
    );
    machine.run(&format!("restore offsite tank/data --to pool/back {}", machine.key())).fails(5, &["somebody else"]);
    let other = machine.another();
    other
        .run(&format!("connect offsite {} {} --signer {}", other.url, machine.key(), machine.signer()))
        .fails(5, &["signed by"]);
}

#[test]
fn manifests_of_another_format_or_codec_are_refused_by_name() {
    for (key, value, words, listed) in [
        ("format", json!(2), "format version 2", 3),
        ("codec", json!({"name": "brotli", "level": 5}), "codec \"brotli\" is unknown", 0),
    ] {
        let machine = Machine::with_snapshots();
        machine.run("backup offsite tank/data@one").silent();
        let id = forge::last_id(&machine);
        forge::change(&machine, &id, |manifest| manifest[key] = value);
        machine.run("list offsite").exit(listed);
        machine.run("check offsite").exit(3).warns(&[&id, words]);
        let code = if key == "format" { 4 } else { 1 };
        machine.run(&format!("restore offsite tank/data --to pool/back {}", machine.key())).fails(code, &[words]);
        assert!(machine.pool.attempts("pool/back").is_empty());
    }
}

/// The keys of a newer version are no reason to refuse a manifest; a lie about its own size is.
#[test]
fn a_signed_manifest_is_still_not_believed_blindly() {
    let machine = two_streams();
    let [first, second] = ids(&machine);
    forge::change(&machine, &first, |manifest| manifest["something-new"] = json!([1, 2, 3]));
    let back = machine.run(&format!("restore offsite first --output - {}", machine.key())).done();
    assert!(back.bytes() == pattern(4 * 65_536));
    forge::change(&machine, &second, |manifest| manifest["stream"]["bytes"] = json!(4 * 65_536 - 1));
    machine.run("list offsite").exit(3).warns(&[&second]);
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn a_repository_that_was_rolled_back_is_noticed() {
    let machine = Machine::with_snapshots();
    machine.run("backup offsite tank/data@one").silent();
    let earlier = machine.path("earlier");
    copy(&machine.objects, &earlier);
    machine.run("backup offsite tank/data@two").silent();
    let gone = forge::last_id(&machine);
    fs::remove_dir_all(&machine.objects).unwrap();
    copy(&earlier, &machine.objects);

    machine.run("list offsite").exit(3).warns(&[&gone, "number 2 of its writer", "an older state was put back"]);
    assert_eq!(machine.run("list offsite --json").exit(3).json()["missed"], 1);
    let checked = machine.run("check offsite").exit(3).warns(&[&gone]);
    checked.says(&["1 thing is damaged or missing"]);
    machine.run(&format!("restore offsite tank/data --to pool/back {}", machine.key())).exit(3).warns(&[&gone]);
    // The next backup is made, from what is there, and comes behind the one that is gone.
    machine.snapshot("three", Some("one"));
    machine.run("backup offsite tank/data@three").exit(3).warns(&[&gone]);
    assert_eq!(machine.run("list offsite --json").json()["backups"][1]["sequence"], 3);
    machine.run("check offsite --accept").exit(0);
    machine.run("list offsite").done();
    machine.run(&format!("check offsite {}", machine.key())).done().says(&["all good"]);
}

#[test]
fn a_damaged_memory_keeps_nobody_from_his_backups() {
    let machine = Machine::with_snapshots();
    machine.run("backup offsite tank/data@one").silent();
    let path = machine.state().join("seen.json");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, &text[..text.len() / 2]).unwrap();
    let words = ["seen.json can't be read; if it is damaged, remove it", "can't be told"];
    assert!(machine.run("list offsite --json").exit(3).json()["missed"].is_null());
    machine.run(&format!("restore offsite tank/data --to pool/back {}", machine.key())).exit(3).warns(&words);
    assert_eq!(machine.pool.received("pool/back").len(), 1);
    // What would write it anew does not: that might hide what it knew.
    machine.run("backup offsite tank/data@two").fails(1, &words[..1]);
    fs::remove_file(&path).unwrap();
    machine.run("backup offsite tank/data@two").silent();
}

#[test]
fn a_broken_chain_is_told_and_its_parts_can_still_be_had() {
    let machine = Machine::with_snapshots();
    ["one", "two", "three"]
        .iter()
        .for_each(|name| drop(machine.run(&format!("backup offsite tank/data@{name}")).silent()));
    let id = machine.backups()[1]["id"].as_str().unwrap().to_owned();
    fs::remove_file(machine.objects.join(format!("manifests/{id}.age"))).unwrap();
    machine
        .run("check offsite --accept")
        .exit(3)
        .warns(&["can't be restored", &machine.pool.guid("tank/data@two").to_string()]);
    machine.run("list offsite").done().says(&["BASE MISSING"]);
    let key = machine.key();
    for way in ["--to pool/back", "--output-dir OUT"] {
        let way = way.replace("OUT", machine.path("out").to_str().unwrap());
        machine
            .run(&format!("restore offsite tank/data@three {way} {key}"))
            .fails(4, &["chain", "is broken", "--output"]);
    }
    assert!(machine.pool.attempts("pool/back").is_empty() && !machine.path("out").exists());
    let alone = machine.run(&format!("restore offsite tank/data@three --output - {key}")).done();
    assert!(alone.bytes() == fs::read(machine.snapshot("three", Some("two"))).unwrap());
    machine.run(&format!("restore offsite tank/data --to pool/back {key}")).silent();
    assert_eq!(machine.pool.received("pool/back").len(), 1, "the newest that is whole");
}
