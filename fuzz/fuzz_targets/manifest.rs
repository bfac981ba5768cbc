//! Any bytes as what a repository holds: descriptor, manifest, slot, signature, object names; and as the files that
//! this machine keeps: writer key and journal.
//!
//! The first byte says what the rest is taken for. Nothing may panic, and what is understood survives being written.
//!
//! With only a stable toolchain: `RUSTC_BOOTSTRAP=1 cargo fuzz run -s none manifest CORPUS -- -max_len=4096`.

#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use age::x25519;
use libfuzzer_sys::fuzz_target;
use snapferry::commands::journal::{Earlier, Journal, JournalKey};
use snapferry::format::age_file;
use snapferry::format::descriptor::Descriptor;
use snapferry::format::keys::{SlotContent, WriterKey, parse_recipient};
use snapferry::format::manifest::{Hash, Manifest, SegmentRow};
use snapferry::format::names::{self, BackupId};
use snapferry::format::signature::{Signer, SigningKey};
use snapferry::pipeline::codec::Codec;
use snapferry::store::location::Location;

static SIGNER: LazyLock<Signer> = LazyLock::new(|| SigningKey::generate().unwrap().signer().unwrap());
static IDENTITY: LazyLock<x25519::Identity> = LazyLock::new(x25519::Identity::generate);
static STATE: LazyLock<PathBuf> = LazyLock::new(|| {
    let shared = PathBuf::from("/dev/shm");
    let folder = if shared.is_dir() { shared } else { std::env::temp_dir() };
    let folder = folder.join(format!("snapferry-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("journal")).unwrap();
    folder
});

fuzz_target!(|data: &[u8]| {
    let Some((&what, bytes)) = data.split_first() else { return };
    let text = std::str::from_utf8(bytes).ok();
    match (what % 11, text) {
        (0, _) => descriptor(bytes),
        (1, _) => manifest(&zstd::bulk::compress(bytes, 1).unwrap()),
        (2, _) => manifest(bytes),
        (3, Some(text)) => slot(text),
        (4, _) => assert!(SIGNER.verify(b"manifest", bytes, "snapferry:a:b").is_err()),
        (5, Some(text)) => object_name(text),
        (6, Some(text)) => drop(WriterKey::from_text(text)),
        (7, _) => drop(age_file::open(bytes, &[&*IDENTITY], 1 << 16)),
        (8, Some(text)) => place(text),
        (9, _) => journal(bytes),
        (10, _) => codec(bytes),
        _ => {}
    }
});

fn descriptor(bytes: &[u8]) {
    if let Ok(descriptor) = Descriptor::from_bytes(bytes) {
        assert_eq!(Descriptor::from_bytes(&descriptor.to_bytes()).as_ref(), Ok(&descriptor));
        let _ = parse_recipient(&descriptor.recipient);
    }
}

fn manifest(packed: &[u8]) {
    if let Ok(manifest) = Manifest::from_bytes(packed) {
        let again = Manifest::from_bytes(&manifest.to_bytes().unwrap()).unwrap();
        assert_eq!(again, manifest);
        assert!(manifest.stored_bytes() >= manifest.segments[0].stored_bytes());
        let _ = (manifest.title(), manifest.guid(), manifest.base_guid(), Codec::from_info(&manifest.codec));
    }
}

fn slot(text: &str) {
    if let Ok(slot) = SlotContent::from_text(text) {
        let again = SlotContent::from_text(&slot.to_text()).unwrap();
        assert_eq!((again.repository, again.signer), (slot.repository, slot.signer));
    }
}

fn object_name(text: &str) {
    if let Some(id) = names::parse_manifest(text) {
        assert_eq!(names::manifest(&id), text);
    }
    if let Some(owner) = names::parse_segment_owner(text) {
        assert!(text.starts_with(&names::segments(&owner)));
    }
    if let Some(slot) = names::parse_slot(text) {
        assert_eq!(names::slot(slot), text);
    }
    if let Ok(id) = text.parse::<BackupId>() {
        assert_eq!(id.as_str(), text);
    }
}

fn place(text: &str) {
    if let Ok(location) = text.parse::<Location>() {
        assert_eq!(location.to_string().parse::<Location>().as_ref(), Ok(&location));
    }
}

/// Whatever a crash has left of the journal, one more line is read back.
fn journal(bytes: &[u8]) {
    let key = JournalKey { source: "s".into(), recipient: "r".into(), codec: "c".into(), segment_size: 10 };
    let id = BackupId::new(jiff::Timestamp::UNIX_EPOCH, [1; 8]);
    drop(Journal::begin(&STATE, "slot", &key, id, jiff::Timestamp::UNIX_EPOCH).unwrap());
    let path = std::fs::read_dir(STATE.join("journal")).unwrap().next().unwrap().unwrap().path();
    let mut file = std::fs::read(&path).unwrap();
    file.extend_from_slice(bytes);
    std::fs::write(&path, &file).unwrap();
    let Ok(Earlier::Same(mut first)) = Journal::find(&STATE, "slot", &key) else { panic!("the head is lost") };
    let row = SegmentRow(1, Hash::of(b"a"), 2, Hash::of(b"b"));
    first.record(99, &row).unwrap();
    let Ok(Earlier::Same(again)) = Journal::find(&STATE, "slot", &key) else { panic!("the head is lost") };
    assert_eq!(again.stored.get(&99), Some(&row));
    let mut before = first.stored.clone();
    before.insert(99, row);
    assert_eq!(again.stored, before);
    // And bytes that are no journal at all.
    std::fs::write(&path, bytes).unwrap();
    let _ = Journal::find(&STATE, "slot", &key);
}

/// Never more than was announced.
fn codec(bytes: &[u8]) {
    let Some((&how, stored)) = bytes.split_first() else { return };
    let expected = usize::from(how >> 2) * 100;
    for codec in [Codec::Zstd(3), Codec::Gzip(6), Codec::None] {
        let mut plain = Vec::new();
        let result = codec.worker().unwrap().decompress(stored, expected, &mut plain);
        assert!(result.is_err() || plain.len() == expected);
    }
}
