//! The stores of this machine: the contract that each must keep, and a folder in which things go wrong. (SFTP:
//! `sftp.rs`.)

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use snapferry::store::directory::DirectoryStore;
use snapferry::store::memory::MemoryStore;
use snapferry::store::retry::{Retry, RetryPolicy};
use snapferry::store::{Store, StoreError, StoreErrorKind as Kind, StoreOptions, contract};
use tempfile::TempDir;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

fn quick() -> RetryPolicy {
    RetryPolicy { tries: 3, first_wait: Duration::from_micros(1), longest_wait: Duration::from_micros(4) }
}

fn assert_error<T: std::fmt::Debug>(result: Result<T, StoreError>, kind: Kind, words: &str) {
    let error = result.expect_err("success");
    let text = error.to_string();
    assert_eq!(error.kind, kind, "{text}");
    assert!(text.contains(words) && !text.contains('\n'), "{words:?} is not in {text:?}");
}

/// Everything below a folder, links as links.
fn tree(folder: &Path) -> Vec<(PathBuf, Option<Vec<u8>>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let kind = fs::symlink_metadata(&path).expect("its kind").file_type();
        if kind.is_dir() {
            found.extend(tree(&path));
        }
        let content = kind.is_file().then(|| fs::read(&path).expect("a file"));
        found.push((path, content));
    }
    found.sort();
    found
}

#[test]
fn memory_keeps_the_contract() {
    contract::check(&MemoryStore::default());
    contract::check(&Retry::new(MemoryStore::default(), quick()));
}

#[test]
fn a_folder_keeps_the_contract() {
    let folder = folder();
    contract::check(&DirectoryStore::new(folder.path()));
    let missing = folder.path().join("not/made/yet");
    contract::check(&Retry::new(DirectoryStore::new(&missing), quick()));
    let through_open = folder.path().join("opened");
    let location = through_open.display().to_string().parse().expect("a place");
    let options = StoreOptions { ssh_command: vec!["false".into()], connections: 4 };
    contract::check(snapferry::store::open(&location, &options).expect("a store").as_ref());
}

/// A disk that was unmounted leaves a mount point, or nothing: neither is a repository.
#[test]
fn a_root_that_went_away_is_not_made_again() {
    let folder = folder();
    let (disk, gone) = (folder.path().join("disk"), folder.path().join("gone"));
    let store = DirectoryStore::new(&disk.join("repository"));
    store.put("segments/a/000/1.zst.age", b"x").expect("stored");
    fs::rename(&disk, &gone).expect("moved");
    for name in ["segments/a/000/2.zst.age", "segments/a/001/3.zst.age", "top"] {
        assert_error(store.put(name, b"x"), Kind::NotFound, name);
    }
    assert!(!disk.exists());
    fs::rename(&gone, &disk).expect("moved");
    store.put("segments/a/001/3.zst.age", b"x").expect("stored");
}

#[test]
fn folders_deeper_than_any_of_ours_are_passed_over() {
    let folder = folder();
    let store = DirectoryStore::new(folder.path());
    store.put("manifests/a.age", b"x").expect("stored");
    let deep = folder.path().join("manifests").join("d/".repeat(100));
    fs::create_dir_all(&deep).expect("folders");
    fs::write(deep.join("b.age"), "x").expect("written");
    let listed = store.list("manifests").expect("listed");
    assert_eq!(listed.iter().map(|object| object.name.as_str()).collect::<Vec<_>>(), ["manifests/a.age"]);
}

/// Two stores on one folder are two processes: what one has written the other neither replaces nor misses.
#[test]
fn two_stores_on_one_folder() {
    let folder = folder();
    let (one, other) = (DirectoryStore::new(folder.path()), DirectoryStore::new(folder.path()));
    one.put("keys/a.age", b"one").expect("stored");
    assert_error(other.put("keys/a.age", b"other"), Kind::Exists, "keys/a.age");
    assert_eq!(other.get("keys/a.age", 10).expect("read"), b"one");
    other.delete("keys/a.age").expect("deleted");
    assert_error(one.get("keys/a.age", 10), Kind::NotFound, "keys/a.age");
    let winners: usize = (0..50)
        .map(|n| {
            let name = format!("manifests/{n}.age");
            std::thread::scope(|scope| {
                let racers = [&one, &other].map(|store| scope.spawn(|| store.put(&name, b"racing").is_ok()));
                racers.into_iter().map(|racer| usize::from(racer.join().expect("a racer"))).sum::<usize>()
            })
        })
        .sum();
    assert!(winners <= 50, "{winners} puts of 50 names succeeded");
    for object in one.list("manifests").expect("a listing") {
        assert_eq!(one.get(&object.name, 10).expect("read"), b"racing");
    }
}

/// What a killed process left: it is neither shown nor in the way, and a put of the same name takes its place.
#[test]
fn unfinished_files() {
    let folder = folder();
    let store = DirectoryStore::new(folder.path());
    fs::create_dir_all(folder.path().join("segments/x")).expect("a folder");
    fs::write(folder.path().join("segments/x/1.age.part"), "half an obj").expect("a leftover");
    fs::write(folder.path().join("snapferry.json.part"), "{").expect("a leftover");
    assert_eq!(store.list("").expect("a listing"), []);
    assert_error(store.get("segments/x/1.age", 100), Kind::NotFound, "segments/x/1.age");
    store.put("segments/x/1.age", b"whole").expect("stored");
    assert_eq!(store.get("segments/x/1.age", 100).expect("read"), b"whole");
    assert!(!folder.path().join("segments/x/1.age.part").exists());
    assert_eq!(store.list("").expect("a listing").len(), 1);
}

/// A file where a folder should be, and the other way round: an error, and nothing is changed.
#[test]
fn files_and_folders_in_the_wrong_place() {
    let folder = folder();
    let store = DirectoryStore::new(folder.path());
    fs::write(folder.path().join("segments"), "not a folder").expect("a file");
    fs::create_dir(folder.path().join("snapferry.json")).expect("a folder");
    fs::create_dir_all(folder.path().join("keys/a.age.part")).expect("a folder");
    let before = tree(folder.path());
    for result in
        [store.put("segments/x/1.age", b"x"), store.delete("segments/x/1.age"), store.delete("snapferry.json")]
    {
        let error = result.expect_err("success");
        assert!(!error.is_transient(), "{error}");
    }
    assert_error(store.put("snapferry.json", b"x"), Kind::Exists, "snapferry.json");
    assert!(store.put("keys/a.age", b"x").is_err());
    for result in [store.get("segments/x/1.age", 10), store.get("snapferry.json", 10)] {
        let error = result.expect_err("success");
        assert!(!error.is_transient(), "{error}");
    }
    assert!(store.size("snapferry.json").is_err());
    assert_eq!(tree(folder.path()), before);
    // A repository whose root is a file.
    let file = folder.path().join("file");
    fs::write(&file, "a file").expect("a file");
    let store = DirectoryStore::new(&file);
    assert!(store.put("top", b"x").is_err() && store.get("top", 1).is_err() && store.list("").is_err());
    assert_eq!(fs::read(&file).expect("a file"), b"a file");
}

/// Links planted in the repository lead nowhere: nothing outside is read, listed, written or removed.
#[test]
fn planted_links() {
    let (folder, outside) = (folder(), folder());
    fs::write(outside.path().join("secret.age"), "a secret").expect("a file");
    fs::create_dir(outside.path().join("000")).expect("a folder");
    let before = tree(outside.path());
    let root = folder.path();
    let up = Path::new("../..").join(outside.path().strip_prefix("/").expect("absolute"));
    for folder in ["keys", "segments", "manifests"] {
        fs::create_dir(root.join(folder)).expect("a folder");
    }
    symlink(outside.path(), root.join("segments/20260101T000000Z-0123456789abcdef")).expect("a link");
    symlink(&up, root.join("segments/20260101T000000Z-0123456789abcde0")).expect("a link");
    symlink(outside.path().join("secret.age"), root.join("keys/slot.age")).expect("a link");
    symlink(outside.path().join("new.age"), root.join("keys/new.age")).expect("a link");
    symlink(outside.path().join("new.age"), root.join("keys/part.age.part")).expect("a link");
    symlink("/dev/zero", root.join("keys/zero.age")).expect("a link");
    symlink("loop", root.join("loop")).expect("a link");
    let store = DirectoryStore::new(root);
    assert_eq!(store.list("").expect("a listing"), []);
    for name in [
        "segments/20260101T000000Z-0123456789abcdef/secret.age",
        "segments/20260101T000000Z-0123456789abcde0/secret.age",
        "keys/slot.age",
        "keys/zero.age",
        "loop/x",
    ] {
        assert!(store.get(name, 100).is_err(), "{name} was read");
        assert!(store.size(name).is_err(), "{name} was looked at");
    }
    for name in [
        "segments/20260101T000000Z-0123456789abcdef/000/000000000.zst.age",
        "segments/20260101T000000Z-0123456789abcde0/000/000000000.zst.age",
        "keys/new.age",
        "keys/slot.age",
        "loop/x",
    ] {
        assert!(store.put(name, b"ours").is_err(), "{name} was written");
    }
    // A link in the place of an unfinished file is removed, not followed.
    store.put("keys/part.age", b"ours").expect("stored");
    let _ = store.delete("segments/20260101T000000Z-0123456789abcdef/secret.age");
    let _ = store.delete("keys/slot.age");
    assert_eq!(tree(outside.path()), before, "something outside was changed");
    assert_eq!(store.get("keys/part.age", 10).expect("read"), b"ours");
}

/// A named pipe in the place of an object must not hang the program.
#[test]
fn a_pipe_in_the_place_of_an_object() {
    let folder = folder();
    fs::create_dir(folder.path().join("keys")).expect("a folder");
    let pipe = folder.path().join("keys/pipe.age");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    let (sender, receiver) = std::sync::mpsc::channel();
    let root = folder.path().to_owned();
    std::thread::spawn(move || {
        let store = DirectoryStore::new(&root);
        let results = (store.list(""), store.get("keys/pipe.age", 10), store.put("keys/pipe.age", b"x"));
        sender.send(results).expect("the test still waits");
    });
    let (listed, read, put) = receiver.recv_timeout(Duration::from_secs(20)).expect("it hangs on a named pipe");
    assert_eq!(listed.expect("a listing"), []);
    assert_error(read, Kind::Broken, "not a regular file");
    assert_error(put, Kind::Exists, "keys/pipe.age");
}

/// The folder was removed, or its disk unmounted, while the program ran.
#[test]
fn a_vanished_folder() {
    let folder = folder();
    let root = folder.path().join("repo");
    let store = DirectoryStore::new(&root);
    store.put("keys/a.age", b"x").expect("stored");
    fs::remove_dir_all(&root).expect("a removal");
    assert_error(store.get("keys/a.age", 10), Kind::NotFound, "keys/a.age");
    assert_error(store.delete("keys/a.age"), Kind::NotFound, "keys/a.age");
    assert_eq!(store.list("").expect("a listing"), []);
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A file system of its own.
struct Mount(PathBuf);

impl Mount {
    fn new(place: &Path, options: &str) -> Option<Mount> {
        if is_root() {
            fs::create_dir_all(place).expect("a folder");
            let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(place).status();
            if mounted.is_ok_and(|status| status.success()) {
                return Some(Mount(place.to_owned()));
            }
        }
        eprintln!("SKIPPED: no file system can be mounted here; run this as root");
        None
    }

    fn remount(&self, options: &str) {
        let mounted = Command::new("mount").args(["-o", &format!("remount,{options}")]).arg(&self.0).status();
        assert!(mounted.expect("mount").success());
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk() {
    let folder = folder();
    let root = folder.path().join("small");
    let Some(_mount) = Mount::new(&root, "size=64k") else { return };
    let store = DirectoryStore::new(&root);
    store.put("keys/small.age", &[1; 1000]).expect("stored");
    assert_error(store.put("segments/x/1.age", &[2; 100_000]), Kind::Full, "No space left");
    assert_eq!(store.list("").expect("a listing").len(), 1);
    assert!(!root.join("segments/x/1.age.part").exists(), "the unfinished file still takes the space");
    store.put("segments/x/2.age", &[3; 10_000]).expect("what fits is stored");
    assert_eq!(store.get("keys/small.age", 1000).expect("read"), [1; 1000]);
    drop(store);
}

#[test]
fn a_read_only_file_system() {
    let folder = folder();
    let root = folder.path().join("mounted");
    let Some(mount) = Mount::new(&root, "size=64k") else { return };
    let store = DirectoryStore::new(&root);
    store.put("keys/a.age", b"x").expect("stored");
    mount.remount("ro");
    assert_error(store.put("keys/b.age", b"x"), Kind::Denied, "Read-only");
    assert_error(store.put("segments/x/1.age", b"x"), Kind::Denied, "Read-only");
    assert_error(store.delete("keys/a.age"), Kind::Denied, "Read-only");
    assert_eq!(store.get("keys/a.age", 10).expect("read"), b"x");
    assert_eq!(store.list("").expect("a listing").len(), 1);
}

/// Permissions: root is stopped by none, so that part runs as nobody.
#[test]
fn a_forbidden_folder() {
    if is_root() {
        eprintln!("SKIPPED: permissions don't stop root; a_read_only_file_system does");
        return;
    }
    let folder = folder();
    let store = DirectoryStore::new(folder.path());
    store.put("keys/a.age", b"x").expect("stored");
    fs::set_permissions(folder.path().join("keys"), fs::Permissions::from_mode(0o500)).expect("a mode");
    assert_error(store.put("keys/b.age", b"x"), Kind::Denied, "denied");
    assert_error(store.delete("keys/a.age"), Kind::Denied, "denied");
    fs::set_permissions(folder.path().join("keys"), fs::Permissions::from_mode(0o700)).expect("a mode");
    assert_eq!(store.get("keys/a.age", 10).expect("read"), b"x");
}

/// What is stored can be read by its owner alone, or as the person's umask says, but never written by others.
#[test]
fn nobody_else_may_write() {
    let folder = folder();
    let store = DirectoryStore::new(&folder.path().join("repo"));
    store.put("segments/x/1.age", b"x").expect("stored");
    for (path, _) in tree(&folder.path().join("repo")) {
        let mode = fs::metadata(&path).expect("its mode").permissions().mode();
        assert_eq!(mode & 0o002, 0, "{} can be written by others: {mode:o}", path.display());
    }
}
