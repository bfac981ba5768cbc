//! A signed record of backups that were removed on purpose: what tells a machine that remembers them that nobody took
//! them away. It is written before the first object of them is deleted.

use std::io::Read;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::manifest::Hash;
use super::names::BackupId;
use super::{FORMAT, FormatError, check_version};

/// No sealed record is larger (bytes).
pub const MAX_SEALED_REMOVAL: u64 = 16 * 1024 * 1024;
/// Backups in one record; more of them make several.
pub const MAX_REMOVED: usize = 20_000;
/// No record is larger, unpacked (bytes).
const MAX_JSON: u64 = 64 * 1024 * 1024;
const ZSTD_LEVEL: i32 = 3;

/// The record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removal {
    /// [`FORMAT`].
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
        let malformed = |error: &dyn std::fmt::Display| FormatError::Malformed(error.to_string());
        let json = serde_json::to_vec(self).map_err(|error| malformed(&error))?;
        zstd::bulk::compress(&json, ZSTD_LEVEL).map_err(|error| malformed(&error))
    }

    /// Reads what [`Self::to_bytes`] wrote. Only for bytes whose signature holds.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FormatError> {
        let malformed =
            |error: &dyn std::fmt::Display| FormatError::Malformed(format!("the removal is not readable: {error}"));
        let mut json = Vec::new();
        let decoder = zstd::Decoder::new(bytes).map_err(|error| malformed(&error))?;
        decoder.take(MAX_JSON + 1).read_to_end(&mut json).map_err(|error| malformed(&error))?;
        if json.len() as u64 > MAX_JSON {
            return Err(FormatError::Malformed("the removal is too large".into()));
        }
        check_version(&json, "the removal")?;
        let removal: Self = serde_json::from_slice(&json).map_err(|error| malformed(&error))?;
        if removal.format == FORMAT { Ok(removal) } else { Err(FormatError::UnknownVersion(u64::from(removal.format))) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
