//! The bytes at rest against other people's tools: Debian's `age`, `minisign`, `b3sum`, `zstd` and `gzip`, and the
//! manifest against the format's own page.

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

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use bench::{Bench, SEGMENT, quick_folder};
use machine::Machine;
use serde_json::Value;

fn tool(name: &str, args: &[&str]) -> Output {
    let output = Command::new(name).args(args).output();
    output.unwrap_or_else(|error| panic!("{name}: {error}; apt install age minisign zstd gzip b3sum"))
}

fn good(name: &str, args: &[&str]) -> Vec<u8> {
    let output = tool(name, args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} {args:?}: {}{stderr}", String::from_utf8_lossy(&output.stdout));
    output.stdout
}

/// Through a program that reads standard input.
fn through(name: &str, args: &[&str], input: &[u8]) -> Vec<u8> {
    let mut child = Command::new(name).args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect(name);
    let mut stdin = child.stdin.take().expect("its input");
    std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(input).expect("it reads"));
        let output = child.wait_with_output().expect("its output");
        assert!(output.status.success(), "{name} {args:?}");
        output.stdout
    })
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

fn b3sum(path: &Path) -> String {
    String::from_utf8(good("b3sum", &["--no-names", text(path)])).expect("a hash").trim().to_owned()
}

struct Opened<'b> {
    machine: Machine<'b>,
    /// The repository identity, as age opens it out of a slot.
    key: PathBuf,
    /// The catalogue identity of the writer key.
    catalogue: PathBuf,
    signer: String,
    manifests: Vec<(String, Value)>,
}

fn slots(machine: &Machine<'_>) -> Vec<PathBuf> {
    let keys = fs::read_dir(machine.repo().join("keys")).expect("slots");
    keys.map(|entry| entry.expect("a slot").path()).collect()
}

fn opened<'b>(bench: &'b Bench, codec: &str) -> Opened<'b> {
    let machine = Machine::new(bench, quick_folder());
    for snapshot in ["s1", "s2"] {
        machine.must(&format!("backup offsite tank/data@{snapshot} --segment-size {SEGMENT} -z {codec}"));
    }
    let slot = slots(&machine).remove(0);
    let key = machine.file("repository.key");
    let plain = good("age", &["-d", "-i", &machine.identity(), text(&slot)]);
    fs::write(&key, &plain).expect("the key");
    let signer = String::from_utf8(plain).expect("text");
    let signer = signer.lines().find_map(|line| line.strip_prefix("# signer: ")).expect("a signer").to_owned();
    let writer = fs::read(machine.config().join("offsite.writer-key")).expect("a writer key");
    let writer: Value = serde_json::from_slice(&writer).expect("JSON");
    let catalogue = machine.file("catalogue.key");
    fs::write(&catalogue, writer["catalogue"].as_str().expect("an identity")).expect("a key");
    let names = machine
        .objects()
        .into_iter()
        .filter_map(|name| Some(name.strip_prefix("manifests/")?.strip_suffix(".age")?.to_owned()));
    // Each of the two identities that it is sealed to opens it, to the same bytes.
    let manifests = names
        .map(|id| {
            let path = machine.repo().join(format!("manifests/{id}.age"));
            let by_catalogue = good("age", &["-d", "-i", text(&catalogue), text(&path)]);
            assert!(by_catalogue == good("age", &["-d", "-i", text(&key), text(&path)]));
            let json = through("zstd", &["-dcq"], &by_catalogue);
            (id, serde_json::from_slice(&json).expect("JSON"))
        })
        .collect();
    Opened { key, catalogue, signer, manifests, machine }
}

#[test]
fn segments_open_with_age_and_unpack() {
    let bench = Bench::new();
    for (codec, extension, unpack, args) in
        [("zstd:3", "zst", "zstd", "-dcq"), ("gzip", "gz", "gzip", "-dc"), ("none", "raw", "cat", "-")]
    {
        let opened = opened(&bench, codec);
        for (id, manifest) in &opened.manifests {
            let mut stream = Vec::new();
            for (number, row) in manifest["segments"].as_array().expect("rows").iter().enumerate() {
                let name = format!("segments/{id}/000/{number:09}.{extension}.age");
                let path = opened.machine.repo().join(&name);
                assert_eq!(row[2].as_u64(), Some(fs::metadata(&path).expect(&name).len()), "{name}");
                assert_eq!(row[3].as_str(), Some(b3sum(&path).as_str()), "{name}");
                let packed = good("age", &["-d", "-i", text(&opened.key), text(&path)]);
                let plain = through(unpack, &[args], &packed);
                let file = opened.machine.file("plain");
                fs::write(&file, &plain).expect("a file");
                assert_eq!((row[0].as_u64(), row[1].as_str()), (Some(plain.len() as u64), Some(b3sum(&file).as_str())));
                // What opens manifests opens no data.
                let refused = tool("age", &["-d", "-i", text(&opened.catalogue), text(&path)]);
                assert!(!refused.status.success(), "{name} opens with the catalogue identity");
                stream.extend(plain);
            }
            let file = opened.machine.file("stream");
            fs::write(&file, &stream).expect("a file");
            assert_eq!(manifest["stream"]["bytes"].as_u64(), Some(stream.len() as u64));
            assert_eq!(manifest["stream"]["blake3"].as_str(), Some(b3sum(&file).as_str()));
            let title = manifest["source"]["snapshot"].as_str().expect("a snapshot");
            assert!(stream == bench.streams[if title == "s1" { 0 } else { 1 }], "{title}");
        }
    }
}

#[test]
fn signatures_verify_with_minisign() {
    let bench = Bench::new();
    let opened = opened(&bench, "zstd");
    let uuid = opened.manifests[0].1["repository"].as_str().expect("a uuid").to_owned();
    for (id, _) in &opened.manifests {
        let path = opened.machine.repo().join(format!("manifests/{id}.age"));
        let said = String::from_utf8(good("minisign", &["-V", "-P", &opened.signer, "-m", text(&path)])).expect("text");
        assert!(said.lines().any(|line| line == format!("Trusted comment: snapferry:{uuid}:{id}")), "{said}");
        let mut bytes = fs::read(&path).expect("a manifest");
        bytes[100] ^= 1;
        fs::write(&path, bytes).expect("damage");
        assert!(!tool("minisign", &["-V", "-P", &opened.signer, "-m", text(&path)]).status.success());
    }
}

/// Slots that `age` makes open here, and the other way round.
#[test]
fn slots_of_age_itself() {
    let bench = Bench::new();
    let opened = opened(&bench, "zstd");
    let machine = &opened.machine;
    let content = fs::read_to_string(&opened.key).expect("a slot");
    let lines: Vec<&str> = content.lines().collect();
    assert!(
        lines.len() == 3 && lines[0].starts_with("# repository: ") && lines[1].starts_with("# signer: RW"),
        "{lines:?}"
    );
    assert!(lines[2].starts_with("AGE-SECRET-KEY-1"));
    let identity = machine.file("new-identity");
    good("age-keygen", &["-o", text(&identity)]);
    let recipient = String::from_utf8(good("age-keygen", &["-y", text(&identity)])).expect("a recipient");
    let slot = machine.repo().join("keys/by-age-itself.age");
    good("age", &["-r", recipient.trim(), "-o", text(&slot), text(&opened.key)]);
    machine.must(&format!("check offsite --identity {}", identity.display()));
    // Our own slot for a recipient of age's making.
    let other = machine.file("other-identity");
    good("age-keygen", &["-o", text(&other)]);
    let recipient = String::from_utf8(good("age-keygen", &["-y", text(&other)])).expect("a recipient");
    let before: BTreeSet<PathBuf> = slots(machine).into_iter().collect();
    machine.must(&format!("key add offsite --recipient {} --identity {}", recipient.trim(), machine.identity()));
    let added = slots(machine).into_iter().find(|slot| !before.contains(slot)).expect("a slot");
    assert_eq!(good("age", &["-d", "-i", text(&other), text(&added)]), content.as_bytes());
}

#[test]
fn ssh_slots_open_with_age() {
    let bench = Bench::new();
    let machine = Machine::new(&bench, quick_folder());
    for kind in ["ed25519", "rsa"] {
        let key = machine.file(kind);
        good("ssh-keygen", &["-q", "-t", kind, "-N", "", "-f", text(&key)]);
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("its mode");
        let before: BTreeSet<PathBuf> = slots(&machine).into_iter().collect();
        let public = key.with_extension("pub");
        machine.must(&format!("key add offsite -R {} --identity {}", public.display(), machine.identity()));
        let added = slots(&machine).into_iter().find(|slot| !before.contains(slot)).expect("a slot");
        let plain = String::from_utf8(good("age", &["-d", "-i", text(&key), text(&added)])).expect("text");
        assert!(plain.contains("AGE-SECRET-KEY-1"), "{kind}");
        machine.must(&format!("check offsite --identity {}", key.display()));
    }
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

/// Key by key, as the format's page lays it down.
#[test]
fn the_manifest_is_as_the_format_says() {
    let bench = Bench::new();
    let opened = opened(&bench, "zstd:7");
    let sorted = |keys: &[&str]| {
        let mut keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
        keys.sort();
        keys
    };
    for (id, manifest) in &opened.manifests {
        assert_eq!(
            sorted(&keys(manifest)),
            sorted(&[
                "format",
                "repository",
                "id",
                "writer",
                "sequence",
                "previous",
                "host",
                "tool",
                "started",
                "finished",
                "source",
                "zfs_stream",
                "codec",
                "segment_size",
                "stream",
                "segments"
            ])
        );
        assert_eq!((manifest["format"].as_u64(), manifest["id"].as_str()), (Some(1), Some(id.as_str())));
        let started: jiff::Timestamp = manifest["started"].as_str().expect("a time").parse().expect("RFC 3339");
        let finished: jiff::Timestamp = manifest["finished"].as_str().expect("a time").parse().expect("RFC 3339");
        assert!(started <= finished && id.starts_with(&started.strftime("%Y%m%dT%H%M%SZ-").to_string()));
        let source = &manifest["source"];
        let of_source =
            ["kind", "dataset", "snapshot", "guid", "createtxg", "creation", "base", "flags", "raw", "recursive"];
        assert_eq!(sorted(&keys(source)), sorted(&of_source));
        assert_eq!((source["kind"].as_str(), source["flags"].to_string().as_str()), (Some("zfs"), r#"["-L","-c"]"#));
        let guid = bench.pool.guid(&format!("tank/data@{}", source["snapshot"].as_str().expect("a name")));
        assert_eq!(source["guid"].as_str(), Some(guid.to_string().as_str()), "GUIDs are decimal strings");
        assert_eq!(manifest["codec"], serde_json::json!({"name": "zstd", "level": 7}));
        assert_eq!(manifest["segment_size"].as_u64(), Some(SEGMENT as u64));
        let hashes = manifest["segments"].as_array().expect("rows").iter().flat_map(|row| [&row[1], &row[3]]);
        for hash in hashes.chain([&manifest["stream"]["blake3"]]) {
            let hash = hash.as_str().expect("a hash");
            assert!(
                hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)),
                "{hash}"
            );
        }
        let told = &manifest["zfs_stream"]["substreams"][0];
        assert_eq!(told["toguid"], source["guid"]);
        for key in ["toguid", "fromguid", "features"] {
            assert!(told[key].as_str().is_some_and(|number| number.parse::<u64>().is_ok()), "{key}");
        }
        assert!(told["end_checksum"].as_str().is_some_and(|sum| sum.len() == 64) && told["records"].as_u64() > Some(2));
    }
    // The history of the writer is a chain.
    let [(first_id, first), (_, second)] = &opened.manifests[..] else { panic!("two manifests") };
    let (first, second) = if first["sequence"] == 1 { (first, second) } else { (second, first) };
    let first_id = first["id"].as_str().unwrap_or(first_id);
    assert_eq!((first["previous"].is_null(), second["sequence"].as_u64()), (true, Some(2)));
    let sealed = opened.machine.repo().join(format!("manifests/{first_id}.age"));
    assert_eq!(second["previous"].as_str(), Some(b3sum(&sealed).as_str()));
    assert_eq!(second["source"]["base"]["kind"], "snapshot");
    assert_eq!(second["source"]["base"]["guid"], first["source"]["guid"]);
    assert!(first["source"]["base"].is_null());
}

/// Names, guids and hashes of the stream never show to whoever holds the folder.
#[test]
fn nothing_shows_in_the_clear() {
    let bench = Bench::new();
    let opened = opened(&bench, "none");
    let guid = bench.pool.guid("tank/data@s1").to_string();
    let hash = opened.manifests[0].1["stream"]["blake3"].as_str().expect("a hash").to_owned();
    let host = opened.manifests[0].1["host"].as_str().expect("a host").to_owned();
    // A short name occurs in base64 by chance.
    let host = if host.len() < 6 { "tank/data".to_owned() } else { host };
    let piece = &bench.streams[0][1000..1032];
    for (name, bytes) in bench::files_of(&opened.machine.repo()) {
        let has = |needle: &[u8]| bytes.windows(needle.len()).any(|window| window == needle);
        for secret in ["tank/data".as_bytes(), guid.as_bytes(), hash.as_bytes(), host.as_bytes(), piece] {
            assert!(!has(secret), "{name} shows {}", String::from_utf8_lossy(secret));
            assert!(!name.as_bytes().windows(secret.len()).any(|window| window == secret), "{name}");
        }
    }
}
