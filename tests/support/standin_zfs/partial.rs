//! What `zfs receive -s` keeps of a stream that broke off.

use crate::receive::{Arrival, Job, new_dataset};
use crate::record::{COMPRESSED, EMBED, LARGE_BLOCKS, RAW, Record, WRITE, WRITE_EMBEDDED};
use crate::state::{Partial, State};
use crate::take::Outcome;
use crate::token::Token;
use crate::{Call, usage};

/// How far the blocks on disk go. Writes to one object are gathered, and reach the disk when another record follows.
#[derive(Default)]
pub struct Progress {
    gathered: Option<(u64, u64)>,
    reached: u64,
    /// Object, offset, and the bytes read when that block was written.
    pub saved: Option<(u64, u64, u64)>,
}

impl Progress {
    pub fn passed(&mut self, record: &Record, reached: u64) {
        self.reached = reached;
        let write = matches!(record.kind(), WRITE | WRITE_EMBEDDED);
        if !write || self.gathered.is_some_and(|(object, _)| object != record.object()) {
            self.flush();
        }
        if write {
            self.gathered = Some((record.object(), record.offset()));
        }
    }

    pub fn flush(&mut self) {
        if let Some((object, offset)) = self.gathered.take() {
            self.saved = Some((object, offset, self.reached));
        }
    }
}

/// A stream did not come whole: keeps what `-s` keeps, and says what the real one says.
pub fn broken(job: &mut Job, arrival: &Arrival, outcome: Outcome, progress: Progress) -> String {
    let with_s = job.arguments.has('s');
    let received = job.received(arrival, false);
    let token = progress.saved.filter(|_| with_s).map(|(object, offset, bytes)| token(arrival, object, offset, bytes));
    State::update(job.call.folder, |state| {
        if let Some(token) = &token {
            save(state, arrival, token);
        }
        state.received.push(received);
    });
    let plain = match outcome {
        Outcome::Complete => unreachable!("a whole stream is not broken"),
        Outcome::NoSpace => return arrival.cannot("out of space"),
        Outcome::Quota => return arrival.cannot(&format!("destination {} space quota exceeded.", arrival.dataset)),
        Outcome::Incomplete => "incomplete stream",
        Outcome::Checksum => "checksum mismatch",
        Outcome::Invalid => "invalid backup stream",
    };
    match (token, outcome) {
        _ if !with_s => arrival.cannot(plain),
        (Some(_), Outcome::Invalid) => arrival.cannot("kernel modules must be upgraded to receive this stream."),
        (Some(token), _) => arrival.cannot(&format!(
            "checksum mismatch or incomplete stream.\nPartially received snapshot is saved.\n\
             A resuming stream can be generated on the sending system by running:\n    zfs send -t {}",
            token.encode()
        )),
        (None, _) if arrival.incremental => arrival.cannot("invalid backup stream"),
        (None, _) => {
            let open = format!("cannot open '{}': dataset does not exist\n", arrival.dataset);
            open + &arrival.cannot("invalid backup stream")
        }
    }
}

fn token(arrival: &Arrival, object: u64, offset: u64, bytes: u64) -> Token {
    let begin = &arrival.begin;
    let features = [(LARGE_BLOCKS, "largeblockok"), (EMBED, "embedok"), (COMPRESSED, "compressok"), (RAW, "rawok")];
    let flags = features.into_iter().filter(|(bit, _)| begin.features() & bit != 0);
    Token {
        from_guid: begin.base_guid(),
        object,
        offset,
        bytes,
        to_guid: begin.to_guid(),
        to_name: begin.to_name(),
        flags: flags.map(|(_, name)| name.to_owned()).collect(),
    }
}

fn save(state: &mut State, arrival: &Arrival, token: &Token) {
    let mut token = token.clone();
    let before = state.datasets.get(&arrival.dataset).and_then(|d| d.partial.clone());
    if let Some(Ok(earlier)) = before.as_ref().map(|p| Token::decode(&p.token)) {
        token.bytes += earlier.bytes;
    }
    let fresh = !state.datasets.contains_key(&arrival.dataset);
    let partial = Partial {
        token: token.encode(),
        to_guid: token.to_guid,
        object: token.object,
        offset: token.offset,
        new_dataset: before.map_or(fresh, |p| p.new_dataset),
    };
    if fresh {
        let dataset = new_dataset(state, &arrival.begin);
        state.datasets.insert(arrival.dataset.clone(), dataset);
    }
    state.datasets.get_mut(&arrival.dataset).expect("the dataset").partial = Some(partial);
}

/// `zfs receive -A`
pub fn abort(call: &Call, target: &str) -> i32 {
    State::update(call.folder, |state| {
        let Some(dataset) = state.datasets.get_mut(target) else {
            eprintln!("cannot open '{target}': dataset does not exist");
            return usage::of("receive");
        };
        match dataset.partial.take() {
            None => {
                eprintln!("'{target}' does not have any resumable receive state to abort");
                return 1;
            }
            Some(partial) if partial.new_dataset => drop(state.datasets.remove(target)),
            Some(_) => {}
        }
        0
    })
}
