//! Chance and tempo.

use std::time::{Duration, Instant};

use super::settings::Settings;

/// Numbers that look random and are the same for the same seed (xorshift64).
pub struct Random(u64);

impl Random {
    /// `stream` tells volumes with one seed apart.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut random = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(stream + 1) | 1);
        // Small seeds begin with small numbers.
        for _ in 0..10 {
            random.number();
        }
        random
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// At least 0 and less than 1.
    pub fn share(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// How long the next fetch takes.
    pub fn cold_latency(&mut self, settings: &Settings) -> Duration {
        let exponential = -(1.0 - self.share()).ln();
        let latency = settings.cold_latency + settings.jitter.mul_f64(exponential);
        if self.share() < settings.tail_probability { latency.mul_f64(settings.tail_factor) } else { latency }
    }
}

/// Lets so much through per second, one thing after the other, and saves nothing up.
pub struct Pace {
    per_second: Option<f64>,
    free: Instant,
}

impl Pace {
    /// `None` lets everything through at once.
    pub fn new(per_second: Option<f64>) -> Self {
        Self { per_second, free: Instant::now() }
    }

    /// When something that comes now and is `amount` large may begin.
    pub fn begin(&mut self, now: Instant, amount: f64) -> Instant {
        let Some(per_second) = self.per_second else { return now };
        let begin = self.free.max(now);
        self.free = begin + Duration::from_secs_f64(amount / per_second);
        begin
    }

    /// When it is through.
    pub fn end(&mut self, now: Instant, amount: f64) -> Instant {
        self.begin(now, amount).max(self.free)
    }
}
