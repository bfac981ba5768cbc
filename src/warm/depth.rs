//! How many reads a volume gets at once: the search for the knee, above which more depth brings nothing but latency.
//!
//! What is compared between two depths is the rate that Little's law gives for a window that is always full, depth ×
//! blocks / latency. Latencies don't depend on where a window happens to begin in a burst, which counts per second do.
//! A window is a number of reads in the order of their issue, not of their return: those that come back first are the fast
//! ones. The slowest twentieth is not waited for, so that one read in a hundred that takes thirty times as long decides
//! nothing.

use std::time::Duration;

/// The depth to begin with: the knee of the volumes that were measured.
const START: u32 = 64;
/// The same beside an application that must not notice.
const START_IN_BACKGROUND: u32 = 16;
/// It does not go below this, unless the device's time limit asks for it.
const LOWEST: u32 = 8;
/// Nor above this.
const HIGHEST: u32 = 512;
/// A step up must bring this many times the blocks; nothing limiting it would bring half more.
const GAIN_UP: f64 = 1.1;
/// A step down may cost this part of the blocks.
const KEPT_DOWN: f64 = 0.97;
/// Reading two blocks at once must bring this many times the blocks, of twice as many at best.
const GAIN_OF_PAIRS: f64 = 1.45;
/// Windows whose median tells what the depth in force yields.
const BASELINE: usize = 3;
/// Windows that have to agree.
const AGREEING: u32 = 2;
/// Reads in the smallest window.
const WINDOW_MIN: u32 = 64;
/// A window with fewer cold reads says nothing.
const COLD_MIN: u32 = 16;
/// A step down costs a little where it is wrong: short runs are spared it.
const FIRST_STEP_DOWN: Duration = Duration::from_secs(2);
/// The waits before another step in a direction that was wrong: doubled each time.
const PATIENCE: Duration = Duration::from_secs(2);
const PATIENCE_IN_BACKGROUND: Duration = Duration::from_secs(30);
const LONGEST_PATIENCE: Duration = Duration::from_secs(60);
/// How much of the device's time limit a read may be expected to take: a sixteenth.
const LIMIT_SHARE: u32 = 16;
/// So many reads in a row that took longer are no accident.
const SLOW_IN_A_ROW: u32 = 8;

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

/// Reads that belong together: so many, one issued after the other.
#[derive(Debug, Default)]
struct Window {
    /// Its reads carry it; 0 is no window.
    number: u32,
    issued: u32,
    returned: u32,
    cold: u32,
    cold_blocks: u64,
    spent: Duration,
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
    /// Rates of the trial under way.
    tried: Vec<f64>,
    up: Direction,
    down: Direction,
    pairs_tried: bool,
    /// A step up brought nothing: the volume or the way to it is the limit.
    knee: Option<u32>,
    /// Beyond this the device queues no more.
    ceiling: u32,
    /// What a read took in the last window.
    typical: Duration,
    /// Reads in a row that came too near the device's time limit, of those that were issued since `halved`.
    slow: u32,
    halved: Duration,
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
            // Number 0: the first reads find an empty queue and tell nothing about a full one.
            window: Window::default(),
            rates: Vec::new(),
            tried: Vec::new(),
            up: Direction::from(Duration::ZERO, if settings.background { PATIENCE_IN_BACKGROUND } else { PATIENCE }),
            down: Direction::from(FIRST_STEP_DOWN, PATIENCE),
            pairs_tried: !settings.try_pairs,
            knee: None,
            ceiling,
            typical: Duration::ZERO,
            slow: 0,
            halved: Duration::ZERO,
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

    /// Something else than the depth held reads back: what is measured now says nothing about it.
    pub fn held_back(&mut self) {
        if self.window.number != 0 {
            self.next_window();
        }
    }

    /// A read is issued; what is returned goes with it to [`Self::completed`].
    pub fn issued(&mut self) -> u32 {
        if self.window.number == 0 || self.window.issued == self.window_size() {
            return 0;
        }
        self.window.issued += 1;
        self.window.number
    }

    fn window_size(&self) -> u32 {
        self.depth().max(WINDOW_MIN)
    }

    /// A read of `blocks` blocks has come back, cold or not. `window`: what [`Self::issued`] returned.
    pub fn completed(&mut self, window: u32, blocks: u32, latency: Duration, cold: bool, now: Duration) {
        self.keep_from_the_limit(latency, now);
        if self.window.number == 0 {
            self.next_window();
        }
        if window == 0 || window != self.window.number {
            return;
        }
        self.window.returned += 1;
        self.window.spent += latency;
        if cold {
            self.window.cold += 1;
            self.window.cold_blocks += u64::from(blocks);
        }
        let size = self.window_size();
        if self.window.returned >= size - size / 20 {
            let window = self.next_window();
            if window.cold >= COLD_MIN {
                self.judge(&window, now);
            }
        }
    }

    /// Begins a window, and returns the one that ends.
    fn next_window(&mut self) -> Window {
        let number = self.window.number.wrapping_add(1).max(1);
        std::mem::replace(&mut self.window, Window { number, ..Window::default() })
    }

    fn judge(&mut self, window: &Window, now: Duration) {
        self.typical = window.spent / window.returned;
        if self.settings.fixed.is_some() && self.pairs_tried {
            return;
        }
        let rate = f64::from(self.depth()) * window.cold_blocks as f64 / window.spent.as_secs_f64().max(1e-9);
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

    /// Halves the depth when reads come near the device's own limit, at which it calls them failed. That waits for no
    /// window, which would take as long as many such reads do.
    fn keep_from_the_limit(&mut self, latency: Duration, now: Duration) {
        let Some(limit) = self.limit() else { return };
        if now.saturating_sub(latency) < self.halved {
            return;
        }
        self.slow = if latency > limit { self.slow + 1 } else { 0 };
        if self.slow < SLOW_IN_A_ROW {
            return;
        }
        let halved = (self.depth() / 2).max(1);
        if halved < self.depth() {
            tracing::warn!(
                "reads take {:.1} s, too near the {:.0} s after which the device gives up: down to {halved} at once",
                latency.as_secs_f64(),
                (limit * LIMIT_SHARE).as_secs_f64()
            );
        }
        (self.slow, self.halved) = (0, now);
        self.up.refused(now);
        self.tried.clear();
        self.settle(halved);
    }

    /// What a read may take.
    fn limit(&self) -> Option<Duration> {
        self.settings.io_timeout.map(|timeout| timeout / LIMIT_SHARE)
    }

    fn vote(&mut self, rate: f64) {
        let before = self.baseline();
        let good = match self.trial {
            Trial::Depth(depth) if depth < self.settled => rate >= before * KEPT_DOWN,
            Trial::Depth(_) => rate >= before * GAIN_UP,
            Trial::Pairs => rate >= before * GAIN_OF_PAIRS,
            Trial::None => return,
        };
        self.tried.push(rate);
        *if good { &mut self.agreed } else { &mut self.against } += 1;
    }

    fn decide(&mut self, now: Duration) {
        let better = self.agreed >= AGREEING;
        match self.trial {
            Trial::Pairs => {
                self.pairs_tried = true;
                if better {
                    self.pairs = !self.pairs;
                    self.settle(self.settled);
                } else {
                    self.end_trial();
                }
            }
            Trial::Depth(depth) if better => {
                if depth < self.settled {
                    self.knee = Some(depth);
                } else {
                    self.knee = None;
                }
                self.settle(depth);
            }
            Trial::Depth(depth) => {
                if depth < self.settled {
                    self.down.refused(now);
                } else {
                    self.up.refused(now);
                    self.knee = Some(self.settled);
                }
                self.end_trial();
            }
            Trial::None => {}
        }
    }

    /// Goes on with another depth, of which what the trial told is known.
    fn settle(&mut self, depth: u32) {
        self.settled = depth;
        self.rates = std::mem::take(&mut self.tried);
        self.end_trial();
    }

    fn end_trial(&mut self) {
        self.trial = Trial::None;
        self.tried.clear();
        (self.agreed, self.against) = (0, 0);
        self.next_window();
    }

    fn next_trial(&mut self, now: Duration) {
        let higher = (self.settled * 3 / 2).max(self.settled + 1).min(self.ceiling);
        let lower = (self.settled * 3 / 4).max(LOWEST);
        // Past the knee reads take longer in proportion.
        let too_slow = self.limit().is_some_and(|limit| self.typical * higher / self.settled.max(1) > limit);
        let trial = if !self.pairs_tried {
            Trial::Pairs
        } else if self.settings.fixed.is_some() {
            return;
        } else if higher > self.settled && now >= self.up.not_before && !too_slow {
            Trial::Depth(higher)
        } else if lower < self.settled && now >= self.down.not_before && !self.settings.background {
            Trial::Depth(lower)
        } else {
            return;
        };
        self.trial = trial;
        self.next_window();
    }

    fn baseline(&self) -> f64 {
        let mut rates = self.rates.clone();
        rates.sort_unstable_by(f64::total_cmp);
        let middle = |place: usize| rates.get(place).copied().unwrap_or(0.0);
        f64::midpoint(middle(rates.len() / 2), middle(rates.len().saturating_sub(1) / 2))
    }
}
