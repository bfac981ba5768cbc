//! Disks that are loaded lazily from far away, like EBS volumes made from snapshots: the first read of a chunk is
//! slow, every further one is fast, and what was never written needs no fetch at all.
//!
//! A FUSE file system in the process of the test; what is tested must run as a process of its own, so that it dies
//! before the file system it reads does. The volumes are plain files to it: direct reads, `io_uring`, `libaio` and
//! loop devices over them all work, with more than 1,000 reads at once.

// Not every test file uses everything.
#![allow(dead_code)]

mod chunks;
mod faults;
mod filesystem;
mod pace;
mod schedule;
mod settings;
mod volume;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fuser::BackgroundSession;
use tempfile::TempDir;

use chunks::HOLE;
use schedule::Schedule;
use volume::Volume;

#[allow(unused_imports)]
pub use filesystem::is_mounted;
#[allow(unused_imports)]
pub use settings::{LARGEST_READ, Settings, TOUCH_BYTES};
#[allow(unused_imports)]
pub use volume::content_byte;

/// Volumes that are mounted: files `vol0`, `vol1`, … in one folder. Dropping it unmounts them and removes the folder.
pub struct LazyVolumes {
    volumes: Vec<Mounted>,
    folder: PathBuf,
    own_folder: Option<TempDir>,
}

struct Mounted {
    volume: Arc<Volume>,
    path: PathBuf,
    scheduler: Option<JoinHandle<()>>,
    session: Option<BackgroundSession>,
}

/// What a volume has seen since it was mounted or reset.
#[derive(Clone, Debug)]
pub struct Statistics {
    /// All, holes too.
    pub chunks: u64,
    /// All but the holes.
    pub existing: u64,
    /// Those that exist and are not here yet; bad ones never are.
    pub cold_left: u64,
    /// Requests of the kernel: a read larger than [`LARGEST_READ`] is several.
    pub reads: u64,
    /// Those that they asked for.
    pub bytes: u64,
    /// Requests at the chunk that had the most.
    pub max_touches: u32,
    /// Most requests at once.
    pub max_in_flight: usize,
    /// Requests that failed.
    pub errors: u64,
    /// From the first request to the last answer.
    pub took: Duration,
    /// See [`Settings::ideal`].
    pub ideal: Duration,
}

impl LazyVolumes {
    /// Mounts volumes in a folder of their own. `None`, with a loud word, where FUSE can't be used.
    pub fn mount(settings: Vec<Settings>) -> Option<Self> {
        let own_folder = tempfile::Builder::new().prefix("lazy-volume-").tempdir().unwrap();
        // As the kernel lists it.
        let folder = fs::canonicalize(own_folder.path()).unwrap();
        Self::mount_in(folder, Some(own_folder), settings)
    }

    /// The same in this folder, which is made if it is missing.
    pub fn mount_at(folder: &Path, settings: Vec<Settings>) -> Option<Self> {
        fs::create_dir_all(folder).unwrap();
        Self::mount_in(fs::canonicalize(folder).unwrap(), None, settings)
    }

    fn mount_in(folder: PathBuf, own_folder: Option<TempDir>, settings: Vec<Settings>) -> Option<Self> {
        if let Err(error) = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") {
            eprintln!("SKIPPED: a lazily loaded volume needs /dev/fuse: {error}");
            return None;
        }
        let mut volumes = Self { volumes: Vec::new(), folder, own_folder };
        for settings in settings {
            if let Err(error) = volumes.add(settings) {
                eprintln!("SKIPPED: a lazily loaded volume needs FUSE mounts: {error}");
                return None;
            }
        }
        Some(volumes)
    }

    fn add(&mut self, settings: Settings) -> io::Result<()> {
        let number = self.volumes.len();
        let path = self.folder.join(format!("vol{number}"));
        let volume = Arc::new(Volume::new(settings, number as u64));
        let session = filesystem::mount(&volume, &path)?;
        let runs = volume.clone();
        let scheduler = thread::Builder::new().name(format!("lazy-{number}")).spawn(move || runs.run())?;
        self.volumes.push(Mounted { volume, path, scheduler: Some(scheduler), session: Some(session) });
        Ok(())
    }

    /// The file that is volume `n`.
    pub fn path(&self, n: usize) -> &Path {
        &self.volumes[n].path
    }

    /// The folder with all of them.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.volumes.len()
    }

    /// Of every chunk: requests that covered it, those that failed too.
    pub fn touches(&self, n: usize) -> Vec<u32> {
        self.look(n, |schedule| schedule.chunks.touches().to_vec())
    }

    /// All chunks, holes too.
    pub fn chunks(&self, n: usize) -> u64 {
        self.look(n, |schedule| schedule.chunks.count())
    }

    /// All but the holes.
    pub fn existing(&self, n: usize) -> u64 {
        self.look(n, |schedule| schedule.chunks.existing())
    }

    /// Whether a chunk is none of the holes.
    pub fn exists(&self, n: usize, chunk: u64) -> bool {
        self.look(n, |schedule| schedule.chunks.state(chunk) != HOLE)
    }

    /// Chunks that exist and were not fetched yet; bad ones never are.
    pub fn cold_left(&self, n: usize) -> u64 {
        self.look(n, |schedule| schedule.chunks.cold_left())
    }

    /// Requests so far: a read larger than [`LARGEST_READ`] is several.
    pub fn reads(&self, n: usize) -> u64 {
        self.look(n, |schedule| schedule.counters.reads)
    }

    /// Bytes that were asked for.
    pub fn bytes(&self, n: usize) -> u64 {
        self.look(n, |schedule| schedule.counters.bytes)
    }

    /// Most requests at once.
    pub fn max_in_flight(&self, n: usize) -> usize {
        self.look(n, |schedule| schedule.counters.max_in_flight)
    }

    /// Requests that failed.
    pub fn errors(&self, n: usize) -> u64 {
        self.look(n, |schedule| schedule.counters.errors)
    }

    /// Requests that hang at this moment.
    pub fn held(&self, n: usize) -> usize {
        self.look(n, |schedule| schedule.held())
    }

    /// See [`Settings::ideal`].
    pub fn ideal(&self, n: usize) -> Duration {
        self.volumes[n].volume.settings.ideal(self.chunks(n), self.existing(n))
    }

    /// All of it at once.
    pub fn statistics(&self, n: usize) -> Statistics {
        let ideal = self.ideal(n);
        self.look(n, |Schedule { chunks, counters, .. }| Statistics {
            chunks: chunks.count(),
            existing: chunks.existing(),
            cold_left: chunks.cold_left(),
            reads: counters.reads,
            bytes: counters.bytes,
            max_touches: chunks.touches().iter().copied().max().unwrap_or(0),
            max_in_flight: counters.max_in_flight,
            errors: counters.errors,
            took: counters.first.zip(counters.last).map_or(Duration::ZERO, |(first, last)| last - first),
            ideal,
        })
    }

    /// Lets go of the reads that hang: they are served from now on, and no other will hang.
    pub fn release(&self, n: usize) {
        self.look(n, |schedule| schedule.release(Instant::now()));
    }

    /// Everything cold, all faults as set and all counters 0 again. Best with no read on its way: such a one is served,
    /// counts among the answers only, and leaves its chunk warm.
    pub fn reset(&self, n: usize) {
        self.look(n, Schedule::reset);
    }

    fn look<T>(&self, n: usize, look: impl FnOnce(&mut Schedule) -> T) -> T {
        self.volumes[n].volume.schedule(look)
    }
}

impl Drop for LazyVolumes {
    fn drop(&mut self) {
        // First of all: a process with a read that is never answered can't even be killed.
        self.volumes.iter().for_each(|mounted| mounted.volume.stop());
        for mounted in &mut self.volumes {
            let _ = mounted.scheduler.take().map(JoinHandle::join);
            let _ = mounted.session.take().map(|session| filesystem::unmount(session, &mounted.path));
        }
    }
}
