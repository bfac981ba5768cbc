//! How a segment is compressed: independent frames (or members), so that every core can work on its own and the
//! standard tool reads a segment as one file.

use std::fmt;
use std::io::{self, Cursor, Read};
use std::str::FromStr;

use flate2::read::MultiGzDecoder;
use libdeflater::{CompressionLvl, Compressor as Deflate};
use thiserror::Error;

use crate::format::manifest::CodecInfo;

/// Stream bytes in one frame. Larger ones compress better; four of them fill a default segment.
const FRAME: usize = 4 * 1024 * 1024;
/// How many places of a frame the probe looks at, and how many bytes it takes from each: a frame of a mixed stream
/// holds records that compress and records that don't.
const PROBE_PLACES: usize = 8;
const PROBE_PIECE: usize = 16 * 1024;
/// A frame whose probe keeps more than this many percent is not worth more than level 1: measured on packages,
/// images and `zfs send -c` streams, the higher level saves less than half a percent there and halves the speed.
const PROBE_KEEPS_PERCENT: usize = 95;
/// And above this many there is next to nothing to find: level -1 looks for the little there is.
const PROBE_IS_NOISE: usize = 98;

/// What compresses the segments of a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// zstd, level 1 to 19.
    Zstd(i32),
    /// gzip, level 1 to 9.
    Gzip(i32),
    /// Stored as it is.
    None,
}

impl Default for Codec {
    fn default() -> Self {
        Self::Zstd(3)
    }
}

/// A codec that can't be.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct UnknownCodec(String);

impl FromStr for Codec {
    type Err = UnknownCodec;

    fn from_str(text: &str) -> Result<Self, UnknownCodec> {
        let (name, level) = text.split_once(':').map_or((text, None), |(name, level)| (name, Some(level)));
        let level_in = |range: std::ops::RangeInclusive<i32>, default: i32| match level {
            None => Ok(default),
            Some(level) => level.parse().ok().filter(|level| range.contains(level)).ok_or_else(|| {
                UnknownCodec(format!("{name} takes a level from {} to {}, not {level:?}", range.start(), range.end()))
            }),
        };
        match name {
            "zstd" => Ok(Self::Zstd(level_in(1..=19, 3)?)),
            "gzip" => Ok(Self::Gzip(level_in(1..=9, 6)?)),
            "none" if level.is_none() => Ok(Self::None),
            "none" => Err(UnknownCodec("none takes no level".into())),
            _ => Err(UnknownCodec(format!("unknown codec {name:?}: zstd[:1-19], gzip[:1-9] and none are known"))),
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zstd(level) => write!(f, "zstd:{level}"),
            Self::Gzip(level) => write!(f, "gzip:{level}"),
            Self::None => f.write_str("none"),
        }
    }
}

impl Codec {
    /// In the names of segments.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Zstd(_) => "zst",
            Self::Gzip(_) => "gz",
            Self::None => "raw",
        }
    }

    /// As it stands in a manifest.
    pub fn info(self) -> CodecInfo {
        match self {
            Self::Zstd(level) => CodecInfo { name: "zstd".into(), level: Some(level) },
            Self::Gzip(level) => CodecInfo { name: "gzip".into(), level: Some(level) },
            Self::None => CodecInfo { name: "none".into(), level: None },
        }
    }

    /// The codec that a manifest names. Levels don't matter for reading.
    pub fn from_info(info: &CodecInfo) -> Result<Self, UnknownCodec> {
        match info.name.as_str() {
            "zstd" => Ok(Self::Zstd(info.level.unwrap_or(3))),
            "gzip" => Ok(Self::Gzip(info.level.unwrap_or(6))),
            "none" => Ok(Self::None),
            other => Err(UnknownCodec(format!("its codec {other:?} is unknown to this version"))),
        }
    }

    /// What one thread needs to compress and decompress.
    pub fn worker(self) -> io::Result<Box<dyn SegmentCodec>> {
        Ok(match self {
            Self::Zstd(level) => Box::new(Zstd::new(level)?),
            Self::Gzip(level) => Box::new(Gzip::new(level)?),
            Self::None => Box::new(Raw),
        })
    }
}

/// Compresses and decompresses whole segments, one after another.
pub trait SegmentCodec: Send {
    /// Compresses `plain` into `out`, which is cleared first.
    fn compress(&mut self, plain: &[u8], out: &mut Vec<u8>) -> io::Result<()>;

    /// Decompresses `stored` into `out`, which is cleared first. `expected` is the length that the authenticated
    /// manifest gives; anything else is an error, and more is never allocated.
    fn decompress(&mut self, stored: &[u8], expected: usize, out: &mut Vec<u8>) -> io::Result<()>;

    /// Whether `stored` decompresses to exactly `plain`.
    fn reproduces(&mut self, stored: &[u8], plain: &[u8]) -> io::Result<bool>;
}

/// [`SegmentCodec::reproduces`] where the whole has to be decompressed for it.
fn reproduces_whole(codec: &mut impl SegmentCodec, stored: &[u8], plain: &[u8]) -> io::Result<bool> {
    let mut again = Vec::new();
    codec.decompress(stored, plain.len(), &mut again)?;
    Ok(again == plain)
}

fn wrong_length(got: usize, expected: usize) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{got} bytes came out where {expected} went in"))
}

struct Zstd {
    level: i32,
    compressor: zstd::bulk::Compressor<'static>,
    decompressor: zstd::bulk::Decompressor<'static>,
    sample: Vec<u8>,
    probe: Vec<u8>,
    scratch: Vec<u8>,
}

impl Zstd {
    fn new(level: i32) -> io::Result<Self> {
        Ok(Self {
            level,
            compressor: zstd::bulk::Compressor::new(level)?,
            decompressor: zstd::bulk::Decompressor::new()?,
            sample: Vec::new(),
            probe: Vec::with_capacity(zstd_safe::compress_bound(PROBE_PLACES * PROBE_PIECE)),
            scratch: Vec::new(),
        })
    }

    /// The level that a frame is worth.
    fn level_for(&mut self, frame: &[u8]) -> io::Result<i32> {
        const PROBE: usize = PROBE_PLACES * PROBE_PIECE;
        if self.level == 1 || frame.len() < 2 * PROBE {
            return Ok(self.level);
        }
        self.sample.clear();
        for stretch in frame.chunks_exact(frame.len() / PROBE_PLACES).take(PROBE_PLACES) {
            let middle = (stretch.len() - PROBE_PIECE) / 2;
            self.sample.extend_from_slice(&stretch[middle..middle + PROBE_PIECE]);
        }
        self.compressor.set_compression_level(1)?;
        let kept = self.compressor.compress_to_buffer(&self.sample, &mut self.probe)?;
        Ok(match kept * 100 / PROBE {
            PROBE_IS_NOISE.. => -1,
            PROBE_KEEPS_PERCENT.. => 1,
            _ => self.level,
        })
    }
}

impl SegmentCodec for Zstd {
    fn compress(&mut self, plain: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        out.clear();
        out.reserve(plain.chunks(FRAME).map(|frame| zstd_safe::compress_bound(frame.len())).sum());
        for frame in plain.chunks(FRAME) {
            let level = self.level_for(frame)?;
            self.compressor.set_compression_level(level)?;
            let end = out.len() as u64;
            let mut cursor = Cursor::new(std::mem::take(out));
            cursor.set_position(end);
            let compressed = self.compressor.compress_to_buffer(frame, &mut cursor);
            *out = cursor.into_inner();
            compressed?;
        }
        Ok(())
    }

    fn decompress(&mut self, stored: &[u8], expected: usize, out: &mut Vec<u8>) -> io::Result<()> {
        out.clear();
        // libzstd decodes frames that follow one another in a single call, and stops at the end of the buffer.
        out.reserve_exact(expected);
        let got = self.decompressor.decompress_to_buffer(stored, out)?;
        if got == expected { Ok(()) } else { Err(wrong_length(got, expected)) }
    }

    /// Frame by frame, which needs less memory and stays nearer to the processor.
    fn reproduces(&mut self, mut stored: &[u8], plain: &[u8]) -> io::Result<bool> {
        let unreadable = |code| io::Error::other(zstd_safe::get_error_name(code));
        let mut scratch = std::mem::take(&mut self.scratch);
        for frame in plain.chunks(FRAME) {
            let length = zstd_safe::find_frame_compressed_size(stored).map_err(unreadable)?;
            self.decompress(&stored[..length], frame.len(), &mut scratch)?;
            if scratch != frame {
                return Ok(false);
            }
            stored = &stored[length..];
        }
        self.scratch = scratch;
        Ok(stored.is_empty())
    }
}

struct Gzip {
    compressor: Deflate,
}

impl Gzip {
    fn new(level: i32) -> io::Result<Self> {
        let level = CompressionLvl::new(level).map_err(|_| io::Error::other(format!("gzip has no level {level}")))?;
        Ok(Self { compressor: Deflate::new(level) })
    }
}

impl SegmentCodec for Gzip {
    fn compress(&mut self, plain: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        out.clear();
        for member in plain.chunks(FRAME) {
            let from = out.len();
            out.resize(from + self.compressor.gzip_compress_bound(member.len()), 0);
            let length = self.compressor.gzip_compress(member, &mut out[from..]);
            out.truncate(from + length.map_err(|error| io::Error::other(error.to_string()))?);
        }
        Ok(())
    }

    fn decompress(&mut self, stored: &[u8], expected: usize, out: &mut Vec<u8>) -> io::Result<()> {
        out.clear();
        out.reserve_exact(expected);
        let got = MultiGzDecoder::new(stored).take(expected as u64 + 1).read_to_end(out)?;
        if got == expected { Ok(()) } else { Err(wrong_length(got, expected)) }
    }

    fn reproduces(&mut self, stored: &[u8], plain: &[u8]) -> io::Result<bool> {
        reproduces_whole(self, stored, plain)
    }
}

struct Raw;

impl SegmentCodec for Raw {
    fn compress(&mut self, plain: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        out.clear();
        out.extend_from_slice(plain);
        Ok(())
    }

    fn decompress(&mut self, stored: &[u8], expected: usize, out: &mut Vec<u8>) -> io::Result<()> {
        if stored.len() != expected {
            return Err(wrong_length(stored.len(), expected));
        }
        self.compress(stored, out)
    }

    fn reproduces(&mut self, stored: &[u8], plain: &[u8]) -> io::Result<bool> {
        Ok(stored == plain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn corpus() -> Vec<(&'static str, Vec<u8>)> {
        let mut state = 1u64;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as u8
        };
        let noise: Vec<u8> = (0..FRAME + 12_345).map(|_| random()).collect();
        let text: Vec<u8> =
            (0..2 * FRAME + 77).map(|n| b"the quick brown fox jumps "[n % 26] ^ u8::from(n % 97 == 0)).collect();
        vec![("one byte", vec![7]), ("zeros", vec![0; 1_000_000]), ("noise", noise), ("text", text)]
    }

    #[test]
    fn round_trips_and_refuses_other_lengths() {
        for codec in [Codec::Zstd(1), Codec::Zstd(3), Codec::Zstd(9), Codec::Gzip(1), Codec::Gzip(6), Codec::None] {
            let mut worker = codec.worker().unwrap();
            let (mut stored, mut plain) = (Vec::new(), Vec::new());
            for (name, bytes) in corpus() {
                worker.compress(&bytes, &mut stored).unwrap();
                worker.decompress(&stored, bytes.len(), &mut plain).unwrap();
                assert!(plain == bytes, "{codec} {name}");
                assert!(worker.reproduces(&stored, &bytes).unwrap(), "{codec} {name}");
                let mut other = bytes.clone();
                other[bytes.len() / 2] ^= 1;
                assert!(!worker.reproduces(&stored, &other).unwrap_or(false), "{codec} {name}");
                assert!(!worker.reproduces(&stored, &bytes[1..]).unwrap_or(false), "{codec} {name}");
                for wrong in [bytes.len() - 1, bytes.len() + 1] {
                    assert!(worker.decompress(&stored, wrong, &mut Vec::new()).is_err(), "{codec} {name} {wrong}");
                }
                let cut = &stored[..stored.len() - 1];
                assert!(worker.decompress(cut, bytes.len(), &mut Vec::new()).is_err(), "{codec} {name} cut");
            }
        }
    }

    #[test]
    fn names_parse_and_print() {
        for (text, codec) in
            [("zstd", Codec::Zstd(3)), ("zstd:19", Codec::Zstd(19)), ("gzip:9", Codec::Gzip(9)), ("none", Codec::None)]
        {
            assert_eq!(text.parse(), Ok(codec));
            assert_eq!(codec.to_string().parse(), Ok(codec));
            assert_eq!(Codec::from_info(&codec.info()), Ok(codec));
        }
        for bad in ["", "zstd:", "zstd:0", "zstd:20", "gzip:10", "none:1", "lzma", "zstd:3:4"] {
            assert!(bad.parse::<Codec>().is_err(), "{bad}");
        }
        assert!(Codec::from_info(&CodecInfo { name: "brotli".into(), level: None }).is_err());
    }
}
