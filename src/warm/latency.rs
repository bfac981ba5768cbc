//! How long reads took, and which of them brought a block in.

use std::time::Duration;

use hdrhistogram::Histogram;

/// A read that took longer than this brought its block in, or waited behind reads that did. Volumes on SSDs answer
/// warm reads in under a millisecond; a first access was seen to take 30 to 140 ms.
pub const COLD_FROM: Duration = Duration::from_millis(3);

/// Latencies of the reads of one volume, sorted into cold and warm ones.
#[derive(Debug, Clone)]
pub struct Latencies {
    /// In microseconds.
    cold: Histogram<u32>,
    /// In microseconds.
    warm: Histogram<u32>,
}

/// Half of the reads were as fast as `p50`, 99 of 100 as fast as `p99`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Percentiles {
    /// How many reads.
    pub reads: u64,
    /// The median.
    pub p50: Duration,
    /// What one of 100 exceeds.
    pub p99: Duration,
}

impl Default for Latencies {
    fn default() -> Self {
        let empty = || {
            let mut histogram = Histogram::new(2).unwrap_or_else(|_| unreachable!("two digits are allowed"));
            histogram.auto(true);
            histogram
        };
        Self { cold: empty(), warm: empty() }
    }
}

impl Latencies {
    /// Counts a read; says whether it was a cold one.
    pub fn add(&mut self, latency: Duration) -> bool {
        let cold = latency >= COLD_FROM;
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        let histogram = if cold { &mut self.cold } else { &mut self.warm };
        // It grows as needed; a number that is too large even then is left out.
        let _ = histogram.record(micros);
        cold
    }

    /// Adds those of another volume.
    pub fn merge(&mut self, other: &Self) {
        // Both grow as needed.
        let _ = self.cold.add(&other.cold);
        let _ = self.warm.add(&other.warm);
    }

    /// How many reads.
    pub fn reads(&self) -> u64 {
        self.cold.len() + self.warm.len()
    }

    /// How many reads took at least `from` and less than `to`, as exactly as two digits are.
    pub fn between(&self, from: Duration, to: Duration) -> u64 {
        let inside = |micros: u64| (from..to).contains(&Duration::from_micros(micros));
        let of = |histogram: &Histogram<u32>| -> u64 {
            let recorded = histogram.iter_recorded().filter(|value| inside(value.value_iterated_to()));
            recorded.map(|value| u64::from(value.count_at_value())).sum()
        };
        of(&self.cold) + of(&self.warm)
    }

    /// What the share `quantile` of all reads did not exceed.
    pub fn all_at(&self, quantile: f64) -> Duration {
        let mut all = self.warm.clone();
        let _ = all.add(&self.cold);
        Duration::from_micros(all.value_at_quantile(quantile))
    }

    /// Of cold reads; `None` if there was none.
    pub fn cold(&self) -> Option<Percentiles> {
        percentiles(&self.cold)
    }

    /// Of warm reads; `None` if there was none.
    pub fn warm(&self) -> Option<Percentiles> {
        percentiles(&self.warm)
    }
}

fn percentiles(histogram: &Histogram<u32>) -> Option<Percentiles> {
    let at = |quantile| Duration::from_micros(histogram.value_at_quantile(quantile));
    (!histogram.is_empty()).then(|| Percentiles { reads: histogram.len(), p50: at(0.5), p99: at(0.99) })
}
