//! One volume: its schedule, the thread that keeps it, and the bytes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Instant;

use fuser::{Errno, ReplyData};

use super::chunks::{Chunks, HOLE};
use super::faults::Outcome;
use super::pace::Random;
use super::schedule::{Read, Schedule};
use super::settings::{LARGEST_READ, Settings};

/// What the kernel asks, the scheduler thread serves and the test looks into.
pub struct Volume {
    pub settings: Settings,
    pub size: u64,
    image: Option<File>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    schedule: Schedule,
    stopped: bool,
}

impl Volume {
    /// Opens the image, if there is one. `number` tells volumes with the same seed apart.
    pub fn new(settings: Settings, number: u64) -> Self {
        settings.check();
        let mut random = Random::new(settings.seed, number);
        let image = settings.backing.as_ref().map(|path| File::open(path).expect("the backing image"));
        let size = image.as_ref().map_or(settings.size, |image| image.metadata().unwrap().len());
        let chunks = match &image {
            Some(image) => Chunks::of_image(image, size, settings.chunk),
            None => Chunks::random(&settings, &mut random),
        };
        let schedule = Schedule::new(settings.clone(), chunks, random);
        let state = Mutex::new(State { schedule, stopped: false });
        Self { settings, size, image, state, changed: Condvar::new() }
    }

    /// Takes in a read, and returns at once: the scheduler answers it.
    pub fn submit(&self, offset: u64, size: u32, reply: ReplyData) {
        let length = u64::from(size).min(self.size.saturating_sub(offset));
        if length == 0 {
            return reply.data(&[]);
        }
        let mut state = self.lock();
        if state.stopped {
            return reply.error(Errno::EIO);
        }
        state.schedule.submit(Instant::now(), offset, length, reply);
        self.changed.notify_one();
    }

    /// The scheduler: answers reads until the volume is stopped, and whatever is left then with EIO.
    pub fn run(&self) {
        let mut buffer = Vec::with_capacity(LARGEST_READ as usize);
        let mut state = self.lock();
        while !state.stopped {
            let now = Instant::now();
            let answered = state.schedule.advance(now);
            if !answered.is_empty() {
                drop(state);
                answered.into_iter().for_each(|read| self.answer(read, &mut buffer));
                state = self.lock();
                continue;
            }
            state = match state.schedule.next_event() {
                None => self.changed.wait(state).unwrap(),
                Some(at) => self.changed.wait_timeout(state, at.saturating_duration_since(now)).unwrap().0,
            };
        }
        state.schedule.take_all().into_iter().for_each(|read| read.reply.error(Errno::EIO));
    }

    fn answer(&self, read: Read, buffer: &mut Vec<u8>) {
        let length = match read.outcome {
            Outcome::Failed(error) => return read.reply.error(error),
            Outcome::Short => read.length.min(512),
            Outcome::Whole => read.length,
        };
        buffer.resize(usize::try_from(length).unwrap(), 0);
        match self.content(read.offset, buffer) {
            Ok(()) => read.reply.data(buffer),
            Err(error) => read.reply.error(error.into()),
        }
    }

    /// The image's, or zeros in holes and [`content_byte`] in all others.
    fn content(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        if let Some(image) = &self.image {
            return image.read_exact_at(buffer, offset);
        }
        let (mut at, mut rest) = (offset, buffer);
        while !rest.is_empty() {
            let chunk = at / self.settings.chunk;
            let here = ((chunk + 1) * self.settings.chunk - at).min(rest.len() as u64);
            let (piece, others) = rest.split_at_mut(here as usize);
            let hole = self.schedule(|schedule| schedule.chunks.state(chunk) == HOLE);
            piece.fill(if hole { 0 } else { content_byte(chunk) });
            (at, rest) = (at + here, others);
        }
        Ok(())
    }

    /// Looks into the schedule, or changes it.
    pub fn schedule<T>(&self, look: impl FnOnce(&mut Schedule) -> T) -> T {
        let value = look(&mut self.lock().schedule);
        self.changed.notify_one();
        value
    }

    /// Ends the scheduler. From now on every read fails.
    pub fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

/// What a chunk that exists is full of, where there is no image. Never zero.
pub fn content_byte(chunk: u64) -> u8 {
    (chunk % 255) as u8 + 1
}
