//! The failing point moved through `init` and the `key` commands. At every instant somebody can open the
//! repository who could before, or there is none yet.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use snapferry::error::Exit;
use snapferry::format::names;
use snapferry::store::Store;
use snapferry::store::StoreErrorKind::Transient;

use crate::bench::{Bench, World, new_identity, told};
use crate::support::faulty::{Fault, Operation};

fn slots(world: &World<'_>) -> Vec<String> {
    world.names().iter().filter_map(|name| names::parse_slot(name).map(str::to_owned)).collect()
}

/// A backup and its restore work.
fn is_usable(world: &World<'_>, what: &str) {
    let backup = world.good("backup offsite tank/data@s1 --segment-size 8192");
    assert!(matches!(backup, Ok(Exit::Done)), "{what}: backup: {}", told(&backup));
    assert!(world.restored("tank/data@s1").expect(what) == world.bench.streams[0], "{what}: not identical");
}

#[test]
fn init() {
    let bench = Bench::new();
    for fault in Fault::all() {
        for at in 0.. {
            let world = bench.empty();
            let (faulty, result) = world.strike(fault, at, 1, &bench.init_line());
            let struck = faulty.struck();
            let what = format!("{fault:?} at {at}, {struck:?}: {}", told(&result));
            match &result {
                Ok(exit) => assert_eq!(*exit, Exit::Done, "{what}"),
                Err(_) => {
                    assert!(
                        !world.names().contains(&names::DESCRIPTOR.to_owned()),
                        "{what}: half a repository is left"
                    );
                    assert_eq!(slots(&world), Vec::<String>::new(), "{what}: slots are left");
                    assert!(
                        !world.file("offsite.toml").exists() && !world.file("offsite.writer-key").exists(),
                        "{what}"
                    );
                    let again = world.good(&bench.init_line());
                    assert!(matches!(again, Ok(Exit::Done)), "{what}: again: {}", told(&again));
                }
            }
            is_usable(&world, &what);
            assert_eq!(slots(&world).len(), 1, "{what}");
            assert_eq!(world.strays(), Vec::<String>::new(), "{what}");
            if struck.is_empty() {
                assert!(at > 6);
                break;
            }
        }
    }
}

#[test]
fn init_never_takes_what_is_there() {
    let bench = Bench::new();
    let world = bench.world();
    let before = world.store.list("").expect("a listing");
    fs::remove_file(world.file("offsite.toml")).expect("no profile");
    fs::remove_file(world.file("offsite.writer-key")).expect("no key");
    fs::remove_file(world.file("offsite.recovery.txt")).expect("no sheet");
    let result = world.good(&bench.init_line());
    assert!(result.is_err(), "{}", told(&result));
    assert_eq!(world.store.list("").expect("a listing"), before);
}

#[test]
fn key_add_and_remove() {
    let bench = Bench::new();
    let (other, recipient) = new_identity(bench.folder(), "other");
    let add = format!("key add offsite --recipient {recipient} --identity {}", bench.identity.display());
    for fault in Fault::all() {
        for at in 0.. {
            let world = bench.world();
            let old = slots(&world);
            let (faulty, result) = world.strike(fault, at, 1, &add);
            let struck = faulty.struck();
            let what = format!("{fault:?} at {at}, {struck:?}: {}", told(&result));
            if result.is_err() {
                assert_eq!(slots(&world), old, "{what}: another slot after a failure");
                world.must(&add);
            }
            is_usable(&world, &what);
            let with_other = world.good(&format!("check offsite --identity {}", other.display()));
            assert!(matches!(with_other, Ok(Exit::Done)), "{what}: {}", told(&with_other));
            if struck.is_empty() {
                break;
            }
        }
    }
    let world = bench.world();
    let first = slots(&world).remove(0);
    world.must(&add);
    let start = world.snapshot();
    for fault in Fault::all() {
        for at in 0.. {
            let world = bench.at(&start);
            let (faulty, result) = world.strike(fault, at, 1, &format!("key remove offsite {first}"));
            let struck = faulty.struck();
            let what = format!("{fault:?} at {at}, {struck:?}: {}", told(&result));
            assert!(!slots(&world).is_empty(), "{what}: nobody can open it any more");
            let lied = fault == Fault::Lose && matches!(struck.first(), Some((Operation::Delete, _)));
            assert!(
                lied || result.is_err() == slots(&world).contains(&first) || matches!(fault, Fault::FailAfter(_)),
                "{what}"
            );
            let with_other = world.good(&format!("check offsite --identity {}", other.display()));
            assert!(matches!(with_other, Ok(Exit::Done)), "{what}: {}", told(&with_other));
            if struck.is_empty() {
                break;
            }
        }
    }
}

/// A new passphrase, and the old one opens it until the new one is proved.
#[test]
fn key_passwd() {
    let bench = Bench::new();
    let file = |name: &str, text: &str| {
        let path = bench.folder().join(name);
        fs::write(&path, text).expect("a passphrase file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its mode");
        path.display().to_string()
    };
    let (old, new) = (file("old", "correct horse\n"), file("new", "battery staple\n"));
    let world = bench.world();
    let add = format!("key add offsite --new-passphrase-file {old} --identity {}", bench.identity.display());
    world.must(&add);
    let start = world.snapshot();
    let passwd = format!("key passwd offsite --passphrase-file {old} --new-passphrase-file {new}");
    let opens = |world: &World<'_>, file: &str| world.good(&format!("check offsite --passphrase-file {file}"));
    let (counted, result) = world.strike(Fault::Lose, u64::MAX, 0, &passwd);
    result.expect("a new passphrase");
    assert!(opens(&world, &new).is_ok() && opens(&world, &old).is_err());
    // Each try costs seconds: only where something is written, and with the faults that matter there.
    let log = counted.log();
    let writes = (0..).zip(&log).filter(|(_, (operation, _))| matches!(operation, Operation::Put | Operation::Delete));
    for (at, (operation, name)) in writes {
        for fault in [Fault::Refuse(Transient), Fault::FailAfter(Transient), Fault::Flip] {
            if fault == Fault::Flip && *operation == Operation::Delete {
                continue;
            }
            let world = bench.at(&start);
            let (faulty, result) = world.strike(fault, at, 1, &passwd);
            // Slots are looked at in the order of their random names: it may be another operation than before.
            let struck = faulty.struck();
            let Some((struck, _)) = struck.first() else { continue };
            let what = format!("{fault:?} at {at}, {struck:?}, before {operation:?} {name}: {}", told(&result));
            // A deletion that landed is what was asked for.
            let landed = matches!(fault, Fault::FailAfter(_)) && *struck == Operation::Delete;
            assert!(result.is_ok() == landed || !matches!(struck, Operation::Put | Operation::Delete), "{what}");
            let (with_old, with_new) = (opens(&world, &old).is_ok(), opens(&world, &new).is_ok());
            assert!(with_old || with_new, "{what}: neither passphrase opens it");
            let expected = match struck {
                Operation::Put => false,
                Operation::Delete => true,
                _ => with_new,
            };
            assert_eq!(with_new, expected, "{what}: old {with_old}, new {with_new}");
        }
    }
}
