//! How much of a volume is still cold, judged by how long it takes to read it, and never by what is read: absent
//! blocks of encrypted volumes read as noise.

use std::time::Duration;

use super::blockset::BlockSet;
use super::latency::{COLD_FROM, Latencies};

/// A block is cold if it took so many times as long as one in a hundred blocks that are warm for certain.
const TIMES_WARM: u32 = 3;

/// `count` of the blocks in `all`, one at random in each of as many stretches of the same length.
pub fn sample(all: &BlockSet, count: u64) -> Result<BlockSet, getrandom::Error> {
    let (total, limit) = (all.len(), all.iter().last().map_or(0, |last| last + 1));
    let mut picked = BlockSet::new(limit);
    let count = count.min(total);
    let (mut stretch, mut chosen) = (0, 0);
    for (place, block) in (0..).zip(all.iter()) {
        // The stretch `n` has the places from n·total/count on.
        if stretch < count && place == begin(stretch, total, count) {
            let length = begin(stretch + 1, total, count) - place;
            chosen = place + getrandom::u64()? % length;
            stretch += 1;
        }
        if place == chosen {
            picked.insert(block);
        }
    }
    Ok(picked)
}

fn begin(stretch: u64, total: u64, count: u64) -> u64 {
    (u128::from(stretch) * u128::from(total) / u128::from(count)) as u64
}

/// What two readings of the same blocks say.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Blocks that were looked at.
    pub looked_at: u64,
    /// Of these, how many were cold.
    pub cold: u64,
    /// What was slower than this was cold.
    pub limit: Duration,
    /// Upper ends of latency classes, and how many blocks were in each at first reading and at second.
    pub classes: Vec<(Duration, u64, u64)>,
}

/// Judges the first reading by the second, in which the same blocks are warm for certain.
pub fn judge(first: &Latencies, second: &Latencies) -> Verdict {
    let limit = (second.all_at(0.99) * TIMES_WARM).max(COLD_FROM);
    let classes = (0..).map(|n| Duration::from_micros(125 << n)).take(20);
    let mut rows: Vec<(Duration, u64, u64)> = Vec::new();
    let mut below = Duration::ZERO;
    for class in classes {
        rows.push((class, first.between(below, class), second.between(below, class)));
        below = class;
    }
    let used = |row: &(Duration, u64, u64)| row.1 + row.2 > 0;
    let (from, to) = (rows.iter().position(used), rows.iter().rposition(used));
    let classes = from.zip(to).map(|(from, to)| rows[from..=to].to_vec()).unwrap_or_default();
    Verdict { looked_at: first.reads(), cold: first.between(limit, Duration::MAX), limit, classes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_spread_over_all() {
        let mut all = BlockSet::new(10_000);
        all.insert_range(1000..9000);
        let picked = sample(&all, 80).unwrap();
        assert_eq!(picked.len(), 80);
        for stretch in 0..80 {
            let range = 1000 + stretch * 100..1100 + stretch * 100;
            assert_eq!(picked.iter().filter(|block| range.contains(block)).count(), 1, "{range:?}");
        }
        assert_eq!(sample(&all, 8000).unwrap().len(), 8000);
        assert_eq!(sample(&all, 9_999).unwrap().len(), 8000);
        assert!(sample(&BlockSet::new(10), 5).unwrap().is_empty());
    }

    #[test]
    fn cold_is_what_warm_blocks_never_take() {
        let reading = |latencies: &[(u64, usize)]| {
            let mut all = Latencies::default();
            for &(micros, times) in latencies {
                for _ in 0..times {
                    all.add(Duration::from_micros(micros));
                }
            }
            all
        };
        let verdict = judge(&reading(&[(400, 90), (25_000, 10)]), &reading(&[(400, 100)]));
        assert_eq!((verdict.looked_at, verdict.cold), (100, 10));
        // A disk that turns is slow at everything.
        let verdict = judge(&reading(&[(12_000, 95), (90_000, 5)]), &reading(&[(12_000, 100)]));
        assert_eq!(verdict.cold, 5);
        let verdict = judge(&reading(&[(12_000, 100)]), &reading(&[(12_000, 100)]));
        assert_eq!((verdict.cold, verdict.classes.iter().map(|class| class.1).sum::<u64>()), (0, 100));
    }
}
