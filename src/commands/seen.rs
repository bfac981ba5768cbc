//! What this machine has seen in a repository, so that a host which removes backups or puts an old state back is
//! noticed at the next contact.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::catalogue::Catalogue;
use crate::format::manifest::Hash;
use crate::format::names::BackupId;
use crate::profile::replace_private;

/// A backup that was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenBackup {
    /// Who wrote it.
    pub writer: Uuid,
    /// Its place in the writer's history.
    pub sequence: u64,
    /// Of the sealed manifest.
    pub blake3: Hash,
}

/// The memory of one repository, and what the listing of today says against it.
#[derive(Debug, Default)]
pub struct Seen {
    path: PathBuf,
    backups: BTreeMap<BackupId, SeenBackup>,
    signer: Option<String>,
}

#[derive(Default, Serialize, Deserialize)]
struct SeenFile {
    #[serde(default)]
    signer: Option<String>,
    #[serde(default)]
    backups: BTreeMap<BackupId, SeenBackup>,
}

impl Seen {
    /// Reads the memory in the state folder `state`; an absent one is empty.
    pub fn load(state: &Path) -> Result<Self> {
        let path = state.join("seen.json");
        let file: SeenFile = match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .with_context(|| format!("{} can't be read; if it is damaged, remove it", path.display()))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => SeenFile::default(),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        Ok(Self { path, backups: file.backups, signer: file.signer })
    }

    /// The signer that was taken on first use, when the repository was opened by URL.
    pub fn signer(&self) -> Option<&str> {
        self.signer.as_deref()
    }

    /// Remembers such a signer.
    pub fn trust_signer(&mut self, signer: &str) -> Result<()> {
        self.signer = Some(signer.to_owned());
        self.save()
    }

    /// Backups that were there and are not, or whose manifest is another one now.
    pub fn missed(&self, catalogue: &Catalogue) -> Vec<(BackupId, SeenBackup)> {
        let still_there = |id: &BackupId, seen: &SeenBackup| {
            catalogue.backups.iter().any(|backup| backup.manifest.id == *id && backup.sealed_blake3 == seen.blake3)
                || catalogue.damaged.iter().any(|damaged| damaged.id == *id)
                || catalogue.removals.names(id, seen.blake3)
        };
        self.backups.iter().filter(|(id, seen)| !still_there(id, seen)).map(|(id, seen)| (id.clone(), *seen)).collect()
    }

    /// Whether it was there once.
    pub fn knows(&self, id: &BackupId) -> bool {
        self.backups.contains_key(id)
    }

    /// The newest that was seen of a writer, there or not: a new backup comes behind it.
    pub fn newest_of(&self, writer: &Uuid) -> Option<SeenBackup> {
        self.backups.values().filter(|seen| seen.writer == *writer).max_by_key(|seen| seen.sequence).copied()
    }

    /// Adds what is there now; forgets nothing.
    pub fn remember(&mut self, catalogue: &Catalogue) -> Result<()> {
        let before = self.backups.len();
        for backup in &catalogue.backups {
            self.backups.entry(backup.manifest.id.clone()).or_insert(backup.seen());
        }
        if self.backups.len() == before { Ok(()) } else { self.save() }
    }

    /// Adds one backup.
    pub fn add(&mut self, id: BackupId, seen: SeenBackup) -> Result<()> {
        self.backups.insert(id, seen);
        self.save()
    }

    /// Forgets backups that were removed on purpose, but not the newest of a writer: the next one comes behind it.
    pub fn forget<'i>(&mut self, removed: impl Iterator<Item = &'i BackupId>) -> Result<()> {
        for id in removed {
            let newest = self.backups.get(id).and_then(|seen| self.newest_of(&seen.writer));
            if self.backups.get(id) != newest.as_ref() {
                self.backups.remove(id);
            }
        }
        self.save()
    }

    /// Forgets what is not there any more.
    pub fn accept(&mut self, catalogue: &Catalogue) -> Result<()> {
        self.backups = catalogue.backups.iter().map(|backup| (backup.manifest.id.clone(), backup.seen())).collect();
        self.save()
    }

    fn save(&self) -> Result<()> {
        let file = SeenFile { signer: self.signer.clone(), backups: self.backups.clone() };
        replace_private(&self.path, &serde_json::to_vec_pretty(&file)?)
    }
}
