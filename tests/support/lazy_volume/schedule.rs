//! What happens when: reads that wait for chunks, chunks that wait to be fetched. Nothing here sleeps or blocks.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::time::Instant;

use fuser::ReplyData;

use super::chunks::{COLD, Chunks, HOLE, QUEUED, WARM};
use super::faults::{Faults, Outcome};
use super::pace::{Pace, Random};
use super::settings::{LARGEST_READ, Settings};

/// A read that has come and is not answered.
pub struct Read {
    pub offset: u64,
    pub length: u64,
    pub outcome: Outcome,
    pub reply: ReplyData,
    /// Not before, even with everything here.
    due: Instant,
    /// Chunks that it waits for.
    missing: usize,
}

/// What is counted besides touches.
#[derive(Clone, Copy, Default)]
pub struct Counters {
    pub reads: u64,
    pub bytes: u64,
    pub errors: u64,
    pub max_in_flight: usize,
    pub first: Option<Instant>,
    pub last: Option<Instant>,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Fetched { chunk: u64 },
    Due { read: u64 },
}

/// The state of a volume.
pub struct Schedule {
    pub chunks: Chunks,
    pub counters: Counters,
    settings: Settings,
    faults: Faults,
    random: Random,
    fetch_pace: Pace,
    read_pace: Pace,
    byte_pace: Pace,
    events: BinaryHeap<Reverse<(Instant, Event)>>,
    reads: HashMap<u64, Read>,
    next_read: u64,
    /// Chunks to be fetched, and how many are under way.
    line: VecDeque<u64>,
    fetching: usize,
    /// Of a chunk in the line or under way: the reads that need it.
    waiting: HashMap<u64, Vec<u64>>,
    /// Reads that hang, each with the chunk it hangs at.
    held: Vec<(u64, u64)>,
}

impl Schedule {
    /// Everything cold.
    pub fn new(settings: Settings, chunks: Chunks, random: Random) -> Self {
        Self {
            chunks,
            counters: Counters::default(),
            faults: Faults::new(&settings),
            random,
            fetch_pace: Pace::new(settings.rate),
            read_pace: Pace::new(settings.iops),
            byte_pace: Pace::new(settings.mibps),
            settings,
            events: BinaryHeap::new(),
            reads: HashMap::new(),
            next_read: 0,
            line: VecDeque::new(),
            fetching: 0,
            waiting: HashMap::new(),
            held: Vec::new(),
        }
    }

    /// Takes in a read of at least one byte that lies within the volume.
    pub fn submit(&mut self, now: Instant, offset: u64, length: u64, reply: ReplyData) {
        self.counters.reads += 1;
        self.counters.bytes += length;
        self.counters.first.get_or_insert(now);
        let id = self.next_read;
        self.next_read += 1;
        let due = self.due(now, length);
        let gone = self.faults.gone(self.counters.reads);
        let mut read = Read { offset, length, outcome: gone.unwrap_or(Outcome::Whole), reply, due, missing: 0 };
        for chunk in offset / self.settings.chunk..=(offset + length - 1) / self.settings.chunk {
            self.chunks.touch(chunk);
            self.need(id, &mut read, chunk);
        }
        if read.missing == 0 {
            self.events.push(Reverse((due, Event::Due { read: id })));
        }
        self.reads.insert(id, read);
        self.counters.max_in_flight = self.counters.max_in_flight.max(self.reads.len());
        self.start_fetches(now);
    }

    /// When the limits of the disk let a read through.
    fn due(&mut self, now: Instant, length: u64) -> Instant {
        let operations = length.div_ceil(u64::from(LARGEST_READ));
        let by_operations = self.read_pace.end(now, operations as f64);
        let by_bytes = self.byte_pace.end(now, length as f64 / f64::from(1 << 20));
        by_operations.max(by_bytes) + self.settings.warm_latency
    }

    /// What a chunk means for a read. A read that has failed fetches nothing any more.
    fn need(&mut self, id: u64, read: &mut Read, chunk: u64) {
        if matches!(read.outcome, Outcome::Failed(_)) {
            return;
        }
        match self.faults.meet(chunk) {
            Outcome::Whole => {}
            other => read.outcome = other,
        }
        if matches!(read.outcome, Outcome::Failed(_)) {
            return;
        }
        if self.faults.hangs(chunk) {
            self.held.push((id, chunk));
            read.missing += 1;
        } else if self.wait_for(id, chunk) {
            read.missing += 1;
        }
    }

    /// Whether the read has to wait for the chunk; several share one fetch.
    fn wait_for(&mut self, read: u64, chunk: u64) -> bool {
        match self.chunks.state(chunk) {
            HOLE | WARM => return false,
            COLD => {
                self.chunks.queue(chunk);
                self.line.push_back(chunk);
            }
            state => assert_eq!(state, QUEUED),
        }
        self.waiting.entry(chunk).or_default().push(read);
        true
    }

    fn start_fetches(&mut self, now: Instant) {
        while self.fetching < self.settings.par {
            let Some(chunk) = self.line.pop_front() else { return };
            self.fetching += 1;
            let begin = self.fetch_pace.begin(now, 1.0);
            let end = begin + self.random.cold_latency(&self.settings);
            self.events.push(Reverse((end, Event::Fetched { chunk })));
        }
    }

    /// Does what is due, and hands out the reads that are to be answered now.
    pub fn advance(&mut self, now: Instant) -> Vec<Read> {
        let mut answered = Vec::new();
        while self.next_event().is_some_and(|at| at <= now) {
            let Some(Reverse((_, event))) = self.events.pop() else { break };
            match event {
                Event::Fetched { chunk } => self.fetched(now, chunk),
                Event::Due { read } => answered.extend(self.reads.remove(&read)),
            }
        }
        if !answered.is_empty() {
            self.counters.last = Some(now);
        }
        let failed = |read: &&Read| matches!(read.outcome, Outcome::Failed(_));
        self.counters.errors += answered.iter().filter(failed).count() as u64;
        answered
    }

    /// When there is something to do.
    pub fn next_event(&self) -> Option<Instant> {
        self.events.peek().map(|Reverse((at, _))| *at)
    }

    fn fetched(&mut self, now: Instant, chunk: u64) {
        self.fetching -= 1;
        self.chunks.arrive(chunk);
        for read in self.waiting.remove(&chunk).unwrap_or_default() {
            self.has_one_more(now, read);
        }
        self.start_fetches(now);
    }

    fn has_one_more(&mut self, now: Instant, id: u64) {
        let Some(read) = self.reads.get_mut(&id) else { return };
        read.missing -= 1;
        if read.missing == 0 {
            self.events.push(Reverse((read.due.max(now), Event::Due { read: id })));
        }
    }

    /// Lets go of the reads that hang: they go on as if they came now.
    pub fn release(&mut self, now: Instant) {
        self.faults.release();
        for (read, chunk) in std::mem::take(&mut self.held) {
            if !self.wait_for(read, chunk) {
                self.has_one_more(now, read);
            }
        }
        self.start_fetches(now);
    }

    /// Reads that hang now.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// All that is not answered, and nothing will be.
    pub fn take_all(&mut self) -> Vec<Read> {
        self.events.clear();
        self.reads.drain().map(|(_, read)| read).collect()
    }

    /// As at the beginning. Reads on their way stay on it.
    pub fn reset(&mut self) {
        self.chunks.reset();
        self.counters = Counters::default();
        self.faults = Faults::new(&self.settings);
        self.fetch_pace = Pace::new(self.settings.rate);
        self.read_pace = Pace::new(self.settings.iops);
        self.byte_pace = Pace::new(self.settings.mibps);
    }
}
