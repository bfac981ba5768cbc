//! The stand-in `zfs` against what the real one printed, and each of its faults once.

mod support {
    pub mod pool;
}

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use support::pool::record::{BEGIN, Sealer, each_record};
use support::pool::{Death, END, Fault, Pool, S, What, real_stream, synthetic_stream};

struct Bench {
    pool: Pool,
    _folder: tempfile::TempDir,
}

fn bench() -> Bench {
    let folder = tempfile::tempdir().expect("a folder");
    Bench { pool: Pool::new(folder.path().join("state")).real(), _folder: folder }
}

impl Bench {
    fn zfs(&self, arguments: &str) -> Output {
        self.zfs_with(arguments, b"")
    }

    /// Words are parted by single blanks. The input goes in from a thread: the answer may come before all is read.
    fn zfs_with(&self, arguments: &str, input: &[u8]) -> Output {
        let words: Vec<&str> = arguments.split(' ').collect();
        run(self.pool.zfs().args(&words), input)
    }

    /// Compares with the output of the real command, in the form of its record.
    fn same(&self, arguments: &str, input: &[u8], real: &str) {
        let output = self.zfs_with(arguments, input);
        let told = format!(
            "exit status: {}\n--- stdout\n{}--- stderr\n{}",
            output.status.code().map_or("signal".to_owned(), |code| code.to_string()),
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        assert_eq!(told, real, "zfs {arguments}");
    }

    fn good(&self, arguments: &str, input: &[u8]) -> Vec<u8> {
        let output = self.zfs_with(arguments, input);
        assert!(output.status.success(), "zfs {arguments}: {output:?}");
        output.stdout
    }
}

fn run(command: &mut Command, input: &[u8]) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the stand-in starts");
    let mut stdin = child.stdin.take().expect("its standard input");
    std::thread::scope(|scope| {
        // It may stop reading early; that is its right.
        scope.spawn(move || drop(stdin.write_all(input)));
        child.wait_with_output().expect("its output")
    })
}

fn real(name: &str) -> Vec<u8> {
    std::fs::read(real_stream(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn answer(status: i32, stdout: &str, stderr: &str) -> String {
    format!("exit status: {status}\n--- stdout\n{stdout}--- stderr\n{stderr}")
}

fn flipped(mut stream: Vec<u8>, at: usize) -> Vec<u8> {
    stream[at] ^= 1;
    stream
}

#[test]
fn lists_as_the_real_one() {
    let bench = bench();
    let columns = "name,guid,createtxg,creation,used,referenced";
    let rows = "tank/data@s1\t10836421798840580573\t10\t1796074257\t167424\t1399808\n\
                tank/data@s2\t13617474349262005280\t11\t1796074258\t154624\t1499648\n\
                tank/data@s3\t9076962664343179789\t13\t1796074260\t16384\t1156608\n\
                tank/data@s4\t5739995582101851078\t14\t1796074261\t0\t1157120\n\
                tank/data@s5\t16236894886179084527\t20\t1796074282\t0\t1157120\n";
    let mark = "tank/data#b2\t13617474349262005280\t11\t1796074258\t-\t1499648\n";
    let list = |rest: &str| format!("list -Hp -o {columns} {rest}");
    bench.same(&list("-t snapshot,bookmark -r tank/data"), b"", &answer(0, &format!("{rows}{mark}"), ""));
    bench.same(&list("-t snapshot -s createtxg -d 1 tank/data"), b"", &answer(0, rows, ""));
    bench.same(&list("-t snapshot tank/data"), b"", &answer(0, rows, ""));
    bench.same("list -H -p -t bookmark -o name -r tank", b"", &answer(0, "tank/data#b2\n", ""));
    let missing = "cannot open 'tank/nosuch': dataset does not exist\n";
    bench.same("list -Hp -t snapshot -o name,guid tank/nosuch", b"", &answer(1, "", missing));
    bench.same("list -Hp -t snapshot -o name,guid -r pool", b"", &answer(0, "", ""));
    let kinds = "tank/vol\tvolume\toff\t-\t-\ntank/enc\tfilesystem\taes-256-gcm\tavailable\t-\n\
                 tank/proj/clone\tfilesystem\toff\t-\ttank/proj/child@r1\n";
    for line in kinds.lines() {
        let name = line.split('\t').next().expect("a name");
        bench.same(
            &format!("list -Hp -o name,type,encryption,keystatus,origin {name}"),
            b"",
            &answer(0, &format!("{line}\n"), ""),
        );
    }
    let output = bench.zfs("list -Hp -o name,nosuchprop tank");
    assert_eq!(output.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&output.stderr)
            .starts_with("bad property list: invalid property 'nosuchprop'\nusage:\n\tlist")
    );
}

#[test]
fn gets_as_the_real_one() {
    let bench = bench();
    let properties = "guid,creation,createtxg,used,encryption,userrefs,defer_destroy,clones";
    let rows = "tank/data@s1\tguid\t10836421798840580573\t-\ntank/data@s1\tcreation\t1796074257\t-\n\
                tank/data@s1\tcreatetxg\t10\t-\ntank/data@s1\tused\t167424\t-\n\
                tank/data@s1\tencryption\toff\tdefault\ntank/data@s1\tuserrefs\t0\t-\n\
                tank/data@s1\tdefer_destroy\toff\t-\ntank/data@s1\tclones\t-\t-\n";
    bench.same(&format!("get -Hp -o name,property,value,source {properties} tank/data@s1"), b"", &answer(0, rows, ""));
    bench.same("get -Hp -o value type tank/data", b"", &answer(0, "filesystem\n", ""));
    bench.same(
        "get -Hp receive_resume_token tank/data",
        b"",
        &answer(0, "tank/data\treceive_resume_token\t-\t-\n", ""),
    );
    bench.same("version", b"", &answer(0, "zfs-2.1.11-1+deb12u1\nzfs-kmod-2.1.11-1+deb12u1\n", ""));
}

#[test]
fn says_what_it_would_send() {
    let bench = bench();
    bench.same("send -nvP tank/data@s1", b"", &answer(0, "full\ttank/data@s1\t1378720\nsize\t1378720\n", ""));
    let people = "full send of tank/data@s1 estimated size is 1.31M\ntotal estimated size is 1.31M\n";
    bench.same("send -nv tank/data@s1", b"", &answer(0, people, ""));
    let from = "incremental\ttank/data@s1\ttank/data@s2\t253736\nsize\t253736\n";
    bench.same("send -nvP -i @s1 tank/data@s2", b"", &answer(0, from, ""));
    let from = "incremental\ttank/data#b2\ttank/data@s3\t194856\nsize\t194856\n";
    bench.same("send -nvP -i tank/data#b2 tank/data@s3", b"", &answer(0, from, ""));
    let steps = "incremental\ts1\ttank/data@s2\t253736\nincremental\ts2\ttank/data@s3\t194856\n\
                 incremental\ts3\ttank/data@s4\t10864\nsize\t459456\n";
    bench.same("send -nvP -I @s1 tank/data@s4", b"", &answer(0, steps, ""));
    let output = bench.zfs("send -vP tank/data@s1");
    assert_eq!(output.stdout, real("full.zfs"));
    assert_eq!(output.stderr, b"full\ttank/data@s1\t1378720\nsize\t1378720\n");
}

#[test]
fn refuses_to_send_as_the_real_one() {
    let bench = bench();
    let gone = |name: &str| format!("cannot open '{name}': dataset does not exist\n");
    let cannot = |name: &str, why: &str| format!("warning: cannot send '{name}': {why}\n");
    let earlier = "not an earlier snapshot from the same fs";
    let cases = [
        ("send tank/nosuch@s1", gone("tank/nosuch@s1")),
        ("send nopool/data@s1", gone("nopool/data@s1")),
        ("send tank/data@nosuch", gone("tank/data@nosuch")),
        ("send -R tank/nosuch@r1", gone("tank/nosuch")),
        ("send -I @nosuch tank/data@s4", gone("tank/data@nosuch")),
        ("send -i @nosuch tank/data@s2", gone("tank/data@nosuch")),
        ("send -i @s3 tank/data@s2", cannot("tank/data@s2", earlier)),
        ("send -i @s2 tank/data@s2", cannot("tank/data@s2", earlier)),
        ("send -i tank/proj@r1 tank/data@s2", cannot("tank/data@s2", earlier)),
        (
            "send -i tank/data#nosuch tank/data@s2",
            cannot("tank/data@s2", "incremental source (tank/data#nosuch) does not exist"),
        ),
        ("send -I tank/data#b2 tank/data@s4", "Error: multiple snapshots cannot be sent from a bookmark.\n".to_owned()),
        ("send -i @s1 tank/data", cannot("tank/data", "target is busy; if a filesystem, it must not be mounted")),
    ];
    for (arguments, message) in cases {
        bench.same(arguments, b"", &answer(1, "", &message));
    }
    bench.same(
        "send -t 1-abc-def",
        b"",
        &answer(255, "", "cannot resume send: resume token is corrupt (incorrect checksum)\n"),
    );
    bench.same(
        "send -t garbage",
        b"",
        &answer(255, "", "cannot resume send: resume token is corrupt (invalid format)\n"),
    );
    for (arguments, first) in
        [("send -Z tank/data@s1", "invalid option 'Z'\n"), ("send", "missing snapshot argument\n")]
    {
        let output = bench.zfs(arguments);
        assert_eq!(output.status.code(), Some(2));
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(stderr.starts_with(&format!("{first}usage:\n\tsend [-DnPpRVvLecwhb]")), "{stderr}");
    }
}

#[test]
fn needs_the_key_for_all_but_a_raw_send() {
    let bench = bench();
    bench.pool.edit("tank/enc", |d| d.key_loaded = false);
    let oddity = |s| format!("cannot open 'tank/enc@{s}': snapshot delimiter '@' is not expected here\n");
    let message = oddity("e1") + &oddity("e2") + "warning: cannot send 'tank/enc@e1': dataset key must be loaded\n";
    bench.same("send tank/enc@e1", b"", &answer(1, "", &message));
    assert_eq!(bench.good("send -w tank/enc@e1", b""), real("enc_raw_full.zfs"));
}

#[test]
fn a_full_and_an_incremental_stream_go_from_end_to_end() {
    let bench = bench();
    for (arguments, stream) in [("send tank/data@s1", "full.zfs"), ("send -i @s1 tank/data@s2", "inc_i.zfs")] {
        let sent = bench.good(arguments, b"");
        assert_eq!(sent, real(stream));
        bench.good("receive -u -x mountpoint pool/restored", &sent);
    }
    let received = bench.pool.received("pool/restored");
    assert_eq!(
        received.iter().map(|r| (r.snapshot.as_str(), r.guid)).collect::<Vec<_>>(),
        [("s1", S[0]), ("s2", S[1])]
    );
    assert_eq!(received[1].bytes(), real("inc_i.zfs"));
    assert_eq!(received[1].arguments, ["-u", "-x", "mountpoint", "pool/restored"]);
    let rows = "pool/restored@s1\t10836421798840580573\npool/restored@s2\t13617474349262005280\n";
    bench.same("list -Hp -t snapshot -o name,guid pool/restored", b"", &answer(0, rows, ""));
    assert_eq!(bench.pool.calls()[0], ["send", "tank/data@s1"]);
}

#[test]
fn takes_every_real_stream() {
    let bench = bench();
    let told = |arguments: &str, stream: &str| String::from_utf8(bench.good(arguments, &real(stream))).expect("text");
    let volume =
        "receiving full stream of tank/vol@v1 into pool/vol@v1\nreceived 252K stream in 1 seconds (252K/sec)\n";
    assert_eq!(told("receive -v pool/vol", "zvol_full.zfs"), volume);
    assert!(told("receive -v pool/vol", "zvol_inc.zfs").ends_with("received 44.0K stream in 1 seconds (44.0K/sec)\n"));
    assert!(
        told("receive -v pool/enc", "enc_raw_full.zfs").ends_with("received 283K stream in 1 seconds (283K/sec)\n")
    );
    told("receive pool/enc", "enc_raw_inc.zfs");
    bench.same("get -Hp -o value encryption,keystatus pool/enc", b"", &answer(0, "aes-256-gcm\nunavailable\n", ""));
    told("receive pool/zstd", "comp_zstd.zfs");
    told("receive pool/decrypted", "enc_decrypted_full.zfs");
    let tree = told("receive -v pool/proj2", "repl_R.zfs");
    assert!(tree.contains("received 69.5K stream in 1 seconds (69.5K/sec)\n"), "{tree}");
    assert!(tree.contains("found clone origin pool/proj2/child@r1\n"), "{tree}");
    assert!(tree.ends_with("received 9.44K stream in 1 seconds (9.44K/sec)\n"), "{tree}");
    assert_eq!(told("receive -d -v pool", "repl_R.zfs"), tree.replace("proj2", "proj"));
    assert_eq!(bench.pool.received("pool/proj2/late").len(), 2);
    let clone = told("receive -v -o origin=pool/proj2/child@r1 pool/clone2", "clone_origin.zfs");
    assert!(clone.starts_with("using provided clone origin pool/proj2/child@r1\n"), "{clone}");
    told("receive pool/a", "full.zfs");
    told("receive pool/a", "inc_I.zfs");
    told("receive pool/a", "inc_empty.zfs");
    let package = real("inc_I.zfs");
    assert!(bench.pool.received("pool/a")[1].bytes() == real("inc_i.zfs"));
    assert!(bench.good("send -i @s3 tank/data@s4", b"") == package[550_272..589_264]);
    assert!(real("inc_bookmark.zfs") == package[307_216..550_272]);
    assert_eq!(bench.pool.received("pool/a").iter().map(|r| r.guid).collect::<Vec<_>>(), S);
}

#[test]
fn refuses_streams_as_the_real_one() {
    let bench = bench();
    let full = real("full.zfs");
    let cut = |from: usize, to: usize| [&full[..from], &full[to..]].concat();
    let cannot = |why: &str| format!("cannot receive new filesystem stream: {why}\n");
    let unread = "cannot receive: failed to read from stream\n".to_owned();
    let magic = "cannot receive: invalid stream (bad magic number)\n".to_owned();
    let repl = real("repl_R.zfs");
    let cases = [
        (full[..100].to_vec(), unread.clone()),
        (Vec::new(), unread),
        (vec![b'x'; 5000], magic.clone()),
        (flipped(full.clone(), 8), magic),
        (flipped(full.clone(), 744860), cannot("checksum mismatch")),
        (flipped(full.clone(), 1489420), cannot("checksum mismatch")),
        (flipped(full.clone(), 1489719), cannot("checksum mismatch")),
        (flipped(real("enc_raw_full.zfs"), 90000), cannot("checksum mismatch")),
        (flipped(repl.clone(), 60000), cannot("checksum mismatch")),
        (repl[..70000].to_vec(), cannot("incomplete stream")),
        (full[..1489719].to_vec(), cannot("incomplete stream")),
        (full[..1489408].to_vec(), cannot("incomplete stream")),
        (full[..312].to_vec(), cannot("incomplete stream")),
        (cut(744860, 748956), cannot("invalid backup stream")),
        (
            flipped(full.clone(), 48),
            "cannot receive incremental stream: destination 'pool/bad' does not exist\n".to_owned(),
        ),
    ];
    for (stream, message) in cases {
        bench.same("receive pool/bad", &stream, &answer(1, "", &message));
        assert!(bench.pool.received("pool/bad").is_empty(), "{message}");
    }
    for more in [b"trailing garbage after END\n".to_vec(), real("inc_i.zfs")] {
        bench.good("receive pool/behind", &[full.clone(), more].concat());
        assert_eq!(bench.pool.received("pool/behind").last().expect("one").input(), full);
        bench.good("destroy -r pool/behind", b"");
    }
}

#[test]
fn refuses_targets_as_the_real_one() {
    let bench = bench();
    let (full, inc) = (real("full.zfs"), real("inc_i.zfs"));
    bench.good("receive pool/a", &full);
    let exists = "cannot receive new filesystem stream: destination 'pool/a' exists\nmust specify -F to overwrite it\n";
    bench.same("receive pool/a", &full, &answer(1, "", exists));
    let snapshots = "cannot receive new filesystem stream: destination has snapshots (eg. pool/a@s1)\n\
                     must destroy them to overwrite it\n";
    bench.same("receive -F pool/a", &full, &answer(1, "", snapshots));
    for (parent, target) in [("pool/no/such", "pool/no/such/parent"), ("nopool", "nopool/x")] {
        let message = format!(
            "cannot open '{parent}': dataset does not exist\n\
             cannot receive new filesystem stream: unable to restore to destination\n"
        );
        bench.same(&format!("receive {target}"), &full, &answer(1, "", &message));
    }
    let none = "cannot receive incremental stream: destination 'pool/none' does not exist\n";
    bench.same("receive pool/none", &inc, &answer(1, "", none));
    let base = "cannot receive incremental stream: most recent snapshot of pool/a does not\nmatch incremental source\n";
    bench.same("receive pool/a@x", &real("inc_bookmark.zfs"), &answer(1, "", base));
    bench.pool.edit("pool/a", |d| d.modified = true);
    let modified =
        "cannot receive incremental stream: destination pool/a has been modified\nsince most recent snapshot\n";
    bench.same("receive pool/a", &inc, &answer(1, "", modified));
    bench.good("receive -F pool/a", &inc);
    bench.same("receive pool/a", &inc, &answer(0, "", ""));
    assert_eq!(bench.pool.received("pool/a").len(), 2, "an incremental that is there is read over");
    bench.good("receive pool/b", &full);
    bench.good("snapshot pool/b@extra", b"");
    bench.good("receive pool/b", &inc);
    let dry = "would receive full stream of tank/data@s1 into pool/dry@s1\n";
    bench.same("receive -nv pool/dry", &full, &answer(0, dry, ""));
    bench.pool.edit("pool", |d| d.room = Some(1_000_000));
    bench.same("receive pool/x", &full, &answer(1, "", "cannot receive new filesystem stream: out of space\n"));
    bench.pool.edit("pool", |d| d.room = None).add_dataset("pool/q");
    bench.pool.edit("pool/q", |d| drop(d.properties.insert("quota".to_owned(), "1048576".to_owned())));
    let quota = "cannot receive new filesystem stream: destination pool/q/x space quota exceeded.\n";
    bench.same("receive pool/q/x", &full, &answer(1, "", quota));
    bench.pool.update(|state| state.unprivileged = true);
    let mount = "cannot mount '/pool/u': failed to create mountpoint: Permission denied\n";
    bench.same("receive pool/u", &full, &answer(1, "", mount));
    bench.same("receive -u pool/u2", &full, &answer(0, "", ""));
    assert_eq!(bench.zfs("receive").status.code(), Some(2));
}

#[test]
fn a_broken_stream_leaves_a_token_and_goes_on() {
    let bench = bench();
    let full = real("full.zfs");
    let output = bench.zfs_with("receive -s pool/res", &full[..744860]);
    let stderr = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(1));
    let token = stderr.rsplit(' ').next().expect("a token").trim().to_owned();
    assert_eq!(
        stderr,
        format!(
            "cannot receive new filesystem stream: checksum mismatch or incomplete stream.\n\
             Partially received snapshot is saved.\n\
             A resuming stream can be generated on the sending system by running:\n    zfs send -t {token}\n"
        )
    );
    bench.same("get -Hp -o value receive_resume_token pool/res", b"", &answer(0, &format!("{token}\n"), ""));
    // What the real token for this cut says, and the real one itself is understood as well.
    let contents = "resume token contents:\nnvlist version: 0\n\tobject = 0x4\n\toffset = 0x40000\n\tbytes = 0xa33a0\n\
                    \ttoguid = 0x9662b436543139dd\n\ttoname = tank/data@s1\n";
    let real_token = "1-a42bf0d76-b8-789c636064000310a500c4ec50360710e72765a526973030b0409460caa7a515a796806458e0f26c4\
                      8f2499525a9c5407a81311756fd25f9e9a599290c0c772d0d43ccb6244dd34092e704cbe725e6a602e9c4bc6cfd94c49\
                      244876243a8531800de1215ed";
    for token in [token.as_str(), real_token] {
        let told = String::from_utf8(bench.good(&format!("send -nvP -t {token}"), b"")).expect("text");
        assert!(told.starts_with(&format!("{contents}full\ttank/data@s1\t")), "{told}");
    }
    let rest = bench.good(&format!("send -t {token}"), b"");
    assert_eq!(rest.len(), 953424, "as long as the real second part");
    let exists =
        "cannot receive new filesystem stream: destination 'pool/res' exists\nmust specify -F to overwrite it\n";
    bench.same("receive pool/res", &full, &answer(1, "", exists));
    let told = "receiving full stream of tank/data@s1 into pool/res@s1\nreceived 931K stream in 1 seconds (931K/sec)\n";
    bench.same("receive -s -v pool/res", &rest, &answer(0, told, ""));
    assert_eq!(bench.pool.guid("pool/res@s1"), S[0]);
    assert_eq!(bench.pool.attempts("pool/res").len(), 2);

    assert_eq!(bench.zfs_with("receive -s pool/res", &real("inc_i.zfs")[..153296]).status.code(), Some(1));
    let told = String::from_utf8(bench.good("get -Hp -o value receive_resume_token pool/res", b"")).expect("text");
    let told = String::from_utf8(bench.good(&format!("send -nvP -t {}", told.trim()), b"")).expect("text");
    assert!(told.contains("\tobject = 0x5\n\toffset = 0x0\n\tbytes = 0x241c8\n"), "{told}");
    bench.good("receive -A pool/res", b"");
    bench.same("get -Hp -o value receive_resume_token pool/res", b"", &answer(0, "-\n", ""));
    let upgrade = "cannot receive new filesystem stream: kernel modules must be upgraded to receive this stream.\n";
    bench.same("receive -s pool/gap", &[&full[..744860], &full[748956..]].concat(), &answer(1, "", upgrade));
    bench.good("receive -A pool/gap", b"");
    assert_eq!(bench.zfs("receive -A pool/gap").status.code(), Some(2));
    bench.pool.remove_snapshot("tank/data@s1");
    let gone = "cannot resume send: 'tank/data@s1' used in the initial send no longer exists\n";
    bench.pool.edit("pool/res", |d| d.snapshots.clear());
    bench.same(&format!("send -t {token}"), b"", &answer(255, "", gone));
}

#[test]
fn snapshots_bookmarks_and_holds() {
    let bench = bench();
    bench.good("snapshot tank/data@new", b"");
    bench.same(
        "snapshot tank/data@s1",
        b"",
        &answer(1, "", "cannot create snapshot 'tank/data@s1': dataset already exists\n"),
    );
    bench.same(
        "bookmark tank/data@s1 tank/data#b2",
        b"",
        &answer(1, "", "cannot create bookmark 'tank/data#b2': bookmark exists\n"),
    );
    bench.good("bookmark tank/data@s1 tank/data#b1", b"");
    bench.good("hold mytag tank/data@s1", b"");
    let again = "cannot hold snapshot 'tank/data@s1': tag already exists on this dataset\n";
    bench.same("hold mytag tank/data@s1", b"", &answer(1, "", again));
    let listed = "tank/data@s1\tmytag\tMon Nov 30 21:36 2026\n";
    bench.same("holds -H tank/data@s1", b"", &answer(0, listed, ""));
    bench.same("destroy tank/data@s1", b"", &answer(1, "", "cannot destroy snapshot tank/data@s1: dataset is busy\n"));
    bench.good("release mytag tank/data@s1", b"");
    let tag = "cannot release hold from snapshot 'tank/data@s1': no such tag on this dataset\n";
    bench.same("release nosuch tank/data@s1", b"", &answer(1, "", tag));
    bench.good("destroy tank/data@s1", b"");
    let gone = "could not find any snapshots to destroy; check snapshot names.\n";
    bench.same("destroy tank/data@s1", b"", &answer(1, "", gone));
    assert_eq!(bench.zfs("bookmark tank/data@nosuch tank/data#x").status.code(), Some(2));
    assert_eq!(bench.zfs("snapshot tank/nosuch@a").status.code(), Some(2));
}

#[test]
fn a_send_goes_wrong_in_every_way() {
    let bench = bench();
    let full = real("full.zfs");
    let send = |what: What| {
        bench.pool.clear_faults().fault(Fault::new("send", what));
        bench.zfs("send tank/data@s1")
    };
    for at in [0, 1000, END] {
        let output = send(What::Die { at, how: Death::Exit(7) });
        assert_eq!((output.status.code(), output.stdout.len()), (Some(7), full.len().min(at as usize)));
        for signal in [9, 15, 13, 11] {
            let output = send(What::Die { at, how: Death::Signal(signal) });
            assert_eq!((output.status.signal(), output.stdout.len()), (Some(signal), full.len().min(at as usize)));
        }
    }
    let output = send(What::Fail { exit: 3, stderr: "no\n".to_owned() });
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(3), &b"no\n"[..]));
    assert!(send(What::Flip { at: 70_001 }).stdout == flipped(full.clone(), 70_001));
    assert!(send(What::Truncate { at: 70_001 }).stdout == full[..70_001]);
    assert!(send(What::Cut { at: 70_001, length: 90_000 }).stdout == [&full[..70_001], &full[160_001..]].concat());
    let output = send(What::Garbage { at: 70_001, length: 90_000 });
    assert!(output.stdout[..70_001] == full[..70_001] && output.stdout[160_001..] == full[160_001..]);
    assert!(output.stdout[70_001..160_001] != full[70_001..160_001]);
    let output = send(What::Behind { file: real_stream("inc_i.zfs") });
    assert!(output.stdout == [full.clone(), real("inc_i.zfs")].concat());
    let output = send(What::Noise { at: 5000, bytes: 200_000 });
    assert_eq!((output.stderr.len(), output.stdout.len()), (200_000, full.len()));
    let output = send(What::OtherGuid { guid: 42 });
    bench.good("receive pool/other", &output.stdout);
    assert_eq!(bench.pool.guid("pool/other@s1"), 42);
    let began = Instant::now();
    send(What::Delay { ms: 200 });
    send(What::Pause { at: 5000, ms: 200 });
    send(What::Slow { rate: full.len() as u64 * 4 });
    assert!(began.elapsed() > Duration::from_millis(600));
}

#[test]
fn faults_can_be_counted_chosen_and_given_to_one_process() {
    let bench = bench();
    bench
        .pool
        .fault(Fault::new("send", What::Fail { exit: 9, stderr: String::new() }).skip(1).times(1).argument("@s2"));
    let statuses: Vec<_> = ["@s1", "@s2", "@s2", "@s2"]
        .map(|s| bench.zfs(&format!("send -n tank/data{s}")).status.code().expect("an exit"))
        .into();
    assert_eq!(statuses, [0, 0, 9, 0]);
    let (name, value) = Pool::fault_variable(&Fault::new("*", What::Fail { exit: 5, stderr: String::new() }));
    let output = run(bench.pool.zfs().arg("version").env(name, value), b"");
    assert_eq!(output.status.code(), Some(5));
    assert!(bench.zfs("version").status.success());
}

#[test]
fn it_waits_for_a_file_and_hangs_until_it_is_killed() {
    let bench = bench();
    let file = bench.pool.folder().join("go");
    bench.pool.fault(Fault::new("send", What::PauseUntil { at: END, file: file.clone() }));
    bench.pool.fault(Fault::new("version", What::Hang)).fault(Fault::new("version", What::IgnoreTerm));
    let out = std::fs::File::create(bench.pool.folder().join("out")).expect("a file");
    let mut send = bench.pool.zfs().args(["send", "tank/data@s1"]).stdout(out).spawn().expect("a send");
    let mut hang = bench.pool.zfs().arg("version").stdout(Stdio::piped()).spawn().expect("a version");
    std::thread::sleep(Duration::from_millis(300));
    assert!(send.try_wait().expect("its state").is_none());
    assert!(hang.try_wait().expect("its state").is_none());
    std::fs::write(&file, "").expect("the file");
    assert!(send.wait().expect("its end").success());
    hang.kill().expect("to kill it");
    assert_eq!(hang.wait().expect("its end").signal(), Some(9));
}

#[test]
fn a_receive_goes_wrong_in_every_way() {
    let bench = bench();
    let full = real("full.zfs");
    let receive = |what: What| {
        bench.pool.clear_faults().fault(Fault::new("receive", what));
        bench.zfs_with("receive pool/r", &full)
    };
    for at in [0, 1000] {
        assert_eq!(receive(What::Die { at, how: Death::Exit(7) }).status.code(), Some(7));
        assert_eq!(receive(What::Die { at, how: Death::Signal(9) }).status.signal(), Some(9));
        assert!(receive(What::StopReading { at }).status.success());
    }
    assert!(bench.pool.received("pool/r").is_empty());
    bench.pool.clear_faults().fault(Fault::new("receive", What::Die { at: 800_000, how: Death::Signal(9) }));
    assert_eq!(bench.zfs_with("receive -s pool/kept", &full).status.signal(), Some(9));
    assert!(bench.pool.state().datasets["pool/kept"].partial.is_some());
    assert!(bench.pool.attempts("pool/kept")[0].bytes() == full[..800_000]);
    let began = Instant::now();
    assert!(receive(What::Slow { rate: full.len() as u64 * 4 }).status.success());
    assert!(began.elapsed() > Duration::from_millis(200));
    bench.good("destroy -r pool/r", b"");
    assert_eq!(receive(What::Die { at: END, how: Death::Exit(1) }).status.code(), Some(1));
    assert_eq!(bench.pool.received("pool/r").len(), 2, "it died after everything was done");
}

#[test]
fn lists_odd_lines() {
    let bench = bench();
    for name in ["tank/with space", "tank/a:b", "tank/50%", &format!("tank/{}", "x".repeat(250))] {
        bench.pool.add_dataset(name);
        let output = run(bench.pool.zfs().args(["list", "-H", "-o", "name", name]), b"");
        assert_eq!(output.stdout, format!("{name}\n").as_bytes());
    }
    let listed = |what: What| {
        bench.pool.clear_faults().fault(Fault::new("list", what));
        String::from_utf8(bench.good("list -Hp -o name,type tank/data", b"")).expect("text")
    };
    assert_eq!(listed(What::Crlf), "tank/data\tfilesystem\r\n");
    assert_eq!(listed(What::DropColumn), "tank/data\n");
    assert_eq!(listed(What::Stdout { text: "what?".to_owned() }), "what?");
    assert_eq!(listed(What::Truncate { at: 6 }), "tank/d");
}

#[test]
fn a_synthetic_stream_is_valid_and_of_the_length_asked_for() {
    let bench = bench();
    for bytes in [0, 1000, 1_000_000, 3_000_000] {
        let stream = synthetic_stream(5, 0, "tank/made@up", bytes, 1);
        assert!(stream.len().abs_diff(bytes) < 1500, "{bytes} became {}", stream.len());
        assert!(stream == synthetic_stream(5, 0, "tank/made@up", bytes, 1));
        bench.good(&format!("receive pool/m{bytes}"), &stream);
    }
    bench.pool.add_dataset("tank/made");
    bench.pool.add_synthetic("tank/made", "a", None, 500_000);
    bench.pool.add_synthetic("tank/made", "b", Some("a"), 300_000);
    bench.good("receive pool/made", &bench.good("send tank/made@a", b""));
    bench.good("receive pool/made", &bench.good("send -i @a tank/made@b", b""));
}

#[test]
fn summing_a_real_stream_anew_changes_nothing() {
    for name in ["full.zfs", "inc_I.zfs", "repl_R.zfs", "enc_raw_full.zfs", "comp_zstd.zfs", "zvol_inc.zfs"] {
        let stream = real(name);
        let mut sealer = Sealer::new(Vec::new());
        let mut begins = 0;
        each_record(&stream, |record, payload| {
            begins += usize::from(record.kind() == BEGIN);
            sealer.put(record, payload).expect("writing to memory");
        });
        assert!(sealer.into_inner() == stream, "{name} with {begins} BEGIN records");
    }
}

#[test]
fn serves_as_zfs_on_the_path() {
    let bench = bench();
    let output = run(bench.pool.serve(Command::new("sh").args(["-c", "zfs list -H -o name tank"])), b"");
    assert_eq!(output.stdout, b"tank\n");
    let output = run(
        bench.pool.serve(Command::new("sh").args(["-c", "(zfs send tank/data@s1; echo $? >&2) | head -c 1000"])),
        b"",
    );
    assert_eq!((output.stdout.len(), output.stderr.as_slice()), (1000, &b"141\n"[..]));
    let null = run(bench.pool.serve(Command::new("sh").args(["-c", "zfs send tank/data@s1 >/dev/null"])), b"");
    assert_eq!(null.status.code(), Some(1));
}
