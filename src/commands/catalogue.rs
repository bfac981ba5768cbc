//! The backups of a repository, as their signed manifests tell.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use age::{Identity, x25519};
use anyhow::Result;

use super::removals::Removals;
use super::repository::Repository;
use super::seen::SeenBackup;
use crate::format::manifest::{Guid, Hash, MAX_SEALED_MANIFEST, Manifest};
use crate::format::names::{self, BackupId};
use crate::format::signature::{MAX_SIGNATURE, SignatureError, Signer};
use crate::format::{FormatError, age_file};
use crate::pipeline::ordered::ordered_map;
use crate::store::{Store, StoreError, StoreErrorKind};

/// A backup whose manifest holds.
#[derive(Clone, Debug)]
pub struct Backup {
    /// Its manifest. Its segments may have been dropped to save memory, see [`Rows`].
    pub manifest: Manifest,
    /// BLAKE3 of the sealed manifest.
    pub sealed_blake3: Hash,
    /// Bytes in the repository, segments and manifest.
    pub stored_bytes: u64,
}

impl Backup {
    /// What is remembered of it.
    pub fn seen(&self) -> SeenBackup {
        SeenBackup { writer: self.manifest.writer, sequence: self.manifest.sequence, blake3: self.sealed_blake3 }
    }
}

/// A manifest that is there and can't be used.
#[derive(Clone, Debug)]
pub struct Damaged {
    /// Its backup.
    pub id: BackupId,
    /// Why.
    pub reason: String,
    /// Signed by somebody else than the trusted signer.
    pub foreign: bool,
    /// A part of it is not there.
    pub missing: bool,
}

/// All that is there.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    /// In the order of their beginning.
    pub backups: Vec<Backup>,
    /// Never used, always reported.
    pub damaged: Vec<Damaged>,
    /// What was removed on purpose.
    pub removals: Removals,
    /// Places in `backups`, oldest first.
    by_guid: HashMap<Guid, Vec<usize>>,
}

/// Whether the rows of segments are kept in memory: 80 bytes each, up to 200,000 a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Dropped.
    Drop,
    /// Kept.
    Keep,
}

/// What reads manifests: the catalogue identity of a writer, or the repository identity.
#[derive(Clone)]
pub struct Reader {
    /// Opens them.
    pub identity: x25519::Identity,
    /// Signed them.
    pub signer: Signer,
}

impl Catalogue {
    /// Fetches, verifies and opens all manifests.
    pub fn load(repository: &Repository, reader: &Reader, rows: Rows) -> Result<Self> {
        let listed = repository.store.list(names::MANIFESTS).map_err(|error| repository.store_problem(error))?;
        // Sorted by id, which begins with the time.
        let ids: BTreeSet<BackupId> = listed.iter().filter_map(|object| names::parse_manifest(&object.name)).collect();
        let (store, uuid, of_manifests) = (Arc::clone(&repository.store), repository.uuid, reader.clone());
        let loaded = ordered_map(
            repository.connections,
            ids.into_iter(),
            || (),
            move |(), id: BackupId| {
                let result = load_one(store.as_ref(), &uuid, &of_manifests, &id);
                (id, result)
            },
        );
        let mut catalogue = Self::default();
        for (id, result) in loaded {
            match result {
                Ok(mut backup) => {
                    if rows == Rows::Drop {
                        backup.manifest.segments = Vec::new();
                    }
                    catalogue.backups.push(backup);
                }
                Err(LoadError::Store(error)) if error.kind == StoreErrorKind::NotFound => {
                    let reason = format!(
                        "its {} is missing",
                        if error.name.ends_with(".minisig") { "signature" } else { "manifest" }
                    );
                    catalogue.damaged.push(Damaged { id, reason, foreign: false, missing: true });
                }
                // One object that can't be read must not keep all others from being used.
                Err(LoadError::Store(error)) if is_of_the_object(&error) => {
                    catalogue.damaged.push(Damaged { id, reason: error.message, foreign: false, missing: false });
                }
                Err(LoadError::Store(error)) => return Err(repository.store_problem(error)),
                Err(LoadError::Signature(error)) => {
                    let foreign = !matches!(error, SignatureError::Malformed | SignatureError::Mismatch);
                    catalogue.damaged.push(Damaged { id, reason: error.to_string(), foreign, missing: false });
                }
                Err(LoadError::Format(error)) => {
                    catalogue.damaged.push(Damaged { id, reason: error.to_string(), foreign: false, missing: false });
                }
            }
        }
        catalogue.put_in_order();
        // Later than the manifests: one that another machine removed meanwhile is not damaged.
        catalogue.removals = Removals::load(repository, reader)?;
        let removed = &catalogue.removals.removed;
        catalogue.damaged.retain(|damaged| !(damaged.missing && removed.contains_key(&damaged.id)));
        Ok(catalogue)
    }

    /// As it would be with these backups alone.
    pub fn of(backups: Vec<Backup>) -> Self {
        let mut catalogue = Self { backups, ..Self::default() };
        catalogue.put_in_order();
        catalogue
    }

    fn put_in_order(&mut self) {
        self.backups.sort_by_key(|backup| (backup.manifest.started, backup.manifest.sequence));
        self.by_guid.clear();
        for (place, backup) in self.backups.iter().enumerate() {
            if let Some(guid) = backup.manifest.guid() {
                self.by_guid.entry(guid).or_default().push(place);
            }
        }
    }

    /// Adds a backup that was made since; its segments are dropped.
    pub fn add(&mut self, mut backup: Backup) {
        backup.manifest.segments = Vec::new();
        self.backups.push(backup);
        self.put_in_order();
    }

    /// The backups of a snapshot, oldest first.
    pub fn of_guid(&self, guid: Guid) -> impl DoubleEndedIterator<Item = &Backup> {
        self.by_guid.get(&guid).into_iter().flatten().filter_map(|place| self.backups.get(*place))
    }
}

/// Whether a failure to read may be that of this one object, such as a bad place on a disk, and not of the store.
pub fn is_of_the_object(error: &StoreError) -> bool {
    matches!(error.kind, StoreErrorKind::TooLarge | StoreErrorKind::Denied | StoreErrorKind::Broken)
}

enum LoadError {
    Store(StoreError),
    Signature(SignatureError),
    Format(FormatError),
}

/// The order of these steps is the format's: signature, trusted comment, then decryption, then belief.
fn load_one(store: &dyn Store, uuid: &uuid::Uuid, reader: &Reader, id: &BackupId) -> Result<Backup, LoadError> {
    let signature = store.get(&names::signature(id), MAX_SIGNATURE).map_err(LoadError::Store)?;
    let sealed = store.get(&names::manifest(id), MAX_SEALED_MANIFEST).map_err(LoadError::Store)?;
    reader.signer.verify(&sealed, &signature, &Manifest::comment(uuid, id)).map_err(LoadError::Signature)?;
    let identity: &dyn Identity = &reader.identity;
    let plain = age_file::open(&sealed, &[identity], MAX_SEALED_MANIFEST).map_err(LoadError::Format)?;
    let manifest = Manifest::from_bytes(&plain).map_err(LoadError::Format)?;
    if manifest.repository != *uuid || manifest.id != *id {
        let what = "the manifest is of another backup or repository".to_owned();
        return Err(LoadError::Format(FormatError::Inconsistent(what)));
    }
    let stored_bytes = manifest.stored_bytes() + sealed.len() as u64;
    Ok(Backup { sealed_blake3: Hash::of(&sealed), stored_bytes, manifest })
}

/// The whole of one backup that was listed before: its rows, and that it is still the same.
pub fn reload(repository: &Repository, reader: &Reader, backup: &Backup) -> Result<Backup> {
    let id = &backup.manifest.id;
    match load_one(repository.store.as_ref(), &repository.uuid, reader, id) {
        Ok(again) if again.sealed_blake3 == backup.sealed_blake3 => Ok(again),
        Ok(_) => Err(anyhow::anyhow!("the manifest of {id} was changed while it was read")),
        Err(LoadError::Store(error)) => Err(repository.store_problem(error)),
        Err(LoadError::Signature(error)) => {
            Err(anyhow::anyhow!("the manifest of {id} was changed while it was read: {error}"))
        }
        Err(LoadError::Format(error)) => {
            Err(anyhow::anyhow!("the manifest of {id} was changed while it was read: {error}"))
        }
    }
}
