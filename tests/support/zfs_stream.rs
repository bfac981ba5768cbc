//! Makes ZFS send streams: from nothing, or from a real one in the other byte order.
//!
//! Independent of the program's own reader: the checksum is the plain definition, and the fields are listed anew.

// Each test and bench uses another part of this.
#![allow(dead_code)]

use snapferry::zfs::stream::ByteOrder;

pub const RECORD: usize = 312;
pub const TRAILER: usize = 280;
pub const BEGIN: u32 = 0;
pub const OBJECT: u32 = 1;
pub const FREEOBJECTS: u32 = 2;
pub const WRITE: u32 = 3;
pub const FREE: u32 = 4;
pub const END: u32 = 5;
pub const WRITE_BYREF: u32 = 6;
pub const SPILL: u32 = 7;
pub const WRITE_EMBEDDED: u32 = 8;
pub const OBJECT_RANGE: u32 = 9;
pub const REDACT: u32 = 10;

/// Fletcher-4 as it is defined, one word after another. Takes whole words.
#[derive(Clone, Copy, Default)]
pub struct PlainSum(pub [u64; 4]);

impl PlainSum {
    pub fn add(&mut self, order: ByteOrder, bytes: &[u8]) {
        assert_eq!(bytes.len() % 4, 0);
        let [mut a, mut b, mut c, mut d] = self.0;
        for word in bytes.as_chunks::<4>().0 {
            let word = match order {
                ByteOrder::Little => u32::from_le_bytes(*word),
                ByteOrder::Big => u32::from_be_bytes(*word),
            };
            a = a.wrapping_add(u64::from(word));
            b = b.wrapping_add(a);
            c = c.wrapping_add(b);
            d = d.wrapping_add(c);
        }
        self.0 = [a, b, c, d];
    }
}

/// One record's 312 bytes, written field by field.
#[derive(Clone)]
pub struct Header {
    pub order: ByteOrder,
    pub bytes: [u8; RECORD],
}

impl Header {
    pub fn new(order: ByteOrder, kind: u32) -> Self {
        Self { order, bytes: [0; RECORD] }.u32(0, kind)
    }

    pub fn u8(mut self, at: usize, value: u8) -> Self {
        self.bytes[at] = value;
        self
    }

    pub fn u32(mut self, at: usize, value: u32) -> Self {
        let bytes = match self.order {
            ByteOrder::Little => value.to_le_bytes(),
            ByteOrder::Big => value.to_be_bytes(),
        };
        self.bytes[at..at + 4].copy_from_slice(&bytes);
        self
    }

    pub fn u64(mut self, at: usize, value: u64) -> Self {
        let bytes = match self.order {
            ByteOrder::Little => value.to_le_bytes(),
            ByteOrder::Big => value.to_be_bytes(),
        };
        self.bytes[at..at + 8].copy_from_slice(&bytes);
        self
    }

    pub fn sums(self, at: usize, sums: [u64; 4]) -> Self {
        (0..4).fold(self, |header, i| header.u64(at + 8 * i, sums[i]))
    }
}

/// A BEGIN record, to be changed before it is written.
pub fn begin(order: ByteOrder, header_type: u64, features: u64, guids: [u64; 2], toname: &str) -> Header {
    let [fromguid, toguid] = guids;
    let mut header = Header::new(order, BEGIN)
        .u64(8, 0x2_F5BA_CBAC)
        .u64(16, features << 2 | header_type)
        .u32(32, 2)
        .u32(36, 0xc)
        .u64(40, toguid)
        .u64(48, fromguid);
    header.bytes[56..56 + toname.len()].copy_from_slice(toname.as_bytes());
    header
}

/// A WRITE record for `length` bytes of data.
pub fn write(order: ByteOrder, length: u64) -> Header {
    Header::new(order, WRITE).u64(8, 7).u32(16, 19).u64(32, length)
}

/// Writes a stream, and fills in the checksums.
pub struct Writer {
    pub order: ByteOrder,
    pub bytes: Vec<u8>,
    sum: PlainSum,
}

impl Writer {
    pub fn new(order: ByteOrder) -> Self {
        Self { order, bytes: Vec::new(), sum: PlainSum::default() }
    }

    /// The checksum of everything since BEGIN.
    pub fn sums(&self) -> [u64; 4] {
        self.sum.0
    }

    pub fn begin(mut self, header: Header, payload: &[u8]) -> Self {
        self.sum = PlainSum::default();
        self.sum.add(self.order, &header.bytes);
        self.sum.add(self.order, payload);
        self.bytes.extend(header.bytes);
        self.bytes.extend(payload);
        self
    }

    pub fn record(mut self, header: Header, payload: &[u8]) -> Self {
        self.sum.add(self.order, &header.bytes[..TRAILER]);
        let header = header.sums(TRAILER, self.sum.0);
        self.sum.add(self.order, &header.bytes[TRAILER..]);
        self.sum.add(self.order, payload);
        self.bytes.extend(header.bytes);
        self.bytes.extend(payload);
        self
    }

    pub fn end(self, toguid: u64) -> Self {
        let header = Header::new(self.order, END).sums(8, self.sum.0).u64(40, toguid);
        self.record(header, &[])
    }

    /// The END of a package's header, which has no checksum of its own.
    pub fn package_header_end(mut self) -> Self {
        self.bytes.extend(Header::new(self.order, END).sums(8, self.sum.0).bytes);
        self
    }

    pub fn package_end(mut self) -> Self {
        self.bytes.extend(Header::new(self.order, END).bytes);
        self
    }
}

/// A full stream of `blocks` writes of `block` bytes each, with content that is not all the same.
pub fn of_writes(order: ByteOrder, block: usize, blocks: usize) -> Vec<u8> {
    let data: Vec<u8> = (0..block as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let mut writer = Writer::new(order);
    writer.bytes.reserve((block + RECORD) * (blocks + 2));
    writer = writer.begin(begin(order, 1, 4, [0, 99], "tank/bench@now"), &[]);
    for number in 0..blocks {
        writer = writer.record(write(order, block as u64).u64(24, (number * block) as u64), &data);
    }
    writer.end(99).bytes
}

/// The same stream as a machine of the other byte order would send it. `stream` must be whole and little-endian.
///
/// Payloads stay as they are: their content has its own byte order, which the stream's check never looks at.
pub fn swap(stream: &[u8]) -> Vec<u8> {
    let mut swapped = Writer::new(ByteOrder::Big);
    let mut rest = stream;
    while !rest.is_empty() {
        let (header, after) = rest.split_at(RECORD);
        let kind = le32(header, 0);
        let length = payload_len(header);
        let (payload, after) = after.split_at(length);
        rest = after;
        let out = swap_header(header, kind);
        let has_trailer = header[TRAILER..] != [0; RECORD - TRAILER];
        swapped = match kind {
            BEGIN => swapped.begin(out, payload),
            END if has_trailer => swapped.end(le64(header, 40)),
            END if header[4..] == [0; RECORD - 4] => swapped.package_end(),
            END => swapped.package_header_end(),
            _ => swapped.record(out, payload),
        };
    }
    swapped.bytes
}

/// The widths of a record's fields in order, from byte 8 on; a negative one is bytes that have no order.
fn widths(kind: u32) -> &'static [isize] {
    match kind {
        BEGIN => &[8, 8, 8, 4, 4, 8, 8],
        OBJECT => &[8, 4, 4, 4, 4, -4, 4, 8, -8, 8],
        FREEOBJECTS => &[8, 8, 8],
        WRITE => &[8, 4, 4, 8, 8, 8, -8, 8, 8, 8, 8, 8, 8],
        FREE | REDACT => &[8, 8, 8, 8],
        END => &[8, 8, 8, 8, 8],
        WRITE_BYREF => &[8, 8, 8, 8, 8, 8, 8, -8, 8, 8, 8, 8, 8],
        SPILL => &[8, 8, 8, -8, 8, -36, 4],
        WRITE_EMBEDDED => &[8, 8, 8, 8, -8, 4, 4],
        OBJECT_RANGE => &[8, 8, 8],
        _ => panic!("a kind that ZFS does not have: {kind}"),
    }
}

fn swap_header(header: &[u8], kind: u32) -> Header {
    let mut out = Header { order: ByteOrder::Big, bytes: header.try_into().unwrap() };
    let mut at = 0;
    for &width in [4, 4].iter().chain(widths(kind)) {
        let end = at + width.unsigned_abs();
        if width > 0 {
            out.bytes[at..end].reverse();
        }
        at = end;
    }
    if kind != BEGIN {
        out.bytes[TRAILER..].fill(0);
    }
    out
}

fn payload_len(header: &[u8]) -> usize {
    let length = match le32(header, 0) {
        BEGIN => u64::from(le32(header, 4)),
        OBJECT if le32(header, 36) != 0 => u64::from(le32(header, 36)),
        OBJECT => u64::from(le32(header, 28).next_multiple_of(8)),
        WRITE if header[50] != 0 => le64(header, 96),
        WRITE => le64(header, 32),
        SPILL if le64(header, 40) != 0 => le64(header, 40),
        SPILL => le64(header, 16),
        WRITE_EMBEDDED => u64::from(le32(header, 52).next_multiple_of(8)),
        _ => 0,
    };
    length as usize
}

/// Where each record of a whole little-endian stream begins.
pub fn record_offsets(stream: &[u8]) -> Vec<usize> {
    let mut offsets = Vec::new();
    let mut at = 0;
    while at < stream.len() {
        offsets.push(at);
        at += RECORD + payload_len(&stream[at..]);
    }
    offsets
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}
