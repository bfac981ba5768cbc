//! What an unfinished backup has stored already: a hint, beside which the repository is the truth.
//!
//! A JSON line for what the backup is, then one for each stored segment, appended and flushed after the object is
//! in place. A line that was cut by a crash is as good as none.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::format::manifest::{Hash, SegmentRow};
use crate::format::names::BackupId;
use crate::profile::make_private_dir;

/// What makes two runs the same backup. Everything that changes what a segment's object would be is in here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalKey {
    /// `dataset@snapshot` with its GUID, base and flags, or a stream's name.
    pub source: String,
    /// What segments are sealed to.
    pub recipient: String,
    /// How they are compressed.
    pub codec: String,
    /// Bytes of stream in each.
    pub segment_size: u64,
}

/// A segment's number and its row, or none when its object is about to be replaced.
type Line = (u64, Option<SegmentRow>);

#[derive(Serialize, Deserialize)]
struct Head {
    id: BackupId,
    started: Timestamp,
    key: JournalKey,
}

/// A journal that is being written.
pub struct Journal {
    path: PathBuf,
    file: File,
    /// The backup's id, that of the interrupted run if there was one.
    pub id: BackupId,
    /// When the first run began.
    pub started: Timestamp,
    /// What earlier runs stored, by number.
    pub stored: HashMap<u64, SegmentRow>,
}

/// What an earlier run left.
pub enum Earlier {
    /// Nothing.
    None,
    /// The same backup.
    Same(Box<Journal>),
    /// Another one of the same source, which can't be gone on with; its id, to clean up after it.
    Other(BackupId),
}

/// The journal's file for a source. The source's name may hold anything, a file's name may not.
fn path_for(state: &Path, source: &str) -> PathBuf {
    let name = &blake3::hash(source.as_bytes()).to_hex()[..32];
    state.join("journal").join(format!("{name}.jsonl"))
}

impl Journal {
    /// Looks for what an earlier run left. `slot` names the source, whatever was sent of it.
    pub fn find(state: &Path, slot: &str, key: &JournalKey) -> Result<Earlier> {
        let path = path_for(state, slot);
        let text = match fs::read(&path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Earlier::None),
            Err(error) => return Err(error).with_context(|| format!("cannot read the journal {}", path.display())),
        };
        let mut lines = text.split_inclusive('\n');
        let head = lines.next().filter(|line| line.ends_with('\n'));
        let Some((head, line)) = head.and_then(|line| Some((serde_json::from_str::<Head>(line).ok()?, line))) else {
            return Ok(Earlier::None);
        };
        if head.key != *key {
            return Ok(Earlier::Other(head.id));
        }
        // Only whole lines count; the first one that is not ends the trust in all behind it, and is cut off, since
        // the next one would be lost behind it.
        let (mut stored, mut whole) = (HashMap::new(), line.len());
        for line in lines {
            let line_read = line.strip_suffix('\n').and_then(|line| serde_json::from_str::<Line>(line).ok());
            match line_read {
                Some((number, Some(row))) => drop(stored.insert(number, row)),
                Some((number, None)) => drop(stored.remove(&number)),
                None => break,
            }
            whole += line.len();
        }
        let cannot_open = || format!("cannot open the journal {}", path.display());
        let file = OpenOptions::new().append(true).open(&path).with_context(cannot_open)?;
        file.set_len(whole as u64).with_context(cannot_open)?;
        Ok(Earlier::Same(Box::new(Self { path, file, id: head.id, started: head.started, stored })))
    }

    /// Begins a new one, over any other of the same source.
    pub fn begin(state: &Path, slot: &str, key: &JournalKey, id: BackupId, started: Timestamp) -> Result<Self> {
        let path = path_for(state, slot);
        if let Some(parent) = path.parent() {
            make_private_dir(parent)?;
        }
        let opened = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&path);
        let file = opened.with_context(|| format!("cannot write the journal {}", path.display()))?;
        let mut journal = Self { path, file, id: id.clone(), started, stored: HashMap::new() };
        let mut line = serde_json::to_vec(&Head { id, started, key: key.clone() })?;
        line.push(b'\n');
        journal.append(&line)?;
        Ok(journal)
    }

    fn append(&mut self, line: &[u8]) -> Result<()> {
        let written = self.file.write_all(line).and_then(|()| self.file.sync_data());
        written.with_context(|| format!("cannot write the journal {}", self.path.display()))
    }

    /// Records a segment whose object is in place.
    pub fn record(&mut self, number: u64, row: &SegmentRow) -> Result<()> {
        self.line(&(number, Some(*row)))
    }

    /// Records that a segment's object is about to be replaced: its row counts no more.
    pub fn forget(&mut self, number: u64) -> Result<()> {
        self.line(&(number, None))
    }

    fn line(&mut self, line: &Line) -> Result<()> {
        let mut line = serde_json::to_vec(line)?;
        line.push(b'\n');
        self.append(&line)
    }

    /// The backup is complete: nothing to go on with any more.
    pub fn finish(&self) -> Result<()> {
        fs::remove_file(&self.path).with_context(|| format!("cannot remove the journal {}", self.path.display()))
    }
}

/// The GUIDs of the bases of unfinished backups in `state`.
pub fn bases(state: &Path) -> Vec<u64> {
    let base = |head: Head| {
        let after = head.key.source.rsplit_once(" from ")?.1;
        after.split(' ').next()?.parse().ok()
    };
    heads(state).into_iter().filter_map(base).collect()
}

/// What the journal of a source is of, as its key says, if there is one.
pub fn source_of(state: &Path, slot: &str) -> Option<String> {
    let text = fs::read_to_string(path_for(state, slot)).ok()?;
    Some(serde_json::from_str::<Head>(text.lines().next()?).ok()?.key.source)
}

/// The backups that journals in `state` claim.
pub fn claimed(state: &Path) -> Vec<BackupId> {
    heads(state).into_iter().map(|head| head.id).collect()
}

fn heads(state: &Path) -> Vec<Head> {
    let Ok(entries) = fs::read_dir(state.join("journal")) else { return Vec::new() };
    let heads = entries.flatten().filter_map(|entry| {
        let text = fs::read_to_string(entry.path()).ok()?;
        serde_json::from_str::<Head>(text.lines().next()?).ok()
    });
    heads.collect()
}

/// What a segment's stored row says of a run of the stream.
pub fn matches(row: &SegmentRow, plain: &[u8], hash: Hash) -> bool {
    row.bytes() == plain.len() as u64 && row.blake3() == hash
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> JournalKey {
        JournalKey { source: "a".into(), recipient: "age1".into(), codec: "zstd:3".into(), segment_size: 10 }
    }

    fn row(n: u8) -> SegmentRow {
        SegmentRow(10, Hash::of(&[n]), 20, Hash::of(&[n, n]))
    }

    fn same(state: &Path) -> Option<Journal> {
        match Journal::find(state, "slot", &key()).unwrap() {
            Earlier::Same(journal) => Some(*journal),
            _ => None,
        }
    }

    #[test]
    fn goes_on_where_it_was_whatever_was_cut() {
        let dir = tempfile::tempdir().unwrap();
        let id = BackupId::new(Timestamp::UNIX_EPOCH, [1; 8]);
        let mut journal = Journal::begin(dir.path(), "slot", &key(), id.clone(), Timestamp::UNIX_EPOCH).unwrap();
        journal.record(0, &row(0)).unwrap();
        journal.record(1, &row(1)).unwrap();
        let path = journal.path.clone();
        let whole = fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            let lines = whole[..cut].iter().filter(|byte| **byte == b'\n').count();
            match same(dir.path()) {
                None => assert_eq!(lines, 0, "cut at {cut}"),
                Some(mut again) => {
                    assert_eq!(again.id, id);
                    assert_eq!(again.stored.len() + 1, lines, "cut at {cut}");
                    again.record(7, &row(7)).unwrap();
                    let third = same(dir.path()).unwrap().stored;
                    assert_eq!(third.len(), lines, "cut at {cut}");
                    assert!(third.contains_key(&7) && third.iter().all(|(n, r)| *r == row(*n as u8)), "cut at {cut}");
                }
            }
        }
        fs::write(&path, &whole).unwrap();
        assert_eq!(same(dir.path()).unwrap().stored, HashMap::from([(0, row(0)), (1, row(1))]));
        assert_eq!(claimed(dir.path()), [id]);
        same(dir.path()).unwrap().finish().unwrap();
        assert!(same(dir.path()).is_none());
    }

    #[test]
    fn another_backup_of_the_source_is_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let id = BackupId::new(Timestamp::UNIX_EPOCH, [1; 8]);
        Journal::begin(dir.path(), "slot", &key(), id.clone(), Timestamp::UNIX_EPOCH).unwrap();
        let other = JournalKey { codec: "none".into(), ..key() };
        assert!(matches!(Journal::find(dir.path(), "slot", &other).unwrap(), Earlier::Other(found) if found == id));
        assert!(matches!(Journal::find(dir.path(), "elsewhere", &key()).unwrap(), Earlier::None));
    }
}
