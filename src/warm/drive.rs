//! Carries reads between the schedulers of all volumes and one engine until everything is read or the person stops it.

use std::io;
use std::time::{Duration, Instant};

use super::engine::{Answer, Engine, Job};
use super::scheduler::{Failure, Next, Read, Scheduler};

/// How often the caller is asked, whatever comes back.
const TICK: Duration = Duration::from_millis(100);
/// A run that is stopped waits so long for the reads that are under way.
const DRAIN: Duration = Duration::from_secs(10);

/// What the caller wants to know while it runs.
pub trait Observer {
    /// A block was given up.
    fn failed(&mut self, volume: usize, failure: Failure);
    /// Reads have come back.
    fn answered(&mut self, schedulers: &mut [Scheduler]);
    /// Some time has passed.
    fn tick(&mut self, schedulers: &[Scheduler], now: Duration);
    /// Whether no further read is to be issued.
    fn stop(&self) -> bool;
}

/// A read that is under way.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    volume: usize,
    read: Read,
    /// It was counted as failed already.
    overdue: bool,
}

/// Reads under way, by ticket.
#[derive(Debug, Default)]
struct Tickets {
    places: Vec<Option<UnderWay>>,
    free: Vec<u32>,
}

impl Tickets {
    fn put(&mut self, under_way: UnderWay) -> u32 {
        let ticket = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() as u32 - 1
        });
        self.places[ticket as usize] = Some(under_way);
        ticket
    }

    fn take(&mut self, ticket: u32) -> Option<UnderWay> {
        let under_way = self.places.get_mut(ticket as usize)?.take()?;
        self.free.push(ticket);
        Some(under_way)
    }

    /// Whether a read is still waited for.
    fn any_awaited(&self) -> bool {
        self.places.iter().flatten().any(|under_way| !under_way.overdue)
    }
}

/// Runs until every scheduler is done or the observer stops it. `start` is time zero of the schedulers. File `n` of the
/// engine is that of scheduler `n`.
pub fn run(
    schedulers: &mut [Scheduler],
    engine: &mut Engine,
    start: Instant,
    observer: &mut impl Observer,
) -> io::Result<()> {
    let (mut tickets, mut answers) = (Tickets::default(), Vec::new());
    let mut next_tick = Duration::ZERO;
    let mut stopped: Option<Duration> = None;
    loop {
        let now = start.elapsed();
        if stopped.is_none() && observer.stop() {
            stopped = Some(now);
        }
        let mut wake = next_tick.max(now);
        if stopped.is_none() {
            wake = wake.min(issue(schedulers, engine, &mut tickets, now)?);
        }
        let waiting = stopped.is_none() && schedulers.iter().any(|scheduler| !is_done(scheduler));
        if !tickets.any_awaited() && !waiting || stopped.is_some_and(|at| now > at + DRAIN) {
            break;
        }
        engine.wait(wake.saturating_sub(now).max(Duration::from_micros(100)), &mut answers)?;
        let now = start.elapsed();
        if !answers.is_empty() {
            answers.drain(..).for_each(|answer| settle(schedulers, &mut tickets, answer, now, observer));
            observer.answered(schedulers);
        }
        if now >= next_tick {
            next_tick = now + TICK;
            count_overdue(schedulers, &mut tickets, now, observer);
            observer.tick(schedulers, now);
        }
    }
    observer.tick(schedulers, start.elapsed());
    Ok(())
}

fn is_done(scheduler: &Scheduler) -> bool {
    scheduler.is_finished() || scheduler.status().given_up.is_some()
}

/// Gives the engine as much as there may be, to each volume its own. Returns when there may be more to do.
fn issue(
    schedulers: &mut [Scheduler],
    engine: &mut Engine,
    tickets: &mut Tickets,
    now: Duration,
) -> io::Result<Duration> {
    let mut wake = Duration::MAX;
    for (volume, scheduler) in schedulers.iter_mut().enumerate() {
        loop {
            match scheduler.next_read(now) {
                Next::Read(read) => {
                    let ticket = tickets.put(UnderWay { volume, read, overdue: false });
                    engine.push(Job { ticket, file: volume, offset: read.offset, length: read.length })?;
                }
                Next::At(time) => {
                    wake = wake.min(time);
                    break;
                }
                Next::Wait | Next::Done => break,
            }
        }
    }
    Ok(wake)
}

fn settle(
    schedulers: &mut [Scheduler],
    tickets: &mut Tickets,
    answer: Answer,
    now: Duration,
    observer: &mut impl Observer,
) {
    let Some(UnderWay { volume, read, overdue }) = tickets.take(answer.ticket) else { return };
    if overdue {
        return schedulers[volume].answered_late(read, answer.result);
    }
    for failure in schedulers[volume].completed(read, answer.result, now) {
        observer.failed(volume, failure);
    }
}

/// A read can't be called back: its blocks are given up, and it is left alone.
fn count_overdue(schedulers: &mut [Scheduler], tickets: &mut Tickets, now: Duration, observer: &mut impl Observer) {
    for under_way in tickets.places.iter_mut().flatten().filter(|under_way| !under_way.overdue) {
        let scheduler = &mut schedulers[under_way.volume];
        if now.saturating_sub(under_way.read.issued) > scheduler.patience() {
            under_way.overdue = true;
            for failure in scheduler.overdue(under_way.read) {
                observer.failed(under_way.volume, failure);
            }
        }
    }
}
