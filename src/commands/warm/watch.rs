//! What happens beside the reads: bars, events, syslog, the state on disk.

use std::time::Duration;

use indicatif::{BinaryBytes, MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::Asked;
use super::prepare::Prepared;
use super::report::Voice;
use crate::progress::{Rate, duration};
use crate::warm::drive::Observer;
use crate::warm::scheduler::{Failure, Scheduler};
use crate::warm::state::StateFile;

/// How often progress is an event.
const EVENT: Duration = Duration::from_secs(1);
/// How often it goes to syslog, as with ebsinit.
const SYSLOG: Duration = Duration::from_secs(300);

/// Watches over a run.
pub struct Watch<'a> {
    volumes: &'a [Prepared],
    voice: &'a mut Voice,
    asked: &'a Asked,
    all: MultiProgress,
    bars: Vec<(ProgressBar, Rate)>,
    /// Of all together, where there are several.
    total: Option<(ProgressBar, Rate)>,
    failed: Vec<u64>,
    /// Where what was read is written down.
    states: Vec<Option<StateFile>>,
    next_event: Duration,
    next_syslog: Duration,
    told_to_stop: bool,
}

impl<'a> Watch<'a> {
    /// Nothing is drawn where nobody looks.
    pub fn new(
        volumes: &'a [Prepared],
        states: Vec<Option<StateFile>>,
        voice: &'a mut Voice,
        asked: &'a Asked,
    ) -> Self {
        let target = if voice.shows_progress() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let all = MultiProgress::with_draw_target(target);
        let width = volumes.iter().map(|volume| volume.shown().len()).max().unwrap_or(0);
        let bar = |name: &str, blocks: u64| {
            let bar = all.add(ProgressBar::new(blocks)).with_prefix(format!("{name:width$}"));
            if let Ok(style) = ProgressStyle::with_template("{prefix} [{bar:16}] {wide_msg}") {
                bar.set_style(style.progress_chars("=> "));
            }
            (bar, Rate::new())
        };
        let bars = volumes.iter().map(|volume| bar(&volume.shown(), volume.plan.wanted.len())).collect();
        let blocks = volumes.iter().map(|volume| volume.plan.wanted.len()).sum();
        let total = (volumes.len() > 1).then(|| bar("all", blocks));
        let failed = vec![0; volumes.len()];
        let (next_event, next_syslog) = (EVENT, SYSLOG);
        Self { volumes, voice, asked, all, bars, total, failed, states, next_event, next_syslog, told_to_stop: false }
    }

    fn draw(&mut self, schedulers: &[Scheduler]) {
        let (mut all_done, mut all_planned, mut all_before) = (0, 0, 0);
        for ((scheduler, volume), (bar, rate)) in schedulers.iter().zip(self.volumes).zip(&mut self.bars) {
            let status = scheduler.status();
            let done = status.touched + status.failed;
            (all_done, all_planned) = (all_done + done, all_planned + status.planned);
            all_before += status.before;
            rate.update(done - status.before);
            bar.set_position(done);
            let failed = if status.failed > 0 { format!("  {} failed", status.failed) } else { String::new() };
            let words = line(done, status.planned, rate.per_second, volume.plan.grid.step);
            bar.set_message(format!("{words}  {} at once{failed}", status.in_flight));
        }
        if let Some((bar, rate)) = &mut self.total {
            rate.update(all_done - all_before);
            bar.set_position(all_done);
            let step = self.volumes.first().map_or(0, |volume| volume.plan.grid.step);
            bar.set_message(line(all_done, all_planned, rate.per_second, step));
        }
    }
}

fn line(done: u64, planned: u64, per_second: f64, step: u64) -> String {
    let left = if per_second > 0.5 && planned > done {
        format!("  {} left", duration((planned - done) as f64 / per_second))
    } else {
        String::new()
    };
    let bytes = BinaryBytes((per_second * step as f64) as u64);
    format!("{done} of {planned} blocks  {per_second:.0}/s ({bytes}/s){left}")
}

impl Observer for Watch<'_> {
    fn failed(&mut self, volume: usize, failure: Failure) {
        self.failed[volume] += 1;
        let (voice, volume, so_far) = (&mut *self.voice, &self.volumes[volume], self.failed[volume]);
        // The bars make room for it.
        self.all.suspend(|| voice.block_failed(volume, failure, so_far));
    }

    fn answered(&mut self, schedulers: &mut [Scheduler]) {
        for (scheduler, state) in schedulers.iter_mut().zip(&mut self.states) {
            let fresh = scheduler.take_fresh();
            let Some(file) = state.as_ref().filter(|_| !fresh.is_empty()) else { continue };
            if let Err(error) = file.add(scheduler.touched(), fresh) {
                let text = format!("what is read can't be written down any more: {error}");
                self.all.suspend(|| self.voice.warn(&text));
                *state = None;
            }
        }
    }

    fn tick(&mut self, schedulers: &[Scheduler], now: Duration) {
        if self.voice.shows_progress() {
            self.draw(schedulers);
        }
        if self.stop() && !self.told_to_stop {
            self.told_to_stop = true;
            self.all.suspend(|| {
                self.voice.note("stopping: waiting for the reads that are under way; a second signal ends at once")
            });
        }
        if self.asked.wants_status() {
            self.all.suspend(|| self.voice.status(self.volumes, schedulers, now));
        }
        if self.voice.is_json() && now >= self.next_event {
            self.next_event = now + EVENT;
            self.voice.progress(self.volumes, schedulers, false);
        }
        if now >= self.next_syslog {
            self.next_syslog = now + SYSLOG;
            self.voice.progress(self.volumes, schedulers, true);
        }
    }

    fn stop(&self) -> bool {
        self.asked.stopped_by().is_some()
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        let bars = self.bars.iter().chain(&self.total);
        bars.for_each(|(bar, _)| bar.finish_and_clear());
    }
}
