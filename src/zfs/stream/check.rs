//! The push parser: takes the stream in pieces of any size, and keeps one record header and a few numbers.

use super::error::{CutPoint, Place, StreamError};
use super::fletcher::Fletcher4;
use super::identify::{identify, looks_like_zfs};
use super::record::{ByteOrder, END_LEN, MAGIC_END, PayloadFault, RECORD_LEN, Record, RecordKind, feature};
use super::summary::{StreamSummary, Substream};

/// The most BEGIN…END that are kept count of. A package has one for each snapshot that it holds. Each takes 96 bytes of
/// memory and its name: some 40 MiB in all for names as they are, 220 MiB for the worst that a hostile stream can do.
pub const MAX_SUBSTREAMS: usize = 1 << 18;

/// Where in the stream's grammar the next record stands.
///
/// A stream is a *dataset* (BEGIN, records, END) or a *package*: a BEGIN with a list of properties, its END, any number of
/// datasets, and one END of zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Start,
    PackageHeader,
    InPackage,
    InDataset,
    Done,
}

/// Reads a ZFS send stream as it passes, and proves that it is whole.
///
/// Memory is that of one record header, and of the [`Substream`]s so far; payloads are summed in passing and never kept.
#[derive(Debug)]
#[must_use = "a stream is only known to be whole once `finish` says so"]
pub struct StreamCheck {
    phase: Phase,
    order: ByteOrder,
    sum: Fletcher4,
    /// The record that is being collected, `filled` bytes of it. After the end: what wrongly follows.
    header: [u8; RECORD_LEN],
    filled: usize,
    /// The last whole record, and the bytes of its payload that have not come yet.
    place: Place,
    payload_left: u64,
    bytes: u64,
    substreams: Vec<Substream>,
    failure: Option<StreamError>,
}

impl Default for StreamCheck {
    fn default() -> Self {
        Self::new()
    }
}

impl StreamCheck {
    /// A check that has seen nothing yet.
    pub fn new() -> Self {
        Self {
            phase: Phase::Start,
            order: ByteOrder::Little,
            sum: Fletcher4::new(),
            header: [0; RECORD_LEN],
            filled: 0,
            place: Place { record: 0, kind: RecordKind::Begin, offset: 0 },
            payload_left: 0,
            bytes: 0,
            substreams: Vec::new(),
            failure: None,
        }
    }

    /// Takes the next bytes, split anywhere.
    ///
    /// # Errors
    ///
    /// The first thing that is wrong with the stream. It is final: every later call gives the same error again.
    pub fn update(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        self.take(bytes).inspect_err(|failure| self.failure = Some(failure.clone()))
    }

    /// The end of the stream: everything that was opened is closed, and nothing follows.
    ///
    /// # Errors
    ///
    /// The error of an earlier [`update`](Self::update), or what is missing.
    pub fn finish(self) -> Result<StreamSummary, StreamError> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        match (self.phase, self.filled) {
            (Phase::Done, 0) => Ok(StreamSummary::new(self.substreams, self.place.record, self.bytes)),
            (Phase::Done, extra) => Err(StreamError::TrailingBytes { offset: self.bytes - extra as u64 }),
            (Phase::Start, 0) => Err(StreamError::Empty),
            (Phase::Start, _) if !self.may_be_zfs() => Err(self.not_zfs()),
            _ => Err(StreamError::Truncated { bytes: self.bytes, within: self.cut_point() }),
        }
    }

    fn take(&mut self, mut bytes: &[u8]) -> Result<(), StreamError> {
        while !bytes.is_empty() {
            if self.payload_left > 0 {
                let now = bytes.len().min(usize::try_from(self.payload_left).unwrap_or(usize::MAX));
                let (payload, rest) = bytes.split_at(now);
                self.sum.update(self.order, payload);
                self.payload_left -= now as u64;
                self.bytes += now as u64;
                bytes = rest;
                continue;
            }
            let wanted = if self.phase == Phase::Done { MAGIC_END } else { RECORD_LEN };
            let now = bytes.len().min(wanted - self.filled);
            let (part, rest) = bytes.split_at(now);
            self.header[self.filled..self.filled + now].copy_from_slice(part);
            self.filled += now;
            self.bytes += now as u64;
            bytes = rest;
            if self.filled == wanted {
                self.whole_header()?;
            }
        }
        Ok(())
    }

    fn whole_header(&mut self) -> Result<(), StreamError> {
        if self.phase == Phase::Done {
            return Err(self.something_follows());
        }
        let header = self.header;
        if self.phase == Phase::Start {
            self.order = ByteOrder::of_begin(&header).ok_or_else(|| self.wrong_start(&header))?;
        }
        let record = Record { bytes: &header, order: self.order };
        self.filled = 0;
        self.place =
            Place { record: self.place.record + 1, kind: record.kind(), offset: self.bytes - RECORD_LEN as u64 };
        self.record(record)
    }

    /// Takes one record to the place in the grammar where it stands.
    fn record(&mut self, record: Record<'_>) -> Result<(), StreamError> {
        let place = self.place;
        match (self.phase, place.kind) {
            (Phase::InDataset, RecordKind::Begin) => Err(match ByteOrder::of_begin(record.bytes) {
                Some(_) => StreamError::BeginInsideSubstream { place },
                // Its number is zero, and so are the bytes of many a file: not a BEGIN, but what lost bytes left behind.
                None => StreamError::BadChecksum { place },
            }),
            (Phase::InDataset, RecordKind::End) => self.dataset_end(record),
            (Phase::InDataset, _) => self.data_record(record),
            (Phase::Start | Phase::InPackage, RecordKind::Begin) => self.begin(record),
            (Phase::PackageHeader, RecordKind::End) => self.package_header_end(record),
            (Phase::InPackage, RecordKind::End) => self.package_end(record),
            (_, RecordKind::Other(_)) => Err(StreamError::UnknownRecord { place }),
            _ => Err(StreamError::OutsideSubstream { place }),
        }
    }

    fn begin(&mut self, record: Record<'_>) -> Result<(), StreamError> {
        let package = self.begins_package(record)?;
        let features = self.known_features(record)?;
        let opened = Substream {
            toguid: record.begin_toguid(),
            fromguid: record.fromguid(),
            toname: record.toname(),
            features,
            flags: record.flags(),
            end_checksum: [0; 4],
            records: 1,
            package,
        };
        self.check_chain(&opened)?;
        self.payload_left = self.payload_len(record, features)?;
        self.sum = Fletcher4::new();
        self.sum.update(self.order, record.bytes);
        self.open(opened)?;
        self.phase = if package { Phase::PackageHeader } else { Phase::InDataset };
        Ok(())
    }

    /// Whether a BEGIN that may stand here opens a package, and not a dataset.
    fn begins_package(&self, record: Record<'_>) -> Result<bool, StreamError> {
        let place = self.place;
        match ByteOrder::of_begin(record.bytes) {
            None => return Err(StreamError::BadMagic { place }),
            Some(order) if order != self.order => return Err(StreamError::ByteOrderChanged { place }),
            Some(_) => {}
        }
        match record.header_type() {
            1 => Ok(false),
            2 if self.phase == Phase::Start => Ok(true),
            2 => Err(StreamError::PackageInsidePackage { place }),
            header_type => Err(StreamError::UnknownHeaderType { place, header_type }),
        }
    }

    fn known_features(&self, record: Record<'_>) -> Result<u64, StreamError> {
        let features = record.features();
        match features & !feature::KNOWN {
            0 => Ok(features),
            unknown => Err(StreamError::UnknownFeatures { place: self.place, features, unknown }),
        }
    }

    fn open(&mut self, opened: Substream) -> Result<(), StreamError> {
        if self.substreams.len() >= MAX_SUBSTREAMS {
            return Err(StreamError::TooManySubstreams { limit: MAX_SUBSTREAMS });
        }
        self.substreams.push(opened);
        Ok(())
    }

    /// A package brings a dataset's snapshots one after another. No checksum goes across them, so that a lost one would
    /// only come to light at `zfs receive`, years later.
    fn check_chain(&self, opened: &Substream) -> Result<(), StreamError> {
        match self.substreams.last() {
            Some(before)
                if !before.package && before.dataset() == opened.dataset() && before.toguid != opened.fromguid =>
            {
                Err(StreamError::BrokenChain {
                    place: self.place,
                    toname: opened.toname.clone(),
                    expected: before.toguid,
                    found: opened.fromguid,
                })
            }
            _ => Ok(()),
        }
    }

    /// Any record inside a dataset, save BEGIN and END.
    fn data_record(&mut self, record: Record<'_>) -> Result<(), StreamError> {
        // The checksum first: bytes that were lost before this record make anything of it, and are the likelier story.
        self.check_sums(record)?;
        if let RecordKind::Other(_) = self.place.kind {
            return Err(StreamError::UnknownRecord { place: self.place });
        }
        let features = self.substreams.last().map_or(0, |open| open.features);
        self.payload_left = self.payload_len(record, features)?;
        self.count_record();
        Ok(())
    }

    fn dataset_end(&mut self, record: Record<'_>) -> Result<(), StreamError> {
        let place = self.place;
        let before = self.sum.sums();
        self.check_sums(record)?;
        if record.closing_sums() != before {
            return Err(StreamError::BadEndChecksum { place });
        }
        let expected = self.substreams.last().map_or(0, |open| open.toguid);
        let found = record.end_toguid();
        if found != expected {
            return Err(StreamError::WrongGuid { place, expected, found });
        }
        self.close(before);
        let package = self.substreams.first().is_some_and(|first| first.package);
        self.phase = if package { Phase::InPackage } else { Phase::Done };
        Ok(())
    }

    /// The END of a package's header is written by the `zfs` command itself, which fills in the closing checksum alone.
    fn package_header_end(&mut self, record: Record<'_>) -> Result<(), StreamError> {
        let place = self.place;
        let before = self.sum.sums();
        if record.closing_sums() != before {
            return Err(StreamError::BadEndChecksum { place });
        }
        if record.has_payload_len() || !record.is_zero_up_to_trailer(40) || !self.trailer_is_zero_or_right(record) {
            return Err(StreamError::NotZero { place });
        }
        self.close(before);
        self.phase = Phase::InPackage;
        Ok(())
    }

    /// The END of a whole package is a bare type in 312 bytes of zeros.
    fn package_end(&mut self, record: Record<'_>) -> Result<(), StreamError> {
        let place = self.place;
        if !record.is_zero_up_to_trailer(4) || !self.trailer_is_zero_or_right(record) {
            return Err(StreamError::EndWithoutBegin { place });
        }
        // `zfs send -R -i @missing` made such packages without a word (openzfs/zfs issue 3894).
        if self.substreams.iter().all(|part| part.package) {
            return Err(StreamError::EmptyPackage { place });
        }
        self.phase = Phase::Done;
        Ok(())
    }

    /// The `zfs` command leaves the checksum of a package's own END records zero. A `zstream` filter fills it in
    /// (openzfs/zfs pull request 18293), going on from the records before, or beginning anew.
    fn trailer_is_zero_or_right(&self, record: Record<'_>) -> bool {
        let (covered, _) = record.split();
        let after = |mut sum: Fletcher4| {
            sum.update(self.order, covered);
            sum.sums()
        };
        [[0; 4], after(self.sum.clone()), after(Fletcher4::new())].contains(&record.trailer())
    }

    /// Goes over a record that ends with a checksum, and compares it.
    ///
    /// `zfs receive` passes over a checksum of zeros. Senders have filled it in since 2015 (illumos issue 5746), so that
    /// here it is damage.
    fn check_sums(&mut self, record: Record<'_>) -> Result<(), StreamError> {
        let place = self.place;
        let (covered, trailer) = record.split();
        self.sum.update(self.order, covered);
        if record.trailer() != self.sum.sums() {
            return Err(match record.trailer() {
                [0, 0, 0, 0] => StreamError::MissingChecksum { place },
                _ => StreamError::BadChecksum { place },
            });
        }
        self.sum.update(self.order, trailer);
        Ok(())
    }

    fn payload_len(&self, record: Record<'_>, features: u64) -> Result<u64, StreamError> {
        let place = self.place;
        record.payload_len(features).map_err(|fault| match fault {
            PayloadFault::TooLong { length, limit } => StreamError::TooLong { place, length, limit },
            PayloadFault::Unaligned { length } => StreamError::Unaligned { place, length },
            PayloadFault::NotAllowed(reason) => StreamError::NotAllowed { place, reason },
        })
    }

    fn count_record(&mut self) {
        if let Some(open) = self.substreams.last_mut() {
            open.records += 1;
        }
    }

    fn close(&mut self, end_checksum: [u64; 4]) {
        self.count_record();
        if let Some(open) = self.substreams.last_mut() {
            open.end_checksum = end_checksum;
        }
    }

    fn something_follows(&self) -> StreamError {
        let offset = self.bytes - self.filled as u64;
        match looks_like_zfs(&self.header[..self.filled]) {
            true => StreamError::SecondStream { offset },
            false => StreamError::TrailingBytes { offset },
        }
    }

    /// Whether the few bytes that came could be the start of a BEGIN record.
    fn may_be_zfs(&self) -> bool {
        let came = &self.header[..self.filled];
        match came.len() {
            // BEGIN's number is zero, in either byte order.
            0..MAGIC_END => came.iter().take(4).all(|&byte| byte == 0),
            _ => looks_like_zfs(came),
        }
    }

    fn wrong_start(&self, header: &[u8; RECORD_LEN]) -> StreamError {
        let is_end = |order| {
            let record = Record { bytes: header, order };
            record.kind() == RecordKind::End && !record.has_payload_len() && record.is_zero_up_to_trailer(END_LEN)
        };
        match is_end(ByteOrder::Little) || is_end(ByteOrder::Big) {
            true => StreamError::EndWithoutBegin { place: Place { record: 1, kind: RecordKind::End, offset: 0 } },
            false => self.not_zfs(),
        }
    }

    fn not_zfs(&self) -> StreamError {
        StreamError::NotZfs { looks_like: identify(&self.header[..self.filled]) }
    }

    fn cut_point(&self) -> CutPoint {
        let record = self.place.record;
        match (self.payload_left, self.filled, self.phase) {
            (0, 0, Phase::InPackage) => CutPoint::InPackage { record },
            (0, 0, _) => CutPoint::AfterRecord { record },
            (0, filled, _) => CutPoint::Header { record: record + 1, missing: (RECORD_LEN - filled) as u64 },
            (missing, _, _) => CutPoint::Payload { place: self.place, missing },
        }
    }
}
