//! `check`: at three prices, and it says which of them it did.

mod data;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use serde_json::{Value, json};

use self::data::Sample;
use super::catalogue::{Backup, Catalogue, Reader, reload};
use super::list::any_reader;
use super::made::Made;
use super::repository::Repository;
use super::unlock::{Unlocked, is_given, reader, unlock};
use super::{Context, chain, default_repository, journal, print_line};
use crate::cli;
use crate::error::{Exit, Problem};
use crate::format::manifest::Manifest;
use crate::format::names::{self, BackupId};
use crate::pipeline::codec::Codec;
use crate::progress::counted;

/// Something that is not as it should be.
pub struct Finding {
    backup: Option<BackupId>,
    object: Option<String>,
    what: String,
}

impl Finding {
    fn of_backup(id: &BackupId, what: impl Into<String>) -> Self {
        Self { backup: Some(id.clone()), object: None, what: what.into() }
    }

    fn of_object(id: &BackupId, object: &str, what: impl Into<String>) -> Self {
        Self { backup: Some(id.clone()), object: Some(object.to_owned()), what: what.into() }
    }

    fn line(&self) -> String {
        let place = self.object.clone().or_else(|| self.backup.as_ref().map(|id| format!("backup {id}")));
        place.map_or_else(|| self.what.clone(), |place| format!("{place}: {}", self.what))
    }

    fn json(&self) -> Value {
        json!({"backup": self.backup, "object": self.object, "what": self.what})
    }
}

/// Runs `check`.
pub fn run(context: &Context, args: cli::Check) -> Result<Exit> {
    let sample = args.read_data.as_deref().map(Sample::parse).transpose()?;
    let named = default_repository(args.repository)?;
    let repository = Repository::open(context, &named, args.writer_key.as_deref())?;
    let unlocked = if is_given(&args.open) { Some(unlock(context, &repository, &args.open)?) } else { None };
    let reader = match &unlocked {
        Some(unlocked) => reader(context, &repository, &args.open, unlocked)?,
        None => any_reader(context, &repository, &args.open)?,
    };
    let (catalogue, mut seen, missed) = repository.load_catalogue(context, &reader)?;
    let mut made = Made::load(&repository.state)?;
    let changed = made.compare(&repository)?;
    if args.accept && !context.dry_run {
        seen.accept(&catalogue)?;
        made.accept(&changed)?;
    }
    let gone = if args.accept { 0 } else { missed };
    let mut check = Checked::new(&repository, &catalogue)?;
    if !args.accept {
        check.findings.extend(changed.into_iter().map(|(object, what)| Finding {
            backup: None,
            object: Some(object),
            what,
        }));
    }
    check.histories(&catalogue);
    check.presence(&repository, &reader, &catalogue)?;
    // Opening without reading makes no sense: a key that is given asks for the third price.
    let sample = sample.or(unlocked.is_some().then_some(Sample::ALL));
    if let Some(sample) = sample {
        let identity = unlocked.as_ref().map(|unlocked: &Unlocked| &unlocked.identity);
        let read = data::check(context, &repository, &reader, &catalogue, sample, identity)?;
        check.read = Some(read.described);
        check.bytes_read = read.bytes;
        // What the listing told already is not told again.
        let told: BTreeSet<Option<String>> = check.findings.iter().map(|finding| finding.object.clone()).collect();
        check.findings.extend(
            read.findings.into_iter().filter(|finding| finding.object.is_none() || !told.contains(&finding.object)),
        );
    }
    check.report(context, &catalogue, gone)?;
    Ok(if check.findings.is_empty() && gone == 0 { Exit::Done } else { Exit::Partial })
}

struct Checked {
    sizes: BTreeMap<String, u64>,
    findings: Vec<Finding>,
    leftovers: BTreeMap<BackupId, (u64, u64)>,
    unfinished: Vec<BackupId>,
    objects: u64,
    read: Option<String>,
    bytes_read: u64,
}

impl Checked {
    fn new(repository: &Repository, catalogue: &Catalogue) -> Result<Self> {
        let listed = repository.store.list(names::SEGMENTS).map_err(|error| repository.store_problem(error))?;
        let damaged = catalogue
            .damaged
            .iter()
            .map(|damaged| Finding::of_backup(&damaged.id, format!("its manifest can't be used: {}", damaged.reason)));
        let unusable = catalogue.removals.unusable.iter().map(|(id, reason)| Finding {
            backup: None,
            object: Some(names::removal(id)),
            what: format!("this record of removed backups can't be used: {reason}"),
        });
        Ok(Self {
            findings: damaged.chain(unusable).collect(),
            unfinished: journal::claimed(&repository.state),
            sizes: listed.into_iter().map(|object| (object.name, object.size)).collect(),
            leftovers: BTreeMap::new(),
            objects: 0,
            read: None,
            bytes_read: 0,
        })
    }

    /// That each writer's manifests follow one another as they say, and that each chain is whole.
    fn histories(&mut self, catalogue: &Catalogue) {
        let mut by_place = BTreeMap::new();
        for backup in &catalogue.backups {
            let Manifest { id, writer, sequence, .. } = &backup.manifest;
            if let Some(other) = by_place.insert((*writer, *sequence), backup) {
                let other: &Backup = other;
                self.findings.push(Finding::of_backup(
                    id,
                    format!("it has the same number {sequence} as {}", other.manifest.id),
                ));
            }
            if let Err(base) = chain::resolve(catalogue, backup) {
                let what = format!("it can't be restored: no complete backup of its base with GUID {base} is there");
                self.findings.push(Finding::of_backup(id, what));
            }
        }
        for backup in &catalogue.backups {
            let Manifest { id, writer, sequence, previous, .. } = &backup.manifest;
            let before = sequence.checked_sub(1).and_then(|before| by_place.get(&(*writer, before)));
            if before.is_some_and(|before| *previous != Some(before.sealed_blake3)) {
                self.findings.push(Finding::of_backup(id, "it does not follow the manifest that is there before it"));
            }
        }
    }

    fn presence(&mut self, repository: &Repository, reader: &Reader, catalogue: &Catalogue) -> Result<()> {
        for backup in &catalogue.backups {
            let manifest = reload(repository, reader, backup)?.manifest;
            let codec = match Codec::from_info(&manifest.codec) {
                Ok(codec) => codec,
                Err(error) => {
                    self.findings.push(Finding::of_backup(&manifest.id, error.to_string()));
                    self.sizes.retain(|name, _| names::parse_segment_owner(name).as_ref() != Some(&manifest.id));
                    continue;
                }
            };
            for (number, row) in manifest.segments.iter().enumerate() {
                let name = names::segment(&manifest.id, number as u64, codec.extension());
                self.objects += 1;
                match self.sizes.remove(&name) {
                    None => self.findings.push(Finding::of_object(&manifest.id, &name, "it is missing")),
                    Some(size) if size != row.stored_bytes() => {
                        let what = format!("it has {size} bytes where {} were stored", row.stored_bytes());
                        self.findings.push(Finding::of_object(&manifest.id, &name, what));
                    }
                    Some(_) => {}
                }
            }
        }
        self.left_over(catalogue);
        Ok(())
    }

    /// What is there and belongs to no backup. What belongs to a manifest that can't be read is not known.
    fn left_over(&mut self, catalogue: &Catalogue) {
        let unknown: BTreeSet<&BackupId> = catalogue.damaged.iter().map(|damaged| &damaged.id).collect();
        for (name, size) in &self.sizes {
            if let Some(owner) = names::parse_segment_owner(name).filter(|owner| !unknown.contains(owner)) {
                let (count, bytes) = self.leftovers.entry(owner).or_default();
                *count += 1;
                *bytes += size;
            }
        }
    }

    /// Every damaged thing on a line of its own, then what was done.
    fn report(&self, context: &Context, catalogue: &Catalogue, gone: usize) -> Result<()> {
        let mut done = vec!["manifests, signatures, presence and sizes of objects".to_owned()];
        done.extend(self.read.clone());
        if context.json {
            let leftovers = self.leftovers.iter().map(|(id, (objects, bytes))| {
                json!({"backup": id, "objects": objects, "bytes": bytes, "unfinished_here": self.unfinished.contains(id)})
            });
            return context.print_json(&json!({
                "backups": catalogue.backups.len(), "objects": self.objects, "checked": done, "bytes_read": self.bytes_read,
                "findings": self.findings.iter().map(Finding::json).collect::<Vec<_>>(), "gone": gone,
                "leftovers": leftovers.collect::<Vec<_>>(), "ok": self.findings.is_empty() && gone == 0,
            }));
        }
        for finding in &self.findings {
            context.warn(&finding.line());
        }
        for (id, (objects, _)) in &self.leftovers {
            let why = if self.unfinished.contains(id) {
                "an unfinished backup of this machine, which the same command goes on with"
            } else {
                "of no backup, such as one that was not finished; they do no harm"
            };
            context.note(&format!("{objects} segments of {id}: {why}"));
        }
        if !context.quiet {
            let verdict = match self.findings.len() + gone {
                0 => "all good".to_owned(),
                1 => "1 thing is damaged or missing".to_owned(),
                count => format!("{count} things are damaged or missing"),
            };
            print_line(&format!(
                "checked {}, {}: {}",
                counted(catalogue.backups.len() as u64, "backup"),
                counted(self.objects, "object"),
                done.join("; ")
            ))?;
            print_line(&verdict)?;
        }
        Ok(())
    }
}

fn bad_sample(text: &str) -> anyhow::Error {
    Problem::new(Exit::Usage, format!("--read-data: {text:?} is no part from 0.01% to 100%")).into()
}
