//! What was read already, in a file, so that a run that was stopped goes on where it was.
//!
//! One line of JSON says of which volume it is; behind it stand the blocks, a bit each. A run begins with a new file in the
//! place of the old one; in it bits are only ever set, each as soon as its block was read. Whatever ends the program, at most
//! the reads that were under way are done again.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::blockset::BlockSet;
use super::plan::Grid;

/// The version of the file.
const VERSION: u32 = 1;
/// How every state begins.
const BEGINNING: &[u8] = b"{\"snapferry_warm\":";
/// No first line is longer (bytes).
const MAX_LINE: usize = 4096;

/// Whose blocks they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// What names the volume wherever it is attached.
    pub identity: String,
    /// Its blocks.
    pub grid: Grid,
}

#[derive(Serialize, Deserialize)]
struct Line {
    snapferry_warm: u32,
    volume: String,
    size: u64,
    step: u64,
}

/// A state that can't be used.
#[derive(Debug, Error)]
pub enum StateError {
    /// It can't be read or written.
    #[error("{path}: {error}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Something else, which is left alone.
    #[error("{path} is no state of a warm-up, but something else", path = path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// Cut or changed.
    #[error("{path} is damaged", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// Another run writes to it.
    #[error("another run warms this volume up: it holds {path}", path = path.display())]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// Of another volume, size or step.
    #[error("{path} is of another volume, or was made with another --step: {found}", path = path.display())]
    Other {
        /// The file.
        path: PathBuf,
        /// What it says.
        found: String,
    },
}

/// The file of a volume's state in the folder `folder`.
pub fn file_in(folder: &Path, owner: &Owner) -> PathBuf {
    let tame = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let mut name: String = owner.identity.chars().map(tame).collect();
    if name != owner.identity || name.len() > 100 {
        // Two volumes must not share a name that was tamed.
        name.truncate(80);
        name = format!("{name}-{}", &blake3::hash(owner.identity.as_bytes()).to_hex()[..16]);
    }
    folder.join(format!("{name}-{}-{}.warm", owner.grid.size, owner.grid.step))
}

/// Reads the state of a volume; an absent one is empty.
pub fn load(path: &Path, owner: &Owner) -> Result<BlockSet, StateError> {
    // A byte more than the right one can have tells that it is another.
    let limit = MAX_LINE as u64 + owner.grid.blocks().div_ceil(64) * 8 + 1;
    let mut bytes = Vec::new();
    match File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes)) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BlockSet::new(owner.grid.blocks())),
        Err(error) => return Err(StateError::Io { path: path.to_owned(), error }),
    }
    if !BEGINNING.starts_with(&bytes[..bytes.len().min(BEGINNING.len())]) {
        return Err(StateError::Foreign { path: path.to_owned() });
    }
    let damaged = || StateError::Damaged { path: path.to_owned() };
    let end = bytes.iter().take(MAX_LINE).position(|byte| *byte == b'\n').ok_or_else(damaged)?;
    let line: Line = serde_json::from_slice(&bytes[..end]).map_err(|_| damaged())?;
    let found = Owner { identity: line.volume, grid: Grid { size: line.size, step: line.step } };
    if line.snapferry_warm != VERSION || found != *owner {
        let Grid { size, step } = found.grid;
        let found = format!("{}, {size} bytes in blocks of {step}", found.identity);
        return Err(StateError::Other { path: path.to_owned(), found });
    }
    BlockSet::from_bytes(&bytes[end + 1..], owner.grid.blocks()).ok_or_else(damaged)
}

/// The state of a volume that is being read.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    file: File,
    /// Where the blocks begin (bytes).
    begin: u64,
    /// What was read before this run.
    before: BlockSet,
}

impl StateFile {
    /// Puts a new file in the place of `path`, with what was read before.
    ///
    /// Whatever is there must be a state or empty, and nobody may be writing to it.
    pub fn create(path: &Path, owner: &Owner, before: BlockSet) -> Result<Self, StateError> {
        let _held = hold_existing(path)?;
        let (file, begin) =
            write(path, owner, &before).map_err(|error| StateError::Io { path: path.to_owned(), error })?;
        Ok(Self { path: path.to_owned(), file, begin, before })
    }

    /// Adds the blocks of `touched` that lie in these words of 64.
    pub fn add(&self, touched: &BlockSet, words: Range<usize>) -> Result<(), StateError> {
        let at = self.begin + words.start as u64 * 8;
        let bytes: Vec<u8> = words.flat_map(|n| (self.before.word(n) | touched.word(n)).to_le_bytes()).collect();
        self.file.write_all_at(&bytes, at).map_err(|error| StateError::Io { path: self.path.clone(), error })
    }
}

/// Holds the file that is to be replaced, if there is one.
fn hold_existing(path: &Path) -> Result<Option<File>, StateError> {
    let failed = |error| StateError::Io { path: path.to_owned(), error };
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(failed)?,
    };
    let mut beginning = [0u8; BEGINNING.len()];
    let length = file.read_at(&mut beginning, 0).map_err(failed)?;
    if !BEGINNING.starts_with(&beginning[..length]) || !file.metadata().map_err(failed)?.is_file() {
        return Err(StateError::Foreign { path: path.to_owned() });
    }
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(fs::TryLockError::WouldBlock) => Err(StateError::Busy { path: path.to_owned() }),
        Err(fs::TryLockError::Error(error)) => Err(failed(error)),
    }
}

fn write(path: &Path, owner: &Owner, touched: &BlockSet) -> io::Result<(File, u64)> {
    let Grid { size, step } = owner.grid;
    let line = Line { snapferry_warm: VERSION, volume: owner.identity.clone(), size, step };
    let mut line = serde_json::to_vec(&line)?;
    line.push(b'\n');
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(&line)?;
    file.write_all(&touched.to_bytes())?;
    file.as_file().try_lock().map_err(|error| io::Error::other(error.to_string()))?;
    // Where the folder outlives the machine's run, half a file must not be in the way of the next.
    file.as_file().sync_all()?;
    let file = file.persist(path).map_err(|error| error.error)?;
    Ok((file, line.len() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(identity: &str, size: u64) -> Owner {
        Owner { identity: identity.into(), grid: Grid { size, step: 512 } }
    }

    #[test]
    fn a_state_comes_back_and_only_for_its_volume() {
        let folder = tempfile::tempdir().unwrap();
        let mine = owner("vol-0123", 512 * 1000);
        let path = file_in(&folder.path().join("made"), &mine);
        assert!(load(&path, &mine).unwrap().is_empty());
        let mut touched = BlockSet::new(1000);
        touched.insert_range(10..900);
        let file = StateFile::create(&path, &mine, touched.clone()).unwrap();
        assert_eq!(load(&path, &mine).unwrap(), touched);
        let mut fresh = BlockSet::new(1000);
        [0, 64, 950, 999].into_iter().for_each(|block| assert!(fresh.insert(block)));
        file.add(&fresh, 0..1).unwrap();
        file.add(&fresh, 14..16).unwrap();
        [0, 950, 999].into_iter().for_each(|block| assert!(touched.insert(block)));
        assert_eq!(load(&path, &mine).unwrap(), touched);
        for other in [owner("vol-4567", 512 * 1000), owner("vol-0123", 512 * 1001)] {
            assert!(matches!(load(&path, &other), Err(StateError::Other { .. })));
        }
        let whole = fs::read(&path).unwrap();
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            assert!(matches!(load(&path, &mine), Err(StateError::Damaged { .. })), "{length}");
        }
        // Blocks that the volume does not have.
        for at in [0, 20, whole.len() - 1] {
            let mut changed = whole.clone();
            changed[at] ^= 0x80;
            fs::write(&path, &changed).unwrap();
            assert!(load(&path, &mine).is_err(), "{at}");
        }
    }

    #[test]
    fn names_are_tame_and_differ() {
        let folder = Path::new("/run/snapferry");
        let names = ["vol-1", "/dev/x", "_dev_x", "../../x"].map(|name| file_in(folder, &owner(name, 512)));
        assert!(names.iter().all(|name| name.parent() == Some(folder)));
        assert!((1..names.len()).all(|n| names[n] != names[n - 1]));
    }
}
