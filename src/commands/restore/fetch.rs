//! Fetches ahead, several objects at once, and opens them on all cores, in order and across streams.

use std::sync::Arc;

use age::x25519;
use anyhow::Result;

use super::damaged;
use super::plan::Stream;
use crate::commands::repository::{Repository, store_problem};
use crate::format::names;
use crate::pipeline::buffers::Buffers;
use crate::pipeline::ordered::ordered_map;
use crate::pipeline::seal::Opener;
use crate::store::StoreErrorKind;

/// A segment that is authentic.
pub struct Opened {
    /// Which of the streams it belongs to.
    pub stream: usize,
    /// Its bytes.
    pub plain: Vec<u8>,
    /// Bytes of its object.
    pub stored: u64,
}

/// Segments in order, and where their buffers go back to.
pub struct OpenedSegments {
    /// In the order of streams and segments; ends after the first error.
    pub segments: Box<dyn Iterator<Item = Result<Opened>>>,
    /// For buffers that were written out.
    pub buffers: Buffers,
}

/// All segments of `streams`.
pub fn opened_segments(
    repository: &Repository,
    identity: &x25519::Identity,
    streams: &[Arc<Stream>],
) -> OpenedSegments {
    let buffers = Buffers::default();
    let places: Vec<(usize, Arc<Stream>)> = streams.iter().cloned().enumerate().collect();
    let wanted = places.into_iter().flat_map(|(place, stream)| {
        let count = stream.manifest.segments.len();
        (0..count).map(move |number| (place, Arc::clone(&stream), number))
    });
    let sealed_buffers = Buffers::default();
    let (store, location) = (Arc::clone(&repository.store), repository.location.clone());
    let fetch_pool = sealed_buffers.clone();
    let fetched = ordered_map(
        repository.connections,
        wanted,
        || (),
        move |(), (place, stream, number)| {
            let (row, name) = (
                stream.manifest.segments[number],
                names::segment(&stream.manifest.id, number as u64, stream.extension),
            );
            let mut sealed = fetch_pool.take();
            let got = store.get_into(&name, row.stored_bytes(), &mut sealed).map_err(|error| match error.kind {
                StoreErrorKind::NotFound | StoreErrorKind::TooLarge => anyhow::anyhow!("{location}: {error}"),
                _ => store_problem(error, &location),
            });
            got.map(|()| (place, stream, row, name, sealed))
        },
    );
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let (identity, place_of, pool) = (identity.clone(), repository.location.clone(), buffers.clone());
    let opened = ordered_map(
        workers,
        fetched,
        || None::<(usize, Opener)>,
        move |opener, fetched| {
            let (place, stream, row, name, mut sealed) = fetched?;
            // Streams of one chain may have been compressed differently.
            if opener.as_ref().is_none_or(|(of, _)| *of != place) {
                *opener = Some((place, Opener::new(&stream.manifest.codec, identity.clone())?));
            }
            let Some((_, opener)) = opener else { anyhow::bail!("no decompressor") };
            let mut plain = pool.take();
            opener
                .open(&row, &mut sealed, &mut plain)
                .map_err(|error| damaged(&place_of, &name, &error.to_string()))?;
            sealed_buffers.give(sealed);
            Ok(Opened { stream: place, plain, stored: row.stored_bytes() })
        },
    );
    OpenedSegments { segments: Box::new(opened), buffers }
}
