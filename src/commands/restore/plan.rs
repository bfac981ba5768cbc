//! Where a restore goes, and what has to be there before it begins.

use std::collections::HashMap;
use std::fmt;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;

use super::sink::file_name;
use super::{already_there, damaged};
use crate::cli;
use crate::commands::catalogue::{Backup, Catalogue, Reader, reload};
use crate::commands::repository::Repository;
use crate::commands::zfs_problem;
use crate::commands::{Context, chain};
use crate::error::{Exit, Problem};
use crate::format::manifest::{Guid, Manifest};
use crate::format::names;
use crate::pipeline::codec::Codec;
use crate::zfs::names::{Dataset, VersionKind};

/// Where streams go.
pub enum Destination {
    /// Into a pool, through `zfs receive`.
    Dataset(Dataset),
    /// One stream into a file.
    File(PathBuf),
    /// One stream to standard output.
    Stdout,
    /// Each stream of a chain into a file of its own.
    Directory(PathBuf),
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dataset(dataset) => dataset.fmt(f),
            Self::File(path) | Self::Directory(path) => path.display().fmt(f),
            Self::Stdout => f.write_str("standard output"),
        }
    }
}

/// A stream to restore, with the names of its objects.
pub struct Stream {
    /// Signed.
    pub manifest: Manifest,
    /// In the names of its segments.
    pub extension: &'static str,
}

impl Destination {
    /// What was typed.
    pub fn from_args(args: &cli::Restore) -> Result<Self> {
        if let Some(target) = &args.to {
            let target = target.parse().map_err(|error| Problem::new(Exit::Usage, format!("--to: {error}")))?;
            return Ok(Self::Dataset(target));
        }
        Ok(match (&args.output, &args.output_dir) {
            (Some(path), _) if path.as_os_str() == "-" => Self::Stdout,
            (Some(path), _) => Self::File(path.clone()),
            (None, Some(path)) => Self::Directory(path.clone()),
            (None, None) => return Err(Problem::new(Exit::Usage, "give --to, --output or --output-dir").into()),
        })
    }

    /// Whether the data itself goes to standard output.
    pub fn is_stdout(&self) -> bool {
        matches!(self, Self::Stdout)
    }

    /// What can be refused before anything else is done.
    pub fn check(&self, context: &Context, force: bool) -> Result<()> {
        match self {
            Self::Stdout if std::io::stdout().is_terminal() && !context.dry_run => {
                Err(Problem::new(Exit::Usage, "a stream is not written to a terminal")
                    .hint("send it into a pipe or a file")
                    .into())
            }
            Self::File(path) if path.is_file() && !force => Err(already_there(path)),
            Self::File(path) if path.is_dir() => {
                Err(Problem::new(Exit::Usage, format!("{} is a folder", path.display()))
                    .hint("--output-dir writes into a folder")
                    .into())
            }
            _ => Ok(()),
        }
    }

    /// Leaves out the streams that the target dataset has received already, when an interrupted restore of this very
    /// chain left it. Anything else that exists is not touched without `--force`.
    pub fn skip_present(&self, context: &Context, streams: Vec<Arc<Stream>>, force: bool) -> Result<Vec<Arc<Stream>>> {
        let Self::Dataset(target) = self else { return Ok(streams) };
        let start = streams.first().map(|stream| stream.manifest.base_guid().is_some());
        if start == Some(true)
            || streams.iter().any(|stream| stream.manifest.zfs_stream.as_ref().is_some_and(|zfs| zfs.resuming))
        {
            return Err(Problem::new(
                Exit::Failed,
                "a stream made by zfs send -t goes on with another receive and can't start a restore",
            )
            .hint("--output writes it into a file")
            .into());
        }
        if !context.zfs.exists(target).map_err(zfs_problem)? {
            return Ok(streams);
        }
        let exists = || {
            Problem::new(Exit::Failed, format!("{target} exists already"))
                .hint("restore to another name, or receive over it with --force; nothing was changed")
        };
        let have = context.zfs.versions(target).map_err(zfs_problem)?;
        let newest =
            have.iter().filter(|version| version.kind == VersionKind::Snapshot).max_by_key(|version| version.createtxg);
        let Some(received) = received(&streams, newest.map(|newest| Guid(newest.guid))) else {
            return if force { Ok(streams) } else { Err(exists().into()) };
        };
        if received == streams.len() {
            return Err(Problem::new(Exit::Failed, format!("{target} holds all of it already"))
                .hint("nothing was changed")
                .into());
        }
        match self.resume(context, target, &streams[received], received)? {
            true => Ok(streams[received..].to_vec()),
            false if force => Ok(streams),
            false => Err(exists().into()),
        }
    }

    /// An interrupted `zfs receive -s` has kept what it had. Going on from there needs a stream of the source's
    /// making; the stored one has to begin anew, so that part is given up, if it is of this very snapshot. False
    /// when the dataset is nothing that an interrupted restore of the stream `next` left.
    fn resume(&self, context: &Context, target: &Dataset, next: &Stream, received: usize) -> Result<bool> {
        let title = next.manifest.title();
        match context.zfs.property(target, "receive_resume_token").map_err(zfs_problem)? {
            Some(token) => {
                let partial = context.zfs.guid_of_token(&token).map_err(zfs_problem)?;
                if !partial.is_some_and(|partial| makes(next, Guid(partial))) {
                    return Ok(false);
                }
                context.note(&format!(
                    "{target}: going on after {received} received streams; {title} was interrupted and begins anew"
                ));
                if !context.dry_run {
                    context.zfs.abort_receive(target).map_err(zfs_problem)?;
                }
                Ok(true)
            }
            None if received == 0 => Ok(false),
            None => {
                context.note(&format!("{target}: going on after {received} received streams, with {title}"));
                Ok(true)
            }
        }
    }

    /// What is in the way in a folder is seen before the first file is written.
    pub fn refuse_existing(&self, streams: &[Arc<Stream>], force: bool) -> Result<()> {
        let Self::Directory(dir) = self else { return Ok(()) };
        let mut paths = streams.iter().enumerate().map(|(place, stream)| dir.join(file_name(stream, place)));
        match paths.find(|path| path.exists() && !force) {
            Some(path) => Err(already_there(&path)),
            None => Ok(()),
        }
    }

    /// Makes the folder, if that is where it goes.
    pub fn prepare(&self, _: &Context) -> Result<()> {
        if let Self::Directory(path) = self {
            std::fs::create_dir_all(path).map_err(|error| {
                Problem::new(Exit::Failed, format!("cannot make the folder {}: {error}", path.display()))
            })?;
        }
        Ok(())
    }
}

/// How many of the streams a dataset with this newest snapshot has received whole; `None` when it is another's. A
/// package that broke off between its snapshots is sent again: `zfs receive` passes over those that are there.
fn received(streams: &[Arc<Stream>], newest: Option<Guid>) -> Option<usize> {
    let Some(newest) = newest else { return Some(0) };
    let whole = streams.iter().position(|stream| stream.manifest.guid() == Some(newest));
    let inside = |stream: &Arc<Stream>| stream.manifest.base_guid().is_some() && makes(stream, newest);
    whole.map(|place| place + 1).or_else(|| streams.iter().position(inside))
}

/// Whether a stream makes this snapshot, at its end or on its way.
fn makes(stream: &Stream, guid: Guid) -> bool {
    let substreams = stream.manifest.zfs_stream.iter().flat_map(|zfs| &zfs.substreams);
    stream.manifest.guid() == Some(guid) || substreams.into_iter().any(|substream| substream.toguid == guid)
}

/// The streams to restore, in order, every one of whose objects is there with its size.
pub fn streams(
    repository: &Repository,
    reader: &Reader,
    catalogue: &Catalogue,
    backup: &Backup,
    destination: &Destination,
) -> Result<Vec<Arc<Stream>>> {
    let chain = match destination {
        Destination::File(_) | Destination::Stdout => vec![backup],
        Destination::Dataset(_) | Destination::Directory(_) => chain::resolve(catalogue, backup).map_err(|base| {
            Problem::new(
                Exit::Missing,
                format!(
                    "the chain of {} is broken: no backup of its base with GUID {base} is there",
                    backup.manifest.title()
                ),
            )
            .hint("--output restores the stream of this backup alone")
        })?,
    };
    if matches!(destination, Destination::Dataset(_)) && backup.manifest.guid().is_none() {
        return Err(Problem::new(Exit::Usage, format!("{} is no ZFS stream", backup.manifest.title()))
            .hint("--output FILE restores it into a file, --output - into a pipe")
            .into());
    }
    let streams = chain.into_iter().map(|backup| {
        let manifest = reload(repository, reader, backup)?.manifest;
        let extension = Codec::from_info(&manifest.codec)
            .map_err(|error| {
                Problem::new(Exit::Failed, format!("{}: {error}", manifest.title()))
                    .hint("a newer snapferry may know it")
            })?
            .extension();
        let stream = Stream { manifest, extension };
        check_presence(repository, &stream)?;
        Ok(Arc::new(stream))
    });
    streams.collect()
}

fn check_presence(repository: &Repository, stream: &Stream) -> Result<()> {
    let Stream { manifest, extension } = stream;
    let listed =
        repository.store.list(&names::segments(&manifest.id)).map_err(|error| repository.store_problem(error))?;
    let sizes: HashMap<String, u64> = listed.into_iter().map(|object| (object.name, object.size)).collect();
    for (number, row) in manifest.segments.iter().enumerate() {
        let name = names::segment(&manifest.id, number as u64, extension);
        match sizes.get(&name) {
            Some(size) if *size == row.stored_bytes() => {}
            Some(size) => {
                return Err(damaged(
                    &repository.location,
                    &name,
                    &format!("it has {size} bytes where {} were stored", row.stored_bytes()),
                ));
            }
            None => return Err(damaged(&repository.location, &name, "it is missing")),
        }
    }
    Ok(())
}
