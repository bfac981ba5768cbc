//! Where the files of a mounted file system lie on its device, by FIEMAP.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fiemap::{Fiemap, FiemapExtentFlags, FiemapFlags};
use thiserror::Error;

/// A path whose place on the device can't be told.
#[derive(Debug, Error)]
pub enum FirstError {
    /// It can't be looked at.
    #[error("{path}: {error}", path = path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The file system does not tell.
    #[error("{path}: this file system does not tell where its files are (FIEMAP: {error})", path = path.display())]
    NotTold {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

/// The bytes of the file system's device that the file, or all files below the folder, lie in, in the order of the
/// listing. Mounts below it are not entered. The second number: files that could not be read and are left out.
pub fn extents(path: &Path) -> Result<(Vec<Range<u64>>, u64), FirstError> {
    let failed = |error| FirstError::Io { path: path.to_owned(), error };
    let meta = fs::metadata(path).map_err(failed)?;
    let (mut ranges, mut left_out) = (Vec::new(), 0);
    if meta.is_file() {
        of_file(path, &mut ranges)?;
        return Ok((ranges, 0));
    }
    let mut folders = vec![fs::canonicalize(path).map_err(failed)?];
    while let Some(folder) = folders.pop() {
        // A folder has blocks of its own, which some file systems tell.
        let _ = of_file(&folder, &mut ranges);
        let Ok(entries) = fs::read_dir(&folder) else {
            left_out += 1;
            continue;
        };
        let mut entries: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        entries.sort();
        for entry in entries {
            match fs::symlink_metadata(&entry) {
                Ok(found) if found.dev() != meta.dev() => {}
                Ok(found) if found.is_dir() => folders.push(entry),
                Ok(found) if found.is_file() => match of_file(&entry, &mut ranges) {
                    Ok(()) => {}
                    Err(FirstError::Io { .. }) => left_out += 1,
                    Err(not_told) => return Err(not_told),
                },
                _ => {}
            }
        }
    }
    Ok((ranges, left_out))
}

/// The device of the file system that `path` is on, major and minor number in one.
pub fn device_of(path: &Path) -> Result<u64, FirstError> {
    fs::metadata(path).map(|meta| meta.dev()).map_err(|error| FirstError::Io { path: path.to_owned(), error })
}

fn of_file(path: &Path, ranges: &mut Vec<Range<u64>>) -> Result<(), FirstError> {
    let file = File::open(path).map_err(|error| FirstError::Io { path: path.to_owned(), error })?;
    // What was written just now has its place only after it was flushed.
    for extent in Fiemap::with_flags(file, FiemapFlags::SYNC) {
        let extent = extent.map_err(|error| FirstError::NotTold { path: path.to_owned(), error })?;
        let nowhere = FiemapExtentFlags::UNKNOWN | FiemapExtentFlags::DELALLOC;
        if extent.fe_flags.intersects(nowhere) || extent.fe_length == 0 {
            continue;
        }
        let place = extent.fe_physical..extent.fe_physical.saturating_add(extent.fe_length);
        match ranges.last_mut() {
            Some(last) if last.end == place.start => last.end = place.end,
            _ => ranges.push(place),
        }
    }
    Ok(())
}
