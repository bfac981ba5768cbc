//! `restore`: plan, verify everything that can be verified without reading the data, then fetch ahead and open on
//! all cores, and hand over in order what is authentic.

mod fetch;
mod plan;
mod sink;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use indicatif::BinaryBytes;
use serde_json::json;

use self::plan::Destination;
use super::repository::Repository;
use super::unlock::{reader, unlock};
use super::{Context, chain, repository_and_word};
use crate::cli;
use crate::error::{Exit, Problem};
use crate::progress::{Counters, Reporter, Total, duration};

/// Runs `restore`.
pub fn run(context: &Context, args: cli::Restore) -> Result<Exit> {
    let destination = Destination::from_args(&args)?;
    let (named, wanted) = repository_and_word(args.words, 2)?;
    let wanted = wanted.ok_or_else(|| {
        Problem::new(Exit::Usage, "what to restore is missing")
            .hint("snapferry restore REPOSITORY DATASET@SNAPSHOT --to POOL/NAME")
    })?;
    destination.check(context, args.force)?;
    let repository = Repository::open(context, &named, None)?;
    // Before anything is fetched: a wrong key must not cost a night.
    let unlocked = unlock(context, &repository, &args.open)?;
    let reader = reader(context, &repository, &args.open, &unlocked)?;
    let (catalogue, missed) = repository.load_catalogue_to_read(context, &reader)?;
    let damaged = Repository::warn_of_damaged(context, &catalogue);
    let backup = chain::find(&catalogue, &wanted)?;
    let streams = plan::streams(&repository, &reader, &catalogue, backup, &destination)?;
    let streams = destination.skip_present(context, streams, args.force)?;
    destination.refuse_existing(&streams, args.force)?;
    tell_plan(context, &destination, &streams)?;
    let done = if missed == Some(0) && damaged == 0 { Exit::Done } else { Exit::Partial };
    if context.dry_run {
        return Ok(done);
    }
    destination.prepare(context)?;
    let (bytes, started) = (streams.iter().map(|stream| stream.manifest.stream.bytes).sum::<u64>(), Instant::now());
    let counters = Arc::new(Counters::default());
    let reporter =
        Reporter::start(&backup.manifest.title(), Total::Exact(bytes), Arc::clone(&counters), context.shows_progress());
    let opened = fetch::opened_segments(&repository, &unlocked.identity, &streams);
    sink::write_streams(context, &destination, &streams, opened, &counters, args.force)?;
    reporter.finish();
    tell_result(context, &destination, &streams, bytes, started)?;
    Ok(done)
}

fn tell_plan(context: &Context, destination: &Destination, streams: &[Arc<plan::Stream>]) -> Result<()> {
    if context.json && context.dry_run {
        let rows = streams.iter().map(|stream| {
            let manifest = &stream.manifest;
            json!({"id": manifest.id, "title": manifest.title(), "guid": manifest.guid(), "base_guid": manifest.base_guid(),
                "bytes": manifest.stream.bytes, "stored_bytes": manifest.stored_bytes()})
        });
        return context
            .print_json(&json!({"destination": destination.to_string(), "streams": rows.collect::<Vec<_>>()}));
    }
    for (number, stream) in streams.iter().enumerate() {
        let manifest = &stream.manifest;
        let kind = if manifest.base_guid().is_some() { "incremental" } else { "full" };
        let (bytes, stored) = (BinaryBytes(manifest.stream.bytes), BinaryBytes(manifest.stored_bytes()));
        let line =
            format!("{} of {}: {}, {kind}, {bytes} ({stored} to fetch)", number + 1, streams.len(), manifest.title());
        if context.dry_run {
            super::print_line(&format!("would restore {line} to {destination}"))?;
        } else {
            context.note(&line);
        }
    }
    Ok(())
}

fn tell_result(
    context: &Context,
    destination: &Destination,
    streams: &[Arc<plan::Stream>],
    bytes: u64,
    started: Instant,
) -> Result<()> {
    // Standard output is the data then.
    if context.json && !destination.is_stdout() {
        let ids: Vec<_> = streams.iter().map(|stream| &stream.manifest.id).collect();
        return context.print_json(&json!({"destination": destination.to_string(), "restored": ids, "bytes": bytes}));
    }
    let streams = if streams.len() == 1 { "1 stream".to_owned() } else { format!("{} streams", streams.len()) };
    let seconds = started.elapsed().as_secs_f64();
    context.note(&format!("restored {streams}, {}, to {destination} in {}", BinaryBytes(bytes), duration(seconds)));
    Ok(())
}

/// A file that stays as it is.
fn already_there(path: &Path) -> anyhow::Error {
    Problem::new(Exit::Failed, format!("{} exists already", path.display())).hint("--force replaces it").into()
}

/// An object of a stream that is not as it was signed.
fn damaged(place: impl std::fmt::Display, object: &str, why: &str) -> anyhow::Error {
    Problem::new(Exit::Failed, format!("{place}: {object}: {why}"))
        .hint("snapferry check --read-data shows all that is damaged or missing; backups that don't need this object can still be restored")
        .into()
}
