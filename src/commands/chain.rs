//! Which backups belong together: a pure look at a catalogue.

use std::collections::HashSet;

use anyhow::Result;

use super::catalogue::{Backup, Catalogue};
use crate::error::{Exit, Problem};
use crate::format::manifest::{Guid, Source};
use crate::format::names::BackupId;

/// The chain that ends at a backup, the full backup first. `Err` is the GUID of the first base that is missing.
pub fn resolve<'c>(catalogue: &'c Catalogue, last: &'c Backup) -> Result<Vec<&'c Backup>, Guid> {
    let mut trail = vec![last];
    extend(catalogue, &mut trail, &mut HashSet::new())?;
    trail.reverse();
    Ok(trail)
}

/// Whether a snapshot is kept so that it can be restored.
pub fn is_kept(catalogue: &Catalogue, guid: u64) -> bool {
    catalogue.of_guid(Guid(guid)).any(|backup| resolve(catalogue, backup).is_ok())
}

/// The backups that a restore of the snapshot would need, itself included; none where it is not kept.
pub fn ids(catalogue: &Catalogue, guid: Guid) -> Vec<BackupId> {
    let chain = catalogue.of_guid(guid).rev().find_map(|backup| resolve(catalogue, backup).ok());
    chain.unwrap_or_default().iter().map(|backup| backup.manifest.id.clone()).collect()
}

/// Walks down from the last of `trail` to a full backup. Among several backups of a base the newest whose own
/// chain is complete is taken; `dead` are those that led nowhere.
fn extend<'c>(
    catalogue: &'c Catalogue,
    trail: &mut Vec<&'c Backup>,
    dead: &mut HashSet<&'c BackupId>,
) -> Result<(), Guid> {
    let Some((last, base)) = trail.last().and_then(|backup| Some((*backup, backup.manifest.base_guid()?))) else {
        return Ok(());
    };
    let is_base = |backup: &&Backup| can_start(backup) && is_raw(backup) == is_raw(last);
    let depth = trail.len();
    for candidate in catalogue.of_guid(base).rev().filter(is_base) {
        // GUIDs are the writer's word: a circle would never end.
        let id = &candidate.manifest.id;
        if dead.contains(id) || trail.iter().any(|backup| backup.manifest.id == *id) {
            continue;
        }
        trail.push(candidate);
        if extend(catalogue, trail, dead).is_ok() {
            return Ok(());
        }
        trail.truncate(depth);
        dead.insert(id);
    }
    Err(base)
}

/// A stream made by `zfs send -t` goes on with a receive that was interrupted elsewhere; no chain stands on it.
fn can_start(backup: &Backup) -> bool {
    !backup.manifest.zfs_stream.as_ref().is_some_and(|stream| stream.resuming)
}

/// Whether ZFS's own encryption is still on the stream. `zfs receive` puts no raw increment on a decrypted snapshot of
/// the same GUID, nor the other way round.
fn is_raw(backup: &Backup) -> bool {
    // DMU_BACKUP_FEATURE_RAW, a feature bit of BEGIN records.
    const RAW: u64 = 1 << 24;
    match (&backup.manifest.source, &backup.manifest.zfs_stream) {
        (Source::Zfs(zfs), _) => zfs.raw,
        (_, Some(stream)) => stream.substreams.iter().any(|substream| substream.features.0 & RAW != 0),
        (_, None) => false,
    }
}

/// The backup that a person means by an id, `dataset@snapshot`, `dataset` or a stream's name: the newest where
/// there are several, and one with a complete chain before one without.
pub fn find<'c>(catalogue: &'c Catalogue, wanted: &str) -> Result<&'c Backup> {
    let matching = matching(catalogue, wanted);
    let newest = matching.iter().rev().find(|backup| resolve(catalogue, backup).is_ok()).or(matching.last());
    if let Some(backup) = newest {
        return Ok(backup);
    }
    if let Some(damaged) = catalogue.damaged.iter().find(|damaged| damaged.id.as_str() == wanted) {
        let exit = if damaged.foreign { Exit::NoKey } else { Exit::Failed };
        return Err(Problem::new(exit, format!("the manifest of {wanted} can't be used: {}", damaged.reason)).into());
    }
    if !catalogue.damaged.is_empty() {
        let (count, first) = (catalogue.damaged.len(), &catalogue.damaged[0]);
        let exit = if catalogue.damaged.iter().all(|damaged| damaged.foreign) { Exit::NoKey } else { Exit::Missing };
        let message = format!(
            "no usable backup is called {wanted:?}; {count} manifests can't be used, such as {}: {}",
            first.id, first.reason
        );
        return Err(Problem::new(exit, message).into());
    }
    Err(Problem::new(Exit::Missing, format!("no backup is called {wanted:?}"))
        .hint("snapferry list shows what there is")
        .into())
}

/// All backups that a person may mean, oldest first.
pub fn matching<'c>(catalogue: &'c Catalogue, wanted: &str) -> Vec<&'c Backup> {
    // An id is final, whatever else may be called so.
    if let Some(backup) = catalogue.backups.iter().find(|backup| backup.manifest.id.as_str() == wanted) {
        return vec![backup];
    }
    let mut matching: Vec<&Backup> = catalogue.backups.iter().filter(|backup| is_meant(backup, wanted)).collect();
    // Of one writer's snapshots the transaction group tells which is newest, however they were backed up, and of
    // its backups the sequence; between writers only the time of the backup does.
    let latest = matching.last().map(|backup| backup.manifest.writer);
    matching
        .sort_by_key(|backup| (Some(backup.manifest.writer) == latest, createtxg(backup), backup.manifest.sequence));
    matching
}

fn createtxg(backup: &Backup) -> u64 {
    match &backup.manifest.source {
        Source::Zfs(zfs) => zfs.createtxg,
        Source::Stream { .. } => 0,
    }
}

fn is_meant(backup: &Backup, wanted: &str) -> bool {
    let manifest = &backup.manifest;
    match &manifest.source {
        Source::Zfs(zfs) => zfs.dataset == wanted || manifest.title() == wanted,
        Source::Stream { name, .. } => name == wanted,
    }
}
