//! Reads one stream from its BEGIN to its END, and checks every record on the way.

use std::io::Read;

use crate::partial::Progress;
use crate::receive::{Arrival, Job};
use crate::record::{BEGIN, END, Fletcher4, RECORD, Record, read_record};
use crate::state::State;

pub enum Outcome {
    Complete,
    /// The input ended, or a fault ended it.
    Incomplete,
    Checksum,
    Invalid,
    NoSpace,
    Quota,
}

pub fn take(job: &mut Job, state: &State, arrival: &Arrival) -> (Outcome, Progress) {
    let mut progress = Progress::default();
    let outcome = read_through(job, state, arrival, &mut progress);
    progress.flush();
    (outcome, progress)
}

fn read_through(job: &mut Job, state: &State, arrival: &Arrival, progress: &mut Progress) -> Outcome {
    let start = arrival.at + RECORD as u64;
    let room = state.room(&arrival.dataset).unwrap_or(u64::MAX);
    let quota = quota(state, &arrival.dataset);
    let mut sum = Fletcher4::default();
    let mut payload = Vec::new();
    sum.add(&arrival.begin.0);
    let mut record = arrival.begin.clone();
    loop {
        let Some(length) = record.payload() else {
            return Outcome::Invalid;
        };
        payload.resize(length, 0);
        if job.input.read_exact(&mut payload).is_err() {
            return Outcome::Incomplete;
        }
        sum.add(&payload);
        let reached = job.input.position() - start;
        if reached > quota {
            return Outcome::Quota;
        }
        if reached > room {
            return Outcome::NoSpace;
        }
        let next = match read_record(&mut job.input) {
            Ok(Some(next)) => next,
            _ => return Outcome::Incomplete,
        };
        if next.kind() == BEGIN || next.payload().is_none() {
            return Outcome::Invalid;
        }
        let total = sum.bytes();
        sum.add(&next.0[..RECORD - 32]);
        let own = &next.0[RECORD - 32..];
        if own.iter().any(|&byte| byte != 0) && own != sum.bytes() {
            return Outcome::Checksum;
        }
        sum.add(own);
        // Only now, with the sum behind it proved, does a record take effect.
        progress.passed(&record, reached);
        if next.kind() == END {
            return if next.0[8..40] == total { Outcome::Complete } else { Outcome::Checksum };
        }
        record = next;
    }
}

fn quota(state: &State, dataset: &str) -> u64 {
    let ancestors = dataset.match_indices('/').map(|(at, _)| &dataset[..at]).chain([dataset]);
    let limits = ancestors.filter_map(|name| state.datasets.get(name)?.properties.get("quota")?.parse().ok());
    limits.filter(|&limit| limit > 0).min().unwrap_or(u64::MAX)
}

/// Reads over a stream that is not wanted. Nothing is checked, as in the real one.
pub fn skip(job: &mut Job, begin: &Record) {
    let mut record = begin.clone();
    let mut payload = Vec::new();
    while record.kind() != END {
        payload.resize(record.payload().unwrap_or(0), 0);
        if job.input.read_exact(&mut payload).is_err() {
            return;
        }
        match read_record(&mut job.input) {
            Ok(Some(next)) => record = next,
            _ => return,
        }
    }
}
