//! What a backup leaves at the source: a hold while it sends, and after the commit a bookmark, from which the next
//! incremental can start even when the snapshot is gone. Neither moves before the commit.

use std::collections::{HashMap, HashSet};

use anyhow::Result;
use uuid::Uuid;

use crate::commands::catalogue::Catalogue;
use crate::commands::{Context, chain, journal, zfs_problem};
use crate::format::manifest::Guid;
use crate::format::names::BackupId;
use crate::zfs::command::{Zfs, ZfsError, ZfsErrorKind};
use crate::zfs::names::{Dataset, Snapshot, VersionKind};
use crate::zfs::output::Hold;

/// Of a chain, beside the full backup and the newest two, each backup at a multiple of this keeps its bookmark: bases
/// for a differential.
const PINNED_LINKS: usize = 10;

/// Whose holds and bookmarks these are, and where.
pub struct Pins<'a> {
    /// For warnings.
    pub context: &'a Context,
    /// Where the snapshots are.
    pub zfs: &'a Zfs,
    /// The repository that they are for.
    pub repository: Uuid,
    /// The machine that backs up.
    pub writer: Uuid,
}

/// A hold of a backup, as its tag tells.
#[derive(Debug, PartialEq, Eq)]
pub struct Tag {
    /// The repository that the backup goes to.
    pub repository: Uuid,
    /// The beginning of the writer's uuid.
    pub writer: String,
    /// The backup.
    pub id: BackupId,
}

fn short(uuid: &Uuid) -> String {
    uuid.simple().to_string()[..8].to_owned()
}

impl Tag {
    /// Reads `snapferry:<repository>:<writer>-<backup id>`.
    pub fn parse(text: &str) -> Option<Self> {
        let (repository, rest) = text.strip_prefix("snapferry:")?.split_once(':')?;
        let (writer, id) = rest.split_once('-')?;
        Some(Self { repository: repository.parse().ok()?, writer: writer.to_owned(), id: id.parse().ok()? })
    }

    /// Whether `writer` made it.
    pub fn is_of(&self, writer: &Uuid) -> bool {
        self.writer == short(writer)
    }
}

/// What the bookmarks for a repository begin with.
pub fn bookmark_prefix(repository: &Uuid) -> String {
    format!("snapferry-{}-", short(repository))
}

impl Pins<'_> {
    fn tag(&self, id: &BackupId) -> String {
        format!("snapferry:{}:{}-{id}", self.repository, short(&self.writer))
    }

    fn bookmark_name(&self, guid: u64) -> String {
        format!("{}{guid}", bookmark_prefix(&self.repository))
    }

    fn warn(&self, what: &str, error: &ZfsError) {
        let right = if error.kind == ZfsErrorKind::Denied { " (`zfs allow` can give that right)" } else { "" };
        self.context.warn(&format!("{what}: {error}{right}"));
    }

    /// Keeps a snapshot from being destroyed while it is sent. Only that it is gone already is an error.
    pub fn hold(&self, snapshot: &Snapshot, id: &BackupId) -> Result<()> {
        match self.zfs.hold(snapshot, &self.tag(id)) {
            Err(error) if error.kind == ZfsErrorKind::NoSuchDataset => Err(zfs_problem(error)),
            Err(error) => {
                self.warn(&format!("{snapshot} is not held while it is sent"), &error);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// After the commit: the bookmark, then the hold, then the bookmarks that nothing needs any more.
    pub fn settle(&self, snapshot: &Snapshot, guid: u64, id: &BackupId, catalogue: &Catalogue) {
        self.bookmark(snapshot, guid);
        if let Err(error) = self.zfs.release(&[snapshot.to_string()], &self.tag(id))
            && error.kind != ZfsErrorKind::Denied
        {
            self.warn(&format!("the hold on {snapshot} could not be released"), &error);
        }
        if let Err(error) = self.thin(&snapshot.dataset, guid, catalogue) {
            self.warn(&format!("old bookmarks of {} could not be removed", snapshot.dataset), &error);
        }
    }

    fn bookmark(&self, snapshot: &Snapshot, guid: u64) {
        if let Err(error) = self.zfs.bookmark(snapshot, &self.bookmark_name(guid)) {
            self.warn(
                &format!("{snapshot} has no bookmark, so the next incremental backup needs the snapshot itself"),
                &error,
            );
        }
    }

    fn thin(&self, dataset: &Dataset, guid: u64, catalogue: &Catalogue) -> Result<(), ZfsError> {
        let needed = needed(catalogue, guid);
        for mark in self.zfs.versions(dataset)? {
            let ours = mark.kind == VersionKind::Bookmark && mark.name == self.bookmark_name(mark.guid);
            // Without the right to destroy they stay, and harm nobody.
            if ours
                && !needed.contains(&mark.guid)
                && let Err(error) = self.zfs.destroy_bookmark(dataset, &mark.name)
                && error.kind != ZfsErrorKind::Denied
            {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Releases the holds of this machine's runs that ended without a word, but not those that can be gone on with. What
    /// such a run had committed gets the bookmark that it did not come to.
    pub fn reap(&self, dataset: &Dataset, state: &std::path::Path, catalogue: &Catalogue) -> Result<(), ZfsError> {
        let claimed = journal::claimed(state);
        let holds = self.zfs.holds(Some(dataset))?;
        let stale: Vec<&Hold> = holds.iter().filter(|hold| self.is_stale(hold, &claimed)).collect();
        if stale.is_empty() {
            return Ok(());
        }
        let versions = self.zfs.versions(dataset)?;
        let guids: HashMap<String, u64> = versions
            .iter()
            .filter(|version| version.kind == VersionKind::Snapshot)
            .map(|version| (format!("{dataset}@{}", version.name), version.guid))
            .collect();
        for hold in stale {
            if let Some(guid) = guids.get(&hold.snapshot)
                && catalogue.of_guid(Guid(*guid)).next().is_some()
                && let Ok(snapshot) = hold.snapshot.parse::<Snapshot>()
            {
                self.bookmark(&snapshot, *guid);
            }
            self.context.note(&format!("releasing a hold on {} that a run left behind", hold.snapshot));
            if let Err(error) = self.zfs.release(std::slice::from_ref(&hold.snapshot), &hold.tag) {
                self.warn(&format!("the hold {} on {} could not be released", hold.tag, hold.snapshot), &error);
            }
        }
        Ok(())
    }

    /// Whether a hold is this machine's, for this repository, and of no backup that could go on.
    pub fn is_stale(&self, hold: &Hold, claimed: &[BackupId]) -> bool {
        Tag::parse(&hold.tag).is_some_and(|tag| {
            tag.repository == self.repository && tag.is_of(&self.writer) && !claimed.contains(&tag.id)
        })
    }
}

/// The snapshots of a chain that further backups may start from.
fn needed(catalogue: &Catalogue, guid: u64) -> HashSet<u64> {
    let newest = catalogue.of_guid(Guid(guid)).rev().find_map(|backup| chain::resolve(catalogue, backup).ok());
    let chain = newest.unwrap_or_default();
    let is_needed = |place: usize| place.is_multiple_of(PINNED_LINKS) || place + 2 >= chain.len();
    let guids = chain.iter().enumerate().filter(|(place, _)| is_needed(*place));
    guids.filter_map(|(_, backup)| backup.manifest.guid()).map(|guid| guid.0).chain([guid]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_tell_whose_they_are() {
        let (repository, writer) = (Uuid::new_v4(), Uuid::new_v4());
        let context_free = format!("snapferry:{repository}:{}-20261130T120000Z-0123456789abcdef", short(&writer));
        let tag = Tag::parse(&context_free).unwrap();
        assert!(tag.repository == repository && tag.is_of(&writer) && !tag.is_of(&Uuid::new_v4()));
        assert_eq!(tag.id.as_str(), "20261130T120000Z-0123456789abcdef");
        for other in ["keep", "snapferry:", "snapferry:x:y-z", &context_free[..context_free.len() - 1], ".send-1-1"] {
            assert_eq!(Tag::parse(other), None, "{other}");
        }
    }
}
