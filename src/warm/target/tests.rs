//! What names lead to, on machines that exist as folders alone.

mod machine;

use std::os::unix::fs::symlink;

use self::machine::{EBS, Machine, VIRTUAL};
use super::*;

const ID: &str = "vol-0123456789abcdef0";
const OTHER: &str = "vol-0fedcba9876543210";
const MIB: u64 = 1 << 20;

fn whole(name: &str) -> (String, Vec<Range<u64>>) {
    (name.to_owned(), Vec::new())
}

fn parts(name: &str, parts: &[Range<u64>]) -> (String, Vec<Range<u64>>) {
    (name.to_owned(), parts.to_vec())
}

/// Two EBS volumes, each with a root partition from 1 MiB on and one behind it.
fn two_volumes() -> Machine {
    let machine = Machine::new();
    for (name, major, id) in [("nvme1n1", 10, ID), ("nvme2n1", 20, OTHER)] {
        machine.ebs(name, &format!("259:{major}"), id);
        machine.part(name, &format!("{name}p1"), &format!("259:{}", major + 1), 2048, 204_800);
        machine.part(name, &format!("{name}p2"), &format!("259:{}", major + 2), 206_848, 409_600);
    }
    machine
}

const P1: Range<u64> = MIB..101 * MIB;
const P2: Range<u64> = 101 * MIB..301 * MIB;

#[test]
fn volume_ids_by_the_serial_number() {
    let machine = two_volumes();
    for name in [ID, "vol0123456789abcdef0", "vol-0123456789ABCDEF0", "VOL0123456789ABCDEF0"] {
        let found = machine.resolve(&[name]).unwrap();
        assert_eq!(found.len(), 1);
        let volume = Volume {
            node: machine.path("dev/nvme1n1"),
            name: Some("nvme1n1".into()),
            identity: ID.into(),
            parts: Vec::new(),
            named: vec![name.into()],
        };
        assert_eq!(found[0], volume);
    }
    // Ids were eight digits long before 2016, and such volumes live on.
    machine.ebs("nvme3n1", "259:30", "vol-1a2b3c4d");
    assert_eq!(machine.found(&["vol-1a2b3c4d"]), [whole("nvme3n1")]);
    let (said, hint) = machine.refused("vol-0aaaaaaaaaaaaaaaa");
    assert_eq!(said, "vol-0aaaaaaaaaaaaaaaa: there is no such device, file or volume");
    let hint = hint.unwrap();
    assert_eq!(hint, format!("attached are {ID} (nvme1n1), {OTHER} (nvme2n1), vol-1a2b3c4d (nvme3n1)"));
    for name in ["volume", "vol-", "vol-0123", "vol-0123456789abcdef01", "vol-0123456789abcdefg", "völ-01234567"] {
        assert_eq!(volume_id(name), None, "{name}");
    }
}

#[test]
fn volume_ids_by_the_links_of_udev() {
    for suffix in ["", "_1", "-ns-1"] {
        let machine = Machine::new();
        let link = format!("nvme-Amazon_Elastic_Block_Store_vol0123456789abcdef0{suffix}");
        for (name, to) in [(link.clone(), "nvme7n1"), (format!("{link}-part1"), "nvme7n1p1")] {
            fs::write(machine.path("dev").join(to), "").unwrap();
            symlink(format!("../../{to}"), machine.path("dev/disk/by-id").join(name)).unwrap();
        }
        symlink("../../sda", machine.path("dev/disk/by-id/ata-vol0123456789abcdef0")).unwrap();
        assert_eq!(machine.found(&[ID]), [whole("nvme7n1")], "{suffix}");
        assert_eq!(machine.refused(OTHER).1.unwrap(), format!("attached are {ID} (nvme7n1)"));
    }
}

/// With `nvme_core.multipath=Y` the paths stand beside the volume that they lead to, and have no nodes.
#[test]
fn paths_that_the_kernel_hides() {
    let machine = Machine::new();
    let serial = ID.replace('-', "");
    machine.nvme("nvme0c0n1", "0:0", &serial);
    machine.write(&format!("{}/hidden", machine.folder_of("nvme0c0n1")), "1");
    fs::remove_file(machine.path("sys/dev/block/0:0")).unwrap();
    machine.disk("devices/virtual/nvme-subsystem/nvme-subsys0", "nvme0n1", "259:0");
    machine.write("devices/virtual/nvme-subsystem/nvme-subsys0/serial", &serial);
    symlink("../../nvme-subsys0", machine.path("sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1/device"))
        .unwrap();
    assert_eq!(machine.found(&[ID]), [whole("nvme0n1")]);
}

#[test]
fn a_partition_is_a_part_of_its_disk() {
    let machine = two_volumes();
    // Sysfs counts in 512 bytes, whatever the sectors of the disk are.
    machine.write(&format!("{}/queue/logical_block_size", machine.folder_of("nvme1n1")), "4096");
    assert_eq!(machine.below("nvme1n1p1"), [parts("nvme1n1", &[P1])]);
    assert_eq!(machine.below("nvme1n1"), [whole("nvme1n1")]);
    // Beyond 2 TiB, and what can't be.
    machine.part("nvme2n1", "nvme2n1p3", "259:23", 1 << 33, 1 << 34);
    let beyond = (1 << 42)..(3 << 42);
    assert_eq!(machine.below("nvme2n1p3"), [parts("nvme2n1", &[beyond])]);
    machine.part("nvme2n1", "nvme2n1p4", "259:24", u64::MAX / 2, 8);
    assert_eq!(machine.below("nvme2n1p4"), [whole("nvme2n1")], "a place that is unknown is anywhere on the disk");
}

#[test]
fn parts_and_wholes_of_one_disk() {
    let machine = two_volumes();
    let Some(p1) = machine.node("dev/nvme1n1p1", (259, 11)) else { return };
    let p2 = machine.node("dev/nvme1n1p2", (259, 12)).unwrap();
    let disk = machine.node("dev/nvme1n1", (259, 10)).unwrap();
    assert_eq!(machine.found(&[&p2]), [parts("nvme1n1", &[P2])]);
    assert_eq!(machine.found(&[&p2, &p1]), [parts("nvme1n1", &[P2, P1])]);
    assert_eq!(machine.found(&[&p1, &p1]), [parts("nvme1n1", &[P1])]);
    for names in [[&disk, &p1], [&p1, &disk], [&p1, &ID.to_owned()], [&disk, &ID.to_owned()]] {
        let names = names.map(String::as_str);
        assert_eq!(machine.found(&names), [whole("nvme1n1")]);
        assert_eq!(machine.resolve(&names).unwrap()[0].named, names);
    }
    assert_eq!(machine.found(&[&p1, &disk, &p2]), [whole("nvme1n1")]);
    assert_eq!(machine.found(&[OTHER, &p1]), [whole("nvme2n1"), parts("nvme1n1", &[P1])], "in the order of naming");
}

/// The node of a device has the number, and any name.
#[test]
fn nodes_by_any_name() {
    let machine = two_volumes();
    let Some(disk) = machine.node("dev/nvme1n1", (259, 10)) else { return };
    symlink("nvme1n1", machine.path("dev/sdf")).unwrap();
    let link = machine.path("dev/sdf").to_str().unwrap().to_owned();
    let volume = &machine.resolve(&[&link]).unwrap()[0];
    assert_eq!((volume.node.to_str().unwrap(), volume.identity.as_str()), (disk.as_str(), ID));
    // In a container only this node may be there.
    let other = machine.node("data/xvda", (259, 20)).unwrap();
    let volume = machine.resolve(&[&other]).unwrap().remove(0);
    assert_eq!((volume.node.to_str().unwrap(), volume.identity.as_str()), (other.as_str(), OTHER));
    let volume = machine.resolve(&[&other, OTHER]).unwrap();
    assert_eq!(volume.len(), 1);
    // Without links of numbers, as in a sysfs of few files.
    fs::remove_dir_all(machine.path("sys/dev")).unwrap();
    assert_eq!(machine.found(&[&other]), [whole("nvme2n1")]);
    let part = machine.node("dev/nvme2n1p2", (259, 22)).unwrap();
    assert_eq!(machine.found(&[&part]), [parts("nvme2n1", &[P2])]);
    // The controller of nvme1n1 is a character device with the number 259:1.
    let stranger = machine.node("dev/cciss/c9d9", (259, 1)).unwrap();
    let volume = machine.resolve(&[&stranger]).unwrap().remove(0);
    assert_eq!((volume.node.to_str().unwrap(), volume.name.as_deref()), (stranger.as_str(), Some("cciss!c9d9")));
}

#[test]
fn slashes_in_names() {
    let machine = Machine::new();
    machine.disk(EBS, "cciss!c0d0", "104:0");
    machine.part("cciss!c0d0", "cciss!c0d0p1", "104:1", 2048, 204_800);
    machine.stack("dm-0", "252:0", &["cciss!c0d0p1"]);
    assert_eq!(machine.below("dm-0"), [parts("cciss!c0d0", &[P1])]);
    let Some(part) = machine.node("dev/cciss/c0d0p1", (104, 1)) else { return };
    let volume = machine.resolve(&[&part]).unwrap().remove(0);
    assert_eq!((volume.node, volume.parts), (machine.path("dev/cciss/c0d0"), vec![P1]));
}

#[test]
fn lvm_on_partitions_of_two_disks() {
    let machine = two_volumes();
    machine.dm("dm-0", "252:0", "LVM-abc", "data-mysql", &["nvme1n1p2", "nvme2n1p1"]);
    let members = [parts("nvme1n1", &[P2]), parts("nvme2n1", &[P1])];
    assert_eq!(machine.below("dm-0"), members);
    let Some(node) = machine.node("dev/dm-0", (252, 0)) else { return };
    symlink("../dm-0", machine.path("dev/mapper/data-mysql")).unwrap();
    let link = machine.path("dev/mapper/data-mysql").to_str().unwrap().to_owned();
    let own = machine.node("dev/mapper/of-its-own", (252, 0)).unwrap();
    for name in [&node, &link, &own] {
        assert_eq!(machine.found(&[name]), members);
    }
    let found = machine.resolve(&[&link, OTHER, &own]).unwrap();
    assert_eq!(found.len(), 2, "each member once");
    assert_eq!((&found[0].parts, &found[1].parts), (&vec![P2], &Vec::new()));
    assert_eq!(found[0].named, [link.as_str(), own.as_str()]);
    assert_eq!(found[1].named, [link.as_str(), OTHER, own.as_str()]);
    assert_eq!(found[0].node, machine.path("dev/nvme1n1"), "and not the node of the stack");
}

#[test]
fn stacks_of_stacks() {
    let machine = two_volumes();
    let both = [whole("nvme1n1"), whole("nvme2n1")];
    machine.stack("md0", "9:0", &["nvme1n1", "nvme2n1"]);
    machine.part("md0", "md0p1", "259:40", 2048, 204_800);
    machine.dm("dm-0", "252:0", "LVM-abc", "vg-lv", &["md0"]);
    machine.dm("dm-1", "252:1", "CRYPT-LUKS2-abc", "secret", &["dm-0"]);
    machine.dm("dm-2", "252:2", "LVM-def", "vg-onpart", &["md0p1"]);
    machine.dm("dm-3", "252:3", "part1-LVM-abc", "vg-lv1", &["dm-0"]);
    for device in ["md0", "md0p1", "dm-0", "dm-1", "dm-2", "dm-3"] {
        assert_eq!(machine.below(device), both, "{device}");
    }
    // RAID 1 of LVM: two ways to the same members.
    machine.dm("dm-4", "252:4", "LVM-ghi", "vg-raid", &["dm-0", "dm-3", "nvme2n1p1"]);
    assert_eq!(machine.below("dm-4"), both);
    let number = |major, minor| rustix::fs::makedev(major, minor);
    for (major, minor) in [(9, 0), (259, 40), (252, 0), (252, 3)] {
        assert_eq!(place_of(&machine.system, number(major, minor)), None, "{major}:{minor}");
    }
    assert_eq!(place_of(&machine.system, number(259, 12)), Some(("nvme1n1".into(), 101 * MIB)));
    assert_eq!(place_of(&machine.system, number(259, 10)), Some(("nvme1n1".into(), 0)));
    assert_eq!(place_of(&machine.system, number(0, 44)), None);
}

#[test]
fn paths_to_one_volume() {
    let machine = Machine::new();
    for (name, number) in [("sda", "8:0"), ("sdb", "8:16")] {
        machine.disk(EBS, name, number);
        machine.write(&format!("{EBS}/{name}/device/wwid"), "naa.600a098038303053453f463045727654");
    }
    machine.dm("dm-0", "252:0", "mpath-3600a0980", "mpatha", &["sda", "sdb"]);
    machine.dm("dm-1", "252:1", "part1-mpath-3600a0980", "mpatha1", &["dm-0"]);
    assert_eq!(machine.below("dm-0"), [whole("dm-0")], "one volume, on whichever path works");
    assert_eq!(machine.below("dm-1"), [whole("dm-0")]);
    assert_eq!(place_of(&machine.system, rustix::fs::makedev(252, 0)), Some(("dm-0".into(), 0)));
    let mut volumes = Vec::new();
    for name in ["dm-0", "sdb", "sda"] {
        add_members(&machine.system, name, name, &mut volumes, 0).unwrap();
    }
    assert_eq!(volumes.len(), 1, "a path is the same volume");
    assert_eq!(volumes[0].identity, "wwid-naa.600a098038303053453f463045727654");
    // multipathd without find_multipaths puts itself over each EBS volume.
    let machine = two_volumes();
    machine.dm("dm-0", "252:0", "mpath-nvme.1d0f", "mpathj", &["nvme1n1"]);
    assert_eq!(machine.below("dm-0"), [whole("nvme1n1")]);
}

#[test]
fn stacks_without_an_end() {
    let machine = Machine::new();
    machine.ebs("nvme1n1", "259:10", ID);
    machine.stack("dm-0", "252:0", &["nvme1n1"]);
    machine.stack("dm-1", "252:1", &["dm-0"]);
    symlink("../../dm-1", machine.path(&format!("sys/{VIRTUAL}/dm-0/slaves/dm-1"))).unwrap();
    let Some(node) = machine.node("dev/dm-1", (252, 1)) else { return };
    assert!(machine.refused(&node).0.contains("devices on devices without an end"));
}

#[test]
fn what_a_volume_is_called_elsewhere() {
    let machine = Machine::new();
    let of = |name: &str| identity(&machine.system, name);
    machine.ebs("nvme1n1", "259:10", ID);
    machine.write(&format!("{}/wwid", machine.folder_of("nvme1n1")), "nvme.1d0f-766f6c");
    assert_eq!(of("nvme1n1"), ID);
    // Two volumes of one controller.
    machine.nvme("nvme2n1", "259:20", "nvme_card");
    machine.nvme("nvme3n1", "259:30", "nvme_card");
    machine.write(&format!("{}/wwid", machine.folder_of("nvme2n1")), "nvme.1ae0-1");
    machine.write(&format!("{}/wwid", machine.folder_of("nvme3n1")), "nvme.1ae0-2");
    assert_eq!((of("nvme2n1"), of("nvme3n1")), ("wwid-nvme.1ae0-1".into(), "wwid-nvme.1ae0-2".into()));
    // virtio: whoever starts the machine gives a serial number, or none.
    machine.disk(EBS, "vda", "254:0");
    machine.write(&format!("{EBS}/vda/serial"), "disk");
    machine.disk(EBS, "vdb", "254:16");
    machine.write(&format!("{EBS}/vdb/serial"), "disk");
    machine.disk(EBS, "vdc", "254:32");
    machine.write(&format!("{EBS}/vdc/serial"), "");
    assert_eq!((of("vda"), of("vdb")), ("serial-disk".into(), "serial-disk".into()));
    assert_ne!(of("vdc"), "serial-");
    let mut volumes = Vec::new();
    for name in ["vda", "vdb", "vdc"] {
        add_members(&machine.system, name, name, &mut volumes, 0).unwrap();
    }
    assert_eq!(volumes.len(), 3, "numbers given by hand may be the same");
    // Xen and loop devices tell nothing: what is attached next under this name is another volume.
    for (name, number) in [("xvdf", "202:80"), ("loop0", "7:0")] {
        machine.disk(VIRTUAL, name, number);
        machine.write(&format!("{VIRTUAL}/{name}/loop/backing_file"), "/var/image");
        machine.write(&format!("{VIRTUAL}/{name}/diskseq"), "7");
        let first = of(name);
        assert!(first.starts_with(name), "{first}");
        assert_eq!(of(name), first);
        machine.write(&format!("{VIRTUAL}/{name}/diskseq"), "8");
        assert_ne!(of(name), first);
    }
}

/// The console says /dev/sdf. On Nitro only a rule of udev makes a link of it, on Xen the kernel calls it otherwise.
#[test]
fn names_that_the_console_says() {
    let machine = two_volumes();
    let (said, hint) = machine.refused("/dev/sdf987");
    assert_eq!(said, "/dev/sdf987: there is no such device, file or volume");
    assert!(hint.unwrap().contains(ID));
    machine.disk(EBS, "xvdf987", "202:80");
    assert_eq!(machine.refused("/dev/sdf987").1.unwrap(), "is it /dev/xvdf987?");
}

#[test]
fn files_and_character_devices() {
    let mut machine = two_volumes();
    machine.mount((20, 1), "259:21", "", "ext4", "/dev/root");
    assert!(machine.refused("/dev/null").0.contains("neither a block device nor a file nor a mount point"));
    let (image, link) = (machine.path("image"), machine.path("link"));
    fs::write(&image, "x").unwrap();
    symlink("image", &link).unwrap();
    assert_eq!(machine.found(&[image.to_str().unwrap()]), [parts("nvme2n1", &[P1])]);
    machine.system.images = true;
    let names = [image.to_str().unwrap(), link.to_str().unwrap()];
    let found = machine.resolve(&names).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!((&found[0].node, &found[0].name), (&image, &None));
    assert_eq!(found[0].named, names);
}

#[test]
fn mount_points_and_files_on_them() {
    let machine = two_volumes();
    machine.mount((20, 1), "259:21", "", "ext4", "/dev/root");
    let data = machine.mount((30, 20), "259:12", "mnt/data", "xfs", "/dev/nvme1n1p2");
    let blank = machine.mount((31, 20), "259:10", "mnt/a b", "ext4", "/dev/nvme1n1");
    let longer = machine.mount((32, 20), "259:20", "mnt/data2", "ext4", "/dev/nvme2n1");
    fs::create_dir(machine.path("mnt/data/folder")).unwrap();
    fs::write(machine.path("mnt/data/folder/file"), "").unwrap();
    symlink("data/folder", machine.path("mnt/link")).unwrap();
    let file = machine.path("mnt/data/folder/file").to_str().unwrap().to_owned();
    let through = machine.path("mnt/link/file").to_str().unwrap().to_owned();
    for name in [&data, &format!("{data}/"), &file, &through] {
        assert_eq!(machine.found(&[name]), [parts("nvme1n1", &[P2])], "{name}");
    }
    assert_eq!(machine.found(&[&blank]), [whole("nvme1n1")]);
    assert_eq!(machine.found(&[&longer, &data]), [whole("nvme2n1"), parts("nvme1n1", &[P2])]);
    let (said, hint) = machine.refused(machine.path("mnt/link").to_str().unwrap());
    assert!(said.ends_with("mnt/link is a folder, and nothing is mounted on it"), "{said}");
    assert_eq!(hint.unwrap(), format!("it lies on {data}"));
    fs::write(&machine.system.mounts, "").unwrap();
    assert_eq!(machine.refused(&data).1, None);
}

#[test]
fn mounts_over_mounts() {
    let machine = two_volumes();
    machine.mount((20, 1), "259:21", "", "ext4", "/dev/root");
    let below = machine.mount((30, 20), "259:11", "mnt/a/b", "ext4", "/dev/nvme1n1p1");
    // Over the same folder.
    machine.mount((31, 30), "259:12", "mnt/a/b", "ext4", "/dev/nvme1n1p2");
    assert_eq!(machine.found(&[&below]), [parts("nvme1n1", &[P2])]);
    // Over the folder above it: what was mounted below it can't be reached any more.
    let above = machine.mount((32, 20), "259:22", "mnt/a", "ext4", "/dev/nvme2n1p2");
    assert_eq!(machine.found(&[&above]), [parts("nvme2n1", &[P2])]);
    assert_eq!(machine.refused(&below).1.unwrap(), format!("it lies on {above}"));
    machine.mount((33, 32), "259:10", "mnt/a/b", "ext4", "/dev/nvme1n1");
    assert_eq!(machine.found(&[&below]), [whole("nvme1n1")]);
    let twice = machine.mount((34, 20), "259:11", "mnt/twice", "ext4", "/dev/nvme1n1p1");
    machine.mount((35, 20), "259:12", "mnt/twice", "ext4", "/dev/nvme1n1p2");
    assert_eq!(machine.found(&[&twice]), [parts("nvme1n1", &[P2])]);
    // A list that makes no sense has an end all the same.
    machine.mount((40, 41), "259:11", "mnt/c", "ext4", "x");
    machine.mount((41, 40), "259:12", "mnt/c", "ext4", "x");
    let _ = machine.resolve(&[machine.path("mnt/c").to_str().unwrap()]);
}

#[test]
fn bind_mounts() {
    let machine = two_volumes();
    machine.mount((20, 1), "259:21", "", "ext4", "/dev/root");
    let bound = machine.mount((30, 20), "259:12", "var/lib/kubelet/pods/x/mount", "xfs", "/dev/nvme1n1p2");
    assert_eq!(machine.found(&[&bound]), [parts("nvme1n1", &[P2])]);
    // Of a single file: the mount point is that file.
    let file = machine.path("etc-hosts");
    fs::write(&file, "").unwrap();
    let line = format!("31 20 259:20 /pods/hosts {} rw - ext4 /dev/nvme2n1 rw\n", file.display());
    fs::write(&machine.system.mounts, machine.mounts.borrow().clone() + &line).unwrap();
    assert_eq!(machine.found(&[file.to_str().unwrap()]), [whole("nvme2n1")]);
}

#[test]
fn lines_of_mountinfo() {
    let line = br"36 35 98:0 /mnt1 /mnt/a\040b\134c\011\012 rw master:1 propagate_from:2 - ext3 /dev/ro\040ot rw,a - b";
    let mount = Mount::parse(line).unwrap();
    assert_eq!((mount.id, mount.parent, mount.number), (36, 35, (98, 0)));
    assert_eq!(mount.point, Path::new("/mnt/a b\\c\t\n"));
    assert_eq!(mount.source, Path::new("/dev/ro ot"));
    let without = Mount::parse(b"36 35 0:31 / /run rw - tmpfs  rw").unwrap();
    assert_eq!(without.source, Path::new(""));
    let odd = Mount::parse(b"36 35 8:1 / /mnt/\xff\\9\\77 rw - ext4 /dev/sda1 rw").unwrap();
    assert_eq!(odd.point.into_os_string().into_vec(), b"/mnt/\xff\\9\\77");
    for wrong in
        ["", "36 35", "36 35 8:1 / /mnt rw ext4 /dev/sda1", "x y 8:1 / /mnt rw - ext4 a rw", "1 2 8 / /m rw - a b c"]
    {
        assert!(Mount::parse(wrong.as_bytes()).is_none(), "{wrong}");
    }
}

/// One mount point whose name is no text, as any user of a desktop can make it, hides no other.
#[test]
fn mountinfo_that_is_no_text() {
    let machine = two_volumes();
    let data = machine.mount((30, 20), "259:10", "mnt/data", "ext4", "/dev/nvme1n1");
    let mut lines = fs::read(&machine.system.mounts).unwrap();
    lines.extend_from_slice(b"31 20 259:20 / /media/\xff\xfe rw - vfat /dev/nvme2n1 rw\n");
    fs::write(&machine.system.mounts, lines).unwrap();
    assert_eq!(machine.found(&[&data]), [whole("nvme1n1")]);
}

/// Its number is its own, and of its devices it names one.
#[test]
fn btrfs() {
    let machine = two_volumes();
    machine.dm("dm-0", "252:0", "LVM-abc", "vg-pool", &["nvme2n1p1"]);
    let dev = |name: &str| machine.system.dev.join(name).to_str().unwrap().to_owned();
    // The node is not there, as in a container.
    let data = machine.mount((30, 20), "0:44", "data", "btrfs", &dev("nvme1n1p1"));
    assert_eq!(machine.found(&[&data]), [parts("nvme1n1", &[P1])]);
    let mapped = machine.mount((31, 20), "0:45", "mapped", "btrfs", &dev("mapper/vg-pool"));
    assert_eq!(machine.found(&[&mapped]), [parts("nvme2n1", &[P1])]);
    for name in ["nvme1n1p1", "dm-0"] {
        fs::create_dir_all(machine.path(&format!("sys/fs/btrfs/5a1f/devices/{name}"))).unwrap();
    }
    fs::create_dir_all(machine.path("sys/fs/btrfs/features")).unwrap();
    for name in [&data, &mapped] {
        assert_eq!(machine.found(&[name]).len(), 2, "all its devices");
    }
    let gone = machine.mount((32, 20), "0:46", "gone", "btrfs", &dev("nvme9n1"));
    assert!(machine.refused(&gone).0.contains("is on no block device of its own; name its devices"));
    let Some(_) = machine.node("dev/alias", (259, 20)) else { return };
    let alias = machine.mount((33, 20), "0:47", "alias", "btrfs", &dev("alias"));
    assert_eq!(machine.found(&[&alias]), [whole("nvme2n1")]);
}

#[test]
fn file_systems_without_a_device() {
    let machine = two_volumes();
    for (n, (kind, source)) in
        [("zfs", "tank/data"), ("overlay", "overlay"), ("tmpfs", "tmpfs"), ("nfs4", "host:/nvme1n1")]
            .into_iter()
            .enumerate()
    {
        let point = machine.mount((30 + n as u32, 20), &format!("0:5{n}"), kind, kind, source);
        let said = machine.refused(&point).0;
        assert!(said.contains(&format!("({source}) is on no block device of its own; name its devices")), "{said}");
        // A file on it can only be meant itself.
        let file = machine.path(kind).join("file");
        fs::write(&file, "x").unwrap();
        let found = machine.resolve(&[file.to_str().unwrap()]).unwrap();
        assert_eq!((&found[0].node, &found[0].name), (&file, &None));
    }
}

/// What this machine has: its root, and its loop devices.
#[test]
fn this_machine() {
    let system = System::new(None, false);
    let device = Path::new("/dev/loop0");
    match fs::metadata(device) {
        Ok(meta) if meta.file_type().is_block_device() => {
            let found = resolve(&system, &["/dev/loop0".into(), "/dev/../dev/loop0".into()]).unwrap();
            assert_eq!(found.len(), 1);
            assert_eq!((found[0].node.as_path(), found[0].name.as_deref()), (device, Some("loop0")));
        }
        _ => eprintln!("SKIPPED: there is no /dev/loop0 here"),
    }
    let root = fs::metadata("/").unwrap().dev();
    let Some(name) = name_of_number(&system, root) else {
        return eprintln!("SKIPPED: the root here is on no device of its own");
    };
    let found = resolve(&system, &["/".into()]).unwrap();
    let mut members = Vec::new();
    add_members(&system, "/", &name, &mut members, 0).unwrap();
    assert_eq!(found, members);
}
