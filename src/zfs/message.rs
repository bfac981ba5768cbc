//! What `zfs` says when it refuses, and what a person can do about it. Its own words are always shown as well.

/// Why `zfs` refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// This user can't open `/dev/zfs`.
    DeviceClosed,
    /// The kernel module is not loaded.
    NoModule,
    /// The pool waits for a device.
    Suspended,
    /// The destination was written to since its newest snapshot.
    Modified,
    /// The newest snapshot of the destination is not the base of the stream.
    BaseMissing,
    /// The destination has snapshots, and a full stream comes.
    HasSnapshots,
    /// The destination is there already.
    Exists,
    /// An interrupted receive has left its part at the destination.
    PartialState,
    /// No space in the pool.
    NoSpace,
    /// A quota is reached.
    Quota,
    /// The pool is not there.
    NoPool,
    /// What the destination would lie below is not there.
    NoParent,
    /// A key of native encryption is not loaded.
    KeyNotLoaded,
    /// Encrypted onto unencrypted or the other way round.
    Encryption,
    /// The pool or this version lacks a feature.
    Unsupported,
    /// Nothing can be written.
    ReadOnly,
    /// A right is missing.
    Denied,
    /// Clones stand on it.
    Clones,
    /// Something lies below.
    Children,
    /// Somebody else is at it.
    Busy,
    /// The stream is not whole, or not as it was sent.
    BadStream,
}

/// A kind, and what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    /// Why.
    pub kind: Kind,
    /// One line, as for a hint of an error.
    pub text: &'static str,
}

/// Lower-case words of `zfs`, none of which spans two of its lines; the first that fits counts.
const TABLE: &[(&str, Kind, &str)] = &[
    (
        "the zfs utilities must be run as root",
        Kind::DeviceClosed,
        "this user can't open /dev/zfs: run it as root, or give the user the right to open it",
    ),
    ("/dev/zfs and /proc/self/mounts are required", Kind::NoModule, "modprobe zfs loads the kernel module"),
    ("zfs modules", Kind::NoModule, "modprobe zfs loads the kernel module"),
    ("suspended", Kind::Suspended, "the pool waits for a device: zpool status shows which, zpool clear lets it go on"),
    (
        "has been modified",
        Kind::Modified,
        "something was written to the destination since its newest snapshot: zfs rollback to that snapshot, or --force, undoes it",
    ),
    (
        "must destroy them to overwrite it",
        Kind::HasSnapshots,
        "a full stream takes no place where snapshots are: restore to another name",
    ),
    ("must specify -f to overwrite it", Kind::Exists, "restore to another name, or over it with --force"),
    (
        "destination already exists",
        Kind::Exists,
        "another snapshot has this name there: rename it, or restore to another name",
    ),
    (
        "partially-complete state",
        Kind::PartialState,
        "another receive was interrupted there: zfs receive -A gives up what it left",
    ),
    ("out of space", Kind::NoSpace, "the pool is full: make room, or restore into another"),
    ("no space left", Kind::NoSpace, "the pool is full: make room, or restore into another"),
    ("quota exceeded", Kind::Quota, "zfs get -r quota,refquota shows which quota; raise it, or restore elsewhere"),
    (
        "overwrite an unencrypted one with an encrypted one",
        Kind::Encryption,
        "a raw stream and an unencrypted dataset don't go together: restore to a new name",
    ),
    (
        "raw receive on top of",
        Kind::Encryption,
        "a raw stream and an unencrypted dataset don't go together: restore to a new name",
    ),
    ("key must be loaded", Kind::KeyNotLoaded, "zfs load-key loads the key of the encrypted dataset"),
    ("key not loaded", Kind::KeyNotLoaded, "zfs load-key loads the key of the encrypted dataset"),
    (
        "unsupported",
        Kind::Unsupported,
        "this pool or version of ZFS lacks a feature: zpool upgrade lists what it could have",
    ),
    (
        "must be upgraded",
        Kind::Unsupported,
        "this pool lacks a feature of the stream: zpool upgrade gives it those it could have",
    ),
    ("read-only", Kind::ReadOnly, "the pool was imported read-only, or the dataset has readonly=on"),
    (
        "permission denied",
        Kind::Denied,
        "zfs allow -u USER send,snapshot,hold,release,bookmark,destroy,mount,userprop DATASET gives the rights to back up, receive,create,mount those to restore",
    ),
    ("has dependent clones", Kind::Clones, "clones stand on this snapshot: zfs promote one, or destroy them first"),
    ("filesystem has children", Kind::Children, "something lies below it: look with zfs list -r -t all"),
    (
        "busy",
        Kind::Busy,
        "something holds or uses it (zfs holds, another send or receive): try again when that has ended",
    ),
    (
        "most recent snapshot of",
        Kind::BaseMissing,
        "the destination's newest snapshot is not the base of this stream: restore the chain to a new name",
    ),
    (
        "incremental source",
        Kind::BaseMissing,
        "the snapshot that the stream starts from is not there: a full one is needed",
    ),
    (
        "checksum mismatch",
        Kind::BadStream,
        "the stream is cut short or was changed: snapferry check --read-data looks for damage",
    ),
    ("invalid stream", Kind::BadStream, "what came is no ZFS stream, or a damaged one"),
    ("invalid backup stream", Kind::BadStream, "what came is no ZFS stream, or a damaged one"),
    ("failed to read from stream", Kind::BadStream, "the stream ended early"),
];

/// What these words of `zfs` mean; `None` when nobody has written it down yet.
pub fn hint(said: &str) -> Option<Hint> {
    let said = said.to_lowercase();
    if said.contains("unable to restore to destination") {
        return Some(missing_parent(&said));
    }
    if said.contains("receive incremental stream: destination") && said.contains("does not exist") {
        return Some(Hint {
            kind: Kind::BaseMissing,
            text: "an incremental stream needs its base at the destination: restore the whole chain",
        });
    }
    let found = TABLE.iter().find(|(words, _, _)| said.contains(words));
    found.map(|(_, kind, text)| Hint { kind: *kind, text })
}

/// `cannot open 'pool/parent': dataset does not exist`: a name without a slash is a pool.
fn missing_parent(said: &str) -> Hint {
    let name = said.split('\'').nth(1).unwrap_or_default();
    if name.contains('/') {
        Hint { kind: Kind::NoParent, text: "the dataset above the destination is not there: zfs create -p makes it" }
    } else {
        Hint {
            kind: Kind::NoPool,
            text: "no pool has this name here: zpool list shows those there are, zpool import the others",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each file holds what a real command (OpenZFS 2.1.11) printed on standard error; it is named in the list.
    #[test]
    fn every_recorded_message_has_its_kind() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/messages");
        let kinds = [
            ("recverr_modified", Kind::Modified),
            ("recverr_inc_no_base", Kind::BaseMissing),
            ("recverr_inc_dest_missing", Kind::BaseMissing),
            ("recverr_exists", Kind::Exists),
            ("recverr_exists_F", Kind::HasSnapshots),
            ("recverr_nospace", Kind::NoSpace),
            ("recverr_quota", Kind::Quota),
            ("recverr_parent_missing", Kind::NoParent),
            ("recverr_pool_missing", Kind::NoPool),
            ("recverr_garbage", Kind::BadStream),
            ("recverr_empty_stdin", Kind::BadStream),
            ("recverr_bad_flip_mid", Kind::BadStream),
            ("recv_on_partial_without_s", Kind::Exists),
            ("perm_recv", Kind::Denied),
            ("perm_send", Kind::Denied),
            ("perm_destroy", Kind::Denied),
            ("perm_devzfs_600", Kind::DeviceClosed),
            ("destroy_held", Kind::Busy),
            ("destroy_has_clone", Kind::Clones),
            ("destroy_fs_children", Kind::Children),
            ("senderr_key_unloaded", Kind::KeyNotLoaded),
            ("senderr_filesystem_unmounted_arg", Kind::Busy),
        ];
        for (name, kind) in kinds {
            let text = std::fs::read_to_string(folder.join(format!("{name}.txt"))).unwrap();
            let line = crate::zfs::command::harmless(&text);
            assert_eq!(hint(&line).map(|hint| hint.kind), Some(kind), "{name}: {line}");
        }
        assert_eq!(std::fs::read_dir(folder).unwrap().count(), kinds.len(), "a message without a kind");
    }

    #[test]
    fn what_nobody_knows_has_no_hint() {
        assert_eq!(hint(""), None);
        assert_eq!(hint("cannot open 'tank/x': dataset does not exist"), None);
    }
}
