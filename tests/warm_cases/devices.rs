//! Real block devices: loop devices over volumes, with sectors of both sizes, offsets and partitions.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::time::Duration;

use crate::run::{BLOCK, MIB, Place, all_once, once, one, shown, touched, volume};
use crate::support::lazy_volume::{LazyVolumes, Settings};
use crate::support::loop_device::{LoopDevice, make_node};

fn quick(size: u64) -> Settings {
    Settings { size, cold_latency: Duration::from_millis(2), ..Settings::default() }
}

/// Every chunk has data, and in the first one there is a partition table with these partitions (bytes).
fn partitioned(path: &Path, size: u64, partitions: &[(u64, u64)]) {
    let file = File::create(path).unwrap();
    file.set_len(size).unwrap();
    (0..size / BLOCK).for_each(|chunk| file.write_all_at(&[1; 4096], chunk * BLOCK + 8192).unwrap());
    let mut sector = [0; 512];
    for (at, (begin, length)) in partitions.iter().enumerate() {
        let entry = &mut sector[446 + 16 * at..][..16];
        entry[4] = 0x83;
        entry[8..12].copy_from_slice(&u32::try_from(begin / 512).unwrap().to_le_bytes());
        entry[12..16].copy_from_slice(&u32::try_from(length / 512).unwrap().to_le_bytes());
    }
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    file.write_all_at(&sector, 0).unwrap();
}

#[test]
fn loop_devices_with_sectors_of_512_bytes_and_of_4_kib() {
    // The last block has more than a sector of 4 KiB and less than two.
    let sizes = [33 * MIB + 4096 + 512, 16 * MIB];
    let Some(volumes) = LazyVolumes::mount(sizes.map(quick).to_vec()) else { return };
    let place = Place::new();
    for (n, size) in sizes.into_iter().enumerate() {
        for sector in [512, 4096] {
            let Some(device) = LoopDevice::over(volumes.path(n), &["--sector-size", &sector.to_string()]) else {
                return;
            };
            for (engine, straddle) in [("io-uring", "on"), ("io-uring", "off"), ("threads", "on"), ("threads", "auto")]
            {
                volumes.reset(n);
                let options = format!("--again --engine {engine} --straddle {straddle}");
                let run = place.warm(&format!("{options} --json {}", shown(device.path()))).exit(0);
                all_once(&volumes, n);
                assert_eq!(run.events()[0]["volumes"][0]["size"], size);
            }
            let plan = place.warm(&format!("-n --json {}", shown(device.path()))).exit(0).json();
            assert_eq!(
                (&plan["volumes"][0]["sector"], &plan["volumes"][0]["read_size"]),
                (&sector.into(), &4096.into())
            );
        }
    }
}

/// Its blocks are counted from its own beginning.
#[test]
fn a_loop_device_that_begins_within_a_chunk() {
    let Some(volumes) = one(quick(32 * MIB)) else { return };
    let offset = (BLOCK / 2).to_string();
    let Some(device) = LoopDevice::over(volumes.path(0), &["--offset", &offset]) else { return };
    let place = Place::new();
    volumes.reset(0);
    place.warm(&format!("--straddle off {}", shown(device.path()))).silent();
    all_once(&volumes, 0);
    // The same device with another offset is another volume.
    drop(device);
    let Some(device) = LoopDevice::over(volumes.path(0), &[]) else { return };
    volumes.reset(0);
    place.warm(&format!("--straddle off {}", shown(device.path()))).silent();
    all_once(&volumes, 0);
}

#[test]
fn partitions_are_counted_on_the_grid_of_the_whole_disk() {
    let place = Place::new();
    let image = place.path("image");
    // From within block 6 to within block 16, and from there to within block 40.
    let (first, second) = ((3 * MIB + BLOCK / 2, 5 * MIB + 4096), (8 * MIB + BLOCK / 2 + 8192, 12 * MIB));
    partitioned(&image, 32 * MIB, &[first, second]);
    let blocks = |(begin, length): (u64, u64)| begin / BLOCK..(begin + length).div_ceil(BLOCK);
    assert_eq!((blocks(first), blocks(second)), (6..17, 16..41));
    let Some(volumes) = one(Settings { backing: Some(image), ..quick(0) }) else { return };
    let Some(device) = LoopDevice::over(volumes.path(0), &["--partscan"]) else { return };
    let Some(one) = device.partition(1, first, &place.path("")) else { return };
    let Some(two) = device.partition(2, second, &place.path("")) else { return };
    let (one, two, whole) = (shown(&one), shown(&two), shown(device.path()));
    for (targets, wanted) in [
        (one.to_owned(), blocks(first)),
        (two.to_owned(), blocks(second)),
        (format!("{two} {one}"), 6..41),
        (format!("{one} {whole} {one}"), 0..64),
    ] {
        for straddle in ["on", "off"] {
            volumes.reset(0);
            place.warm(&format!("--again --straddle {straddle} {targets}")).silent();
            once(&volumes, 0, wanted.clone());
        }
    }
    // What --offset and --length leave of a partition.
    volumes.reset(0);
    place.warm(&format!("--again --offset {} --length 2MiB {one}", 8 * MIB)).silent();
    once(&volumes, 0, 16..17);
    volumes.reset(0);
    place.warm(&format!("--again --offset 30MiB {one}")).silent();
    once(&volumes, 0, []);
    // The plan says what stays as it is.
    let plan =
        place.warm(&format!("-n {one}")).exit(0).says(&["11 blocks", "53 blocks of the volume stay as they are"]);
    assert!(plan.stdout.starts_with(whole), "{plan}");
}

/// What was read of one partition needs no second read with the whole.
#[test]
fn a_partition_and_then_the_whole_disk() {
    let place = Place::new();
    let image = place.path("image");
    let place_of_it = (MIB, 4 * MIB);
    partitioned(&image, 16 * MIB, &[place_of_it]);
    let Some(volumes) = one(Settings { backing: Some(image), ..quick(0) }) else { return };
    let Some(device) = LoopDevice::over(volumes.path(0), &["--partscan"]) else { return };
    let Some(part) = device.partition(1, place_of_it, &place.path("")) else { return };
    volumes.reset(0);
    place.warm(shown(&part)).silent();
    once(&volumes, 0, 2..10);
    place.warm(shown(device.path())).silent();
    all_once(&volumes, 0);
    // And what was read besides is not forgotten with a smaller plan.
    place.warm(shown(&part)).silent();
    place.warm(shown(device.path())).silent();
    all_once(&volumes, 0);
}

#[test]
fn a_device_named_several_times_is_read_once() {
    let Some(volumes) = one(quick(16 * MIB)) else { return };
    let place = Place::new();
    let link = place.path("link");
    symlink(volumes.path(0), &link).unwrap();
    let file = volume(&volumes, 0);
    let run = place.warm(&format!("--json {file} {} {file}", shown(&link))).exit(0);
    all_once(&volumes, 0);
    assert_eq!(run.events()[0]["volumes"].as_array().unwrap().len(), 1, "{run}");

    let Some(device) = LoopDevice::over(volumes.path(0), &[]) else { return };
    let link = place.path("link-to-device");
    symlink(device.path(), &link).unwrap();
    let number = fs::read_to_string(device.sysfs().join("dev")).unwrap();
    let Some(node) = make_node(&place.path("node"), number.trim()) else { return };
    volumes.reset(0);
    let run = place.warm(&format!("--json {} {} {}", shown(&link), shown(device.path()), shown(&node))).exit(0);
    all_once(&volumes, 0);
    assert_eq!(run.events()[0]["volumes"].as_array().unwrap().len(), 1, "{run}");
    assert_eq!(run.done(0)["device"], shown(device.path()));
}

#[test]
fn bad_blocks_of_a_device_are_told() {
    let Some(volumes) = one(Settings { bad: vec![0, 11, 12, 31], ..quick(16 * MIB) }) else { return };
    let Some(device) = LoopDevice::over(volumes.path(0), &[]) else { return };
    let place = Place::new();
    for straddle in ["on", "off"] {
        volumes.reset(0);
        let options = format!("--again --retries 1 --straddle {straddle}");
        let run = place.warm(&format!("{options} --json {}", shown(device.path()))).exit(3);
        assert_eq!(run.failed_blocks(), [0, 11, 12, 31], "{run}");
        assert_eq!((volumes.cold_left(0), touched(&volumes, 0).len()), (4, 32));
    }
}
