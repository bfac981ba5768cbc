//! Which chunks exist, which are here already, and who touched them.

use std::fs::File;
use std::ops::RangeInclusive;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::pace::Random;
use super::settings::Settings;

/// Nothing was ever written there.
pub const HOLE: u8 = 0;
/// Exists, far away.
pub const COLD: u8 = 1;
/// Is being fetched, or waits for it.
pub const QUEUED: u8 = 2;
/// Is here.
pub const WARM: u8 = 3;

/// All chunks of a volume. What was never used of a large one takes no memory: fresh zeros are not written.
pub struct Chunks {
    states: Vec<u8>,
    touches: Vec<u32>,
    existing: u64,
    warm: u64,
}

impl Chunks {
    /// Chunks by chance.
    pub fn random(settings: &Settings, random: &mut Random) -> Self {
        let mut chunks = Self::holes(settings.size.div_ceil(settings.chunk));
        let (mut at, end) = (0, chunks.count());
        while at < end {
            let run = 1 + random.number() % 16;
            let next = (at + run).min(end);
            if random.share() < settings.fill {
                chunks.fill(at..=next - 1);
            }
            at = next;
        }
        chunks
    }

    /// A chunk exists if the image has data anywhere in it.
    pub fn of_image(image: &File, size: u64, chunk: u64) -> Self {
        let mut chunks = Self::holes(size.div_ceil(chunk));
        let mut at = 0;
        while at < size {
            let data = match seek(image, SeekFrom::Data(at)) {
                Ok(data) => data,
                Err(Errno::NXIO) => break,
                Err(error) => panic!("where the image has data: {error}"),
            };
            let hole = seek(image, SeekFrom::Hole(data)).unwrap();
            chunks.fill(data / chunk..=(hole - 1) / chunk);
            at = hole;
        }
        chunks
    }

    fn holes(count: u64) -> Self {
        let count = usize::try_from(count).unwrap();
        Self { states: vec![HOLE; count], touches: vec![0; count], existing: 0, warm: 0 }
    }

    fn fill(&mut self, range: RangeInclusive<u64>) {
        for state in &mut self.states[*range.start() as usize..=*range.end() as usize] {
            // Two pieces of data may share a chunk.
            self.existing += u64::from(*state == HOLE);
            *state = COLD;
        }
    }

    /// All, holes too.
    pub fn count(&self) -> u64 {
        self.states.len() as u64
    }

    /// All but the holes.
    pub fn existing(&self) -> u64 {
        self.existing
    }

    /// Those that exist and are not here yet.
    pub fn cold_left(&self) -> u64 {
        self.existing - self.warm
    }

    /// One of the constants above.
    pub fn state(&self, chunk: u64) -> u8 {
        self.states[chunk as usize]
    }

    /// Notes a read.
    pub fn touch(&mut self, chunk: u64) {
        self.touches[chunk as usize] += 1;
    }

    /// Reads so far of every chunk.
    pub fn touches(&self) -> &[u32] {
        &self.touches
    }

    /// Notes that a cold chunk is wanted.
    pub fn queue(&mut self, chunk: u64) {
        self.states[chunk as usize] = QUEUED;
    }

    /// Notes that a chunk has come.
    pub fn arrive(&mut self, chunk: u64) {
        self.states[chunk as usize] = WARM;
        self.warm += 1;
    }

    /// As at the beginning, but for what is being fetched: that will be warm.
    pub fn reset(&mut self) {
        self.states.iter_mut().filter(|state| **state == WARM).for_each(|state| *state = COLD);
        self.touches = vec![0; self.touches.len()];
        self.warm = 0;
    }
}
