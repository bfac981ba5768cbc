//! Objects as files at the other end of one session: written, committed, read, removed.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::{Bytes, BytesMut};
use futures_util::future::{join, try_join_all};
use openssh_sftp_client::Sftp;
use openssh_sftp_client::file::File;
use openssh_sftp_client::metadata::MetaData;
use tokio::io::AsyncSeekExt;

use super::fault::Fault;
use super::folders::{Folders, parent};
use super::session::Session;
use crate::store::{StoreError, StoreErrorKind};

/// What one transfer keeps on its way. A session's window in OpenSSH is 2 MiB; the rest waits in pipes, so that
/// the window never runs dry.
const IN_FLIGHT: u32 = 4 << 20;
/// However small a server's requests are, it gets no more than this many at once from one transfer.
const LANES_MAX: u32 = 128;
/// A server that takes less in one request than this is not worth talking to, but it is talked to.
const REQUEST_MIN: u32 = 1 << 10;
/// Memory for an object is taken in steps of this, as its bytes come, not on the word of the server.
const READ_STEP: usize = 64 << 20;

/// Writes `bytes` beside `path` and gives them that name when they are on disk.
pub async fn put(session: &Session, folders: &Folders, path: &str, bytes: &[u8]) -> Result<(), Fault> {
    let sftp = session.sftp();
    let part = format!("{path}.part");
    let file = create(sftp, folders, path, &part).await?;
    let result = match write(session, file, bytes).await {
        Ok(()) => commit(sftp, &part, path, bytes.len() as u64).await,
        Err(fault) => Err(folders.explain(sftp, parent(path), bytes.len() as u64, fault).await),
    };
    if let Err(fault) = &result
        && !fault.is_lost()
    {
        let _ = sftp.fs().remove_file(&part).await;
    }
    result
}

/// Makes the file under its temporary name, and the folders for it.
///
/// Never with "truncate": were an earlier commit cut off between link and remove, a leftover `.part` would be the
/// committed object under a second name. A leftover is removed and made anew.
async fn create(sftp: &Sftp, folders: &Folders, path: &str, part: &str) -> Result<File, Fault> {
    folders.ensure(sftp, parent(path)).await?;
    let mut fs = sftp.fs();
    let mut retried = false;
    loop {
        let mut options = sftp.options();
        // Asking a file for its size counts as reading to the library.
        let opening = options.read(true).write(true).create_new(true).open(part);
        let (existing, opened) = join(fs.symlink_metadata(path), opening).await;
        match (existing.map_err(Fault::from), opened.map_err(Fault::from)) {
            (Err(lost), _) | (_, Err(lost)) if lost.is_lost() => return Err(lost),
            (Ok(_), opened) => {
                drop(opened);
                let _ = fs.remove_file(part).await;
                return Err(taken());
            }
            (Err(_), Ok(file)) => return Ok(file),
            (Err(_), Err(fault)) if retried => return Err(folders.explain(sftp, parent(path), 1, fault).await),
            (Err(_), Err(fault)) if fault.is_not_found() => {
                folders.forget();
                folders.ensure(sftp, parent(path)).await?;
            }
            // Perhaps a leftover is in the way; if not, the second try tells what is.
            (Err(_), Err(_)) => drop(fs.remove_file(part).await),
        }
        retried = true;
    }
}

fn taken() -> Fault {
    Fault::new(StoreErrorKind::Exists, "an object of this name is there already")
}

/// Writes, flushes to disk where the server can, checks the size, and closes.
///
/// The flush is sent right behind the last piece: a server must answer requests about one file as if they had
/// come one at a time, and each answer saved is a round trip.
async fn write(session: &Session, file: File, bytes: &[u8]) -> Result<(), Fault> {
    let next = Cell::new(0);
    let flushed_size = Cell::new(None);
    let torn = Cell::new(false);
    let lane = async |mut file: File| -> Result<(), Fault> {
        while let Some((at, piece)) = take_piece(&next, bytes, session.write_bytes.load(Ordering::Relaxed)) {
            let written = if at + piece.len() == bytes.len() {
                let behind = file.clone();
                let (written, size) = join(write_some(&mut file, at, piece), flush(session, &behind)).await;
                let written = written?;
                flushed_size.set(size?);
                written
            } else {
                write_some(&mut file, at, piece).await?
            };
            learn(&session.write_bytes, written, piece.len())?;
            torn.set(torn.get() || written < piece.len());
            write_rest(&mut file, at + written, &piece[written..]).await?;
        }
        Ok(())
    };
    try_join_all((0..lanes(&session.write_bytes, bytes.len())).map(|_| lane(file.clone()))).await?;

    let length = bytes.len() as u64;
    if torn.get() || flushed_size.get() != Some(length) {
        flushed_size.set(flush(session, &file).await?);
    }
    // After a flush there is nothing left that a close could fail at.
    if session.sftp().support_fsync() {
        drop(file)
    } else {
        file.close().await?
    }
    check_size(flushed_size.get(), length)
}

/// Flushes what was written to disk, where the server can, and asks for the size.
async fn flush(session: &Session, file: &File) -> Result<Option<u64>, Fault> {
    let (mut flushed, mut measured) = (file.clone(), file.clone());
    let can_flush = session.sftp().support_fsync();
    let flushing = async { if can_flush { flushed.sync_all().await } else { Ok(()) } };
    let (flushing, metadata) = join(flushing, measured.metadata()).await;
    flushing?;
    Ok(metadata?.len())
}

/// One WRITE; the server's limit may cut it short.
async fn write_some(file: &mut File, at: usize, piece: &[u8]) -> Result<usize, Fault> {
    file.seek(std::io::SeekFrom::Start(at as u64)).await.map_err(seek_fault)?;
    // The library's own way of copying (`write`) halves the rate.
    Ok(file.write_zero_copy(&[Bytes::copy_from_slice(piece)]).await?)
}

async fn write_rest(file: &mut File, mut at: usize, mut rest: &[u8]) -> Result<(), Fault> {
    while !rest.is_empty() {
        let written = write_some(file, at, rest).await?;
        if written == 0 {
            return Err(no_progress());
        }
        at += written;
        rest = &rest[written..];
    }
    Ok(())
}

/// The next piece that no lane has taken.
fn take_piece<'a>(next: &Cell<usize>, bytes: &'a [u8], size: u32) -> Option<(usize, &'a [u8])> {
    let at = next.get();
    let end = bytes.len().min(at.saturating_add(size as usize));
    next.set(end);
    (at < end).then(|| (at, &bytes[at..end]))
}

/// Remembers for the session that the server takes or gives less at once than was asked for.
fn learn(known: &AtomicU32, moved: usize, asked: usize) -> Result<(), Fault> {
    if moved == 0 {
        return Err(Fault::lost(StoreErrorKind::Broken, "the server's limit for one request is nothing"));
    }
    if moved < asked {
        let moved = u32::try_from(moved).unwrap_or(u32::MAX);
        known.fetch_min(moved.max(REQUEST_MIN), Ordering::Relaxed);
    }
    Ok(())
}

fn no_progress() -> Fault {
    Fault::new(StoreErrorKind::Broken, "the server takes or gives nothing in one request")
}

/// How many requests of a transfer are under way at once.
fn lanes(request_bytes: &AtomicU32, length: usize) -> u32 {
    let size = request_bytes.load(Ordering::Relaxed);
    let useful = u32::try_from(length.div_ceil(size as usize)).unwrap_or(u32::MAX);
    (IN_FLIGHT / size).clamp(1, LANES_MAX).min(useful)
}

fn seek_fault(error: std::io::Error) -> Fault {
    Fault::new(StoreErrorKind::Broken, error.to_string())
}

fn check_size(size: Option<u64>, expected: u64) -> Result<(), Fault> {
    match size {
        Some(size) if size != expected => {
            let message = format!("{expected} bytes were written, but the server now has {size}");
            Err(Fault::new(StoreErrorKind::Broken, message))
        }
        // Sizes are optional in the protocol.
        _ => Ok(()),
    }
}

/// Gives the finished file its name, unless the name is taken.
///
/// A hard link is the one request that no server lets replace a file. The library's rename is
/// `posix-rename@openssh.com`, which replaces, so it serves only where links are impossible, after a look.
async fn commit(sftp: &Sftp, part: &str, path: &str, size: u64) -> Result<(), Fault> {
    let (mut fs, mut other) = (sftp.fs(), sftp.fs());
    let (linked, seen) = join(fs.hard_link(part, path), other.symlink_metadata(path)).await;
    match (linked.map_err(Fault::from), seen.map_err(Fault::from)) {
        (Err(lost), _) | (_, Err(lost)) if lost.is_lost() => Err(lost),
        (Ok(()), seen) => {
            // A `.part` that stays behind is passed over by every reader and removed by the next writer.
            let removed = fs.remove_file(part).await.map_err(Fault::from);
            removed.or_else(|fault| if fault.is_lost() { Err(fault) } else { Ok(()) })?;
            let seen = if seen.is_err() { other.symlink_metadata(path).await? } else { seen? };
            check_size(seen.len(), size)
        }
        (Err(_), Ok(_)) => Err(taken()),
        (Err(fault), Err(_)) if fault.is_not_found() => Err(fault),
        (Err(_), Err(unseen)) if unseen.is_not_found() => {
            fs.rename(part, path).await?;
            check_size(fs.symlink_metadata(path).await?.len(), size)
        }
        (Err(_), Err(unseen)) => Err(unseen),
    }
}

/// Reads a whole object of at most `limit` bytes into `bytes`, whose earlier content is gone then.
pub async fn get(session: &Session, path: &str, limit: u64, bytes: &mut Vec<u8>) -> Result<(), Fault> {
    let mut file = session.sftp().options().read(true).open(path).await?;
    let size = regular_size(file.metadata().await?)?;
    if size > limit {
        return Err(Fault::new(StoreErrorKind::TooLarge, StoreError::too_large(path, size, limit).message));
    }
    let length = usize::try_from(size).map_err(|_| Fault::changed("its size is out of range"))?;
    let (read, at_end) = join(read(session, &file, length, bytes), ends_at(&file, size)).await;
    if at_end? { read } else { Err(Fault::changed("it grew")) }
}

async fn read(session: &Session, file: &File, length: usize, bytes: &mut Vec<u8>) -> Result<(), Fault> {
    let no_room = |_| Fault::new(StoreErrorKind::TooLarge, format!("its {length} bytes don't fit into memory"));
    bytes.truncate(length);
    let mut start = 0;
    while start < length {
        let end = length.min(start + READ_STEP);
        // What a buffer that is used again holds is overwritten: only new room is zeroed.
        bytes.try_reserve_exact(end.saturating_sub(bytes.len())).map_err(no_room)?;
        bytes.resize(end.max(bytes.len()), 0);
        read_at(session, file, start, &mut bytes[start..end]).await?;
        start = end;
    }
    Ok(())
}

/// Whether nothing follows after `size` bytes.
async fn ends_at(file: &File, size: u64) -> Result<bool, Fault> {
    let mut file = file.clone();
    file.seek(std::io::SeekFrom::Start(size)).await.map_err(seek_fault)?;
    Ok(file.read(1, BytesMut::with_capacity(1)).await?.is_none())
}

/// Fills `bytes` from the file at `start`.
async fn read_at(session: &Session, file: &File, start: usize, bytes: &mut [u8]) -> Result<(), Fault> {
    let wanted = bytes.len();
    let size = session.read_bytes.load(Ordering::Relaxed) as usize;
    let pieces = RefCell::new(bytes.chunks_mut(size).enumerate());
    let lane = async |mut file: File| -> Result<(), Fault> {
        loop {
            let taken = pieces.borrow_mut().next();
            let Some((index, mut piece)) = taken else { return Ok(()) };
            let mut at = (start + index * size) as u64;
            while !piece.is_empty() {
                let n = read_some(&mut file, at, piece).await?;
                learn(&session.read_bytes, n, piece.len())?;
                at += n as u64;
                piece = &mut piece[n..];
            }
        }
    };
    try_join_all((0..lanes(&session.read_bytes, wanted)).map(|_| lane(file.clone()))).await.map(drop)
}

/// One READ. The answer may be short, but neither empty nor longer than asked for.
async fn read_some(file: &mut File, at: u64, piece: &mut [u8]) -> Result<usize, Fault> {
    file.seek(std::io::SeekFrom::Start(at)).await.map_err(seek_fault)?;
    let asked = u32::try_from(piece.len()).unwrap_or(u32::MAX);
    let data = file.read(asked, BytesMut::with_capacity(piece.len())).await?;
    let data = data.ok_or_else(|| Fault::changed("it ended early"))?;
    let room = piece.get_mut(..data.len()).ok_or_else(|| Fault::changed("more came than was asked for"))?;
    room.copy_from_slice(&data);
    match data.len() {
        0 => Err(Fault::changed("an empty answer came before its end")),
        n => Ok(n),
    }
}

/// An object's size in bytes.
pub async fn size(session: &Session, path: &str) -> Result<u64, Fault> {
    regular_size(session.sftp().fs().symlink_metadata(path).await?)
}

fn regular_size(metadata: MetaData) -> Result<u64, Fault> {
    if metadata.file_type().is_some_and(|kind| !kind.is_file()) {
        return Err(Fault::new(StoreErrorKind::Broken, "it is not a regular file"));
    }
    metadata.len().ok_or_else(|| Fault::new(StoreErrorKind::Broken, "the server does not tell its size"))
}

/// Removes one object.
pub async fn delete(session: &Session, path: &str) -> Result<(), Fault> {
    Ok(session.sftp().fs().remove_file(path).await?)
}
