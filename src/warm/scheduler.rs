//! What is read next, and what became of it: the warm-up of one volume as a state machine that knows no device and no
//! clock. Times are those since the beginning of the run.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use super::blockset::BlockSet;
use super::depth::{DepthControl, DepthSettings};
use super::latency::Latencies;
use super::plan::{Grid, Plan, Walk};

/// The wait before a block is tried again; doubled each time.
const RETRY_DELAY: Duration = Duration::from_millis(100);
/// While so many blocks wait to be tried again, no other is begun.
const WAITING_MAX: u64 = 4096;
/// A volume of which so many blocks failed and none answered is given up.
const HOPELESS: u64 = 16;

/// Whether one read touches two blocks, across the border between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Straddle {
    /// Tried, and kept where it pays.
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

/// How one volume is read.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Bytes of a read of one block, a multiple of `sector`.
    pub read_size: u32,
    /// Reads begin and end at multiples of this (bytes).
    pub sector: u32,
    /// Where in its block a read begins (bytes), a multiple of `sector`: 0, but for whoever looks at another place.
    pub shift: u64,
    /// How often a block that fails is tried again.
    pub retries: u32,
    /// Reads a second at most.
    pub max_iops: Option<u32>,
    /// Two blocks with one read.
    pub straddle: Straddle,
    /// A read that has not come back after so long counts as failed.
    pub patience: Duration,
    /// How the depth is found.
    pub depth: DepthSettings,
}

/// One read to be issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Read {
    /// From the beginning of the volume (bytes).
    pub offset: u64,
    /// Bytes.
    pub length: u32,
    /// The first block that it touches.
    pub block: u64,
    /// How many: 1, or 2 across a border.
    pub blocks: u32,
    /// From 0.
    pub attempt: u32,
    /// When it was handed out.
    pub issued: Duration,
    /// What it is measured with, see [`DepthControl::issued`].
    pub window: u32,
}

/// What a volume has to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// This.
    Read(Read),
    /// Nothing before this time.
    At(Duration),
    /// Nothing before a read comes back.
    Wait,
    /// Nothing any more.
    Done,
}

/// Why a read failed: the operating system's number, or that it came back short or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// An errno.
    System(i32),
    /// Nothing came back where there should be something.
    Empty,
    /// It did not come back.
    NoAnswer,
}

impl std::fmt::Display for ReadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::System(errno) => std::io::Error::from_raw_os_error(*errno).fmt(f),
            Self::Empty => f.write_str("nothing came back: the device ends before its size"),
            Self::NoAnswer => f.write_str("no answer"),
        }
    }
}

/// A block that could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its number.
    pub block: u64,
    /// What was said last.
    pub error: ReadError,
}

/// The warm-up of one volume.
#[derive(Debug)]
pub struct Scheduler {
    grid: Grid,
    settings: Settings,
    walk: Walk,
    /// Planned, and not handed out yet.
    todo: BlockSet,
    touched: BlockSet,
    /// Words of `touched` that changed since they were asked for.
    fresh: Range<usize>,
    failed: BlockSet,
    planned: u64,
    before: u64,
    /// Reads that begin where a short one ended, and blocks that a pair failed at.
    again: VecDeque<Read>,
    /// Blocks that were tried out of order because nothing answered.
    scouts: u64,
    /// Blocks to be tried again, by time.
    later: BinaryHeap<Reverse<(Duration, Read)>>,
    in_flight: u32,
    most_in_flight: u32,
    next_token: Duration,
    depth: DepthControl,
    latencies: Latencies,
    requests: u64,
    bytes: u64,
    cold_blocks: u64,
    given_up: Option<ReadError>,
}

impl Scheduler {
    /// For a plan of which the blocks in `touched` are done already.
    pub fn new(plan: &Plan, mut touched: BlockSet, settings: Settings) -> Self {
        touched.intersect(&plan.wanted);
        let mut todo = plan.wanted.clone();
        todo.subtract(&touched);
        let try_pairs = settings.straddle == Straddle::Auto && plan.grid.step >= 2 * u64::from(settings.read_size);
        Self {
            grid: plan.grid,
            walk: Walk::new(plan.first.clone()),
            todo,
            failed: BlockSet::new(plan.grid.blocks()),
            planned: plan.wanted.len(),
            before: touched.len(),
            touched,
            fresh: 0..0,
            again: VecDeque::new(),
            scouts: 0,
            later: BinaryHeap::new(),
            in_flight: 0,
            most_in_flight: 0,
            next_token: Duration::ZERO,
            depth: DepthControl::new(DepthSettings { try_pairs, ..settings.depth }),
            latencies: Latencies::default(),
            requests: 0,
            bytes: 0,
            cold_blocks: 0,
            given_up: None,
            settings,
        }
    }

    /// What to do at `now`.
    pub fn next_read(&mut self, now: Duration) -> Next {
        if self.given_up.is_some() || self.is_finished() {
            return Next::Done;
        }
        if self.in_flight >= self.depth.depth() {
            return Next::Wait;
        }
        if let Some(token) = self.wait_for_token(now) {
            self.depth.held_back();
            return Next::At(token);
        }
        let Some(mut read) = self.take(now) else {
            // The window can't be filled any more: what is measured from here on says nothing about the depth.
            self.depth.held_back();
            return match self.later.peek() {
                Some(Reverse((due, _))) => Next::At(*due),
                None => Next::Wait,
            };
        };
        read.issued = now;
        read.window = self.depth.issued();
        self.in_flight += 1;
        self.most_in_flight = self.most_in_flight.max(self.in_flight);
        self.requests += 1;
        if let Some(iops) = self.settings.max_iops {
            let from = self.next_token.max(now.saturating_sub(Duration::from_millis(10)));
            self.next_token = from + Duration::from_secs(1) / iops.max(1);
        }
        Next::Read(read)
    }

    fn wait_for_token(&self, now: Duration) -> Option<Duration> {
        (self.settings.max_iops.is_some() && self.next_token > now).then_some(self.next_token)
    }

    fn take(&mut self, now: Duration) -> Option<Read> {
        while let Some(read) = self.again.pop_front() {
            // One of a pair that was too late and came after all needs no read of its own.
            if !self.touched.contains(read.block) || read.blocks == 2 {
                return Some(read);
            }
        }
        if self.later.peek().is_some_and(|Reverse((due, _))| *due <= now) {
            return self.later.pop().map(|Reverse((_, read))| read);
        }
        let waiting = self.later.len() as u64;
        if waiting >= WAITING_MAX {
            return None;
        }
        let block = if self.touched.is_empty() && waiting + self.failed.len() >= HOPELESS {
            self.scout()?
        } else {
            self.walk.next(&self.todo)?
        };
        self.todo.remove(block);
        let pairs = match self.settings.straddle {
            Straddle::Auto => self.depth.pairs(),
            Straddle::On => self.grid.step >= 2 * u64::from(self.settings.read_size),
            Straddle::Off => false,
        };
        // Pairs begin at even blocks, so that every second border is crossed.
        let partner = block ^ 1;
        if pairs && self.todo.contains(partner) && self.last_is_whole(block.max(partner)) {
            self.todo.remove(partner);
            return Some(self.pair(block.min(partner)));
        }
        Some(self.single(block, 0))
    }

    /// Where nothing has answered yet, a few blocks from everywhere are tried, and then no other.
    fn scout(&mut self) -> Option<u64> {
        if self.scouts == HOPELESS {
            return None;
        }
        self.scouts += 1;
        let from = self.grid.blocks() / HOPELESS * (self.scouts - 1);
        self.todo.next_from(from).or_else(|| self.todo.next_from(0))
    }

    /// Whether the second half of a read across a border lies within the volume.
    fn last_is_whole(&self, block: u64) -> bool {
        block * self.grid.step + u64::from(self.settings.read_size) <= self.grid.size
    }

    fn single(&self, block: u64, attempt: u32) -> Read {
        let offset = block * self.grid.step;
        // The last block may be too short for it.
        let shifted = offset + self.settings.shift;
        let offset = if shifted < self.grid.size { shifted } else { offset };
        // The end of a file need not lie at a sector's; what comes back ends there all the same.
        let left = (self.grid.size - offset).next_multiple_of(u64::from(self.settings.sector));
        let length = u64::from(self.settings.read_size).min(left) as u32;
        Read { offset, length, block, blocks: 1, attempt, issued: Duration::ZERO, window: 0 }
    }

    fn pair(&self, block: u64) -> Read {
        let half = self.settings.read_size;
        let offset = (block + 1) * self.grid.step - u64::from(half);
        Read { offset, length: 2 * half, block, blocks: 2, attempt: 0, issued: Duration::ZERO, window: 0 }
    }

    /// What became of a read: bytes, or an error. Returns the blocks that are given up with it.
    pub fn completed(&mut self, read: Read, result: Result<u32, ReadError>, now: Duration) -> Vec<Failure> {
        self.in_flight -= 1;
        self.settle(read, result, now)
    }

    /// A read has not come back for too long: its block counts as failed, and others take its place.
    pub fn overdue(&mut self, read: Read) -> Vec<Failure> {
        self.in_flight -= 1;
        self.depth.held_back();
        if read.blocks == 2 {
            // Which half it is that hangs is not known.
            self.split(read);
            return Vec::new();
        }
        let failure = self.fail(read.block, ReadError::NoAnswer);
        self.give_up_where_nothing_answers(ReadError::NoAnswer);
        failure.into_iter().collect()
    }

    /// A read that was overdue has come back after all. A block that was read is no failure.
    pub fn answered_late(&mut self, read: Read, result: Result<u32, ReadError>) {
        if result.is_ok_and(|bytes| self.is_whole(&read, bytes)) {
            (read.block..read.block + u64::from(read.blocks)).for_each(|block| self.touch(block));
        }
    }

    fn settle(&mut self, read: Read, result: Result<u32, ReadError>, now: Duration) -> Vec<Failure> {
        let error = match result {
            Ok(bytes) if !self.is_whole(&read, bytes) && bytes < self.settings.sector => ReadError::Empty,
            Ok(bytes) => {
                self.came(read, bytes, now);
                return Vec::new();
            }
            Err(error) => error,
        };
        self.depth.held_back();
        if let ReadError::System(errno) = error
            && is_gone(errno)
        {
            self.given_up = Some(error);
        }
        if self.given_up.is_some() {
            // What is left stays cold, and is told as that.
            for block in read.block..read.block + u64::from(read.blocks) {
                self.todo.insert(block);
            }
            return Vec::new();
        }
        if read.blocks == 2 {
            // Which half it was is not known.
            self.split(read);
            return Vec::new();
        }
        if read.attempt < self.settings.retries {
            let due = now + RETRY_DELAY * (1 << read.attempt.min(10));
            self.later.push(Reverse((due, self.single(read.block, read.attempt + 1))));
            return Vec::new();
        }
        let failure = self.fail(read.block, error);
        self.give_up_where_nothing_answers(error);
        failure.into_iter().collect()
    }

    /// The two blocks of a read, one by one.
    fn split(&mut self, read: Read) {
        self.again.push_back(self.single(read.block, 0));
        self.again.push_back(self.single(read.block + 1, 0));
    }

    /// Those that are under way may still answer; as long as none has, no other is begun.
    fn give_up_where_nothing_answers(&mut self, error: ReadError) {
        let nothing = self.touched.is_empty() && self.in_flight == 0 && self.later.is_empty();
        if nothing && self.scouts == HOPELESS {
            self.given_up = Some(error);
        }
    }

    /// A block that another read of it has touched meanwhile is none that failed.
    fn fail(&mut self, block: u64, error: ReadError) -> Option<Failure> {
        (!self.touched.contains(block) && self.failed.insert(block)).then_some(Failure { block, error })
    }

    fn is_whole(&self, read: &Read, bytes: u32) -> bool {
        bytes >= read.length || read.offset + u64::from(bytes) >= self.grid.size
    }

    fn came(&mut self, read: Read, bytes: u32, now: Duration) {
        self.bytes += u64::from(bytes);
        let latency = now.saturating_sub(read.issued);
        let cold = self.latencies.add(latency);
        if !self.is_whole(&read, bytes) {
            // Only a whole read is known to have touched all of its blocks.
            self.depth.held_back();
            let whole = bytes - bytes % self.settings.sector;
            let rest = Read { offset: read.offset + u64::from(whole), length: read.length - whole, ..read };
            return self.again.push_front(rest);
        }
        (read.block..read.block + u64::from(read.blocks)).for_each(|block| self.touch(block));
        if cold {
            self.cold_blocks += u64::from(read.blocks);
        }
        self.depth.completed(read.window, read.blocks, latency, cold, now);
    }

    fn touch(&mut self, block: u64) {
        self.failed.remove(block);
        self.touched.insert(block);
        let word = (block / 64) as usize;
        self.fresh = match self.fresh.is_empty() {
            true => word..word + 1,
            false => self.fresh.start.min(word)..self.fresh.end.max(word + 1),
        };
    }

    /// The words of [`Self::touched`] that changed since this was asked last.
    pub fn take_fresh(&mut self) -> Range<usize> {
        std::mem::take(&mut self.fresh)
    }

    /// Whether every planned block was read or failed.
    pub fn is_finished(&self) -> bool {
        self.unsettled() == 0
    }

    /// Planned blocks that were neither read nor given up.
    fn unsettled(&self) -> u64 {
        self.planned - self.touched.len() - self.failed.len()
    }

    /// How it stands.
    pub fn status(&self) -> Status<'_> {
        Status {
            planned: self.planned,
            touched: self.touched.len(),
            before: self.before,
            failed: self.failed.len(),
            cold_blocks: self.cold_blocks,
            requests: self.requests,
            bytes: self.bytes,
            in_flight: self.in_flight,
            depth: self.depth.depth(),
            deepest: self.most_in_flight,
            knee: self.depth.knee(),
            pairs: self.settings.straddle == Straddle::On || self.depth.pairs(),
            latencies: &self.latencies,
            given_up: self.given_up,
        }
    }

    /// Blocks that were read, in this run or before.
    pub fn touched(&self) -> &BlockSet {
        &self.touched
    }

    /// Blocks that could not be read.
    pub fn failed(&self) -> &BlockSet {
        &self.failed
    }

    /// How long a read may take before it counts as failed.
    pub fn patience(&self) -> Duration {
        self.settings.patience
    }
}

/// How far the warm-up of a volume is.
#[derive(Clone, Copy, Debug)]
pub struct Status<'a> {
    /// Blocks that are to be read.
    pub planned: u64,
    /// Of these, read, in this run or before.
    pub touched: u64,
    /// Of these, in runs before.
    pub before: u64,
    /// Of the planned, given up.
    pub failed: u64,
    /// Blocks whose read took as long as a cold one does.
    pub cold_blocks: u64,
    /// Reads that were issued.
    pub requests: u64,
    /// Bytes that came back.
    pub bytes: u64,
    /// Reads under way.
    pub in_flight: u32,
    /// How many may be.
    pub depth: u32,
    /// How many there were at most.
    pub deepest: u32,
    /// Above this more brought nothing.
    pub knee: Option<u32>,
    /// Reads cross the borders of blocks.
    pub pairs: bool,
    /// Of all reads.
    pub latencies: &'a Latencies,
    /// The device answers no more.
    pub given_up: Option<ReadError>,
}

/// Errors after which a device answers nothing more: it was detached, or its medium is gone.
fn is_gone(errno: i32) -> bool {
    use rustix::io::Errno;
    [Errno::NODEV, Errno::NXIO, Errno::NOMEDIUM, Errno::SHUTDOWN, Errno::NOTCONN, Errno::BADF]
        .iter()
        .any(|gone| gone.raw_os_error() == errno)
}

#[cfg(test)]
mod tests;
