//! How a volume behaves.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use rustix::io::Errno;

const MIB: f64 = (1 << 20) as f64;

/// Larger reads are cut into pieces of this size on the way, and each piece costs one operation, as on EBS.
pub const LARGEST_READ: u32 = 256 << 10;

/// What [`Settings::ideal`] takes a touch to be: the smallest direct read that every disk accepts.
pub const TOUCH_BYTES: u64 = 4096;

/// One volume. The default has 128 chunks, all of them cold, and no limit but 64 fetches at once.
#[derive(Clone, Debug)]
pub struct Settings {
    /// In bytes. Any size will do, with holes alone up to many TiB.
    pub size: u64,
    /// In bytes: what is fetched as one.
    pub chunk: u64,
    /// The share of chunks that exist, in runs of 1–16 chunks; the rest are holes, which are never fetched.
    pub fill: f64,
    /// A sparse image in place of `size` and `fill`: chunks with data (by `SEEK_DATA`) exist, and it is what is read.
    pub backing: Option<PathBuf>,
    /// How long a fetch takes at the least.
    pub cold_latency: Duration,
    /// How much longer it takes on average, distributed exponentially.
    pub jitter: Duration,
    /// How many of all fetches take `tail_factor` times as long.
    pub tail_probability: f64,
    /// See `tail_probability`.
    pub tail_factor: f64,
    /// Fetches at once; the others wait in line.
    pub par: usize,
    /// Fetches per second.
    pub rate: Option<f64>,
    /// Reads per second, whatever they read.
    pub iops: Option<f64>,
    /// MiB per second, whatever is read.
    pub mibps: Option<f64>,
    /// How long a read takes that needs no fetch.
    pub warm_latency: Duration,
    /// Chunks whose reads always fail with EIO.
    pub bad: Vec<u64>,
    /// Chunks whose first so many reads fail with EIO.
    pub flaky: HashMap<u64, u32>,
    /// Chunks whose reads are not answered before they are released or the volume is unmounted.
    pub hang: Vec<u64>,
    /// Chunks whose first read brings 512 bytes only. The kernel passes that on for a read of at most
    /// [`LARGEST_READ`] as it is; a larger one ends where the short piece does.
    pub short: Vec<u64>,
    /// After so many reads every further one fails with `gone_error`, like a disk that was pulled.
    pub gone_after: Option<u64>,
    /// ENODEV unless set.
    pub gone_error: Errno,
    /// Asynchronous direct reads (`io_uring`, `libaio`) that the kernel passes on at once; the others wait in it. A
    /// small number makes a disk with a short queue. Threads that `pread` are not held up by it.
    pub max_background: u16,
    /// Of everything random. Two volumes of one mount differ nevertheless.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            size: 64 << 20,
            chunk: 512 << 10,
            fill: 1.0,
            backing: None,
            cold_latency: Duration::from_millis(5),
            jitter: Duration::ZERO,
            tail_probability: 0.0,
            tail_factor: 10.0,
            par: 64,
            rate: None,
            iops: None,
            mibps: None,
            warm_latency: Duration::from_micros(300),
            bad: Vec::new(),
            flaky: HashMap::new(),
            hang: Vec::new(),
            short: Vec::new(),
            gone_after: None,
            gone_error: Errno::NODEV,
            max_background: 4096,
            seed: 1,
        }
    }
}

impl Settings {
    /// How long a fetch takes on average.
    pub fn mean_cold_latency(&self) -> Duration {
        let tail = self.tail_probability * (self.tail_factor - 1.0);
        (self.cold_latency + self.jitter).mul_f64(1.0 + tail)
    }

    /// The shortest time, on average, in which every chunk can be touched once, by one read of [`TOUCH_BYTES`] each.
    pub fn ideal(&self, chunks: u64, existing: u64) -> Duration {
        let (all, cold) = (chunks as f64, existing as f64);
        let per_second = |amount: f64, limit: Option<f64>| limit.map_or(0.0, |limit| amount / limit);
        let seconds = [
            cold * self.mean_cold_latency().as_secs_f64() / self.par as f64,
            per_second(cold, self.rate),
            per_second(all, self.iops),
            per_second(all * TOUCH_BYTES as f64 / MIB, self.mibps),
        ];
        Duration::from_secs_f64(seconds.into_iter().fold(0.0, f64::max))
    }

    /// Panics where the settings make no volume.
    pub fn check(&self) {
        assert!(self.chunk > 0, "a chunk has a size");
        assert!(self.size > 0 || self.backing.is_some(), "a volume has a size");
        assert!(self.par > 0, "with par = 0 nothing is ever fetched");
        assert!(self.max_background > 0, "with max_background = 0 nothing is ever read");
        for limit in [self.rate, self.iops, self.mibps].into_iter().flatten() {
            assert!(limit > 0.0, "a limit of {limit} a second lets nothing through");
        }
    }
}
