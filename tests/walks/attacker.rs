//! Whoever holds the repository's folder changes, swaps, cuts, removes, replays and adds what they like. No restore
//! gives other bytes with success, `check` reports what matters, and `list` what is wrong with manifests.

use std::fs;
use std::path::PathBuf;

use age::secrecy::ExposeSecret;
use snapferry::format::age_file;
use snapferry::format::descriptor::Descriptor;
use snapferry::format::keys::{SlotContent, WriterKey, parse_recipient};
use snapferry::format::manifest::{Manifest, Source};
use snapferry::format::names::{self, BackupId};
use snapferry::format::signature::SigningKey;
use snapferry::pipeline::codec::Codec;
use snapferry::pipeline::seal::Sealer;

use crate::bench::{Bench, SEGMENT, files_of, quick_folder};
use crate::machine::{Ended, Machine, backup_line};

/// What is known of a repository after an attack.
struct Seen {
    chain: Ended,
    check: Ended,
    list: Ended,
}

impl Seen {
    /// Restores the chain, checks and lists. Whatever comes back is true.
    fn of(machine: &Machine<'_>, what: &str) -> Seen {
        let folder = machine.file("out");
        let _ = fs::remove_dir_all(&folder);
        let identity = machine.identity();
        let chain = machine
            .run(&format!("restore offsite tank/data@s3 --output-dir {} --identity {identity}", folder.display()));
        let files = if folder.is_dir() { files_of(&folder) } else { Vec::new() };
        for (place, (name, bytes)) in files.iter().enumerate() {
            assert!(*bytes == machine.bench.streams[place], "{what}: {name} has other bytes");
        }
        if matches!(chain.code, Some(0 | 3)) {
            assert_eq!(files.len(), 3, "{what}: success with a part of the chain: {}", chain.stderr);
        }
        let check = machine.run(&format!("check offsite --read-data --identity {identity}"));
        let list = machine.run("list offsite");
        for ended in [&chain, &check, &list] {
            assert!(matches!(ended.code, Some(0 | 1 | 3 | 4 | 5)), "{what}: {:?}: {}", ended.code, ended.stderr);
            assert!(!ended.stderr.contains("panicked"), "{what}: {}", ended.stderr);
        }
        Seen { chain, check, list }
    }

    fn restore_fails(self, what: &str) -> Seen {
        assert!(!matches!(self.chain.code, Some(0 | 3)), "{what}: restored: {}", self.chain.stderr);
        assert!(self.chain.stderr.contains("error: "), "{what}: {}", self.chain.stderr);
        self
    }

    fn check_reports(self, what: &str, word: &str) -> Seen {
        let text = format!("{}{}", self.check.stdout, self.check.stderr);
        assert_eq!(self.check.code, Some(3), "{what}: check says nothing: {text}");
        assert!(text.contains(word), "{what}: {word:?} is not in: {text}");
        self
    }

    fn list_tells(self, what: &str) -> Seen {
        assert_eq!(self.list.code, Some(3), "{what}: list says nothing: {}{}", self.list.stdout, self.list.stderr);
        self
    }
}

/// One kind of damage to one object.
fn damages(bytes: &[u8]) -> Vec<(&'static str, Option<Vec<u8>>)> {
    let flipped = |at: usize| {
        let mut bytes = bytes.to_vec();
        bytes[at] ^= 1;
        Some(bytes)
    };
    let longer = [bytes, b"\n"].concat();
    vec![
        ("bit flipped in the middle", flipped(bytes.len() / 2)),
        ("bit flipped at the end", flipped(bytes.len() - 2)),
        ("cut in half", Some(bytes[..bytes.len() / 2].to_vec())),
        ("cut by one byte", Some(bytes[..bytes.len() - 1].to_vec())),
        ("emptied", Some(Vec::new())),
        ("made longer", Some(longer)),
        ("removed", None),
    ]
}

fn of_kind(start: &Machine<'_>, kind: impl Fn(&str) -> bool) -> Vec<String> {
    start.objects().into_iter().filter(|name| kind(name)).collect()
}

/// The id in the name of one of the objects of a backup.
fn id_of(name: &str) -> String {
    name.split('/').nth(1).expect("an id").split('.').next().expect("an id").to_owned()
}

fn each(start: &Machine<'_>, objects: &[String], verdict: impl Fn(&Machine<'_>, &str, &str)) {
    for object in objects {
        let bytes = fs::read(start.repo().join(object)).expect("an object");
        for (damage, after) in damages(&bytes) {
            let machine = start.copy(quick_folder());
            let path = machine.repo().join(object);
            match after {
                Some(after) => fs::write(path, after).expect("damage"),
                None => fs::remove_file(path).expect("damage"),
            }
            verdict(&machine, object, &format!("{object} {damage}"));
        }
    }
}

#[test]
fn each_segment_damaged() {
    let bench = Bench::new();
    let start = Machine::with_chain(&bench, quick_folder());
    let segments = of_kind(&start, |name| name.starts_with("segments/"));
    assert_eq!(segments.len(), 8);
    each(&start, &segments, |machine, object, what| {
        let seen = Seen::of(machine, what).restore_fails(what).check_reports(what, object);
        assert!(seen.chain.stderr.contains(object), "{what}: the object is not named: {}", seen.chain.stderr);
        // Backups that do not need this object come back.
        for (snapshot, stream) in ["s1", "s2", "s3"].iter().zip(&bench.streams) {
            let (ended, bytes) = machine.restored(&format!("tank/data@{snapshot}"));
            let json = machine.run(&format!("list offsite tank/data@{snapshot} --json")).stdout;
            assert_eq!(bytes.is_none(), json.contains(&id_of(object)), "{what}: {snapshot}: {}", ended.stderr);
            assert!(bytes.is_none_or(|bytes| bytes == *stream), "{what}: {snapshot} has other bytes");
        }
    });
}

#[test]
fn each_manifest_and_signature_damaged() {
    let bench = Bench::new();
    let start = Machine::with_chain(&bench, quick_folder());
    let manifests = of_kind(&start, |name| name.starts_with("manifests/"));
    assert_eq!(manifests.len(), 6);
    each(&start, &manifests, |machine, object, what| {
        // The last line's end is not signed, and not needed.
        if object.ends_with(".minisig") && (what.ends_with("cut by one byte") || what.ends_with("made longer")) {
            Seen::of(machine, what);
            return;
        }
        Seen::of(machine, what).restore_fails(what).check_reports(what, &id_of(object)).list_tells(what);
        // Nothing is built on what can't be used, and it is told.
        let backup = machine.run(&backup_line("s3"));
        assert_eq!(backup.code, Some(3), "{what}: backup: {}{}", backup.stdout, backup.stderr);
    });
}

#[test]
fn slot_and_descriptor_damaged() {
    let bench = Bench::new();
    let start = Machine::with_chain(&bench, quick_folder());
    each(&start, &of_kind(&start, |name| name.starts_with("keys/")), |machine, _, what| {
        let seen = Seen::of(machine, what).restore_fails(what);
        assert_eq!(seen.chain.code, Some(5), "{what}: {}", seen.chain.stderr);
        assert_eq!(seen.check.code, Some(5), "{what}: {}", seen.check.stderr);
    });
    each(&start, &[names::DESCRIPTOR.to_owned()], |machine, _, what| {
        // A bit of white space, or of the date, changes nothing that matters.
        let seen = Seen::of(machine, what);
        if what.ends_with("emptied") || what.ends_with("in half") || what.ends_with("in the middle") {
            seen.restore_fails(what);
        } else if what.ends_with("removed") {
            let codes = [seen.chain.code, seen.check.code, seen.list.code];
            assert_eq!(codes, [Some(4); 3], "{what}: {}", seen.check.stderr);
        }
    });
}

#[test]
fn each_pair_of_a_folder_swapped() {
    let bench = Bench::new();
    let start = Machine::with_chain(&bench, quick_folder());
    let objects = of_kind(&start, |name| name.contains('/'));
    let folder = |name: &str| name.rsplit_once('/').map(|(folder, _)| folder.to_owned());
    let mut pairs = 0;
    for (place, one) in objects.iter().enumerate() {
        for other in objects[place + 1..].iter().filter(|other| folder(other) == folder(one)) {
            let machine = start.copy(quick_folder());
            let (one_path, other_path, third) =
                (machine.repo().join(one), machine.repo().join(other), machine.file("third"));
            fs::rename(&one_path, &third).expect("a swap");
            fs::rename(&other_path, &one_path).expect("a swap");
            fs::rename(&third, &other_path).expect("a swap");
            let what = format!("{one} swapped with {other}");
            let seen = Seen::of(&machine, &what).restore_fails(&what).check_reports(&what, &id_of(one));
            if one.starts_with("manifests/") {
                seen.list_tells(&what);
            }
            pairs += 1;
        }
    }
    assert_eq!(pairs, 10 + 1 + 15);
}

fn ids(machine: &Machine<'_>) -> Vec<String> {
    let json: serde_json::Value = serde_json::from_str(&machine.must("list offsite --json").stdout).expect("JSON");
    let backups = json["backups"].as_array().expect("backups").iter();
    backups.map(|backup| backup["id"].as_str().expect("an id").to_owned()).collect()
}

fn manifest_of(machine: &Machine<'_>, id: &str) -> (PathBuf, PathBuf) {
    let manifest = machine.repo().join(format!("manifests/{id}.age"));
    (manifest.clone(), manifest.with_extension("age.minisig"))
}

/// An older manifest in the place of a newer one, with its signature and without; and the other way round.
#[test]
fn manifests_replayed() {
    let bench = Bench::new();
    let start = Machine::with_chain(&bench, quick_folder());
    let ids = ids(&start);
    for (from, to) in [(0, 2), (0, 1), (1, 2), (2, 0)] {
        for parts in [(true, true), (true, false), (false, true)] {
            let machine = start.copy(quick_folder());
            let (source, target) = (manifest_of(&machine, &ids[from]), manifest_of(&machine, &ids[to]));
            if parts.0 {
                fs::copy(&source.0, &target.0).expect("a replay");
            }
            if parts.1 {
                fs::copy(&source.1, &target.1).expect("a replay");
            }
            let what = format!("{from} in the place of {to}, {parts:?}");
            Seen::of(&machine, &what).restore_fails(&what).check_reports(&what, &ids[to]).list_tells(&what);
        }
    }
}

#[test]
fn manifests_duplicated_under_another_id() {
    let bench = Bench::new();
    let start = Machine::with_chain(&bench, quick_folder());
    for id in ids(&start) {
        let machine = start.copy(quick_folder());
        let other = "20991231T235959Z-0123456789abcdef";
        let (source, target) = (manifest_of(&machine, &id), manifest_of(&machine, other));
        fs::copy(source.0, target.0).expect("a duplicate");
        fs::copy(source.1, target.1).expect("a duplicate");
        let what = format!("{id} as {other}");
        let seen = Seen::of(&machine, &what).check_reports(&what, other).list_tells(&what);
        assert_eq!(
            seen.chain.code,
            Some(3),
            "what was asked for came, and the stranger is told: {}",
            seen.chain.stderr
        );
    }
}

/// A whole older state of the repository, put back.
#[test]
fn rolled_back() {
    let bench = Bench::new();
    let start = Machine::with_chain(&bench, quick_folder());
    let ids = ids(&start);
    for (keep, gone) in [(2, 1), (1, 2), (0, 3)] {
        let machine = start.copy(quick_folder());
        for id in &ids[keep..] {
            let (manifest, signature) = manifest_of(&machine, id);
            fs::remove_file(manifest).expect("a removal");
            fs::remove_file(signature).expect("a removal");
            fs::remove_dir_all(machine.repo().join("segments").join(id)).expect("a removal");
        }
        let what = format!("{gone} backups are gone");
        let seen = Seen::of(&machine, &what).restore_fails(&what).check_reports(&what, &ids[keep]).list_tells(&what);
        assert!(seen.list.stderr.contains("older state"), "{what}: {}", seen.list.stderr);
        let backup = machine.run(&backup_line("s1"));
        assert_eq!(backup.code, Some(3), "{what}: {}", backup.stderr);
        // What comes next stands behind all that was ever seen, and never takes a number again.
        machine.run(&format!("{} --full", backup_line("s2")));
        let json: serde_json::Value = serde_json::from_str(&machine.run("list offsite --json").stdout).expect("JSON");
        let newest =
            json["backups"].as_array().expect("backups").iter().map(|backup| backup["sequence"].as_u64()).max();
        assert!(newest.flatten() > Some(3), "{what}: {json}");
        machine.run("check offsite --accept");
        machine.must("check offsite");
    }
}

/// The manifest of `id`, as the attacker may know it, with `change` made to it and signed by another key.
fn forged(machine: &Machine<'_>, id: &str, change: impl FnOnce(&mut Manifest)) -> Manifest {
    let writer = writer_key(machine);
    let sealed = fs::read(manifest_of(machine, id).0).expect("a manifest");
    let plain = age_file::open(&sealed, &[&writer.catalogue], 1 << 20).expect("it opens");
    let mut manifest = Manifest::from_bytes(&plain).expect("it reads");
    change(&mut manifest);
    let recipient = parse_recipient(&writer.recipient).expect("a recipient");
    let sealed = age_file::seal(&manifest.to_bytes().expect("bytes"), &[&recipient, &writer.catalogue.to_public()])
        .expect("sealed");
    let comment = Manifest::comment(&manifest.repository, &manifest.id);
    let signature = SigningKey::generate().expect("a key").sign(&sealed, &comment).expect("a signature");
    let (path, signature_path) = manifest_of(machine, manifest.id.as_str());
    fs::write(path, sealed).expect("a forgery");
    fs::write(signature_path, signature).expect("a forgery");
    manifest
}

fn writer_key(machine: &Machine<'_>) -> WriterKey {
    let text = fs::read_to_string(machine.config().join("offsite.writer-key")).expect("a writer key");
    WriterKey::from_text(&text).expect("a writer key")
}

/// Well formed, sealed to the right recipients, newer than all others, and signed by somebody else.
#[test]
fn a_foreign_manifest() {
    let bench = Bench::new();
    let start = Machine::with_chain(&bench, quick_folder());
    let ids = ids(&start);
    let other: BackupId = "20991231T235959Z-0123456789abcdef".parse().expect("an id");
    for id in &ids {
        let machine = start.copy(quick_folder());
        let forgery = forged(&machine, id, |manifest| {
            manifest.id = other.clone();
            manifest.sequence += 100;
            manifest.started = "2099-12-31T23:59:59Z".parse().expect("a time");
            if let Source::Zfs(zfs) = &mut manifest.source {
                zfs.base = None;
            }
        });
        let segments = machine.repo().join("segments");
        fs::rename(segments.join(id), segments.join(other.as_str())).expect("its segments");
        fs::create_dir(segments.join(id)).expect("a folder");
        let what = format!("{} forged after {id}", forgery.id);
        let seen = Seen::of(&machine, &what).restore_fails(&what).check_reports(&what, other.as_str());
        seen.list_tells(&what);
        let (ended, _) = machine.restored(other.as_str());
        assert_eq!(ended.code, Some(5), "{what}: asked for by its id: {}", ended.stderr);
    }
    // In the place of a true one.
    let machine = start.copy(quick_folder());
    forged(&machine, &ids[2], |_| ());
    let what = "a manifest signed anew by somebody else";
    Seen::of(&machine, what).restore_fails(what).check_reports(what, &ids[2]).list_tells(what);
}

/// A segment of the right size, well formed and sealed to the right recipient, which anybody can make.
#[test]
fn a_forged_segment() {
    let bench = Bench::new();
    let machine = Machine::with_chain(&bench, quick_folder());
    let recipient = parse_recipient(&writer_key(&machine).recipient).expect("a recipient");
    let mut sealer = Sealer::new(Codec::default(), recipient, true).expect("a sealer");
    let size_of = |name: &str| fs::metadata(machine.repo().join(name)).expect("an object").len();
    let whole = |name: &str| name.ends_with("000000001.zst.age") && size_of(name) > SEGMENT as u64;
    let object = of_kind(&machine, whole).remove(0);
    let (path, size) = (machine.repo().join(&object), size_of(&object));
    // Another part of the stream compresses as little; age files differ in length by chance.
    let stream = bench.streams.iter().find(|stream| stream.len() > 4 * SEGMENT).expect("a long stream");
    let mut forged = Vec::new();
    let fits = (2 * SEGMENT..3 * SEGMENT).any(|from| {
        sealer.seal(&stream[from..from + SEGMENT], &mut forged).expect("sealed");
        forged.len() as u64 == size
    });
    assert!(fits, "no forgery of {size} bytes could be made");
    fs::write(&path, &forged).expect("a forgery");
    Seen::of(&machine, "forged").restore_fails("forged").check_reports("forged", &object);
    let check = machine.run("check offsite --read-data");
    assert_eq!(check.code, Some(3), "without a key: {}", check.stderr);
}

/// Slots that open with the person's own key, and hold something else; before the true one and behind it.
#[test]
fn a_planted_slot() {
    let bench = Bench::new();
    let start = Machine::with_chain(&bench, quick_folder());
    let writer = writer_key(&start);
    let person = parse_recipient(&bench.recipient).expect("a recipient");
    let signer = SigningKey::generate().expect("a key").signer().expect("a signer");
    let content = SlotContent { repository: writer.repository, signer, identity: age::x25519::Identity::generate() };
    let slot = age_file::seal(content.to_text().as_bytes(), &[&person]).expect("a slot");
    let nonsense = age_file::seal(b"nothing that is a slot", &[&person]).expect("a slot");
    for planted in [&slot[..], &nonsense, b"", b"age-encryption.org/v1\n", &[0; 70_000]] {
        for name in ["age-00000000", "zzz-00000000"] {
            let machine = start.copy(quick_folder());
            fs::write(machine.repo().join(format!("keys/{name}.age")), planted).expect("a slot");
            let what = format!("a planted slot {name} of {} bytes", planted.len());
            let seen = Seen::of(&machine, &what);
            assert_eq!(seen.chain.code, Some(0), "{what}: {}", seen.chain.stderr);
        }
    }
}

#[test]
fn another_descriptor() {
    let bench = Bench::new();
    let start = Machine::with_chain(&bench, quick_folder());
    let true_one = fs::read(start.repo().join(names::DESCRIPTOR)).expect("a descriptor");
    let descriptor = Descriptor::from_bytes(&true_one).expect("a descriptor");
    let other_recipient = age::x25519::Identity::generate().to_public().to_string();
    let others: [(Vec<u8>, i32); 5] = [
        (Descriptor { recipient: other_recipient, ..descriptor.clone() }.to_bytes(), 5),
        (Descriptor { repository: uuid::Uuid::new_v4(), ..descriptor.clone() }.to_bytes(), 5),
        (Descriptor { format: 2, ..descriptor.clone() }.to_bytes(), 1),
        (b"{}".to_vec(), 1),
        (vec![b' '; 100_000], 1),
    ];
    for (bytes, code) in others {
        let machine = start.copy(quick_folder());
        fs::write(machine.repo().join(names::DESCRIPTOR), &bytes).expect("a descriptor");
        let what = format!("descriptor {}", String::from_utf8_lossy(&bytes[..bytes.len().min(100)]));
        let seen = Seen::of(&machine, &what).restore_fails(&what);
        let backup = machine.run(&backup_line("s3"));
        for ended in [&seen.chain, &seen.check, &seen.list, &backup] {
            assert_eq!(ended.code, Some(code), "{what}: {}", ended.stderr);
        }
    }
}

/// On a machine without a profile the signer on the recovery sheet is what tells a repository from another one that
/// was put in its place, with slots for the right person.
#[test]
fn another_repository() {
    let bench = Bench::new();
    let true_one = Machine::with_chain(&bench, quick_folder());
    let false_one = Machine::with_chain(&bench, quick_folder());
    let signer = |machine: &Machine<'_>| writer_key(machine).signing.signer().expect("a signer").to_string();
    let by_url = |machine: &Machine<'_>, signer: &str, folder: &str| {
        let line = format!(
            "--config-dir {0}/{folder} restore {1} tank/data@s1 --output {0}/{folder}.stream --identity {2} --signer {signer}",
            machine.file("").display(),
            machine.repo().display(),
            machine.identity()
        );
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_snapferry"));
        Ended::from(command.args(line.split_whitespace()).output().expect("the program runs"))
    };
    let ended = by_url(&true_one, &signer(&true_one), "a");
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let ended = by_url(&false_one, &signer(&true_one), "b");
    assert_eq!(ended.code, Some(5), "{}", ended.stderr);
    // Under the old profile as well.
    fs::remove_dir_all(true_one.repo()).expect("a removal");
    let moved = false_one.copy(quick_folder());
    fs::rename(moved.repo(), true_one.repo()).expect("a repository");
    let ended = true_one.run("list offsite");
    assert_eq!(ended.code, Some(5), "{}", ended.stderr);
}

/// Files, folders and links that no repository has.
#[test]
fn strange_things_in_the_folder() {
    let bench = Bench::new();
    let start = Machine::with_chain(&bench, quick_folder());
    let machine = start.copy(quick_folder());
    let repo = machine.repo();
    for name in
        ["manifests/x.age", "manifests/notes.txt", "segments/x", "keys/..age", "x\u{1b}[31m", "manifests/a b.age.part"]
    {
        fs::write(repo.join(name), "strange").expect("a file");
    }
    for name in ["manifests/20991231T235959Z-0123456789abcdef.age", "keys/folder.age", "lost+found"] {
        fs::create_dir(repo.join(name)).expect("a folder");
    }
    for name in ["manifests/20991231T235959Z-0123456789abcde0.age", "keys/link.age", "segments/link"] {
        std::os::unix::fs::symlink("/etc/passwd", repo.join(name)).expect("a link");
    }
    let seen = Seen::of(&machine, "strange things");
    assert_eq!([seen.chain.code, seen.check.code, seen.list.code], [Some(0); 3], "{}", seen.check.stderr);
}

/// The secrets of the program never show, whatever goes wrong.
#[test]
fn no_secret_is_told() {
    let bench = Bench::new();
    let start = Machine::with_chain(&bench, quick_folder());
    let writer = writer_key(&start);
    let secrets = [
        writer.catalogue.to_string().expose_secret().to_owned(),
        writer.signing.to_text().expect("text").to_string(),
        fs::read_to_string(&bench.identity).expect("an identity").trim().to_owned(),
    ];
    for (object, bytes) in files_of(&start.repo()).into_iter().filter(|(name, _)| name.starts_with("manifests")) {
        let machine = start.copy(quick_folder());
        fs::write(machine.repo().join(&object), &bytes[..bytes.len() / 2]).expect("damage");
        for line in
            ["-vvv list offsite".to_owned(), format!("-vvv check offsite --identity {}", bench.identity.display())]
        {
            let ended = machine.run(&line);
            let text = ended.stdout + &ended.stderr;
            assert!(!secrets.iter().any(|secret| text.contains(secret)), "{object}: {text}");
        }
    }
}
