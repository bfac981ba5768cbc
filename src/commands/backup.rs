//! `backup`: one stream, checked in passing, cut, compressed, sealed, stored; the manifest, written last, makes it
//! exist.

mod explain;
pub mod pins;
mod select;
pub mod source;
mod transfer;

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use anyhow::{Context as _, Result};
use indicatif::BinaryBytes;
use serde_json::{Value, json};

pub use self::explain::run as explain;
use self::pins::Pins;
use self::select::Rules;
use self::source::{Considered, Job, Origin, Planned, ReadStream, Terms};
use self::transfer::{Stored, Transfer};
use super::catalogue::{Backup, Catalogue, Reader};
use super::init::now;
use super::journal::{Earlier, Journal};
use super::list::backup_json;
use super::lock::RunLock;
use super::repository::Repository;
use super::seen::Seen;
use super::{Context, chain, new_id, repository_and_word, zfs_problem};
use crate::error::{Exit, Problem, exit_of, message_of, report};
use crate::format::FORMAT;
use crate::format::keys::WriterKey;
use crate::format::manifest::{Hash, MAX_SEALED_MANIFEST, MAX_SEGMENT_SIZE, Manifest, SegmentRow, StreamInfo};
use crate::format::names::{self, BackupId};
use crate::pipeline::codec::Codec;
use crate::pipeline::segment::segment_size_for;
use crate::progress::{Counters, Reporter, Total, counted, duration};
use crate::store::StoreErrorKind;
use crate::zfs::command::ZfsError;
use crate::zfs::message;
use crate::zfs::names::{Dataset, Snapshot};
use crate::{children, cli};

/// The smallest segment that may be asked for (bytes).
const MIN_SEGMENT_SIZE: u64 = 4096;

/// Runs `backup`.
pub fn run(context: &Context, args: cli::Backup) -> Result<Exit> {
    let without_source = args.stdin || args.how.pull.is_some();
    let (named, what) = repository_and_word(args.words.clone(), if without_source { 1 } else { 2 })?;
    if without_source && what.is_some() {
        let other = if args.stdin { "--stdin" } else { "--pull" };
        return Err(Problem::new(Exit::Usage, format!("a snapshot and {other} were both given")).into());
    }
    let repository = Repository::open(context, &named, args.writer_key.as_deref())?;
    let (writer, reader) = writer_of(&repository)?;
    let _lock = RunLock::take_to_change(context, &repository.state)?;
    let (catalogue, seen, missed) = repository.load_catalogue(context, &reader)?;
    let damaged = Repository::warn_of_damaged(context, &catalogue);
    let done = if missed + damaged == 0 { Exit::Done } else { Exit::Partial };
    let asked = Asked::resolve(&args, &repository)?;
    let (origin, rest) = Origin::resolve(context, &repository, args.how.pull.as_deref())?;
    let no_resume = args.no_resume;
    let mut session = Session { context, repository: &repository, writer, origin, asked, no_resume, catalogue, seen };
    let exit = if args.stdin {
        session.one(&source::stdin_job(args.name.unwrap_or_default())?)?;
        Exit::Done
    } else {
        let what = rest.or(what).ok_or_else(|| {
            Problem::new(Exit::Usage, "what to back up is missing")
                .hint("snapferry backup REPOSITORY DATASET, DATASET@SNAPSHOT, or --stdin --name NAME")
        })?;
        let terms = Terms::resolve(&args.how, args.full, args.base.clone(), &repository)?;
        session.zfs(&what, &terms, &args.which)?
    };
    Ok(if exit == Exit::Done { done } else { exit })
}

/// What this machine backs up with, and what it reads manifests with.
pub fn writer_of(repository: &Repository) -> Result<(&WriterKey, Reader)> {
    let (Some(writer), Some(reader)) = (&repository.writer, repository.writer_reader()) else {
        return Err(Problem::new(
            Exit::NoKey,
            format!("there is no writer key for {} on this machine", repository.named),
        )
        .hint("back up on the machine that made the repository, or give --writer-key FILE")
        .into());
    };
    Ok((writer, reader))
}

/// All that the backups of one run have in common.
struct Session<'a> {
    context: &'a Context,
    repository: &'a Repository,
    writer: &'a WriterKey,
    origin: Origin,
    asked: Asked,
    no_resume: bool,
    catalogue: Catalogue,
    seen: Seen,
}

/// What became of the datasets of one run.
#[derive(Default)]
struct Outcome {
    backups: Vec<Value>,
    failed: Vec<(String, anyhow::Error)>,
}

impl Session<'_> {
    /// `DATASET@SNAPSHOT`, or a dataset of which a snapshot is taken or chosen.
    fn zfs(&mut self, what: &str, terms: &Terms, which: &cli::WhichSnapshots) -> Result<Exit> {
        let usage = |error: &dyn std::fmt::Display| Problem::new(Exit::Usage, error.to_string());
        let rules = Rules::resolve(which, self.repository)?;
        if what.contains('@') {
            let of_datasets = which.keep_source.is_some() || which.snapshot_name.is_some();
            if !rules.take() || rules.catch_up || rules.recursive || of_datasets {
                let message = "-r, --match, --exclude, --catch-up, --keep-source and --snapshot-name are for a dataset, and a snapshot was named";
                return Err(Problem::new(Exit::Usage, message).into());
            }
            let snapshot: Snapshot = what.parse().map_err(|error| usage(&error))?;
            self.reap(&snapshot.dataset);
            if let Some(object) = self.snapshot(&snapshot, terms)?
                && self.context.json
            {
                self.context.print_json(&object)?;
            }
            return Ok(Exit::Done);
        }
        let dataset: Dataset = what.parse().map_err(|error| usage(&error))?;
        let outcome = self.datasets(&dataset, terms, &rules)?;
        self.report(outcome)
    }

    /// A dataset, and with `-r` all below. One that fails does not keep the others from being backed up.
    fn datasets(&mut self, top: &Dataset, terms: &Terms, rules: &Rules) -> Result<Outcome> {
        let (context, repository) = (self.context, self.repository);
        let list = |origin: &Origin| match rules.recursive {
            true => origin.zfs.datasets(top).map_err(zfs_problem),
            false => Ok(vec![top.clone()]),
        };
        let mut outcome = Outcome::default();
        if context.dry_run {
            for dataset in list(&self.origin)? {
                outcome.backups.extend(self.foresee(&dataset, terms, rules)?);
            }
            return Ok(outcome);
        }
        let taken = match rules.take() {
            true => Some(select::take(context, &self.origin, repository, rules, top)?),
            false => None,
        };
        for dataset in list(&self.origin)? {
            if let Err(error) = self.dataset(&dataset, taken.as_deref(), terms, rules, &mut outcome) {
                if children::is_ending() {
                    return Err(error);
                }
                outcome.failed.push((dataset.to_string(), error));
            }
        }
        Ok(outcome)
    }

    fn dataset(
        &mut self,
        dataset: &Dataset,
        taken: Option<&str>,
        terms: &Terms,
        rules: &Rules,
        outcome: &mut Outcome,
    ) -> Result<()> {
        self.reap(dataset);
        let mut snapshots = select::existing(&self.origin, self.repository, &self.catalogue, rules, dataset)?;
        if let Some(name) = taken {
            let taken: Snapshot = format!("{dataset}@{name}").parse()?;
            snapshots.retain(|snapshot| *snapshot != taken);
            snapshots.push(taken);
        }
        for snapshot in snapshots {
            outcome.backups.extend(self.snapshot(&snapshot, terms)?);
        }
        match rules.keep_source {
            Some(keep) => select::thin(self.context, &self.origin, self.repository, &self.catalogue, dataset, keep),
            None => Ok(()),
        }
    }

    /// What a dry run says of a dataset; returned as JSON as well.
    fn foresee(&mut self, dataset: &Dataset, terms: &Terms, rules: &Rules) -> Result<Vec<Value>> {
        let mut foreseen = Vec::new();
        for snapshot in select::existing(&self.origin, self.repository, &self.catalogue, rules, dataset)? {
            foreseen.extend(self.snapshot(&snapshot, terms)?);
        }
        if !rules.take() {
            return Ok(foreseen);
        }
        let name = rules.name_at(now())?;
        let snapshot: Snapshot = format!("{dataset}@{name}").parse()?;
        let future = Some(explain::future(&name));
        let Considered { offers, choice, .. } =
            source::consider(&self.origin, terms, &snapshot, future, &self.catalogue, Some(&self.repository.state))?;
        let (offer, kind) = (&offers[choice.index], explain::kind(&offers[choice.index], choice.index));
        let base = offer.base.as_ref().map(|base| &base.name);
        foreseen.push(
            json!({"would_take": snapshot.to_string(), "base": base, "flags": offer.flags, "estimate": offer.bytes}),
        );
        if !self.context.json {
            let about = offer.bytes.map_or_else(String::new, |bytes| format!(", about {}", BinaryBytes(bytes)));
            super::print_line(&format!("would take {snapshot}, and send it: {kind}{about} ({})", choice.reason))?;
        }
        Ok(foreseen)
    }

    fn report(&self, outcome: Outcome) -> Result<Exit> {
        let Outcome { backups, mut failed } = outcome;
        if self.context.json {
            let failure = |(dataset, error): &(String, anyhow::Error)| json!({"dataset": dataset, "error": message_of(error), "exit_code": exit_of(error).code()});
            let failures: Vec<Value> = failed.iter().map(failure).collect();
            self.context.print_json(&json!({"backups": backups, "failed": failures}))?;
        }
        if failed.is_empty() {
            return Ok(Exit::Done);
        }
        if backups.is_empty() && failed.len() == 1 {
            return Err(failed.remove(0).1);
        }
        let (count, exit) = (failed.len() as u64, exit_of(&failed[0].1));
        for (dataset, error) in failed {
            report(&error.context(dataset), self.context.json);
        }
        if backups.is_empty() {
            return Err(Problem::new(exit, format!("none of {} was backed up", counted(count, "dataset"))).into());
        }
        Ok(Exit::Partial)
    }

    fn pins(&self) -> Pins<'_> {
        let Self { context, repository, writer, origin, .. } = self;
        Pins { context, zfs: &origin.zfs, repository: repository.uuid, writer: writer.writer }
    }

    /// Clears away what runs that ended without a word still hold. That this can't be done keeps nobody from a backup.
    fn reap(&self, dataset: &Dataset) {
        if !self.context.dry_run
            && let Err(error) = self.pins().reap(dataset, &self.repository.state, &self.catalogue)
        {
            tracing::info!("holds that are left of earlier runs can't be looked for: {error}");
        }
    }

    /// Backs up one snapshot, or says how it would; returns what `--json` shows of it.
    fn snapshot(&mut self, snapshot: &Snapshot, terms: &Terms) -> Result<Option<Value>> {
        let planned =
            source::zfs_job(self.context, &self.origin, terms, snapshot, &self.catalogue, &self.repository.state)?;
        let id = match planned {
            Planned::Job(job) if self.context.dry_run => {
                return tell_plan(self.context, &job, &self.asked.settings(&job)).map(Some);
            }
            Planned::Job(job) => return self.back_up(&job).map(Some),
            Planned::Kept(id) => id,
        };
        self.context.note(&format!("{snapshot} is kept already, as {id}; nothing to do (--full sends it again)"));
        let backup = self.catalogue.backups.iter().find(|backup| backup.manifest.id == id);
        Ok(backup.map(|backup| {
            let mut object = backup_json(&self.catalogue, backup);
            object["already_kept"] = json!(true);
            object
        }))
    }

    /// A stream from standard input.
    fn one(&mut self, job: &Job) -> Result<()> {
        let object = match self.context.dry_run {
            true => tell_plan(self.context, job, &self.asked.settings(job))?,
            false => self.back_up(job)?,
        };
        if self.context.json { self.context.print_json(&object) } else { Ok(()) }
    }

    fn back_up(&mut self, job: &Job) -> Result<Value> {
        let Self { context, repository, writer, origin, asked, no_resume, catalogue, seen } = self;
        let settings = asked.settings(job);
        context.note(&job.describe());
        let stands_on = job.base_guid().map_or_else(Vec::new, |base| chain::ids(catalogue, base));
        let run = Run { context, repository, writer, origin, job, settings: &settings, stands_on };
        let journal = run.begin(catalogue, seen, *no_resume)?;
        let pins = Pins { context, zfs: &origin.zfs, repository: repository.uuid, writer: writer.writer };
        if let Some((snapshot, _)) = job.snapshot() {
            pins.hold(snapshot, &journal.id)?;
        }
        let (started, resumed) = (Instant::now(), journal.stored.len());
        let backup = run.back_up(seen, journal).map_err(|error| unfinished(error, resumed))?;
        run.tell_result(&backup.manifest, started);
        let (object, id) = (result_json(&backup.manifest), backup.manifest.id.clone());
        catalogue.add(backup);
        if let Some((snapshot, guid)) = job.snapshot() {
            pins.settle(snapshot, guid, &id, catalogue);
        }
        Ok(object)
    }
}

/// What `--json` shows of a backup that was made.
fn result_json(manifest: &Manifest) -> Value {
    json!({
        "id": manifest.id, "source": manifest.source, "guid": manifest.guid(), "base_guid": manifest.base_guid(),
        "bytes": manifest.stream.bytes, "stored_bytes": manifest.stored_bytes(), "segments": manifest.segments.len(),
        "started": manifest.started, "finished": manifest.finished,
    })
}

/// A backup under way.
struct Run<'a> {
    context: &'a Context,
    repository: &'a Repository,
    writer: &'a WriterKey,
    origin: &'a Origin,
    job: &'a Job,
    settings: &'a Settings,
    /// The chain of its base.
    stands_on: Vec<BackupId>,
}

/// How segments are made.
struct Settings {
    codec: Codec,
    segment_size: u64,
    verify: bool,
}

/// How segments shall be made, before anything is known of the stream.
struct Asked {
    codec: Codec,
    segment_size: Option<u64>,
    verify: bool,
}

impl Asked {
    fn resolve(args: &cli::Backup, repository: &Repository) -> Result<Self> {
        let typed =
            args.compression.as_ref().or(repository.profile.as_ref().and_then(|profile| profile.compression.as_ref()));
        let codec = typed.map_or(Ok(Codec::default()), |text| text.parse());
        let codec = codec.map_err(|error| Problem::new(Exit::Usage, format!("--compression: {error}")))?;
        let size_of = |text: &String| {
            let size = text.parse::<bytesize::ByteSize>().ok().map(|size| size.as_u64());
            size.filter(|size| (MIN_SEGMENT_SIZE..=MAX_SEGMENT_SIZE).contains(size)).ok_or_else(|| {
                Problem::new(Exit::Usage, format!("--segment-size: {text:?} is no size from 4KiB to 1GiB"))
            })
        };
        let segment_size = args.segment_size.as_ref().map(size_of).transpose()?;
        Ok(Self { codec, segment_size, verify: !args.no_verify })
    }

    fn settings(&self, job: &Job) -> Settings {
        let segment_size = self.segment_size.unwrap_or_else(|| segment_size_for(job.estimate.unwrap_or(0)));
        Settings { codec: self.codec, segment_size, verify: self.verify }
    }
}

/// Says what would be done; returned as JSON as well.
fn tell_plan(context: &Context, job: &Job, settings: &Settings) -> Result<Value> {
    let Settings { codec, segment_size, .. } = settings;
    if !context.json {
        let how = format!("segments of {}, {codec}", BinaryBytes(*segment_size));
        super::print_line(&format!("would do: {}; {how}", job.describe()))?;
    }
    Ok(json!({"source": job.source, "estimate": job.estimate, "segment_size": segment_size, "codec": codec.info()}))
}

fn unfinished(error: anyhow::Error, resumed: usize) -> anyhow::Error {
    let hint = if resumed > 0 {
        "nothing of it is visible in the repository; the same command goes on where it was (--no-resume starts over)"
    } else {
        "nothing of it is visible in the repository; once the cause is gone, the same command goes on where it was"
    };
    // A problem has an exit code and advice of its own.
    if error.chain().any(|cause| cause.is::<Problem>()) {
        return error.context("the backup was not finished");
    }
    // What zfs said comes through the stream, as the error of a read.
    let of_zfs = |cause: &(dyn std::error::Error + 'static)| {
        let read = cause.downcast_ref::<std::io::Error>()?.get_ref()?;
        message::hint(&read.downcast_ref::<ZfsError>()?.stderr)
    };
    let hint = match error.chain().find_map(of_zfs) {
        Some(known) => format!("{}; {hint}", known.text),
        None => hint.to_owned(),
    };
    Problem::new(exit_of(&error), format!("the backup was not finished: {}", message_of(&error))).hint(hint).into()
}

impl Run<'_> {
    /// The journal to go on with, or a new one after what an abandoned run left was removed.
    fn begin(&self, catalogue: &Catalogue, seen: &Seen, no_resume: bool) -> Result<Journal> {
        let Self { context, repository, job, settings, .. } = self;
        let key = job.journal_key(&repository.recipient.to_string(), settings.codec, settings.segment_size);
        // A run that was killed between its manifest and the end of its journal left a whole backup. That this
        // machine knows of it counts as well as a listing, which a server may have made up.
        let is_complete = |id: &BackupId| {
            seen.knows(id)
                || catalogue.backups.iter().any(|backup| backup.manifest.id == *id)
                || catalogue.damaged.iter().any(|damaged| damaged.id == *id)
        };
        let abandoned = match Journal::find(&repository.state, &job.slot, &key)? {
            Earlier::Same(journal) if !no_resume && !is_complete(&journal.id) => {
                context.note(&format!("going on with the interrupted backup {}", journal.id));
                return Ok(*journal);
            }
            Earlier::Same(journal) => Some(journal.id),
            Earlier::Other(id) => Some(id),
            Earlier::None => None,
        };
        if let Some(id) = abandoned.filter(|id| !is_complete(id)) {
            context.note(&format!("removing what the interrupted backup {id} left"));
            if let Err(error) = transfer::remove_leftovers(repository, &id) {
                context.warn(&format!("what the interrupted backup {id} left could not be removed: {error:#}"));
            }
        }
        let started = now();
        Journal::begin(&repository.state, &job.slot, &key, new_id(started)?, started)
    }

    /// Moves the stream and commits it.
    fn back_up(&self, seen: &mut Seen, journal: Journal) -> Result<Backup> {
        let Self { context, repository, writer, origin, job, settings, .. } = self;
        let (id, started) = (journal.id.clone(), journal.started);
        let counters = Arc::new(Counters::default());
        let total = job.estimate.map_or(Total::Unknown, Total::About);
        let reporter = Reporter::start(&job.title, total, Arc::clone(&counters), context.shows_progress());
        let transfer = Transfer {
            codec: settings.codec,
            segment_size: settings.segment_size,
            verify: settings.verify,
            counters: Arc::clone(&counters),
        };
        let Stored { rows, bytes, blake3, read, journal } =
            transfer.run(context, repository, job.open(&origin.zfs)?, journal)?;
        reporter.finish();
        let ReadStream { source, zfs_stream } = job.finish(read)?;
        let newest = seen.newest_of(&writer.writer);
        let manifest = Manifest {
            format: FORMAT,
            repository: repository.uuid,
            id,
            writer: writer.writer,
            sequence: newest.map_or(1, |newest| newest.sequence + 1),
            previous: newest.map(|newest| newest.blake3),
            host: origin.host.clone(),
            tool: concat!("snapferry ", env!("CARGO_PKG_VERSION")).to_owned(),
            started,
            finished: now(),
            source,
            zfs_stream,
            codec: settings.codec.info(),
            segment_size: settings.segment_size,
            stream: StreamInfo { bytes, blake3 },
            segments: rows,
        };
        manifest.validate()?;
        let backup = self.commit(manifest)?;
        // The backup exists from here on, whatever can't be written on this machine any more.
        let remembered = seen.add(backup.manifest.id.clone(), backup.seen());
        let finished = journal.lock().unwrap_or_else(PoisonError::into_inner).finish();
        for error in [remembered, finished].into_iter().filter_map(Result::err) {
            context.warn(&format!("the backup is complete, but {error:#}"));
        }
        Ok(backup)
    }

    /// Seals, signs, proves and stores the manifest: the signature first, the manifest last.
    fn commit(&self, manifest: Manifest) -> Result<Backup> {
        let Self { repository, writer, .. } = self;
        let id = &manifest.id;
        let comment = Manifest::comment(&repository.uuid, id);
        let (sealed, signature) =
            repository.seal(writer, &manifest.to_bytes()?, &comment, MAX_SEALED_MANIFEST).context("the manifest")?;
        repository.confirm()?;
        self.confirm_presence(&manifest)?;
        // A run that was killed just here leaves a signature without a manifest behind.
        transfer::put_anew(repository, &names::signature(id), &signature)?;
        self.put_manifest(&names::manifest(id), &sealed)?;
        let stored_bytes = manifest.stored_bytes() + sealed.len() as u64;
        Ok(Backup { manifest, sealed_blake3: Hash::of(&sealed), stored_bytes })
    }

    /// That every segment and every backup that this one stands on is still there: a backup may take weeks, and a prune
    /// on another machine knows nothing of it. A manifest of what is gone would be a promise that nobody can keep.
    fn confirm_presence(&self, manifest: &Manifest) -> Result<()> {
        let Self { repository, settings, stands_on, .. } = self;
        let list = |folder: &str| {
            let listed = repository.store.list(folder).map_err(|error| repository.store_problem(error))?;
            Ok::<_, anyhow::Error>(
                listed.into_iter().map(|object| (object.name, object.size)).collect::<HashMap<_, _>>(),
            )
        };
        let (segments, extension) = (list(&names::segments(&manifest.id))?, settings.codec.extension());
        let is_there = |(number, row): &(usize, &SegmentRow)| {
            segments.get(&names::segment(&manifest.id, *number as u64, extension)) == Some(&row.stored_bytes())
        };
        let gone = manifest.segments.iter().enumerate().filter(|segment| !is_there(segment)).count();
        if gone > 0 {
            let message = format!(
                "{} that this run had stored went from the repository meanwhile",
                counted(gone as u64, "segment")
            );
            return Err(Problem::new(Exit::Failed, message)
                .hint("look for what removes them, such as a prune on another machine; the same command stores them again")
                .into());
        }
        let manifests = if stands_on.is_empty() { HashMap::new() } else { list(names::MANIFESTS)? };
        match stands_on.iter().find(|id| !manifests.contains_key(&names::manifest(id))) {
            None => Ok(()),
            Some(id) => {
                Err(Problem::new(Exit::Failed, format!("backup {id}, which this one stands on, was removed meanwhile"))
                    .hint("run the same command again: it chooses another base")
                    .into())
            }
        }
    }

    /// A connection that broke at this very instant leaves open whether the backup exists; that is looked up.
    fn put_manifest(&self, name: &str, sealed: &[u8]) -> Result<()> {
        let Self { repository, .. } = self;
        let Err(error) = repository.store.put(name, sealed) else { return Ok(()) };
        if !error.is_transient() {
            return Err(repository.store_problem(error));
        }
        match repository.store.get(name, sealed.len() as u64) {
            Ok(there) if there == sealed => Ok(()),
            Err(absent) if absent.kind == StoreErrorKind::NotFound => Err(repository.store_problem(error)),
            _ => Err(Problem::new(Exit::Failed, format!("{}: {error}", repository.location))
                .hint("its last object may have arrived all the same: snapferry list shows whether the backup exists")
                .into()),
        }
    }

    fn tell_result(&self, manifest: &Manifest, started: Instant) {
        let Self { context, job, .. } = self;
        let (id, bytes, stored) = (&manifest.id, manifest.stream.bytes, manifest.stored_bytes());
        context.note(&format!(
            "{}: backed up {} as {} in {}, {} ({:.2}:1), id {id}",
            job.title,
            BinaryBytes(bytes),
            BinaryBytes(stored),
            counted(manifest.segments.len() as u64, "segment"),
            duration(started.elapsed().as_secs_f64()),
            bytes as f64 / stored.max(1) as f64,
        ));
    }
}
