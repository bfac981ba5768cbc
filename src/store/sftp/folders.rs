//! Folders at the other end: made when needed, walked when listed, and asked why a write failed.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures_util::StreamExt;
use futures_util::stream;
use openssh_sftp_client::Sftp;

use super::fault::{Fault, Nature};
use super::session::Session;
use crate::store::{ObjectInfo, StoreErrorKind, is_own_name_part};

/// Deeper than any name this program makes.
const DEPTH_MAX: usize = 8;
/// A million segments of the smallest size would be a third of this.
const ENTRIES_MAX: usize = 5_000_000;
/// Folders read at once: listing is all round trips.
const FOLDERS_AT_ONCE: usize = 16;
/// `SSH_FXE_STATVFS_ST_RDONLY`
const READ_ONLY: u64 = 1;

/// The folder that holds `path`; "" is the login folder.
pub fn parent(path: &str) -> &str {
    match path.rsplit_once('/') {
        Some(("", _)) => "/",
        Some((folder, _)) => folder,
        None => "",
    }
}

/// The repository's folders.
#[derive(Debug)]
pub struct Folders {
    root: String,
    /// Set once the root was seen or made: if it goes away then (a disk that was unmounted), it is not made again.
    rooted: AtomicBool,
    /// What is known to exist already, so that it is not asked for again with each object.
    known: Mutex<HashSet<String>>,
}

impl Folders {
    /// Those below `root`.
    pub fn below(root: &str) -> Self {
        Self { root: root.to_owned(), rooted: AtomicBool::default(), known: Mutex::default() }
    }

    /// Makes `folder` and those above it where they are missing.
    pub async fn ensure(&self, sftp: &Sftp, folder: &str) -> Result<(), Fault> {
        if self.known().contains(folder) {
            return Ok(());
        }
        let mut missing = Vec::new();
        let mut current = folder;
        loop {
            if current == self.root && self.rooted.load(Ordering::Relaxed) {
                let message = "the repository's folder is not there any more";
                sftp.fs().metadata(current).await.map_err(|_| Fault::new(StoreErrorKind::NotFound, message))?;
                break;
            }
            if make(sftp, current).await.map_err(Refusal::into_fault)? {
                break;
            }
            missing.push(current);
            current = parent(current);
        }
        for folder in missing.into_iter().rev() {
            if !make(sftp, folder).await.map_err(Refusal::into_fault)? {
                return Err(Fault::new(StoreErrorKind::NotFound, "a folder disappeared as soon as it was made"));
            }
        }
        self.rooted.store(true, Ordering::Relaxed);
        self.known().insert(folder.to_owned());
        Ok(())
    }

    /// Somebody removed folders: what was known is void.
    pub fn forget(&self) {
        self.known().clear();
    }

    /// Finds the reason for a server's reasonless "failure" to write `wanted` bytes in `folder`.
    pub async fn explain(&self, sftp: &Sftp, folder: &str, wanted: u64, fault: Fault) -> Fault {
        if fault.nature == Nature::Unexplained { explain(sftp, folder, wanted).await.unwrap_or(fault) } else { fault }
    }

    fn known(&self) -> MutexGuard<'_, HashSet<String>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A full disk and a read-only file system are "failure" in OpenSSH; its `statvfs` tells them apart. Quotas
/// don't show there.
async fn explain(sftp: &Sftp, folder: &str, wanted: u64) -> Option<Fault> {
    let folder = if folder.is_empty() { "." } else { folder };
    let space = match sftp.fs().statvfs(folder).await.map_err(Fault::from) {
        Err(fault) => return fault.is_lost().then_some(fault),
        Ok(space) => space,
    };
    if space.flag & READ_ONLY != 0 {
        return Some(Fault::new(StoreErrorKind::Denied, "the file system at the server is read-only"));
    }
    if space.files > 0 && space.favail == 0 {
        return Some(Fault::new(StoreErrorKind::Full, "no room for another file at the server"));
    }
    let free = space.bavail.saturating_mul(space.frsize);
    (free < wanted)
        .then(|| Fault::new(StoreErrorKind::Full, format!("no space left at the server ({free} bytes free)")))
}

/// Makes one folder, or finds it there. `false`: the one above is missing.
async fn make(sftp: &Sftp, folder: &str) -> Result<bool, Refusal> {
    if folder.is_empty() || folder == "/" {
        return Ok(true);
    }
    let mut fs = sftp.fs();
    let Err(error) = fs.create_dir(folder).await else { return Ok(true) };
    let fault = Fault::from(error);
    if fault.is_lost() {
        return Err(Refusal { fault, folder: None });
    }
    if fault.is_not_found() {
        return Ok(false);
    }
    // "Failure" is what most servers say of a folder that is there; so is "denied" above a chroot.
    match fs.metadata(folder).await.map_err(Fault::from) {
        Ok(found) if found.file_type().is_none_or(|kind| kind.is_dir()) => Ok(true),
        Ok(_) => {
            Err(Refusal { fault: Fault::new(StoreErrorKind::Broken, "not a folder"), folder: Some(folder.into()) })
        }
        Err(lost) if lost.is_lost() => Err(Refusal { fault: lost, folder: None }),
        Err(_) => {
            let above = parent(folder);
            let fault = match fault.nature {
                Nature::Unexplained => explain(sftp, above, 1).await.unwrap_or(fault),
                _ => fault,
            };
            Err(Refusal { fault, folder: Some(folder.into()) })
        }
    }
}

/// Why a folder can't be made, and which.
struct Refusal {
    fault: Fault,
    folder: Option<String>,
}

impl Refusal {
    fn into_fault(self) -> Fault {
        let Self { mut fault, folder } = self;
        if let Some(folder) = folder {
            fault.message = format!("folder {folder}: {}", fault.message);
        }
        fault
    }
}

/// Every object below the folder at `root` + `prefix`, unsorted. A missing folder is empty.
pub async fn list(session: &Session, root: &str, prefix: &str) -> Result<Vec<ObjectInfo>, Fault> {
    let mut all = Listing::default();
    let mut level = vec![prefix.to_owned()];
    for _ in 0..DEPTH_MAX {
        let reads = level.into_iter().map(|folder| read_folder(session, root, folder));
        let mut reads = pin!(stream::iter(reads).buffer_unordered(FOLDERS_AT_ONCE));
        while let Some(read) = reads.next().await {
            let listing = read?;
            all.entries += listing.entries;
            if all.entries > ENTRIES_MAX {
                let message = format!("more than {ENTRIES_MAX} entries: this is not a repository");
                return Err(Fault::new(StoreErrorKind::Broken, message));
            }
            all.objects.extend(listing.objects);
            all.folders.extend(listing.folders);
        }
        level = std::mem::take(&mut all.folders);
    }
    Ok(all.objects)
}

#[derive(Default)]
struct Listing {
    objects: Vec<ObjectInfo>,
    folders: Vec<String>,
    entries: usize,
}

async fn read_folder(session: &Session, root: &str, folder: String) -> Result<Listing, Fault> {
    let mut listing = Listing::default();
    let path = match super::joined(root, &folder) {
        path if path.is_empty() => ".".to_owned(),
        path => path,
    };
    let opened = match session.sftp().fs().open_dir(path).await.map_err(Fault::from) {
        Err(fault) if fault.is_not_found() => return Ok(listing),
        opened => opened?,
    };
    let mut entries = pin!(opened.read_dir());
    while let Some(entry) = entries.next().await {
        let entry = entry?;
        listing.entries += 1;
        if listing.entries > ENTRIES_MAX {
            break;
        }
        let Some(part) = entry.filename().to_str().filter(|part| is_own_name_part(part)) else { continue };
        let name = super::joined(&folder, part);
        let metadata = entry.metadata();
        match metadata.file_type() {
            Some(kind) if kind.is_dir() => listing.folders.push(name),
            Some(kind) if kind.is_file() => {
                listing.objects.push(ObjectInfo { name, size: metadata.len().unwrap_or(0) });
            }
            _ => {}
        }
    }
    Ok(listing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents() {
        assert_eq!(parent("/archive/a/b"), "/archive/a");
        assert_eq!(parent("/archive"), "/");
        assert_eq!(parent("a/b"), "a");
        assert_eq!(parent("a"), "");
    }
}
