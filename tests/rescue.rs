//! `RESCUE.txt`, taken out of a repository and followed to the letter: with the real `age`, `minisign`, `zstd`, `gzip`,
//! `b3sum` and a POSIX shell, and nothing of this program.

mod support {
    pub mod faulty;
    pub mod pool;
}

#[path = "walks/bench.rs"]
#[allow(dead_code)]
mod bench;
#[path = "walks/machine.rs"]
#[allow(dead_code)]
mod machine;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use bench::{Bench, SEGMENT, quick_folder};
use machine::Machine;

/// All that the text asks for. What else it might use is not found.
const TOOLS: [&str; 13] =
    ["age", "minisign", "zstd", "gzip", "b3sum", "sed", "grep", "cat", "rm", "mktemp", "wc", "tr", "script"];

fn find(tool: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(tool)).find(|path| path.is_file())
}

fn must_find(tool: &str) -> PathBuf {
    find(tool).unwrap_or_else(|| panic!("{tool} is missing: apt install age minisign zstd gzip b3sum bsdutils"))
}

/// The POSIX shells of this machine; `dash` or whatever `sh` is, always.
fn shells() -> Vec<PathBuf> {
    let mut shells = vec![find("dash").unwrap_or_else(|| must_find("sh"))];
    for (name, package) in [("busybox", "busybox"), ("bash", "bash")] {
        match find(name) {
            Some(shell) => shells.push(shell),
            None => eprintln!("SKIPPED: {name} is not here; apt install {package}"),
        }
    }
    shells
}

/// A person with a copy of the repository, the key, the text, and the tools.
struct Person {
    folder: tempfile::TempDir,
    text: String,
    signer: String,
}

impl Person {
    fn new(machine: &Machine<'_>, shell: &Path) -> Person {
        let folder = quick_folder();
        let bin = folder.path().join("bin");
        fs::create_dir(&bin).expect("a folder");
        for tool in TOOLS {
            symlink(must_find(tool), bin.join(tool)).expect("a tool");
        }
        // busybox is what it is called as, and calls itself for its own tools.
        symlink(shell, bin.join("sh")).expect("a shell");
        let copy = machine.copy(quick_folder());
        let repo = folder.path().join("repo");
        fs::rename(copy.repo(), &repo).expect("a copy of the repository");
        let text = fs::read_to_string(repo.join("RESCUE.txt")).expect("RESCUE.txt");
        let sheet = fs::read_to_string(machine.config().join("offsite.recovery.txt")).expect("a recovery sheet");
        let signer = sheet.lines().find_map(|line| line.strip_prefix("signer")).expect("a signer").trim().to_owned();
        Person { folder, text, signer }
    }

    fn repo(&self) -> PathBuf {
        self.folder.path().join("repo")
    }

    /// A command of the text: the line that begins so, with what the person has to fill in.
    fn typed(&self, beginning: &str, fill: &[(&str, &str)]) -> String {
        let line = self.text.lines().map(str::trim).find(|line| line.starts_with(beginning));
        let mut line = line.unwrap_or_else(|| panic!("no command {beginning:?} in the text")).to_owned();
        for (blank, value) in fill.iter().chain(&[("RW...", self.signer.as_str())]) {
            line = line.replace(blank, value);
        }
        line
    }

    fn run(&self, line: &str) -> Output {
        let bin = self.folder.path().join("bin");
        let mut command = Command::new(bin.join("sh"));
        command.arg("-c").arg(line).current_dir(self.folder.path()).env_clear().env("PATH", &bin);
        command.env("HOME", self.folder.path()).env("TMPDIR", self.folder.path()).output().expect("a shell")
    }

    fn must(&self, line: &str) -> Output {
        let output = self.run(line);
        assert!(output.status.success(), "{line}: {}", said(&output));
        output
    }

    /// Step 2.
    fn take_script(&self) {
        self.must(&self.typed("sed -n", &[]));
    }

    fn slot(&self, kind: &str) -> String {
        let keys = fs::read_dir(self.repo().join("keys")).expect("keys");
        let names = keys.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
        names.into_iter().find(|name| name.starts_with(kind)).unwrap_or_else(|| panic!("no slot for {kind}"))
    }

    /// Step 3, with an age identity.
    fn open_slot(&self, bench: &Bench) {
        let (slot, identity) = (self.slot("age-"), bench.identity.display().to_string());
        let fill = [("YOUR-IDENTITY-FILE", identity.as_str()), ("age-XXXXXXXX.age", slot.as_str())];
        self.must(&format!("{}\n{}", self.typed("umask", &[]), self.typed("age -d -i YOUR-IDENTITY-FILE", &fill)));
        let mode = fs::metadata(self.folder.path().join("repository.key")).expect("the key").permissions().mode();
        assert_eq!(mode & 0o077, 0, "others can read the key");
        assert!(self.key().contains(&format!("# signer: {}", self.signer)));
    }

    fn key(&self) -> String {
        fs::read_to_string(self.folder.path().join("repository.key")).expect("an opened slot")
    }

    /// Step 4: the ids, by the snapshot in the line.
    fn id_of(&self, snapshot: &str) -> String {
        let output = self.must(&self.typed("sh rescue.sh list", &[]));
        let listed = String::from_utf8(output.stdout).expect("text");
        let line = listed.lines().find(|line| line.contains(&format!("\"snapshot\":\"{snapshot}\"")));
        line.unwrap_or_else(|| panic!("no {snapshot} in: {listed}")).split(' ').next().expect("an id").to_owned()
    }

    /// Step 5.
    fn restore(&self, id: &str) -> Output {
        self.run(&self.typed("sh rescue.sh restore", &[("BACKUP-ID", id)]))
    }

    fn stream(&self) -> Vec<u8> {
        fs::read(self.folder.path().join("stream")).unwrap_or_default()
    }
}

fn said(output: &Output) -> String {
    format!("{}\n{}{}", output.status, String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn backup(machine: &Machine<'_>, snapshot: &str, codec: &str) {
    machine.must(&format!("backup offsite tank/data@{snapshot} --segment-size {SEGMENT} -z {codec}"));
}

#[test]
fn the_text_to_the_letter() {
    let bench = Bench::new();
    for codec in ["zstd", "gzip:9", "none"] {
        let machine = Machine::new(&bench, quick_folder());
        for snapshot in ["s1", "s2", "s3"] {
            backup(&machine, snapshot, codec);
        }
        for shell in shells() {
            let person = Person::new(&machine, &shell);
            person.take_script();
            person.open_slot(&bench);
            for (snapshot, stream) in ["s1", "s2", "s3"].iter().zip(&bench.streams) {
                let output = person.restore(&person.id_of(snapshot));
                let what = format!("{codec}, {}, {snapshot}: {}", shell.display(), said(&output));
                assert!(output.status.success() && said(&output).trim_end().ends_with("whole"), "{what}");
                assert!(person.stream() == *stream, "{what}: not identical");
            }
        }
    }
}

/// Step 6, with the stand-in `zfs`.
#[test]
fn what_comes_back_is_received() {
    let bench = Bench::new();
    let machine = Machine::with_chain(&bench, quick_folder());
    let person = Person::new(&machine, &shells()[0]);
    person.take_script();
    person.open_slot(&bench);
    symlink(bench.zfs(), person.folder.path().join("bin/zfs")).expect("zfs");
    let list = person.must(&person.typed("sh rescue.sh list", &[]));
    let listed = String::from_utf8(list.stdout).expect("text");
    assert_eq!(listed.matches("\"base\":null").count(), 1, "{listed}");
    for snapshot in ["s1", "s2", "s3"] {
        assert!(person.restore(&person.id_of(snapshot)).status.success());
        person.must(&person.typed("zfs receive", &[("pool/restored", "pool/rescued")]));
    }
    assert_eq!(bench.pool.received("pool/rescued").len(), 3);
}

/// A passphrase, which `age` asks for on the terminal.
#[test]
fn by_passphrase() {
    let bench = Bench::new();
    let machine = Machine::new(&bench, quick_folder());
    backup(&machine, "s1", "zstd");
    let file = machine.file("passphrase");
    fs::write(&file, "correct horse battery staple\n").expect("a passphrase");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("its mode");
    let add = format!("key add offsite --new-passphrase-file {} --identity {}", file.display(), machine.identity());
    machine.must(&add);
    let person = Person::new(&machine, &shells()[0]);
    person.take_script();
    let slot = person.slot("passphrase-");
    let line = person.typed("age -d repo/keys/passphrase", &[("passphrase-XXXXXXXX.age", &slot)]);
    person.must(&format!("script -qec '{line}' said < {}", file.display()));
    assert!(person.key().contains(&format!("# signer: {}", person.signer)));
    let output = person.restore(&person.id_of("s1"));
    assert!(output.status.success() && person.stream() == bench.streams[0], "{}", said(&output));
}

#[test]
fn by_ssh_key() {
    let bench = Bench::new();
    let machine = Machine::new(&bench, quick_folder());
    backup(&machine, "s1", "zstd");
    let key = machine.file("id_ed25519");
    let made =
        Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-C", "a person", "-f"]).arg(&key).status();
    assert!(made.expect("ssh-keygen: apt install openssh-client").success());
    let public = key.with_extension("pub");
    machine.must(&format!("key add offsite -R {} --identity {}", public.display(), machine.identity()));
    let person = Person::new(&machine, &shells()[0]);
    person.take_script();
    let fill = [("~/.ssh/id_ed25519", &*key.display().to_string()), ("ssh-XXXXXXXX.age", &person.slot("ssh-"))];
    person.must(&person.typed("age -d -i ~/.ssh/id_ed25519", &fill));
    let output = person.restore(&person.id_of("s1"));
    assert!(output.status.success() && person.stream() == bench.streams[0], "{}", said(&output));
}

/// What a person is told when `change` was made to the repository; what was written before is a true beginning.
fn refused(person: &Person, id: &str, stream: &[u8], what: &str, words: &str) {
    let _ = fs::remove_file(person.folder.path().join("stream"));
    let output = person.restore(id);
    assert!(!output.status.success(), "{what}: restored: {}", said(&output));
    let text = said(&output);
    assert!(text.contains("rescue.sh: ") && text.contains(words), "{what}: {words:?} is not in: {text}");
    assert!(!text.contains("whole"), "{what}: {text}");
    assert!(stream.starts_with(&person.stream()), "{what}: other bytes came out");
}

#[test]
fn damage_is_refused_with_a_message() {
    let bench = Bench::new();
    // Stored as they are, pieces differ in nothing but their hash.
    for codec in ["none", "zstd"] {
        let machine = Machine::new(&bench, quick_folder());
        for snapshot in ["s1", "s2"] {
            backup(&machine, snapshot, codec);
        }
        for shell in shells().iter().take(2) {
            damaged_pieces(&bench, &machine, shell);
            damaged_manifests(&bench, &machine, shell);
        }
    }
}

fn damaged_pieces(bench: &Bench, machine: &Machine<'_>, shell: &Path) {
    let person = Person::new(machine, shell);
    person.take_script();
    person.open_slot(bench);
    let id = person.id_of("s1");
    let folder = person.repo().join("segments").join(&id).join("000");
    let mut pieces: Vec<PathBuf> =
        fs::read_dir(&folder).expect("pieces").map(|entry| entry.expect("a piece").path()).collect();
    pieces.sort();
    let stream = &bench.streams[0];
    for (number, piece) in pieces.iter().enumerate() {
        let bytes = fs::read(piece).expect("a piece");
        let mut flipped = bytes.clone();
        flipped[bytes.len() / 2] ^= 1;
        for (what, damage) in [("flipped", &flipped[..]), ("cut", &bytes[..bytes.len() - 1]), ("empty", b"")] {
            fs::write(piece, damage).expect("damage");
            refused(&person, &id, stream, what, &format!("piece {number} was changed"));
        }
        fs::remove_file(piece).expect("damage");
        refused(&person, &id, stream, "removed", &format!("piece {number} is missing"));
        // Under the name of another codec it is another object.
        let kind = if piece.to_string_lossy().ends_with("zst.age") { "raw" } else { "gz" };
        let other = folder.join(format!("{number:09}.{kind}.age"));
        fs::write(&other, &bytes).expect("damage");
        refused(&person, &id, stream, "renamed", &format!("piece {number} "));
        fs::remove_file(other).expect("as it was");
        let another = &pieces[(number + 1) % pieces.len()];
        fs::copy(another, piece).expect("damage");
        refused(&person, &id, stream, "swapped", &format!("piece {number} was changed"));
        fs::write(piece, bytes).expect("as it was");
    }
    assert!(person.restore(&id).status.success(), "the last piece was put back");
}

fn damaged_manifests(bench: &Bench, machine: &Machine<'_>, shell: &Path) {
    let person = Person::new(machine, shell);
    person.take_script();
    person.open_slot(bench);
    let (id, other) = (person.id_of("s1"), person.id_of("s2"));
    let path = |id: &str, end: &str| person.repo().join(format!("manifests/{id}.age{end}"));
    let (manifest, signature) =
        (fs::read(path(&id, "")).expect("bytes"), fs::read(path(&id, ".minisig")).expect("bytes"));
    let (other_manifest, other_signature) =
        (fs::read(path(&other, "")).expect("bytes"), fs::read(path(&other, ".minisig")).expect("bytes"));
    let mut flipped = manifest.clone();
    flipped[manifest.len() / 2] ^= 1;
    let holds = "the signature does not hold";
    for (what, manifest, signature, words) in [
        ("flipped", &flipped, &signature, holds),
        ("another's", &other_manifest, &signature, holds),
        ("another's signature", &manifest, &other_signature, holds),
        ("replayed", &other_manifest, &other_signature, "for another backup"),
    ] {
        fs::write(path(&id, ""), manifest).expect("damage");
        fs::write(path(&id, ".minisig"), signature).expect("damage");
        refused(&person, &id, b"", what, words);
        let list = person.run(&person.typed("sh rescue.sh list", &[]));
        assert!(!list.status.success() && said(&list).contains(&other), "{what}: {}", said(&list));
    }
    fs::write(path(&id, ""), &manifest).expect("as it was");
    // Signed by somebody else, and all else is right.
    let key = snapferry::format::signature::SigningKey::generate().expect("a key");
    let comment =
        String::from_utf8_lossy(&signature).lines().nth(2).expect("a comment").replace("trusted comment: ", "");
    fs::write(path(&id, ".minisig"), key.sign(&manifest, &comment).expect("a signature")).expect("damage");
    refused(&person, &id, b"", "foreign", holds);
    fs::remove_file(path(&id, ".minisig")).expect("damage");
    refused(&person, &id, b"", "unsigned", "signature is missing");
    fs::write(path(&id, ".minisig"), signature).expect("as it was");
    refused(&person, "20991231T235959Z-0123456789abcdef", b"", "missing", "no such backup");
    // The repository that the key belongs to is what counts, not what the folder says.
    let descriptor = person.repo().join("snapferry.json");
    let text = fs::read_to_string(&descriptor).expect("a descriptor");
    fs::write(&descriptor, text.replace("\"repository\": \"", "\"repository\": \"0")).expect("damage");
    let output = person.restore(&id);
    assert!(output.status.success() && person.stream() == bench.streams[0], "{}", said(&output));
}

/// Without `b3sum` pieces of one size could be swapped: only whoever says so goes on.
#[test]
fn without_b3sum() {
    let bench = Bench::new();
    let machine = Machine::new(&bench, quick_folder());
    backup(&machine, "s1", "zstd");
    let person = Person::new(&machine, &shells()[0]);
    person.take_script();
    person.open_slot(&bench);
    let id = person.id_of("s1");
    fs::remove_file(person.folder.path().join("bin/b3sum")).expect("no b3sum");
    refused(&person, &id, b"", "no b3sum", "b3sum is missing");
    let line = person.typed("sh rescue.sh restore", &[("BACKUP-ID", &id)]);
    let output = person.run(&format!("UNCHECKED=yes {line}"));
    assert!(output.status.success() && said(&output).contains("by size alone"), "{}", said(&output));
    assert!(person.stream() == bench.streams[0]);
    fs::remove_file(person.folder.path().join("bin/zstd")).expect("no zstd");
    assert!(said(&person.run(&format!("UNCHECKED=yes {line}"))).contains("zstd is missing"));
}

/// Wrong words, keys and folders are told, with a status that is not 0.
#[test]
fn wrong_usage() {
    let bench = Bench::new();
    let machine = Machine::new(&bench, quick_folder());
    backup(&machine, "s1", "zstd");
    for shell in shells() {
        let person = Person::new(&machine, &shell);
        person.take_script();
        person.open_slot(&bench);
        let (signer, id) = (person.signer.clone(), person.id_of("s1"));
        let stranger = "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3";
        for (line, words) in [
            ("sh rescue.sh".to_owned(), "usage"),
            (format!("sh rescue.sh list repo repository.key {signer} {id}"), "usage"),
            (format!("sh rescue.sh restore repo repository.key {signer}"), "usage"),
            (format!("sh rescue.sh list nowhere repository.key {signer}"), "holds no backups"),
            (format!("sh rescue.sh list repo repo/snapferry.json {signer}"), "not what a slot"),
            (format!("sh rescue.sh list repo repository.key {stranger}"), "the signature does not hold"),
        ] {
            let output = person.run(&line);
            assert!(!output.status.success() && said(&output).contains(words), "{line}: {}", said(&output));
        }
    }
}

#[test]
fn the_script_is_clean() {
    let Some(shellcheck) = find("shellcheck") else {
        eprintln!("SKIPPED: shellcheck is not here; apt install shellcheck");
        return;
    };
    let bench = Bench::new();
    let machine = Machine::new(&bench, quick_folder());
    let person = Person::new(&machine, &shells()[0]);
    person.take_script();
    let script = person.folder.path().join("rescue.sh");
    let output = Command::new(shellcheck).args(["-s", "sh"]).arg(script).output().expect("shellcheck");
    assert!(output.status.success(), "{}", said(&output));
}
