//! The bytes at rest, as `docs/format.md` lays them down: object names, the descriptor, slots, the writer key,
//! signatures and the manifest. Pure: nothing here reads or writes a file, a socket or a clock.

#![warn(missing_docs)]

pub mod age_file;
pub mod descriptor;
pub mod keys;
pub mod manifest;
pub mod names;
pub mod removal;
pub mod signature;

use thiserror::Error;

/// The version of the format that this program writes, and the only one that it reads.
pub const FORMAT: u32 = 1;

/// Why bytes are not what the format says.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum FormatError {
    /// Written by a newer program.
    #[error("it has format version {0}, and this program knows version {FORMAT} only")]
    UnknownVersion(u64),
    /// Not readable as what it should be.
    #[error("{0}")]
    Malformed(String),
    /// Readable, but against a rule.
    #[error("{0}")]
    Inconsistent(String),
    /// None of the given keys opens it.
    #[error("no key here opens it")]
    NoKey,
    /// The sealed bytes were changed or cut.
    #[error("it was changed or damaged: {0}")]
    Damaged(String),
}

/// The compression of manifests and removals; their hashes don't compress, the rest does at any level.
const ZSTD_LEVEL: i32 = 3;

/// zstd-compressed JSON: the plaintext of a sealed object.
fn pack(value: &impl serde::Serialize) -> Result<Vec<u8>, FormatError> {
    let malformed = |error: &dyn std::fmt::Display| FormatError::Malformed(error.to_string());
    let json = serde_json::to_vec(value).map_err(|error| malformed(&error))?;
    zstd::bulk::compress(&json, ZSTD_LEVEL).map_err(|error| malformed(&error))
}

/// Reads what [`pack`] wrote, at most `limit` bytes of JSON. Only for bytes whose signature holds; `what` is for errors.
fn unpack<T: serde::de::DeserializeOwned>(bytes: &[u8], limit: u64, what: &str) -> Result<T, FormatError> {
    let malformed = |error: &dyn std::fmt::Display| FormatError::Malformed(format!("{what} is not readable: {error}"));
    let mut json = Vec::new();
    let decoder = zstd::Decoder::new(bytes).map_err(|error| malformed(&error))?;
    std::io::Read::read_to_end(&mut std::io::Read::take(decoder, limit + 1), &mut json)
        .map_err(|error| malformed(&error))?;
    if json.len() as u64 > limit {
        return Err(FormatError::Malformed(format!("{what} is too large")));
    }
    check_version(&json, what)?;
    serde_json::from_slice(&json).map_err(|error| malformed(&error))
}

/// Reads `format` from a JSON object before anything else is believed of it.
fn check_version(json: &[u8], what: &str) -> Result<(), FormatError> {
    #[derive(serde::Deserialize)]
    struct Peek {
        format: u64,
    }
    let peek: Peek = serde_json::from_slice(json)
        .map_err(|error| FormatError::Malformed(format!("{what} is not readable: {error}")))?;
    if peek.format == u64::from(FORMAT) { Ok(()) } else { Err(FormatError::UnknownVersion(peek.format)) }
}
