//! A signed record of backups that were removed on purpose: what tells a machine that remembers them that nobody took
//! them away. It is written before the first object of them is deleted.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::manifest::Hash;
use super::names::BackupId;
use super::{FormatError, pack, unpack};

/// No sealed record is larger (bytes).
pub const MAX_SEALED_REMOVAL: u64 = 16 * 1024 * 1024;
/// Backups in one record; more of them make several.
pub const MAX_REMOVED: usize = 20_000;
/// No record is larger, unpacked (bytes).
const MAX_JSON: u64 = 64 * 1024 * 1024;

/// The record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removal {
    /// [`super::FORMAT`].
    pub format: u32,
    /// The repository's uuid.
    pub repository: Uuid,
    /// The object's own name; of the same shape as a backup's id.
    pub id: BackupId,
    /// Who wrote it.
    pub writer: Uuid,
    /// When.
    pub created: Timestamp,
    /// What was removed.
    pub removed: Vec<Removed>,
}

/// A backup that was removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed {
    /// Its id.
    pub id: BackupId,
    /// Who wrote it.
    pub writer: Uuid,
    /// Its place in that writer's history.
    pub sequence: u64,
    /// Of its sealed manifest: a record speaks of these very bytes, and of nothing that is put in their place.
    pub blake3: Hash,
}

impl Removal {
    /// The trusted comment of its signature. A manifest's begins with other words: neither passes for the other.
    pub fn comment(repository: &Uuid, id: &BackupId) -> String {
        format!("snapferry-removal:{repository}:{id}")
    }

    /// zstd-compressed JSON: the plaintext of the sealed object.
    pub fn to_bytes(&self) -> Result<Vec<u8>, FormatError> {
        pack(self)
    }

    /// Reads what [`Self::to_bytes`] wrote. Only for bytes whose signature holds.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FormatError> {
        unpack(bytes, MAX_JSON, "the removal")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::FORMAT;

    #[test]
    fn it_comes_back_as_it_was() {
        let id = BackupId::new(Timestamp::UNIX_EPOCH, [1; 8]);
        let removed = vec![Removed { id: id.clone(), writer: Uuid::new_v4(), sequence: 7, blake3: Hash::of(b"x") }];
        let (repository, writer) = (Uuid::new_v4(), Uuid::new_v4());
        let removal = Removal { format: FORMAT, repository, id, writer, created: Timestamp::UNIX_EPOCH, removed };
        let bytes = removal.to_bytes().unwrap();
        assert_eq!(Removal::from_bytes(&bytes).unwrap(), removal);
        assert!(Removal::from_bytes(&bytes[..bytes.len() - 1]).is_err());
        let newer = Removal { format: 2, ..removal }.to_bytes().unwrap();
        assert!(matches!(Removal::from_bytes(&newer), Err(FormatError::UnknownVersion(2))));
    }
}
