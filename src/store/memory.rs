//! Objects in memory: for tests.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{ObjectInfo, Store, StoreError, StoreErrorKind};

/// A store that forgets everything when it is dropped.
#[derive(Debug, Default)]
pub struct MemoryStore {
    objects: Mutex<BTreeMap<String, Vec<u8>>>,
}

impl MemoryStore {
    fn objects(&self) -> MutexGuard<'_, BTreeMap<String, Vec<u8>>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn not_found(operation: &'static str, name: &str) -> StoreError {
    StoreError::new(StoreErrorKind::NotFound, operation, name, "no such object")
}

impl Store for MemoryStore {
    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let mut objects = self.objects();
        if objects.contains_key(name) {
            return Err(StoreError::new(StoreErrorKind::Exists, "store", name, "it exists already"));
        }
        objects.insert(name.to_owned(), bytes.to_vec());
        Ok(())
    }

    fn get(&self, name: &str, limit: u64) -> Result<Vec<u8>, StoreError> {
        let objects = self.objects();
        let bytes = objects.get(name).ok_or_else(|| not_found("read", name))?;
        if bytes.len() as u64 > limit {
            return Err(StoreError::too_large(name, bytes.len() as u64, limit));
        }
        Ok(bytes.clone())
    }

    fn size(&self, name: &str) -> Result<u64, StoreError> {
        self.objects().get(name).map(|bytes| bytes.len() as u64).ok_or_else(|| not_found("read", name))
    }

    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        let below =
            |name: &str| prefix.is_empty() || name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'));
        Ok(self
            .objects()
            .iter()
            .filter(|(name, _)| below(name))
            .map(|(name, bytes)| ObjectInfo { name: name.clone(), size: bytes.len() as u64 })
            .collect())
    }

    fn delete(&self, name: &str) -> Result<(), StoreError> {
        self.objects().remove(name).map(drop).ok_or_else(|| not_found("delete", name))
    }
}
