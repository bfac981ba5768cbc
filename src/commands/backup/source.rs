//! What is backed up: a snapshot or standard input, and what its stream says of itself on its way through.

use std::io::{self, Read};

use anyhow::Result;
use serde_json::json;

use crate::cli;
use crate::commands::catalogue::Catalogue;
use crate::commands::journal::JournalKey;
use crate::commands::list::backup_json;
use crate::commands::{Context, chain, zfs_problem};
use crate::error::{Exit, Problem};
use crate::format::manifest::{BaseKind, Guid, Source, Substream, ZfsBase, ZfsSource, ZfsStream};
use crate::pipeline::codec::Codec;
use crate::zfs::names::{BaseName, Snapshot, VersionKind};
use crate::zfs::plan::{self, KeptSnapshot, PlanError, SendPlan, Wanted};
use crate::zfs::send::SendStream;
use crate::zfs::stream::{StreamCheck, StreamSummary, identify, looks_like_zfs};

/// How many of the first bytes tell what a stream is.
const HEAD: usize = 8192;

/// A backup that will be made.
pub struct Job {
    /// What a person calls it.
    pub title: String,
    /// As it will stand in the manifest, but for what the stream itself tells.
    pub source: Source,
    /// About how many bytes will come, if anything says so.
    pub estimate: Option<u64>,
    /// Names the journal, whatever is sent of the source.
    pub slot: String,
    plan: Option<SendPlan>,
}

/// What came of the source's own part.
pub struct ReadStream {
    /// For the manifest.
    pub source: Source,
    /// For the manifest, when the stream is a ZFS one.
    pub zfs_stream: Option<ZfsStream>,
}

/// Decides what to back up. `None` when it is kept already.
pub fn plan(
    context: &Context,
    args: &cli::Backup,
    snapshot: Option<&str>,
    catalogue: &Catalogue,
) -> Result<Option<Job>> {
    if args.stdin {
        if snapshot.is_some() {
            return Err(Problem::new(Exit::Usage, "a snapshot and --stdin were both given").into());
        }
        return stdin_job(args.name.clone().unwrap_or_default()).map(Some);
    }
    let snapshot = snapshot.ok_or_else(|| {
        Problem::new(Exit::Usage, "what to back up is missing")
            .hint("snapferry backup REPOSITORY DATASET@SNAPSHOT, or --stdin --name NAME")
    })?;
    let snapshot: Snapshot = snapshot.parse().map_err(|error| Problem::new(Exit::Usage, format!("{error}")))?;
    let wanted = match (&args.base, args.full) {
        (Some(base), _) => Wanted::Base(
            BaseName::parse(base, &snapshot.dataset)
                .map_err(|error| Problem::new(Exit::Usage, format!("--base: {error}")))?,
        ),
        (None, true) => Wanted::Full,
        (None, false) => Wanted::Automatic,
    };
    zfs_job(context, &snapshot, &wanted, catalogue)
}

fn stdin_job(name: String) -> Result<Job> {
    if name.is_empty() || name.len() > 1024 || name.chars().any(char::is_control) {
        return Err(Problem::new(Exit::Usage, "--name is empty, too long, or has control characters").into());
    }
    Ok(Job {
        title: name.clone(),
        slot: format!("stdin:{name}"),
        source: Source::Stream { name, command: None, looks_like: None },
        estimate: None,
        plan: None,
    })
}

fn zfs_job(context: &Context, snapshot: &Snapshot, wanted: &Wanted, catalogue: &Catalogue) -> Result<Option<Job>> {
    let versions = context.zfs.versions(&snapshot.dataset).map_err(zfs_problem)?;
    let encrypted = match context.zfs.property(&snapshot.dataset, "encryption").map_err(zfs_problem)?.as_deref() {
        None | Some("off") => false,
        Some(_) => true,
    };
    let plan =
        plan::plan(snapshot, &versions, &kept(catalogue), wanted, encrypted).map_err(|error| plan_problem(&error))?;
    if *wanted == Wanted::Automatic
        && let Some(backup) = chain::matching(catalogue, &snapshot.to_string()).iter().find(|backup| {
            backup.manifest.guid() == Some(Guid(plan.version.guid)) && chain::resolve(catalogue, backup).is_ok()
        })
    {
        if context.json {
            let mut object = backup_json(catalogue, backup);
            object["already_kept"] = json!(true);
            context.print_json(&object)?;
        }
        context.note(&format!(
            "{snapshot} is kept already, as {}; nothing to do (--full sends it again)",
            backup.manifest.id
        ));
        return Ok(None);
    }
    let estimate = context.zfs.estimate(&plan.send_args());
    Ok(Some(Job {
        title: snapshot.to_string(),
        slot: format!("zfs:{}", plan.version.guid),
        source: Source::Zfs(zfs_source(&plan)),
        estimate,
        plan: Some(plan),
    }))
}

/// What the choice of a base asks of the catalogue. A stream from standard input that is a ZFS one counts as well,
/// but its flags are not known and can't be kept for a chain, so it is no base.
fn kept(catalogue: &Catalogue) -> Vec<KeptSnapshot> {
    let of_zfs = catalogue.backups.iter().filter_map(|backup| match &backup.manifest.source {
        Source::Zfs(zfs) => Some(KeptSnapshot {
            guid: zfs.guid.0,
            flags: zfs.flags.clone(),
            complete: chain::resolve(catalogue, backup).is_ok(),
            title: backup.manifest.title(),
        }),
        Source::Stream { .. } => None,
    });
    of_zfs.collect()
}

fn zfs_source(plan: &SendPlan) -> ZfsSource {
    ZfsSource {
        dataset: plan.snapshot.dataset.to_string(),
        snapshot: plan.snapshot.name.clone(),
        guid: Guid(plan.version.guid),
        createtxg: plan.version.createtxg,
        creation: plan.version.creation,
        base: plan.base.as_ref().map(|base| ZfsBase {
            kind: if base.kind == VersionKind::Snapshot { BaseKind::Snapshot } else { BaseKind::Bookmark },
            name: base.name.clone(),
            guid: Guid(base.guid),
        }),
        flags: plan.flags.clone(),
        raw: plan.raw(),
        recursive: false,
    }
}

fn plan_problem(error: &PlanError) -> Problem {
    let (exit, hint) = match error {
        PlanError::NoSuchSnapshot(_) | PlanError::NoSuchBase(_) => {
            (Exit::Missing, "zfs list -t snapshot,bookmark shows what there is")
        }
        PlanError::BaseNotKept(_) => (Exit::Missing, "back up the base first, or leave --base away"),
        PlanError::BaseNotOlder(_) => {
            (Exit::Usage, "an incremental stream leads from an older snapshot to a newer one")
        }
        PlanError::OtherFlags { .. } => (Exit::Failed, "start a new chain with --full"),
    };
    Problem::new(exit, error.to_string()).hint(hint)
}

impl Job {
    /// One line for a person.
    pub fn describe(&self) -> String {
        let about =
            self.estimate.map_or_else(String::new, |bytes| format!(", about {}", indicatif::BinaryBytes(bytes)));
        match &self.plan {
            None => format!("standard input as {}", self.title),
            Some(plan) => match &plan.base {
                None => format!("{}: full{about} (no common snapshot is used)", self.title),
                Some(base) => {
                    let mark = if base.kind == VersionKind::Snapshot { '@' } else { '#' };
                    format!("{}: incremental from {mark}{}{about}", self.title, base.name)
                }
            },
        }
    }

    /// What makes another run the same backup.
    pub fn journal_key(&self, recipient: &str, codec: Codec, segment_size: u64) -> JournalKey {
        let source = match &self.plan {
            None => self.slot.clone(),
            Some(plan) => {
                let base = plan.base.as_ref().map_or(0, |base| base.guid);
                format!("{} guid {} from {base} {}", self.title, plan.version.guid, plan.flags.join(" "))
            }
        };
        JournalKey { source, recipient: recipient.to_owned(), codec: codec.to_string(), segment_size }
    }

    /// Starts the stream.
    pub fn open(&self, context: &Context) -> Result<CheckedStream> {
        let inner: Box<dyn Read + Send> = match &self.plan {
            None => {
                // A larger pipe saves wake-ups; on a file this does nothing.
                let _ = rustix::pipe::fcntl_setpipe_size(io::stdin(), 1024 * 1024);
                Box::new(Stdin)
            }
            Some(plan) => Box::new(SendStream::spawn(&context.zfs, &plan.send_args()).map_err(zfs_problem)?),
        };
        let planned = self.plan.as_ref().map(|plan| (plan.version.guid, plan.base.as_ref().map(|base| base.guid)));
        Ok(CheckedStream::new(inner, planned))
    }

    /// Joins what was planned with what came.
    pub fn finish(&self, read: CheckedStream) -> Result<ReadStream> {
        let (looks_like, summary) = read.into_parts();
        let mut source = self.source.clone();
        if let Source::Stream { looks_like: slot, .. } = &mut source {
            *slot = looks_like;
        }
        Ok(ReadStream { source, zfs_stream: summary.map(zfs_stream) })
    }
}

fn zfs_stream(summary: StreamSummary) -> ZfsStream {
    let substreams = summary.substreams.iter().map(|substream| Substream {
        toguid: Guid(substream.toguid),
        fromguid: Guid(substream.fromguid),
        features: Guid(substream.features),
        end_checksum: substream.end_checksum.map(|word| format!("{word:016x}")).concat(),
        records: substream.records,
    });
    ZfsStream {
        guid: summary.guid.map(Guid),
        base_guid: summary.base_guid.map(Guid),
        package: summary.package,
        resuming: summary.resuming,
        substreams: substreams.collect(),
        toname: summary.toname,
    }
}

/// Standard input without the standard library's buffer, which would copy every byte once more.
struct Stdin;

impl Read for Stdin {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(io::stdin(), buf)?)
    }
}

/// A source that is checked on its way through. End of file means: the producer succeeded, at least one byte came,
/// and a ZFS stream is whole and the planned one.
pub struct CheckedStream {
    inner: Box<dyn Read + Send>,
    planned: Option<(u64, Option<u64>)>,
    state: CheckState,
    summary: Option<StreamSummary>,
    looks_like: Option<String>,
}

enum CheckState {
    /// Too few bytes came yet to tell what it is.
    Undecided(Vec<u8>),
    Zfs(Box<StreamCheck>),
    Other,
    Ended,
}

impl CheckedStream {
    fn new(inner: Box<dyn Read + Send>, planned: Option<(u64, Option<u64>)>) -> Self {
        let state = match planned {
            Some(_) => CheckState::Zfs(Box::default()),
            None => CheckState::Undecided(Vec::new()),
        };
        Self { inner, planned, state, summary: None, looks_like: None }
    }

    fn into_parts(self) -> (Option<String>, Option<StreamSummary>) {
        (self.looks_like, self.summary)
    }

    fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.state {
            CheckState::Undecided(head) => {
                head.extend_from_slice(bytes);
                if head.len() >= HEAD { self.decide() } else { Ok(()) }
            }
            CheckState::Zfs(check) => check.update(bytes).map_err(io::Error::other),
            CheckState::Other | CheckState::Ended => Ok(()),
        }
    }

    /// What the first bytes look like goes into the manifest; a ZFS stream is checked from here on.
    fn decide(&mut self) -> io::Result<()> {
        let CheckState::Undecided(head) = &self.state else { return Ok(()) };
        self.looks_like = Some(identify(head).as_str().to_owned());
        if looks_like_zfs(head) {
            let mut check = StreamCheck::new();
            check.update(head).map_err(io::Error::other)?;
            self.state = CheckState::Zfs(Box::new(check));
        } else {
            self.state = CheckState::Other;
        }
        Ok(())
    }

    fn end(&mut self) -> io::Result<()> {
        self.decide()?;
        if let CheckState::Zfs(check) = std::mem::replace(&mut self.state, CheckState::Ended) {
            let summary = check.finish().map_err(io::Error::other)?;
            if let Some((guid, base)) = self.planned {
                check_guids(&summary, guid, base)?;
            }
            self.summary = Some(summary);
        }
        Ok(())
    }
}

/// A snapshot that was renamed or replaced since the plan was made gives another stream than planned.
fn check_guids(summary: &StreamSummary, guid: u64, base: Option<u64>) -> io::Result<()> {
    if summary.guid != Some(guid) || summary.base_guid != base {
        let shown = |guid: Option<u64>| guid.map_or_else(|| "none".to_owned(), |guid| guid.to_string());
        return Err(io::Error::other(format!(
            "zfs send wrote another stream than was planned: GUID {} from base {}, where {guid} from base {} was expected",
            shown(summary.guid),
            shown(summary.base_guid),
            shown(base),
        )));
    }
    Ok(())
}

impl Read for CheckedStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let got = self.inner.read(buf)?;
        if got == 0 && !buf.is_empty() {
            self.end()?;
        } else {
            self.take(&buf[..got])?;
        }
        Ok(got)
    }
}
