//! Mounted file systems: what lies below a folder comes first, and mount points stand for their devices.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::run::{BLOCK, MIB, Place, all_once, has, once, one, shown, tool, volume};
use crate::support::lazy_volume::{LazyVolumes, Settings};
use crate::support::loop_device::{LoopDevice, Mounted};

const SIZE: u64 = 48 * MIB;

/// A file system on a partition, or on all, of a simulated volume.
struct OnVolume {
    mounted: Mounted,
    device: LoopDevice,
    volumes: LazyVolumes,
    place: Place,
    /// Where it begins on the volume (bytes).
    begin: u64,
}

impl OnVolume {
    /// `None`, with a loud word, where that can't be had.
    fn new(begin: u64) -> Option<Self> {
        if !has("mkfs.ext4") || !has("filefrag") {
            return None;
        }
        let place = Place::new();
        let image = place.path("image");
        make_image(&place.path("content"), &image, begin);
        let settings = Settings { backing: Some(image), cold_latency: Duration::from_millis(2), ..Settings::default() };
        let volumes = one(settings)?;
        let device = LoopDevice::over(volumes.path(0), &["--partscan"])?;
        let node = if begin > 0 {
            device.partition(1, (begin, SIZE - begin), &place.path(""))?
        } else {
            device.path().to_owned()
        };
        let mounted = Mounted::ext4(&node, place.path("mount"))?;
        // From here on the kernel has all of its metadata in memory.
        visit(mounted.point());
        volumes.reset(0);
        Some(Self { mounted, device, volumes, place, begin })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mounted.point().join(name)
    }

    /// The blocks of the volume that these files and folders lie in, as `filefrag` has it.
    fn blocks_of(&self, paths: &[PathBuf]) -> BTreeSet<u64> {
        let mut blocks = BTreeSet::new();
        for path in paths {
            for line in tool("filefrag", &["-v".as_ref(), "-b512".as_ref(), path.as_ref()]).lines() {
                // ` 0: 0.. 7: 34816.. 34823: 8: last,eof`
                let mut columns = line.split(':');
                let Some(place) = columns.nth(2).and_then(|place| place.split_once("..")) else { continue };
                let (Ok(first), Ok(last)) = (place.0.trim().parse::<u64>(), place.1.trim().parse::<u64>()) else {
                    continue;
                };
                let (first, last) = (self.begin + first * 512, self.begin + last * 512 + 511);
                blocks.extend(first / BLOCK..=last / BLOCK);
            }
        }
        blocks
    }
}

/// Files of several sizes, one with holes, in folders of folders.
fn make_image(content: &Path, image: &Path, begin: u64) {
    let (wanted, other) = (content.join("wanted"), content.join("other"));
    fs::create_dir_all(wanted.join("deeper/still")).unwrap();
    fs::create_dir_all(&other).unwrap();
    for n in 0..6 {
        fs::write(other.join(format!("big-{n}")), vec![7; 2 * MIB as usize]).unwrap();
        fs::write(wanted.join(format!("some-{n}")), vec![n; 600_000]).unwrap();
    }
    fs::write(wanted.join("deeper/still/large"), vec![9; 3 * MIB as usize + 5]).unwrap();
    fs::write(wanted.join("deeper/little"), "ten bytes!").unwrap();
    fs::write(wanted.join("nothing"), "").unwrap();
    let mut holes = File::create(wanted.join("holes")).unwrap();
    for at in [0, 5 * MIB, 9 * MIB] {
        holes.seek(SeekFrom::Start(at)).unwrap();
        holes.write_all(&[5; 8192]).unwrap();
    }
    let file = File::create(image).unwrap();
    file.set_len(SIZE).unwrap();
    let (offset, blocks) = (format!("offset={begin}"), format!("{}k", (SIZE - begin) / 1024));
    let options = ["-q", "-F", "-E", &offset, "-O", "^has_journal,^metadata_csum", "-d", shown(content)];
    let words: Vec<&str> = options.into_iter().chain([shown(image), &blocks]).collect();
    tool("mkfs.ext4", &words.iter().map(AsRef::as_ref).collect::<Vec<_>>());
    if begin > 0 {
        let mut sector = [0; 512];
        sector[446 + 4] = 0x83;
        sector[446 + 8..][..4].copy_from_slice(&u32::try_from(begin / 512).unwrap().to_le_bytes());
        sector[446 + 12..][..4].copy_from_slice(&u32::try_from((SIZE - begin) / 512).unwrap().to_le_bytes());
        sector[510..].copy_from_slice(&[0x55, 0xaa]);
        let mut file = File::options().write(true).open(image).unwrap();
        file.write_all(&sector).unwrap();
    }
}

/// Looks at everything below `folder`, without reading files.
fn visit(folder: &Path) -> Vec<PathBuf> {
    let mut found = vec![folder.to_owned()];
    let _ = tool("filefrag", &[folder.as_ref()]);
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(visit(&path));
        } else {
            let _ = tool("filefrag", &[path.as_ref()]);
            found.push(path);
        }
    }
    found
}

fn files_first(begin: u64) {
    let Some(system) = OnVolume::new(begin) else { return };
    let (device, volumes) = (shown(system.device.path()), &system.volumes);
    let all = visit(&system.path("wanted"));
    let wanted = system.blocks_of(&all);
    assert!(wanted.len() > 8 && wanted.len() < 60, "{wanted:?}");
    for straddle in ["on", "off"] {
        volumes.reset(0);
        let options = format!("--again --straddle {straddle} --only-first");
        system.place.warm(&format!("{options} --first {} {device}", shown(&system.path("wanted")))).silent();
        once(volumes, 0, wanted.iter().copied());
    }
    // One file, and a folder that comes after it.
    volumes.reset(0);
    let (file, folder) = (system.path("other/big-3"), system.path("wanted/deeper"));
    let both = format!("--first {} --first {}", shown(&file), shown(&folder));
    system.place.warm(&format!("--again --only-first {both} {device}")).silent();
    let mut some = visit(&folder);
    some.push(file);
    once(volumes, 0, system.blocks_of(&some));
    // And then the rest.
    volumes.reset(0);
    let run = system.place.warm(&format!("--again --first {} {device}", shown(&system.path("wanted"))));
    run.silent();
    all_once(volumes, 0);
    let plan = system.place.warm(&format!("-n --first {} {device}", shown(&system.path("wanted")))).exit(0);
    plan.says(&[&format!("first {} blocks, then the rest", wanted.len())]);
}

#[test]
fn files_of_a_mounted_file_system_come_first() {
    files_first(0);
}

#[test]
fn files_on_a_partition_come_first() {
    files_first(MIB + BLOCK / 2);
}

#[test]
fn a_mount_point_and_a_file_on_it_stand_for_the_device() {
    for begin in [0, MIB + BLOCK / 2] {
        let Some(system) = OnVolume::new(begin) else { return };
        let (point, volumes) = (system.mounted.point(), &system.volumes);
        let file = system.path("wanted/some-1");
        for target in [point, &file] {
            volumes.reset(0);
            let run = system.place.warm(&format!("--again --json {}", shown(target))).exit(0);
            assert_eq!(run.done(0)["device"], shown(system.device.path()), "{run}");
            once(volumes, 0, begin / BLOCK..SIZE / BLOCK);
        }
        // Both, and the device by its name.
        volumes.reset(0);
        let targets = format!("{} {} {}", shown(point), shown(&file), shown(system.device.path()));
        system.place.warm(&format!("--again {targets}")).silent();
        all_once(volumes, 0);
    }
}

#[test]
fn folders_and_files_that_stand_for_nothing() {
    let Some(system) = OnVolume::new(0) else { return };
    let (device, place) = (shown(system.device.path()), &system.place);
    let folder = system.path("wanted");
    let on = format!("it lies on {}", shown(system.mounted.point()));
    place.warm(shown(&folder)).fails(2, &[shown(&folder), "is a folder, and nothing is mounted on it", &on]);
    let elsewhere = place.path("content/wanted");
    let words = [shown(&elsewhere), "is on none of these volumes"];
    place.warm(&format!("--first {} {device}", shown(&elsewhere))).fails(2, &words);
    place.warm(&format!("--first /proc {device}")).fails(2, &["/proc", "is on none of these volumes"]);
    let both = format!("--first {} --first {} {device}", shown(&folder), shown(&elsewhere));
    place.warm(&both).fails(2, &words);
    let missing = system.path("missing");
    let run = place.warm(&format!("--first {} {device}", shown(&missing)));
    assert!(!run.status.success() && run.stderr.contains(shown(&missing)), "{run}");
    // The file is on the file system, and the volume is the file below that.
    let line = format!("--first {} {}", shown(&folder), volume(&system.volumes, 0));
    place.warm(&line).fails(2, &["is on none of these volumes"]);
    once(&system.volumes, 0, []);
}

/// What lies on a mounted file system can be a volume of its own.
#[test]
fn an_image_is_a_volume_itself() {
    let Some(system) = OnVolume::new(0) else { return };
    let file = system.path("wanted/deeper/still/large");
    let run = system.place.warm(&format!("--image --json {}", shown(&file))).exit(0);
    assert_eq!((&run.done(0)["device"], &run.done(0)["touched"]), (&shown(&file).into(), &7.into()), "{run}");
    let reads = system.volumes.reads(0);
    assert!((7..=16).contains(&reads), "{reads} reads");
}
