//! What is known of a stream that proved whole.

use super::record::{FLAG_CLONE, feature};

/// A whole stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamSummary {
    /// One for each BEGIN…END, in order. A package's own header counts as one.
    pub substreams: Vec<Substream>,
    /// Whether the stream is a package, made by `-R`, `-I` or `-p`.
    pub package: bool,
    /// GUID of the snapshot that the stream leads to. For a package: that its top dataset is led to; `None` if the package
    /// does not end that dataset at the snapshot that it is named for.
    pub guid: Option<u64>,
    /// GUID of the snapshot or bookmark that the stream (for a package: that of its top dataset) starts from; `None` for a
    /// full stream. If [`clone`](Self::clone) is set, this is the snapshot that the dataset is a clone of.
    pub base_guid: Option<u64>,
    /// `pool/dataset@snapshot` of the first BEGIN, bounded by BEGIN's 256 bytes for it. What is not UTF-8, and control
    /// characters, are replaced by U+FFFD.
    pub toname: String,
    /// Whether any part goes on where an interrupted receive stopped.
    pub resuming: bool,
    /// Whether any part carries encrypted blocks as they are.
    pub raw: bool,
    /// Whether any part carries compressed blocks as they are (`-c`).
    pub compressed: bool,
    /// Whether any part may have blocks above 128 KiB.
    pub large_blocks: bool,
    /// Whether any part may have embedded blocks.
    pub embedded: bool,
    /// Whether the stream (for a package: that of its top dataset) is received as a clone of its base.
    pub clone: bool,
    /// Records of every kind, those of a package's own header and end among them.
    pub records: u64,
    /// Bytes in all.
    pub bytes: u64,
}

/// One BEGIN…END.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Substream {
    /// GUID of the snapshot that was sent; 0 for a package's header.
    pub toguid: u64,
    /// GUID of the snapshot or bookmark that it starts from; 0 if it is a full stream.
    pub fromguid: u64,
    /// `pool/dataset@snapshot`, bounded by BEGIN's 256 bytes for it. What is not UTF-8, and control
    /// characters, are replaced by U+FFFD.
    pub toname: String,
    /// Bits of [`feature`].
    pub features: u64,
    /// BEGIN's flags, such as [`FLAG_CLONE`].
    pub flags: u32,
    /// The closing Fletcher-4 checksum.
    pub end_checksum: [u64; 4],
    /// Records, BEGIN and END among them.
    pub records: u64,
    /// Whether this is a package's header, which carries no data of any dataset.
    pub package: bool,
}

impl Substream {
    /// The dataset's name, without the snapshot.
    pub fn dataset(&self) -> &str {
        self.toname.split_once('@').map_or(&self.toname, |(dataset, _)| dataset)
    }
}

impl StreamSummary {
    /// Sums up a whole stream; `substreams` has at least one.
    pub(super) fn new(substreams: Vec<Substream>, records: u64, bytes: u64) -> Self {
        let first = substreams.first();
        let package = first.is_some_and(|first| first.package);
        let toname = first.map(|first| first.toname.clone()).unwrap_or_default();
        let top = first.map(Substream::dataset).unwrap_or_default();
        let of_top = || substreams.iter().filter(|part| !part.package && part.dataset() == top);
        let oldest = of_top().next();
        let any = |bit: u64| substreams.iter().any(|part| part.features & bit != 0);
        Self {
            package,
            guid: of_top().next_back().filter(|newest| newest.toname == toname).map(|newest| newest.toguid),
            base_guid: oldest.map(|oldest| oldest.fromguid).filter(|&guid| guid != 0),
            resuming: any(feature::RESUMING),
            raw: any(feature::RAW),
            compressed: any(feature::COMPRESSED),
            large_blocks: any(feature::LARGE_BLOCKS),
            embedded: any(feature::EMBED_DATA),
            clone: oldest.is_some_and(|oldest| oldest.flags & FLAG_CLONE != 0),
            records,
            bytes,
            toname,
            substreams,
        }
    }
}
