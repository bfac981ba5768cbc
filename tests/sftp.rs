//! The SFTP store against real servers, and against some that lie.

mod support {
    pub mod sshd;
}

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use snapferry::store::sftp::{SftpOptions, SftpStore};
use snapferry::store::{Store, StoreError, StoreErrorKind as Kind, contract};
use support::sshd::{Account, Sshd, is_root};

fn options(sshd: &Sshd, path: &str) -> SftpOptions {
    let mut options = SftpOptions::new(sshd.host(), path);
    options.user = Some(sshd.user().to_owned());
    options.port = Some(sshd.port());
    options.ssh_command = sshd.ssh_command();
    options.stall_timeout = Duration::from_secs(20);
    options
}

fn open(options: SftpOptions) -> SftpStore {
    SftpStore::open(options).unwrap()
}

/// Bytes that no two places share.
fn pattern(length: usize) -> Vec<u8> {
    (0..length as u64).flat_map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes()).take(length).collect()
}

fn both(test: impl Fn(&Sshd)) {
    for account in [Account::Ordinary, Account::SftpOnly] {
        if let Some(sshd) = Sshd::start(account) {
            test(&sshd);
        }
    }
}

fn assert_error(error: &StoreError, kind: Kind, words: &[&str]) {
    let text = error.to_string();
    eprintln!("{:?}: {text}", error.kind);
    assert_eq!(error.kind, kind, "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text:?}");
    }
    assert!(!text.contains('\n') && !text.contains('\x1b'), "{text:?}");
}

#[test]
fn keeps_the_contract_at_an_absolute_path() {
    both(|sshd| contract::check(&open(options(sshd, &sshd.data_path()))));
}

#[test]
fn keeps_the_contract_at_a_relative_path_that_does_not_exist_yet() {
    both(|sshd| {
        if !sshd.has_own_home() {
            return;
        }
        contract::check(&open(options(sshd, "far/away/archive/")));
        assert!(sshd.home().join("far/away/archive").is_dir());
    });
}

#[test]
fn keeps_the_contract_in_the_login_folder() {
    let Some(sshd) = Sshd::start(Account::SftpOnly) else { return };
    contract::check(&open(options(&sshd, "")));
}

#[test]
fn keeps_the_contract_with_a_server_that_has_no_extensions() {
    let less = "Subsystem sftp /usr/lib/openssh/sftp-server -P hardlink,posix-rename,limits,fsync,statvfs";
    let Some(sshd) = Sshd::start_with(Account::Ordinary, less) else { return };
    contract::check(&open(options(&sshd, &sshd.data_path())));
    assert_no_parts(&sshd.data());
}

fn assert_no_parts(folder: &Path) {
    let found = Command::new("find").arg(folder).args(["-name", "*.part"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&found.stdout), "");
}

#[test]
fn several_threads_share_the_sessions() {
    both(|sshd| {
        let mut options = options(sshd, &sshd.data_path());
        options.patience = Duration::ZERO;
        let (store, before) = (open(options), sshd.sessions());
        let bytes = pattern(20 << 20);
        thread::scope(|scope| {
            for worker in 0..4 {
                let (store, bytes) = (&store, &bytes);
                scope.spawn(move || {
                    for n in 0..3 {
                        let name = format!("segments/b/{worker}/{n}.raw.age");
                        let bytes = &bytes[worker..bytes.len() - n * 1_000_003];
                        store.put(&name, bytes).unwrap();
                        assert!(store.get(&name, bytes.len() as u64).unwrap() == bytes, "{name}");
                    }
                });
            }
        });
        assert_eq!(store.list("segments").unwrap().len(), 12);
        assert_no_parts(&sshd.data());
        assert_eq!(sshd.sessions() - before, 2, "as many as were allowed");
    });
}

/// Who asks for one more again and again is taken for an attacker.
#[test]
fn a_further_session_that_is_refused_is_asked_for_once() {
    let Some(sshd) = Sshd::start(Account::Ordinary) else { return };
    let folder = tempfile::tempdir().unwrap();
    let (script, asked) = (folder.path().join("ssh"), folder.path().join("asked"));
    let text = format!(
        "#!/bin/sh\necho asked >> {0}\n[ \"$(wc -l < {0})\" -eq 1 ] && exec ssh \"$@\"\nexit 255\n",
        asked.display()
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let mut options = options(&sshd, &sshd.data_path());
    options.patience = Duration::ZERO;
    options.ssh_command[0] = script.display().to_string();
    let store = open(options);
    let asked = || fs::read_to_string(&asked).unwrap().lines().count();
    let busy = |round: usize| {
        thread::scope(|scope| {
            for n in 0..4 {
                let store = &store;
                scope.spawn(move || store.put(&format!("{round}-{n}"), &pattern(1 << 20)).unwrap());
            }
        });
    };
    busy(0);
    wait_until(|| asked() == 2);
    (1..10).for_each(|round| {
        thread::sleep(Duration::from_millis(50));
        busy(round);
    });
    assert_eq!(asked(), 2);
}

/// A login costs more than a small job.
#[test]
fn one_session_is_enough_for_little_work() {
    let Some(sshd) = Sshd::start(Account::Ordinary) else { return };
    let mut options = options(&sshd, &sshd.data_path());
    options.patience = Duration::from_secs(60);
    let (store, before) = (open(options), sshd.sessions());
    thread::scope(|scope| {
        for n in 0..4 {
            let store = &store;
            scope.spawn(move || store.put(&format!("{n}"), b"x").unwrap());
        }
    });
    assert_eq!(sshd.sessions() - before, 1);
}

#[test]
fn a_session_cut_in_the_middle_leaves_no_object_and_is_replaced() {
    both(|sshd| {
        let store = open(options(sshd, &sshd.data_path()));
        store.put("first", b"1").unwrap();
        let (bytes, part) = (pattern(300 << 20), sshd.data().join("segments/large.part"));
        thread::scope(|scope| {
            let put = scope.spawn(|| store.put("segments/large", &bytes));
            wait_until(|| fs::metadata(&part).is_ok_and(|m| m.len() > 1 << 20));
            let cut = Instant::now();
            sshd.kill_sessions();
            let error = put.join().unwrap().unwrap_err();
            assert_error(&error, Kind::Transient, &["cannot store segments/large: connection to ", " lost (ssh: "]);
            assert!(cut.elapsed() < Duration::from_secs(5), "{:?}", cut.elapsed());
        });
        assert!(part.exists() && !sshd.data().join("segments/large").exists());
        assert_eq!(store.list("").unwrap().len(), 1, "a part is no object");
        store.put("segments/large", &bytes[..1000]).unwrap();
        assert_eq!(store.get("segments/large", 1000).unwrap(), bytes[..1000]);
        assert_no_parts(&sshd.data());
    });
}

#[test]
fn an_idle_session_that_died_is_replaced() {
    let Some(sshd) = Sshd::start(Account::Ordinary) else { return };
    let mut options = options(&sshd, &sshd.data_path());
    options.connections = 1;
    let store = open(options);
    store.put("first", b"1").unwrap();
    sshd.restart();
    thread::sleep(Duration::from_millis(300));
    assert_eq!(store.get("first", 1).unwrap(), b"1");
    sshd.stop();
    thread::sleep(Duration::from_millis(300));
    assert_error(&store.get("first", 1).unwrap_err(), Kind::Transient, &["cannot connect to", "Connection refused"]);
}

fn wait_until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn silence_is_given_up_after_the_stall_timeout() {
    let Some(sshd) = Sshd::start(Account::Ordinary) else { return };
    let mut options = options(&sshd, &sshd.data_path());
    options.stall_timeout = Duration::from_secs(1);
    let store = open(options);
    store.put("first", b"1").unwrap();
    let bytes = pattern(30 << 20);
    sshd.freeze();
    let begun = Instant::now();
    let error = store.put("second", &bytes).unwrap_err();
    assert_error(&error, Kind::Transient, &["cannot store second", "no byte came or went for 1 s"]);
    assert!(begun.elapsed() >= Duration::from_secs(1) && begun.elapsed() < Duration::from_secs(4));
    sshd.thaw();
    store.put("second", b"2").unwrap();
}

#[test]
fn a_server_that_never_answers_is_given_up() {
    let Some(sshd) = Sshd::start(Account::Ordinary) else { return };
    let mut options = options(&sshd, &sshd.data_path());
    options.connect_timeout = Duration::from_secs(1);
    sshd.freeze();
    let begun = Instant::now();
    assert_error(&open(options).size("x").unwrap_err(), Kind::Transient, &["cannot read x: cannot connect to"]);
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[test]
fn refusals_to_connect_say_why() {
    let Some(sshd) = Sshd::start(Account::Ordinary) else { return };
    let path = sshd.data_path();
    let failure = |options| open(options).put("x", b"x").unwrap_err();

    sshd.trust("other_key");
    assert_error(&failure(options(&sshd, &path)), Kind::Denied, &["cannot store x", "Host key verification failed"]);
    sshd.trust("host_key");

    let mut wrong_user = options(&sshd, &path);
    wrong_user.user = Some("nobody-of-this-name".into());
    assert_error(
        &failure(wrong_user),
        Kind::Denied,
        &["nobody-of-this-name@127.0.0.1", "Permission denied (publickey"],
    );

    let mut wrong_key = options(&sshd, &path);
    wrong_key.ssh_options = vec![format!("IdentityFile={}", sshd.user_key().with_file_name("other_key").display())];
    wrong_key.ssh_command = vec!["ssh".into(), "-F".into(), "none".into()];
    wrong_key.ssh_options.push("IdentityAgent=none".into());
    wrong_key.ssh_options.push(format!("UserKnownHostsFile={}", sshd.known_hosts().display()));
    assert_error(&failure(wrong_key), Kind::Denied, &["Permission denied (publickey"]);

    let mut odd_option = options(&sshd, &path);
    odd_option.ssh_options = vec!["NoSuchOption=yes".into()];
    assert_error(&failure(odd_option), Kind::Broken, &["Bad configuration option"]);

    let mut no_ssh = options(&sshd, &path);
    no_ssh.ssh_command = vec!["/nonexistent/ssh".into()];
    assert_error(&failure(no_ssh), Kind::Broken, &["cannot start \"/nonexistent/ssh\""]);

    let mut nowhere = options(&sshd, &path);
    nowhere.host = "snapferry.invalid".into();
    let unresolved = failure(nowhere);
    // A resolver that answers knows that there is no such name; without one it may be there in a minute.
    let kind = if unresolved.to_string().contains("Temporary") { Kind::Transient } else { Kind::Broken };
    assert_error(&unresolved, kind, &["Could not resolve hostname"]);

    let refused = options(&sshd, &path);
    sshd.stop();
    assert_error(&failure(refused), Kind::Transient, &["Connection refused"]);
}

#[test]
fn a_server_without_sftp_says_so() {
    let Some(sshd) = Sshd::start_with(Account::Ordinary, "# no Subsystem") else { return };
    let error = open(options(&sshd, &sshd.data_path())).list("").unwrap_err();
    assert_error(&error, Kind::Broken, &["cannot list", "offers no SFTP to this account"]);
}

#[test]
fn a_shell_file_that_prints_is_named_as_the_cause() {
    let Some(sshd) = Sshd::start(Account::Ordinary) else { return };
    if !sshd.has_own_home() {
        return;
    }
    fs::write(sshd.home().join(".bashrc"), "echo \"Welcome, $USER!\"; printf '\\033[2J'\n").unwrap();
    sshd.give(&sshd.home());
    let begun = Instant::now();
    let error = open(options(&sshd, &sshd.data_path())).list("").unwrap_err();
    assert_error(&error, Kind::Broken, &["sent text before SFTP began", "start-up file", "Welcome, sf-test"]);
    assert!(begun.elapsed() < Duration::from_secs(5));
}

/// A small file system of its own, unmounted when dropped.
struct Mount(PathBuf);

impl Mount {
    fn new(sshd: &Sshd, size: &str) -> Option<Self> {
        if !is_root() {
            eprintln!("SKIPPED: mounting needs root");
            return None;
        }
        let data = sshd.data();
        let done = Command::new("mount").args(["-t", "tmpfs", "-o", size, "tmpfs"]).arg(&data).status().unwrap();
        if !done.success() {
            eprintln!("SKIPPED: this machine does not let us mount a tmpfs");
            return None;
        }
        sshd.give(&data);
        Some(Self(data))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_is_told_from_other_failures() {
    both(|sshd| {
        let Some(_mount) = Mount::new(sshd, "size=4m") else { return };
        let store = open(options(sshd, &sshd.data_path()));
        store.put("small", &pattern(1 << 20)).unwrap();
        let error = store.put("segments/large", &pattern(5 << 20)).unwrap_err();
        assert_error(&error, Kind::Full, &["cannot store segments/large", "no space left at the server"]);
        assert_no_parts(&sshd.data());
        store.put("segments/small", &pattern(1 << 20)).unwrap();
    });
    let Some(sshd) = Sshd::start(Account::Ordinary) else { return };
    let Some(_mount) = Mount::new(&sshd, "nr_inodes=3") else { return };
    let store = open(options(&sshd, &sshd.data_path()));
    store.put("one", b"1").unwrap();
    let error = store.put("folder/two", b"2").unwrap_err();
    assert_error(&error, Kind::Full, &["cannot store folder/two"]);
}

#[test]
fn what_may_not_be_written_is_denied() {
    both(|sshd| {
        let Some(mount) = Mount::new(sshd, "size=4m") else { return };
        let store = open(options(sshd, &sshd.data_path()));
        store.put("here/x", b"x").unwrap();
        let remount = Command::new("mount").args(["-o", "remount,ro"]).arg(&mount.0).status().unwrap();
        assert!(remount.success());
        assert_error(&store.put("here/y", b"y").unwrap_err(), Kind::Denied, &["read-only"]);
        assert_error(&store.put("there/y", b"y").unwrap_err(), Kind::Denied, &["read-only"]);
        assert_eq!(store.get("here/x", 1).unwrap(), b"x");
    });
    let Some(sshd) = Sshd::start(Account::Ordinary) else { return };
    let locked = sshd.data().join("locked");
    fs::create_dir(&locked).unwrap();
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o555)).unwrap();
    let store = open(options(&sshd, locked.to_str().unwrap()));
    if is_root() {
        assert_error(&store.put("x", b"x").unwrap_err(), Kind::Denied, &["cannot store x", "Permission denied"]);
        assert_error(&store.put("a/x", b"x").unwrap_err(), Kind::Denied, &["cannot store a/x: folder "]);
    }
}

#[test]
fn a_missing_path_is_an_empty_store() {
    both(|sshd| {
        let store = open(options(sshd, &format!("{}/not/there", sshd.data_path())));
        assert_eq!(store.list("").unwrap(), []);
        assert_error(&store.get("x", 1).unwrap_err(), Kind::NotFound, &["cannot read x"]);
        assert_error(&store.size("x").unwrap_err(), Kind::NotFound, &[]);
        assert_error(&store.delete("x").unwrap_err(), Kind::NotFound, &["cannot delete x"]);
        store.put("a/b/x", b"x").unwrap();
        fs::remove_dir_all(sshd.data().join("not/there/a")).unwrap();
        store.put("a/b/x", b"y").unwrap();
        assert_eq!(store.get("a/b/x", 1).unwrap(), b"y");
        // A disk that was unmounted: what it was mounted on is no repository.
        fs::rename(sshd.data().join("not"), sshd.data().join("gone")).unwrap();
        for name in ["a/b/y", "a/c/y", "y"] {
            assert_error(&store.put(name, b"y").unwrap_err(), Kind::NotFound, &["is not there any more"]);
        }
        assert!(!sshd.data().join("not").exists());
        fs::rename(sshd.data().join("gone"), sshd.data().join("not")).unwrap();
        store.put("a/c/y", b"y").unwrap();
    });
    let Some(sshd) = Sshd::start(Account::Ordinary) else { return };
    fs::write(sshd.data().join("file"), "").unwrap();
    let store = open(options(&sshd, &format!("{}/file", sshd.data_path())));
    assert_error(&store.put("x", b"x").unwrap_err(), Kind::Broken, &["not a folder"]);
}

#[test]
fn foreign_things_are_left_out_of_listings() {
    let Some(sshd) = Sshd::start(Account::Ordinary) else { return };
    let store = open(options(&sshd, &sshd.data_path()));
    store.put("a/one", b"1").unwrap();
    let a = sshd.data().join("a");
    for name in ["two.part", "with space", ".hidden", "new\nline", "\u{fc}ber"] {
        fs::write(a.join(name), "x").unwrap();
    }
    symlink("one", a.join("link")).unwrap();
    symlink("/", a.join("out")).unwrap();
    assert!(Command::new("mkfifo").arg(a.join("pipe")).status().unwrap().success());
    fs::create_dir_all(a.join("1/2/3/4/5/6/7/8/9")).unwrap();
    fs::write(a.join("1/2/3/4/5/6/deep"), "x").unwrap();
    fs::write(a.join("1/2/3/4/5/6/7/8/9/too-deep"), "x").unwrap();
    let names: Vec<String> = store.list("").unwrap().into_iter().map(|object| object.name).collect();
    assert_eq!(names, ["a/1/2/3/4/5/6/deep", "a/one"]);
    assert_error(&store.get("a/1", 9999).unwrap_err(), Kind::Broken, &["not a regular file"]);
}

#[test]
fn a_commit_that_was_cut_off_after_its_link_is_kept() {
    let Some(sshd) = Sshd::start(Account::Ordinary) else { return };
    let store = open(options(&sshd, &sshd.data_path()));
    store.put("x", b"committed").unwrap();
    fs::hard_link(sshd.data().join("x"), sshd.data().join("x.part")).unwrap();
    assert_eq!(store.put("x", b"again").unwrap_err().kind, Kind::Exists);
    assert_eq!(store.get("x", 99).unwrap(), b"committed");
    assert_no_parts(&sshd.data());
}

#[test]
fn an_ssh_that_does_not_know_the_cipher_is_used_without_it() {
    let Some(sshd) = Sshd::start(Account::Ordinary) else { return };
    let script = sshd.data().join("old-ssh");
    let text = "#!/bin/sh\ncase \"$*\" in *Ciphers=^*) echo \"command-line line 0: Bad SSH2 cipher spec '^aes'.\" >&2; exit 255;; esac\nexec ssh \"$@\"\n";
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let mut options = options(&sshd, &sshd.data_path());
    options.ssh_command[0] = script.to_str().unwrap().to_owned();
    open(options).put("x", b"x").unwrap();
}

#[test]
fn a_jump_host_of_the_users_configuration_is_used() {
    let Some(sshd) = Sshd::start(Account::Ordinary) else { return };
    let server = |name: &str, more: &str| {
        let (port, user) = (sshd.port(), sshd.user());
        format!(
            "Host {name}\n  HostName 127.0.0.1\n  HostKeyAlias [127.0.0.1]:{port}\n  Port {port}\n  User {user}\n{more}\n"
        )
    };
    let through = server("jump", "") + &server("target", "ProxyJump jump");
    let config = fs::read_to_string(sshd.config()).unwrap();
    fs::write(sshd.config(), through + &config).unwrap();
    let mut options = SftpOptions::new("target", &sshd.data_path());
    options.ssh_command = sshd.ssh_command();
    open(options).put("x", b"x").unwrap();
    assert!(sshd.log().matches("Accepted publickey").count() >= 2, "{}", sshd.log());
}

#[test]
fn closing_the_store_ends_its_ssh() {
    let Some(sshd) = Sshd::start(Account::Ordinary) else { return };
    let store = open(options(&sshd, &sshd.data_path()));
    store.put("x", b"x").unwrap();
    assert_eq!(processes_with(&sshd.config()), 1);
    let begun = Instant::now();
    store.close();
    assert_eq!(processes_with(&sshd.config()), 0);
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}

fn processes_with(argument: &Path) -> usize {
    let wanted = argument.to_str().unwrap().as_bytes();
    let running = fs::read_dir("/proc").unwrap().filter_map(|entry| fs::read(entry.ok()?.path().join("cmdline")).ok());
    running.filter(|line| line.split(|b| *b == 0).any(|word| word == wanted)).count()
}

/// A store whose "ssh" is a shell script.
fn fake(script: &str) -> SftpStore {
    let mut options = SftpOptions::new("liar", "/archive");
    options.ssh_command = vec!["sh".into(), "-c".into(), script.into()];
    options.stall_timeout = Duration::from_secs(1);
    options.connect_timeout = Duration::from_secs(1);
    open(options)
}

const GREETING: &str = r"printf '\0\0\0\5\2\0\0\0\3'";

#[test]
fn hostile_servers_end_their_session_and_nothing_else() {
    let lies = [
        ("another version", r"printf '\0\0\0\5\2\0\0\0\7'; sleep 5".to_owned()),
        ("a greeting without end", r"printf '\0\0\1\0\2\0\0\0\3'; sleep 5".to_owned()),
        ("nothing", "sleep 9".to_owned()),
        ("the end at once", "exit 3".to_owned()),
        ("a packet of 4 GiB", format!(r"{GREETING}; head -c 20 >/dev/null; printf '\377\377\377\377\147'; sleep 5")),
        ("a data packet of 4 GiB", format!(r"{GREETING}; head -c 20 >/dev/null; printf '\0\0\0\20\147\0\0\0\0\377\377\377\377'; sleep 5")),
        ("a packet of no length", format!(r"{GREETING}; head -c 20 >/dev/null; printf '\0\0\0\0\145'; sleep 5")),
        ("an unknown request number", format!(r"{GREETING}; head -c 20 >/dev/null; printf '\0\0\0\21\145\0\0\7\7\0\0\0\0\0\0\0\0\0\0\0\0'; sleep 5")),
        ("a handle for a stat", format!(r"{GREETING}; head -c 20 >/dev/null; printf '\0\0\0\12\146\0\0\0\0\0\0\0\1x'; sleep 5")),
        ("data for a stat", format!(r"{GREETING}; head -c 20 >/dev/null; printf '\0\0\0\12\147\0\0\0\0\0\0\0\1x'; sleep 5")),
        ("limits of nothing", r"printf '\0\0\0\40\2\0\0\0\3\0\0\0\22limits@openssh.com\0\0\0\0011'; head -c 20 >/dev/null; printf '\0\0\0\45\311\0\0\0\0\0\0\0\0\0\0\0\1\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\0\0\0\0\0\0\0\0'; sleep 5".to_owned()),
    ];
    for (what, script) in lies {
        let begun = Instant::now();
        let store = fake(&script);
        let error = store.size("x").unwrap_err();
        eprintln!("{what}: {:?}: {error}", error.kind);
        assert!(matches!(error.kind, Kind::Broken | Kind::Transient), "{what}: {error}");
        drop(store);
        assert!(begun.elapsed() < Duration::from_millis(4500), "{what}: {:?}", begun.elapsed());
    }
}

/// Answers that look right from outside and are nonsense inside, for whatever was asked.
fn nonsense(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below) as u32
    };
    let mut stream = b"\0\0\0\x05\x02\0\0\0\x03".to_vec();
    if random(2) == 0 {
        stream =
            b"\0\0\0\x3c\x02\0\0\0\x03\0\0\0\x11fsync@openssh.com\0\0\0\x011\0\0\0\x14hardlink@openssh.com\0\0\0\x011"
                .to_vec();
    }
    for _ in 0..200 {
        let packet_type = [101, 101, 102, 102, 103, 104, 105, 105, 201][random(9) as usize];
        let mut body = random(6).to_be_bytes().to_vec();
        let length = random(40);
        match packet_type {
            101 => body.extend([0, 0, 0, random(10) as u8]),
            102 | 103 => body.extend(length.to_be_bytes()),
            104 => body.extend(random(3).to_be_bytes()),
            _ => body.extend([0, 0, 0, random(16) as u8]),
        }
        body.extend((0..length).map(|_| [0, 0, 0, 1, 4, 255, random(256) as u8][random(7) as usize]));
        stream.extend((body.len() as u32 + 1).to_be_bytes());
        stream.push(packet_type);
        stream.extend(body);
    }
    stream
}

#[test]
fn nonsense_never_panics_or_hangs() {
    let folder = tempfile::tempdir().unwrap();
    let seeds: u64 = std::env::var("SNAPFERRY_SEEDS").map_or(5, |number| number.parse().unwrap());
    thread::scope(|scope| {
        for lane in 0..4 {
            let folder = folder.path();
            scope.spawn(move || {
                for seed in 0..seeds {
                    let file = folder.join(format!("{lane}-{seed}"));
                    fs::write(&file, nonsense(lane * 100 + seed + 1)).unwrap();
                    let mut options = SftpOptions::new("liar", "/archive");
                    options.ssh_command = vec![
                        "sh".into(),
                        "-c".into(),
                        format!("head -c 9 >/dev/null; while cat {}; do :; done; sleep 1", file.display()),
                    ];
                    options.stall_timeout = Duration::from_millis(200);
                    options.connect_timeout = Duration::from_secs(1);
                    let store = open(options);
                    let begun = Instant::now();
                    let _ = (
                        store.size("x"),
                        store.get("x", 1 << 20),
                        store.put("x", &[7; 100_000]),
                        store.list(""),
                        store.delete("x"),
                    );
                    assert!(begun.elapsed() < Duration::from_secs(20), "{seed}: {:?}", begun.elapsed());
                }
            });
        }
    });
}
