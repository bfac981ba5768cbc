//! The manifest: the sealed and signed description of a backup, and its commit.

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

use super::names::BackupId;
use super::{FORMAT, FormatError, age_file, pack, unpack};

/// No backup has more segments: their rows must fit into a manifest. At 16 MiB each that is a stream of 30 TiB, and
/// larger ones get larger segments when their size is known beforehand.
pub const MAX_ROWS: usize = 2_000_000;
/// No sealed manifest is larger (bytes): [`MAX_ROWS`] need about 180 MB.
pub const MAX_SEALED_MANIFEST: u64 = 256 * 1024 * 1024;
/// No manifest's JSON is larger (bytes).
const MAX_JSON: u64 = 1024 * 1024 * 1024;
/// No segment is larger (bytes of stream).
pub const MAX_SEGMENT_SIZE: u64 = 1 << 30;

/// A BLAKE3 hash, lower-case hex in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hash(pub blake3::Hash);

impl Hash {
    /// The hash of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(blake3::hash(bytes))
    }
}

impl Serialize for Hash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.to_hex().as_str())
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        blake3::Hash::from_hex(text.as_bytes()).map(Hash).map_err(serde::de::Error::custom)
    }
}

/// A ZFS GUID: a decimal string in JSON, whose numbers are not 64-bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Guid(pub u64);

impl std::fmt::Display for Guid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for Guid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Guid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map(Guid).map_err(serde::de::Error::custom)
    }
}

/// What was backed up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Source {
    /// A snapshot, sent by a `zfs send` that this program started.
    Zfs(ZfsSource),
    /// Bytes from standard input.
    Stream {
        /// The name that it is found by.
        name: String,
        /// Reserved for the command that made it.
        command: Option<String>,
        /// What the bytes look like, a keyword such as `zfs` or `btrfs`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        looks_like: Option<String>,
    },
}

/// A snapshot and how it was sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZfsSource {
    /// `tank/data`.
    pub dataset: String,
    /// `monday`, without the `@`.
    pub snapshot: String,
    /// The snapshot's GUID.
    pub guid: Guid,
    /// The transaction group that made it; orders snapshots of one pool.
    pub createtxg: u64,
    /// Seconds since 1970.
    pub creation: i64,
    /// What an incremental stream starts from; `None` for a full one.
    pub base: Option<ZfsBase>,
    /// Flags of `zfs send`, kept for the life of the chain.
    pub flags: Vec<String>,
    /// Sent raw (`-w`): still encrypted by ZFS itself.
    pub raw: bool,
    /// Sent with all datasets below (`-R`).
    pub recursive: bool,
}

/// Where an incremental stream starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZfsBase {
    /// `snapshot` or `bookmark`.
    pub kind: BaseKind,
    /// Without the dataset and its mark.
    pub name: String,
    /// The same for a snapshot and its bookmarks.
    pub guid: Guid,
}

/// What kind of thing a base is on the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BaseKind {
    /// `dataset@name`.
    Snapshot,
    /// `dataset#name`.
    Bookmark,
}

/// What the ZFS stream itself says, as read in passing. `guid` and `base_guid` are those of the whole (a
/// package ends at the last snapshot of its top dataset).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZfsStream {
    /// The snapshot that a receiver ends at.
    pub guid: Option<Guid>,
    /// The snapshot that a receiver must have; `None` for a full stream.
    pub base_guid: Option<Guid>,
    /// `dataset@snapshot` in the first BEGIN record.
    pub toname: String,
    /// Made by `-R`, `-I` or `-p`.
    pub package: bool,
    /// Made by `send -t`: goes on where another receive stopped, and can't start one.
    pub resuming: bool,
    /// One entry for each BEGIN … END.
    pub substreams: Vec<Substream>,
}

/// One BEGIN … END.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Substream {
    /// The snapshot it makes.
    pub toguid: Guid,
    /// The snapshot it starts from, 0 if none.
    pub fromguid: Guid,
    /// Feature bits of the BEGIN record.
    pub features: Guid,
    /// The closing checksum: four 64-bit words, hex.
    pub end_checksum: String,
    /// Records, BEGIN and END included.
    pub records: u64,
}

/// How segments are compressed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodecInfo {
    /// `zstd`, `gzip`, `none`.
    pub name: String,
    /// Codec's own scale; `None` where it has none.
    pub level: Option<i32>,
}

/// The whole stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamInfo {
    /// Its length.
    pub bytes: u64,
    /// Its hash.
    pub blake3: Hash,
}

/// One segment: `[stream bytes, stream BLAKE3, stored bytes, stored BLAKE3]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentRow(pub u64, pub Hash, pub u64, pub Hash);

impl SegmentRow {
    /// Bytes of stream.
    pub fn bytes(&self) -> u64 {
        self.0
    }
    /// Hash of that run of the stream.
    pub fn blake3(&self) -> Hash {
        self.1
    }
    /// Bytes of the object.
    pub fn stored_bytes(&self) -> u64 {
        self.2
    }
    /// Hash of the object.
    pub fn stored_blake3(&self) -> Hash {
        self.3
    }
}

/// The description of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: u32,
    /// The repository's uuid.
    pub repository: Uuid,
    /// The object's own name.
    pub id: BackupId,
    /// Who wrote it.
    pub writer: Uuid,
    /// 1, 2, 3 … for each writer.
    pub sequence: u64,
    /// BLAKE3 of the writer's previous sealed manifest.
    pub previous: Option<Hash>,
    /// Name of the backing-up host.
    pub host: String,
    /// Program and version.
    pub tool: String,
    /// When the backup began.
    pub started: Timestamp,
    /// When the last segment was stored.
    pub finished: Timestamp,
    /// What was backed up.
    pub source: Source,
    /// Present when the stream is a ZFS one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zfs_stream: Option<ZfsStream>,
    /// How segments are compressed.
    pub codec: CodecInfo,
    /// Bytes of stream in every segment but the last.
    pub segment_size: u64,
    /// The whole stream.
    pub stream: StreamInfo,
    /// In order.
    pub segments: Vec<SegmentRow>,
}

impl Manifest {
    /// The trusted comment of its signature.
    pub fn comment(repository: &Uuid, id: &BackupId) -> String {
        format!("snapferry:{repository}:{id}")
    }

    /// Bytes in the repository, without the manifest itself.
    pub fn stored_bytes(&self) -> u64 {
        self.segments.iter().map(SegmentRow::stored_bytes).sum()
    }

    /// The snapshot that a receiver of this backup ends at.
    pub fn guid(&self) -> Option<Guid> {
        match &self.source {
            Source::Zfs(zfs) => Some(zfs.guid),
            Source::Stream { .. } => self.zfs_stream.as_ref().and_then(|stream| stream.guid),
        }
    }

    /// The snapshot that a receiver must have before.
    pub fn base_guid(&self) -> Option<Guid> {
        match &self.source {
            Source::Zfs(zfs) => zfs.base.as_ref().map(|base| base.guid),
            Source::Stream { .. } => self.zfs_stream.as_ref().and_then(|stream| stream.base_guid),
        }
    }

    /// What a person calls it: `dataset@snapshot`, or the stream's name.
    pub fn title(&self) -> String {
        match &self.source {
            Source::Zfs(zfs) => format!("{}@{}", zfs.dataset, zfs.snapshot),
            Source::Stream { name, .. } => name.clone(),
        }
    }

    /// zstd-compressed JSON: the plaintext of the sealed object.
    pub fn to_bytes(&self) -> Result<Vec<u8>, FormatError> {
        pack(self)
    }

    /// Reads what [`Self::to_bytes`] wrote. Only for bytes whose signature holds.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FormatError> {
        let manifest: Self = unpack(bytes, MAX_JSON, "the manifest")?;
        manifest.validate()?;
        Ok(manifest)
    }

    /// That its numbers agree with one another.
    pub fn validate(&self) -> Result<(), FormatError> {
        let wrong = |what: String| Err(FormatError::Inconsistent(format!("the manifest contradicts itself: {what}")));
        if self.format != FORMAT {
            return Err(FormatError::UnknownVersion(u64::from(self.format)));
        }
        if self.segment_size == 0 || self.segment_size > MAX_SEGMENT_SIZE {
            return wrong(format!("a segment size of {} bytes", self.segment_size));
        }
        if self.segments.is_empty() || self.segments.len() > MAX_ROWS {
            return wrong(format!("{} segments", self.segments.len()));
        }
        let last = self.segments.len() - 1;
        for (number, row) in self.segments.iter().enumerate() {
            let fits = if number == last { row.bytes() <= self.segment_size } else { row.bytes() == self.segment_size };
            if !fits || row.bytes() == 0 {
                return wrong(format!("segment {number} has {} bytes", row.bytes()));
            }
            // Codecs add a little to what they can't compress; nothing doubles it.
            if row.stored_bytes() > age_file::max_sealed_len(row.bytes() * 2) {
                return wrong(format!("segment {number} is stored in {} bytes", row.stored_bytes()));
            }
        }
        let sum: u64 = self.segments.iter().map(SegmentRow::bytes).sum();
        if sum != self.stream.bytes {
            return wrong(format!("segments of {sum} bytes for a stream of {}", self.stream.bytes));
        }
        Ok(())
    }
}
