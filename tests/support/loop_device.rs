//! Block devices over files, and file systems on them, for as long as a test needs them.

// Not every test file uses everything.
#![allow(dead_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

/// Dropping it detaches it.
pub struct LoopDevice {
    path: PathBuf,
}

impl LoopDevice {
    /// Read-only and with direct reads, with more `options` of losetup. `None`, with a loud word, where there are no
    /// loop devices.
    pub fn over(file: &Path, options: &[&str]) -> Option<Self> {
        let mut command = Command::new("losetup");
        command.args(["--find", "--show", "--read-only", "--direct-io=on"]).args(options).arg(file);
        let path = match command.stdin(Stdio::null()).output() {
            Err(error) => Err(error.to_string()),
            Ok(output) if !output.status.success() => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Ok(output) => Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())),
        };
        match path {
            Ok(path) => Some(Self { path }),
            Err(why) => {
                eprintln!("SKIPPED: a loop device can't be had here: {why}");
                None
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Such as `loop0`.
    pub fn name(&self) -> &str {
        self.path.file_name().unwrap().to_str().unwrap()
    }

    /// What the kernel tells of it.
    pub fn sysfs(&self) -> PathBuf {
        Path::new("/sys/block").join(self.name())
    }

    /// The node of a partition, with its beginning and length (bytes). Where the kernel doesn't read the partition table
    /// it is told, and the node is made in `folder` if nobody else makes it. `None`, with a loud word, where it can have
    /// no partitions.
    pub fn partition(&self, number: u32, place: (u64, u64), folder: &Path) -> Option<PathBuf> {
        let name = format!("{}p{number}", self.name());
        let device = self.sysfs().join(&name).join("dev");
        if !device.exists() {
            let words = [number.into(), place.0 / 512, place.1 / 512].map(|word| word.to_string());
            run("addpart", &[&self.path, words[0].as_ref(), words[1].as_ref(), words[2].as_ref()]);
        }
        let Ok(device) = fs::read_to_string(device) else {
            eprintln!("SKIPPED: {} can have no partitions here", self.path.display());
            return None;
        };
        let node = Path::new("/dev").join(&name);
        if node.exists() {
            return Some(node);
        }
        make_node(&folder.join(name), device.trim())
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        run("losetup", &["--detach".as_ref(), &self.path]);
    }
}

/// A node of the block device with this number, such as `7:0`. `None`, with a loud word, where that is not allowed.
pub fn make_node(path: &Path, number: &str) -> Option<PathBuf> {
    let (major, minor) = number.split_once(':').unwrap();
    let device = makedev(major.parse().unwrap(), minor.parse().unwrap());
    if let Err(error) = mknodat(CWD, path, FileType::BlockDevice, Mode::RUSR, device) {
        eprintln!("SKIPPED: a device node can't be made here: {error}");
        return None;
    }
    Some(path.to_owned())
}

/// Dropping it unmounts it.
pub struct Mounted {
    point: PathBuf,
}

impl Mounted {
    /// Read-only. `None`, with a loud word, where mounts are not possible.
    pub fn ext4(device: &Path, point: PathBuf) -> Option<Self> {
        fs::create_dir(&point).unwrap();
        let options = ["-t".as_ref(), "ext4".as_ref(), "-o".as_ref(), "ro,noload".as_ref(), device, point.as_path()];
        if !run("mount", &options) {
            eprintln!("SKIPPED: {} can't be mounted here", device.display());
            return None;
        }
        Some(Self { point: fs::canonicalize(point).unwrap() })
    }

    pub fn point(&self) -> &Path {
        &self.point
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        for _ in 0..100 {
            if run("umount", &[&self.point]) {
                return;
            }
            thread::sleep(Duration::from_millis(50));
        }
        run("umount", &["-l".as_ref(), &self.point]);
    }
}

fn run(program: &str, arguments: &[&Path]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
