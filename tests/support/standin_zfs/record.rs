//! The records of a ZFS stream, as far as the stand-in needs them. It is written apart from the program's own reader
//! on purpose: an error made in one of them shows as a difference.

use std::io::{self, Read, Write};

pub const RECORD: usize = 312;
pub const MAGIC: u64 = 0x2_F5BA_CBAC;
pub const RESUMING: u64 = 1 << 20;
pub const RAW: u64 = 1 << 24;
pub const COMPRESSED: u64 = 1 << 22;
pub const LARGE_BLOCKS: u64 = 1 << 19;
pub const EMBED: u64 = 1 << 16;

pub const BEGIN: u32 = 0;
pub const OBJECT: u32 = 1;
pub const WRITE: u32 = 3;
pub const FREE: u32 = 4;
pub const END: u32 = 5;
pub const SPILL: u32 = 7;
pub const WRITE_EMBEDDED: u32 = 8;
const TYPES: u32 = 11;

/// The running sum over 32-bit words.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Fletcher4(pub [u64; 4]);

impl Fletcher4 {
    /// Only whole words: a rest of one to three bytes is left out, as OpenZFS does for a token.
    pub fn add(&mut self, bytes: &[u8]) {
        let [mut a, mut b, mut c, mut d] = self.0;
        for word in bytes.as_chunks::<4>().0 {
            a = a.wrapping_add(u64::from(u32::from_le_bytes(*word)));
            b = b.wrapping_add(a);
            c = c.wrapping_add(b);
            d = d.wrapping_add(c);
        }
        self.0 = [a, b, c, d];
    }

    pub fn bytes(self) -> [u8; 32] {
        let mut out = [0; 32];
        for (place, word) in out.as_chunks_mut::<8>().0.iter_mut().zip(self.0) {
            *place = word.to_le_bytes();
        }
        out
    }
}

#[derive(Clone)]
pub struct Record(pub [u8; RECORD]);

impl Record {
    pub fn new(kind: u32, payload: u32) -> Record {
        let mut record = Record([0; RECORD]);
        record.set32(0, kind);
        record.set32(4, payload);
        record
    }
    pub fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.0[at..at + 4].try_into().expect("four bytes"))
    }
    pub fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.0[at..at + 8].try_into().expect("eight bytes"))
    }
    pub fn set32(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    pub fn set64(&mut self, at: usize, value: u64) {
        self.0[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    pub fn kind(&self) -> u32 {
        self.u32(0)
    }
    /// The object of an OBJECT, a WRITE or a FREE.
    pub fn object(&self) -> u64 {
        self.u64(8)
    }
    /// The offset of a WRITE, or of an embedded one.
    pub fn offset(&self) -> u64 {
        if self.kind() == WRITE { self.u64(24) } else { self.u64(16) }
    }

    // BEGIN
    pub fn magic(&self) -> u64 {
        self.u64(8)
    }
    pub fn compound(&self) -> bool {
        self.u64(16) & 3 == 2
    }
    pub fn features(&self) -> u64 {
        self.u64(16) >> 2
    }
    pub fn creation(&self) -> u64 {
        self.u64(24)
    }
    pub fn is_volume(&self) -> bool {
        self.u32(32) == 3
    }
    pub fn is_clone(&self) -> bool {
        self.u32(36) & 1 != 0
    }
    pub fn to_guid(&self) -> u64 {
        self.u64(40)
    }
    pub fn base_guid(&self) -> u64 {
        self.u64(48)
    }
    pub fn to_name(&self) -> String {
        let name = &self.0[56..312];
        let length = name.iter().position(|&b| b == 0).unwrap_or(name.len());
        String::from_utf8_lossy(&name[..length]).into_owned()
    }

    /// How many bytes follow the record; `None` where the record cannot be.
    pub fn payload(&self) -> Option<usize> {
        let length = match self.kind() {
            SPILL if self.u64(40) != 0 => self.u64(40),
            SPILL => self.u64(16),
            OBJECT => match self.u32(36) {
                0 => u64::from(self.u32(28)).next_multiple_of(8),
                raw => u64::from(raw),
            },
            WRITE => match self.u64(96) {
                0 => self.u64(32),
                compressed => compressed,
            },
            WRITE_EMBEDDED => u64::from(self.u32(52)).next_multiple_of(8),
            kind if kind < TYPES => u64::from(self.u32(4)),
            _ => return None,
        };
        // The largest block of OpenZFS is 16 MiB; a replication stream's list may be longer than one block.
        (length <= 64 << 20).then_some(length as usize)
    }
}

/// Reads a record, or `None` at the end of the input (also inside a record).
pub fn read_record(input: &mut impl Read) -> io::Result<Option<Record>> {
    let mut record = Record([0; RECORD]);
    match input.read_exact(&mut record.0) {
        Ok(()) => Ok(Some(record)),
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(e) => Err(e),
    }
}

/// Writes a stream with the right checksums, whatever is put in.
pub struct Sealer<W> {
    out: W,
    sum: Fletcher4,
    /// In the frame of a package, which userland writes: its records bear no sum of their own.
    frame: bool,
}

impl<W: Write> Sealer<W> {
    pub fn new(out: W) -> Self {
        Sealer { out, sum: Fletcher4::default(), frame: false }
    }

    pub fn put(&mut self, mut record: Record, payload: &[u8]) -> io::Result<()> {
        let kind = record.kind();
        if kind == BEGIN {
            self.sum = Fletcher4::default();
            self.sum.add(&record.0);
            self.frame = record.compound();
        } else if kind == END && self.frame {
            record.0[8..40].copy_from_slice(&self.sum.bytes());
            self.sum = Fletcher4::default();
        } else {
            if kind == END {
                record.0[8..40].copy_from_slice(&self.sum.bytes());
                self.frame = true;
            }
            self.sum.add(&record.0[..RECORD - 32]);
            let so_far = self.sum.bytes();
            record.0[RECORD - 32..].copy_from_slice(&so_far);
            self.sum.add(&so_far);
        }
        if kind == END {
            // The END of a whole package that may follow sums up nothing.
            self.sum = Fletcher4::default();
        }
        self.sum.add(payload);
        self.out.write_all(&record.0)?;
        self.out.write_all(payload)
    }

    pub fn into_inner(self) -> W {
        self.out
    }
}

/// Goes through a whole good stream in memory, record by record.
pub fn each_record(mut stream: &[u8], mut see: impl FnMut(Record, &[u8])) {
    while let Some(record) = read_record(&mut stream).expect("reading from memory") {
        let length = record.payload().expect("a stream of the tests is well formed");
        let (payload, rest) = stream.split_at(length);
        see(record, payload);
        stream = rest;
    }
}

/// The name-value lists in streams and tokens: the native little-endian encoding, whole numbers, text and flags only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Number(u64),
    Text(String),
    Flag,
}

pub fn pack_list(pairs: &[(&str, Value)]) -> Vec<u8> {
    let mut out = vec![0, 1, 0, 0];
    out.extend(0u32.to_le_bytes());
    out.extend(1u32.to_le_bytes());
    for (name, value) in pairs {
        let (kind, count, data) = match value {
            Value::Flag => (1u32, 0u32, Vec::new()),
            Value::Number(number) => (8, 1, number.to_le_bytes().to_vec()),
            Value::Text(text) => (9, 1, padded(text)),
        };
        let name_bytes = padded(name);
        out.extend((16 + name_bytes.len() as u32 + data.len() as u32).to_le_bytes());
        out.extend((name.len() as u16 + 1).to_le_bytes());
        out.extend([0, 0]);
        out.extend(count.to_le_bytes());
        out.extend(kind.to_le_bytes());
        out.extend(name_bytes);
        out.extend(data);
    }
    out.extend([0; 4]);
    out
}

pub fn unpack_list(bytes: &[u8]) -> Option<Vec<(String, Value)>> {
    let mut pairs = Vec::new();
    let mut rest = bytes.get(12..)?;
    loop {
        let size = u32::from_le_bytes(rest.get(..4)?.try_into().ok()?) as usize;
        if size == 0 {
            return Some(pairs);
        }
        let pair = rest.get(..size)?;
        rest = rest.get(size..)?;
        let name_length = usize::from(u16::from_le_bytes(pair.get(4..6)?.try_into().ok()?));
        let name = String::from_utf8(pair.get(16..16 + name_length.checked_sub(1)?)?.to_vec()).ok()?;
        let data = pair.get(16 + name_length.next_multiple_of(8)..)?;
        let value = match u32::from_le_bytes(pair.get(12..16)?.try_into().ok()?) {
            1 => Value::Flag,
            8 => Value::Number(u64::from_le_bytes(data.get(..8)?.try_into().ok()?)),
            9 => Value::Text(String::from_utf8_lossy(data).trim_end_matches('\0').to_owned()),
            _ => continue,
        };
        pairs.push((name, value));
    }
}

fn padded(text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize((bytes.len() + 1).next_multiple_of(8), 0);
    bytes
}
