//! Objects as files below a folder of this machine (or of a mounted share).
//!
//! The folder may be written by somebody else (a share, a USB disk, another account), so nothing here follows a
//! symbolic link out of it: every path is resolved beneath the opened root.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use cap_std::ambient_authority;
use cap_std::fs::{Dir, MetadataExt, OpenOptions, OpenOptionsExt};
use rustix::fs::{OFlags, RenameFlags};

use super::{InFlight, ObjectInfo, Store, StoreError, StoreErrorKind, is_own_name_part};

/// How deep a listing goes. This program's own names have four parts.
const MAX_DEPTH: usize = 8;

/// A repository in a folder.
#[derive(Debug)]
pub struct DirectoryStore {
    root: PathBuf,
    /// Set once the root was seen or made: if it goes away then (a disk that was unmounted), it is not made again.
    rooted: AtomicBool,
    /// Folders known to exist and to be on disk, so that not every object costs a round of `mkdir` and `fsync`.
    known: Mutex<HashSet<String>>,
    in_flight: InFlight,
}

impl DirectoryStore {
    /// The folder need not exist: the first `put` makes it. Nothing is touched here.
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            rooted: AtomicBool::default(),
            known: Mutex::default(),
            in_flight: InFlight::default(),
        }
    }

    fn open_root(&self) -> io::Result<Dir> {
        Dir::open_ambient_dir(&self.root, ambient_authority())
    }

    /// The folder that holds `name`, and the last part of `name`.
    fn parent<'n>(&self, name: &'n str) -> io::Result<(Dir, &'n str)> {
        let root = self.open_root()?;
        match name.rsplit_once('/') {
            None => Ok((root, name)),
            Some((folder, last)) => Ok((root.open_dir(folder)?, last)),
        }
    }

    /// Makes the folder of `name` with all above it, each entry flushed to disk.
    fn make_parent(&self, name: &str) -> io::Result<()> {
        let folder = name.rsplit_once('/').map_or("", |(folder, _)| folder);
        if self.known.lock().unwrap_or_else(PoisonError::into_inner).contains(folder) {
            return Ok(());
        }
        if !self.rooted.load(Ordering::Relaxed) {
            std::fs::create_dir_all(&self.root)?;
            self.rooted.store(true, Ordering::Relaxed);
        }
        let mut dir = self.open_root()?;
        for part in folder.split('/').filter(|part| !part.is_empty()) {
            match dir.create_dir(part) {
                Ok(()) => sync_dir(&dir)?,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
            dir = dir.open_dir(part)?;
        }
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(folder.to_owned());
        Ok(())
    }

    fn try_put(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.make_parent(name)?;
        let (dir, last) = self.parent(name)?;
        if dir.symlink_metadata(last).is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let part = format!("{last}.part");
        let written = write_part(&dir, &part, bytes).and_then(|()| rename_new(&dir, &part, last));
        if written.is_err() {
            let _ = dir.remove_file(&part);
        }
        written?;
        sync_dir(&dir)
    }

    fn try_get(&self, name: &str, limit: u64, bytes: &mut Vec<u8>) -> io::Result<Result<(), StoreError>> {
        let (dir, last) = self.parent(name)?;
        // A named pipe in its place would let the opening wait for ever; on a file the flag does nothing.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = dir.open_with(last, OpenOptions::new().read(true).custom_flags(flags.bits() as i32))?;
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        if meta.len() > limit {
            return Ok(Err(StoreError::too_large(name, meta.len(), limit)));
        }
        bytes.clear();
        bytes.reserve(usize::try_from(meta.len()).unwrap_or(0));
        // One byte more than allowed tells a file that grew meanwhile.
        file.take(limit.saturating_add(1)).read_to_end(bytes)?;
        if bytes.len() as u64 > limit {
            return Ok(Err(StoreError::too_large(name, bytes.len() as u64, limit)));
        }
        Ok(Ok(()))
    }
}

/// Writes a file that does not exist yet and flushes it to disk.
fn write_part(dir: &Dir, part: &str, bytes: &[u8]) -> io::Result<()> {
    match dir.remove_file(part) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = dir.open_with(part, OpenOptions::new().write(true).create_new(true))?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Renames without ever replacing. File systems without that operation (some network ones) get a hard link
/// instead; those without hard links as well (FAT) a check and a rename, which is safe as long as names are
/// random and used once.
fn rename_new(dir: &Dir, from: &str, to: &str) -> io::Result<()> {
    use rustix::io::Errno;
    match rustix::fs::renameat_with(dir, from, dir, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {}
        other => return other.map_err(io::Error::from),
    }
    match dir.hard_link(from, dir, to) {
        Ok(()) => dir.remove_file(from),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
        Err(_) if dir.symlink_metadata(to).is_ok() => Err(io::ErrorKind::AlreadyExists.into()),
        Err(_) => dir.rename(from, dir, to),
    }
}

/// Flushes a folder's entries; a file system that can't do that (some network ones) is left alone.
fn sync_dir(dir: &Dir) -> io::Result<()> {
    use rustix::io::Errno;
    // The handle itself may have been opened without the right to be read.
    let readable = dir.open(".")?;
    match rustix::fs::fsync(&readable) {
        Ok(()) | Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::BADF) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn list_below(dir: &Dir, prefix: &str, depth: usize, found: &mut Vec<ObjectInfo>) -> io::Result<()> {
    // Whatever lies deeper is not this program's.
    if depth > MAX_DEPTH {
        return Ok(());
    }
    for entry in dir.entries()? {
        let entry = entry?;
        let Some(part) = entry.file_name().to_str().filter(|part| is_own_name_part(part)).map(str::to_owned) else {
            continue;
        };
        let name = if prefix.is_empty() { part.clone() } else { format!("{prefix}/{part}") };
        let kind = entry.file_type()?;
        if kind.is_dir() {
            list_below(&dir.open_dir(&part)?, &name, depth + 1, found)?;
        } else if kind.is_file() {
            match entry.metadata() {
                Ok(meta) => found.push(ObjectInfo { name, size: meta.size() }),
                // Deleted between the listing and the look at it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

impl Store for DirectoryStore {
    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let _claim = self.in_flight.claim(name)?;
        self.try_put(name, bytes).map_err(|error| {
            // The folder may have been removed or unmounted under us.
            self.known.lock().unwrap_or_else(PoisonError::into_inner).clear();
            StoreError::from_io("store", name, &error)
        })
    }

    fn get(&self, name: &str, limit: u64) -> Result<Vec<u8>, StoreError> {
        let mut bytes = Vec::new();
        self.get_into(name, limit, &mut bytes)?;
        Ok(bytes)
    }

    fn get_into(&self, name: &str, limit: u64, buffer: &mut Vec<u8>) -> Result<(), StoreError> {
        self.try_get(name, limit, buffer).map_err(|error| StoreError::from_io("read", name, &error))?
    }

    fn size(&self, name: &str) -> Result<u64, StoreError> {
        let sized = self.parent(name).and_then(|(dir, last)| dir.symlink_metadata(last));
        let meta = sized.map_err(|error| StoreError::from_io("read", name, &error))?;
        if !meta.is_file() {
            return Err(StoreError::new(StoreErrorKind::Broken, "read", name, "it is not a regular file"));
        }
        Ok(meta.len())
    }

    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        let opened = self.open_root().and_then(|root| if prefix.is_empty() { Ok(root) } else { root.open_dir(prefix) });
        let mut found = Vec::new();
        match opened.and_then(|dir| list_below(&dir, prefix, 0, &mut found)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                let place = if prefix.is_empty() { "the repository" } else { prefix };
                Err(StoreError::from_io("list", place, &error))
            }
            _ => {
                found.sort();
                Ok(found)
            }
        }
    }

    fn delete(&self, name: &str) -> Result<(), StoreError> {
        let deleted = self.parent(name).and_then(|(dir, last)| dir.remove_file(last));
        deleted.map_err(|error| StoreError::from_io("delete", name, &error))
    }
}
