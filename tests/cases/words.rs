//! What is said and how: usage, silence, JSON, completions and the manual.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use serde_json::json;

use crate::support::cli::{Machine, recipient_of, tool};
use crate::support::pool::{Fault, What};

const VERBS: [&str; 9] = ["init", "backup", "list", "check", "restore", "connect", "key", "completions", "man"];

#[test]
fn wrong_usage_exits_2_and_does_nothing() {
    let machine = Machine::with_snapshots();
    let before = (machine.tree(), machine.datasets());
    for line in [
        "",
        "--no-such-option",
        "frobnicate offsite",
        "backup",
        "backup offsite",
        "backup offsite tank/data@one two three",
        "backup offsite tank/data@one --full --base @two",
        "backup offsite --stdin",
        "backup offsite tank/data@one --name x",
        "backup offsite tank/data@one --stdin --name x",
        "backup offsite --stdin --name ''",
        "backup offsite --stdin --name 'a\nb'",
        "backup offsite tank/data@one -z lzma",
        "backup offsite tank/data@one -z zstd:20",
        "backup offsite tank/data@one -z none:1",
        "backup offsite tank/data@one --segment-size 1KiB",
        "backup offsite tank/data@one --segment-size 2GiB",
        "backup offsite tank/data@one --segment-size much",
        "backup offsite tank/data@one --base @a@b",
        "backup offsite tank/data@one --connections 0",
        "restore offsite tank/data",
        "restore offsite tank/data --to pool/x --output -",
        "restore --to pool/x",
        "check offsite --read-data=0%",
        "check offsite --read-data=101",
        "check offsite --read-data=some",
        "list",
        "key add offsite",
        "key frobnicate offsite",
        "connect offsite",
        "connect other offsite",
        "init other",
        "completions tcsh",
    ] {
        let run = machine.run(line).exit(2);
        assert!(run.stdout().is_empty() && run.stderr().contains("error: ") || line.is_empty(), "{run}");
        assert!(!run.stderr().contains("panicked"), "{run}");
    }
    machine.run(&format!("backup offsite --stdin --name {}", "x".repeat(1025))).fails(2, &["--name"]);
    machine.run_with(&format!("backup offsite --stdin --name {}", "x".repeat(1024)), b"text").silent();
    fs::remove_dir_all(machine.objects.join("segments")).unwrap();
    fs::remove_dir_all(machine.objects.join("manifests")).unwrap();
    assert_eq!((machine.tree(), machine.datasets()), before);
    let asks = |call: &Vec<String>| call[0] == "list" || call[0] == "get" || call[..2] == ["send", "-n"];
    assert!(machine.pool.calls().iter().all(asks), "{:?}", machine.pool.calls());
}

#[test]
fn every_command_speaks_json() {
    let machine = Machine::new();
    let (recipient, key) = (recipient_of(&machine.identity()), machine.key());
    let made = machine.run(&format!("init offsite {} --recipient {recipient} --json {key}", machine.url)).done().json();
    assert!(made["slots"][0]["proved"] == true && made["signer"] == machine.signer(), "{made}");
    machine.pool.add_dataset("tank/data");
    machine.snapshot("one", None);
    machine.snapshot("two", Some("one"));
    for (name, base) in [("one", json!(null)), ("two", json!(machine.pool.guid("tank/data@one").to_string()))] {
        let done = machine.run(&format!("backup offsite tank/data@{name} --json")).done().json();
        assert_eq!((&done["base_guid"], &done["segments"]), (&base, &json!(1)));
        assert_eq!(done["source"]["snapshot"], name);
        for number in ["bytes", "stored_bytes"] {
            assert!(done[number].as_u64() > Some(0), "{done}");
        }
    }
    let listed = machine.run("list offsite --json").done().json();
    assert_eq!(listed["backups"].as_array().unwrap().len(), 2);
    let checked = machine.run(&format!("check offsite --json {key}")).done().json();
    assert!(checked["ok"] == true && checked["checked"].as_array().unwrap().len() == 2, "{checked}");
    let plan = machine.run(&format!("restore offsite tank/data --to pool/back -n --json {key}")).done().json();
    assert_eq!(plan["streams"].as_array().unwrap().len(), 2);
    let back = machine.run(&format!("restore offsite tank/data --to pool/back --json {key}")).done().json();
    assert!(back["restored"].as_array().unwrap().len() == 2 && back["destination"] == "pool/back", "{back}");
    let piped = machine.run(&format!("restore offsite tank/data@one --output - --json {key}")).done();
    assert!(piped.bytes() == fs::read(machine.snapshot("one", None)).unwrap(), "data is data");
    let added = machine.run(&format!("key add offsite --recipient {recipient} --json {key}")).done().json();
    let slot = added["added"].as_str().unwrap();
    assert_eq!(machine.run("key list offsite --json").done().json()["slots"].as_array().unwrap().len(), 2);
    assert_eq!(machine.run(&format!("key remove offsite {slot} --json")).done().json(), json!({"removed": slot}));
    let line = format!("connect other {} --json {key} --signer {}", machine.url, machine.signer());
    assert_eq!(machine.run(&line).done().json()["backups"], 2);
}

#[test]
fn errors_are_json_too() {
    let machine = Machine::with_snapshots();
    for (line, code) in [
        ("backup offsite tank/data@none", 4),
        ("backup offsite tank/none@x", 4),
        ("backup nowhere tank/data@one", 4),
        ("restore offsite x --to pool/back", 5),
        ("restore offsite x --output - --identity /no/file", 5),
        ("check offsite --read-data=0", 2),
        ("backup offsite tank/data@one -z x", 2),
        ("key remove offsite nothing", 4),
        ("connect offsite /x", 1),
    ] {
        let run = machine.run(&format!("{line} --json")).exit(code);
        let errors = run.json_errors();
        let [error] = &errors[..] else { panic!("{run}") };
        assert_eq!(error["error"]["exit_code"], code, "{run}");
        assert!(error["error"]["message"].as_str().is_some_and(|text| !text.is_empty()), "{run}");
    }
    // Warnings are JSON as well.
    machine.run("backup offsite tank/data@one").silent();
    let id = crate::forge::last_id(&machine);
    fs::remove_file(machine.objects.join(format!("manifests/{id}.age"))).unwrap();
    let run = machine.run("list offsite --json").exit(3);
    assert!(run.json_errors()[0]["warning"]["message"].as_str().unwrap().contains(&id), "{run}");
}

#[test]
fn wrong_usage_is_json_too() {
    let machine = Machine::ready();
    for line in ["--json frobnicate", "restore offsite x --json", "backup offsite --stdin --json", "--json --no-such"] {
        let run = machine.run(line).exit(2);
        let errors = run.json_errors();
        assert!(errors.len() == 1 && errors[0]["error"]["exit_code"] == 2, "{run}");
    }
    machine.run("--json --help").done().says(&["Usage:"]);
}

#[test]
fn words_of_zfs_are_json_too() {
    let machine = Machine::with_snapshots();
    machine.pool.fault(Fault::new("send", What::Noise { at: 0, bytes: 100 }).skip(1));
    let run = machine.run("backup offsite tank/data@one --json").exit(0);
    assert!(run.json_errors()[0]["warning"]["message"].as_str().unwrap().contains("the stand-in says"), "{run}");
}

#[test]
fn quiet_means_nothing_but_what_was_asked_for() {
    let machine = Machine::new();
    let (recipient, key) = (recipient_of(&machine.identity()), machine.key());
    machine.run(&format!("-q init offsite {} --recipient {recipient}", machine.url)).silent();
    machine.run_with("-q backup offsite --stdin --name x", b"text").silent();
    machine.run(&format!("-q check offsite {key}")).silent();
    machine.run(&format!("-q key add offsite --recipient {recipient} {key}")).silent();
    machine.run(&format!("-q connect other {} {key} --signer {}", machine.url, machine.signer())).silent();
    machine.run("-q list offsite").done().says(&["ID", "x"]);
    assert_eq!(machine.run(&format!("-q restore offsite x --output - {key}")).done().stdout(), "text");
    machine.run("-q list offsite nothing").fails(4, &["nothing"]);
    let run = machine.run("list offsite nothing --json").exit(4);
    assert_eq!((&run.json()["backups"], run.json_errors().len()), (&serde_json::json!([]), 1), "{run}");
}

/// `script` is the terminal.
#[test]
fn a_person_at_a_terminal_is_told_more() {
    let machine = Machine::with_snapshots();
    let at_terminal = |line: &str| {
        let command = machine.command(line);
        let words = std::iter::once(command.get_program()).chain(command.get_args()).map(|word| word.to_str().unwrap());
        let line = shlex::try_join(words).unwrap();
        let mut script = Command::new("script");
        script.args(["-qec", &line, "/dev/null"]).stdin(Stdio::null());
        machine.pool.serve(&mut script);
        let output = script.output().expect("script(1) of bsdutils");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, said) = at_terminal("backup offsite tank/data@one");
    assert_eq!(code, Some(0), "{said}");
    for words in ["tank/data@one: full, about", "backed up", "in 1 segment,", "id 2"] {
        assert!(said.contains(words), "{words:?}: {said}");
    }
    assert_eq!(at_terminal("-q backup offsite tank/data@two"), (Some(0), String::new()));
    let (code, said) = at_terminal("restore offsite tank/data@one --output -");
    assert!(code == Some(2) && said.contains("a stream is not written to a terminal"), "{said}");
    assert_eq!(at_terminal("backup offsite tank/data@none").0, Some(4));
}

#[test]
fn ctrl_c_at_the_passphrase_is_one_error() {
    let machine = Machine::ready();
    let command = machine.command("list offsite --passphrase");
    let words = std::iter::once(command.get_program()).chain(command.get_args()).map(|word| word.to_str().unwrap());
    let line = shlex::try_join(words).unwrap();
    let mut script = Command::new("script");
    script.args(["-qec", &line, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut running = script.spawn().expect("script(1) of bsdutils");
    let (mut input, mut output) = (running.stdin.take().unwrap(), running.stdout.take().unwrap());
    let (mut said, mut byte) = (Vec::new(), [0u8; 1]);
    while !said.ends_with(b"Passphrase: ") && output.read(&mut byte).unwrap() == 1 {
        said.push(byte[0]);
    }
    input.write_all(b"\x03").unwrap();
    output.read_to_end(&mut said).unwrap();
    let said = String::from_utf8_lossy(&said);
    assert_eq!(running.wait().unwrap().code(), Some(130), "{said}");
    assert!(said.contains("stopped by SIGINT") && said.matches("error: ").count() == 1, "{said}");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let machine = Machine::ready();
    for line in ["man", "completions bash", "list offsite"] {
        let mut command = machine.command(line);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.signal(), output.stderr), (Some(13), Vec::new()), "{line}");
    }
}

#[test]
fn completions_for_three_shells() {
    let machine = Machine::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = machine.run(&format!("completions {shell}")).done();
        script.says(&VERBS).says(&["snapferry", "output-dir", "writer-key"]);
    }
    let file = machine.path("completion.bash");
    fs::write(&file, machine.run("completions bash").bytes()).unwrap();
    let complete = |words: &str, number: usize| {
        let script = format!(
            "source {}; COMP_WORDS=({words}); COMP_CWORD={number}; _snapferry snapferry \"${{COMP_WORDS[{number}]}}\" \"\"; echo \"${{COMPREPLY[*]}}\"",
            file.display()
        );
        tool("bash", &["--norc", "-c", &script])
    };
    assert_eq!(complete("snapferry res", 1), "restore");
    assert_eq!(complete("snapferry restore --output-d", 2), "--output-dir");
    for (shell, check) in [("zsh", "-n"), ("fish", "-n")] {
        let path = machine.path(shell);
        fs::write(&path, machine.run(&format!("completions {shell}")).bytes()).unwrap();
        match Command::new(shell).arg(check).arg(&path).status() {
            Ok(status) => assert!(status.success(), "{shell}"),
            Err(_) => eprintln!("SKIPPED: {shell} is not installed"),
        }
    }
}

#[test]
fn the_manual_is_one_page_that_groff_reads() {
    let machine = Machine::new();
    let page = machine.run("man").done();
    let page = page.says(&VERBS);
    let Ok(mut groff) = Command::new("groff")
        .args(["-man", "-Tutf8", "-ww", "-P-cbou"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
    else {
        eprintln!("SKIPPED: groff is not installed");
        return;
    };
    groff.stdin.take().unwrap().write_all(page.bytes()).unwrap();
    let output = groff.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    for words in
        ["Exit codes: 0 done; 1 failed;", "--passphrase-file", "SNAPFERRY BACKUP", "SNAPFERRY KEY ADD", "--output-dir"]
    {
        assert!(text.contains(words), "{words}");
    }
}

#[test]
fn help_and_version_are_no_errors() {
    let machine = Machine::new();
    machine.run("--version").done().says(&[concat!("snapferry ", env!("CARGO_PKG_VERSION"))]);
    machine.run("-h").done().says(&VERBS);
    for verb in VERBS {
        machine.run(&format!("{verb} --help")).done().says(&["Usage: snapferry"]);
    }
}
