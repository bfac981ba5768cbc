//! Counters that go down the call tree, and the one reporter that reads them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use indicatif::{BinaryBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How far a transfer is. Numbers only: who shows them, and how, is not the business of who counts.
#[derive(Debug, Default)]
pub struct Counters {
    /// Bytes of stream that are done.
    pub stream: AtomicU64,
    /// The same bytes as stored objects.
    pub stored: AtomicU64,
    /// Segments that are done.
    pub segments: AtomicU64,
}

impl Counters {
    /// One more segment is done (bytes of stream, bytes stored).
    pub fn add_segment(&self, stream: u64, stored: u64) {
        self.stream.fetch_add(stream, Ordering::Relaxed);
        self.stored.fetch_add(stored, Ordering::Relaxed);
        self.segments.fetch_add(1, Ordering::Relaxed);
    }
}

/// What the whole will be.
#[derive(Clone, Copy, Debug)]
pub enum Total {
    /// Known exactly (bytes of stream).
    Exact(u64),
    /// About so much; the stream may be longer.
    About(u64),
    /// Nobody knows.
    Unknown,
}

/// Shows [`Counters`] on a terminal until it is finished. Clears its line at the end.
pub struct Reporter {
    bar: ProgressBar,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// How often the line is drawn anew.
const TICK: Duration = Duration::from_millis(200);

impl Reporter {
    /// Starts to draw on standard error; with `show` false it does nothing.
    pub fn start(title: &str, total: Total, counters: Arc<Counters>, show: bool) -> Self {
        let target = if show { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let (length, template) = match total {
            Total::Exact(length) | Total::About(length) if length > 0 => (Some(length), "{prefix} [{bar:24}] {msg}"),
            _ => (None, "{prefix} {spinner} {msg}"),
        };
        let bar = ProgressBar::with_draw_target(length, target).with_prefix(title.to_owned());
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        let stop = Arc::new(AtomicBool::new(false));
        let thread = show.then(|| {
            let (bar, stop) = (bar.clone(), Arc::clone(&stop));
            thread::spawn(move || draw(&bar, total, &counters, &stop))
        });
        Self { bar, stop, thread }
    }

    /// Clears the line.
    pub fn finish(self) {}
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
        self.bar.finish_and_clear();
    }
}

fn draw(bar: &ProgressBar, total: Total, counters: &Counters, stop: &AtomicBool) {
    let mut rate = Rate::new();
    while !stop.load(Ordering::Relaxed) {
        let done = counters.stream.load(Ordering::Relaxed);
        rate.update(done);
        if let Total::About(length) | Total::Exact(length) = total {
            // An estimate that turns out too small must not stand at 100 % while bytes still flow.
            bar.set_length(length.max(done + u64::from(matches!(total, Total::About(_)))));
            bar.set_position(done);
        } else {
            bar.tick();
        }
        let stored = counters.stored.load(Ordering::Relaxed);
        bar.set_message(message(total, done, stored, counters.segments.load(Ordering::Relaxed), rate.per_second));
        thread::park_timeout(TICK);
    }
}

fn message(total: Total, done: u64, stored: u64, segments: u64, per_second: f64) -> String {
    let of = match total {
        Total::Exact(length) => format!(" of {}", BinaryBytes(length)),
        Total::About(length) => format!(" of about {}", BinaryBytes(length)),
        Total::Unknown => String::new(),
    };
    let ratio = if stored > 0 { format!("  {:.2}:1", done as f64 / stored as f64) } else { String::new() };
    let left = match total {
        Total::Exact(length) | Total::About(length) if per_second > 1.0 && length > done => {
            format!("  {} left", duration((length - done) as f64 / per_second))
        }
        _ => String::new(),
    };
    let segments = counted(segments, "segment");
    format!("{}{of}  {}/s{ratio}  {segments}{left}", BinaryBytes(done), BinaryBytes(per_second as u64))
}

/// `1 segment`, `2 segments`.
pub fn counted(count: u64, noun: &str) -> String {
    if count == 1 { format!("{count} {noun}") } else { format!("{count} {noun}s") }
}

/// A duration as a person says it: two units at the most.
pub fn duration(seconds: f64) -> String {
    let seconds = seconds.max(0.0).round() as u64;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {:02} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {:02} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// How much a second over the last few seconds.
pub struct Rate {
    started: Instant,
    last: (Instant, u64),
    /// The rate.
    pub per_second: f64,
}

impl Rate {
    /// From now on.
    #[allow(clippy::new_without_default, reason = "a clock that starts is no default")]
    pub fn new() -> Self {
        let now = Instant::now();
        Self { started: now, last: (now, 0), per_second: 0.0 }
    }

    /// So much is done since the beginning.
    pub fn update(&mut self, done: u64) {
        let now = Instant::now();
        let elapsed = now.duration_since(self.last.0).as_secs_f64();
        if elapsed < 0.5 {
            return;
        }
        let current = done.saturating_sub(self.last.1) as f64 / elapsed;
        // Segments land in jumps: the rate follows slowly, and from the average since the start at first.
        let since_start = now.duration_since(self.started).as_secs_f64();
        self.per_second = if since_start < 10.0 {
            done as f64 / since_start
        } else {
            let weight = (elapsed / 10.0).min(1.0);
            self.per_second * (1.0 - weight) + current * weight
        };
        self.last = (now, done);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_say_what_a_person_asks() {
        let line = message(Total::About(4 << 20), 1 << 20, 512 << 10, 3, 1_048_576.0);
        assert_eq!(line, "1.00 MiB of about 4.00 MiB  1.00 MiB/s  2.00:1  3 segments  3 s left");
        assert_eq!(message(Total::Unknown, 0, 0, 0, 0.0), "0 B  0 B/s  0 segments");
        assert_eq!(message(Total::About(10), 20, 10, 1, 5.0), "20 B of about 10 B  5 B/s  2.00:1  1 segment");
    }

    #[test]
    fn durations() {
        assert_eq!(duration(59.4), "59 s");
        assert_eq!(duration(61.0), "1 min 01 s");
        assert_eq!(duration(7_500.0), "2 h 05 min");
        assert_eq!(duration(200_000.0), "2 d 07 h");
    }
}
