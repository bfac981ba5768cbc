//! Machines that exist as folders alone: sysfs laid out as the kernel does it, with its links, and nodes of devices
//! that nobody has.

use std::os::unix::fs::symlink;

use super::super::*;

/// Where the kernel has disks of hardware.
pub const EBS: &str = "devices/pci0000:00";
/// And those of its own.
pub const VIRTUAL: &str = "devices/virtual/block";

/// A machine of its own.
pub struct Machine {
    folder: tempfile::TempDir,
    /// What is asked of it.
    pub system: System,
    /// Its mountinfo so far.
    pub mounts: std::cell::RefCell<String>,
}

impl Machine {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(folder.path()).unwrap();
        let system =
            System { sysfs: root.join("sys"), dev: root.join("dev"), mounts: root.join("mountinfo"), images: false };
        for name in ["sys/block", "sys/dev/block", "dev/disk/by-id", "dev/mapper"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        fs::write(&system.mounts, "").unwrap();
        Self { folder, system, mounts: String::new().into() }
    }

    /// A path in this machine.
    pub fn path(&self, name: &str) -> PathBuf {
        fs::canonicalize(self.folder.path()).unwrap().join(name)
    }

    pub fn write(&self, name: &str, content: &str) {
        let path = self.system.sysfs.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{content}\n")).unwrap();
    }

    pub fn folder_of(&self, disk: &str) -> String {
        let link = fs::read_link(self.system.sysfs.join("block").join(disk)).unwrap();
        link.strip_prefix("..").unwrap().to_str().unwrap().to_owned()
    }

    pub fn disk(&self, below: &str, name: &str, number: &str) {
        let folder = format!("{below}/{name}");
        self.write(&format!("{folder}/dev"), number);
        self.write(&format!("{folder}/hidden"), "0");
        self.write(&format!("{folder}/size"), "2097152");
        for part in ["slaves", "holders", "queue"] {
            fs::create_dir_all(self.system.sysfs.join(&folder).join(part)).unwrap();
        }
        symlink(format!("../{folder}"), self.system.sysfs.join("block").join(name)).unwrap();
        symlink(format!("../../{folder}"), self.system.sysfs.join("dev/block").join(number)).unwrap();
    }

    /// `nvme1n1` with its controller, which has a number and a serial number of its own.
    pub fn nvme(&self, name: &str, number: &str, serial: &str) {
        let controller = format!("{EBS}/nvme/{}", name.rsplit_once('n').unwrap().0);
        self.disk(&controller, name, number);
        self.write(&format!("{controller}/serial"), &format!("{serial:<20}"));
        self.write(&format!("{controller}/dev"), "259:1");
        symlink(
            format!("../../{}", controller.rsplit('/').next().unwrap()),
            self.system.sysfs.join(format!("{controller}/{name}/device")),
        )
        .unwrap();
    }

    pub fn ebs(&self, name: &str, number: &str, id: &str) {
        self.nvme(name, number, &id.replace('-', ""));
    }

    /// In sectors of 512 bytes, as the kernel counts whatever the sectors are.
    pub fn part(&self, disk: &str, name: &str, number: &str, start: u64, size: u64) {
        let folder = format!("{}/{name}", self.folder_of(disk));
        self.write(&format!("{folder}/partition"), "1");
        self.write(&format!("{folder}/start"), &start.to_string());
        self.write(&format!("{folder}/size"), &size.to_string());
        self.write(&format!("{folder}/dev"), number);
        symlink(format!("../../{folder}"), self.system.sysfs.join("dev/block").join(number)).unwrap();
    }

    pub fn stack(&self, name: &str, number: &str, members: &[&str]) {
        self.disk(VIRTUAL, name, number);
        for member in members {
            let folder = match disk_of(&self.system, member) {
                Some(disk) => format!("{}/{member}", self.folder_of(&disk)),
                None => self.folder_of(member),
            };
            let link = self.system.sysfs.join(VIRTUAL).join(name).join("slaves").join(member);
            symlink(format!("../../../../../{folder}"), link).unwrap();
        }
    }

    pub fn dm(&self, name: &str, number: &str, uuid: &str, mapped: &str, members: &[&str]) {
        self.stack(name, number, members);
        self.write(&format!("{VIRTUAL}/{name}/dm/uuid"), uuid);
        self.write(&format!("{VIRTUAL}/{name}/dm/name"), mapped);
    }

    /// A node of a device, which may be looked at and not opened.
    pub fn node(&self, name: &str, number: (u32, u32)) -> Option<String> {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let (kind, number) = (rustix::fs::FileType::BlockDevice, rustix::fs::makedev(number.0, number.1));
        let made = rustix::fs::mknodat(rustix::fs::CWD, &path, kind, rustix::fs::Mode::RUSR, number);
        if let Err(error) = made {
            eprintln!("SKIPPED: no node of a device can be made here ({error}); run this as root");
            return None;
        }
        Some(path.to_str().unwrap().to_owned())
    }

    /// The folder `point` of this machine, and a line of mountinfo for it. `ids`: its own and its parent's.
    pub fn mount(&self, ids: (u32, u32), number: &str, point: &str, kind: &str, source: &str) -> String {
        let path = self.path(point);
        fs::create_dir_all(&path).unwrap();
        let escaped = path.to_str().unwrap().replace(' ', "\\040");
        let line = format!("{} {} {number} / {escaped} rw,relatime shared:1 - {kind} {source} rw\n", ids.0, ids.1);
        self.mounts.borrow_mut().push_str(&line);
        fs::write(&self.system.mounts, self.mounts.borrow().as_str()).unwrap();
        path.to_str().unwrap().to_owned()
    }

    pub fn resolve(&self, names: &[&str]) -> Result<Vec<Volume>, TargetError> {
        resolve(&self.system, &names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
    }

    /// The names of the volumes, and what of them.
    pub fn found(&self, names: &[&str]) -> Vec<(String, Vec<Range<u64>>)> {
        let volumes = self.resolve(names).unwrap();
        volumes.into_iter().map(|volume| (volume.name.unwrap(), volume.parts)).collect()
    }

    /// What a device of this name is made of, however it was named.
    pub fn below(&self, device: &str) -> Vec<(String, Vec<Range<u64>>)> {
        let mut volumes = Vec::new();
        add_members(&self.system, device, device, &mut volumes, 0).unwrap();
        volumes.into_iter().map(|volume| (volume.name.unwrap(), volume.parts)).collect()
    }

    pub fn refused(&self, name: &str) -> (String, Option<String>) {
        let error = self.resolve(&[name]).unwrap_err();
        let said = error.to_string();
        match error {
            TargetError::Missing { hint, .. } | TargetError::NoMountPoint { hint, .. } => (said, hint),
            _ => (said, None),
        }
    }
}
