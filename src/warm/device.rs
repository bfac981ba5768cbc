//! A volume, opened for reading only. There is no code here that could write to one.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;
use thiserror::Error;

use super::engine::{MAX_READ, aligned};
use super::target::Volume;

/// The smallest read (bytes): below it nothing gets faster, and no sector is larger on most devices.
const READ_MIN: u32 = 4096;
/// What direct reads of a file are aligned to, where nothing else is known (bytes).
const SECTOR: u32 = 512;

/// An open volume.
#[derive(Debug)]
pub struct Device {
    /// Open for direct reads.
    pub file: File,
    /// Bytes.
    pub size: u64,
    /// Its logical block (bytes): reads begin and end at multiples of it.
    pub sector: u32,
    /// Bytes of a read.
    pub read_size: u32,
    /// How many requests it queues.
    pub queue: Option<u32>,
    /// When the kernel gives up on a request.
    pub io_timeout: Option<Duration>,
}

/// A volume that can't be read.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// It can't be opened or looked at.
    #[error("{path}: {error}", path = path.display())]
    Io {
        /// What was opened.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// It was opened, and can't be used.
    #[error("{path}: {what}", path = path.display())]
    Unfit {
        /// What was opened.
        path: PathBuf,
        /// Why not.
        what: String,
    },
}

impl Device {
    /// Opens a volume. `sysfs`: where the kernel tells about devices.
    pub fn open(volume: &Volume, sysfs: &Path) -> Result<Self, DeviceError> {
        let path = &volume.node;
        let failed = |error| DeviceError::Io { path: path.clone(), error };
        let unfit = |what: &str| DeviceError::Unfit { path: path.clone(), what: what.into() };
        let flags = (OFlags::DIRECT | OFlags::NOCTTY).bits() as i32;
        let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(|error| {
            match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
                Some(rustix::io::Errno::INVAL) => {
                    unfit("direct reads (O_DIRECT) are not possible here, and others would be of no use")
                }
                _ => failed(error),
            }
        })?;
        let meta = file.metadata().map_err(failed)?;
        let kind = meta.file_type();
        if !kind.is_block_device() && !kind.is_file() {
            return Err(unfit("this is neither a block device nor a file"));
        }
        if kind.is_block_device() && number_in(sysfs, volume).is_some_and(|number| number != meta.rdev()) {
            return Err(unfit("behind this node is another device than the one that was looked for"));
        }
        let size = file.seek(SeekFrom::End(0)).map_err(failed)?;
        if size == 0 {
            return Err(unfit("it has no bytes"));
        }
        let queue = |name: &str| -> Option<u64> {
            let file = sysfs.join("block").join(volume.name.as_ref()?).join("queue").join(name);
            std::fs::read_to_string(file).ok()?.trim().parse().ok()
        };
        let of_kernel = rustix::fs::ioctl_blksszget(&file).ok().filter(|_| kind.is_block_device());
        let sector = queue("logical_block_size").map(|size| size as u32).or(of_kernel).unwrap_or(SECTOR);
        if !sector.is_power_of_two() || !(SECTOR..=MAX_READ as u32 / 2).contains(&sector) {
            return Err(unfit(&format!("sectors of {sector} bytes are unknown")));
        }
        let device = Self {
            size,
            sector,
            read_size: sector.max(READ_MIN),
            queue: queue("nr_requests").and_then(|queue| u32::try_from(queue).ok()),
            io_timeout: queue("io_timeout").map(Duration::from_millis),
            file,
        };
        device.try_a_read().map_err(|error| DeviceError::Unfit {
            path: path.clone(),
            what: format!("direct reads (O_DIRECT) are not possible here: {error}"),
        })?;
        Ok(device)
    }

    /// Some file systems take the flag and refuse every read. Any other error is the plan's to meet, block by block.
    fn try_a_read(&self) -> io::Result<()> {
        // Beyond the end: nothing is touched.
        let mut buffer = vec![0u8; 2 * MAX_READ];
        let into = aligned(&mut buffer, MAX_READ, self.read_size as usize);
        let end = self.size.next_multiple_of(u64::from(self.sector));
        match self.file.read_at(into, end) {
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => Err(error),
            _ => Ok(()),
        }
    }
}

/// The device number by which the kernel knows the volume: names of nodes move, and in containers they can be anything.
fn number_in(sysfs: &Path, volume: &Volume) -> Option<u64> {
    let text = std::fs::read_to_string(sysfs.join("block").join(volume.name.as_ref()?).join("dev")).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}
