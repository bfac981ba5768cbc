//! How many reads a volume gets at once: the search for the knee, above which more depth brings nothing but latency.
//!
//! What is compared between two depths is the rate that Little's law gives for a window that is always full, depth ×
//! blocks / latency. Latencies don't depend on where a window happens to begin in a burst, which counts per second do.
//! Medians are taken, so that one read in a hundred that takes thirty times as long decides nothing.

use std::time::Duration;

/// The depth to begin with: the knee of the volumes that were measured.
const START: u32 = 64;
/// The same beside an application that must not notice.
const START_IN_BACKGROUND: u32 = 16;
/// It does not go below this, unless the device's time limit asks for it.
const LOWEST: u32 = 8;
/// Nor above this.
const HIGHEST: u32 = 512;
/// A step up must bring this many times the blocks, of the half more that it would bring if nothing limited it.
const GAIN_UP: f64 = 1.25;
/// A step down may cost this part of the blocks.
const KEPT_DOWN: f64 = 0.95;
/// Reading two blocks at once must bring this many times the blocks, of twice as many at best.
const GAIN_OF_PAIRS: f64 = 1.3;
/// Windows whose median tells what the depth in force yields.
const BASELINE: usize = 3;
/// Windows that have to agree.
const AGREEING: u32 = 2;
/// Cold reads in the smallest window.
const WINDOW_MIN: usize = 48;
/// A step down costs a little where it is wrong: short runs are spared it.
const FIRST_STEP_DOWN: Duration = Duration::from_secs(2);
/// The waits before another step in a direction that was wrong: doubled each time.
const PATIENCE: Duration = Duration::from_secs(2);
const PATIENCE_IN_BACKGROUND: Duration = Duration::from_secs(30);
const LONGEST_PATIENCE: Duration = Duration::from_secs(60);
/// How much of the device's time limit a read may be expected to take: a sixteenth.
const LIMIT_SHARE: u32 = 16;

/// How the depth of one volume is found.
#[derive(Clone, Copy, Debug)]
pub struct DepthSettings {
    /// Given by the person; nothing is searched for then.
    pub fixed: Option<u32>,
    /// The device queues no more.
    pub queue: Option<u32>,
    /// The device gives up on a read after so long.
    pub io_timeout: Option<Duration>,
    /// Stay below the knee.
    pub background: bool,
    /// Try whether reads across the border of two blocks pay.
    pub try_pairs: bool,
}

/// What is tried now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trial {
    None,
    /// Another depth.
    Depth(u32),
    /// The same depth with pairs.
    Pairs,
}

/// Reads that belong together.
#[derive(Debug, Default)]
struct Window {
    /// Only reads that were issued from here on count.
    since: Duration,
    cold: Vec<Duration>,
    cold_blocks: u64,
    warm: Duration,
    /// Something else than the depth limited the reads.
    spoilt: bool,
}

/// A direction in which a step may be tried.
#[derive(Debug)]
struct Direction {
    not_before: Duration,
    patience: Duration,
}

impl Direction {
    fn from(start: Duration, patience: Duration) -> Self {
        Self { not_before: start, patience }
    }

    fn refused(&mut self, now: Duration) {
        self.not_before = now + self.patience;
        self.patience = (self.patience * 2).min(LONGEST_PATIENCE);
    }
}

/// The controller of one volume.
#[derive(Debug)]
pub struct DepthControl {
    settings: DepthSettings,
    /// What proved best so far.
    settled: u32,
    pairs: bool,
    trial: Trial,
    agreed: u32,
    against: u32,
    window: Window,
    /// Rates at the settled depth, newest last.
    rates: Vec<f64>,
    up: Direction,
    down: Direction,
    pairs_tried: bool,
    /// A step up brought nothing: the volume or the way to it is the limit.
    knee: Option<u32>,
    /// A read is expected to come too near the time limit beyond this.
    ceiling: u32,
    deepest: u32,
}

impl DepthControl {
    /// At the beginning of a run.
    pub fn new(settings: DepthSettings) -> Self {
        let start = if settings.background { START_IN_BACKGROUND } else { START };
        let ceiling = settings.queue.map_or(HIGHEST, |queue| queue.clamp(LOWEST, HIGHEST));
        let settled = settings.fixed.unwrap_or(start.min(ceiling));
        Self {
            settled,
            pairs: false,
            trial: Trial::None,
            agreed: 0,
            against: 0,
            window: Window::default(),
            rates: Vec::new(),
            up: Direction::from(Duration::ZERO, if settings.background { PATIENCE_IN_BACKGROUND } else { PATIENCE }),
            down: Direction::from(FIRST_STEP_DOWN, PATIENCE),
            pairs_tried: !settings.try_pairs,
            knee: None,
            ceiling,
            deepest: settled,
            settings,
        }
    }

    /// How many reads may be under way now.
    pub fn depth(&self) -> u32 {
        match self.trial {
            Trial::Depth(depth) => depth,
            // Half of what the volume can take leaves the application its share.
            _ if self.rests() => (self.settled / 2).max(1),
            _ => self.settled,
        }
    }

    /// In the background, between one search for the knee and the next.
    fn rests(&self) -> bool {
        self.settings.background && self.knee.is_some() && self.trial == Trial::None && self.rates.len() >= BASELINE
    }

    /// Whether reads across the border of two blocks are to be issued.
    pub fn pairs(&self) -> bool {
        self.pairs != (self.trial == Trial::Pairs)
    }

    /// The depth above which more brought nothing, once it is known.
    pub fn knee(&self) -> Option<u32> {
        self.knee
    }

    /// The greatest depth that was in force.
    pub fn deepest(&self) -> u32 {
        self.deepest
    }

    /// Something else than the depth held reads back: what is measured now says nothing about it.
    pub fn held_back(&mut self) {
        self.window.spoilt = true;
    }

    /// A read of `blocks` blocks that was issued at `issued` has come back, cold or not.
    pub fn completed(&mut self, blocks: u32, issued: Duration, now: Duration, cold: bool) {
        if issued < self.window.since {
            return;
        }
        let latency = now.saturating_sub(issued);
        if cold {
            self.window.cold.push(latency);
            self.window.cold_blocks += u64::from(blocks);
        } else {
            self.window.warm += latency;
        }
        if self.window.cold.len() < WINDOW_MIN.max(self.depth() as usize) {
            return;
        }
        let window = std::mem::replace(&mut self.window, Window { since: now, ..Window::default() });
        self.judge(window, now);
    }

    fn judge(&mut self, mut window: Window, now: Duration) {
        window.cold.sort_unstable();
        let median = window.cold[window.cold.len() / 2];
        if self.keep_from_the_limit(median, now) || window.spoilt || self.settings.fixed.is_some() && self.pairs_tried {
            return;
        }
        let spent = median.as_secs_f64() * window.cold.len() as f64 + window.warm.as_secs_f64();
        let rate = f64::from(self.depth()) * window.cold_blocks as f64 / spent.max(1e-9);
        if self.rests() {
            if now >= self.up.not_before {
                self.rates.clear();
            }
            return;
        }
        if self.trial == Trial::None {
            self.rates.push(rate);
            if self.rates.len() > BASELINE {
                self.rates.remove(0);
            }
        } else {
            self.vote(rate);
            if self.agreed < AGREEING && self.against < AGREEING {
                return;
            }
            self.decide(now);
        }
        if self.trial == Trial::None && self.rates.len() >= AGREEING as usize {
            self.next_trial(now);
        }
    }

    /// Halves the depth when reads come near the device's own limit, at which it calls them failed.
    fn keep_from_the_limit(&mut self, median: Duration, now: Duration) -> bool {
        let Some(limit) = self.settings.io_timeout.filter(|limit| median > *limit / LIMIT_SHARE) else { return false };
        let halved = (self.depth() / 2).max(1);
        if halved < self.depth() {
            tracing::warn!(
                "reads take {:.1} s, and the device gives up after {:.0} s: down to {halved} at once",
                median.as_secs_f64(),
                limit.as_secs_f64()
            );
        }
        self.ceiling = halved;
        self.settle(halved, now);
        true
    }

    fn vote(&mut self, rate: f64) {
        let before = self.baseline();
        let good = match self.trial {
            Trial::Depth(depth) if depth < self.settled => rate >= before * KEPT_DOWN,
            Trial::Depth(_) => rate >= before * GAIN_UP,
            Trial::Pairs => rate >= before * GAIN_OF_PAIRS,
            Trial::None => return,
        };
        if good { self.agreed += 1 } else { self.against += 1 }
    }

    fn decide(&mut self, now: Duration) {
        let better = self.agreed >= AGREEING;
        match self.trial {
            Trial::Pairs => {
                self.pairs_tried = true;
                self.pairs ^= better;
                self.settle(self.settled, now);
            }
            Trial::Depth(depth) if better => {
                if depth < self.settled {
                    self.knee = Some(depth);
                } else {
                    self.knee = None;
                }
                self.settle(depth, now);
            }
            Trial::Depth(depth) => {
                if depth < self.settled {
                    self.down.refused(now);
                } else {
                    self.up.refused(now);
                    self.knee = Some(self.settled);
                }
                self.end_trial(now);
            }
            Trial::None => {}
        }
    }

    /// Goes on with another depth, of which nothing is known yet.
    fn settle(&mut self, depth: u32, now: Duration) {
        self.settled = depth;
        self.rates.clear();
        self.end_trial(now);
    }

    fn end_trial(&mut self, now: Duration) {
        self.trial = Trial::None;
        (self.agreed, self.against) = (0, 0);
        self.window = Window { since: now, ..Window::default() };
    }

    fn next_trial(&mut self, now: Duration) {
        let (higher, lower) = ((self.settled * 3 / 2).min(self.ceiling), (self.settled * 3 / 4).max(LOWEST));
        let trial = if !self.pairs_tried {
            Trial::Pairs
        } else if self.settings.fixed.is_some() {
            return;
        } else if higher > self.settled && now >= self.up.not_before {
            Trial::Depth(higher)
        } else if lower < self.settled && now >= self.down.not_before && !self.settings.background {
            Trial::Depth(lower)
        } else {
            return;
        };
        self.trial = trial;
        self.deepest = self.deepest.max(self.depth());
        self.window = Window { since: now, ..Window::default() };
    }

    fn baseline(&self) -> f64 {
        let mut rates = self.rates.clone();
        rates.sort_unstable_by(f64::total_cmp);
        rates.get(rates.len() / 2).copied().unwrap_or(0.0)
    }
}
