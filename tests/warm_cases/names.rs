//! What a person can name: volume ids, stacks, things that are no volumes, and the name `ebsinit`.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::run::{MIB, Place, Running, all_once, has, once, one, shown, touched, volume};
use crate::support::lazy_volume::{LazyVolumes, Settings};
use crate::support::loop_device::{LoopDevice, make_node};

fn quick(size: u64) -> Settings {
    Settings { size, cold_latency: Duration::from_millis(2), ..Settings::default() }
}

/// A sysfs of our own: devices, their numbers, and what they are made of.
struct Sysfs(PathBuf);

impl Sysfs {
    fn new(place: &Place) -> Self {
        let folder = place.path("sys");
        fs::create_dir_all(folder.join("block")).unwrap();
        Self(folder)
    }

    fn add(&self, name: &str, number: &str, slaves: &[&str]) {
        let folder = self.0.join("block").join(name);
        fs::create_dir_all(folder.join("slaves")).unwrap();
        fs::write(folder.join("dev"), format!("{number}\n")).unwrap();
        slaves.iter().for_each(|slave| fs::create_dir(folder.join("slaves").join(slave)).unwrap());
    }

    fn add_loop(&self, device: &LoopDevice, serial: Option<&str>) {
        let number = fs::read_to_string(device.sysfs().join("dev")).unwrap();
        self.add(device.name(), number.trim(), &[]);
        if let Some(serial) = serial {
            let folder = self.0.join("block").join(device.name()).join("device");
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("serial"), format!("{serial}\n")).unwrap();
        }
    }
}

/// Two volumes and the devices over them.
fn two() -> Option<(LazyVolumes, [LoopDevice; 2])> {
    let volumes = LazyVolumes::mount(vec![quick(16 * MIB), quick(8 * MIB)])?;
    let devices = [LoopDevice::over(volumes.path(0), &[])?, LoopDevice::over(volumes.path(1), &[])?];
    (0..2).for_each(|n| volumes.reset(n));
    Some((volumes, devices))
}

#[test]
fn a_stack_is_followed_to_its_members_each_once() {
    let Some((volumes, [first, second])) = two() else { return };
    let place = Place::new();
    let Some(node) = make_node(&place.path("striped"), "252:77") else { return };
    let sysfs = Sysfs::new(&place);
    sysfs.add_loop(&first, None);
    sysfs.add_loop(&second, None);
    // A volume on a stripe of a mirror, of which both halves lie on the same two.
    sysfs.add("dm-0", "252:77", &["dm-1", "md127"]);
    sysfs.add("dm-1", "252:78", &[first.name(), second.name()]);
    sysfs.add("md127", "9:127", &[second.name(), first.name()]);
    let options = format!("--sysfs {}", shown(&sysfs.0));
    let run = place.warm(&format!("{options} --json {}", shown(&node))).exit(0);
    assert_eq!(run.events()[0]["volumes"].as_array().unwrap().len(), 2, "{run}");
    (0..2).for_each(|n| all_once(&volumes, n));
    // The stack, and one of its members by itself.
    (0..2).for_each(|n| volumes.reset(n));
    let line = format!("{options} --again {} {} {}", shown(first.path()), shown(&node), shown(first.path()));
    place.warm(&line).silent();
    (0..2).for_each(|n| all_once(&volumes, n));
    let run = place.warm(&format!("{options} -n {}", shown(&node))).exit(0);
    run.says(&[&format!("{} for {}", shown(first.path()), shown(&node)), shown(second.path())]);
    let line = format!("{options} --state {} {}", shown(&place.path("state")), shown(&node));
    place.warm(&line).fails(2, &["--state is for one volume, and these are 2"]);
}

#[test]
fn a_stack_without_an_end() {
    let place = Place::new();
    let Some(node) = make_node(&place.path("loop"), "252:77") else { return };
    let sysfs = Sysfs::new(&place);
    sysfs.add("dm-0", "252:77", &["dm-1"]);
    sysfs.add("dm-1", "252:78", &["dm-0"]);
    let line = format!("--sysfs {} {}", shown(&sysfs.0), shown(&node));
    place.warm(&line).fails(2, &[shown(&node), "without an end"]);
}

#[test]
fn volumes_by_their_ids() {
    let Some((volumes, [first, second])) = two() else { return };
    let place = Place::new();
    let sysfs = Sysfs::new(&place);
    sysfs.add_loop(&first, Some("vol0123456789abcdef0"));
    sysfs.add_loop(&second, Some("vol-0123456789abcdef1"));
    let options = format!("--sysfs {}", shown(&sysfs.0));
    let names = format!("vol-0123456789abcdef0 vol0123456789abcdef0 vol-0123456789ABCDEF0 {}", shown(first.path()));
    let run = place.warm(&format!("{options} --json {names}")).exit(0);
    assert_eq!(run.events()[0]["volumes"].as_array().unwrap().len(), 1, "{run}");
    assert_eq!(
        (&run.done(0)["volume"], &run.done(0)["device"]),
        (&"vol-0123456789abcdef0".into(), &shown(first.path()).into())
    );
    all_once(&volumes, 0);
    once(&volumes, 1, []);
    // The state goes with the id, wherever the volume is attached.
    let state = fs::read_dir(place.states()).unwrap().next().unwrap().unwrap().file_name();
    assert!(state.to_str().unwrap().starts_with("vol-0123456789abcdef0-"), "{state:?}");
    place.warm(&format!("{options} -v vol0123456789abcdef1")).exit(0).says(&["(vol-0123456789abcdef1)"]);
    all_once(&volumes, 1);
    let run = place.warm(&format!("{options} vol-0123456789abcdef2")).fails(4, &["vol-0123456789abcdef2"]);
    run.says(&["attached are vol-0123456789abcdef0", "vol-0123456789abcdef1"]);
}

/// Such as on two paths.
#[test]
fn one_volume_under_two_device_names_is_read_once() {
    let Some((volumes, [first, other])) = two() else { return };
    let Some(again) = LoopDevice::over(volumes.path(0), &[]) else { return };
    volumes.reset(0);
    let place = Place::new();
    let sysfs = Sysfs::new(&place);
    for (device, serial) in [(&first, "vol0123456789abcdef0"), (&other, "vol2"), (&again, "vol0123456789abcdef0")] {
        sysfs.add_loop(device, Some(serial));
    }
    let names = format!("{} {} {}", shown(first.path()), shown(again.path()), shown(other.path()));
    place.warm(&format!("--sysfs {} {names}", shown(&sysfs.0))).silent();
    (0..2).for_each(|n| all_once(&volumes, n));
}

#[test]
fn what_is_no_volume() {
    let place = Place::new();
    let _stream = UnixListener::bind(place.path("socket")).unwrap();
    let empty = place.path("empty");
    File::create(&empty).unwrap();
    let text = "is neither a block device nor a file nor a mount point";
    place.warm("/dev/there-is-no-such-device").fails(4, &["/dev/there-is-no-such-device", "no such device"]);
    place.warm("vol-00000000000000000").fails(4, &["vol-00000000000000000", "no such device"]);
    place.warm(shown(&place.path("missing"))).fails(4, &["no such device"]);
    place.warm("/dev/null").fails(2, &["/dev/null", text]);
    place.warm(shown(&place.path("socket"))).fails(2, &["socket", text]);
    place.warm(&format!("--image {}", shown(&empty))).fails(1, &[shown(&empty), "it has no bytes"]);
    place.warm(shown(&place.path("socket").join("below"))).exit(1);
    let folder = place.path("folder");
    fs::create_dir(&folder).unwrap();
    place.warm(shown(&folder)).fails(2, &[shown(&folder), "is a folder, and nothing is mounted on it", "it lies on"]);
    place.warm("/proc").fails(2, &["/proc", "no block device"]);
    // One that is wrong spoils all, before anything is read.
    let Some(volumes) = one(quick(16 * MIB)) else { return };
    place.warm(&format!("{} /dev/null", volume(&volumes, 0))).fails(2, &["/dev/null"]);
    place.warm(&format!("{} {}", volume(&volumes, 0), shown(&place.path("missing")))).fails(4, &["missing"]);
    once(&volumes, 0, []);
}

/// Such as files of sysfs.
#[test]
fn what_knows_no_direct_reads() {
    let file = Path::new("/sys/kernel/uevent_seqnum");
    if !file.is_file() {
        eprintln!("SKIPPED: {} is not there", file.display());
        return;
    }
    Place::new().warm(shown(file)).fails(1, &[shown(file), "O_DIRECT"]);
}

#[test]
fn a_device_without_bytes() {
    let place = Place::new();
    let empty = place.path("empty");
    File::create(&empty).unwrap();
    let Some(device) = LoopDevice::over(&empty, &[]) else { return };
    place.warm(shown(device.path())).fails(1, &[shown(device.path()), "it has no bytes"]);
}

#[test]
fn without_permission() {
    if !has("setpriv") {
        return;
    }
    let Some(volumes) = one(quick(8 * MIB)) else { return };
    let Some(device) = LoopDevice::over(volumes.path(0), &[]) else { return };
    volumes.reset(0);
    let place = Place::new();
    fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o777)).unwrap();
    let plain = place.command(shown(device.path()));
    let nobody = || {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command
    };
    let mut command = nobody();
    command.arg(plain.get_program()).arg("--version");
    if !command.output().unwrap().status.success() {
        eprintln!("SKIPPED: nobody may run {}", plain.get_program().display());
        return;
    }
    let mut command = nobody();
    command.arg(plain.get_program()).args(plain.get_args());
    Running::new(command).end().fails(1, &[shown(device.path()), "Permission denied"]);
    once(&volumes, 0, []);
    whoever_is_not_root_keeps_states_in_the_runtime_folder(&place, nobody());
}

fn whoever_is_not_root_keeps_states_in_the_runtime_folder(place: &Place, mut nobody: Command) {
    let (image, runtime) = (place.path("image"), place.path("runtime"));
    fs::write(&image, vec![1; MIB as usize]).unwrap();
    fs::set_permissions(&image, fs::Permissions::from_mode(0o644)).unwrap();
    fs::create_dir(&runtime).unwrap();
    fs::set_permissions(&runtime, fs::Permissions::from_mode(0o777)).unwrap();
    nobody.env_remove("SNAPFERRY_STATE_DIR").env("XDG_RUNTIME_DIR", &runtime);
    nobody.arg(env!("CARGO_BIN_EXE_snapferry")).args(["warm", "--image"]).arg(&image);
    let run = Running::new(nobody).end();
    if run.stderr.contains("O_DIRECT") {
        eprintln!("SKIPPED: files in {} know no direct reads", place.path("").display());
        return;
    }
    run.silent();
    let kept: Vec<_> = fs::read_dir(runtime.join("snapferry")).unwrap().map(|entry| entry.unwrap()).collect();
    assert_eq!((kept.len(), kept[0].metadata().unwrap().uid()), (1, 65534));
}

/// A way to run a program that sees other folders in place of `/run` and `/dev`: those of that name in `place`.
/// `None`, with a loud word, where that is not possible.
pub fn in_private_run(place: &Place) -> Option<Command> {
    for name in ["run", "dev"] {
        let _ = fs::create_dir(place.path(name));
    }
    let private = || {
        let mut command = Command::new("unshare");
        let mounts = format!("mount --bind {0}/run /run && mount --bind {0}/dev /dev", shown(&place.path("")));
        command.args(["--mount", "sh", "-c", &format!("{mounts} && exec \"$@\""), "sh"]);
        command.env_remove("SNAPFERRY_STATE_DIR");
        command
    };
    let works = private().arg("true").stdin(Stdio::null()).output().is_ok_and(|output| output.status.success());
    if !works {
        eprintln!("SKIPPED: a private view of /run can't be had here");
    }
    works.then(private)
}

/// The program under that name, with `words`.
fn ebsinit(place: &Place, words: &[&str]) -> Option<Running> {
    let link = place.path("ebsinit");
    if !link.is_symlink() {
        symlink(env!("CARGO_BIN_EXE_snapferry"), &link).unwrap();
    }
    let mut command = in_private_run(place)?;
    command.arg(link).args(words);
    Some(Running::new(command))
}

#[test]
fn as_ebsinit() {
    let bad = Settings { bad: vec![3], ..quick(16 * MIB) };
    let dead = Settings { bad: (0..16).collect(), ..quick(8 * MIB) };
    let Some(volumes) = LazyVolumes::mount(vec![quick(16 * MIB + 1), bad, dead]) else { return };
    let place = Place::new();
    let run = |words: &[&str]| ebsinit(&place, words).map(Running::end);
    let [good, bad, dead] = [0, 1, 2].map(|n| volume(&volumes, n));
    let Some(silent) = run(&["-s", &good]) else { return };
    silent.silent();
    all_once(&volumes, 0);
    for version in ["-v", "--version"] {
        run(&[version]).unwrap().exit(0).says(&["ebsinit", env!("CARGO_PKG_VERSION")]);
    }
    for help in ["-h", "--help"] {
        run(&[help]).unwrap().exit(0).says(&["--silent", "--syslog", "--version"]);
    }
    run(&[]).unwrap().exit(2);
    run(&[&good, &bad]).unwrap().exit(2);
    run(&["--frobnicate", &good]).unwrap().exit(2);
    run(&["/dev/there-is-no-such-device"]).unwrap().fails(4, &["no such device"]);
    // What the tool of that name calls 100 % done.
    let partial = run(&["--silent", &bad]).unwrap().exit(3);
    assert!(partial.warnings().iter().any(|line| line.contains("block 3 ")), "{partial}");
    assert_eq!(touched(&volumes, 1).len(), 32);
    run(&["-s", &dead]).unwrap().exit(1).says(&["answers no read"]);
}

#[test]
fn as_ebsinit_with_syslog() {
    let Some(volumes) = one(quick(8 * MIB)) else { return };
    let place = Place::new();
    if in_private_run(&place).is_none() {
        return;
    }
    let socket = UnixDatagram::bind(place.path("dev/log")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let running = ebsinit(&place, &["-s", "-l", &volume(&volumes, 0)]).unwrap();
    let mut buffer = [0; 2048];
    loop {
        let length = socket.recv(&mut buffer).expect("a word of the end");
        let line = String::from_utf8_lossy(&buffer[..length]);
        assert!(line.starts_with("<14>") && line.contains(" ebsinit["), "{line}");
        if line.contains("Complete") {
            break;
        }
    }
    running.end().silent();
    all_once(&volumes, 0);
}
