//! `warm` on simulated volumes, files and loop devices: what is touched, what is told, and how it goes on.

mod support {
    pub mod lazy_volume;
}

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::lazy_volume::{LazyVolumes, Settings};
use tempfile::TempDir;

const CHUNK: u64 = 512 * 1024;
const MS: Duration = Duration::from_millis(1);

/// Volumes and a folder for states.
struct Bench {
    volumes: LazyVolumes,
    folder: TempDir,
}

impl Bench {
    /// `None` where volumes can't be simulated, which was said.
    fn new(settings: Vec<Settings>) -> Option<Self> {
        Some(Self { volumes: LazyVolumes::mount(settings)?, folder: tempfile::tempdir().unwrap() })
    }

    fn of(settings: Settings) -> Option<Self> {
        Self::new(vec![settings])
    }

    fn volume(&self) -> String {
        self.volumes.path(0).display().to_string()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_snapferry"));
        command.arg("warm").arg("--state-dir").arg(self.folder.path());
        command.args(shlex::split(line).unwrap()).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, line: &str) -> Run {
        Run(self.command(line).output().unwrap())
    }

    /// On the first volume.
    fn warm(&self, options: &str) -> Run {
        self.run(&format!("{options} {}", self.volume()))
    }

    fn start(&self, options: &str) -> Child {
        self.command(&format!("{options} {}", self.volume())).spawn().unwrap()
    }

    /// Every block of a volume was touched just once, and none is cold.
    fn assert_warm(&self, n: usize) {
        assert_eq!(self.volumes.cold_left(n), 0, "cold blocks");
        let touches = self.volumes.touches(n);
        assert!(touches.iter().all(|touches| *touches == 1), "{touches:?}");
    }

    /// The blocks that were touched.
    fn touched(&self) -> Vec<u64> {
        (0..).zip(self.volumes.touches(0)).filter(|(_, touches)| *touches > 0).map(|(block, _)| block).collect()
    }
}

struct Run(Output);

impl Run {
    fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.0.stderr).into_owned()
    }

    fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.0.stdout).into_owned()
    }

    fn exit(self, code: i32) -> Self {
        assert_eq!(self.0.status.code(), Some(code), "{}{}", self.stdout(), self.stderr());
        self
    }

    fn says(self, words: &[&str]) -> Self {
        let said = self.stdout() + &self.stderr();
        words.iter().for_each(|word| assert!(said.contains(word), "{word:?} is not in {said}"));
        self
    }

    /// Nothing at all, and status 0.
    fn silent(self) {
        assert_eq!((self.0.status.code(), self.stdout() + &self.stderr()), (Some(0), String::new()));
    }

    fn events(&self, name: &str) -> Vec<Value> {
        let all = self.stdout();
        let all = all.lines().map(|line| serde_json::from_str::<Value>(line).expect("an event a line"));
        all.filter(|event| event["event"] == name).collect()
    }
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(MS);
    }
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

#[test]
fn every_block_is_touched_once() {
    for options in
        ["", "--engine threads", "--straddle on", "--straddle off --depth 3", "--background", "--max-iops 2000"]
    {
        for size in [64 << 20, 32 << 20 | 4096, (16 << 20) + 12_345, 700] {
            let Some(bench) = Bench::of(Settings { size, ..Settings::default() }) else { return };
            bench.warm(options).silent();
            bench.assert_warm(0);
        }
    }
}

#[test]
fn offsets_beyond_4_gib_and_2_tib() {
    let tib = 1u64 << 40;
    let Some(bench) = Bench::of(Settings { size: 3 * tib, fill: 0.0, ..Settings::default() }) else { return };
    for border in [2 * tib, 1 << 32] {
        bench.warm(&format!("--offset {} --length {}", border - 10 * CHUNK - 1, 20 * CHUNK)).silent();
        let first = border / CHUNK - 11;
        let touched: Vec<u64> = bench.touched().into_iter().filter(|block| block.abs_diff(first) < 100).collect();
        assert_eq!(touched, (first..first + 21).collect::<Vec<_>>());
    }
}

#[test]
fn several_volumes_in_one_run_and_each_once() {
    let Some(bench) = Bench::new(vec![Settings { par: 8, ..Settings::default() }; 4]) else { return };
    let link = bench.file("link");
    symlink(bench.volumes.path(0), &link).unwrap();
    let paths: Vec<String> = (0..4).map(|n| bench.volumes.path(n).display().to_string()).collect();
    let line = format!("{} {} {}", paths.join(" "), paths[0], link.display());
    let run = bench.run(&format!("--json {line}")).exit(0);
    assert_eq!(run.events("start")[0]["volumes"].as_array().unwrap().len(), 4);
    (0..4).for_each(|n| bench.assert_warm(n));
}

#[test]
fn bad_blocks_are_named_and_nothing_else_stays_cold() {
    let bad = vec![0, 7, 8, 127];
    for options in ["", "--straddle on", "--engine threads"] {
        let flaky = [(20, 1), (21, 3)].into();
        let Some(bench) = Bench::of(Settings { bad: bad.clone(), flaky, ..Settings::default() }) else { return };
        let run = bench.warm(&format!("--json {options}")).exit(3);
        let mut failed: Vec<u64> =
            run.events("block_failed").iter().map(|event| event["block"].as_u64().unwrap()).collect();
        failed.sort_unstable();
        assert_eq!(failed, bad, "{options}");
        assert_eq!(bench.volumes.cold_left(0), 4);
        let done = &run.events("done")[0]["volumes"][0];
        assert_eq!((&done["touched"], &done["failed"]), (&124.into(), &4.into()));
        bench.warm("").exit(3).says(&[
            "block 7 at byte 3670016 can't be read: Input/output error",
            "4 blocks could not be read: 0, 7-8, 127",
        ]);
    }
}

#[test]
fn a_volume_that_answers_nothing_is_a_failure() {
    let Some(bench) = Bench::of(Settings { bad: (0..128).collect(), ..Settings::default() }) else { return };
    bench.warm("-s").exit(1).says(&["answers no read: Input/output error", "nothing of it was initialised"]);
}

#[test]
fn a_volume_that_goes_away_is_told_as_that() {
    let Some(bench) = Bench::of(Settings { gone_after: Some(40), ..Settings::default() }) else { return };
    let run = bench.warm("-v --depth 8").exit(3);
    run.says(&["answers no more (No such device", "are still cold", "NOT wholly initialised"]);
}

#[test]
fn a_read_that_hangs_is_given_up_and_the_rest_is_read() {
    let Some(bench) = Bench::of(Settings { hang: vec![5], ..Settings::default() }) else { return };
    let child = bench.start("--give-up-after 1 --json");
    wait_until("a read to be held, and the others to be done", || {
        bench.volumes.held(0) == 1 && bench.volumes.cold_left(0) <= 1
    });
    std::thread::sleep(1500 * MS);
    // A process can't end while the kernel waits for its read.
    bench.volumes.release(0);
    let run = Run(child.wait_with_output().unwrap()).exit(3);
    let failed = &run.events("block_failed")[0];
    assert_eq!((&failed["block"], &failed["error"]), (&5.into(), &"no answer".into()));
}

#[test]
fn short_reads_go_on() {
    let Some(bench) = Bench::of(Settings { short: vec![1, 2, 3], ..Settings::default() }) else { return };
    bench.warm("").silent();
    assert_eq!(bench.volumes.cold_left(0), 0);
}

#[test]
fn a_run_that_was_stopped_goes_on_where_it_was() {
    for (which, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let settings = Settings { cold_latency: 50 * MS, par: 8, ..Settings::default() };
        let Some(bench) = Bench::of(settings) else { return };
        let child = bench.start("--depth 8");
        wait_until("half of it", || bench.volumes.cold_left(0) < 64);
        signal(&child, which);
        Run(child.wait_with_output().unwrap())
            .exit(code)
            .says(&["stopped by SIG", "the same command goes on where it was"]);
        let cold = bench.volumes.cold_left(0);
        assert!(cold > 0, "it was over before");
        let reads = bench.volumes.reads(0);
        bench.warm("").silent();
        bench.assert_warm(0);
        assert_eq!(bench.volumes.reads(0) - reads, cold);
    }
}

#[test]
fn a_run_that_was_killed_leaves_nothing_cold_at_last() {
    let settings = Settings { cold_latency: 50 * MS, par: 8, ..Settings::default() };
    let Some(bench) = Bench::of(settings) else { return };
    let child = bench.start("--depth 8 --straddle off");
    wait_until("half of it", || bench.volumes.cold_left(0) < 64);
    signal(&child, Signal::KILL);
    child.wait_with_output().unwrap();
    bench.warm("--straddle off").silent();
    assert_eq!(bench.volumes.cold_left(0), 0);
    let twice = bench.volumes.touches(0).iter().filter(|touches| **touches > 1).count();
    assert!(twice <= 8, "{twice} blocks were read twice, and 8 were under way");
}

#[test]
fn a_finished_volume_is_left_alone_unless_asked_for() {
    let Some(bench) = Bench::of(Settings::default()) else { return };
    bench.warm("").silent();
    let reads = bench.volumes.reads(0);
    bench.warm("-v").exit(0).says(&["all 128 blocks were read before"]);
    assert_eq!(bench.volumes.reads(0), reads);
    bench.warm("--again --straddle off").silent();
    assert_eq!(bench.volumes.reads(0), 2 * reads.max(128));
}

#[test]
fn states_of_others_and_damaged_ones_are_refused() {
    let Some(bench) = Bench::new(vec![Settings::default(), Settings::default()]) else { return };
    let state = bench.file("state");
    let shown = state.display();
    bench.warm(&format!("--state {shown}")).silent();
    let other = bench.volumes.path(1).display().to_string();
    bench.run(&format!("--state {shown} {other}")).exit(1).says(&["is of another volume", "--again"]);
    let whole = fs::read(&state).unwrap();
    fs::write(&state, &whole[..whole.len() - 1]).unwrap();
    bench.warm(&format!("--state {shown}")).exit(1).says(&["is damaged"]);
    bench.warm(&format!("--state {}/none/x", shown)).exit(1).says(&["Not a directory"]);
    bench.run(&format!("--state {shown} {} {other}", bench.volume())).exit(2).says(&["--state is for one volume"]);
    assert_eq!(bench.volumes.reads(1), 0);
}

#[test]
fn only_what_was_asked_for_is_read() {
    let Some(bench) = Bench::of(Settings::default()) else { return };
    bench.warm("--only-first --first-range 1MiB-2MiB --first-range 10MiB-10241KiB").silent();
    assert_eq!(bench.touched(), [2, 3, 20]);
    bench.volumes.reset(0);
    let page = |blocks: &str, rest: &str| format!("{{\"Blocks\": [{blocks}], \"BlockSize\": 524288{rest}}}");
    let index = |n: u64| format!("{{\"BlockIndex\": {n}, \"BlockToken\": \"A\"}}");
    let list = bench.file("blocks.json");
    fs::write(&list, page(&format!("{}, {}", index(9), index(3)), ", \"NextToken\": \"x\"") + &page(&index(5), ""))
        .unwrap();
    bench.warm(&format!("--again --blocks {}", list.display())).silent();
    assert_eq!(bench.touched(), [3, 5, 9]);
    for (text, words) in [
        (page(&index(128), ""), "block 128 is beyond the end of the volume, which has 128 blocks"),
        (page(&index(1), "").replace("524288", "4096"), "its blocks have 4096 bytes, and --step is 524288"),
        (page(&index(1), ", \"NextToken\": \"x\""), "the list goes on"),
        (String::new(), "not a single page"),
        ("[1, 2".to_owned(), "no output of \"aws ebs list-snapshot-blocks\""),
    ] {
        let mut child = bench.command(&format!("--blocks - {}", bench.volume())).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        Run(child.wait_with_output().unwrap()).exit(2).says(&[words]);
    }
}

#[test]
fn what_comes_first_is_read_first() {
    let Some(bench) = Bench::of(Settings { gone_after: Some(10), ..Settings::default() }) else { return };
    bench.warm("--depth 1 --straddle off --first-range 32MiB-64MiB").exit(3);
    let touched = bench.touched();
    // The last of them may be the one at which it went away.
    assert!(touched.len() >= 9 && touched == (64..64 + touched.len() as u64).collect::<Vec<_>>(), "{touched:?}");
}

#[test]
fn how_much_is_cold_is_judged_by_latency() {
    let Some(bench) = Bench::of(Settings { cold_latency: 30 * MS, fill: 0.5, ..Settings::default() }) else { return };
    let existing = bench.volumes.existing(0);
    let run = bench.warm("--json --verify=all").exit(3);
    let volume = &run.events("verified")[0]["volumes"][0];
    assert_eq!((&volume["cold"], &volume["looked_at"]), (&existing.into(), &128.into()));
    bench.warm("--verify").exit(0).says(&["0 of 128 blocks looked at were cold"]);
    bench.volumes.reset(0);
    bench.warm("--verify=nothing").exit(2).says(&["neither a number"]);
    bench.warm("").silent();
    bench.warm("--verify=all").exit(0);
}

#[test]
fn a_plan_reads_nothing() {
    let Some(bench) = Bench::of(Settings::default()) else { return };
    bench.warm("-n").exit(0).says(&["128 blocks of 512.00 KiB, 64.00 MiB in all", "blocks a second"]);
    let run = bench.warm("-n --json --offset 60MiB").exit(0);
    let plan: Value = serde_json::from_str(&run.stdout()).unwrap();
    assert_eq!((&plan["volumes"][0]["blocks"], &plan["volumes"][0]["left_out"]), (&8.into(), &120.into()));
    assert_eq!(bench.volumes.reads(0), 0);
    assert_eq!(fs::read_dir(bench.folder.path()).unwrap().count(), 0, "nor writes anything");
}

#[test]
fn a_signal_asks_how_it_stands() {
    let Some(bench) = Bench::of(Settings { cold_latency: 100 * MS, par: 8, ..Settings::default() }) else { return };
    let child = bench.start("");
    wait_until("some of it", || bench.volumes.cold_left(0) < 120);
    signal(&child, Signal::USR1);
    let run = Run(child.wait_with_output().unwrap()).exit(0);
    run.says(&[" of 128 blocks touched in ", " a second ("]);
}

#[test]
fn syslog_hears_with_the_right_severities() {
    let Some(bench) = Bench::of(Settings { bad: vec![3], ..Settings::default() }) else { return };
    let socket = UnixDatagram::bind(bench.file("log")).unwrap();
    socket.set_nonblocking(true).unwrap();
    bench.warm(&format!("-s -l --syslog-socket {}", bench.file("log").display())).exit(3);
    let mut buffer = [0u8; 4096];
    let mut said = String::new();
    while let Ok(length) = socket.recv(&mut buffer) {
        said += &(String::from_utf8_lossy(&buffer[..length]).into_owned() + "\n");
    }
    let has = |severity: &str, words: &str| said.lines().any(|line| line.starts_with(severity) && line.contains(words));
    assert!(has("<14>", "snapferry[") && has("<14>", "Start initialize of") && has("<14>", "67108864 bytes"), "{said}");
    assert!(has("<11>", "block 3 at byte 1572864") && has("<11>", "NOT wholly initialised"), "{said}");
    assert!(!said.contains("Complete"), "{said}");
}

#[test]
fn under_the_name_of_ebsinit() {
    let Some(bench) = Bench::of(Settings::default()) else { return };
    let name = bench.file("ebsinit");
    symlink(env!("CARGO_BIN_EXE_snapferry"), &name).unwrap();
    let run = |words: &[&str]| {
        Run(Command::new(&name).env("XDG_RUNTIME_DIR", bench.folder.path()).args(words).output().unwrap())
    };
    run(&["-v"]).exit(0).says(&["ebsinit (snapferry "]);
    run(&["-h"]).exit(0).says(&["--silent", "--syslog"]);
    run(&["-s", &bench.volume()]).silent();
    bench.assert_warm(0);
    run(&["-s", "/no/such/device"]).exit(4);
    run(&["a", "b"]).exit(2);
    // Its state lies where that of every run as root does.
    let kept = fs::read_dir("/run/snapferry").into_iter().flatten().flatten().map(|entry| entry.path());
    kept.filter(|path| path.display().to_string().contains(&bench.volume().replace('/', "_")))
        .for_each(|path| fs::remove_file(path).unwrap());
}

#[test]
fn what_is_no_volume_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    fs::write(file("empty"), "").unwrap();
    fs::create_dir(file("folder")).unwrap();
    let warm = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_snapferry"));
        Run(command.args(["warm", "--state-dir", &file("states")]).args(words).output().unwrap())
    };
    warm(&["/no/such/device"]).exit(4).says(&["there is no such device, file or volume"]);
    warm(&["vol-0123456789abcdef0"]).exit(4).says(&["there is no such device"]);
    warm(&["/dev/null"]).exit(2).says(&["neither a block device nor a file nor a mount point"]);
    warm(&[&file("folder")]).exit(2).says(&["is a folder, and nothing is mounted on it"]);
    warm(&["--image", &file("empty")]).exit(1).says(&["it has no bytes"]);
    warm(&[]).exit(2);
    fs::write(file("some"), vec![1; 1 << 20]).unwrap();
    for (option, words) in [
        ("--step=1000", "can't be read"),
        ("--step=big", "is no size"),
        ("--offset=2MiB", "beyond the end"),
        ("--first-range=5", "is nothing such as"),
        ("--only-first", "needs something that comes first"),
        ("--first=/proc/version", "is on none of these volumes"),
        ("--depth=0", "0 is not in"),
    ] {
        warm(&["--image", option, &file("some")]).exit(2).says(&[words]);
    }
}

/// A loop device; it is let go when dropped.
struct Loop(PathBuf);

impl Loop {
    /// `None` where there are none, which is said.
    fn over(path: &Path, options: &[&str]) -> Option<Self> {
        let output = Command::new("losetup").args(["--find", "--show", "--read-only"]).args(options).arg(path).output();
        match output {
            Ok(output) if output.status.success() => {
                Some(Self(String::from_utf8(output.stdout).unwrap().trim().into()))
            }
            other => {
                eprintln!("SKIPPED: no loop device can be made here: {other:?}");
                None
            }
        }
    }

    fn node(&self) -> String {
        self.0.display().to_string()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

#[test]
fn loop_devices_with_small_and_large_sectors() {
    for sector in ["512", "4096"] {
        for options in ["", "--straddle on", "--engine threads"] {
            let Some(bench) = Bench::of(Settings::default()) else { return };
            let Some(device) = Loop::over(bench.volumes.path(0), &["--direct-io=on", "--sector-size", sector]) else {
                return;
            };
            bench.run(&format!("{options} {}", device.node())).silent();
            bench.assert_warm(0);
        }
    }
}

/// LVM, md and the like are read at their members, whatever names them.
#[test]
fn a_stack_is_followed_to_its_members() {
    let Some(bench) = Bench::new(vec![Settings::default(), Settings::default()]) else { return };
    let devices: Vec<Loop> = (0..2).filter_map(|n| Loop::over(bench.volumes.path(n), &["--direct-io=on"])).collect();
    let [one, other] = devices.as_slice() else { return };
    // A sysfs in which the first loop device is a stack over both, as far as anybody can tell.
    let sysfs = bench.file("sys");
    let name = |device: &Loop| device.0.file_name().unwrap().to_str().unwrap().to_owned();
    for device in [one, other] {
        fs::create_dir_all(sysfs.join("block").join(name(device))).unwrap();
    }
    let stack = sysfs.join("block/dm-7");
    fs::create_dir_all(stack.join("slaves").join(name(one))).unwrap();
    fs::create_dir_all(stack.join("slaves").join(name(other))).unwrap();
    let numbers = fs::read_to_string(format!("/sys/block/{}/dev", name(one))).unwrap();
    fs::write(stack.join("dev"), numbers).unwrap();
    let line = format!("--json --sysfs {} {} {}", sysfs.display(), one.node(), other.node());
    let run = bench.run(&line).exit(0);
    assert_eq!(run.events("start")[0]["volumes"].as_array().unwrap().len(), 2, "each member once");
    bench.assert_warm(0);
    bench.assert_warm(1);
}

/// A mounted file system: its mount point names the device, and its files can come first.
#[test]
fn files_of_a_mounted_file_system_come_first() {
    let folder = tempfile::tempdir().unwrap();
    let (image, source, point) =
        (folder.path().join("image"), folder.path().join("source"), folder.path().join("point"));
    fs::create_dir_all(source.join("data")).unwrap();
    fs::create_dir(&point).unwrap();
    fs::write(source.join("data/one"), vec![7; 3 << 20]).unwrap();
    fs::write(source.join("other"), vec![8; 5 << 20]).unwrap();
    fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let made = Command::new("mkfs.ext4").args(["-q", "-F", "-d"]).arg(&source).arg(&image).status();
    if !made.is_ok_and(|status| status.success()) {
        return eprintln!("SKIPPED: no ext4 can be made here");
    }
    let Some(bench) = Bench::of(Settings { backing: Some(image), ..Settings::default() }) else { return };
    let Some(device) = Loop::over(bench.volumes.path(0), &["--direct-io=on"]) else { return };
    let mounted = Command::new("mount").args(["-o", "ro,noload"]).arg(&device.0).arg(&point).status();
    if !mounted.is_ok_and(|status| status.success()) {
        return eprintln!("SKIPPED: nothing can be mounted here");
    }
    let _mounted = Mounted(point.clone());
    for name in [point.clone(), point.join("other")] {
        bench.run(&format!("-n {}", name.display())).exit(0).says(&[&device.node(), "128 blocks"]);
    }
    bench
        .run(&format!("-n {}", point.join("data").display()))
        .exit(2)
        .says(&["nothing is mounted on it", "it lies on"]);
    bench.run(&format!("--first /proc/version {}", device.node())).exit(2).says(&["is on none of these volumes"]);
    let before = bench.volumes.touches(0);
    let line = format!("--only-first --straddle off --first {} {}", point.join("data").display(), device.node());
    let plan = bench.run(&format!("-n --json {line}")).exit(0);
    let planned = serde_json::from_str::<Value>(&plan.stdout()).unwrap()["volumes"][0]["blocks"].as_u64().unwrap();
    assert!((6..=10).contains(&planned), "3 MiB and a folder in {planned} blocks");
    bench.run(&line).silent();
    let after = bench.volumes.touches(0);
    let fresh = before.iter().zip(&after).filter(|(before, after)| after > before).count();
    assert_eq!(fresh as u64, planned);
}

struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}
