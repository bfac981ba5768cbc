//! The way of a stream into the repository, top to bottom: cut, compress and seal on all cores, store several at
//! once, in order.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result, anyhow};

use super::source::CheckedStream;
use crate::commands::Context;
use crate::commands::journal::{Journal, matches};
use crate::commands::repository::Repository;
use crate::error::{Exit, Problem};
use crate::format::manifest::{Hash, MAX_ROWS, SegmentRow};
use crate::format::names::{self, BackupId};
use crate::pipeline::buffers::Buffers;
use crate::pipeline::codec::Codec;
use crate::pipeline::ordered::ordered_map;
use crate::pipeline::seal::Sealer;
use crate::pipeline::segment::{Segment, Segments};
use crate::progress::Counters;
use crate::store::StoreErrorKind;

/// How a stream is moved.
pub struct Transfer {
    /// How segments are compressed.
    pub codec: Codec,
    /// Bytes of stream in each.
    pub segment_size: u64,
    /// Open each sealed segment again before it counts.
    pub verify: bool,
    /// Says how far it is.
    pub counters: Arc<Counters>,
}

/// A stream that is stored whole, and not committed yet.
pub struct Stored {
    /// One for each segment.
    pub rows: Vec<SegmentRow>,
    /// Of the whole stream.
    pub bytes: u64,
    /// Of the whole stream.
    pub blake3: Hash,
    /// The source, at its end.
    pub read: CheckedStream,
    /// The journal, to be removed after the commit. The threads that wrote it may not have ended yet.
    pub journal: Arc<Mutex<Journal>>,
}

/// A segment on its way: sealed anew, or stored by an earlier run.
struct Packed {
    number: u64,
    row: SegmentRow,
    sealed: Option<Vec<u8>>,
}

/// What earlier runs left, as the repository confirms it.
struct Earlier {
    /// Stored, and there with the journal's size.
    rows: HashMap<u64, SegmentRow>,
    /// Objects that are there, in whatever state.
    objects: HashSet<String>,
}

impl Transfer {
    /// Moves the stream. Memory is bounded by the segments in flight: at the default size of 16 MiB and 2 cores
    /// about 200 MiB, whatever the stream's length (`ARCHITECTURE.md` has the formula).
    pub fn run(
        &self,
        context: &Context,
        repository: &Repository,
        source: CheckedStream,
        journal: Journal,
    ) -> Result<Stored> {
        let id = journal.id.clone();
        let earlier = Arc::new(self.confirm(context, repository, &journal)?);
        let journal = Arc::new(Mutex::new(journal));
        // Two heaps, since buffers keep their length: those of the stream are always full.
        let (buffers, sealed_buffers) = (Buffers::default(), Buffers::default());
        let workers = std::thread::available_parallelism().map_or(1, usize::from);

        let segments = Segments::new(source, self.segment_size, buffers.clone());
        let sealed = self.seal_on(workers, segments, repository, &earlier, [&buffers, &sealed_buffers]);
        let mut stored = self.store_on(repository, sealed, &id, &earlier, &journal, &sealed_buffers);

        let mut rows = Vec::new();
        for row in stored.by_ref() {
            let row = row?;
            self.counters.add_segment(row.bytes(), row.stored_bytes());
            rows.push(row);
            if rows.len() > MAX_ROWS {
                return Err(Problem::new(Exit::Failed, format!("the stream needs more than {MAX_ROWS} segments"))
                    .hint("give a larger --segment-size, such as 256MiB; that starts over")
                    .into());
            }
        }
        let (bytes, blake3, read) = stored.into_input().into_input().into_parts();
        if rows.is_empty() {
            return Err(Problem::new(Exit::Failed, "nothing came: the stream is empty")
                .hint("an empty stream is no backup; look at the command that makes it")
                .into());
        }
        self.remove_surplus(context, repository, &id, &earlier.objects, rows.len() as u64);
        Ok(Stored { rows, bytes, blake3: Hash(blake3), read, journal })
    }

    /// Removes what an earlier run of a longer stream stored behind the last segment of this one.
    fn remove_surplus(
        &self,
        context: &Context,
        repository: &Repository,
        id: &BackupId,
        objects: &HashSet<String>,
        count: u64,
    ) {
        let used: HashSet<String> =
            (0..count).map(|number| names::segment(id, number, self.codec.extension())).collect();
        for name in objects.difference(&used) {
            if let Err(error) = repository.store.delete(name) {
                context.warn(&format!("{name}, left by an interrupted run, could not be removed: {error}"));
            }
        }
    }

    /// Asks the repository which of the journal's segments are there.
    fn confirm(&self, context: &Context, repository: &Repository, journal: &Journal) -> Result<Earlier> {
        let listed =
            repository.store.list(&names::segments(&journal.id)).map_err(|error| repository.store_problem(error))?;
        let sizes: HashMap<&str, u64> = listed.iter().map(|object| (object.name.as_str(), object.size)).collect();
        let is_there = |number: u64, row: &SegmentRow| {
            let name = names::segment(&journal.id, number, self.codec.extension());
            sizes.get(name.as_str()) == Some(&row.stored_bytes())
        };
        let rows: HashMap<u64, SegmentRow> = journal
            .stored
            .iter()
            .filter(|(number, row)| is_there(**number, row))
            .map(|(number, row)| (*number, *row))
            .collect();
        if !journal.stored.is_empty() {
            context.note(&format!("{} segments are stored already", rows.len()));
        }
        Ok(Earlier { rows, objects: listed.into_iter().map(|object| object.name).collect() })
    }

    fn seal_on<I>(
        &self,
        workers: usize,
        segments: I,
        repository: &Repository,
        earlier: &Arc<Earlier>,
        buffers: [&Buffers; 2],
    ) -> crate::pipeline::ordered::OrderedMap<I, Result<Packed>>
    where
        I: Iterator<Item = std::io::Result<Segment>> + Send + 'static,
    {
        let (codec, recipient, verify) = (self.codec, repository.recipient.clone(), self.verify);
        let (earlier, [buffers, sealed_buffers]) = (Arc::clone(earlier), buffers.map(Clone::clone));
        let sealer = move || Sealer::new(codec, recipient.clone(), verify).map_err(|error| error.to_string());
        ordered_map(workers, segments, sealer, move |sealer, segment| {
            let Segment { number, plain } = segment?;
            let known = earlier.rows.get(&number).filter(|row| matches(row, &plain, Hash::of(&plain)));
            let (row, sealed) = match known {
                Some(row) => (*row, None),
                None => {
                    let sealer = sealer.as_mut().map_err(|error| anyhow!("{error}"))?;
                    let mut sealed = sealed_buffers.take();
                    (sealer.seal(&plain, &mut sealed).with_context(|| format!("segment {number}"))?, Some(sealed))
                }
            };
            buffers.give(plain);
            Ok(Packed { number, row, sealed })
        })
    }

    fn store_on<I>(
        &self,
        repository: &Repository,
        sealed: I,
        id: &BackupId,
        earlier: &Arc<Earlier>,
        journal: &Arc<Mutex<Journal>>,
        buffers: &Buffers,
    ) -> crate::pipeline::ordered::OrderedMap<I, Result<SegmentRow>>
    where
        I: Iterator<Item = Result<Packed>> + Send + 'static,
    {
        let (store, location) = (Arc::clone(&repository.store), repository.location.clone());
        let (earlier, journal, buffers) = (Arc::clone(earlier), Arc::clone(journal), buffers.clone());
        let (id, extension) = (id.clone(), self.codec.extension());
        ordered_map(
            repository.connections,
            sealed,
            || (),
            move |(), packed| {
                let Packed { number, row, sealed } = packed?;
                let Some(sealed) = sealed else { return Ok(row) };
                let journal = || journal.lock().unwrap_or_else(PoisonError::into_inner);
                let name = names::segment(&id, number, extension);
                let problem = |error| crate::commands::repository::store_problem(error, &location);
                if earlier.objects.contains(&name) {
                    // An earlier run stored something else here. Its row goes first: a row must never outlive the
                    // object that it describes.
                    journal().forget(number)?;
                    match store.delete(&name) {
                        Err(error) if error.kind != StoreErrorKind::NotFound => return Err(problem(error)),
                        _ => {}
                    }
                }
                store.put(&name, &sealed).map_err(problem)?;
                journal().record(number, &row)?;
                buffers.give(sealed);
                Ok(row)
            },
        )
    }
}

/// Stores a small object that an interrupted run of this same backup may have left.
pub fn put_anew(repository: &Repository, name: &str, bytes: &[u8]) -> Result<()> {
    match repository.store.delete(name) {
        Err(error) if error.kind != StoreErrorKind::NotFound => return Err(repository.store_problem(error)),
        _ => {}
    }
    repository.store.put(name, bytes).map_err(|error| repository.store_problem(error))
}

/// Removes what an abandoned run stored: the signature, if it came that far, and its segments. Its manifest was
/// never written.
pub fn remove_leftovers(repository: &Repository, id: &BackupId) -> Result<()> {
    match repository.store.delete(&names::signature(id)) {
        Err(error) if error.kind != StoreErrorKind::NotFound => return Err(repository.store_problem(error)),
        _ => {}
    }
    let listed = repository.store.list(&names::segments(id)).map_err(|error| repository.store_problem(error))?;
    let store = Arc::clone(&repository.store);
    let mut removed =
        ordered_map(repository.connections, listed.into_iter(), || (), move |(), object| store.delete(&object.name));
    removed.try_for_each(|result| result.map_err(|error| repository.store_problem(error)))
}
