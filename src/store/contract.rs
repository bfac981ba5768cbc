//! What every store must do, as a suite that each is run through by the tests. A new store is done when it passes.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::{Store, StoreErrorKind};

/// Runs the whole suite against an empty store; panics at the first breach.
pub fn check(store: &dyn Store) {
    absent_things(store);
    put_and_get(store);
    never_overwrites(store);
    limits(store);
    listings(store);
    deletes(store);
    many_at_once(store);
}

fn absent_things(store: &dyn Store) {
    assert_eq!(store.list("segments").unwrap(), [], "a folder that does not exist is empty");
    assert_eq!(store.list("").unwrap(), []);
    assert_eq!(store.get("snapferry.json", 10).unwrap_err().kind, StoreErrorKind::NotFound);
    assert_eq!(store.size("manifests/none.age").unwrap_err().kind, StoreErrorKind::NotFound);
    assert_eq!(store.delete("manifests/none.age").unwrap_err().kind, StoreErrorKind::NotFound);
}

fn put_and_get(store: &dyn Store) {
    let large: Vec<u8> = (0..5_000_011u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for (name, bytes) in [
        ("top", &b"x"[..]),
        ("empty", b""),
        ("segments/20260101T000000Z-0123456789abcdef/000/000000000.zst.age", &large),
        ("segments/20260101T000000Z-0123456789abcdef/001/000001000.zst.age", b"second thousand"),
    ] {
        store.put(name, bytes).unwrap();
        assert_eq!(store.size(name).unwrap(), bytes.len() as u64, "{name}");
        assert_eq!(store.get(name, bytes.len() as u64).unwrap(), bytes, "{name}");
    }
}

fn never_overwrites(store: &dyn Store) {
    assert_eq!(store.put("top", b"other").unwrap_err().kind, StoreErrorKind::Exists);
    assert_eq!(store.put("empty", b"other").unwrap_err().kind, StoreErrorKind::Exists);
    assert_eq!(store.get("top", 10).unwrap(), b"x");
    assert_eq!(store.get("empty", 10).unwrap(), b"");
}

fn limits(store: &dyn Store) {
    store.put("ten", b"0123456789").unwrap();
    assert_eq!(store.get("ten", 9).unwrap_err().kind, StoreErrorKind::TooLarge);
    assert_eq!(store.get("ten", 0).unwrap_err().kind, StoreErrorKind::TooLarge);
    assert_eq!(store.get("ten", u64::MAX).unwrap(), b"0123456789");
}

fn listings(store: &dyn Store) {
    for n in 0..150 {
        store.put(&format!("keys/slot-{n:03}.age"), &vec![7; n]).unwrap();
    }
    let listed = store.list("keys").unwrap();
    assert_eq!(listed.len(), 150);
    assert!(listed.iter().enumerate().all(|(n, o)| o.name == format!("keys/slot-{n:03}.age") && o.size == n as u64));
    assert_eq!(store.list("key").unwrap(), [], "a prefix is a folder, not the beginning of a name");
    assert_eq!(store.list("segments").unwrap().len(), 2, "listings reach every depth");
    assert_eq!(store.list("").unwrap().len(), 150 + 2 + 3);
    assert!(!store.list("").unwrap().iter().any(|o| o.name.ends_with(".part")), "nothing unfinished is left or shown");
}

fn deletes(store: &dyn Store) {
    store.delete("keys/slot-000.age").unwrap();
    assert_eq!(store.list("keys").unwrap().len(), 149);
    assert_eq!(store.get("keys/slot-000.age", 9).unwrap_err().kind, StoreErrorKind::NotFound);
    store.put("keys/slot-000.age", b"again").unwrap();
    assert_eq!(store.get("keys/slot-000.age", 9).unwrap(), b"again");
}

fn many_at_once(store: &dyn Store) {
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            scope.spawn(move || {
                for n in 0..10u8 {
                    let name = format!("manifests/{thread}-{n}.age");
                    store.put(&name, &vec![thread ^ n; 100_000]).unwrap();
                    assert_eq!(store.get(&name, 100_000).unwrap(), vec![thread ^ n; 100_000]);
                }
            });
        }
    });
    let winners: usize = std::thread::scope(|scope| {
        let racers: Vec<_> = (0..4u8).map(|n| scope.spawn(move || store.put("race", &[n; 9]).is_ok())).collect();
        racers.into_iter().map(|racer| usize::from(racer.join().unwrap())).sum()
    });
    assert_eq!(winners, 1, "of several puts of one name just one may succeed");
    assert_eq!(store.list("manifests").unwrap().len(), 40);
}
