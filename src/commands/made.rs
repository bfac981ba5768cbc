//! What this machine put into a repository beside backups: slots, and RESCUE.txt. Nothing signs them, so only the
//! machine that wrote them can tell whether they are still what they were.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::catalogue::is_of_the_object;
use super::repository::Repository;
use crate::format::manifest::Hash;
use crate::format::names;
use crate::profile::replace_private;
use crate::store::StoreErrorKind;

/// The memory of one repository.
#[derive(Debug)]
pub struct Made {
    path: PathBuf,
    objects: BTreeMap<String, MadeObject>,
}

#[derive(Debug, Serialize, Deserialize)]
struct MadeObject {
    bytes: u64,
    blake3: Hash,
    /// For whom, of a slot. Recipients are public, and a slot itself does not tell whose it is.
    #[serde(rename = "for", default, skip_serializing_if = "Option::is_none")]
    whose: Option<String>,
}

impl Made {
    /// Reads the memory in the state folder `state`; an absent one is empty.
    pub fn load(state: &Path) -> Result<Self> {
        let path = state.join("made.json");
        let objects = match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .with_context(|| format!("{} can't be read; if it is damaged, remove it", path.display()))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        Ok(Self { path, objects })
    }

    /// Adds an object that was just stored.
    pub fn add(&mut self, object: String, bytes: &[u8], whose: Option<String>) -> Result<()> {
        self.objects.insert(object, MadeObject { bytes: bytes.len() as u64, blake3: Hash::of(bytes), whose });
        self.save()
    }

    /// Forgets an object that was removed on purpose.
    pub fn forget(&mut self, object: &str) -> Result<()> {
        if self.objects.remove(object).is_some() { self.save() } else { Ok(()) }
    }

    /// For whom a slot was made here.
    pub fn whose(&self, slot: &str) -> Option<&str> {
        self.objects.get(&names::slot(slot))?.whose.as_deref()
    }

    /// Of an object as it was stored here.
    pub fn blake3_of(&self, object: &str) -> Option<Hash> {
        self.objects.get(object).map(|made| made.blake3)
    }

    /// Whether `sealed` is what was stored here as that slot.
    pub fn is_slot(&self, slot: &str, sealed: &[u8]) -> bool {
        self.objects.get(&names::slot(slot)).is_some_and(|made| made.blake3 == Hash::of(sealed))
    }

    /// Objects that are not there any more, or not as they were stored, each with what is wrong.
    pub fn compare(&self, repository: &Repository) -> Result<Vec<(String, String)>> {
        let mut wrong = Vec::new();
        for (object, made) in &self.objects {
            match repository.store.get(object, made.bytes) {
                Ok(bytes) if Hash::of(&bytes) == made.blake3 => {}
                Err(error) if error.kind == StoreErrorKind::NotFound => {
                    wrong.push((object, "it is missing".to_owned()))
                }
                Err(error) if !is_of_the_object(&error) => return Err(repository.store_problem(error)),
                Ok(_) | Err(_) => wrong.push((object, "it is not what this machine put there".to_owned())),
            }
        }
        Ok(wrong.into_iter().map(|(object, what)| (object.clone(), what)).collect())
    }

    /// Takes it as right that these are gone or others.
    pub fn accept(&mut self, wrong: &[(String, String)]) -> Result<()> {
        wrong.iter().for_each(|(object, _)| drop(self.objects.remove(object)));
        self.save()
    }

    fn save(&self) -> Result<()> {
        replace_private(&self.path, &serde_json::to_vec_pretty(&self.objects)?)
    }
}
