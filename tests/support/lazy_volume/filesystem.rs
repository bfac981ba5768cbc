//! A file system that is one file, mounted on a file, and how it is mounted and unmounted.
//!
//! One mount for each volume, and not one for all: the queue of the kernel, which `max_background` limits, belongs to
//! the mount, as that of a disk to the disk.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, UNIX_EPOCH};

use fuser::{
    BackgroundSession, Config, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, INodeNo, InitFlags,
    KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyOpen, Request,
};
use rustix::process::{getgid, getuid};

use super::settings::LARGEST_READ;
use super::volume::Volume;

/// For how long a mount that is busy is asked to go.
const PATIENCE: Duration = Duration::from_secs(8);

struct OneFile(Arc<Volume>);

impl OneFile {
    fn attributes(&self) -> FileAttr {
        FileAttr {
            ino: INodeNo::ROOT,
            size: self.0.size,
            blocks: self.0.size.div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: FileType::RegularFile,
            perm: 0o444,
            nlink: 1,
            uid: getuid().as_raw(),
            gid: getgid().as_raw(),
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Filesystem for OneFile {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Without it the kernel sends asynchronous direct reads one by one.
        if config.add_capabilities(InitFlags::FUSE_ASYNC_DIO).is_err() {
            return Err(io::Error::other("the kernel's FUSE has no asynchronous direct reads"));
        }
        // Its default, 12, would be the limit of everything. The values fit: they are checked before.
        let limit = self.0.settings.max_background;
        let _ = config.set_max_background(limit);
        let _ = config.set_congestion_threshold(limit);
        let _ = config.set_max_write(LARGEST_READ);
        Ok(())
    }

    fn getattr(&self, _request: &Request, _ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        // Nothing is cached: the kernel shall ask.
        reply.attr(&Duration::ZERO, &self.attributes());
    }

    fn open(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        // No page cache and no read-ahead, even for a reader without O_DIRECT.
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.0.submit(offset, size, reply);
    }
}

/// Makes the file and mounts the volume on it. An error is FUSE's: without a file there is nothing to skip for.
pub fn mount(volume: &Arc<Volume>, path: &Path) -> io::Result<BackgroundSession> {
    fs::write(path, "").unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut config = Config::default();
    let name = MountOption::FSName("lazy_volume".to_owned());
    config.mount_options = vec![name, MountOption::RO, MountOption::NoAtime];
    fuser::spawn_mount(OneFile(volume.clone()), path, &config).inspect_err(|_| drop(fs::remove_file(path)))
}

/// Unmounts, and removes the file. A process that used `io_uring` lets go of its files only some time after its end,
/// so that the mount is often busy at first.
pub fn unmount(session: BackgroundSession, path: &Path) {
    let deadline = Instant::now() + PATIENCE;
    while !try_unmount(path, false) && is_mounted(path) {
        if Instant::now() > deadline {
            eprintln!("{} is still in use: unmounting it all the same", path.display());
            try_unmount(path, true);
            break;
        }
        thread::sleep(Duration::from_millis(50));
    }
    // Fails, and does not wait for its threads, if somebody has a file open still.
    let _ = session.umount_and_join();
    let _ = fs::remove_file(path);
}

/// By `fusermount3`, which may do it for anybody, or where that is missing by `umount`, which wants root.
fn try_unmount(path: &Path, lazily: bool) -> bool {
    let run = |program: &str, options: &[&str]| {
        Command::new(program).args(options).arg(path).stdin(Stdio::null()).stderr(Stdio::null()).status()
    };
    let status = match run("fusermount3", if lazily { &["-uz"] } else { &["-u"] }) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => run("umount", if lazily { &["-l"] } else { &[] }),
        other => other,
    };
    status.is_ok_and(|status| status.success())
}

/// Whether the kernel lists a mount at this path, which must not contain blanks.
pub fn is_mounted(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(4).is_some_and(|at| Path::new(at) == path))
}
