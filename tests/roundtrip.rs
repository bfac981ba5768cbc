//! The whole job, away and back, against a folder and real SSH servers, and with every kind of stream.

mod support {
    pub mod cli;
    pub mod pool;
    pub mod sshd;
}

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::Value;
use support::cli::{Machine, PASSPHRASE, make_identity, pattern, recipient_of, write_private};
use support::pool::{S, real_stream};
use support::sshd::{Account, Sshd};

fn real(name: &str) -> Vec<u8> {
    fs::read(real_stream(name)).unwrap()
}

#[test]
fn the_whole_job_in_a_folder() {
    the_whole_job(&Machine::new());
}

#[test]
fn the_whole_job_at_an_ordinary_account() {
    let Some(sshd) = Sshd::start(Account::Ordinary) else { return };
    the_whole_job(&Machine::with(&sshd));
}

#[test]
fn the_whole_job_at_an_account_that_can_do_nothing_but_sftp() {
    let Some(sshd) = Sshd::start(Account::SftpOnly) else { return };
    the_whole_job(&Machine::with(&sshd));
}

/// The chain that `the_whole_job` backs up: snapshots and their streams.
const CHAIN: [(&str, &str); 3] =
    [("tank/data@s1", "full.zfs"), ("tank/data@s2", "inc_i.zfs"), ("tank/data@s3", "inc_bookmark.zfs")];

fn the_whole_job(home: &Machine) {
    home.pool.add_dataset("tank/data");
    let stream = |at: usize, from: Option<usize>| {
        let (txg, time) = (at as u64 + 10, 1_796_074_257 + at as u64);
        home.pool.snapshot_with("tank/data", &format!("s{}", at + 1), S[at], txg, time, (0, 24576));
        home.pool.add_stream(S[at], from.map(|from| S[from]), &real_stream(CHAIN[at].1));
    };
    [(0, None), (1, Some(0)), (2, Some(1))].into_iter().for_each(|(at, from)| stream(at, from));

    makes_a_repository(home);
    backs_up(home);
    lists(home);
    checks(home);
    restores(home, &home.key());
    let by_identity = connects(home, &home.key(), true);
    restores(&by_identity, "");
    let by_passphrase = connects(home, &format!("--passphrase-file {}", home.passphrase().display()), false);
    // Each use of a passphrase costs a second: once is enough.
    let back = by_passphrase.run(&format!(
        "restore offsite tank/data --to pool/back --passphrase-command 'cat {}'",
        home.passphrase().display()
    ));
    back.silent();
    assert!(inputs(&by_passphrase) == CHAIN.map(|(_, file)| real(file)));
    changes_keys(home);
    tells_nothing(home);
}

fn makes_a_repository(home: &Machine) {
    let (recipient, key) = (recipient_of(&home.identity()), home.key());
    let passphrase = home.passphrase();
    let made = home.run(&format!(
        "init offsite {} --recipient {recipient} --passphrase-file {} {key}",
        home.url,
        passphrase.display()
    ));
    made.done().says(&["proved: it opens", &recipient, "keep elsewhere", "snapferry backup offsite"]);
    for file in ["offsite.toml", "offsite.writer-key", "offsite.recovery.txt"] {
        let mode = fs::metadata(home.config().join(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    let sheet = fs::read_to_string(home.config().join("offsite.recovery.txt")).unwrap();
    for part in [&home.signer(), &home.url, &recipient] {
        assert!(sheet.contains(part), "{part} is not on the sheet:\n{sheet}");
    }
    assert!(!sheet.contains(PASSPHRASE) && !sheet.contains("AGE-SECRET-KEY"));

    let before = home.tree();
    let again = format!("init other {} --recipient {recipient}", home.url);
    home.run(&again).fails(1, &["there is a repository", "already", "nothing was changed"]);
    assert_eq!(home.tree(), before);
}

fn backs_up(home: &Machine) {
    for (snapshot, _) in CHAIN {
        home.run(&format!("backup offsite {snapshot} --segment-size 100KiB")).silent();
    }
    let sent: Vec<String> = home.pool.calls().iter().map(|call| call.join(" ")).collect();
    for line in [
        "send -L -c tank/data@s1",
        "send -L -c -i tank/data@s1 tank/data@s2",
        "send -L -c -i tank/data@s2 tank/data@s3",
    ] {
        assert_eq!(sent.iter().filter(|call| *call == line).count(), 1, "{line}: {sent:#?}");
    }
}

fn lists(home: &Machine) {
    let backups = home.backups();
    assert_eq!(backups.len(), 3);
    for (at, backup) in backups.iter().enumerate() {
        assert_eq!(backup["dataset"], "tank/data");
        assert_eq!(backup["snapshot"], format!("s{}", at + 1));
        assert_eq!(backup["guid"], S[at].to_string());
        assert_eq!(backup["base_guid"], at.checked_sub(1).map_or(Value::Null, |base| S[base].to_string().into()));
        assert_eq!(backup["bytes"], real(CHAIN[at].1).len());
        for time in ["started", "finished"] {
            backup[time].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
        }
        let id = backup["id"].as_str().unwrap();
        let ours = |name: &&String| name.contains(id) && !name.ends_with(".minisig");
        let sizes = home.tree().into_keys().filter(|name| ours(&name)).collect::<Vec<_>>();
        let stored: u64 = sizes.iter().map(|name| fs::metadata(home.objects.join(name)).unwrap().len()).sum();
        assert_eq!(backup["stored_bytes"], stored);
    }
    let table = home.run("list offsite tank/data").done();
    assert_eq!(table.stdout().lines().count(), 4, "{table}");
    table.says(&["tank/data@s1", "full", "incremental from s1", "incremental from s2"]);
    let one = home.run("list offsite tank/data@s2 --json").done().json();
    assert_eq!(one["backups"].as_array().unwrap().len(), 1);
}

fn checks(home: &Machine) {
    let done = "manifests, signatures, presence and sizes of objects";
    home.run("check offsite").done().says(&["checked 3 backups", done, "all good"]);
    home.run("check offsite --read-data").done().says(&[done, "all objects fetched", "not opened", "all good"]);
    home.run("check offsite --read-data=30%").done().says(&["a random 30%", "all good"]);
    let opened = home.run(&format!("check offsite {}", home.key())).done();
    opened.says(&["all objects fetched", "opened, decompressed, and the streams checked", "all good"]);
    let json = home.run("check offsite --read-data --json").done().json();
    assert!(json["ok"] == true && json["findings"] == serde_json::json!([]) && json["bytes_read"].as_u64() > Some(0));
}

/// Every way back, with `key` if the profile does not name one.
fn restores(home: &Machine, key: &str) {
    let before = home.datasets();
    let plan = home.run(&format!("restore offsite tank/data@s3 --to pool/back -n {key}")).done();
    plan.says(&["1 of 3: tank/data@s1, full", "3 of 3: tank/data@s3, incremental"]);
    assert_eq!(home.datasets(), before);

    home.run(&format!("restore offsite tank/data --to pool/back {key}")).silent();
    let received = home.pool.received("pool/back");
    let got: Vec<(u64, bool)> =
        received.iter().map(|one| (one.guid, one.arguments == ["-s", "-u", "pool/back"])).collect();
    assert_eq!(got, [(S[0], true), (S[1], true), (S[2], true)]);
    for (one, (_, file)) in received.iter().zip(CHAIN) {
        assert!(one.input() == real(file), "{file} came back other than it went");
    }

    let file = home.path("one.zfs");
    home.run(&format!("restore offsite tank/data@s2 --output {} {key}", file.display())).silent();
    assert!(fs::read(&file).unwrap() == real("inc_i.zfs"));
    let piped = home.run(&format!("restore offsite tank/data@s1 --output - {key}")).done();
    assert!(piped.bytes() == real("full.zfs"));

    let folder = home.path("streams");
    home.run(&format!("restore offsite tank/data@s3 --output-dir {} {key}", folder.display())).silent();
    assert_streams(&folder, &["full.zfs", "inc_i.zfs", "inc_bookmark.zfs"]);
    [file.as_path(), &folder].iter().for_each(|path| drop(fs::remove_file(path).or_else(|_| fs::remove_dir_all(path))));
}

/// The files of a folder, in the order of their names, are these streams.
fn assert_streams(folder: &Path, expected: &[&str]) {
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert_eq!(files.len(), expected.len(), "{files:?}");
    for (path, name) in files.iter().zip(expected) {
        assert!(fs::read(path).unwrap() == real(name), "{} is not {name}", path.display());
    }
}

/// Another machine with what opens the repository. `on_its_word`: a slot that anybody could have written.
fn connects(home: &Machine, key: &str, on_its_word: bool) -> Machine {
    let other = home.another();
    let connected = other.run(&format!("connect offsite {} {key}", other.url)).exit(0);
    assert_eq!(connected.stderr().contains("is taken on the repository's own word"), on_its_word, "{connected}");
    connected.says(&["connected to", "3 backups"]);
    assert_eq!(other.signer(), home.signer());
    assert!(!other.config().join("offsite.writer-key").exists());
    let listed = other.run(&format!("list offsite --json {key}")).done().json();
    assert_eq!(listed["backups"].as_array().unwrap(), &home.backups());
    other.run("backup offsite tank/data@s1").fails(5, &["no writer key"]);

    let told = home.another();
    told.run(&format!("connect offsite {} {key} --signer {}", told.url, home.signer())).done();
    other
}

fn changes_keys(home: &Machine) {
    let (new_identity, new_passphrase) = (home.path("new-identity"), home.path("new-passphrase"));
    make_identity(&new_identity);
    write_private(&new_passphrase, "quite another one");
    let slots = || home.run("key list offsite --json").done().json()["slots"].as_array().unwrap().clone();
    let slot = |kind: &str, of: &str| {
        let found = slots().into_iter().find(|slot| slot["kind"] == kind && slot["for"].as_str() == Some(of));
        found.unwrap()["name"].as_str().unwrap().to_owned()
    };
    assert_eq!(slots().len(), 2);
    home.run("key list offsite").done().says(&[&recipient_of(&home.identity()), "a passphrase"]);

    let new = recipient_of(&new_identity);
    home.run(&format!("key add offsite --recipient {new} {}", home.key())).done().says(&["added age-", &new]);
    let by_new = format!("list offsite --identity {}", new_identity.display());
    home.run(&by_new).done();

    let old = format!("--passphrase-file {}", home.passphrase().display());
    home.run(&format!("key passwd offsite --new-passphrase-file {} {old}", new_passphrase.display())).done();
    home.run(&format!("list offsite {old}")).fails(5, &["no key here opens"]);
    home.run(&format!("list offsite --passphrase-file {}", new_passphrase.display())).done();

    home.run("key remove offsite age-00000000").fails(4, &["no slot"]);
    home.run(&format!("key remove offsite {}", slot("recipient", &new))).done();
    home.run(&by_new).fails(5, &["no key here opens"]);
    home.run(&format!("key remove offsite {}", slot("passphrase", "a passphrase"))).done();
    let last = slot("recipient", &recipient_of(&home.identity()));
    home.run(&format!("key remove offsite {last}")).fails(1, &["the last slot can't be removed"]);
    home.run(&format!("list offsite {}", home.key())).done();
}

/// What the far end can read: no names, no plain bytes, nothing half-written.
fn tells_nothing(home: &Machine) {
    let plain = real("full.zfs");
    for name in home.tree().into_keys() {
        assert!(!name.contains("tank") && !name.contains("data") && !name.ends_with(".part"), "{name}");
        if name == "RESCUE.txt" {
            continue; // The same words for everybody, examples among them.
        }
        let bytes = fs::read(home.objects.join(&name)).unwrap();
        let holds = |part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
        assert!(!holds(b"tank/data") && !holds(b"AGE-SECRET-KEY-1") && !holds(&plain[..64]), "{name}");
    }
}

#[test]
fn a_place_as_scp_writes_it() {
    let Some(sshd) = Sshd::start(Account::Ordinary) else { return };
    let (user, path, port) = (sshd.user(), sshd.data_path(), sshd.port().to_string());
    let home = Machine::at(&format!("{user}@127.0.0.1:{path}/archive"), &sshd, &["-p", &port]);
    home.init();
    home.run_with("backup offsite --stdin --name bytes", &pattern(100_000)).silent();
    assert!(home.objects.join("snapferry.json").is_file());
    let back = home.run(&format!("restore offsite bytes --output - {}", home.key())).done();
    assert!(back.bytes() == pattern(100_000));
}

#[test]
fn every_codec_gives_back_what_it_took() {
    let home = Machine::ready();
    let stream = pattern(300_000);
    for (codec, extension) in
        [("zstd", "zst"), ("zstd:1", "zst"), ("zstd:19", "zst"), ("gzip", "gz"), ("gzip:9", "gz"), ("none", "raw")]
    {
        let made = home.run_with(
            &format!("backup offsite --stdin --name {codec} -z {codec} --segment-size 100KiB --json"),
            &stream,
        );
        let made = made.done().json();
        let id = made["id"].as_str().unwrap();
        let segments: Vec<String> = home.segments().into_iter().filter(|name| name.contains(id)).collect();
        let ending = format!(".{extension}.age");
        assert!(segments.len() == 3 && segments.iter().all(|name| name.ends_with(&ending)), "{codec}: {segments:?}");
        let smaller = made["stored_bytes"].as_u64().unwrap() < 250_000;
        assert_eq!(smaller, codec != "none", "{codec}: {made}");
        let back = home.run(&format!("restore offsite {codec} --output - {}", home.key())).done();
        assert!(back.bytes() == stream, "{codec}");
    }
    home.run(&format!("check offsite {}", home.key())).done().says(&["checked 6 backups, 18 objects", "all good"]);
}

#[test]
fn any_stream_comes_back_under_its_name() {
    let home = Machine::ready();
    let btrfs = [b"btrfs-stream\0\x01\0\0\0".as_slice(), &pattern(70_000)].concat();
    let zfs = real("zvol_full.zfs");
    for (name, stream, looks_like) in [
        ("one byte", b"x".to_vec(), "unknown"),
        ("exactly: four segments", pattern(4 * 65_536), "unknown"),
        ("one more", pattern(4 * 65_536 + 1), "unknown"),
        ("volume@monday", btrfs, "btrfs"),
        ("100 % größer/neu", zfs, "zfs"),
    ] {
        home.run_with(&format!("backup offsite --stdin --name '{name}' --segment-size 64KiB"), &stream).silent();
        let listed = home.run(&format!("list offsite '{name}' --json")).done().json();
        let [backup] = &listed["backups"].as_array().unwrap()[..] else { panic!("{listed}") };
        assert_eq!((&backup["name"], &backup["looks_like"]), (&name.into(), &looks_like.into()));
        assert_eq!(backup["guid"].is_string(), looks_like == "zfs", "{backup}");
        let back = home.run(&format!("restore offsite '{name}' --output - {}", home.key())).done();
        assert!(back.bytes() == stream, "{name}");
    }
    let to = home.run(&format!("restore offsite 'one byte' --to pool/x {}", home.key()));
    to.fails(2, &["one byte is no ZFS stream", "--output"]);
}

#[test]
fn the_newest_of_a_name_and_any_of_them_by_its_id() {
    let home = Machine::ready();
    let ids: Vec<String> = ["first", "second"]
        .map(|text| {
            let made = home.run_with("backup offsite --stdin --name dump --json", text.as_bytes()).done();
            made.json()["id"].as_str().unwrap().to_owned()
        })
        .to_vec();
    for (wanted, text) in [("dump", "second"), (&ids[0], "first"), (&ids[1], "second")] {
        let back = home.run(&format!("restore offsite {wanted} --output - {}", home.key())).done();
        assert_eq!(back.stdout(), text, "{wanted}");
    }
    home.run(&format!("restore offsite dumb --output - {}", home.key())).fails(4, &["no backup is called \"dumb\""]);
}

/// Chains of streams from standard input are found by GUID, whatever the names and the order are.
#[test]
fn piped_zfs_streams_form_chains() {
    let chains: [(&str, &[&str], &[u64]); 4] = [
        ("-I behind a full one", &["full.zfs", "inc_I.zfs"], &S[..4]),
        ("-i twice", &["full.zfs", "inc_i.zfs", "inc_bookmark.zfs"], &S[..3]),
        ("raw", &["enc_raw_full.zfs", "enc_raw_inc.zfs"], &[13119124380204079649, 3972694273707464155]),
        ("-R alone", &["repl_R.zfs"], &[2742521300914342287, 8191403173377187735, 4129584171708852611]),
    ];
    for (what, files, guids) in chains {
        let home = Machine::ready();
        for (at, file) in files.iter().enumerate() {
            home.run_with(&format!("backup offsite --stdin --name {}", ["a", "b", "c"][at]), &real(file)).silent();
        }
        let last = ["a", "b", "c"][files.len() - 1];
        home.run(&format!("restore offsite {last} --to pool/back {}", home.key())).silent();
        let received: Vec<u64> = home.pool.received("pool/back").iter().map(|one| one.guid).collect();
        assert_eq!(received, guids, "{what}");
        let inputs: Vec<Vec<u8>> = inputs(&home);
        let expected: Vec<Vec<u8>> = files.iter().map(|file| real(file)).collect();
        assert!(inputs == expected, "{what}: the bytes differ");
        home.run(&format!("check offsite {}", home.key())).done().says(&["all good"]);
        let folder = home.path("streams");
        home.run(&format!("restore offsite {last} --output-dir {} {}", folder.display(), home.key())).silent();
        assert_streams(&folder, files);
    }
}

/// What each `zfs receive` read, in order.
fn inputs(home: &Machine) -> Vec<Vec<u8>> {
    let mut paths: Vec<_> = home.pool.state().received.into_iter().map(|one| one.path).collect();
    paths.sort();
    paths.dedup();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

#[test]
fn a_package_of_a_tree_goes_onto_the_one_before_it() {
    let home = Machine::ready();
    home.run_with("backup offsite --stdin --name tree", &real("repl_R_h.zfs")).silent();
    home.run_with("backup offsite --stdin --name tree", &real("repl_R_I.zfs")).silent();
    home.run(&format!("restore offsite tree --to pool/back {}", home.key())).silent();
    assert!(inputs(&home) == [real("repl_R_h.zfs"), real("repl_R_I.zfs")]);
    for (dataset, snapshots) in
        [("pool/back", "r1 r2 r3"), ("pool/back/child", "r1 r2 r3"), ("pool/back/late", "r2 r3")]
    {
        let names: Vec<String> = home.pool.received(dataset).into_iter().map(|one| one.snapshot).collect();
        assert_eq!(names.join(" "), snapshots, "{dataset}");
    }
    // Streams with properties must not be mounted over what lives here.
    let arguments = home.pool.received("pool/back")[0].arguments.join(" ");
    assert_eq!(arguments, "-s -u -x mountpoint pool/back");
}

#[test]
fn a_stream_that_goes_on_with_another_receive_starts_no_restore() {
    let home = Machine::ready();
    home.run_with("backup offsite --stdin --name part2", &real("resume_part2.zfs")).silent();
    let to = home.run(&format!("restore offsite part2 --to pool/back {}", home.key()));
    to.fails(1, &["zfs send -t", "--output writes it into a file"]);
    let back = home.run(&format!("restore offsite part2 --output - {}", home.key())).done();
    assert!(back.bytes() == real("resume_part2.zfs"));
}

/// A bare machine: no profile, nothing but the URL, keys and the recovery sheet.
#[test]
fn everything_works_with_flags_alone() {
    let home = Machine::with_snapshots();
    home.run("backup offsite tank/data@one").silent();
    let (url, identity, signer) = (&home.url, home.key(), home.signer());
    let writer_key = format!("--writer-key {}", home.config().join("offsite.writer-key").display());

    let writer = home.another();
    writer.pool.add_dataset("tank/data");
    writer.pool.update(|state| *state = home.pool.state());
    let made = writer.run(&format!("backup {url} tank/data@two {writer_key} --json")).done().json();
    assert_eq!(made["base_guid"], home.pool.guid("tank/data@one").to_string());
    let listed = writer.run(&format!("list {url} {writer_key} --json")).done().json();
    assert_eq!(listed["backups"].as_array().unwrap().len(), 2);
    writer.run(&format!("check {url} --read-data {writer_key}")).done().says(&["all good"]);
    assert!(!writer.config().join("offsite.toml").exists());

    let bare = home.another();
    bare.run(&format!("list {url} {identity} --signer {signer}")).done().says(&["tank/data@two"]);
    bare.run(&format!("check {url} {identity} --signer {signer}")).done().says(&["all good"]);
    bare.run(&format!("restore {url} tank/data --to pool/back {identity} --signer {signer}")).silent();
    assert_eq!(bare.pool.received("pool/back").len(), 2);
    bare.run(&format!("list {url} {identity}")).exit(0).warns(&["on the repository's own word", &signer]);
    bare.run(&format!("list {url} {identity}")).done();
    bare.run(&format!("list {url}")).fails(5, &["a key is needed", "--identity FILE"]);

    let mut command = home.command("backup tank/data@three");
    command.env("SNAPFERRY_REPOSITORY", "offsite");
    home.start(command).end().silent();
    let mut command = home.command(&format!("restore tank/data@three --to pool/back {identity}"));
    command.env("SNAPFERRY_REPOSITORY", url);
    home.start(command).end().exit(0);
    assert_eq!(home.pool.received("pool/back").len(), 3);
}

/// A decrypted stream of the same snapshot, backed up later, is no base for a raw increment: zfs would refuse it.
#[test]
fn raw_increments_stand_on_raw_streams() {
    let home = Machine::ready();
    for (name, file) in [("raw", "enc_raw_full.zfs"), ("raw", "enc_raw_inc.zfs"), ("plain", "enc_decrypted_full.zfs")] {
        home.run_with(&format!("backup offsite --stdin --name {name}"), &fs::read(real_stream(file)).unwrap()).silent();
    }
    let out = home.path("streams");
    home.run(&format!("restore offsite raw --output-dir {} {}", out.display(), home.key())).done();
    let mut files: Vec<_> = fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let got: Vec<_> = files.iter().map(|file| fs::read(file).unwrap()).collect();
    let expected = ["enc_raw_full.zfs", "enc_raw_inc.zfs"].map(|file| fs::read(real_stream(file)).unwrap());
    assert!(got == expected, "{files:?}");
}
