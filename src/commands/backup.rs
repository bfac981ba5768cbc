//! `backup`: one stream, checked in passing, cut, compressed, sealed, stored; the manifest, written last, makes it
//! exist.

mod source;
mod transfer;

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use anyhow::{Context as _, Result};
use indicatif::BinaryBytes;
use serde_json::json;

use self::source::{Job, ReadStream};
use self::transfer::{Stored, Transfer};
use super::catalogue::Catalogue;
use super::init::now;
use super::journal::{Earlier, Journal};
use super::lock::RunLock;
use super::repository::Repository;
use super::seen::{Seen, SeenBackup};
use super::{Context, repository_and_word};
use crate::cli;
use crate::error::{Exit, Problem, exit_of, message_of};
use crate::format::keys::WriterKey;
use crate::format::manifest::{Hash, MAX_SEALED_MANIFEST, MAX_SEGMENT_SIZE, Manifest, StreamInfo};
use crate::format::names::{self, BackupId};
use crate::format::{FORMAT, age_file};
use crate::pipeline::codec::Codec;
use crate::pipeline::segment::segment_size_for;
use crate::progress::{Counters, Reporter, Total, counted, duration};
use crate::store::StoreErrorKind;

/// The smallest segment that may be asked for (bytes).
const MIN_SEGMENT_SIZE: u64 = 4096;

/// Runs `backup`.
pub fn run(context: &Context, args: cli::Backup) -> Result<Exit> {
    let (named, snapshot) = repository_and_word(args.words.clone(), if args.stdin { 1 } else { 2 })?;
    let repository = Repository::open(context, &named, args.writer_key.as_deref())?;
    let (Some(writer), Some(reader)) = (&repository.writer, repository.writer_reader()) else {
        return Err(Problem::new(Exit::NoKey, format!("there is no writer key for {named} on this machine"))
            .hint("back up on the machine that made the repository, or give --writer-key FILE")
            .into());
    };
    let _lock = RunLock::take_to_change(context, &repository.state)?;
    let (catalogue, mut seen, missed) = repository.load_catalogue(context, &reader)?;
    let damaged = Repository::warn_of_damaged(context, &catalogue);
    let done = if missed + damaged == 0 { Exit::Done } else { Exit::Partial };
    let asked = Asked::resolve(&args, &repository)?;
    let Some(job) = source::plan(context, &args, snapshot.as_deref(), &catalogue)? else { return Ok(done) };
    let settings = asked.settings(&job);
    if context.dry_run {
        tell_plan(context, &job, &settings)?;
        return Ok(done);
    }
    context.note(&job.describe());
    let run = Run { context, repository: &repository, writer, job: &job, settings: &settings };
    let journal = run.begin(&catalogue, &seen, args.no_resume)?;
    let (started, resumed) = (Instant::now(), journal.stored.len());
    let manifest = run.back_up(&mut seen, journal).map_err(|error| unfinished(error, resumed))?;
    run.tell_result(&manifest, started)?;
    Ok(done)
}

/// A backup under way.
struct Run<'a> {
    context: &'a Context,
    repository: &'a Repository,
    writer: &'a WriterKey,
    job: &'a Job,
    settings: &'a Settings,
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

    fn settings(self, job: &Job) -> Settings {
        let segment_size = self.segment_size.unwrap_or_else(|| segment_size_for(job.estimate.unwrap_or(0)));
        Settings { codec: self.codec, segment_size, verify: self.verify }
    }
}

fn tell_plan(context: &Context, job: &Job, settings: &Settings) -> Result<()> {
    if context.json {
        return context.print_json(&json!({
            "source": job.source, "estimate": job.estimate, "segment_size": settings.segment_size, "codec": settings.codec.info(),
        }));
    }
    super::print_line(&format!(
        "would do: {}; segments of {}, {}",
        job.describe(),
        BinaryBytes(settings.segment_size),
        settings.codec
    ))
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
        let mut random = [0u8; 8];
        getrandom::fill(&mut random).context("no randomness")?;
        let started = now();
        Journal::begin(&repository.state, &job.slot, &key, BackupId::new(started, random), started)
    }

    /// Moves the stream and commits it.
    fn back_up(&self, seen: &mut Seen, journal: Journal) -> Result<Manifest> {
        let Self { context, repository, writer, job, settings } = self;
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
            transfer.run(context, repository, job.open(context)?, journal)?;
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
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
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
        let committed = self.commit(&manifest)?;
        // The backup exists from here on, whatever can't be written on this machine any more.
        let remembered = seen.add(manifest.id.clone(), committed);
        let finished = journal.lock().unwrap_or_else(PoisonError::into_inner).finish();
        for error in [remembered, finished].into_iter().filter_map(Result::err) {
            context.warn(&format!("the backup is complete, but {error:#}"));
        }
        Ok(manifest)
    }

    /// Seals, signs, proves and stores the manifest: the signature first, the manifest last.
    fn commit(&self, manifest: &Manifest) -> Result<SeenBackup> {
        let Self { repository, writer, .. } = self;
        let id = &manifest.id;
        let plain = manifest.to_bytes()?;
        let recipients: [&dyn age::Recipient; 2] = [&repository.recipient, &writer.catalogue.to_public()];
        let sealed = age_file::seal(&plain, &recipients).context("the manifest can't be sealed")?;
        let comment = Manifest::comment(&repository.uuid, id);
        let signature = writer.signing.sign(&sealed, &comment)?;
        let signer = writer.signing.signer()?;
        signer.verify(&sealed, &signature, &comment).context("the manifest's own signature does not hold")?;
        let again = age_file::open(&sealed, &[&writer.catalogue], MAX_SEALED_MANIFEST)
            .context("the manifest does not open again")?;
        if Manifest::from_bytes(&again)? != *manifest {
            anyhow::bail!("the manifest does not read as it was written");
        }
        repository.confirm()?;
        // A run that was killed just here leaves a signature without a manifest behind.
        transfer::put_anew(repository, &names::signature(id), &signature)?;
        self.put_manifest(&names::manifest(id), &sealed)?;
        Ok(SeenBackup { writer: manifest.writer, sequence: manifest.sequence, blake3: Hash::of(&sealed) })
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

    fn tell_result(&self, manifest: &Manifest, started: Instant) -> Result<()> {
        let Self { context, job, .. } = self;
        let (id, bytes, stored) = (&manifest.id, manifest.stream.bytes, manifest.stored_bytes());
        if context.json {
            return context.print_json(&json!({
                "id": id, "source": manifest.source, "guid": manifest.guid(), "base_guid": manifest.base_guid(),
                "bytes": bytes, "stored_bytes": stored, "segments": manifest.segments.len(),
                "started": manifest.started, "finished": manifest.finished,
            }));
        }
        context.note(&format!(
            "{}: backed up {} as {} in {}, {} ({:.2}:1), id {id}",
            job.title,
            BinaryBytes(bytes),
            BinaryBytes(stored),
            counted(manifest.segments.len() as u64, "segment"),
            duration(started.elapsed().as_secs_f64()),
            bytes as f64 / stored.max(1) as f64,
        ));
        Ok(())
    }
}
