//! The 312-byte record that everything in a send stream is made of, and how many bytes follow each kind of it.
//!
//! Offsets and limits are those of OpenZFS's on-the-wire structure `dmu_replay_record` (`sys/zfs_ioctl.h`), checked against
//! real streams. Numbers are in the sending machine's byte order; names, keys and MACs are plain bytes.

use std::fmt;

/// Bytes of a record without its payload: type, payload length, and a union of 304 bytes.
pub(super) const RECORD_LEN: usize = 312;
/// Where the checksum over "everything before me" lies, in every record but BEGIN.
pub(super) const TRAILER: usize = RECORD_LEN - 32;
/// Bytes of an END record up to what it has no use for.
pub(super) const END_LEN: usize = 48;
/// Bytes from a BEGIN record's first to the end of its magic number: all that is needed to know one.
pub(super) const MAGIC_END: usize = 16;
/// The number at byte 8 of every BEGIN record (`DMU_BACKUP_MAGIC`).
const MAGIC: u64 = 0x2_F5BA_CBAC;
/// The bytes kept for `pool/dataset@snapshot` in BEGIN, with a closing zero (`MAXNAMELEN`).
const NAME_LEN: usize = 256;

/// The largest block that a pool can hold, in bytes (`SPA_MAXBLOCKSIZE`).
pub const MAX_BLOCK: u64 = 16 << 20;
/// The largest bonus buffer, in bytes: a dnode of 16 KiB without its 64-byte head and its one block pointer of 128.
pub const MAX_BONUS: u64 = 16_384 - 64 - 128;
/// The most data that fits in a block pointer, in bytes (`BPE_PAYLOAD_SIZE`).
pub const MAX_EMBEDDED: u64 = 112;
/// The longest list of properties behind a BEGIN that is taken, in bytes. A limit of this program: a replication package
/// has some hundred bytes for each snapshot, so this is room for more than a million of them.
pub const MAX_BEGIN_PAYLOAD: u64 = 256 << 20;

/// Stream features, as in bits 2 and up of BEGIN's version word. The numbers are OpenZFS's `DMU_BACKUP_FEATURE_*`.
pub mod feature {
    /// Deduplicated stream of old versions (`zfs send -D`); today's need `zstream redup` first.
    pub const DEDUP: u64 = 1 << 0;
    /// The same, with the dedup property of old versions.
    pub const DEDUP_PROPS: u64 = 1 << 1;
    /// System attributes may spill into blocks of their own.
    pub const SA_SPILL: u64 = 1 << 2;
    /// Small blocks travel in `WRITE_EMBEDDED` records (`-e`).
    pub const EMBED_DATA: u64 = 1 << 16;
    /// LZ4 is used in what travels compressed.
    pub const LZ4: u64 = 1 << 17;
    /// Blocks above 128 KiB (`-L`).
    pub const LARGE_BLOCKS: u64 = 1 << 19;
    /// Goes on where an interrupted receive stopped (`-t`).
    pub const RESUMING: u64 = 1 << 20;
    /// Redacted (`--redact`).
    pub const REDACTED: u64 = 1 << 21;
    /// Blocks travel as compressed on disk (`-c`).
    pub const COMPRESSED: u64 = 1 << 22;
    /// Dnodes above 512 bytes.
    pub const LARGE_DNODE: u64 = 1 << 23;
    /// Blocks travel encrypted (`-w` on an encrypted dataset).
    pub const RAW: u64 = 1 << 24;
    /// Zstandard is used in what travels compressed.
    pub const ZSTD: u64 = 1 << 25;
    /// A package that carries holds (`-h`).
    pub const HOLDS: u64 = 1 << 26;
    /// Reserved by OpenZFS for a change to `-L` in mid-chain.
    pub const SWITCH_TO_LARGE_BLOCKS: u64 = 1 << 27;
    /// BLAKE3 is used as a block checksum (2.2).
    pub const BLAKE3: u64 = 1 << 28;
    /// The two bits after those, held to be 2.3's `longname` and `large_microzap`. Which is which, and that it is these
    /// two, was not checked against a stream or a header of 2.3.
    pub const LONGNAME_AND_LARGE_MICROZAP: u64 = 1 << 29 | 1 << 30;

    /// All of the above. Any other bit may change what a record means, so it must not be passed over.
    pub const KNOWN: u64 = DEDUP
        | DEDUP_PROPS
        | SA_SPILL
        | EMBED_DATA
        | LZ4
        | LARGE_BLOCKS
        | RESUMING
        | REDACTED
        | COMPRESSED
        | LARGE_DNODE
        | RAW
        | ZSTD
        | HOLDS
        | SWITCH_TO_LARGE_BLOCKS
        | BLAKE3
        | LONGNAME_AND_LARGE_MICROZAP;
}

/// BEGIN's flag for a stream that is received as a clone of its base (`DRR_FLAG_CLONE`).
pub const FLAG_CLONE: u32 = 1 << 0;

/// The byte order of the machine that sent the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByteOrder {
    Little,
    Big,
}

impl ByteOrder {
    /// The order in which these bytes are the start of a BEGIN record; needs [`MAGIC_END`] bytes.
    pub(super) fn of_begin(bytes: &[u8]) -> Option<Self> {
        [Self::Little, Self::Big].into_iter().find(|order| {
            order.u32_at(bytes, 0) == Some(RecordKind::Begin.number()) && order.u64_at(bytes, 8) == Some(MAGIC)
        })
    }

    fn u32_at(self, bytes: &[u8], at: usize) -> Option<u32> {
        let &word = bytes.get(at..)?.first_chunk()?;
        Some(match self {
            Self::Little => u32::from_le_bytes(word),
            Self::Big => u32::from_be_bytes(word),
        })
    }

    fn u64_at(self, bytes: &[u8], at: usize) -> Option<u64> {
        let &word = bytes.get(at..)?.first_chunk()?;
        Some(match self {
            Self::Little => u64::from_le_bytes(word),
            Self::Big => u64::from_be_bytes(word),
        })
    }
}

/// What a record says it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordKind {
    Begin,
    Object,
    FreeObjects,
    Write,
    Free,
    End,
    WriteByRef,
    Spill,
    WriteEmbedded,
    ObjectRange,
    Redact,
    /// A number that OpenZFS up to 2.3 does not use.
    Other(u32),
}

/// Every kind that has a name, at the place of its number.
const KINDS: [(RecordKind, &str); 11] = [
    (RecordKind::Begin, "BEGIN"),
    (RecordKind::Object, "OBJECT"),
    (RecordKind::FreeObjects, "FREEOBJECTS"),
    (RecordKind::Write, "WRITE"),
    (RecordKind::Free, "FREE"),
    (RecordKind::End, "END"),
    (RecordKind::WriteByRef, "WRITE_BYREF"),
    (RecordKind::Spill, "SPILL"),
    (RecordKind::WriteEmbedded, "WRITE_EMBEDDED"),
    (RecordKind::ObjectRange, "OBJECT_RANGE"),
    (RecordKind::Redact, "REDACT"),
];

impl RecordKind {
    fn from_number(number: u32) -> Self {
        KINDS.get(number as usize).map_or(Self::Other(number), |&(kind, _)| kind)
    }

    fn number(self) -> u32 {
        match self {
            Self::Other(number) => number,
            named => KINDS.iter().position(|&(kind, _)| kind == named).unwrap_or_default() as u32,
        }
    }
}

impl fmt::Display for RecordKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match KINDS.iter().find(|(kind, _)| kind == self) {
            Some((_, name)) => f.write_str(name),
            None => write!(f, "type {}", self.number()),
        }
    }
}

/// Why a record's payload can't be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PayloadFault {
    TooLong { length: u64, limit: u64 },
    Unaligned { length: u64 },
    NotAllowed(&'static str),
}

/// A view of one record's 312 bytes.
#[derive(Clone, Copy)]
pub(super) struct Record<'b> {
    pub bytes: &'b [u8; RECORD_LEN],
    pub order: ByteOrder,
}

impl<'b> Record<'b> {
    // Every offset below is a constant inside the record, so the zero of a missing field is never seen.
    fn u32(&self, at: usize) -> u32 {
        self.order.u32_at(self.bytes, at).unwrap_or_default()
    }

    fn u64(&self, at: usize) -> u64 {
        self.order.u64_at(self.bytes, at).unwrap_or_default()
    }

    fn sums(&self, at: usize) -> [u64; 4] {
        [0, 8, 16, 24].map(|step| self.u64(at + step))
    }

    pub fn kind(&self) -> RecordKind {
        RecordKind::from_number(self.u32(0))
    }

    /// The checksum that closes every record but BEGIN.
    pub fn trailer(&self) -> [u64; 4] {
        self.sums(TRAILER)
    }

    /// The part that the trailer covers, and the trailer.
    pub fn split(&self) -> (&'b [u8], &'b [u8]) {
        self.bytes.split_at(TRAILER)
    }

    // BEGIN

    /// What BEGIN opens: 1 a dataset's stream, 2 a package of such streams.
    pub fn header_type(&self) -> u64 {
        self.u64(16) & 3
    }

    /// Everything in the version word above the header type, so that no reserved bit goes unseen.
    pub fn features(&self) -> u64 {
        self.u64(16) >> 2
    }

    pub fn flags(&self) -> u32 {
        self.u32(36)
    }

    pub fn begin_toguid(&self) -> u64 {
        self.u64(40)
    }

    pub fn fromguid(&self) -> u64 {
        self.u64(48)
    }

    /// The snapshot's name. Real ones are plain ASCII; whatever else stands there must not reach a terminal as it is.
    pub fn toname(&self) -> String {
        let field = &self.bytes[RECORD_LEN - NAME_LEN..];
        let name = field.split(|&byte| byte == 0).next().unwrap_or_default();
        let shown = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
        let mut name: String = String::from_utf8_lossy(name).chars().map(shown).collect();
        name.shrink_to_fit();
        name
    }

    // END

    /// The checksum of everything from BEGIN up to this END.
    pub fn closing_sums(&self) -> [u64; 4] {
        self.sums(8)
    }

    pub fn end_toguid(&self) -> u64 {
        self.u64(40)
    }

    pub fn has_payload_len(&self) -> bool {
        self.u32(4) != 0
    }

    /// Whether everything from byte `from` to the trailer is zero.
    pub fn is_zero_up_to_trailer(&self, from: usize) -> bool {
        self.bytes[from..TRAILER].iter().all(|&byte| byte == 0)
    }

    /// The payload's length in bytes, once it is known to be one that this kind of record may have.
    ///
    /// `features` are those of the BEGIN that opened the stream.
    pub fn payload_len(&self, features: u64) -> Result<u64, PayloadFault> {
        let raw = features & feature::RAW != 0;
        let (length, limit) = match self.kind() {
            RecordKind::Begin => (u64::from(self.u32(4)), MAX_BEGIN_PAYLOAD),
            RecordKind::Object => (self.bonus_len(raw)?, MAX_BONUS),
            RecordKind::Write => (self.write_len(), MAX_BLOCK),
            RecordKind::Spill => (self.spill_len(raw)?, MAX_BLOCK),
            RecordKind::WriteEmbedded if raw => return Err(PayloadFault::NotAllowed("it stands in a raw stream")),
            RecordKind::WriteEmbedded => (u64::from(self.u32(52)), MAX_EMBEDDED),
            RecordKind::ObjectRange if !raw => {
                return Err(PayloadFault::NotAllowed("it stands in a stream that is not raw"));
            }
            _ => return Ok(0),
        };
        if length > limit {
            return Err(PayloadFault::TooLong { length, limit });
        }
        match self.kind() {
            // Padded with zeros on the wire.
            RecordKind::Object if self.raw_bonus_len() == 0 => Ok(length.next_multiple_of(8)),
            RecordKind::WriteEmbedded => Ok(length.next_multiple_of(8)),
            // The checksum takes words of four bytes, and what is left over would go unchecked.
            RecordKind::Begin if length.is_multiple_of(4) => Ok(length),
            _ if length.is_multiple_of(8) => Ok(length),
            _ => Err(PayloadFault::Unaligned { length }),
        }
    }

    fn raw_bonus_len(&self) -> u64 {
        u64::from(self.u32(36))
    }

    fn bonus_len(&self, raw: bool) -> Result<u64, PayloadFault> {
        match self.raw_bonus_len() {
            0 => Ok(u64::from(self.u32(28))),
            _ if !raw => Err(PayloadFault::NotAllowed("it has a raw bonus length in a stream that is not raw")),
            length => Ok(length),
        }
    }

    /// The size on disk if the block travels as it is there, else the logical size.
    fn write_len(&self) -> u64 {
        let compression = self.bytes[50];
        if compression != 0 { self.u64(96) } else { self.u64(32) }
    }

    fn spill_len(&self, raw: bool) -> Result<u64, PayloadFault> {
        match self.u64(40) {
            0 if raw => Err(PayloadFault::NotAllowed("it has no size on disk in a raw stream")),
            0 => Ok(self.u64(16)),
            on_disk => Ok(on_disk),
        }
    }
}
