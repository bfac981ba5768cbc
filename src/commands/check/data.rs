//! Reads objects again: compared with the signed hash, and with a key opened and checked as streams.

use std::sync::Arc;

use age::x25519;
use anyhow::{Context as _, Result};
use indicatif::BinaryBytes;

use super::{Finding, bad_sample};
use crate::commands::Context;
use crate::commands::catalogue::{Backup, Catalogue, Reader, is_of_the_object, reload};
use crate::commands::repository::{Repository, store_problem};
use crate::format::manifest::{Hash, Manifest, SegmentRow};
use crate::format::names;
use crate::pipeline::buffers::Buffers;
use crate::pipeline::codec::Codec;
use crate::pipeline::ordered::ordered_map;
use crate::pipeline::seal::{Opener, check_stored};
use crate::progress::{Counters, Reporter, Total};
use crate::store::StoreErrorKind;
use crate::zfs::stream::StreamCheck;

/// Which part of the objects is read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    percent: f64,
}

impl Sample {
    /// All of them.
    pub const ALL: Self = Self { percent: 100.0 };

    /// `5%` or `5`.
    pub fn parse(text: &str) -> Result<Self> {
        let number = text.trim().trim_end_matches('%').parse::<f64>().ok();
        let percent = number.filter(|percent| (0.01..=100.0).contains(percent)).ok_or_else(|| bad_sample(text))?;
        Ok(Self { percent })
    }

    fn is_all(self) -> bool {
        self.percent >= 100.0
    }

    /// The numbers of the segments to read, in order. At least one of each backup.
    fn choose(self, count: usize) -> Result<Vec<usize>> {
        if self.is_all() {
            return Ok((0..count).collect());
        }
        let wanted = ((count as f64 * self.percent / 100.0).ceil() as usize).clamp(1, count);
        // The sample must not be foreseeable for who holds the objects: the system's randomness chooses.
        let mut numbers: Vec<usize> = (0..count).collect();
        for place in 0..wanted {
            let mut random = [0u8; 8];
            getrandom::fill(&mut random).context("no randomness")?;
            let other = place + (u64::from_le_bytes(random) % (count - place) as u64) as usize;
            numbers.swap(place, other);
        }
        numbers.truncate(wanted);
        numbers.sort_unstable();
        Ok(numbers)
    }
}

/// What came of it.
pub struct DataCheck {
    /// In words.
    pub described: String,
    /// Bytes of objects that were read.
    pub bytes: u64,
    /// What is damaged.
    pub findings: Vec<Finding>,
}

/// Reads a sample of all backups, or all; opens them when there is an `identity`.
pub fn check(
    context: &Context,
    repository: &Repository,
    reader: &Reader,
    catalogue: &Catalogue,
    sample: Sample,
    identity: Option<&x25519::Identity>,
) -> Result<DataCheck> {
    let counters = Arc::new(Counters::default());
    let total: u64 = catalogue.backups.iter().map(|backup| backup.manifest.stream.bytes).sum();
    let total = if sample.is_all() {
        Total::Exact(total)
    } else {
        Total::About((total as f64 * sample.percent / 100.0) as u64)
    };
    let reporter = Reporter::start("checking", total, Arc::clone(&counters), context.shows_progress());
    let (mut findings, mut objects) = (Vec::new(), 0);
    for backup in &catalogue.backups {
        let checked = check_backup(repository, reader, backup, sample, identity, &counters)?;
        objects += checked.0;
        findings.extend(checked.1);
    }
    reporter.finish();
    let bytes = counters.stored.load(std::sync::atomic::Ordering::Relaxed);
    let part = if sample.is_all() { "all".to_owned() } else { format!("a random {}% ({objects})", sample.percent) };
    let mut described =
        format!("{part} objects fetched ({}) and compared with their signed hashes", BinaryBytes(bytes));
    match (identity, sample.is_all()) {
        (Some(_), true) => described += ", opened, decompressed, and the streams checked",
        (Some(_), false) => described += ", opened, decompressed, and compared with what was backed up",
        (None, _) => described += " (not opened: no key was given)",
    }
    Ok(DataCheck { described, bytes, findings })
}

fn check_backup(
    repository: &Repository,
    reader: &Reader,
    backup: &Backup,
    sample: Sample,
    identity: Option<&x25519::Identity>,
    counters: &Counters,
) -> Result<(usize, Vec<Finding>)> {
    let manifest = Arc::new(reload(repository, reader, backup)?.manifest);
    // An unknown codec was reported already.
    let Ok(codec) = Codec::from_info(&manifest.codec) else { return Ok((0, Vec::new())) };
    let chosen = sample.choose(manifest.segments.len())?;
    let count = chosen.len();
    let mut stream = (identity.is_some() && sample.is_all()).then(|| StreamAgain::new(&manifest));
    let mut findings = Vec::new();
    let buffers = Buffers::default();
    for checked in read_segments(repository, &manifest, codec, chosen, identity, &buffers) {
        let CheckedSegment { name, row, result } = checked?;
        counters.add_segment(row.bytes(), row.stored_bytes());
        match result {
            Ok(plain) => {
                if let Some(stream) = &mut stream {
                    stream.take(&plain);
                }
                buffers.give(plain);
            }
            Err(what) => {
                findings.push(Finding::of_object(&manifest.id, &name, what));
                // The stream as a whole can't be judged any more.
                stream = None;
            }
        }
    }
    if let Some(what) = stream.and_then(|stream| stream.finish(&manifest).err()) {
        findings.push(Finding::of_backup(&manifest.id, what));
    }
    Ok((count, findings))
}

struct CheckedSegment {
    name: String,
    row: SegmentRow,
    /// The opened bytes (empty without a key), or what is wrong.
    result: Result<Vec<u8>, String>,
}

fn read_segments(
    repository: &Repository,
    manifest: &Arc<Manifest>,
    codec: Codec,
    chosen: Vec<usize>,
    identity: Option<&x25519::Identity>,
    buffers: &Buffers,
) -> impl Iterator<Item = Result<CheckedSegment>> + use<> {
    let (store, location) = (Arc::clone(&repository.store), repository.location.clone());
    let of = Arc::clone(manifest);
    let fetched = ordered_map(
        repository.connections,
        chosen.into_iter(),
        || (),
        move |(), number| {
            let (row, name) = (of.segments[number], names::segment(&of.id, number as u64, codec.extension()));
            match store.get(&name, row.stored_bytes()) {
                Ok(sealed) => Ok((name, row, Ok(sealed))),
                Err(error) if error.kind == StoreErrorKind::NotFound => {
                    Ok((name, row, Err("it is missing".to_owned())))
                }
                Err(error) if is_of_the_object(&error) => Ok((name, row, Err(error.message))),
                Err(error) => Err(store_problem(error, &location)),
            }
        },
    );
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let (of, identity, buffers) = (Arc::clone(manifest), identity.cloned(), buffers.clone());
    let opener =
        move || identity.clone().map(|identity| Opener::new(&of.codec, identity).map_err(|error| error.to_string()));
    ordered_map(
        workers,
        fetched,
        opener,
        move |opener, fetched: Result<(String, SegmentRow, Result<Vec<u8>, String>)>| {
            let (name, row, sealed) = fetched?;
            let mut plain = buffers.take();
            let result = sealed.and_then(|mut sealed| match opener {
                None => check_stored(&row, &sealed).map_err(|error| error.to_string()),
                Some(Ok(opener)) => opener.open(&row, &mut sealed, &mut plain).map_err(|error| error.to_string()),
                Some(Err(error)) => Err(error.clone()),
            });
            Ok(CheckedSegment { name, row, result: result.map(|()| plain) })
        },
    )
}

/// A whole stream, checked as it was when it was backed up.
struct StreamAgain {
    hasher: blake3::Hasher,
    zfs: Option<StreamCheck>,
    wrong: Option<String>,
}

impl StreamAgain {
    fn new(manifest: &Manifest) -> Self {
        Self {
            hasher: blake3::Hasher::new(),
            zfs: manifest.zfs_stream.as_ref().map(|_| StreamCheck::new()),
            wrong: None,
        }
    }

    fn take(&mut self, plain: &[u8]) {
        self.hasher.update(plain);
        if let Some(Err(error)) = self.zfs.as_mut().map(|zfs| zfs.update(plain)) {
            self.wrong.get_or_insert_with(|| error.to_string());
        }
    }

    fn finish(self, manifest: &Manifest) -> Result<(), String> {
        if Hash(self.hasher.finalize()) != manifest.stream.blake3 {
            return Err("the whole stream is not the one that was backed up".into());
        }
        match (self.wrong, self.zfs) {
            (Some(wrong), _) => Err(format!("its ZFS stream does not hold: {wrong}")),
            (None, Some(zfs)) => {
                zfs.finish().map(drop).map_err(|error| format!("its ZFS stream does not hold: {error}"))
            }
            (None, None) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_random_ordered_and_never_empty() {
        assert_eq!(Sample::parse("100%").unwrap(), Sample::ALL);
        assert_eq!(Sample::parse("5").unwrap().choose(1000).unwrap().len(), 50);
        assert_eq!(Sample::parse("0.01%").unwrap().choose(3).unwrap().len(), 1);
        assert_eq!(Sample::ALL.choose(7).unwrap(), (0..7).collect::<Vec<_>>());
        let half = Sample::parse("50%").unwrap();
        let chosen = half.choose(1000).unwrap();
        assert!(chosen.windows(2).all(|pair| pair[0] < pair[1]) && chosen.iter().all(|number| *number < 1000));
        assert_ne!(chosen, half.choose(1000).unwrap());
        for bad in ["0", "101%", "", "x", "-1%"] {
            assert!(Sample::parse(bad).is_err(), "{bad}");
        }
    }
}
