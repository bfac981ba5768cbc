//! How a stream can fail to be a whole ZFS send stream.

use std::fmt;

use super::identify::StreamKind;
use super::record::RecordKind;

/// Which record, and where it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Counted from 1 over the whole stream.
    pub record: u64,
    pub kind: RecordKind,
    /// Bytes of the stream before the record.
    pub offset: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "record {} ({}) at byte {}", self.record, self.kind, self.offset)
    }
}

/// In what a stream was cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CutPoint {
    /// In the 312 bytes of this record, counted from 1; `missing` bytes of them did not come.
    Header { record: u64, missing: u64 },
    /// In a record's data, of which `missing` bytes did not come.
    Payload { place: Place, missing: u64 },
    /// After this whole record and its data, counted from 1, where another record must follow.
    AfterRecord { record: u64 },
    /// Between two datasets of a package, or before its closing record.
    InPackage { record: u64 },
}

impl fmt::Display for CutPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header { record, missing } => {
                write!(f, "inside the header of record {record}, {missing} bytes short of it")
            }
            Self::Payload { place, missing } => write!(f, "inside the data of {place}, {missing} bytes short of it"),
            Self::AfterRecord { record } => write!(f, "after record {record}, and no END record came"),
            Self::InPackage { record } => {
                write!(f, "after record {record}, and the record that ends the whole package never came")
            }
        }
    }
}

/// Why a stream is not a whole ZFS send stream. Bytes and records are those of the stream as it came.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    #[error("the stream is empty: not a single byte came")]
    Empty,

    #[error("this is not a ZFS send stream: it does not begin with a BEGIN record; it looks like this: {looks_like}")]
    NotZfs { looks_like: StreamKind },

    #[error("the stream is cut: it ends at byte {bytes}, {within}")]
    Truncated { bytes: u64, within: CutPoint },

    #[error(
        "the stream is damaged: the checksum of {place} does not match; that record, or the data just before it, was changed or lost"
    )]
    BadChecksum { place: Place },

    #[error(
        "the stream is damaged: {place} has no checksum: bytes before it were lost, or a ZFS from before 2015 sent it"
    )]
    MissingChecksum { place: Place },

    #[error("the stream is damaged: the closing checksum in {place} does not match what came before it")]
    BadEndChecksum { place: Place },

    #[error("the stream is damaged: {place} has bytes that ZFS never sets there")]
    NotZero { place: Place },

    #[error("the stream is damaged: {place} is to open the next dataset, and does not have the magic number of one")]
    BadMagic { place: Place },

    #[error("the stream changes its byte order in {place}: parts of two different streams are mixed")]
    ByteOrderChanged { place: Place },

    #[error(
        "{place} has the header type {header_type}, where only 1 (dataset) and 2 (package) are known; a newer version of this program may know it"
    )]
    UnknownHeaderType { place: Place, header_type: u64 },

    #[error(
        "{place} asks for stream features that this version does not know (bits {unknown:#x} of {features:#x}); a newer version of this program may know them"
    )]
    UnknownFeatures { place: Place, features: u64, unknown: u64 },

    #[error("{place} is of a kind that this version does not know; a newer version of this program may know it")]
    UnknownRecord { place: Place },

    #[error("{place} says that {length} bytes of data follow, and ZFS allows {limit}")]
    TooLong { place: Place, length: u64, limit: u64 },

    #[error("{place} says that {length} bytes of data follow, and ZFS sends no such odd number")]
    Unaligned { place: Place, length: u64 },

    #[error("{place} does not belong there: {reason}")]
    NotAllowed { place: Place, reason: &'static str },

    #[error("{place} begins a dataset inside another one that has not ended")]
    BeginInsideSubstream { place: Place },

    #[error("{place} begins a package inside a package")]
    PackageInsidePackage { place: Place },

    #[error("{place} ends a package that holds not a single dataset: there is nothing in it to restore")]
    EmptyPackage { place: Place },

    #[error("{place} ends something that never began")]
    EndWithoutBegin { place: Place },

    #[error("{place} stands outside of any dataset's stream")]
    OutsideSubstream { place: Place },

    #[error("{place} ends the stream of snapshot {found:#x}, but {expected:#x} had begun")]
    WrongGuid { place: Place, expected: u64, found: u64 },

    #[error(
        "{place} brings {toname} as a change from snapshot {found:#x}, but the part before it led to {expected:#x}: a part is missing or damaged"
    )]
    BrokenChain { place: Place, toname: String, expected: u64, found: u64 },

    #[error(
        "a second ZFS stream begins at byte {offset}, behind the end of the first; zfs receive would ignore it without a word"
    )]
    SecondStream { offset: u64 },

    #[error(
        "the ZFS stream ends at byte {offset}, and other bytes follow; zfs receive would ignore them without a word"
    )]
    TrailingBytes { offset: u64 },

    #[error("the package holds more than {limit} snapshots, more than this program keeps count of: send it in parts")]
    TooManySubstreams { limit: usize },
}
