//! What is backed up: a snapshot or standard input, and what its stream says of itself on its way through.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::path::Path;

use anyhow::Result;

use crate::cli;
use crate::commands::catalogue::{Backup, Catalogue};
use crate::commands::journal::{self, JournalKey};
use crate::commands::repository::Repository;
use crate::commands::{Context, chain, parse_time, zfs_problem};
use crate::error::{Exit, Problem};
use crate::format::manifest::{BaseKind, Guid, Source, Substream, ZfsBase, ZfsSource, ZfsStream};
use crate::format::names::BackupId;
use crate::pipeline::codec::Codec;
use crate::ssh::FIXED_OPTIONS;
use crate::zfs::choice::{self, Choice, Offer, Policy, Rates};
use crate::zfs::command::Zfs;
use crate::zfs::names::{BaseName, Dataset, Snapshot, VersionKind};
use crate::zfs::output::Version;
use crate::zfs::plan::{self, KeptSnapshot, Manner, PlanError, SendPlan, Wanted};
use crate::zfs::remote::{Remote, RemoteHost};
use crate::zfs::send::SendStream;
use crate::zfs::stream::{StreamCheck, StreamSummary, identify, looks_like_zfs};

/// A host that does not answer is given up after this.
const CONNECT_TIMEOUT: &str = "ConnectTimeout=30";
/// What may be asked of `zfs send`: streams that are the same whenever they are made again.
const SEND_FLAGS: [&str; 4] = ["-L", "-c", "-w", "-p"];
/// Smaller backups say nothing of the speed (bytes).
const MEASURABLE: u64 = 8 * 1024 * 1024;
/// So many backups tell the speed: the middle one of them.
const MEASURED: usize = 9;
/// Where nothing was measured yet (bytes a second).
const USUAL_RATE: f64 = 50.0 * 1024.0 * 1024.0;
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
    why: String,
}

/// What came of the source's own part.
pub struct ReadStream {
    /// For the manifest.
    pub source: Source,
    /// For the manifest, when the stream is a ZFS one.
    pub zfs_stream: Option<ZfsStream>,
}

/// Where snapshots are: this machine, or another one that is reached by ssh.
pub struct Origin {
    /// Its `zfs`.
    pub zfs: Zfs,
    /// As it stands in manifests.
    pub host: String,
}

impl Origin {
    /// This machine, or that of `--pull`; and what follows the host there.
    pub fn resolve(context: &Context, repository: &Repository, pull: Option<&str>) -> Result<(Self, Option<String>)> {
        let Some(pull) = pull else {
            let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
            return Ok((Self { zfs: context.zfs.clone(), host }, None));
        };
        let (host, rest) =
            RemoteHost::parse(pull).map_err(|error| Problem::new(Exit::Usage, format!("--pull: {error}")))?;
        let of_profile = repository.profile.as_ref().and_then(|profile| profile.ssh_command.clone());
        let mut ssh = context.ssh_command.clone().or(of_profile).unwrap_or_else(|| vec!["ssh".to_owned()]);
        let options = FIXED_OPTIONS.iter().copied().chain([CONNECT_TIMEOUT]);
        ssh.extend(options.flat_map(|option| ["-o".to_owned(), option.to_owned()]));
        let remote = Remote::new(ssh, host);
        let host = remote.host().to_owned();
        Ok((Self { zfs: context.zfs.clone().at(remote), host }, Some(rest)))
    }
}

/// How datasets shall be sent.
pub struct Terms {
    full: bool,
    base: Option<String>,
    flags: Option<Vec<String>>,
    /// When a chain ends.
    pub policy: Policy,
}

impl Terms {
    /// From the options, else the profile.
    pub fn resolve(how: &cli::HowToSend, full: bool, base: Option<String>, repository: &Repository) -> Result<Self> {
        let profile = repository.profile.as_ref();
        let flags = how.send_flags.clone().or_else(|| profile?.send_flags.clone());
        let every = how.full_every.clone().or_else(|| profile?.full_every.clone());
        let max_chain = how.max_chain.or_else(|| profile?.max_chain).map(|count| count as usize);
        Ok(Self {
            full,
            base,
            flags: flags.as_deref().map(send_flags).transpose()?,
            policy: Policy { max_chain, full_every: every.as_deref().map(full_every).transpose()? },
        })
    }

    fn wanted(&self, dataset: &Dataset) -> Result<Wanted> {
        match &self.base {
            Some(base) => BaseName::parse(base, dataset)
                .map(Wanted::Base)
                .map_err(|error| Problem::new(Exit::Usage, format!("--base: {error}")).into()),
            None if self.full => Ok(Wanted::Full),
            None => Ok(Wanted::Automatic),
        }
    }
}

fn send_flags(text: &str) -> Result<Vec<String>> {
    let mut flags: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        if !SEND_FLAGS.contains(&word) {
            return Err(Problem::new(
                Exit::Usage,
                format!("--send-flags: {word:?} is none of {}", SEND_FLAGS.join(" ")),
            )
            .hint("-e and -D make streams that differ from run to run or can't be received, and are never used")
            .into());
        }
        if !flags.iter().any(|flag| flag == word) {
            flags.push(word.to_owned());
        }
    }
    Ok(flags)
}

/// At least a second: every chain would be over before it began.
fn full_every(text: &str) -> Result<i64> {
    match parse_time("--full-every", text)?.as_secs() {
        0 => Err(Problem::new(Exit::Usage, "--full-every: no time at all; --full sends the whole each time").into()),
        seconds => Ok(seconds),
    }
}

/// What became of a snapshot that shall be backed up.
pub enum Planned {
    /// It will be.
    Job(Box<Job>),
    /// It is kept already.
    Kept(BackupId),
}

/// The journal's name for a snapshot.
pub fn slot_of(guid: u64) -> String {
    format!("zfs:{guid}")
}

/// A stream from standard input.
pub fn stdin_job(name: String) -> Result<Job> {
    if name.is_empty() || name.len() > 1024 || name.chars().any(char::is_control) {
        return Err(Problem::new(Exit::Usage, "--name is empty, too long, or has control characters").into());
    }
    Ok(Job {
        title: name.clone(),
        slot: format!("stdin:{name}"),
        source: Source::Stream { name, command: None, looks_like: None },
        estimate: None,
        plan: None,
        why: String::new(),
    })
}

/// The ways to send a snapshot, and which of them is taken.
pub struct Considered {
    /// The usual way first.
    pub offers: Vec<Offer>,
    /// Which is taken.
    pub choice: Choice,
    /// What times are made from.
    pub rates: Rates,
    /// What is sent; its transaction group is that of the future where it is not taken yet.
    pub version: Version,
    /// A chain is kept that can't be gone on with, since it was sent in another way.
    pub changed: bool,
}

/// Looks at what could be sent of a snapshot. One that is not taken yet is given as `future`.
pub fn consider(
    origin: &Origin,
    terms: &Terms,
    snapshot: &Snapshot,
    future: Option<Version>,
    catalogue: &Catalogue,
    state: Option<&Path>,
) -> Result<Considered> {
    let dataset = &snapshot.dataset;
    let versions = origin.zfs.versions(dataset).map_err(zfs_problem)?;
    let encryption = origin.zfs.property(dataset, "encryption").map_err(zfs_problem)?;
    let encrypted = encryption.is_some_and(|encryption| encryption != "off");
    let taken = future.is_none();
    let version = match future {
        Some(version) => version,
        None => plan::find(snapshot, &versions).map_err(|error| plan_problem(&error))?.clone(),
    };
    let kept = kept(catalogue, &versions);
    let manner = Manner { encrypted, flags: terms.flags.as_deref() };
    let wanted = terms.wanted(dataset)?;
    let mut offers = plan::offers(&version, &versions, &kept, &wanted, manner).map_err(|error| plan_problem(&error))?;
    let older: BTreeSet<u64> =
        versions.iter().filter(|base| base.createtxg < version.createtxg).map(|base| base.guid).collect();
    let changed = wanted == Wanted::Automatic
        && offers.len() == 1
        && kept.iter().any(|kept| kept.complete && older.contains(&kept.guid));
    let estimate = |offer: &Offer| {
        if taken {
            return origin.zfs.estimate(&send_plan(snapshot, &version, offer).send_args());
        }
        let property = match &offer.base {
            None => "referenced".to_owned(),
            Some(base) => format!("written{}{}", if base.kind == VersionKind::Snapshot { '@' } else { '#' }, base.name),
        };
        origin.zfs.property(dataset, &property).ok().flatten()?.parse().ok()
    };
    let rates = rates(catalogue);
    let (policy, creation) = (terms.policy, version.creation);
    // A resume must never be lost to a change of mind.
    let interrupted = state.and_then(|state| journal::source_of(state, &slot_of(version.guid)));
    let same = |offer: &Offer| interrupted.as_deref() == Some(&*journal_source(&send_plan(snapshot, &version, offer)));
    if let Some(index) = offers.iter().position(same) {
        offers[index].bytes = estimate(&offers[index]);
        let choice = Choice { index, reason: "an interrupted backup goes on so".to_owned() };
        return Ok(Considered { offers, choice, rates, version, changed: false });
    }
    offers[0].bytes = estimate(&offers[0]);
    // `plan`, which asks without a state, shows them all.
    if state.is_none() || !choice::is_settled(&offers[0], policy, rates, creation) {
        for offer in &mut offers[1..] {
            offer.bytes = estimate(offer);
        }
    }
    let choice = match wanted {
        Wanted::Automatic => choice::choose(&offers, policy, rates, creation),
        _ => Choice { index: 0, reason: "it was asked for".to_owned() },
    };
    Ok(Considered { offers, choice, rates, version, changed })
}

/// How fast backups into this repository were. The way back is taken to be as fast: nothing measured it.
fn rates(catalogue: &Catalogue) -> Rates {
    let rate = |backup: &Backup| {
        let manifest = &backup.manifest;
        let seconds = manifest.finished.duration_since(manifest.started).as_secs_f64();
        (manifest.stream.bytes >= MEASURABLE && seconds > 0.0).then(|| manifest.stream.bytes as f64 / seconds)
    };
    let mut measured: Vec<f64> = catalogue.backups.iter().rev().filter_map(rate).take(MEASURED).collect();
    measured.sort_by(f64::total_cmp);
    let rate = measured.get(measured.len() / 2).copied().unwrap_or(USUAL_RATE);
    Rates { send: rate, restore: rate }
}

fn send_plan(snapshot: &Snapshot, version: &Version, offer: &Offer) -> SendPlan {
    SendPlan {
        snapshot: snapshot.clone(),
        version: version.clone(),
        base: offer.base.clone(),
        flags: offer.flags.clone(),
    }
}

/// Plans the backup of one snapshot.
pub fn zfs_job(
    context: &Context,
    origin: &Origin,
    terms: &Terms,
    snapshot: &Snapshot,
    catalogue: &Catalogue,
    state: &Path,
) -> Result<Planned> {
    let Considered { offers, choice, version, changed, .. } =
        consider(origin, terms, snapshot, None, catalogue, Some(state))?;
    let automatic = !terms.full && terms.base.is_none();
    if automatic && let Some(backup) = kept_already(catalogue, snapshot, version.guid) {
        return Ok(Planned::Kept(backup.manifest.id.clone()));
    }
    let offer = &offers[choice.index];
    if changed {
        context.warn(&format!(
            "{snapshot}: no kept chain of this dataset was sent with {}: a new chain begins with a full backup",
            offer.flags.join(" ")
        ));
    }
    let plan = send_plan(snapshot, &version, offer);
    Ok(Planned::Job(Box::new(Job {
        title: snapshot.to_string(),
        slot: slot_of(plan.version.guid),
        source: Source::Zfs(zfs_source(&plan)),
        estimate: offer.bytes,
        plan: Some(plan),
        why: choice.reason,
    })))
}

/// A backup of this very snapshot that can be restored.
fn kept_already<'c>(catalogue: &'c Catalogue, snapshot: &Snapshot, guid: u64) -> Option<&'c Backup> {
    let title = snapshot.to_string();
    let mut backups = catalogue.of_guid(Guid(guid)).filter(|backup| backup.manifest.title() == title);
    backups.find(|backup| chain::resolve(catalogue, backup).is_ok())
}

/// What the choice of a base asks of the catalogue. A stream from standard input that is a ZFS one counts as well,
/// but its flags are not known and can't be kept for a chain, so it is no base.
fn kept(catalogue: &Catalogue, versions: &[Version]) -> Vec<KeptSnapshot> {
    let guids: BTreeSet<u64> = versions.iter().map(|version| version.guid).collect();
    let backups = guids.into_iter().flat_map(|guid| catalogue.of_guid(Guid(guid)));
    let of_zfs = backups.filter_map(|backup| match &backup.manifest.source {
        Source::Zfs(zfs) => {
            let chain = chain::resolve(catalogue, backup);
            let complete = chain.is_ok();
            let chain = chain.unwrap_or_default();
            let full = chain.first().map(|full| &full.manifest);
            Some(KeptSnapshot {
                guid: zfs.guid.0,
                flags: zfs.flags.clone(),
                complete,
                links: chain.len(),
                bytes: chain.iter().fold(0, |sum, link| link.manifest.stream.bytes.saturating_add(sum)),
                full_bytes: full.map_or(0, |full| full.stream.bytes),
                full_creation: full.map_or(0, |full| match &full.source {
                    Source::Zfs(zfs) => zfs.creation,
                    Source::Stream { .. } => full.started.as_second(),
                }),
            })
        }
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

/// What a journal is of: another base or other flags make other bytes.
fn journal_source(plan: &SendPlan) -> String {
    let base = plan.base.as_ref().map_or(0, |base| base.guid);
    format!("{} guid {} from {base} {}", plan.snapshot, plan.version.guid, plan.flags.join(" "))
}

impl Job {
    /// One line for a person.
    pub fn describe(&self) -> String {
        let about =
            self.estimate.map_or_else(String::new, |bytes| format!(", about {}", indicatif::BinaryBytes(bytes)));
        match &self.plan {
            None => format!("standard input as {}", self.title),
            Some(plan) => match &plan.base {
                None => format!("{}: full{about} (no common snapshot is used: {})", self.title, self.why),
                Some(base) => {
                    let mark = if base.kind == VersionKind::Snapshot { '@' } else { '#' };
                    format!("{}: incremental from {mark}{}{about} ({})", self.title, base.name, self.why)
                }
            },
        }
    }

    /// What makes another run the same backup.
    pub fn journal_key(&self, recipient: &str, codec: Codec, segment_size: u64) -> JournalKey {
        let source = match &self.plan {
            None => self.slot.clone(),
            Some(plan) => journal_source(plan),
        };
        JournalKey { source, recipient: recipient.to_owned(), codec: codec.to_string(), segment_size }
    }

    /// The snapshot and its GUID, if it is one.
    pub fn snapshot(&self) -> Option<(&Snapshot, u64)> {
        self.plan.as_ref().map(|plan| (&plan.snapshot, plan.version.guid))
    }

    /// The GUID of the snapshot that the stream starts from.
    pub fn base_guid(&self) -> Option<Guid> {
        self.plan.as_ref()?.base.as_ref().map(|base| Guid(base.guid))
    }

    /// Starts the stream.
    pub fn open(&self, zfs: &Zfs) -> Result<CheckedStream> {
        let inner: Box<dyn Read + Send> = match &self.plan {
            None => {
                // A larger pipe saves wake-ups; on a file this does nothing.
                let _ = rustix::pipe::fcntl_setpipe_size(io::stdin(), 1024 * 1024);
                Box::new(Stdin)
            }
            Some(plan) => Box::new(SendStream::spawn(zfs, &plan.send_args()).map_err(zfs_problem)?),
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
