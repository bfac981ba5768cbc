//! `zfs receive`: where a stream goes, whether it may, and what is said.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Read};
use std::path::PathBuf;

use crate::arguments::Arguments;
use crate::fault::{Input, die};
use crate::numbers::nice_bytes;
use crate::record::{BEGIN, END, Fletcher4, MAGIC, RAW, RECORD, RESUMING, Record, read_record};
use crate::state::{Dataset, Received, Snapshot, State};
use crate::take::{self, Outcome};
use crate::{Call, partial, usage};

/// Everything one call of `zfs receive` works with.
pub struct Job<'a> {
    pub call: &'a Call<'a>,
    pub arguments: &'a Arguments,
    pub input: Input<BufWriter<File>>,
    /// Where the input is kept.
    pub path: PathBuf,
}

/// One stream, and where it goes.
pub struct Arrival {
    pub begin: Record,
    /// Where in the input the BEGIN lies.
    pub at: u64,
    pub dataset: String,
    pub snapshot: String,
    pub incremental: bool,
}

/// What shall be done with it.
enum Plan {
    Create {
        origin: Option<String>,
    },
    Replace,
    Onto,
    Resume,
    /// It is there already: read over it.
    Ignore,
}

pub fn receive(call: &Call) -> i32 {
    let arguments = match usage::read("receive", call.arguments, "o:x:dehMnuvFsA") {
        Ok(arguments) => arguments,
        Err(status) => return status,
    };
    let [target] = &arguments.operands[..] else {
        let missing = arguments.operands.is_empty();
        eprintln!("{}", if missing { "missing snapshot argument" } else { "too many arguments" });
        return usage::of("receive");
    };
    if arguments.has('A') {
        return partial::abort(call, target);
    }
    if io::stdin().is_terminal() {
        eprintln!("Error: Backup stream can not be read from a terminal.\nYou must redirect standard input.");
        return 1;
    }
    let number = State::update(call.folder, State::tick);
    std::fs::create_dir_all(call.folder.join("received")).expect("the folder of received streams");
    let path = call.folder.join("received").join(format!("{number:06}.zfs"));
    let copy = BufWriter::new(File::create(&path).expect("the copy of what is received"));
    let mut job = Job { call, arguments: &arguments, input: Input::new(call.faults, copy), path };
    let status = match job.run(target) {
        Ok(()) => 0,
        Err(message) => {
            eprintln!("{message}");
            1
        }
    };
    if let Some(how) = job.input.death {
        job.input.flush();
        die(how);
    }
    job.input.finish();
    status
}

impl Job<'_> {
    fn run(&mut self, target: &str) -> Result<(), String> {
        let begin = self.next()?.ok_or("cannot receive: failed to read from stream")?;
        if begin.kind() != BEGIN || begin.magic() != MAGIC {
            return Err("cannot receive: invalid stream (bad magic number)".to_owned());
        }
        if !begin.to_name().contains('@') {
            return Err("cannot receive: invalid stream (bad snapshot name)".to_owned());
        }
        if !begin.compound() {
            let top = begin.to_name();
            return self.one(begin, 0, target, &top, false);
        }
        self.package(&begin, target)
    }

    fn next(&mut self) -> Result<Option<Record>, String> {
        read_record(&mut self.input).map_err(|e| format!("cannot receive: {e}"))
    }

    /// A package of `-R` or `-I`: a frame with a list of what follows, streams, and an END.
    fn package(&mut self, frame: &Record, target: &str) -> Result<(), String> {
        let mut sum = Fletcher4::default();
        sum.add(&frame.0);
        let mut list = vec![0; frame.payload().ok_or("cannot receive: invalid stream (malformed nvlist)")?];
        self.input.read_exact(&mut list).map_err(|_| "cannot receive: failed to read from stream")?;
        sum.add(&list);
        let end = self.next()?.ok_or("cannot receive: failed to read from stream")?;
        if end.kind() != END || end.0[8..40] != sum.bytes() {
            return Err("cannot receive: invalid stream (checksum mismatch)".to_owned());
        }
        loop {
            let at = self.input.position();
            let record = self.next()?.ok_or("cannot receive: failed to read from stream")?;
            match record.kind() {
                END => return Ok(()),
                BEGIN => self.one(record, at, target, &frame.to_name(), true)?,
                _ => return Err("cannot receive: invalid stream (bad record type)".to_owned()),
            }
        }
    }

    fn one(&mut self, begin: Record, at: u64, target: &str, top: &str, packed: bool) -> Result<(), String> {
        let to_name = begin.to_name();
        let (from, snapshot) = to_name.split_once('@').unwrap_or((&to_name, ""));
        let (base, given) = target.split_once('@').map_or((target, None), |(base, snapshot)| (base, Some(snapshot)));
        let top = top.split('@').next().unwrap_or(top);
        let dataset = match from.split_once('/') {
            Some((_, path)) if self.arguments.has('d') => format!("{base}/{path}"),
            None if self.arguments.has('d') => base.to_owned(),
            _ if self.arguments.has('e') => format!("{base}/{}", from.rsplit('/').next().unwrap_or(from)),
            _ => format!("{base}{}", from.strip_prefix(top).unwrap_or("")),
        };
        let snapshot = given.filter(|_| !packed).unwrap_or(snapshot).to_owned();
        let incremental = begin.base_guid() != 0;
        let arrival = Arrival { begin, at, dataset, snapshot, incremental };
        let state = State::load(self.call.folder);
        let plan = self.plan(&state, &arrival)?;
        self.act(&state, arrival, plan)
    }

    fn plan(&self, state: &State, arrival: &Arrival) -> Result<Plan, String> {
        let Arrival { begin, dataset: name, snapshot, .. } = arrival;
        let cannot = |why: String| Err(arrival.cannot(&why));
        let found = state.datasets.get(name);
        if begin.features() & RESUMING != 0 {
            return match found.and_then(|d| d.partial.as_ref()) {
                Some(partial) if partial.to_guid == begin.to_guid() => Ok(Plan::Resume),
                Some(_) => cannot("invalid backup stream".to_owned()),
                None if found.is_some() && !arrival.incremental => {
                    cannot(format!("destination '{name}' exists\nmust specify -F to overwrite it"))
                }
                None => cannot(format!("destination '{name}' does not exist")),
            };
        }
        let Some(found) = found else {
            let origin = self.origin(state, begin);
            if arrival.incremental && origin.is_none() {
                return cannot(format!("destination '{name}' does not exist"));
            }
            // A pool that is not there counts as the missing parent.
            let parent = name.rsplit_once('/').map_or(name.as_str(), |(parent, _)| parent);
            if !state.datasets.contains_key(parent) && !self.arguments.has('d') {
                let open = format!("cannot open '{parent}': dataset does not exist\n");
                return Err(open + &arrival.cannot("unable to restore to destination"));
            }
            if let Some(origin) = origin.as_ref().filter(|_| self.arguments.has('v')) {
                let provided = self.arguments.values('o').any(|o| o.starts_with("origin="));
                let how = if provided { "using provided" } else { "found" };
                println!("{how} clone origin {origin}");
            }
            return Ok(Plan::Create { origin });
        };
        if !arrival.incremental {
            return match (self.arguments.has('F'), found.snapshots.first()) {
                (false, _) => cannot(format!("destination '{name}' exists\nmust specify -F to overwrite it")),
                (true, Some(first)) => cannot(format!(
                    "destination has snapshots (eg. {name}@{})\nmust destroy them to overwrite it",
                    first.name
                )),
                (true, None) => Ok(Plan::Replace),
            };
        }
        if let Some(there) = found.snapshots.iter().find(|s| s.name == *snapshot) {
            if there.guid == begin.to_guid() {
                return Ok(Plan::Ignore);
            }
            return Err(format!("cannot restore to {name}@{snapshot}: destination already exists"));
        }
        let Some(base) = found.snapshots.iter().position(|s| s.guid == begin.base_guid()) else {
            if found.snapshots.iter().any(|s| s.guid == begin.to_guid()) {
                return Ok(Plan::Ignore);
            }
            let text = format!("most recent snapshot of {name} does not\nmatch incremental source");
            return cannot(text);
        };
        if !self.arguments.has('F') {
            // A later snapshot without any change is no hindrance.
            if found.modified || found.snapshots[base + 1..].iter().any(|s| s.changed) {
                return Err(format!(
                    "cannot receive incremental stream: destination {name} has been modified\nsince most recent snapshot"
                ));
            }
            if found.partial.is_some() {
                let state = "contains partially-complete state from \"zfs receive -s\".";
                return cannot(format!("destination {name} {state}"));
            }
        }
        Ok(Plan::Onto)
    }

    /// The snapshot that a clone's stream grows from: named with `-o origin=`, or found by its GUID.
    fn origin(&self, state: &State, begin: &Record) -> Option<String> {
        let given = self.arguments.values('o').find_map(|o| o.strip_prefix("origin="));
        if let Some(given) = given {
            return state.snapshot(given).filter(|s| s.guid == begin.base_guid()).map(|_| given.to_owned());
        }
        if !begin.is_clone() {
            return None;
        }
        let target_pool = self.arguments.operands[0].split(['/', '@']).next();
        let in_pool = state.datasets.iter().filter(|(name, _)| name.split('/').next() == target_pool);
        in_pool
            .flat_map(|(name, d)| d.snapshots.iter().map(move |s| (name, s)))
            .find_map(|(name, s)| (s.guid == begin.base_guid()).then(|| format!("{name}@{}", s.name)))
    }

    fn act(&mut self, state: &State, arrival: Arrival, plan: Plan) -> Result<(), String> {
        let name = format!("{}@{}", arrival.dataset, arrival.snapshot);
        if self.arguments.has('v') {
            let kind = if arrival.incremental { "incremental" } else { "full" };
            let receiving = if self.arguments.has('n') { "would receive" } else { "receiving" };
            println!("{receiving} {kind} stream of {} into {name}", arrival.begin.to_name());
        }
        if self.call.denied("receive") {
            return Err(arrival.cannot("permission denied"));
        }
        if self.arguments.has('n') || matches!(plan, Plan::Ignore) {
            if self.arguments.has('v') && !self.arguments.has('n') {
                println!("snap {name} already exists; ignoring\nreceived 0B stream in 1 seconds (0B/sec)");
            }
            take::skip(self, &arrival.begin);
            return Ok(());
        }
        let (outcome, progress) = take::take(self, state, &arrival);
        if !matches!(outcome, Outcome::Complete) {
            return Err(partial::broken(self, &arrival, outcome, progress));
        }
        self.keep(&arrival, plan);
        if self.arguments.has('v') {
            let bytes = nice_bytes(self.input.position() - arrival.at - RECORD as u64);
            println!("received {bytes} stream in 1 seconds ({bytes}/sec)");
        }
        if state.unprivileged && !self.arguments.has('u') && !arrival.begin.is_volume() {
            let name = &arrival.dataset;
            return Err(format!("cannot mount '/{name}': failed to create mountpoint: Permission denied"));
        }
        Ok(())
    }

    /// The stream is whole and good: the snapshot exists from now on.
    fn keep(&mut self, arrival: &Arrival, plan: Plan) {
        let begin = &arrival.begin;
        let received = self.received(arrival, true);
        let properties: Vec<(String, String)> = self
            .arguments
            .values('o')
            .filter_map(|o| o.split_once('='))
            .map(|(a, b)| (a.to_owned(), b.to_owned()))
            .collect();
        State::update(self.call.folder, |state| {
            let createtxg = state.tick();
            let snapshot = Snapshot {
                name: arrival.snapshot.clone(),
                guid: begin.to_guid(),
                createtxg,
                creation: begin.creation(),
                referenced: received.length,
                changed: true,
                ..Snapshot::default()
            };
            if let Plan::Create { .. } | Plan::Replace = plan {
                make_parents(state, &arrival.dataset);
                let dataset = new_dataset(state, begin);
                state.datasets.insert(arrival.dataset.clone(), dataset);
            }
            let dataset = state.datasets.get_mut(&arrival.dataset).expect("the dataset that receives");
            if let Plan::Create { origin } = plan {
                dataset.origin = origin;
            }
            if begin.base_guid() != 0
                && let Some(base) = dataset.snapshots.iter().position(|s| s.guid == begin.base_guid())
                && dataset.snapshots[base + 1..].iter().any(|s| s.changed)
            {
                dataset.snapshots.truncate(base + 1); // `-F` rolled back
            }
            dataset.properties.extend(properties.into_iter().filter(|(name, _)| name != "origin"));
            dataset.modified = false;
            dataset.partial = None;
            dataset.snapshots.push(snapshot);
            state.received.push(received);
        });
    }

    pub fn received(&self, arrival: &Arrival, complete: bool) -> Received {
        Received {
            dataset: arrival.dataset.clone(),
            snapshot: arrival.snapshot.clone(),
            guid: arrival.begin.to_guid(),
            from_guid: arrival.begin.base_guid(),
            to_name: arrival.begin.to_name(),
            path: self.path.clone(),
            offset: arrival.at,
            length: self.input.position() - arrival.at,
            arguments: self.call.arguments.to_vec(),
            complete,
        }
    }
}

impl Arrival {
    pub fn cannot(&self, why: &str) -> String {
        let kind = if self.incremental { "incremental" } else { "new filesystem" };
        format!("cannot receive {kind} stream: {why}")
    }
}

pub fn new_dataset(state: &mut State, begin: &Record) -> Dataset {
    let raw = begin.features() & RAW != 0;
    Dataset {
        kind: if begin.is_volume() { "volume" } else { "filesystem" }.to_owned(),
        guid: state.guid(),
        createtxg: state.tick(),
        creation: state.now(),
        encryption: if raw { "aes-256-gcm" } else { "off" }.to_owned(),
        key_loaded: !raw,
        ..Dataset::default()
    }
}

/// `-d` makes the file systems between.
fn make_parents(state: &mut State, name: &str) {
    for (at, _) in name.match_indices('/') {
        if !state.datasets.contains_key(&name[..at]) {
            let guid = state.guid();
            state.datasets.insert(name[..at].to_owned(), Dataset { guid, ..Dataset::default() });
        }
    }
}
