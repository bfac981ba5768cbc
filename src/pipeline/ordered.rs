//! An ordered parallel map: items go to a fixed number of threads, results come out in the order of the items.
//!
//! At most `workers + 1` items are anywhere between the input and the caller, so memory is bounded by that
//! many segments. The input is pulled by a thread of its own; dropping the map stops it at its next item.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

/// Results in the order of their items. See [`ordered_map`].
pub struct OrderedMap<I, O> {
    results: Receiver<(u64, O)>,
    waiting: BTreeMap<u64, O>,
    next: u64,
    fed: Arc<AtomicU64>,
    tickets: Receiver<()>,
    feeder: JoinHandle<I>,
}

/// Runs `work` on the items of `input` on `workers` threads, each with a state of its own made by `state`.
pub fn ordered_map<I, S, O>(
    workers: usize,
    input: I,
    state: impl Fn() -> S,
    work: impl Fn(&mut S, I::Item) -> O + Clone + Send + 'static,
) -> OrderedMap<I, O>
where
    I: Iterator + Send + 'static,
    I::Item: Send + 'static,
    S: Send + 'static,
    O: Send + 'static,
{
    let workers = workers.max(1);
    let (jobs_in, jobs_out) = bounded(1);
    let (results_in, results) = unbounded();
    // A ticket is taken before an item is asked for, and given back when its result is delivered.
    let (tickets_in, tickets) = bounded(workers + 1);
    for _ in 0..workers {
        let (jobs, results, work, mut state) = (jobs_out.clone(), results_in.clone(), work.clone(), state());
        thread::spawn(move || {
            for (number, item) in jobs {
                if results.send((number, work(&mut state, item))).is_err() {
                    break;
                }
            }
        });
    }
    let fed = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&fed);
    let feeder = thread::spawn(move || feed(input, &jobs_in, &tickets_in, &counter));
    OrderedMap { results, waiting: BTreeMap::new(), next: 0, fed, tickets, feeder }
}

/// Hands out the items of `input` until it ends or nobody wants more, and returns it.
fn feed<I: Iterator>(mut input: I, jobs: &Sender<(u64, I::Item)>, tickets: &Sender<()>, fed: &AtomicU64) -> I {
    let mut number = 0;
    while tickets.send(()).is_ok() {
        let Some(item) = input.next() else { break };
        fed.store(number + 1, Ordering::SeqCst);
        if jobs.send((number, item)).is_err() {
            break;
        }
        number += 1;
    }
    input
}

impl<I, O> Iterator for OrderedMap<I, O> {
    type Item = O;

    fn next(&mut self) -> Option<O> {
        loop {
            if let Some(result) = self.waiting.remove(&self.next) {
                self.next += 1;
                let _ = self.tickets.try_recv();
                return Some(result);
            }
            match self.results.recv() {
                Ok((number, result)) => drop(self.waiting.insert(number, result)),
                Err(_) => {
                    // All workers have ended. A missing result means that one of them panicked, and that must
                    // never look like the end of the input.
                    assert_eq!(self.fed.load(Ordering::SeqCst), self.next, "a worker thread died");
                    return None;
                }
            }
        }
    }
}

impl<I, O> OrderedMap<I, O> {
    /// The input, once it has ended: after `next` returned `None`.
    pub fn into_input(self) -> I {
        drop(self.tickets);
        drop(self.results);
        match self.feeder.join() {
            Ok(input) => input,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use super::*;

    #[test]
    fn order_is_kept_whatever_the_threads_do() {
        let slow_first = |_: &mut (), n: u64| {
            thread::sleep(Duration::from_micros((n * 7919) % 300));
            n * 2
        };
        let mut map = ordered_map(4, 0..500u64, || (), slow_first);
        assert!(map.by_ref().eq((0..500).map(|n| n * 2)));
        assert_eq!(map.into_input(), 500..500);
    }

    #[test]
    fn look_ahead_is_bounded() {
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&asked);
        let endless = std::iter::repeat_with(move || counter.fetch_add(1, Ordering::SeqCst));
        let mut map = ordered_map(3, endless, || (), |(), n| n);
        for taken in 1..50 {
            map.next();
            thread::sleep(Duration::from_millis(1));
            assert!(asked.load(Ordering::SeqCst) <= taken + 4, "{} for {taken}", asked.load(Ordering::SeqCst));
        }
    }

    #[test]
    fn dropping_stops_an_endless_input_through_two_stages() {
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&asked);
        let endless = std::iter::repeat_with(move || counter.fetch_add(1, Ordering::SeqCst));
        let first = ordered_map(2, endless, || (), |(), n| n);
        let mut second = ordered_map(2, first, || (), |(), n| if n == 10 { Err("failed") } else { Ok(n) });
        assert!(second.by_ref().any(|result| result.is_err()));
        drop(second);
        thread::sleep(Duration::from_millis(50));
        let after = asked.load(Ordering::SeqCst);
        thread::sleep(Duration::from_millis(50));
        assert_eq!(asked.load(Ordering::SeqCst), after, "still pulled");
        assert!(after < 30);
    }

    #[test]
    #[should_panic(expected = "a worker thread died")]
    fn a_dead_worker_is_no_end_of_input() {
        let map = ordered_map(1, 0..10, || (), |(), n| assert!(n != 5, "dies here on purpose"));
        map.for_each(drop);
    }

    #[test]
    fn each_worker_has_its_own_state() {
        let map = ordered_map(
            2,
            0..100,
            || 0u32,
            |calls, _| {
                *calls += 1;
                *calls
            },
        );
        assert!(map.max().unwrap_or(0) >= 50);
    }
}
