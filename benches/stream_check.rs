//! How fast [`StreamCheck`] reads, on one core.
//!
//! `cargo bench --bench stream_check`; each line is the best and the middle one of several runs over 256 MiB in memory.

use std::time::{Duration, Instant};

use snapferry::zfs::stream::{ByteOrder, StreamCheck};

#[path = "../tests/support/zfs_stream.rs"]
mod zfs_stream;

/// Bytes of stream in each run.
const RUN: usize = 256 << 20;
const RUNS: usize = 9;
/// What a reader of a pipe might hand over at a time.
const PIECE: usize = 256 << 10;

fn main() {
    for order in [ByteOrder::Little, ByteOrder::Big] {
        for block in [128 << 10, 1 << 20, 8 << 10, 512] {
            let stream = zfs_stream::of_writes(order, block, RUN / (block + zfs_stream::RECORD));
            report(order, block, &stream);
        }
    }
}

fn report(order: ByteOrder, block: usize, stream: &[u8]) {
    let mut times: Vec<Duration> = (0..RUNS).map(|_| time(stream)).collect();
    times.sort();
    let rate = |time: Duration| stream.len() as f64 / time.as_secs_f64() / 1e9;
    println!(
        "{order:?}-endian, writes of {block:>7} bytes: best {:.2} GB/s, middle {:.2} GB/s",
        rate(times[0]),
        rate(times[RUNS / 2])
    );
}

fn time(stream: &[u8]) -> Duration {
    let start = Instant::now();
    let mut check = StreamCheck::new();
    for piece in stream.chunks(PIECE) {
        check.update(piece).expect("the stream is good");
    }
    let summary = std::hint::black_box(check.finish().expect("the stream is whole"));
    assert_eq!(summary.bytes, stream.len() as u64);
    start.elapsed()
}
