//! The signed records of what was removed on purpose.

use std::collections::HashMap;

use age::Identity;
use anyhow::{Context as _, Result};

use super::catalogue::{Backup, Reader, is_of_the_object};
use super::init::now;
use super::new_id;
use super::repository::Repository;
use crate::format::keys::WriterKey;
use crate::format::manifest::Hash;
use crate::format::names::{self, BackupId};
use crate::format::removal::{MAX_REMOVED, MAX_SEALED_REMOVAL, Removal, Removed};
use crate::format::signature::MAX_SIGNATURE;
use crate::format::{FORMAT, age_file};
use crate::pipeline::ordered::ordered_map;
use crate::store::{Store, StoreError, StoreErrorKind};

/// What the records of a repository say.
#[derive(Clone, Debug, Default)]
pub struct Removals {
    /// The backups that were removed, each with the hash of its sealed manifest.
    pub removed: HashMap<BackupId, Hash>,
    /// Records that can't be used, and why. They say nothing.
    pub unusable: Vec<(BackupId, String)>,
}

impl Removals {
    /// Fetches, verifies and opens all records.
    pub fn load(repository: &Repository, reader: &Reader) -> Result<Self> {
        let listed = repository.store.list(names::REMOVALS).map_err(|error| repository.store_problem(error))?;
        let ids: Vec<BackupId> = listed.iter().filter_map(|object| names::parse_removal(&object.name)).collect();
        let (store, uuid, reader) = (std::sync::Arc::clone(&repository.store), repository.uuid, reader.clone());
        let load = move |(): &mut (), id: BackupId| {
            let result = load_one(store.as_ref(), &uuid, &reader, &id);
            (id, result)
        };
        let mut removals = Self::default();
        for (id, result) in ordered_map(repository.connections, ids.into_iter(), || (), load) {
            match result {
                Ok(record) => removals.removed.extend(record.removed.into_iter().map(|gone| (gone.id, gone.blake3))),
                // A store that does not answer says nothing of the record.
                Err(error) => match error.downcast::<StoreError>() {
                    Ok(error) if error.kind != StoreErrorKind::NotFound && !is_of_the_object(&error) => {
                        return Err(repository.store_problem(error));
                    }
                    Ok(error) => removals.unusable.push((id, error.to_string())),
                    Err(error) => removals.unusable.push((id, format!("{error:#}"))),
                },
            }
        }
        Ok(removals)
    }

    /// Whether this very backup was removed on purpose.
    pub fn names(&self, id: &BackupId, blake3: Hash) -> bool {
        self.removed.get(id) == Some(&blake3)
    }
}

/// As with manifests: signature, trusted comment, then decryption, then belief.
fn load_one(store: &dyn Store, uuid: &uuid::Uuid, reader: &Reader, id: &BackupId) -> Result<Removal> {
    let signature = store.get(&names::removal_signature(id), MAX_SIGNATURE)?;
    let sealed = store.get(&names::removal(id), MAX_SEALED_REMOVAL)?;
    reader.signer.verify(&sealed, &signature, &Removal::comment(uuid, id))?;
    let identity: &dyn Identity = &reader.identity;
    let record = Removal::from_bytes(&age_file::open(&sealed, &[identity], MAX_SEALED_REMOVAL)?)?;
    if record.repository != *uuid || record.id != *id {
        anyhow::bail!("it is of another repository, or has another name");
    }
    Ok(record)
}

/// Writes down that `backups` are about to be removed, the signature first.
pub fn write(repository: &Repository, writer: &WriterKey, backups: &[&Backup]) -> Result<()> {
    for part in backups.chunks(MAX_REMOVED) {
        let created = now();
        let id = new_id(created)?;
        let removed = part.iter().map(|backup| Removed {
            id: backup.manifest.id.clone(),
            writer: backup.manifest.writer,
            sequence: backup.manifest.sequence,
            blake3: backup.sealed_blake3,
        });
        let record = Removal {
            format: FORMAT,
            repository: repository.uuid,
            id: id.clone(),
            writer: writer.writer,
            created,
            removed: removed.collect(),
        };
        let comment = Removal::comment(&repository.uuid, &id);
        let (sealed, signature) =
            repository.seal(writer, &record.to_bytes()?, &comment, MAX_SEALED_REMOVAL).context("the removal")?;
        let put = |name: &str, bytes: &[u8]| {
            repository.store.put(name, bytes).map_err(|error| repository.store_problem(error))
        };
        put(&names::removal_signature(&id), &signature)?;
        put(&names::removal(&id), &sealed)?;
    }
    Ok(())
}
