//! Any text as what `zfs list`, `zfs get` and `zfs send -nvP` print, and as names that a person types.
//!
//! The first byte says what the rest is taken for. Nothing may panic; names that are accepted print as they were read
//! and can't be taken for an option; and a plan made from a listing is one that `zfs send` can follow.
//!
//! With only a stable toolchain: `RUSTC_BOOTSTRAP=1 cargo fuzz run -s none zfs_output CORPUS -- -max_len=4096`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use snapferry::zfs::names::{BaseName, Dataset, Snapshot};
use snapferry::zfs::output::{estimate, token_guid, value, versions};
use snapferry::zfs::plan::{KeptSnapshot, Manner, Wanted, default_flags, find, offers};

fuzz_target!(|data: &[u8]| {
    let Some((&what, bytes)) = data.split_first() else { return };
    let text = String::from_utf8_lossy(bytes);
    match what % 3 {
        0 => answers(&text),
        1 => names(&text),
        _ => planned(&text, what),
    }
});

fn answers(text: &str) {
    let _ = (estimate(text), token_guid(text));
    if let Some(value) = value(text) {
        assert!(!value.is_empty() && !value.contains('\n'));
    }
}

fn names(text: &str) {
    if let Ok(dataset) = text.parse::<Dataset>() {
        assert_eq!(dataset.to_string(), text);
        is_argument(text);
    }
    if let Ok(snapshot) = text.parse::<Snapshot>() {
        assert_eq!(snapshot.to_string(), text);
        is_argument(text);
    }
    let dataset: Dataset = "tank/data".parse().unwrap();
    if let Ok(base) = BaseName::parse(text, &dataset) {
        assert!(text.ends_with(&base.name) && !base.name.contains(['@', '#', '/']));
    }
}

/// Never taken for an option, never more than one word, never a line of its own.
fn is_argument(text: &str) {
    assert!(!text.starts_with('-') && text.len() < 256);
    assert!(text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' '), "{text:?}");
}

/// Every snapshot of a listing in turn, with every other one kept.
fn planned(text: &str, what: u8) {
    let Ok(found) = versions(text, "tank/data") else { return };
    let encrypted = what & 0x80 != 0;
    let kept: Vec<KeptSnapshot> = found
        .iter()
        .step_by(2)
        .map(|version| KeptSnapshot {
            guid: version.guid,
            flags: default_flags(version.guid % 2 == 0),
            complete: version.guid % 3 != 0,
            links: (version.guid % 200) as usize,
            bytes: version.guid,
            full_bytes: version.guid / 3,
            full_creation: version.creation,
        })
        .collect();
    for version in &found {
        let Ok(snapshot) = format!("tank/data@{}", version.name).parse::<Snapshot>() else { continue };
        let Ok(found_version) = find(&snapshot, &found) else { continue };
        let manner = Manner { encrypted, flags: None };
        let Ok(offers) = offers(found_version, &found, &kept, &Wanted::Automatic, manner) else { continue };
        assert_eq!(found_version.name, snapshot.name);
        assert!(offers.last().is_some_and(|full| full.base.is_none()));
        for offer in &offers {
            assert_eq!(offer.flags.iter().any(|flag| flag == "-w"), encrypted);
            let Some(base) = &offer.base else { continue };
            assert!(base.createtxg < found_version.createtxg);
            assert!(kept.iter().any(|kept| kept.guid == base.guid && kept.complete && kept.flags == offer.flags));
        }
    }
}
