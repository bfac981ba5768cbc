//! Repositories on a disk that is full, read-only, or gone.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::cli::{Machine, pattern, wait_until};
use crate::support::sshd::is_root;

/// A small file system in memory, which a test can fill and make read-only.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(machine: &Machine, size: &str) -> Option<Self> {
        let path = machine.path("disk");
        fs::create_dir(&path).unwrap();
        if is_root() && mount(&["-t", "tmpfs", "-o", &format!("size={size}"), "none"], &path) {
            return Some(Self(path));
        }
        eprintln!("SKIPPED: a disk that can be filled needs root and the right to mount");
        None
    }

    fn remount(&self, option: &str) {
        assert!(mount(&["-o", &format!("remount,{option}")], &self.0));
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

fn mount(arguments: &[&str], path: &Path) -> bool {
    Command::new("mount").args(arguments).arg(path).status().is_ok_and(|status| status.success())
}

/// What nothing compresses.
fn noise(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new().finalize_xof().fill(&mut bytes);
    bytes
}

const LINE: &str = "backup offsite --stdin --name x --segment-size 64KiB";

#[test]
fn a_full_disk_ends_the_run_and_with_more_room_it_goes_on() {
    let mut machine = Machine::new();
    let Some(disk) = SmallDisk::mount(&machine, "1m") else { return };
    (machine.objects, machine.url) = (disk.0.join("r"), disk.0.join("r").to_str().unwrap().to_owned());
    machine.init();
    let stream = noise(2_000_000);
    let failed = machine.run_with(LINE, &stream);
    failed.fails(1, &["No space left", "there is no space or quota left at the far end"]);
    assert_eq!(machine.backups().len(), 0);
    let stored = machine.segments();
    assert!(stored.len() > 5 && !machine.tree().keys().any(|name| name.ends_with(".part")), "{:?}", machine.tree());
    disk.remount("size=8m");
    let again = machine.run_with(&format!("-v {LINE}"), &stream).exit(0);
    assert!(again.stderr().contains(&format!("{} segments are stored already", stored.len())), "{again}");
    let back = machine.run(&format!("restore offsite x --output - {}", machine.key())).done();
    assert!(back.bytes() == stream);

    // There is always room to restore, and a target that is full leaves nothing behind.
    disk.remount("size=3m");
    let file = disk.0.join("out");
    machine
        .run(&format!("restore offsite x --output {} {}", file.display(), machine.key()))
        .fails(1, &["No space left"]);
    assert_eq!(fs::read_dir(&disk.0).unwrap().count(), 1);
}

#[test]
fn a_disk_that_became_read_only_can_still_be_restored_from() {
    let mut machine = Machine::new();
    let Some(disk) = SmallDisk::mount(&machine, "8m") else { return };
    (machine.objects, machine.url) = (disk.0.join("r"), disk.0.join("r").to_str().unwrap().to_owned());
    machine.init();
    machine.run_with(LINE, b"one").silent();
    disk.remount("ro");
    let before = machine.tree();
    machine.run_with(LINE, b"two").fails(1, &["Read-only file system"]);
    machine
        .run(&format!(
            "key add offsite --recipient {} {}",
            crate::support::cli::recipient_of(&machine.identity()),
            machine.key()
        ))
        .fails(1, &["Read-only file system"]);
    machine.run(&format!("check offsite {}", machine.key())).done();
    assert_eq!(machine.run(&format!("restore offsite x --output - {}", machine.key())).done().stdout(), "one");
    assert_eq!(machine.tree(), before);
    disk.remount("rw");
    machine.run_with(LINE, b"two").silent();
    assert_eq!(machine.backups().len(), 2);
}

/// A disk that is not mounted leaves a folder that takes everything.
#[test]
fn a_repository_that_vanishes_under_a_run_is_not_made_anew_elsewhere() {
    for length in [4 * 65_536, 4 * 65_536 + 1] {
        let machine = Machine::ready();
        let elsewhere = machine.path("unmounted");
        let mut running = machine.start_fed(LINE);
        running.input().write_all(&pattern(length)).unwrap();
        wait_until("all full segments are stored", || machine.segments().len() == 4);
        fs::rename(&machine.objects, &elsewhere).unwrap();
        drop(running.child.stdin.take());
        let code = if length % 65_536 == 0 { 4 } else { 1 };
        running.end().fails(code, &["the backup was not finished"]);
        assert!(!machine.objects.join("manifests").exists() && !machine.objects.join("snapferry.json").exists());
        machine.run("list offsite").fails(4, &["there is no repository at", "whether the disk is mounted"]);
        machine.run_with(LINE, b"x").fails(4, &["there is no repository at"]);
        let _ = fs::remove_dir_all(&machine.objects);
        fs::rename(&elsewhere, &machine.objects).unwrap();
        machine.run_with(LINE, &pattern(length)).silent();
        let back = machine.run(&format!("restore offsite x --output - {}", machine.key())).done();
        assert!(back.bytes() == pattern(length));
    }
}

#[test]
fn places_that_are_no_places_and_hosts_that_do_not_answer() {
    let machine = Machine::new();
    let recipient = crate::support::cli::recipient_of(&machine.identity());
    for (url, code, words) in [
        ("http://host/x", 2, "only file://, ssh:// and sftp:// are known"),
        ("ssh://host", 2, "a path is missing"),
        ("ssh://-oProxyCommand=x/y", 2, "begins with \"-\""),
        ("", 2, "is no place"),
        ("/dev/null/x", 1, "/dev/null/x"),
    ] {
        machine.run(&format!("init offsite --recipient {recipient} -- '{url}'")).fails(code, &[words]);
    }
    let refused = format!("init offsite ssh://127.0.0.1/x --recipient {recipient} --ssh-command /no/such/ssh");
    machine.run(&refused).fails(1, &["cannot start \"/no/such/ssh\""]);
    machine
        .run(&format!("init offsite ssh://h/x --recipient {recipient} --ssh-command '\"ssh'"))
        .fails(2, &["--ssh-command"]);
}
