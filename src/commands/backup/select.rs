//! Which snapshots of a dataset are backed up: one that is taken now, or some that are there.

use std::collections::HashSet;

use anyhow::Result;
use glob::Pattern;
use jiff::{Timestamp, ToSpan};

use super::source::{self, Origin};
use crate::cli::WhichSnapshots;
use crate::commands::catalogue::Catalogue;
use crate::commands::init::now;
use crate::commands::repository::Repository;
use crate::commands::{Context, chain, journal, zfs_problem};
use crate::error::{Exit, Problem};
use crate::zfs::command::{ZfsError, ZfsErrorKind};
use crate::zfs::names::{Dataset, Snapshot, VersionKind};
use crate::zfs::output::Version;

/// The user property of the snapshots that were taken here; its value is the repository's uuid.
const TAKEN: &str = "snapferry:taken";
/// Names of snapshots, unless otherwise configured. It sorts by time, and every host and zone agrees on it.
const NAME: &str = "snapferry_%Y%m%dT%H%M%SZ";
/// How many names are tried when one is taken already: those of the seconds that follow.
const TRIES: i64 = 60;

/// What was asked for.
pub struct Rules {
    matching: Vec<Pattern>,
    exclude: Vec<Pattern>,
    name: String,
    /// Each snapshot since the newest one that is kept.
    pub catch_up: bool,
    /// All datasets below as well.
    pub recursive: bool,
    /// How many of our own snapshots stay at the source.
    pub keep_source: Option<usize>,
}

impl Rules {
    /// From the options, else the profile.
    pub fn resolve(args: &WhichSnapshots, repository: &Repository) -> Result<Self> {
        let profile = repository.profile.as_ref();
        let patterns = |option: &str, texts: &[String]| {
            let pattern = |text: &String| {
                Pattern::new(text).map_err(|error| Problem::new(Exit::Usage, format!("{option} {text:?}: {error}")))
            };
            texts.iter().map(pattern).collect::<Result<Vec<_>, _>>()
        };
        let name = args.snapshot_name.clone().or_else(|| profile?.snapshot_name.clone());
        let rules = Self {
            matching: patterns("--match", &args.matching)?,
            exclude: patterns("--exclude", &args.exclude)?,
            name: name.unwrap_or_else(|| NAME.to_owned()),
            catch_up: args.catch_up,
            recursive: args.recursive,
            keep_source: args.keep_source.or_else(|| profile?.keep_source).map(|count| count as usize),
        };
        rules.name_at(now())?;
        Ok(rules)
    }

    /// Whether a snapshot is taken.
    pub fn take(&self) -> bool {
        self.matching.is_empty() && self.exclude.is_empty()
    }

    fn fits(&self, name: &str) -> bool {
        (self.matching.is_empty() || self.matching.iter().any(|pattern| pattern.matches(name)))
            && !self.exclude.iter().any(|pattern| pattern.matches(name))
    }

    /// The name of a snapshot that is taken at `time`.
    pub fn name_at(&self, time: Timestamp) -> Result<String> {
        let bad = |why: String| {
            Problem::new(Exit::Usage, format!("--snapshot-name {:?}: {why}", self.name))
                .hint("it may hold letters, digits, -_.: and the fields of strftime, such as daily_%Y-%m-%d")
        };
        let name = jiff::fmt::strtime::format(&self.name, time).map_err(|error| bad(error.to_string()))?;
        format!("pool@{name}").parse::<Snapshot>().map_err(|error| bad(error.to_string()))?;
        Ok(name)
    }
}

/// Takes a snapshot of `dataset`, and of all below at the same instant where that was asked for. Returns its name.
pub fn take(
    context: &Context,
    origin: &Origin,
    repository: &Repository,
    rules: &Rules,
    dataset: &Dataset,
) -> Result<String> {
    let uuid = repository.uuid.to_string();
    let began = now();
    let (mut marked, mut last) = (true, String::new());
    for second in 0..TRIES {
        let name = rules.name_at(began.checked_add(second.seconds())?)?;
        if name == last {
            continue;
        }
        last.clone_from(&name);
        let snapshot: Snapshot = format!("{dataset}@{name}")
            .parse()
            .map_err(|error| Problem::new(Exit::Usage, format!("no snapshot can be taken: {error}")))?;
        let mark = [(TAKEN, uuid.as_str())];
        let attempt =
            |marked: bool| origin.zfs.snapshot(&snapshot, rules.recursive, if marked { &mark[..] } else { &[] });
        let mut taken = attempt(marked);
        if marked && matches!(&taken, Err(error) if error.kind == ZfsErrorKind::Denied) {
            // Perhaps only the right to mark it is missing.
            taken = attempt(false);
            marked = false;
        }
        match taken {
            Err(error) if error.says("already exists") => continue,
            Err(error) => return Err(cannot_take(&snapshot, error)),
            Ok(()) if !marked => context.warn(&format!(
                "{snapshot} could not be marked as taken by snapferry (the right userprop is missing): --keep-source will never destroy it"
            )),
            Ok(()) => {}
        }
        return Ok(name);
    }
    Err(Problem::new(Exit::Failed, format!("the snapshots {dataset}@{} are there already", rules.name_at(began)?))
        .hint("--snapshot-name gives them other names; with --match GLOB those that are there are backed up")
        .into())
}

fn cannot_take(snapshot: &Snapshot, error: ZfsError) -> anyhow::Error {
    zfs_problem(error).context(format!("no snapshot {snapshot} was taken"))
}

/// Those that are there and are to be backed up, oldest first: as the rules say, and of our own whatever earlier runs
/// took and did not come to send.
pub fn existing(
    origin: &Origin,
    repository: &Repository,
    catalogue: &Catalogue,
    rules: &Rules,
    dataset: &Dataset,
) -> Result<Vec<Snapshot>> {
    let versions = origin.zfs.versions(dataset).map_err(zfs_problem)?;
    let is_kept = |version: &&Version| chain::is_kept(catalogue, version.guid);
    let newest = versions.iter().filter(is_kept).map(|version| version.createtxg).max().unwrap_or(0);
    let mut fitting: Vec<&Version> =
        versions.iter().filter(|version| version.kind == VersionKind::Snapshot && rules.fits(&version.name)).collect();
    if rules.catch_up {
        fitting.retain(|version| version.createtxg > newest);
    } else if rules.take() {
        let interrupted =
            |version: &Version| journal::source_of(&repository.state, &source::slot_of(version.guid)).is_some();
        let open = |version: &&Version| !is_kept(version) && (version.createtxg > newest || interrupted(version));
        let candidates: Vec<&Version> = fitting.into_iter().filter(open).collect();
        // Only our own: another one was asked for by its name, and will be again.
        let own = if candidates.is_empty() { HashSet::new() } else { own(origin, repository, dataset)? };
        fitting = candidates.into_iter().filter(|version| own.contains(&version.name)).collect();
    } else if let Some(last) = fitting.pop() {
        fitting = vec![last];
    } else {
        return Err(Problem::new(Exit::Missing, format!("no snapshot of {dataset} fits --match and --exclude"))
            .hint("zfs list -t snapshot shows what there is")
            .into());
    }
    let parsed = fitting.iter().map(|version| format!("{dataset}@{}", version.name).parse::<Snapshot>());
    Ok(parsed.collect::<Result<_, _>>()?)
}

/// The names of the snapshots of `dataset` that were taken here for this repository.
fn own(origin: &Origin, repository: &Repository, dataset: &Dataset) -> Result<HashSet<String>> {
    let uuid = repository.uuid.to_string();
    let marked = origin.zfs.snapshot_property(dataset, TAKEN).map_err(zfs_problem)?;
    Ok(marked.into_iter().filter(|(_, value)| *value == uuid).map(|(name, _)| name).collect())
}

/// Destroys our own snapshots of `dataset`, all but the newest `keep`; never one that is not kept in the repository, nor
/// the newest that is. What is held or cloned stays.
pub fn thin(
    context: &Context,
    origin: &Origin,
    repository: &Repository,
    catalogue: &Catalogue,
    dataset: &Dataset,
    keep: usize,
) -> Result<()> {
    let own = own(origin, repository, dataset)?;
    let versions = origin.zfs.versions(dataset).map_err(zfs_problem)?;
    let is_kept = |version: &Version| chain::is_kept(catalogue, version.guid);
    let newest_kept = versions.iter().filter(|version| is_kept(version)).map(|version| version.createtxg).max();
    let snapshots =
        versions.iter().filter(|version| version.kind == VersionKind::Snapshot && own.contains(&version.name));
    let excess: Vec<&Version> = snapshots.rev().skip(keep).collect();
    for version in excess.into_iter().rev() {
        if !is_kept(version) || Some(version.createtxg) >= newest_kept {
            continue;
        }
        let snapshot: Snapshot = format!("{dataset}@{}", version.name).parse()?;
        match origin.zfs.destroy_snapshot(&snapshot) {
            Ok(()) => context.note(&format!("destroyed {snapshot} at the source: it is kept in the repository")),
            Err(error) if error.says("busy") || error.says("dependent clones") => {
                context.note(&format!("{snapshot} stays at the source: it is held, or a clone stands on it"));
            }
            Err(error) => return Err(zfs_problem(error)),
        }
    }
    Ok(())
}
