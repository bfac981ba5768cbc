//! The simulator of lazily loaded disks does what the tests of `warm` take for granted.
//!
//! How long something takes is only ever compared with the least that it may take.

mod support {
    pub mod lazy_volume;
}

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::io::Errno;
use support::lazy_volume::{LARGEST_READ, LazyVolumes, Settings, content_byte, is_mounted};

const BLOCK: usize = 4096;
const KIB: u64 = 1024;
const CHUNK: u64 = 512 * KIB;

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).custom_flags(OFlags::DIRECT.bits() as i32).open(path).unwrap()
}

/// One read into a buffer that direct reads accept: its beginning is a multiple of the block size.
fn read_aligned(file: &File, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; length + BLOCK];
    let begin = buffer.as_ptr().align_offset(BLOCK);
    let came = file.read_at(&mut buffer[begin..begin + length], offset)?;
    Ok(buffer[begin..begin + came].to_vec())
}

/// One direct read of a block: how much came, and its first byte.
fn read(file: &File, offset: u64) -> io::Result<(usize, u8)> {
    read_aligned(file, offset, BLOCK).map(|bytes| (bytes.len(), bytes.first().copied().unwrap_or(0)))
}

fn timed(file: &File, offset: u64) -> Duration {
    let begin = Instant::now();
    assert_eq!(read(file, offset).unwrap().0, BLOCK);
    begin.elapsed()
}

fn error(file: &File, chunk: u64) -> Option<i32> {
    read(file, chunk * CHUNK).err().and_then(|error| error.raw_os_error())
}

fn one(settings: Settings) -> Option<(LazyVolumes, File)> {
    let volumes = LazyVolumes::mount(vec![settings])?;
    let file = open(volumes.path(0));
    Some((volumes, file))
}

#[test]
fn the_first_read_of_a_chunk_is_slow_and_counted_like_every_other() {
    let cold = Duration::from_millis(60);
    let Some((volumes, file)) = one(Settings { cold_latency: cold, ..Settings::default() }) else { return };
    assert_eq!((volumes.chunks(0), volumes.existing(0), volumes.cold_left(0)), (128, 128, 128));
    assert!(timed(&file, 3 * CHUNK) >= cold);
    // Fast is what at least one of several is.
    assert!((0..10).any(|n| timed(&file, 3 * CHUNK + n * 4096) < cold));
    assert_eq!(read(&file, 127 * CHUNK).unwrap(), (BLOCK, content_byte(127)));
    let touches = volumes.touches(0);
    assert!((2..=11).contains(&touches[3]));
    assert_eq!(touches[127], 1);
    assert_eq!(touches.iter().filter(|touches| **touches == 0).count(), 126);
    assert_eq!(volumes.cold_left(0), 126);
    assert_eq!(volumes.reads(0), u64::from(touches[3]) + 1);
    assert_eq!(volumes.bytes(0), volumes.reads(0) * BLOCK as u64);

    volumes.reset(0);
    assert_eq!((volumes.cold_left(0), volumes.reads(0), volumes.bytes(0), volumes.max_in_flight(0)), (128, 0, 0, 0));
    assert!(volumes.touches(0).iter().all(|touches| *touches == 0));
    assert!(timed(&file, 3 * CHUNK) >= cold);
}

/// Touches all chunks, 64 at once.
fn touch_all(path: &Path) {
    thread::scope(|scope| {
        for first in 0..64 {
            scope.spawn(move || {
                let file = open(path);
                for chunk in [first, first + 64] {
                    read(&file, chunk * CHUNK).unwrap();
                }
            });
        }
    });
}

#[test]
fn reads_run_at_once_and_fetches_as_many_as_set() {
    // They hang, so that the first is not through before the last has begun.
    let all_at_once = Settings { hang: (0..64).collect(), ..Settings::default() };
    let four = Settings { par: 4, ..Settings::default() };
    let Some(volumes) = LazyVolumes::mount(vec![all_at_once, four]) else { return };
    thread::scope(|scope| {
        let toucher = scope.spawn(|| touch_all(volumes.path(0)));
        let deadline = Instant::now() + Duration::from_secs(20);
        while volumes.held(0) < 64 && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        let held = volumes.held(0);
        volumes.release(0);
        toucher.join().unwrap();
        assert_eq!(held, 64);
    });
    assert_eq!(volumes.max_in_flight(0), 64);
    assert_eq!((volumes.cold_left(0), volumes.errors(0)), (0, 0));
    assert!(volumes.touches(0).iter().all(|touches| *touches == 1));

    let begin = Instant::now();
    touch_all(volumes.path(1));
    assert_eq!(volumes.ideal(1), Duration::from_millis(128 * 5 / 4));
    assert!(begin.elapsed() >= volumes.ideal(1));
    assert!(volumes.statistics(1).took >= volumes.ideal(1));
}

#[test]
fn the_limits_of_the_disk_hold() {
    let rate = Settings { rate: Some(1000.0), ..Settings::default() };
    let iops = Settings { iops: Some(1000.0), fill: 0.0, ..Settings::default() };
    let mibps = Settings { mibps: Some(5.0), fill: 0.0, ..Settings::default() };
    let Some(volumes) = LazyVolumes::mount(vec![rate, iops, mibps]) else { return };
    for n in 0..volumes.count() {
        let begin = Instant::now();
        touch_all(volumes.path(n));
        // The first fetch of a line doesn't wait for its turn.
        assert!(begin.elapsed() >= volumes.ideal(n).mul_f64(0.99), "volume {n}");
        assert!(volumes.ideal(n) >= Duration::from_millis(100), "volume {n}");
    }
}

#[test]
fn a_large_read_is_cut_as_by_the_disk() {
    let Some((volumes, file)) = one(Settings::default()) else { return };
    let buffer = read_aligned(&file, 4 * CHUNK, 2 * CHUNK as usize).unwrap();
    assert_eq!(buffer.len() as u64, 2 * CHUNK);
    let (left, right) = buffer.split_at(CHUNK as usize);
    assert!(left.iter().all(|byte| *byte == content_byte(4)) && right.iter().all(|byte| *byte == content_byte(5)));
    assert_eq!((volumes.bytes(0), volumes.cold_left(0)), (2 * CHUNK, 126));
    assert_eq!(volumes.reads(0), 2 * CHUNK / u64::from(LARGEST_READ));
    assert_eq!(volumes.touches(0)[3..7], [0, 2, 2, 0]);
}

#[test]
fn holes_are_never_fetched() {
    let cold = Duration::from_secs(3600);
    let settings = Settings { cold_latency: cold, fill: 0.5, ..Settings::default() };
    let Some((volumes, file)) = one(settings.clone()) else { return };
    let holes: Vec<u64> = (0..128).filter(|chunk| !volumes.exists(0, *chunk)).collect();
    assert!(!holes.is_empty() && holes.len() < 128);
    assert_eq!(volumes.existing(0), 128 - holes.len() as u64);
    for hole in &holes {
        assert_eq!(read(&file, hole * CHUNK).unwrap(), (BLOCK, 0));
    }
    assert_eq!(volumes.cold_left(0), volumes.existing(0));
    // The same seed, the same holes.
    let again = LazyVolumes::mount(vec![settings]).unwrap();
    assert!((0..128).all(|chunk| again.exists(0, chunk) == volumes.exists(0, chunk)));
}

#[test]
fn errors_come_as_set() {
    let settings =
        Settings { bad: vec![3], flaky: [(5, 2)].into(), short: vec![7], gone_after: Some(8), ..Settings::default() };
    let Some((volumes, file)) = one(settings) else { return };
    let (io_error, gone) = (Some(Errno::IO.raw_os_error()), Some(Errno::NODEV.raw_os_error()));
    assert_eq!([error(&file, 3), error(&file, 3)], [io_error; 2]);
    assert_eq!([error(&file, 5), error(&file, 5), error(&file, 5)], [io_error, io_error, None]);
    assert_eq!(read(&file, 7 * CHUNK).unwrap(), (512, content_byte(7)));
    assert_eq!(read(&file, 7 * CHUNK).unwrap(), (BLOCK, content_byte(7)));
    assert_eq!([error(&file, 9), error(&file, 9), error(&file, 5)], [None, gone, gone]);
    assert_eq!((volumes.errors(0), volumes.cold_left(0)), (6, 125));
    volumes.reset(0);
    assert_eq!([error(&file, 5), error(&file, 9)], [io_error, None]);
}

#[test]
fn a_chunk_that_hangs_is_let_go_by_release_and_by_the_end() {
    let Some((volumes, file)) = one(Settings { hang: vec![1], ..Settings::default() }) else { return };
    let hangs = |volumes: &LazyVolumes, file: File| {
        let reader = thread::spawn(move || error(&file, 1));
        let deadline = Instant::now() + Duration::from_secs(20);
        while volumes.held(0) == 0 && !reader.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(volumes.held(0), 1);
        reader
    };
    let reader = hangs(&volumes, file.try_clone().unwrap());
    assert_eq!((error(&file, 2), volumes.cold_left(0)), (None, 127));
    volumes.release(0);
    assert_eq!(reader.join().unwrap(), None);
    assert_eq!((error(&file, 1), volumes.cold_left(0)), (None, 126));
    volumes.reset(0);
    let reader = hangs(&volumes, file);
    drop(volumes);
    assert_eq!(reader.join().unwrap(), Some(Errno::IO.raw_os_error()));
}

#[test]
fn an_image_is_served_with_its_holes() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let file = File::create(&image).unwrap();
    // Above what 32 bits can say, and the last chunk is not whole.
    let size = 9 * 1024 * 1024 * KIB + 5 * KIB;
    file.set_len(size).unwrap();
    file.write_all_at(&[7; BLOCK], 4 * CHUNK + 64 * KIB).unwrap();
    file.write_all_at(&[9; 5 * 1024], size - 5 * KIB).unwrap();
    let Some((volumes, file)) = one(Settings { backing: Some(image), ..Settings::default() }) else { return };
    assert_eq!(file.metadata().unwrap().len(), size);
    assert_eq!((volumes.chunks(0), volumes.existing(0)), (size.div_ceil(CHUNK), 2));
    assert!(volumes.exists(0, 4) && volumes.exists(0, size / CHUNK));
    assert_eq!(read(&file, 4 * CHUNK + 64 * KIB).unwrap(), (BLOCK, 7));
    assert_eq!(read(&file, size - 5 * KIB).unwrap(), (BLOCK, 9));
    assert_eq!(read(&file, size - KIB).unwrap(), (1024, 9));
    assert_eq!((read(&file, size).unwrap().0, volumes.cold_left(0)), (0, 0));
}

#[test]
fn sixteen_tebibytes_of_holes_answer_at_their_end() {
    let size = 16 << 40;
    let Some((volumes, file)) = one(Settings { size, fill: 0.0, ..Settings::default() }) else { return };
    assert_eq!(file.metadata().unwrap().len(), size);
    assert_eq!(read(&file, size - BLOCK as u64).unwrap(), (BLOCK, 0));
    assert_eq!(read(&file, size).unwrap().0, 0);
    let statistics = volumes.statistics(0);
    assert_eq!((statistics.chunks, statistics.existing, statistics.reads), (size / CHUNK, 0, 1));
    assert_eq!(volumes.touches(0)[(size / CHUNK) as usize - 1], 1);
}

#[test]
fn nothing_is_left_mounted() {
    let Some(volumes) = LazyVolumes::mount(vec![Settings::default(); 3]) else { return };
    let paths: Vec<PathBuf> = (0..3).map(|n| volumes.path(n).to_owned()).collect();
    let folder = volumes.folder().to_owned();
    assert!(paths.iter().all(|path| is_mounted(path)));
    // Somebody still has a file open for a while.
    let file = open(&paths[1]);
    let slow = thread::spawn(move || {
        thread::sleep(Duration::from_millis(300));
        drop(file);
    });
    drop(volumes);
    slow.join().unwrap();
    assert!(!paths.iter().any(|path| is_mounted(path)));
    assert!(!folder.exists());
}
