//! Cuts a stream into segments.

use std::io::{self, Read};

use super::buffers::Buffers;

/// The default segment size: 16 MiB.
pub const DEFAULT_SEGMENT_SIZE: u64 = 16 * 1024 * 1024;
/// A stream is cut into about this many segments at the most.
const MOST_SEGMENTS: u64 = 200_000;
/// How much is read at once: the size of a pipe that was asked to be large.
const READ_SIZE: usize = 1024 * 1024;

/// The default size, doubled until a stream of `estimate` bytes needs at most about 200,000 segments.
pub fn segment_size_for(estimate: u64) -> u64 {
    let mut size = DEFAULT_SEGMENT_SIZE;
    while estimate / size > MOST_SEGMENTS && size < crate::format::manifest::MAX_SEGMENT_SIZE {
        size *= 2;
    }
    size
}

/// A run of the stream.
#[derive(Debug)]
pub struct Segment {
    /// From 0.
    pub number: u64,
    /// Its bytes; never empty.
    pub plain: Vec<u8>,
}

/// The segments of a stream, in order. Ends after the last one, or after an error.
pub struct Segments<R> {
    reader: R,
    size: usize,
    buffers: Buffers,
    hasher: blake3::Hasher,
    bytes: u64,
    next: u64,
    ended: bool,
}

impl<R: Read> Segments<R> {
    /// Cuts `reader` into runs of `size` bytes.
    pub fn new(reader: R, size: u64, buffers: Buffers) -> Self {
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        Self { reader, size, buffers, hasher: blake3::Hasher::new(), bytes: 0, next: 0, ended: false }
    }

    /// Length and hash of all that was cut so far, and the reader.
    pub fn into_parts(self) -> (u64, blake3::Hash, R) {
        (self.bytes, self.hasher.finalize(), self.reader)
    }

    /// Fills `plain` from the reader. Only its first use costs the zeros that it is made of: a buffer comes back at
    /// its full length and is overwritten.
    fn fill(&mut self, plain: &mut Vec<u8>) -> io::Result<()> {
        plain.resize(self.size, 0);
        let mut filled = 0;
        while filled < self.size {
            let until = self.size.min(filled + READ_SIZE);
            let got = match self.reader.read(&mut plain[filled..until]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                result => result?,
            };
            if got == 0 {
                self.ended = true;
                break;
            }
            self.hasher.update(&plain[filled..filled + got]);
            self.bytes += got as u64;
            filled += got;
        }
        plain.truncate(filled);
        Ok(())
    }
}

impl<R: Read> Iterator for Segments<R> {
    type Item = io::Result<Segment>;

    fn next(&mut self) -> Option<io::Result<Segment>> {
        if self.ended {
            return None;
        }
        let mut plain = self.buffers.take();
        match self.fill(&mut plain) {
            Err(error) => {
                self.ended = true;
                Some(Err(error))
            }
            Ok(()) if plain.is_empty() => None,
            Ok(()) => {
                let number = self.next;
                self.next += 1;
                Some(Ok(Segment { number, plain }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives its bytes a few at a time.
    struct Dribble<'a>(&'a [u8]);

    impl Read for Dribble<'_> {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            let n = buf.len().min(self.0.len()).min(7);
            buf[..n].copy_from_slice(&self.0[..n]);
            self.0 = &self.0[n..];
            Ok(n)
        }
    }

    #[test]
    fn cuts_at_every_length() {
        let bytes: Vec<u8> = (0..=255).collect();
        for length in [0usize, 1, 99, 100, 101, 199, 200, 201, 256] {
            let mut segments = Segments::new(Dribble(&bytes[..length]), 100, Buffers::default());
            let cut: Vec<_> = segments.by_ref().map(|segment| segment.unwrap()).collect();
            assert_eq!(cut.iter().map(|s| s.plain.len()).sum::<usize>(), length);
            assert_eq!(cut.len(), length.div_ceil(100), "no empty segment at {length}");
            assert!(cut.iter().rev().skip(1).all(|s| s.plain.len() == 100));
            let (total, hash, _) = segments.into_parts();
            assert_eq!((total, hash), (length as u64, blake3::hash(&bytes[..length])));
        }
    }

    #[test]
    fn sizes_follow_the_estimate() {
        assert_eq!(segment_size_for(0), 16 << 20);
        assert_eq!(segment_size_for(3 << 40), 16 << 20);
        assert_eq!(segment_size_for(4 << 40), 32 << 20);
        assert_eq!(segment_size_for(u64::MAX), 1 << 30);
    }
}
