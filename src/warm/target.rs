//! From what a person names to the volumes below it: volume ids, devices, partitions, stacks, mount points, files.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
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

/// Devices as sysfs knows them, or a file.
enum Found {
    Devices(Vec<String>),
    File(PathBuf),
}

/// The volumes below all `names`, each once, in the order of their naming.
pub fn resolve(system: &System, names: &[String]) -> Result<Vec<Volume>, TargetError> {
    let mut volumes: Vec<Volume> = Vec::new();
    for name in names {
        match find(system, name)? {
            Found::File(path) => add(&mut volumes, file_volume(name, path)?),
            Found::Devices(devices) => {
                for device in devices {
                    add_members(system, name, &device, &mut volumes, 0)?;
                }
            }
        }
    }
    Ok(volumes)
}

fn add(volumes: &mut Vec<Volume>, volume: Volume) {
    match volumes.iter_mut().find(|known| same(known, &volume)) {
        Some(known) => merge(known, volume),
        None => volumes.push(volume),
    }
}

/// Two paths lead to one volume under two names. Nobody sees to it that serial numbers differ, but to these.
fn same(one: &Volume, other: &Volume) -> bool {
    let unique = ["vol-", "wwid-"].iter().any(|prefix| one.identity.starts_with(prefix));
    one.identity == other.identity && (unique || one.name == other.name)
}

/// All of it, where either is all of it; else the parts of both.
fn merge(known: &mut Volume, other: Volume) {
    if known.parts.is_empty() || other.parts.is_empty() {
        known.parts.clear();
    } else {
        let fresh = other.parts.into_iter().filter(|part| !known.parts.contains(part)).collect::<Vec<_>>();
        known.parts.extend(fresh);
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
    let (disk, begin) = match disk_of(system, &name) {
        Some(disk) => {
            let begin = part(system, &disk, &name)?.start;
            (disk, begin)
        }
        None => (name, 0),
    };
    below(system, &disk).is_empty().then_some((disk, begin))
}

fn find(system: &System, name: &str) -> Result<Found, TargetError> {
    if let Some(id) = volume_id(name) {
        return match attached(system).into_iter().find(|(serial, _)| *serial == id) {
            Some((_, device)) => Ok(Found::Devices(vec![device])),
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
        let device = name_of_number(system, meta.rdev()).or_else(|| name_of_node(system, path));
        return Ok(Found::Devices(vec![device.unwrap_or_default()]));
    }
    if meta.is_file() && system.images {
        return Ok(Found::File(path.to_owned()));
    }
    if meta.is_file() || meta.is_dir() {
        return find_mounted(system, name, meta.is_dir());
    }
    let what = "this is neither a block device nor a file nor a mount point".to_owned();
    Err(TargetError::Unfit { name: name.into(), what })
}

/// The devices of the file system that is mounted on the folder `name`, or that the file `name` is on.
fn find_mounted(system: &System, name: &str, is_folder: bool) -> Result<Found, TargetError> {
    let path = fs::canonicalize(name).map_err(|error| TargetError::Io { name: name.into(), error })?;
    let mount = Mount::of(system, &path);
    if is_folder && mount.as_ref().is_none_or(|mount| mount.point != path) {
        let hint = mount.map(|mount| format!("it lies on {}", mount.point.display()));
        return Err(TargetError::NoMountPoint { name: name.into(), hint });
    }
    let devices = mount.as_ref().map(|mount| mount.devices(system)).unwrap_or_default();
    if !devices.is_empty() {
        return Ok(Found::Devices(devices));
    }
    if !is_folder {
        // A file on a share, in memory, or in a file system of a program: there is no device to ask for.
        return Ok(Found::File(path));
    }
    let what = mount.map_or_else(String::new, |mount| mount.source.display().to_string());
    let what = format!("the file system on it ({what}) is on no block device of its own; name its devices");
    Err(TargetError::Unfit { name: name.into(), what })
}

fn missing(system: &System, name: &str) -> TargetError {
    // What EC2 calls /dev/sdf is /dev/xvdf to a kernel on Xen.
    let on_xen = name.strip_prefix("/dev/sd").map(|rest| format!("xvd{rest}"));
    let known: Vec<String> = attached(system).into_iter().map(|(id, device)| format!("{id} ({device})")).collect();
    let hint = match on_xen.filter(|device| folder(system, device).is_some()) {
        Some(device) => Some(format!("is it /dev/{device}?")),
        None => (!known.is_empty()).then(|| format!("attached are {}", known.join(", "))),
    };
    TargetError::Missing { name: name.into(), hint }
}

/// `vol-0123456789abcdef0` of that, with the dash or without.
fn volume_id(name: &str) -> Option<String> {
    let (_, digits) = name.split_at_checked(3).filter(|(vol, _)| vol.eq_ignore_ascii_case("vol"))?;
    let digits = digits.strip_prefix('-').unwrap_or(digits);
    let right = (8..=17).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit());
    right.then(|| format!("vol-{}", digits.to_ascii_lowercase()))
}

/// EBS volumes that are attached here: their ids and device names. On NVMe the serial number is the id.
fn attached(system: &System) -> Vec<(String, String)> {
    let mut found = BTreeSet::new();
    for device in entries(&system.sysfs.join("block")) {
        // One of several paths to a volume, for the kernel alone: it has no node.
        if text(&system.sysfs.join("block").join(&device).join("hidden")).is_some_and(|hidden| hidden != "0") {
            continue;
        }
        if let Some(id) = serial(system, &device).as_deref().and_then(volume_id) {
            found.insert((id, device));
        }
    }
    // The same as udev puts it, for whoever may not look into sysfs.
    for link in entries(&system.dev.join("disk/by-id")) {
        let id = link.strip_prefix("nvme-Amazon_Elastic_Block_Store_").and_then(|rest| {
            // Behind the id a namespace may stand, `_1` or `-ns-1`.
            let id = rest.split(['_', '-']).next().unwrap_or(rest);
            (!rest.contains("-part")).then(|| volume_id(id)).flatten()
        });
        let target = fs::canonicalize(system.dev.join("disk/by-id").join(&link)).ok();
        if let (Some(id), Some(device)) = (id, target.and_then(|target| name_of_node(system, &target))) {
            found.insert((id, device));
        }
    }
    found.into_iter().collect()
}

/// Follows a device down to the volumes that it is made of.
fn add_members(
    system: &System,
    named: &str,
    device: &str,
    volumes: &mut Vec<Volume>,
    depth: u32,
) -> Result<(), TargetError> {
    if depth > MAX_DEPTH {
        let what = format!("{device}: devices on devices without an end");
        return Err(TargetError::Unfit { name: named.into(), what });
    }
    let disk = disk_of(system, device);
    // A part whose place is unknown can be anywhere on its disk.
    let parts = disk.as_deref().and_then(|disk| part(system, disk, device)).into_iter().collect();
    let disk = disk.unwrap_or_else(|| device.to_owned());
    let below = below(system, &disk);
    for member in &below {
        add_members(system, named, member, volumes, depth + 1)?;
    }
    if below.is_empty() {
        let (node, identity) = (node(system, &disk, named), identity(system, &disk));
        add(volumes, Volume { node, name: Some(disk), identity, parts, named: vec![named.to_owned()] });
    }
    Ok(())
}

/// What is opened for a disk. In a container only the node that was named may be there, under a name of its own.
fn node(system: &System, disk: &str, named: &str) -> PathBuf {
    let usual = system.dev.join(disk.replace('!', "/"));
    if !usual.exists()
        && let Ok(meta) = fs::metadata(named)
        && meta.file_type().is_block_device()
        && name_of_number(system, meta.rdev()).is_none_or(|name| name == disk)
    {
        return fs::canonicalize(named).unwrap_or_else(|_| named.into());
    }
    usual
}

fn file_volume(name: &str, path: PathBuf) -> Result<Volume, TargetError> {
    let failed = |error| TargetError::Io { name: name.into(), error };
    let node = fs::canonicalize(path).map_err(failed)?;
    let meta = fs::metadata(&node).map_err(failed)?;
    let identity = format!("file-{:x}-{}-{}", meta.dev(), meta.ino(), node.display());
    Ok(Volume { node, name: None, identity, parts: Vec::new(), named: vec![name.to_owned()] })
}

/// What is below a stacked device (dm, LVM, md, multipath), and nothing for a volume.
fn below(system: &System, device: &str) -> Vec<String> {
    let below = slaves(system, device);
    // Several paths to one volume. It is read through what joins them, which knows those that are dead or asleep.
    if below.len() > 1 && is_multipath(system, device) { Vec::new() } else { below }
}

fn slaves(system: &System, device: &str) -> Vec<String> {
    folder(system, device).map(|folder| entries(&folder.join("slaves"))).unwrap_or_default()
}

fn is_multipath(system: &System, device: &str) -> bool {
    let uuid = folder(system, device).and_then(|folder| text(&folder.join("dm/uuid")));
    uuid.is_some_and(|uuid| uuid.starts_with("mpath-"))
}

/// The disk that a partition is on.
fn disk_of(system: &System, device: &str) -> Option<String> {
    let block = system.sysfs.join("block");
    entries(&block).into_iter().find(|disk| block.join(disk).join(device).join("partition").exists())
}

/// A partition's bytes on its disk.
fn part(system: &System, disk: &str, device: &str) -> Option<Range<u64>> {
    let folder = system.sysfs.join("block").join(disk).join(device);
    let number = |file: &str| text(&folder.join(file))?.parse::<u64>().ok()?.checked_mul(SYSFS_SECTOR);
    let start = number("start")?;
    Some(start..start.checked_add(number("size")?)?)
}

/// What a volume is called wherever it is attached; the kernel's name where nothing better is known.
fn identity(system: &System, disk: &str) -> String {
    // What joins the paths to a volume is that volume.
    let path = if is_multipath(system, disk) { slaves(system, disk).into_iter().next() } else { None };
    let disk = path.as_deref().unwrap_or(disk);
    let serial = serial(system, disk);
    if let Some(id) = serial.as_deref().and_then(volume_id) {
        return id;
    }
    let Some(folder) = folder(system, disk) else { return disk.to_owned() };
    // Before the serial number: that is the controller's with NVMe, which can have many volumes.
    for file in ["wwid", "device/wwid"] {
        if let Some(found) = text(&folder.join(file)) {
            return format!("wwid-{found}");
        }
    }
    if let Some(serial) = serial {
        return format!("serial-{serial}");
    }
    // Another volume may have this name in an hour: since Linux 5.15 each one that is attached gets a number of its
    // own, and the next boot counts anew.
    let attached = text(&folder.join("diskseq")).unwrap_or_default();
    let boot = text(Path::new("/proc/sys/kernel/random/boot_id")).unwrap_or_default();
    format!("{disk}-{attached}-{boot}")
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
    Some(block.join(disk_of(system, device)?).join(device))
}

/// The kernel's name of a device number.
fn name_of_number(system: &System, device: u64) -> Option<String> {
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    if let Ok(target) = fs::read_link(system.sysfs.join("dev/block").join(&number)) {
        return Some(target.file_name()?.to_str()?.to_owned());
    }
    let block = system.sysfs.join("block");
    let has_number = |folder: &Path| text(&folder.join("dev")).as_deref() == Some(number.as_str());
    for disk in entries(&block) {
        let folder = block.join(&disk);
        if has_number(&folder) {
            return Some(disk);
        }
        // Other folders there are of character devices, which are numbered by themselves.
        let is_it = |part: &String| folder.join(part).join("partition").exists() && has_number(&folder.join(part));
        if let Some(part) = entries(&folder).into_iter().find(is_it) {
            return Some(part);
        }
    }
    None
}

/// The kernel's name of a device, judged by the name of its node.
fn name_of_node(system: &System, node: &Path) -> Option<String> {
    let node = fs::canonicalize(node).unwrap_or_else(|_| node.to_owned());
    let dev = fs::canonicalize(&system.dev).unwrap_or_else(|_| system.dev.clone());
    let name = node.strip_prefix(dev).unwrap_or(Path::new(node.file_name()?));
    Some(name.to_str()?.replace('/', "!"))
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
    id: u64,
    parent: u64,
    point: PathBuf,
    number: (u32, u32),
    source: PathBuf,
}

impl Mount {
    /// The one that `path`, which has no links in it, lies on. From the root each step goes to the first mount on the
    /// way, as the kernel does: mounts below a folder that was mounted over later are in the list and can't be reached.
    fn of(system: &System, path: &Path) -> Option<Self> {
        // Not as text: names in it may be anything.
        let lines = fs::read(&system.mounts).ok()?;
        let mounts = lines.split(|byte| *byte == b'\n').filter_map(Self::parse);
        let mut mounts: Vec<Self> = mounts.filter(|mount| path.starts_with(&mount.point)).collect();
        let is_root = |mount: &Self| mount.parent == mount.id || mounts.iter().all(|other| other.id != mount.parent);
        let mut next = first_on_the_way(&mounts, is_root);
        let mut here = None;
        while let Some(place) = next {
            let mount = mounts.remove(place);
            next = first_on_the_way(&mounts, |other| other.parent == mount.id);
            here = Some(mount);
        }
        here
    }

    /// `id parent major:minor root point options optional… - type source options`, see proc_pid_mountinfo(5).
    fn parse(line: &[u8]) -> Option<Self> {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let text = |place: usize| std::str::from_utf8(fields.get(place)?).ok();
        let behind = fields.iter().position(|field| field == b"-")?;
        let (major, minor) = text(2)?.split_once(':')?;
        Some(Self {
            id: text(0)?.parse().ok()?,
            parent: text(1)?.parse().ok()?,
            point: unescaped(fields.get(4)?).into(),
            number: (major.parse().ok()?, minor.parse().ok()?),
            source: unescaped(fields.get(behind + 2)?).into(),
        })
    }

    /// The kernel's names of the devices below it; none for a file system that has none, or does not tell.
    fn devices(&self, system: &System) -> Vec<String> {
        let (major, minor) = self.number;
        let device = match major {
            0 => self.source(system),
            _ => name_of_number(system, rustix::fs::makedev(major, minor)),
        };
        let Some(device) = device else { return Vec::new() };
        // Of several devices of one btrfs only one stands in the list of mounts.
        let all = system.sysfs.join("fs/btrfs");
        let pools = entries(&all).into_iter().map(|pool| entries(&all.join(pool).join("devices")));
        let pool = pools.into_iter().find(|devices| devices.contains(&device));
        pool.unwrap_or_else(|| vec![device])
    }

    /// Some file systems have a number of their own and name a device, whose node need not be there in a container.
    fn source(&self, system: &System) -> Option<String> {
        let name = self.source.strip_prefix(&system.dev).ok()?.to_str()?;
        let meta = fs::metadata(&self.source).ok().filter(|meta| meta.file_type().is_block_device());
        let by_number = meta.and_then(|meta| name_of_number(system, meta.rdev()));
        let is_it = |device: &String| {
            let mapped = system.sysfs.join("block").join(device).join("dm/name");
            name.strip_prefix("mapper/").is_some_and(|name| text(&mapped).as_deref() == Some(name))
        };
        by_number.or_else(|| entries(&system.sysfs.join("block")).into_iter().find(is_it)).or_else(|| {
            let device = name.replace('/', "!");
            folder(system, &device).is_some().then_some(device)
        })
    }
}

/// Of those that are meant the mount with the shortest point. At the same point the later one covers the earlier.
fn first_on_the_way(mounts: &[Mount], meant: impl Fn(&Mount) -> bool) -> Option<usize> {
    let meant = mounts.iter().enumerate().rev().filter(|(_, mount)| meant(mount));
    meant.min_by_key(|(_, mount)| mount.point.as_os_str().len()).map(|(place, _)| place)
}

/// Blanks and the like stand as `\040`.
fn unescaped(field: &[u8]) -> OsString {
    let (mut bytes, mut rest) = (Vec::new(), field);
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
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests;
