//! `snapferry.json`, the plain descriptor of a repository. Not secret and **not trusted**: a writer compares it
//! with its own profile.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{FORMAT, FormatError, check_version};

/// No descriptor is larger (bytes).
pub const MAX_DESCRIPTOR: u64 = 64 * 1024;

/// What a repository says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Descriptor {
    /// [`FORMAT`].
    pub format: u32,
    /// The repository's uuid.
    pub repository: Uuid,
    /// The recipient of the repository identity, `age1…`.
    pub recipient: String,
    /// When `init` made it.
    pub created: Timestamp,
}

impl Descriptor {
    /// A new repository's descriptor.
    pub fn new(repository: Uuid, recipient: String, created: Timestamp) -> Self {
        Self { format: FORMAT, repository, recipient, created }
    }

    /// As stored.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }

    /// Reads what [`Self::to_bytes`] wrote.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FormatError> {
        check_version(bytes, "the descriptor")?;
        serde_json::from_slice(bytes)
            .map_err(|error| FormatError::Malformed(format!("the descriptor is not readable: {error}")))
    }
}
