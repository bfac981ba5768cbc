//! What was read already, in a file, so that a run that was stopped goes on where it was.
//!
//! One line of JSON says of which volume it is; behind it stand the blocks, a bit each. It is replaced as a whole.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::blockset::BlockSet;
use super::plan::Grid;

/// The version of the file.
const VERSION: u32 = 1;
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
    touched: u64,
    blake3: String,
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
    /// Cut, changed, or something else.
    #[error("{path} is damaged or no state of a warm-up", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// Of another volume, size or step.
    #[error("{path} is of another volume: {found}", path = path.display())]
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
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BlockSet::new(owner.grid.blocks())),
        Err(error) => return Err(StateError::Io { path: path.to_owned(), error }),
    };
    let damaged = || StateError::Damaged { path: path.to_owned() };
    let end = bytes.iter().take(MAX_LINE).position(|byte| *byte == b'\n').ok_or_else(damaged)?;
    let line: Line = serde_json::from_slice(&bytes[..end]).map_err(|_| damaged())?;
    let found = Owner { identity: line.volume, grid: Grid { size: line.size, step: line.step } };
    if line.snapferry_warm != VERSION || found != *owner {
        let Grid { size, step } = found.grid;
        let found = format!("{}, {size} bytes in blocks of {step}", found.identity);
        return Err(StateError::Other { path: path.to_owned(), found });
    }
    let blocks = &bytes[end + 1..];
    if blake3::hash(blocks).to_hex().as_str() != line.blake3 {
        return Err(damaged());
    }
    BlockSet::from_bytes(blocks, owner.grid.blocks()).ok_or_else(damaged)
}

/// Replaces the state of a volume.
pub fn save(path: &Path, owner: &Owner, touched: &BlockSet) -> Result<(), StateError> {
    write(path, owner, touched).map_err(|error| StateError::Io { path: path.to_owned(), error })
}

fn write(path: &Path, owner: &Owner, touched: &BlockSet) -> io::Result<()> {
    let blocks = touched.to_bytes();
    let line = Line {
        snapferry_warm: VERSION,
        volume: owner.identity.clone(),
        size: owner.grid.size,
        step: owner.grid.step,
        touched: touched.len(),
        blake3: blake3::hash(&blocks).to_hex().to_string(),
    };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    serde_json::to_writer(&mut file, &line)?;
    file.write_all(b"\n")?;
    file.write_all(&blocks)?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
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
        save(&path, &mine, &touched).unwrap();
        assert_eq!(load(&path, &mine).unwrap(), touched);
        for other in [owner("vol-4567", 512 * 1000), owner("vol-0123", 512 * 1001)] {
            assert!(matches!(load(&path, &other), Err(StateError::Other { .. })));
        }
        let whole = fs::read(&path).unwrap();
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            assert!(matches!(load(&path, &mine), Err(StateError::Damaged { .. })), "{length}");
        }
        for at in [0, 20, whole.len() - 1] {
            let mut changed = whole.clone();
            changed[at] ^= 1;
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
