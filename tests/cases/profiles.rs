//! Profiles, writer keys and descriptors that are readable by others, not understood, or at odds with each other.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::support::cli::{Machine, make_identity, recipient_of};

fn replace(path: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.contains(from), "{from:?} is not in {}", path.display());
    fs::write(path, text.replacen(from, to, 1)).unwrap();
}

/// Every command that uses the repository, none of which may change it.
fn every_command(machine: &Machine) -> Vec<String> {
    let key = machine.key();
    vec![
        "backup offsite tank/data@two".into(),
        "list offsite".into(),
        "check offsite --read-data".into(),
        format!("restore offsite tank/data --to pool/back {key}"),
        format!("key add offsite --recipient {} {key}", recipient_of(&machine.identity())),
        "key list offsite".into(),
    ]
}

#[test]
fn files_that_others_can_read_are_refused() {
    let machine = Machine::with_snapshots();
    machine.run("backup offsite tank/data@one").silent();
    let before = machine.tree();
    for file in ["offsite.toml", "offsite.writer-key"] {
        let path = machine.config().join(file);
        for mode in [0o640, 0o604, 0o620, 0o602] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            for command in every_command(&machine) {
                let words = ["can be read or changed by others", &format!("(mode {mode:04o})"), "chmod 600"];
                machine.run(&command).fails(2, &words);
            }
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    }
    assert_eq!(machine.tree(), before);
    let passphrase = machine.passphrase();
    fs::set_permissions(&passphrase, fs::Permissions::from_mode(0o644)).unwrap();
    let given = machine.run(&format!("list offsite --passphrase-file {}", passphrase.display()));
    given.warns(&["can be read by others"]);
}

#[test]
fn a_profile_that_is_not_understood_is_refused() {
    let machine = Machine::with_snapshots();
    let (path, before) = (machine.config().join("offsite.toml"), machine.tree());
    let good = fs::read_to_string(&path).unwrap();
    for (bad, words) in [
        (format!("{good}encrypt = true\n"), "encrypt"),
        (format!("{good}[retention]\nkeep = 3\n"), "retention"),
        (good.replacen("signer", "sign", 1), "sign"),
        (good.replacen("\"RW", "\"xRW", 1), "minisign public key"),
        (good.replacen("url = ", "url = 5 #", 1), "offsite.toml"),
        (good[..good.len() / 2].to_owned(), "offsite.toml"),
        (String::new(), "missing field"),
    ] {
        fs::write(&path, &bad).unwrap();
        for command in every_command(&machine) {
            machine.run(&command).fails(2, &[words]);
        }
    }
    fs::write(&path, &good).unwrap();
    fs::write(machine.config().join("offsite.writer-key"), "{\"writer\": \"AGE-SECRET-KEY-1XYZ\"}").unwrap();
    machine.run("backup offsite tank/data@one").fails(2, &["the writer key", "not readable at line 1"]);
    fs::remove_file(machine.config().join("offsite.writer-key")).unwrap();
    machine.run("backup offsite tank/data@one").fails(1, &["offsite.writer-key"]);
    assert_eq!(machine.tree(), before);
}

#[test]
fn a_writer_key_of_another_repository_is_refused() {
    let (machine, other) = (Machine::with_snapshots(), Machine::ready());
    let theirs = other.config().join("offsite.writer-key");
    let (before, line) = (machine.tree(), format!("--writer-key {}", theirs.display()));
    machine.run(&format!("backup offsite tank/data@one {line}")).fails(2, &["belongs to another repository"]);
    machine.run(&format!("backup {} tank/data@one {line}", machine.url)).fails(5, &["is not the one"]);
    assert_eq!(machine.tree(), before);
}

#[test]
fn a_descriptor_that_disagrees_is_refused() {
    let machine = Machine::with_snapshots();
    machine.run("backup offsite tank/data@one").silent();
    let path = machine.objects.join("snapferry.json");
    let good = fs::read_to_string(&path).unwrap();
    let uuid = machine.run("list offsite --json").json()["repository"].as_str().unwrap().to_owned();
    let recipient = serde_json::from_str::<serde_json::Value>(&good).unwrap()["recipient"].as_str().unwrap().to_owned();
    let stranger = machine.path("stranger");
    make_identity(&stranger);
    for (from, to, code, words) in [
        (uuid.as_str(), "00000000-0000-4000-8000-000000000000", 5, "is not the one that this machine knows"),
        (&recipient, recipient_of(&stranger).as_str(), 5, "with another recipient"),
        ("\"format\": 1", "\"format\": 2", 1, "format version 2"),
        ("\"recipient\"", "\"receiver\"", 1, "the descriptor"),
        ("{", "", 1, "the descriptor"),
    ] {
        fs::write(&path, good.replacen(from, to, 1)).unwrap();
        let before = (machine.tree(), machine.datasets());
        for command in every_command(&machine) {
            machine.run(&command).fails(code, &[words]);
        }
        assert_eq!((machine.tree(), machine.datasets()), before, "{from} → {to}");
    }
    // Without a profile a recipient that is not the slot's own is noticed all the same.
    fs::write(&path, good.replacen(&recipient, &recipient_of(&stranger), 1)).unwrap();
    let by_url = machine.run(&format!("list {} {}", machine.url, machine.key()));
    by_url.fails(5, &["no key here opens"]).warns(&["is not of this repository"]);
    fs::remove_file(&path).unwrap();
    machine.run("list offsite").fails(4, &["there is no repository", "snapferry init makes one"]);
    machine.run(&format!("init other {} --recipient {recipient}", machine.url)).fails(1, &["whose descriptor is gone"]);
}

#[test]
fn where_profiles_are_kept() {
    let machine = Machine::ready();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_snapferry"));
    command.args(["list", "offsite"]).env("SNAPFERRY_CONFIG_DIR", machine.config());
    machine.start(command).end().done();
    // Defaults of the profile are those of the command line.
    let path = machine.config().join("offsite.toml");
    replace(&path, "url = ", "compression = \"gzip:2\"\nconnections = 1\nurl = ");
    let made = machine.run_with("backup offsite --stdin --name x --json", b"some text").done().json();
    assert!(made["id"].is_string());
    assert_eq!(machine.backups()[0]["codec"], serde_json::json!({"name": "gzip", "level": 2}));
    machine.run_with("backup offsite --stdin --name x -z none", b"some text").silent();
    assert_eq!(machine.backups()[1]["codec"]["name"], "none");
    replace(&path, "gzip:2", "gzip:20");
    machine.run_with("backup offsite --stdin --name x", b"some text").fails(2, &["gzip takes a level from 1 to 9"]);
    // Names that would leave the folder, or look like options, name no profile.
    for bad in ["../x", "a/b", "-x", ".hidden", "", "a b", &"x".repeat(101)] {
        let recipient = recipient_of(&machine.identity());
        let run = machine.run(&format!("init --recipient {recipient} -- '{bad}' {}", machine.path("other").display()));
        run.fails(2, &["can't name a profile"]);
    }
    assert!(!machine.path("other").exists());
}

/// `init` that was killed between the repository and its profile.
#[test]
fn a_writer_key_that_an_init_left_is_taken_up() {
    let (machine, other) = (Machine::with_snapshots(), Machine::ready());
    let line = format!("connect offsite {} {} --signer {}", machine.url, machine.key(), machine.signer());
    for file in ["offsite.toml", "offsite.recovery.txt"] {
        fs::remove_file(machine.config().join(file)).unwrap();
    }
    machine.run(&format!("init offsite {} --passphrase-file {}", machine.url, machine.passphrase().display())).fails(
        1,
        &["offsite.writer-key exists already", "snapferry connect offsite URL takes it up", "nothing was changed"],
    );
    machine.run(&line).done().says(&["this machine can back up there"]);
    machine.run("backup offsite tank/data@one").silent();
    // Another repository's stays what it is.
    fs::remove_file(machine.config().join("offsite.toml")).unwrap();
    let theirs = fs::read(other.config().join("offsite.writer-key")).unwrap();
    fs::write(machine.config().join("offsite.writer-key"), &theirs).unwrap();
    machine.run(&line).exit(0).warns(&["is the writer key of another repository"]);
    machine.run("backup offsite tank/data@two").fails(5, &["there is no writer key for offsite"]);
    assert_eq!(fs::read(machine.config().join("offsite.writer-key")).unwrap(), theirs);
}
