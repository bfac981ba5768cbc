//! Full or incremental, and from which base: a pure decision from what the source has and what is kept.
//!
//! Things are the same when their GUIDs are, and older when their createtxg is smaller; names and clocks decide
//! nothing.

use thiserror::Error;

use super::choice::Offer;
use super::names::{BaseName, Snapshot, VersionKind};
use super::output::Version;

/// A backup that is kept, as far as the choice of a base asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptSnapshot {
    /// Its snapshot.
    pub guid: u64,
    /// Flags of `zfs send` for the life of its chain.
    pub flags: Vec<String>,
    /// Everything down to its full backup is kept as well.
    pub complete: bool,
    /// Backups of its chain, itself included.
    pub links: usize,
    /// Bytes of the streams of its chain, its own included.
    pub bytes: u64,
    /// Bytes of the stream of its full backup.
    pub full_bytes: u64,
    /// When the snapshot of that was made, in seconds since 1970.
    pub full_creation: i64,
}

/// How the dataset is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manner<'a> {
    /// ZFS itself encrypts the dataset.
    pub encrypted: bool,
    /// `--send-flags`; `None`: those of the chain, or the default for a new one.
    pub flags: Option<&'a [String]>,
}

impl Manner<'_> {
    /// Flags of a new chain.
    fn new_flags(self) -> Vec<String> {
        self.flags.map_or_else(|| default_flags(self.encrypted), <[String]>::to_vec)
    }

    /// Whether a chain that was sent so can be gone on with. Raw and decrypted streams can't follow one another.
    fn fits(self, flags: &[String]) -> bool {
        let raw = |flags: &[String]| flags.iter().any(|flag| flag == "-w");
        match self.flags {
            None => raw(flags) == self.encrypted,
            Some(asked) => asked.len() == flags.len() && asked.iter().all(|flag| flags.contains(flag)),
        }
    }
}

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Incremental from the newest common snapshot, else full.
    Automatic,
    /// `--full`.
    Full,
    /// `--base`.
    Base(BaseName),
}

/// What `zfs send` will be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendPlan {
    /// The snapshot to send.
    pub snapshot: Snapshot,
    /// Its entry in the listing.
    pub version: Version,
    /// Where an incremental stream starts; `None` for a full one.
    pub base: Option<Version>,
    /// Flags, kept for the life of the chain.
    pub flags: Vec<String>,
}

impl SendPlan {
    /// The arguments after `zfs send`.
    pub fn send_args(&self) -> Vec<String> {
        let mut args = self.flags.clone();
        if let Some(base) = &self.base {
            let mark = if base.kind == VersionKind::Snapshot { '@' } else { '#' };
            args.extend(["-i".to_owned(), format!("{}{mark}{}", self.snapshot.dataset, base.name)]);
        }
        args.push(self.snapshot.to_string());
        args
    }

    /// Whether ZFS's own encryption stays on (`-w`).
    pub fn raw(&self) -> bool {
        self.flags.iter().any(|flag| flag == "-w")
    }
}

/// Why there is nothing to do, or nothing that can be done.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PlanError {
    /// No such snapshot on the source.
    #[error("{0} does not exist")]
    NoSuchSnapshot(String),
    /// No such base on the source.
    #[error("the base {0} does not exist on the source")]
    NoSuchBase(String),
    /// Nothing in the repository to go on from there.
    #[error("no complete backup of the base {0} is kept, so an incremental one from it could not be restored")]
    BaseNotKept(String),
    /// Not older than the snapshot.
    #[error("the base {0} is not older than the snapshot")]
    BaseNotOlder(String),
    /// The chain that it belongs to was sent in another way.
    #[error("the chain of the base {base} was sent with {theirs}, and this dataset needs {ours}")]
    OtherFlags {
        /// The base.
        base: String,
        /// Flags of the chain.
        theirs: String,
        /// Flags that the dataset asks for.
        ours: String,
    },
}

/// Flags of a new chain: `-w` for a natively encrypted dataset, which is never decrypted on the way, else large
/// blocks and compressed blocks as they are on disk. Never `-e` (streams differ from run to run, OpenZFS issue
/// 13778) or `-D` (deduplicated streams are gone from OpenZFS).
pub fn default_flags(encrypted: bool) -> Vec<String> {
    let flags: &[&str] = if encrypted { &["-w"] } else { &["-L", "-c"] };
    flags.iter().map(|flag| (*flag).to_owned()).collect()
}

/// Older bases that are offered beside the newest one: each costs a question to `zfs`.
const OLDER_OFFERS: usize = 6;

/// The ways to send a snapshot (`version`), the usual one first and, unless a base was named, the full one last.
/// `kept` are the backups of the repository, in any order.
pub fn offers(
    version: &Version,
    versions: &[Version],
    kept: &[KeptSnapshot],
    wanted: &Wanted,
    manner: Manner<'_>,
) -> Result<Vec<Offer>, PlanError> {
    let full = Offer {
        base: None,
        flags: manner.new_flags(),
        links: 1,
        below: 0,
        full_bytes: 0,
        full_creation: version.creation,
        bytes: None,
    };
    match wanted {
        Wanted::Full => Ok(vec![full]),
        Wanted::Automatic => {
            let mut offers = common(version, versions, kept, manner);
            offers.push(full);
            Ok(offers)
        }
        Wanted::Base(name) => {
            let (base, kept) = named_base(name, version, versions, kept, manner)?;
            Ok(vec![from(base, kept)])
        }
    }
}

/// The snapshot's entry in the listing.
pub fn find<'v>(snapshot: &Snapshot, versions: &'v [Version]) -> Result<&'v Version, PlanError> {
    versions
        .iter()
        .find(|version| version.kind == VersionKind::Snapshot && version.name == snapshot.name)
        .ok_or_else(|| PlanError::NoSuchSnapshot(snapshot.to_string()))
}

fn from(base: &Version, kept: &KeptSnapshot) -> Offer {
    Offer {
        base: Some(base.clone()),
        flags: kept.flags.clone(),
        links: kept.links + 1,
        below: kept.bytes,
        full_bytes: kept.full_bytes,
        full_creation: kept.full_creation,
        bytes: None,
    }
}

/// The common bases, newest first: the newest, the full backup of its chain, and some between.
fn common(version: &Version, versions: &[Version], kept: &[KeptSnapshot], manner: Manner<'_>) -> Vec<Offer> {
    let usable = |base: &&Version| {
        let backups = kept.iter().filter(|kept| kept.guid == base.guid && kept.complete && manner.fits(&kept.flags));
        backups.min_by_key(|kept| kept.links)
    };
    let older = versions.iter().filter(|base| base.createtxg < version.createtxg);
    let mut found: Vec<(&Version, &KeptSnapshot)> =
        older.filter_map(|base| usable(&base).map(|kept| (base, kept))).collect();
    // A snapshot and its bookmark are equally new: the snapshot is taken, since ZFS can send from it by any flags.
    found.sort_by_key(|(base, _)| std::cmp::Reverse((base.createtxg, base.kind == VersionKind::Snapshot)));
    found.dedup_by_key(|(base, _)| base.guid);
    let Some(((base, newest), rest)) = found.split_first() else { return Vec::new() };
    let mut offers = vec![from(base, newest)];
    let step = rest.len().div_ceil(OLDER_OFFERS).max(1);
    let last = rest.len().saturating_sub(1);
    let spaced =
        rest.iter().enumerate().filter(|(place, (_, kept))| place % step == 0 || *place == last || kept.links == 1);
    offers.extend(spaced.take(OLDER_OFFERS * 2).map(|(_, (base, kept))| from(base, kept)));
    offers
}

fn named_base<'v, 'k>(
    name: &BaseName,
    version: &Version,
    versions: &'v [Version],
    kept: &'k [KeptSnapshot],
    manner: Manner<'_>,
) -> Result<(&'v Version, &'k KeptSnapshot), PlanError> {
    let named = |base: &&Version| base.name == name.name && name.kind.is_none_or(|kind| kind == base.kind);
    let base = versions
        .iter()
        .filter(named)
        .max_by_key(|base| base.kind == VersionKind::Snapshot)
        .ok_or_else(|| PlanError::NoSuchBase(name.name.clone()))?;
    if base.createtxg >= version.createtxg {
        return Err(PlanError::BaseNotOlder(name.name.clone()));
    }
    let mut complete = kept.iter().filter(|kept| kept.guid == base.guid && kept.complete).peekable();
    let Some(first) = complete.peek().copied() else { return Err(PlanError::BaseNotKept(name.name.clone())) };
    match complete.find(|kept| manner.fits(&kept.flags)) {
        Some(kept) => Ok((base, kept)),
        None => Err(PlanError::OtherFlags {
            base: name.name.clone(),
            theirs: first.flags.join(" "),
            ours: manner.new_flags().join(" "),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(kind: VersionKind, name: &str, guid: u64, createtxg: u64) -> Version {
        Version { kind, name: name.into(), guid, createtxg, creation: 0 }
    }

    fn snap(name: &str, guid: u64, createtxg: u64) -> Version {
        version(VersionKind::Snapshot, name, guid, createtxg)
    }

    fn kept(guid: u64, flags: &[&str], complete: bool) -> KeptSnapshot {
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        KeptSnapshot { guid, flags, complete, links: 1, bytes: 1, full_bytes: 1, full_creation: 0 }
    }

    fn plan(
        snapshot: &Snapshot,
        versions: &[Version],
        kept: &[KeptSnapshot],
        wanted: &Wanted,
        manner: Manner<'_>,
    ) -> Result<SendPlan, PlanError> {
        let version = find(snapshot, versions)?;
        let first = offers(version, versions, kept, wanted, manner)?.remove(0);
        Ok(SendPlan { snapshot: snapshot.clone(), version: version.clone(), base: first.base, flags: first.flags })
    }

    fn decide(
        versions: &[Version],
        kept: &[KeptSnapshot],
        wanted: &Wanted,
        encrypted: bool,
    ) -> Result<SendPlan, PlanError> {
        plan(&"tank/data@new".parse().unwrap(), versions, kept, wanted, Manner { encrypted, flags: None })
    }

    fn base(text: &str) -> Wanted {
        Wanted::Base(BaseName::parse(text, &"tank/data".parse().unwrap()).unwrap())
    }

    #[test]
    fn nothing_kept_is_a_full_backup() {
        let plan = decide(&[snap("a", 1, 1), snap("new", 9, 9)], &[], &Wanted::Automatic, false).unwrap();
        assert_eq!(plan.send_args(), ["-L", "-c", "tank/data@new"]);
        let raw = decide(&[snap("new", 9, 9)], &[], &Wanted::Automatic, true).unwrap();
        assert_eq!(raw.send_args(), ["-w", "tank/data@new"]);
        assert!(raw.raw());
    }

    #[test]
    fn the_newest_common_one_is_the_base_by_guid_and_txg() {
        // "b" was renamed and its clock lies; "later" is newer than the snapshot; "same-name" is another snapshot.
        let versions = [
            snap("a", 1, 1),
            snap("b-renamed", 2, 5),
            snap("same-name", 33, 7),
            snap("new", 9, 9),
            snap("later", 4, 12),
        ];
        let kept =
            [kept(1, &["-L", "-c"], true), kept(2, &["-L"], true), kept(3, &["-L"], true), kept(4, &["-L"], true)];
        let plan = decide(&versions, &kept, &Wanted::Automatic, false).unwrap();
        assert_eq!(
            plan.send_args(),
            ["-L", "-i", "tank/data@b-renamed", "tank/data@new"],
            "flags of the chain are kept"
        );
    }

    #[test]
    fn a_bookmark_does_when_the_snapshot_is_gone() {
        let versions = [snap("a", 1, 1), version(VersionKind::Bookmark, "b", 2, 5), snap("new", 9, 9)];
        let kept = [kept(1, &["-L", "-c"], true), kept(2, &["-L", "-c"], true)];
        let plan = decide(&versions, &kept, &Wanted::Automatic, false).unwrap();
        assert_eq!(plan.send_args(), ["-L", "-c", "-i", "tank/data#b", "tank/data@new"]);
    }

    #[test]
    fn broken_chains_and_other_encryption_are_no_base() {
        let versions = [snap("a", 1, 1), snap("b", 2, 5), snap("c", 3, 6), snap("new", 9, 9)];
        let kept = [kept(1, &["-L", "-c"], true), kept(2, &["-L", "-c"], false), kept(3, &["-w"], true)];
        let plan = decide(&versions, &kept, &Wanted::Automatic, false).unwrap();
        assert_eq!(plan.base.unwrap().name, "a");
        assert_eq!(decide(&versions, &kept, &base("@b"), false), Err(PlanError::BaseNotKept("b".into())));
        assert!(matches!(decide(&versions, &kept, &base("@c"), false), Err(PlanError::OtherFlags { .. })));
    }

    #[test]
    fn what_was_asked_for_is_done_or_refused() {
        let versions = [snap("a", 1, 1), snap("b", 2, 5), snap("new", 9, 9), snap("later", 4, 12)];
        let all = [kept(1, &["-L", "-c"], true), kept(2, &["-L", "-c"], true), kept(4, &["-L", "-c"], true)];
        assert_eq!(decide(&versions, &all, &Wanted::Full, false).unwrap().base, None);
        assert_eq!(decide(&versions, &all, &base("@a"), false).unwrap().base.unwrap().name, "a");
        assert_eq!(decide(&versions, &all, &base("a"), false).unwrap().base.unwrap().name, "a");
        assert_eq!(decide(&versions, &all, &base("#a"), false), Err(PlanError::NoSuchBase("a".into())));
        assert_eq!(decide(&versions, &all, &base("@later"), false), Err(PlanError::BaseNotOlder("later".into())));
        assert_eq!(decide(&versions, &all, &base("@new"), false), Err(PlanError::BaseNotOlder("new".into())));
        let missing = plan(
            &"tank/data@gone".parse().unwrap(),
            &versions,
            &all,
            &Wanted::Automatic,
            Manner { encrypted: false, flags: None },
        );
        assert_eq!(missing, Err(PlanError::NoSuchSnapshot("tank/data@gone".into())));
    }

    #[test]
    fn flags_that_change_begin_a_new_chain() {
        let versions = [snap("a", 1, 1), snap("new", 9, 9)];
        let kept = [kept(1, &["-L", "-c"], true)];
        let asked = |flags: &[&str]| {
            let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
            let manner = Manner { encrypted: false, flags: Some(&flags) };
            plan(&"tank/data@new".parse().unwrap(), &versions, &kept, &Wanted::Automatic, manner).unwrap()
        };
        assert_eq!(asked(&["-c", "-L"]).send_args(), ["-L", "-c", "-i", "tank/data@a", "tank/data@new"]);
        assert_eq!(asked(&["-c"]).send_args(), ["-c", "tank/data@new"]);
        assert_eq!(asked(&["-w"]).send_args(), ["-w", "tank/data@new"]);
    }

    #[test]
    fn older_bases_are_offered_up_to_the_full_one() {
        let versions: Vec<Version> =
            (1..=50).map(|n| snap(&format!("s{n}"), n, n)).chain([snap("new", 99, 99)]).collect();
        let kept: Vec<KeptSnapshot> =
            (1..=50).map(|n| KeptSnapshot { links: n as usize, ..kept(n, &["-L", "-c"], true) }).collect();
        let manner = Manner { encrypted: false, flags: None };
        let offered = offers(&versions[50], &versions, &kept, &Wanted::Automatic, manner).unwrap();
        let bases: Vec<&str> = offered.iter().map(|o| o.base.as_ref().map_or("", |base| base.name.as_str())).collect();
        assert_eq!((bases[0], bases[bases.len() - 2], bases[bases.len() - 1]), ("s50", "s1", ""));
        assert!(bases.len() <= 10 && offered[0].links == 51 && offered[bases.len() - 2].links == 2, "{bases:?}");
    }
}
