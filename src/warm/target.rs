//! From what a person names to the volumes below it: volume ids, devices, partitions, stacks, mount points, files.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Sizes and beginnings in sysfs count these, whatever the device's own sectors are (bytes).
const SYSFS_SECTOR: u64 = 512;
/// Stacks of stacks are not deeper.
const MAX_DEPTH: u32 = 16;

/// Where the kernel tells about devices.
#[derive(Clone, Debug)]
pub struct System {
    /// `/sys`
    pub sysfs: PathBuf,
    /// `/dev`
    pub dev: PathBuf,
    /// `/proc/self/mountinfo`
    pub mounts: PathBuf,
    /// A regular file is a volume itself, and not what names the device that it lies on.
    pub images: bool,
}

impl System {
    /// This machine's; `sysfs` may be somewhere else in tests.
    pub fn new(sysfs: Option<PathBuf>, images: bool) -> Self {
        Self {
            sysfs: sysfs.unwrap_or_else(|| "/sys".into()),
            dev: "/dev".into(),
            mounts: "/proc/self/mountinfo".into(),
            images,
        }
    }
}

/// A volume as a whole, and what of it was named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// What is opened.
    pub node: PathBuf,
    /// The kernel's name, such as `nvme1n1`; `None` for a file.
    pub name: Option<String>,
    /// What it is called wherever it is attached, such as `vol-0123456789abcdef0`.
    pub identity: String,
    /// Parts of it (bytes), such as partitions. None: all of it.
    pub parts: Vec<Range<u64>>,
    /// As the person named it.
    pub named: Vec<String>,
}

/// What can't be resolved.
#[derive(Debug, Error)]
pub enum TargetError {
    /// It is not there.
    #[error("{name}: there is no such device, file or volume")]
    Missing {
        /// As named.
        name: String,
        /// What could be meant.
        hint: Option<String>,
    },
    /// It can't be looked at.
    #[error("{name}: {error}")]
    Io {
        /// As named.
        name: String,
        /// Why.
        error: io::Error,
    },
    /// A folder that nothing is mounted on.
    #[error("{name} is a folder, and nothing is mounted on it")]
    NoMountPoint {
        /// As named.
        name: String,
        /// What it lies on.
        hint: Option<String>,
    },
    /// Neither a device nor anything on one.
    #[error("{name}: {what}")]
    Unfit {
        /// As named.
        name: String,
        /// What it is.
        what: String,
    },
}

/// A device as sysfs knows it, or a file.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Found {
    Device(String),
    File(PathBuf),
}

/// The volumes below all `names`, each once, in the order of their naming.
pub fn resolve(system: &System, names: &[String]) -> Result<Vec<Volume>, TargetError> {
    let mut volumes: Vec<Volume> = Vec::new();
    for name in names {
        let found = match find(system, name)? {
            Found::File(path) => vec![file_volume(name, path)?],
            Found::Device(device) => {
                let mut members = Vec::new();
                members_of(system, name, &device, &mut members, 0)?;
                members
            }
        };
        for volume in found {
            match volumes.iter_mut().find(|known| known.identity == volume.identity && known.node == volume.node) {
                Some(known) => merge(known, volume),
                None => volumes.push(volume),
            }
        }
    }
    Ok(volumes)
}

/// All of it, where either is all of it; else the parts of both.
fn merge(known: &mut Volume, other: Volume) {
    if known.parts.is_empty() || other.parts.is_empty() {
        known.parts.clear();
    } else {
        known.parts.extend(other.parts);
    }
    for name in other.named {
        if !known.named.contains(&name) {
            known.named.push(name);
        }
    }
}

/// The part of a volume that a file system's device is: the volume's name and where the device begins on it (bytes).
/// `None` for a stack, whose bytes lie nobody knows where.
pub fn place_of(system: &System, device: u64) -> Option<(String, u64)> {
    let name = name_of_number(system, device)?;
    if !slaves(system, &name).is_empty() {
        return None;
    }
    match partition(system, &name) {
        Some((disk, part)) => Some((disk, part.start)),
        None => Some((name, 0)),
    }
}

fn find(system: &System, name: &str) -> Result<Found, TargetError> {
    if let Some(id) = volume_id(name) {
        return match attached(system).into_iter().find(|(serial, _)| *serial == id) {
            Some((_, device)) => Ok(Found::Device(device)),
            None => Err(missing(system, name)),
        };
    }
    let path = Path::new(name);
    let meta = match fs::metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(missing(system, name)),
        Err(error) => return Err(TargetError::Io { name: name.into(), error }),
    };
    if meta.file_type().is_block_device() {
        return Ok(Found::Device(name_of_number(system, meta.rdev()).or_else(|| last_part(path)).unwrap_or_default()));
    }
    if meta.is_file() && system.images {
        return Ok(Found::File(path.to_owned()));
    }
    if !meta.is_file() && !meta.is_dir() {
        let what = "this is neither a block device nor a file nor a mount point".to_owned();
        return Err(TargetError::Unfit { name: name.into(), what });
    }
    let mount = Mount::of(system, path);
    if meta.is_dir() && mount.as_ref().is_none_or(|mount| fs::canonicalize(path).ok().as_ref() != Some(&mount.point)) {
        let hint = mount.map(|mount| format!("it lies on {}", mount.point.display()));
        return Err(TargetError::NoMountPoint { name: name.into(), hint });
    }
    let device = mount.as_ref().and_then(|mount| mount.device(system));
    match (device, mount) {
        (Some(device), _) => Ok(Found::Device(device)),
        // A file on a share, in memory, or in a file system of a program: there is no device to ask for.
        (None, _) if meta.is_file() => Ok(Found::File(path.to_owned())),
        (None, mount) => {
            let what = mount.map_or_else(String::new, |mount| mount.source);
            let what = format!("the file system on it ({what}) is on no block device of its own; name its devices");
            Err(TargetError::Unfit { name: name.into(), what })
        }
    }
}

fn missing(system: &System, name: &str) -> TargetError {
    let known: Vec<String> = attached(system).into_iter().map(|(id, device)| format!("{id} ({device})")).collect();
    let hint = (!known.is_empty()).then(|| format!("attached are {}", known.join(", ")));
    TargetError::Missing { name: name.into(), hint }
}

/// `vol-0123456789abcdef0` of that, with the dash or without.
fn volume_id(name: &str) -> Option<String> {
    let digits = name.strip_prefix("vol")?;
    let digits = digits.strip_prefix('-').unwrap_or(digits);
    let right = (8..=17).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit());
    right.then(|| format!("vol-{}", digits.to_ascii_lowercase()))
}

/// EBS volumes that are attached here: their ids and device names. On NVMe the serial number is the id.
fn attached(system: &System) -> Vec<(String, String)> {
    let mut found = BTreeSet::new();
    for device in entries(&system.sysfs.join("block")) {
        if let Some(id) = serial(system, &device).as_deref().and_then(volume_id) {
            found.insert((id, device));
        }
    }
    // The same as udev puts it, for whoever may not look into sysfs.
    for link in entries(&system.dev.join("disk/by-id")) {
        let id = link.strip_prefix("nvme-Amazon_Elastic_Block_Store_").and_then(|rest| {
            let id = rest.split_once('_').map_or(rest, |(id, _)| id);
            (!rest.contains("-part")).then(|| volume_id(id)).flatten()
        });
        let target = fs::canonicalize(system.dev.join("disk/by-id").join(&link)).ok();
        if let (Some(id), Some(device)) = (id, target.as_deref().and_then(last_part)) {
            found.insert((id, device));
        }
    }
    found.into_iter().collect()
}

/// Follows a device down to the volumes that it is made of.
fn members_of(
    system: &System,
    named: &str,
    device: &str,
    members: &mut Vec<Volume>,
    depth: u32,
) -> Result<(), TargetError> {
    let slaves = slaves(system, device);
    if depth > MAX_DEPTH {
        let what = format!("{device}: devices on devices without an end");
        return Err(TargetError::Unfit { name: named.into(), what });
    }
    for slave in &slaves {
        members_of(system, named, slave, members, depth + 1)?;
    }
    if !slaves.is_empty() {
        return Ok(());
    }
    let (disk, parts) = match partition(system, device) {
        Some((disk, part)) => (disk, vec![part]),
        None => (device.to_owned(), Vec::new()),
    };
    let volume = Volume {
        node: system.dev.join(disk.replace('!', "/")),
        identity: identity(system, &disk),
        name: Some(disk),
        parts,
        named: vec![named.to_owned()],
    };
    match members.iter_mut().find(|known| known.node == volume.node) {
        Some(known) => merge(known, volume),
        None => members.push(volume),
    }
    Ok(())
}

fn file_volume(name: &str, path: PathBuf) -> Result<Volume, TargetError> {
    let failed = |error| TargetError::Io { name: name.into(), error };
    let node = fs::canonicalize(path).map_err(failed)?;
    let meta = fs::metadata(&node).map_err(failed)?;
    let identity = format!("file-{:x}-{}-{}", meta.dev(), meta.ino(), node.display());
    Ok(Volume { node, name: None, identity, parts: Vec::new(), named: vec![name.to_owned()] })
}

/// What is below a stacked device (dm, LVM, md, multipath).
fn slaves(system: &System, device: &str) -> Vec<String> {
    folder(system, device).map(|folder| entries(&folder.join("slaves"))).unwrap_or_default()
}

/// The disk that a partition is on, and its bytes there.
fn partition(system: &System, device: &str) -> Option<(String, Range<u64>)> {
    let disk = entries(&system.sysfs.join("block"))
        .into_iter()
        .find(|disk| system.sysfs.join("block").join(disk).join(device).join("partition").exists())?;
    let folder = system.sysfs.join("block").join(&disk).join(device);
    let number = |file: &str| text(&folder.join(file))?.parse::<u64>().ok();
    let start = number("start")?.checked_mul(SYSFS_SECTOR)?;
    let end = start.checked_add(number("size")?.checked_mul(SYSFS_SECTOR)?)?;
    Some((disk, start..end))
}

/// What a volume is called wherever it is attached; the kernel's name where nothing better is known.
fn identity(system: &System, disk: &str) -> String {
    if let Some(serial) = serial(system, disk) {
        return volume_id(&serial).unwrap_or_else(|| format!("serial-{serial}"));
    }
    let Some(folder) = folder(system, disk) else { return disk.to_owned() };
    for (file, prefix) in [("wwid", "wwid"), ("device/wwid", "wwid"), ("dm/uuid", "dm"), ("loop/backing_file", "loop")]
    {
        if let Some(found) = text(&folder.join(file)) {
            let offset = text(&folder.join("loop/offset")).unwrap_or_default();
            return format!("{prefix}-{found}{offset}");
        }
    }
    let number = text(&folder.join("dev")).unwrap_or_default();
    format!("{disk}-{number}")
}

fn serial(system: &System, disk: &str) -> Option<String> {
    let folder = folder(system, disk)?;
    ["device/serial", "serial"].iter().find_map(|file| text(&folder.join(file)))
}

/// A device's folder in sysfs, also a partition's.
fn folder(system: &System, device: &str) -> Option<PathBuf> {
    let block = system.sysfs.join("block");
    let own = block.join(device);
    if own.exists() {
        return Some(own);
    }
    entries(&block)
        .into_iter()
        .map(|disk| block.join(disk).join(device))
        .find(|folder| folder.join("partition").exists())
}

/// The kernel's name of a device number.
fn name_of_number(system: &System, device: u64) -> Option<String> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let number = format!("{major}:{minor}");
    if let Ok(target) = fs::read_link(system.sysfs.join("dev/block").join(&number)) {
        return last_part(&target);
    }
    let block = system.sysfs.join("block");
    for disk in entries(&block) {
        for device in std::iter::once(String::new()).chain(entries(&block.join(&disk))) {
            if text(&block.join(&disk).join(&device).join("dev")).as_deref() == Some(number.as_str()) {
                return Some(if device.is_empty() { disk } else { device });
            }
        }
    }
    None
}

fn last_part(path: &Path) -> Option<String> {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    Some(path.file_name()?.to_str()?.to_owned())
}

fn entries(folder: &Path) -> Vec<String> {
    let Ok(read) = fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<String> = read.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

fn text(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// A line of mountinfo.
struct Mount {
    point: PathBuf,
    number: (u32, u32),
    source: String,
}

impl Mount {
    /// The one that `path` lies on: of several at the longest mount point the last, which covers the others.
    fn of(system: &System, path: &Path) -> Option<Self> {
        let path = fs::canonicalize(path).ok()?;
        let text = fs::read_to_string(&system.mounts).ok()?;
        let mounts = text.lines().filter_map(Self::parse).filter(|mount| path.starts_with(&mount.point));
        mounts.max_by_key(|mount| mount.point.as_os_str().len())
    }

    /// `id parent major:minor root point options optional… - type source options`, see proc_pid_mountinfo(5).
    fn parse(line: &str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let fields: Vec<&str> = before.split(' ').collect();
        let (major, minor) = fields.get(2)?.split_once(':')?;
        Some(Self {
            point: unescaped(fields.get(4)?).into(),
            number: (major.parse().ok()?, minor.parse().ok()?),
            source: unescaped(after.split(' ').nth(1)?),
        })
    }

    /// The kernel's name of the device below it. Some file systems have a number of their own and name a device.
    fn device(&self, system: &System) -> Option<String> {
        let (major, minor) = self.number;
        if major != 0 {
            return name_of_number(system, rustix::fs::makedev(major, minor));
        }
        let meta = fs::metadata(&self.source).ok().filter(|meta| meta.file_type().is_block_device())?;
        name_of_number(system, meta.rdev())
    }
}

/// Blanks and the like stand as `\040`.
fn unescaped(field: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), field.as_bytes());
    while let Some((&first, behind)) = rest.split_first() {
        let code = behind.get(..3).filter(|_| first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[3..];
            }
            None => {
                bytes.push(first);
                rest = behind;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
