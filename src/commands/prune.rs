//! `prune`: which backups stay by the policy, why, and then the others go: a signed record of it first, manifests
//! before segments, increments before what they stand on.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use anyhow::Result;
use indicatif::BinaryBytes;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use uuid::Uuid;

use super::backup::writer_of;
use super::catalogue::{Backup, Catalogue};
use super::init::now;
use super::lock::RunLock;
use super::repository::Repository;
use super::seen::Seen;
use super::{Context, chain, default_repository, journal, parse_time, print_line, removals};
use crate::cli;
use crate::error::{Exit, Problem};
use crate::format::keys::WriterKey;
use crate::format::manifest::Source;
use crate::format::names::{self, BackupId};
use crate::pipeline::ordered::ordered_map;
use crate::progress::counted;
use crate::retention::{Item, Policy, Reasons};
use crate::store::StoreErrorKind;

/// Segments of no backup are left alone for so long: they may be of a backup that is under way elsewhere.
const GRACE: SignedDuration = SignedDuration::from_hours(7 * 24);

/// What stays and what goes.
struct Plan<'c> {
    stay: Vec<(&'c Backup, Reasons)>,
    /// What stands on others before them.
    go: Vec<&'c Backup>,
    leftovers: BTreeMap<BackupId, Leftover>,
}

/// Objects of no backup.
#[derive(Default)]
struct Leftover {
    names: Vec<String>,
    bytes: u64,
}

/// Runs `prune`.
pub fn run(context: &Context, args: cli::Prune) -> Result<Exit> {
    let policy = policy(&args)?;
    let grace = args.grace.as_deref().map_or(Ok(GRACE), |text| parse_time("--grace", text))?;
    let named = default_repository(args.repository)?;
    let repository = Repository::open(context, &named, args.writer_key.as_deref())?;
    let (writer, reader) = writer_of(&repository)?;
    let _lock = RunLock::take_to_change(context, &repository.state)?;
    let (catalogue, mut seen, missed) = repository.load_catalogue(context, &reader)?;
    refuse_if_incomplete(context, &catalogue, missed, &named)?;
    let claimed: HashSet<BackupId> = journal::claimed(&repository.state).into_iter().collect();
    let leftovers = leftovers(&repository, &catalogue, &claimed, now().checked_sub(grace)?)?;
    let (stay, go) = decide(&policy, &catalogue, &journal::bases(&repository.state), now());
    let plan = Plan { stay, go, leftovers };
    plan.prove(&catalogue)?;
    if !context.json {
        plan.show(context)?;
    }
    if !context.dry_run {
        plan.carry_out(context, &repository, writer, &mut seen)?;
    }
    if context.json {
        context.print_json(&plan.json())?;
    }
    Ok(Exit::Done)
}

fn policy(args: &cli::Prune) -> Result<Policy> {
    let policy = Policy {
        last: args.keep_last,
        hourly: args.keep_hourly,
        daily: args.keep_daily,
        weekly: args.keep_weekly,
        monthly: args.keep_monthly,
        yearly: args.keep_yearly,
        within: args.keep_within.as_deref().map(|text| parse_time("--keep-within", text)).transpose()?,
    };
    if policy.is_empty() {
        return Err(Problem::new(Exit::Usage, "what to keep is not said")
            .hint("such as --keep-last 3 --keep-daily 7 --keep-weekly 4 --keep-monthly 12; with -n nothing is removed")
            .into());
    }
    Ok(policy)
}

/// What is missing may be what a policy would count, or what another backup stands on.
fn refuse_if_incomplete(context: &Context, catalogue: &Catalogue, missed: usize, named: &str) -> Result<()> {
    Repository::warn_of_damaged(context, catalogue);
    for (id, reason) in &catalogue.removals.unusable {
        context.warn(&format!("the record {} of removed backups can't be used: {reason}", names::removal(id)));
    }
    let wrong = missed + catalogue.damaged.len() + catalogue.removals.unusable.len();
    if wrong == 0 {
        return Ok(());
    }
    Err(Problem::new(Exit::Partial, "nothing was removed: backups are missing, or can't be read")
        .hint(format!(
            "snapferry check {named} tells more; what is gone for good is accepted with check --accept, and a damaged manifest can be deleted by hand"
        ))
        .into())
}

/// Which stay, and which go, those that stand on others first.
fn decide<'c>(
    policy: &Policy,
    catalogue: &'c Catalogue,
    bases: &[u64],
    now: Timestamp,
) -> (Vec<(&'c Backup, Reasons)>, Vec<&'c Backup>) {
    let places: HashMap<&BackupId, usize> =
        catalogue.backups.iter().enumerate().map(|(place, backup)| (&backup.manifest.id, place)).collect();
    let mut groups: HashMap<(Uuid, &str, &str), usize> = HashMap::new();
    let mut links = Vec::new();
    let mut items = Vec::new();
    for backup in &catalogue.backups {
        let manifest = &backup.manifest;
        let (name, createtxg, time) = match &manifest.source {
            Source::Zfs(zfs) => {
                let creation = Timestamp::from_second(zfs.creation).unwrap_or(manifest.started);
                (zfs.dataset.as_str(), zfs.createtxg, creation)
            }
            Source::Stream { name, .. } => (name.as_str(), 0, manifest.started),
        };
        let next = groups.len();
        let group = *groups.entry((manifest.writer, manifest.host.as_str(), name)).or_insert(next);
        let chain = chain::resolve(catalogue, backup);
        let base =
            chain.as_ref().ok().and_then(|chain| chain.iter().rev().nth(1).map(|base| places[&base.manifest.id]));
        links.push(chain.as_ref().map_or(0, Vec::len));
        items.push(Item {
            group,
            order: (manifest.sequence, createtxg),
            time,
            base,
            complete: chain.is_ok(),
            condemned: catalogue.removals.names(&manifest.id, backup.sealed_blake3),
            pinned: manifest.guid().is_some_and(|guid| bases.contains(&guid.0)),
        });
    }
    let reasons = policy.decide(&items, now);
    let (mut stay, mut go) = (Vec::new(), Vec::new());
    for ((backup, reasons), links) in catalogue.backups.iter().zip(reasons).zip(links) {
        if reasons.is_empty() { go.push((links, backup)) } else { stay.push((backup, reasons)) }
    }
    go.sort_by_key(|(links, _)| std::cmp::Reverse(*links));
    (stay, go.into_iter().map(|(_, backup)| backup).collect())
}

/// Objects of no backup that began before `limit`, or that was removed, and that no journal here claims.
fn leftovers(
    repository: &Repository,
    catalogue: &Catalogue,
    claimed: &HashSet<BackupId>,
    limit: Timestamp,
) -> Result<BTreeMap<BackupId, Leftover>> {
    let list = |folder| repository.store.list(folder).map_err(|error| repository.store_problem(error));
    let (segments, manifests) = (list(names::SEGMENTS)?, list(names::MANIFESTS)?);
    let is_kept: HashSet<&BackupId> = catalogue.backups.iter().map(|backup| &backup.manifest.id).collect();
    let is_old =
        |id: &BackupId| catalogue.removals.removed.contains_key(id) || id.began().is_some_and(|began| began < limit);
    let mut found: BTreeMap<BackupId, Leftover> = BTreeMap::new();
    for object in segments.into_iter().chain(manifests) {
        let owner = names::parse_segment_owner(&object.name).or_else(|| names::parse_signature(&object.name));
        if let Some(owner) = owner.filter(|id| !is_kept.contains(id) && !claimed.contains(id) && is_old(id)) {
            let leftover = found.entry(owner).or_default();
            leftover.names.push(object.name);
            leftover.bytes += object.size;
        }
    }
    Ok(found)
}

impl Plan<'_> {
    /// That all that stays can be restored as before, by the same walk that a restore makes: whatever was decided.
    fn prove(&self, before: &Catalogue) -> Result<()> {
        let after = Catalogue::of(self.stay.iter().map(|(backup, _)| (*backup).clone()).collect());
        for (backup, _) in &self.stay {
            if chain::resolve(before, backup).is_ok() && chain::resolve(&after, backup).is_err() {
                let id = &backup.manifest.id;
                let message =
                    format!("nothing was removed: {id}, which stays, could not be restored without what would go");
                return Err(Problem::new(Exit::Failed, message)
                    .hint("its manifests name one another as bases; a new full backup and a larger --keep-last keep what they need")
                    .into());
            }
        }
        Ok(())
    }

    fn freed(&self) -> u64 {
        let left: u64 = self.leftovers.values().map(|leftover| leftover.bytes).sum();
        self.go.iter().map(|backup| backup.stored_bytes).sum::<u64>() + left
    }

    fn show(&self, context: &Context) -> Result<()> {
        if context.quiet && !context.dry_run {
            return Ok(());
        }
        let line = |word: &str, backup: &Backup, why: &str| {
            let Backup { manifest, stored_bytes, .. } = backup;
            let what = format!("{}  {}", manifest.title(), BinaryBytes(*stored_bytes));
            print_line(format!("{word:6}  {}  {what}  {why}", manifest.id).trim_end())
        };
        if context.dry_run || context.terminal || context.verbose {
            for (backup, reasons) in &self.stay {
                line("keep", backup, &reasons.join(", "))?;
            }
            for backup in &self.go {
                line("remove", backup, "")?;
            }
            for (id, leftover) in &self.leftovers {
                let count = counted(leftover.names.len() as u64, "object");
                print_line(&format!("remove  {id}  {count} of no backup, {}", BinaryBytes(leftover.bytes)))?;
            }
        }
        let (would, all) = (if context.dry_run { "would remove" } else { "removing" }, self.go.len() + self.stay.len());
        let sum =
            format!("{would} {} of {}: {}", self.go.len(), counted(all as u64, "backup"), BinaryBytes(self.freed()));
        if context.dry_run {
            return print_line(&sum);
        }
        context.note(&sum);
        Ok(())
    }

    fn json(&self) -> serde_json::Value {
        let of = |backup: &Backup| json!({"id": backup.manifest.id, "what": backup.manifest.title(), "host": backup.manifest.host, "stored_bytes": backup.stored_bytes});
        let stay = self.stay.iter().map(|(backup, reasons)| {
            let mut object = of(backup);
            object["reasons"] = json!(reasons);
            object
        });
        let leftover = |(id, leftover): (&BackupId, &Leftover)| json!({"backup": id, "objects": leftover.names.len(), "bytes": leftover.bytes});
        json!({
            "keep": stay.collect::<Vec<_>>(), "remove": self.go.iter().map(|backup| of(backup)).collect::<Vec<_>>(),
            "leftovers": self.leftovers.iter().map(leftover).collect::<Vec<_>>(), "freed_bytes": self.freed(),
        })
    }

    /// A kill at any instant leaves whole backups, which the next run removes, or objects of none, which it removes too.
    fn carry_out(&self, context: &Context, repository: &Repository, writer: &WriterKey, seen: &mut Seen) -> Result<()> {
        repository.confirm()?;
        if !self.go.is_empty() {
            removals::write(repository, writer, &self.go)?;
        }
        for backup in &self.go {
            let id = &backup.manifest.id;
            delete(repository, vec![names::manifest(id)])?;
            delete(repository, vec![names::signature(id)])?;
            let segments =
                repository.store.list(&names::segments(id)).map_err(|error| repository.store_problem(error))?;
            delete(repository, segments.into_iter().map(|object| object.name).collect())?;
            context.note(&format!("removed {id}: {}", backup.manifest.title()));
        }
        for leftover in self.leftovers.values() {
            delete(repository, leftover.names.clone())?;
        }
        seen.forget(self.go.iter().map(|backup| &backup.manifest.id))
    }
}

/// Deletes objects, several at once; one that is gone already is as good.
fn delete(repository: &Repository, names: Vec<String>) -> Result<()> {
    let store = Arc::clone(&repository.store);
    let mut done = ordered_map(repository.connections, names.into_iter(), || (), move |(), name| store.delete(&name));
    done.try_for_each(|result| match result {
        Err(error) if error.kind != StoreErrorKind::NotFound => Err(repository.store_problem(error)),
        _ => Ok(()),
    })
}
