//! Where opened segments are written, in order: a file, standard output, or one `zfs receive` for each stream.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use tempfile::NamedTempFile;

use super::already_there;
use super::fetch::{Opened, OpenedSegments};
use super::plan::{Destination, Stream};
use crate::commands::Context;
use crate::commands::zfs_problem;
use crate::error::{Exit, Problem};
use crate::format::manifest::Guid;
use crate::progress::Counters;
use crate::zfs::command::{ZfsError, ZfsErrorKind};
use crate::zfs::message;
use crate::zfs::receive::{ReceiveOptions, ReceiveStream};

/// Takes one stream.
enum Sink {
    Receive(ReceiveStream),
    Stdout,
    /// A new file, under a temporary name until it is whole.
    NewFile {
        file: NamedTempFile,
        path: PathBuf,
        force: bool,
    },
    /// A device or a named pipe, written as it is.
    Special {
        file: File,
        path: PathBuf,
    },
}

/// Writes all streams. Nothing that was not authenticated comes here.
pub fn write_streams(
    context: &Context,
    destination: &Destination,
    streams: &[Arc<Stream>],
    opened: OpenedSegments,
    counters: &Counters,
    force: bool,
) -> Result<()> {
    let mut segments = opened.segments;
    for (place, stream) in streams.iter().enumerate() {
        let mut sink = Sink::open(context, destination, stream, place, force)?;
        for number in 0..stream.manifest.segments.len() {
            let segment = segments.next().unwrap_or_else(|| Err(anyhow::anyhow!("segment {number} did not come")));
            let segment = segment.and_then(|segment: Opened| {
                anyhow::ensure!(segment.stream == place, "segments came out of order");
                Ok(segment)
            });
            let Opened { plain, stored, .. } = match segment {
                Ok(segment) => segment,
                Err(error) => return Err(sink.give_up(context, destination, error)),
            };
            if let Err(error) = sink.write(&plain) {
                return Err(sink.failure(error));
            }
            counters.add_segment(plain.len() as u64, stored);
            opened.buffers.give(plain);
        }
        sink.finish(context)?;
        confirm_received(context, destination, stream)?;
    }
    Ok(())
}

impl Sink {
    fn open(context: &Context, destination: &Destination, stream: &Stream, place: usize, force: bool) -> Result<Self> {
        match destination {
            Destination::Stdout => Ok(Self::Stdout),
            Destination::File(path) => Self::file(path, force),
            Destination::Directory(dir) => Self::file(&dir.join(file_name(stream, place)), force),
            Destination::Dataset(target) => {
                let options = ReceiveOptions {
                    target: target.clone(),
                    force,
                    ignore_mountpoint: stream.manifest.zfs_stream.as_ref().is_some_and(|zfs| zfs.package),
                };
                ReceiveStream::spawn(&context.zfs, &options).map(Self::Receive).map_err(zfs_problem)
            }
        }
    }

    fn file(path: &Path, force: bool) -> Result<Self> {
        let cannot = || format!("cannot write {}", path.display());
        if fs::metadata(path).is_ok_and(|meta| !meta.is_file()) {
            let file = File::options().write(true).open(path).with_context(cannot)?;
            return Ok(Self::Special { file, path: path.to_owned() });
        }
        if path.exists() && !force {
            return Err(already_there(path));
        }
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let file =
            tempfile::Builder::new().prefix(".snapferry-").suffix(".part").tempfile_in(parent).with_context(cannot)?;
        crate::children::remove_on_stop(file.path());
        Ok(Self::NewFile { file, path: path.to_owned(), force })
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Receive(receive) => receive.write_all(bytes),
            Self::Stdout => io::stdout().write_all(bytes),
            Self::NewFile { file, .. } => file.write_all(bytes),
            Self::Special { file, .. } => file.write_all(bytes),
        }
    }

    /// What a failed write means.
    fn failure(self, error: io::Error) -> anyhow::Error {
        match self {
            Self::Receive(receive) => receive_problem(receive.failure()),
            Self::Stdout => anyhow::Error::new(error).context("cannot write to standard output"),
            Self::NewFile { path, .. } | Self::Special { path, .. } => {
                anyhow::Error::new(error).context(format!("cannot write {}", path.display()))
            }
        }
    }

    /// Ends a stream that will not be whole: `zfs receive -s` keeps what it has.
    fn give_up(self, context: &Context, destination: &Destination, error: anyhow::Error) -> anyhow::Error {
        if let Self::Receive(receive) = self {
            let _ = receive.finish();
            context.note(&format!("{destination} keeps what was received so far; the same command goes on from there"));
        }
        error
    }

    fn finish(self, context: &Context) -> Result<()> {
        match self {
            Self::Receive(receive) => {
                let said = receive.finish().map_err(receive_problem)?;
                if !said.is_empty() {
                    context.warn(&format!("zfs receive says: {said}"));
                }
                Ok(())
            }
            Self::Stdout => io::stdout().flush().context("cannot write to standard output"),
            Self::Special { mut file, path } => {
                file.flush().with_context(|| format!("cannot write {}", path.display()))
            }
            Self::NewFile { file, path, force } => {
                let cannot = || format!("cannot write {}", path.display());
                file.as_file().sync_all().with_context(cannot)?;
                let kept = if force { file.persist(&path) } else { file.persist_noclobber(&path) };
                kept.map(drop).map_err(|error| error.error).with_context(cannot)
            }
        }
    }
}

/// That the snapshot is there: a `zfs receive` that stops early and ends with status 0 has said nothing.
fn confirm_received(context: &Context, destination: &Destination, stream: &Stream) -> Result<()> {
    let Destination::Dataset(target) = destination else { return Ok(()) };
    let there = match context.zfs.versions(target) {
        Err(error) if error.kind == ZfsErrorKind::NoSuchDataset => Vec::new(),
        other => other.map_err(zfs_problem)?,
    };
    if there.iter().any(|version| Some(Guid(version.guid)) == stream.manifest.guid()) {
        return Ok(());
    }
    let message = format!("zfs receive ended with status 0, and {target} does not hold {}", stream.manifest.title());
    Err(Problem::new(Exit::Failed, message).into())
}

fn receive_problem(error: ZfsError) -> anyhow::Error {
    let goes_on = "the same command goes on behind the streams that were received whole";
    let known = message::hint(&error.stderr);
    let exit = if known.is_some_and(|hint| hint.kind == message::Kind::Busy) { Exit::Busy } else { Exit::Failed };
    let hint = match known {
        Some(hint) => format!("{}; then {goes_on}", hint.text),
        None => format!("once the cause is gone, {goes_on}"),
    };
    Problem::new(exit, error.to_string()).hint(hint).into()
}

/// `001-tank-data@monday.full.zfs`: sorts in the order in which the streams are received.
pub fn file_name(stream: &Stream, place: usize) -> String {
    let title: String =
        stream.manifest.title().chars().map(|c| if c == '/' || c.is_control() { '-' } else { c }).collect();
    let title: String = title.chars().take(150).collect();
    let kind = match (stream.manifest.guid(), stream.manifest.base_guid()) {
        (None, _) => "stream",
        (Some(_), None) => "full.zfs",
        (Some(_), Some(_)) => "incremental.zfs",
    };
    format!("{:03}-{title}.{kind}", place + 1)
}
