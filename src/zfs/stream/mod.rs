//! Reads a ZFS send stream as it passes, and proves that it is whole.
//!
//! `zfs receive` takes a stream that has bytes behind its end, and ignores a second stream behind the first; `zstream dump`
//! ends with status 0 on a stream that is cut. A backup is worth what it can be restored to, so the stream is read here, by
//! [`StreamCheck`], when it is made: the checksum of every record and the closing one, every payload's length, each BEGIN's
//! END, and that nothing follows.
//!
//! What the records mean is left to `zfs receive`: that the objects make sense, that blocks decompress, that a base exists.
//!
//! | file | holds |
//! | --- | --- |
//! | `check` | the push parser |
//! | `record` | the layout of a record, and the limits of its payload |
//! | `fletcher` | the checksum |
//! | `summary` | what is known of a stream that proved whole |
//! | `error` | how a stream can fail |
//! | `identify` | what bytes look like that need not be ZFS |

mod check;
mod error;
mod fletcher;
mod identify;
mod record;
mod summary;

pub use check::{MAX_SUBSTREAMS, StreamCheck};
pub use error::{CutPoint, Place, StreamError};
pub use fletcher::Fletcher4;
pub use identify::{StreamKind, identify, looks_like_zfs};
pub use record::{ByteOrder, FLAG_CLONE, MAX_BEGIN_PAYLOAD, MAX_BLOCK, MAX_BONUS, MAX_EMBEDDED, RecordKind, feature};
pub use summary::{StreamSummary, Substream};
