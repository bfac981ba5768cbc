//! `list`: what is kept.

use anyhow::Result;
use indicatif::BinaryBytes;
use serde_json::{Value, json};

use super::catalogue::{Backup, Catalogue, Reader};
use super::repository::Repository;
use super::unlock::{is_given, reader, unlock};
use super::{Context, chain, print_line, repository_and_word};
use crate::cli::{self, OpenWith};
use crate::error::{Exit, Problem};
use crate::format::manifest::Source;

/// What reads the manifests: what was given, else this machine's writer key, else what else opens the repository.
pub fn any_reader(context: &Context, repository: &Repository, open: &OpenWith) -> Result<Reader> {
    if !is_given(open)
        && let Some(reader) = repository.writer_reader()
    {
        return Ok(reader);
    }
    let unlocked = unlock(context, repository, open)?;
    reader(context, repository, open, &unlocked)
}

/// Runs `list`.
pub fn run(context: &Context, args: cli::List) -> Result<Exit> {
    let (named, wanted) = repository_and_word(args.words, 1)?;
    let repository = Repository::open(context, &named, args.writer_key.as_deref())?;
    let reader = any_reader(context, &repository, &args.open)?;
    let (catalogue, missed) = repository.load_catalogue_to_read(context, &reader)?;
    let shown: Vec<&Backup> = match &wanted {
        Some(wanted) => {
            let mut matching = chain::matching(&catalogue, wanted);
            matching.sort_by_key(|backup| backup.manifest.started);
            matching
        }
        None => catalogue.backups.iter().collect(),
    };
    if context.json {
        context.print_json(&as_json(&repository, &catalogue, &shown, missed))?;
    } else {
        print_table(&catalogue, &shown)?;
        Repository::warn_of_damaged(context, &catalogue);
    }
    if let (Some(wanted), true) = (&wanted, shown.is_empty()) {
        return Err(Problem::new(Exit::Missing, format!("no backup is called {wanted:?}")).into());
    }
    Ok(if catalogue.damaged.is_empty() && missed == Some(0) { Exit::Done } else { Exit::Partial })
}

fn as_json(repository: &Repository, catalogue: &Catalogue, shown: &[&Backup], missed: Option<usize>) -> Value {
    let damaged = catalogue.damaged.iter().map(|damaged| json!({"id": damaged.id, "reason": damaged.reason}));
    json!({
        "repository": repository.uuid,
        "url": repository.location.to_string(),
        "backups": shown.iter().map(|backup| backup_json(catalogue, backup)).collect::<Vec<_>>(),
        "damaged": damaged.collect::<Vec<_>>(),
        "missed": missed,
    })
}

/// One backup as JSON, also for other commands.
pub fn backup_json(catalogue: &Catalogue, backup: &Backup) -> Value {
    let manifest = &backup.manifest;
    let mut object = json!({
        "id": manifest.id,
        "guid": manifest.guid(),
        "base_guid": manifest.base_guid(),
        "bytes": manifest.stream.bytes,
        "stored_bytes": backup.stored_bytes,
        "started": manifest.started,
        "finished": manifest.finished,
        "host": manifest.host,
        "sequence": manifest.sequence,
        "codec": manifest.codec,
        "restorable": chain::resolve(catalogue, backup).is_ok(),
    });
    match &manifest.source {
        Source::Zfs(zfs) => {
            object["dataset"] = json!(zfs.dataset);
            object["snapshot"] = json!(zfs.snapshot);
            object["raw"] = json!(zfs.raw);
        }
        Source::Stream { name, looks_like, .. } => {
            object["name"] = json!(name);
            object["looks_like"] = json!(looks_like);
        }
    }
    object
}

fn print_table(catalogue: &Catalogue, shown: &[&Backup]) -> Result<()> {
    let rows: Vec<[String; 6]> = shown.iter().map(|backup| row(catalogue, backup)).collect();
    let heads = ["ID", "BACKED UP", "WHAT", "KIND", "STREAM", "STORED"].map(str::to_owned);
    let all: Vec<&[String; 6]> = std::iter::once(&heads).chain(&rows).collect();
    let width = |column: usize| all.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 6] = std::array::from_fn(width);
    for row in all {
        let [id, when, what, kind, stream, stored] = row;
        let [id_width, when_width, what_width, kind_width, stream_width, stored_width] = widths;
        print_line(&format!(
            "{id:id_width$}  {when:when_width$}  {what:what_width$}  {kind:kind_width$}  {stream:>stream_width$}  {stored:>stored_width$}"
        ))?;
    }
    Ok(())
}

fn row(catalogue: &Catalogue, backup: &Backup) -> [String; 6] {
    let manifest = &backup.manifest;
    let kind = match (&manifest.source, manifest.base_guid()) {
        (Source::Stream { .. }, None) if manifest.guid().is_none() => "stream".to_owned(),
        (_, None) => "full".to_owned(),
        (_, Some(_)) if chain::resolve(catalogue, backup).is_err() => "incremental, BASE MISSING".to_owned(),
        (Source::Zfs(zfs), Some(_)) => {
            let base = zfs.base.as_ref().map_or("", |base| base.name.as_str());
            format!("incremental from {base}")
        }
        (_, Some(base)) => {
            let titled = catalogue.backups.iter().find(|other| other.manifest.guid() == Some(base));
            format!("incremental from {}", titled.map_or_else(|| base.to_string(), |other| other.manifest.title()))
        }
    };
    [
        manifest.id.to_string(),
        manifest.started.strftime("%Y-%m-%d %H:%M:%S").to_string(),
        manifest.title(),
        kind,
        BinaryBytes(manifest.stream.bytes).to_string(),
        BinaryBytes(backup.stored_bytes).to_string(),
    ]
}
