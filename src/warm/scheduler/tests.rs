//! The scheduler against volumes that exist on paper alone, in their own time.

use super::*;
use crate::warm::plan::Wishes;

const MS: Duration = Duration::from_millis(1);
const STEP: u64 = 512 * 1024;

/// A lazily loaded volume: so many blocks come in at once, each in `cold`, no more than `rate` a second; reads are
/// taken from the queue no faster than `iops`.
struct Service {
    parallel: usize,
    cold: Duration,
    /// Added to one read in `tail.0`.
    tail: (u64, Duration),
    rate: f64,
    iops: f64,
    /// The device hands on no more than this at once.
    queue: usize,
    /// Nothing comes back in this stretch of time.
    pause: std::ops::Range<Duration>,
    bad: Vec<u64>,
    flaky: Vec<u64>,
}

impl Default for Service {
    fn default() -> Self {
        Self {
            parallel: 64,
            cold: 20 * MS,
            tail: (u64::MAX, Duration::ZERO),
            rate: f64::INFINITY,
            iops: f64::INFINITY,
            queue: usize::MAX,
            pause: Duration::MAX..Duration::MAX,
            bad: Vec::new(),
            flaky: Vec::new(),
        }
    }
}

struct Run {
    took: Duration,
    /// How often each block was read successfully.
    touches: Vec<u32>,
    failures: Vec<Failure>,
    deepest: u32,
    /// The depth in force over time, as often as a read was issued.
    depths: Vec<u32>,
    pairs: u64,
}

fn settings() -> Settings {
    let depth = DepthSettings { fixed: None, queue: None, io_timeout: None, background: false, try_pairs: false };
    Settings {
        read_size: 4096,
        sector: 512,
        shift: 0,
        retries: 3,
        max_iops: None,
        straddle: Straddle::Off,
        patience: Duration::from_secs(120),
        depth,
    }
}

fn whole(blocks: u64) -> Plan {
    Plan::new(Grid { size: blocks * STEP, step: STEP }, &Wishes::default()).unwrap()
}

/// Reads that are on their way, by the time of their coming back.
struct Flight {
    free: Vec<Duration>,
    queued: Vec<Duration>,
    next_start: Duration,
    next_token: Duration,
    number: u64,
}

impl Service {
    fn run(&self, blocks: u64, settings: Settings) -> Run {
        let plan = whole(blocks);
        let mut scheduler = Scheduler::new(&plan, BlockSet::new(blocks), settings);
        let mut run = Run {
            took: Duration::ZERO,
            touches: vec![0; blocks as usize],
            failures: Vec::new(),
            deepest: 0,
            depths: Vec::new(),
            pairs: 0,
        };
        let mut flight = Flight {
            free: vec![Duration::ZERO; self.parallel],
            queued: Vec::new(),
            next_start: Duration::ZERO,
            next_token: Duration::ZERO,
            number: 0,
        };
        let (mut now, mut flaky) = (Duration::ZERO, self.flaky.clone());
        let mut under_way: BinaryHeap<Reverse<(Duration, Read)>> = BinaryHeap::new();
        loop {
            let mut wake = Duration::MAX;
            loop {
                match scheduler.next_read(now) {
                    Next::Read(read) => {
                        run.depths.push(scheduler.status().depth);
                        run.pairs += u64::from(read.blocks == 2);
                        under_way.push(Reverse((self.answers_at(&read, now, &mut flight), read)));
                    }
                    Next::At(at) => {
                        wake = at;
                        break;
                    }
                    Next::Wait | Next::Done => break,
                }
            }
            run.deepest = run.deepest.max(scheduler.status().in_flight);
            let due = under_way.peek().map_or(Duration::MAX, |Reverse((due, _))| *due);
            if due == Duration::MAX && wake == Duration::MAX {
                break;
            }
            now = now.max(due.min(wake));
            while let Some(Reverse((_, read))) = under_way.peek().copied().filter(|Reverse((due, _))| *due <= now) {
                under_way.pop();
                let result = self.result(&read, &mut flaky);
                if result.is_ok() {
                    (read.block..read.block + u64::from(read.blocks))
                        .for_each(|block| run.touches[block as usize] += 1);
                }
                run.failures.extend(scheduler.completed(read, result, now));
            }
        }
        assert!(scheduler.is_finished() || scheduler.status().given_up.is_some());
        run.took = now;
        run
    }

    fn result(&self, read: &Read, flaky: &mut Vec<u64>) -> Result<u32, ReadError> {
        let blocks = read.block..read.block + u64::from(read.blocks);
        if self.bad.iter().any(|block| blocks.contains(block)) {
            return Err(ReadError::System(5));
        }
        if let Some(place) = flaky.iter().position(|block| blocks.contains(block)) {
            flaky.remove(place);
            return Err(ReadError::System(5));
        }
        Ok(read.length)
    }

    fn answers_at(&self, read: &Read, now: Duration, flight: &mut Flight) -> Duration {
        flight.queued.retain(|done| *done > now);
        flight.queued.sort_unstable();
        let waits = flight.queued.len() + 1;
        // Behind a full queue a read begins when enough of those before it have come back.
        let admitted = if waits > self.queue { flight.queued[waits - 1 - self.queue] } else { now };
        let admitted = admitted.max(flight.next_token);
        flight.next_token = admitted + seconds(1.0 / self.iops);
        let mut done = admitted;
        for _ in 0..read.blocks {
            flight.number += 1;
            let slot = flight.free.iter_mut().min().unwrap();
            let start = admitted.max(*slot).max(flight.next_start);
            flight.next_start = start + seconds(1.0 / self.rate);
            // A little unevenness, as in life: a fifth more or less.
            let uneven = f64::from((flight.number.wrapping_mul(2_654_435_761) >> 7) as u8) / 255.0 * 0.4 + 0.8;
            let mut cold = self.cold.mul_f64(uneven);
            if flight.number.is_multiple_of(self.tail.0) {
                cold += self.tail.1;
            }
            *slot = start + cold;
            done = done.max(*slot);
        }
        if self.pause.contains(&done) {
            done = self.pause.end;
        }
        flight.queued.push(done);
        done
    }

    /// What the volume itself needs for so many blocks.
    fn ideal(&self, blocks: u64) -> Duration {
        let parallel = self.parallel.min(self.queue) as f64;
        let service = blocks as f64 * self.cold.as_secs_f64() / parallel;
        seconds(service.max(blocks as f64 / self.rate).max(blocks as f64 / self.iops))
    }
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.clamp(0.0, 1e6))
}

fn assert_within(took: Duration, ideal: Duration, percent: f64) {
    let over = (took.as_secs_f64() / ideal.as_secs_f64() - 1.0) * 100.0;
    assert!(over < percent, "{took:?} is {over:.0} % over {ideal:?}");
}

#[test]
fn every_block_is_touched_once() {
    for straddle in [Straddle::Off, Straddle::On, Straddle::Auto] {
        for blocks in [1, 2, 3, 64, 1407] {
            let run = Service::default().run(blocks, Settings { straddle, ..settings() });
            assert!(run.touches.iter().all(|touches| *touches == 1), "{straddle:?} {blocks}");
            assert_eq!(run.pairs, if straddle == Straddle::On { blocks / 2 } else { run.pairs });
        }
    }
}

#[test]
fn the_window_is_full_and_nothing_waits_for_the_slowest() {
    let service = Service::default();
    assert_within(service.run(1407, settings()).took, service.ideal(1407), 10.0);
    let tails = Service { tail: (50, 600 * MS), ..Service::default() };
    let mean = Service { cold: 20 * MS + 12 * MS, ..Service::default() };
    assert_within(tails.run(14_000, settings()).took, mean.ideal(14_000), 10.0);
}

#[test]
fn the_knee_is_found_from_either_side() {
    for (parallel, rate) in [(64, f64::INFINITY), (250, f64::INFINITY), (16, f64::INFINITY), (64, 223.0 * 4.0)] {
        let service = Service { parallel, rate, ..Service::default() };
        let run = service.run(40_000, settings());
        assert_within(run.took, service.ideal(40_000), 10.0);
        let knee = (parallel as f64).min(rate * 0.02);
        let last = f64::from(*run.depths.last().unwrap());
        assert!(last >= knee * 0.9 && last <= knee * 1.8 + 8.0, "{last} at the end, where {knee} is right");
    }
}

#[test]
fn one_disturbed_moment_decides_nothing() {
    for at in [100, 200, 400, 800, 1600, 3200] {
        let service = Service { parallel: 250, pause: at * MS..(at + 300) * MS, ..Service::default() };
        let run = service.run(40_000, settings());
        assert_within(run.took, service.ideal(40_000) + 300 * MS, 20.0);
        assert!(*run.depths.last().unwrap() >= 200, "{at}: {}", run.depths.last().unwrap());
    }
}

#[test]
fn depth_stays_within_its_bounds() {
    let run = Service { parallel: 5000, ..Service::default() }.run(100_000, settings());
    assert_eq!(run.deepest, 512);
    let run = Service { parallel: 2, ..Service::default() }.run(4_000, settings());
    assert!(run.depths.iter().all(|depth| *depth >= 8) && *run.depths.last().unwrap() <= 12);
    let fixed = Settings { depth: DepthSettings { fixed: Some(3), ..settings().depth }, ..settings() };
    assert_eq!(Service::default().run(1000, fixed).deepest, 3);
    let queue = Settings { depth: DepthSettings { queue: Some(32), ..settings().depth }, ..settings() };
    assert_eq!(Service { parallel: 500, ..Service::default() }.run(5000, queue).deepest, 32);
}

#[test]
fn reads_stay_far_from_the_limit_of_the_device() {
    let depth = DepthSettings { io_timeout: Some(Duration::from_secs(30)), ..settings().depth };
    let service = Service { parallel: 1, cold: 300 * MS, ..Service::default() };
    for fixed in [None, Some(64)] {
        let run = service.run(1000, Settings { depth: DepthSettings { fixed, ..depth }, ..settings() });
        let last = *run.depths.last().unwrap();
        assert!(last <= 6, "{last} reads of 0.3 s, one after another");
    }
}

/// A machine that was held up for a while does not read at half the depth for the rest of its run.
#[test]
fn a_pause_costs_no_depth_for_ever() {
    let depth = DepthSettings { io_timeout: Some(Duration::from_secs(30)), ..settings().depth };
    let service = Service { pause: 400 * MS..3_400 * MS, ..Service::default() };
    let run = service.run(60_000, Settings { depth, ..settings() });
    assert!(run.depths.iter().any(|depth| *depth < 64), "reads of three seconds are near the limit");
    assert!(*run.depths.last().unwrap() >= 48, "{} at the end", run.depths.last().unwrap());
    assert_within(run.took, service.ideal(60_000) + 3_000 * MS, 20.0);
}

#[test]
fn in_the_background_depth_stays_below_the_knee() {
    let background = Settings { depth: DepthSettings { background: true, ..settings().depth }, ..settings() };
    let run = Service::default().run(60_000, background);
    let mut depths = run.depths.clone();
    depths.sort_unstable();
    assert!(depths[depths.len() / 2] <= 48, "half of the time at {}", depths[depths.len() / 2]);
}

#[test]
fn pairs_are_kept_where_they_pay() {
    let auto = Settings {
        straddle: Straddle::Auto,
        depth: DepthSettings { try_pairs: true, ..settings().depth },
        ..settings()
    };
    let always = Settings { straddle: Straddle::On, ..settings() };
    for service in [Service { iops: 1000.0, ..Service::default() }, Service { queue: 16, ..Service::default() }] {
        let without = service.run(8000, settings()).took.as_secs_f64();
        let gain = without / service.run(8000, always).took.as_secs_f64();
        assert!(gain > 1.8, "{gain:.2} times with all pairs");
        let gain = without / service.run(8000, auto).took.as_secs_f64();
        assert!(gain > 1.6, "{gain:.2} times by itself");
    }
    for service in [Service::default(), Service { rate: 800.0, ..Service::default() }] {
        let run = service.run(8000, auto);
        assert!(run.pairs < 700, "{} pairs where they bring nothing", run.pairs);
        assert_within(run.took, service.ideal(8000), 10.0);
    }
}

#[test]
fn bad_blocks_are_told_and_only_they() {
    for straddle in [Straddle::Off, Straddle::On] {
        let service = Service { bad: vec![3, 500, 501, 999], flaky: vec![7, 7, 7, 8, 600], ..Service::default() };
        let run = service.run(1000, Settings { straddle, ..settings() });
        let mut failed: Vec<u64> = run.failures.iter().map(|failure| failure.block).collect();
        failed.sort_unstable();
        assert_eq!(failed, [3, 500, 501, 999], "{straddle:?}");
        let untouched = run.touches.iter().filter(|touches| **touches == 0).count();
        assert_eq!(untouched, 4, "{straddle:?}");
        assert!(run.touches.iter().all(|touches| *touches <= 1));
    }
}

#[test]
fn a_device_that_answers_nothing_is_given_up() {
    let service = Service { bad: (0..100_000).collect(), ..Service::default() };
    let run = service.run(100_000, settings());
    assert!(run.depths.len() < 2000, "{} reads of a dead device", run.depths.len());
}

#[test]
fn a_rate_that_was_asked_for_is_kept() {
    for (iops, blocks) in [(100, 300), (1000, 3000)] {
        let run = Service::default().run(blocks, Settings { max_iops: Some(iops), ..settings() });
        let rate = blocks as f64 / run.took.as_secs_f64();
        assert!(rate <= f64::from(iops) * 1.05 && rate > f64::from(iops) * 0.9, "{rate:.0} a second, {iops} allowed");
    }
}

fn only_read(scheduler: &mut Scheduler, now: Duration) -> Read {
    match scheduler.next_read(now) {
        Next::Read(read) => read,
        other => panic!("{other:?}"),
    }
}

#[test]
fn short_reads_go_on_where_they_ended() {
    let mut scheduler = Scheduler::new(&whole(1), BlockSet::new(1), settings());
    let read = only_read(&mut scheduler, MS);
    assert!(scheduler.completed(read, Ok(1500), 2 * MS).is_empty());
    let rest = only_read(&mut scheduler, 2 * MS);
    assert_eq!((rest.offset, rest.length), (1024, 4096 - 1024));
    assert!(!scheduler.is_finished());
    scheduler.completed(rest, Ok(3072), 3 * MS);
    assert!(scheduler.is_finished() && scheduler.touched().len() == 1);
}

#[test]
fn a_volume_ends_where_it_ends() {
    let grid = Grid { size: STEP + 700, step: STEP };
    let mut scheduler = Scheduler::new(&Plan::new(grid, &Wishes::default()).unwrap(), BlockSet::new(2), settings());
    let (first, last) = (only_read(&mut scheduler, MS), only_read(&mut scheduler, MS));
    assert_eq!((last.offset, last.length), (STEP, 1024), "reads are whole sectors");
    scheduler.completed(first, Ok(4096), 2 * MS);
    scheduler.completed(last, Ok(700), 2 * MS);
    assert!(scheduler.is_finished());
    // Where there should be something and nothing comes, the device is smaller than it said.
    let mut scheduler = Scheduler::new(&whole(2), BlockSet::new(2), Settings { retries: 0, ..settings() });
    let read = only_read(&mut scheduler, MS);
    assert_eq!(scheduler.completed(read, Ok(0), 2 * MS), [Failure { block: 0, error: ReadError::Empty }]);
}

#[test]
fn what_was_touched_before_is_left_alone() {
    let mut before = BlockSet::new(100);
    before.insert_range(0..99);
    let mut scheduler = Scheduler::new(&whole(100), before, settings());
    assert_eq!(only_read(&mut scheduler, MS).block, 99);
    assert_eq!(scheduler.next_read(MS), Next::Wait);
    assert_eq!((scheduler.status().planned, scheduler.status().touched), (100, 99));
}

#[test]
fn a_read_that_never_comes_back_is_a_failure_of_its_own_block() {
    let mut scheduler = Scheduler::new(&whole(2), BlockSet::new(2), settings());
    let (stuck, other) = (only_read(&mut scheduler, MS), only_read(&mut scheduler, MS));
    scheduler.completed(other, Ok(4096), 2 * MS);
    assert_eq!(scheduler.overdue(stuck), [Failure { block: 0, error: ReadError::NoAnswer }]);
    assert!(scheduler.is_finished() && scheduler.next_read(MS) == Next::Done);
    scheduler.answered_late(stuck, Ok(4096));
    assert_eq!((scheduler.touched().len(), scheduler.failed().len()), (2, 0));
}

/// Its blocks are read one by one meanwhile, and one of them may hang again: what was touched is no failure, whichever
/// comes first.
#[test]
fn a_pair_that_comes_back_late_is_counted_once() {
    for late in [0, 1, 2] {
        let always = Settings { straddle: Straddle::On, ..settings() };
        let mut scheduler = Scheduler::new(&whole(4), BlockSet::new(4), always);
        let (stuck, other) = (only_read(&mut scheduler, MS), only_read(&mut scheduler, MS));
        assert_eq!((stuck.blocks, other.blocks), (2, 2));
        scheduler.completed(other, Ok(other.length), 2 * MS);
        assert_eq!(scheduler.overdue(stuck), [], "which half it is is not known");
        let came = |scheduler: &mut Scheduler, at| {
            if at == late {
                scheduler.answered_late(stuck, Ok(stuck.length));
            }
        };
        came(&mut scheduler, 0);
        if late == 0 {
            assert_eq!(scheduler.next_read(MS), Next::Done, "there is nothing left to be read");
        } else {
            let (first, second) = (only_read(&mut scheduler, MS), only_read(&mut scheduler, MS));
            scheduler.completed(second, Ok(4096), 3 * MS);
            came(&mut scheduler, 1);
            scheduler.overdue(first);
            came(&mut scheduler, 2);
        }
        assert!(scheduler.is_finished(), "{late}");
        assert_eq!((scheduler.status().touched, scheduler.status().failed), (4, 0), "{late}");
    }
}

#[test]
fn a_device_that_is_gone_is_not_asked_again() {
    let mut scheduler = Scheduler::new(&whole(10), BlockSet::new(10), settings());
    let (one, two) = (only_read(&mut scheduler, MS), only_read(&mut scheduler, MS));
    scheduler.completed(one, Ok(4096), 2 * MS);
    let gone = ReadError::System(rustix::io::Errno::NXIO.raw_os_error());
    scheduler.completed(two, Err(gone), 2 * MS);
    assert_eq!(scheduler.next_read(3 * MS), Next::Done);
    let status = scheduler.status();
    assert_eq!((status.given_up, status.touched, status.failed), (Some(gone), 1, 0));
}
