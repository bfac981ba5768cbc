//! A real `sshd` on a high port of 127.0.0.1, with keys, account and configuration of its own.
//!
//! As root it makes a system account for itself and removes it when dropped; otherwise it serves the user who runs
//! the tests, and the SFTP-only account, which needs a chroot, is not there.

// Not every test file uses everything.
#![allow(dead_code)]

use std::fs;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Who is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Account {
    /// A login shell, and SFTP by `sftp-server`.
    Ordinary,
    /// `ForceCommand internal-sftp` in a chroot: no shell, no commands.
    SftpOnly,
}

/// A running server. Dropping it removes everything that it made.
pub struct Sshd {
    account: Account,
    folder: TempDir,
    port: u16,
    user: String,
    made_user: bool,
    server: Mutex<Option<Child>>,
}

impl Sshd {
    /// Starts a server. `None`, with a loud word, where this machine can't have one of this kind.
    pub fn start(account: Account) -> Option<Self> {
        Self::start_with(account, "")
    }

    /// The same with more lines of `sshd_config` before the usual ones.
    pub fn start_with(account: Account, first_lines: &str) -> Option<Self> {
        if !Path::new("/usr/sbin/sshd").exists() {
            eprintln!("SKIPPED: /usr/sbin/sshd is not installed");
            return None;
        }
        if account == Account::SftpOnly && !is_root() {
            eprintln!("SKIPPED: an SFTP-only account in a chroot needs root");
            return None;
        }
        // Every folder above a chroot must belong to root and be writable by nobody else: not so with /tmp.
        let base = if is_root() { PathBuf::from("/var/lib") } else { std::env::temp_dir() };
        let folder = tempfile::Builder::new()
            .prefix("snapferry-sshd-")
            .permissions(fs::Permissions::from_mode(0o755))
            .tempdir_in(base)
            .unwrap();
        let (user, made_user) =
            if is_root() { (make_user(folder.path()), true) } else { (command("id", &["-un"]), false) };
        let mut sshd = Self { account, folder, port: 0, user, made_user, server: Mutex::new(None) };
        sshd.make_files();
        for _ in 0..5 {
            sshd.port = free_port();
            sshd.write_configuration(first_lines);
            if sshd.launch() {
                return Some(sshd);
            }
        }
        panic!("sshd does not start: {}", sshd.log());
    }

    /// Always 127.0.0.1.
    pub fn host(&self) -> &'static str {
        "127.0.0.1"
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The account that the key opens.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// What to give to `ssh -F`: the key, the known host, and nothing of the user's own configuration.
    pub fn config(&self) -> PathBuf {
        self.folder.path().join("ssh_config")
    }

    /// The same as words: `ssh -F …`.
    pub fn ssh_command(&self) -> Vec<String> {
        vec!["ssh".into(), "-F".into(), self.config().to_str().unwrap().into()]
    }

    /// Where the server looks for known hosts; a test may change what is in it.
    pub fn known_hosts(&self) -> PathBuf {
        self.folder.path().join("known_hosts")
    }

    /// The user's private key.
    pub fn user_key(&self) -> PathBuf {
        self.folder.path().join("user_key")
    }

    /// Whether the account was made for this server, home and all. If not, it is a person's: leave it alone.
    pub fn has_own_home(&self) -> bool {
        if !self.made_user {
            eprintln!("SKIPPED: what happens in a home folder needs an account of its own, and that needs root");
        }
        self.made_user
    }

    /// The home of an account that was made for this server, as this machine sees it.
    pub fn home(&self) -> PathBuf {
        self.folder.path().join("jail/home")
    }

    /// A folder that belongs to the account, as this machine sees it.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("jail/data")
    }

    /// The same folder as the account sees it over SFTP.
    pub fn data_path(&self) -> String {
        match self.account {
            Account::Ordinary => self.data().to_str().unwrap().to_owned(),
            Account::SftpOnly => "/data".to_owned(),
        }
    }

    /// `ssh://user@host:port/path` of that folder.
    pub fn url(&self) -> String {
        format!("ssh://{}@{}:{}{}", self.user(), self.host(), self.port(), self.data_path())
    }

    /// Gives a folder or file to the account.
    pub fn give(&self, path: &Path) {
        if is_root() {
            command("chown", &["-R", &self.user, path.to_str().unwrap()]);
        }
    }

    /// What the server wrote down.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Logins so far.
    pub fn sessions(&self) -> usize {
        self.log().matches("Accepted publickey").count()
    }

    /// Ends the server and every session.
    pub fn stop(&self) {
        let Some(mut server) = self.server.lock().unwrap().take() else { return };
        let root = Pid::from_child(&server);
        let sessions = descendants(root);
        let _ = server.kill();
        let _ = server.wait();
        sessions.into_iter().for_each(|pid| signal(pid, Signal::KILL));
    }

    /// Starts it again after [`Sshd::stop`], at the same port.
    pub fn restart(&self) {
        self.stop();
        let deadline = Instant::now() + Duration::from_secs(10);
        while !self.launch() {
            assert!(Instant::now() < deadline, "sshd does not start again: {}", self.log());
        }
    }

    /// Cuts every session off at once; the server itself stays.
    pub fn kill_sessions(&self) {
        self.signal_all(Signal::KILL, false);
    }

    /// Stops the server and its sessions as they are (SIGSTOP): connected, but silent.
    pub fn freeze(&self) {
        self.signal_all(Signal::STOP, true);
    }

    /// Lets them go on.
    pub fn thaw(&self) {
        self.signal_all(Signal::CONT, true);
    }

    fn signal_all(&self, which: Signal, listener_too: bool) {
        let server = self.server.lock().unwrap();
        let Some(root) = server.as_ref().map(Pid::from_child) else { return };
        if listener_too {
            signal(root, which);
        }
        descendants(root).into_iter().for_each(|pid| signal(pid, which));
    }

    fn make_files(&self) {
        for key in ["host_key", "user_key", "other_key"] {
            let file = self.folder.path().join(key);
            command("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", file.to_str().unwrap()]);
        }
        fs::copy(self.folder.path().join("user_key.pub"), self.folder.path().join("authorized_keys")).unwrap();
        for folder in [self.home(), self.data()] {
            fs::create_dir_all(&folder).unwrap();
            self.give(&folder);
        }
    }

    fn write_configuration(&self, first_lines: &str) {
        let place = self.folder.path().display();
        let subsystem = match self.account {
            Account::Ordinary => "Subsystem sftp /usr/lib/openssh/sftp-server".to_owned(),
            Account::SftpOnly => format!(
                "Subsystem sftp internal-sftp\nMatch User {}\nChrootDirectory {place}/jail\nForceCommand internal-sftp -d /home",
                self.user
            ),
        };
        // A first line that sets the subsystem replaces ours.
        let subsystem = if first_lines.contains("Subsystem") { "" } else { subsystem.as_str() };
        let server = format!(
            "{first_lines}\nPort {}\nListenAddress 127.0.0.1\nHostKey {place}/host_key\nPidFile none\n\
             AuthorizedKeysFile {place}/authorized_keys\nStrictModes no\nUsePAM no\nMaxStartups 100\nMaxSessions 100\n\
             LogLevel VERBOSE\n{subsystem}\n",
            self.port
        );
        fs::write(self.folder.path().join("sshd_config"), server).unwrap();
        let client = format!(
            "Host *\n  IdentityFile {place}/user_key\n  IdentitiesOnly yes\n  IdentityAgent none\n  \
             UserKnownHostsFile {place}/known_hosts\n  GlobalKnownHostsFile /dev/null\n  StrictHostKeyChecking yes\n"
        );
        fs::write(self.config(), client).unwrap();
        self.trust("host_key");
    }

    /// Writes the known host with the key of that name: `host_key` is the right one, `other_key` a wrong one.
    pub fn trust(&self, key: &str) {
        let public = fs::read_to_string(self.folder.path().join(format!("{key}.pub"))).unwrap();
        fs::write(self.known_hosts(), format!("[127.0.0.1]:{} {public}", self.port)).unwrap();
    }

    fn launch(&self) -> bool {
        if is_root() {
            let _ = fs::create_dir_all("/run/sshd");
        }
        let log = fs::File::options().create(true).append(true).open(self.folder.path().join("log")).unwrap();
        let mut server = Command::new("/usr/sbin/sshd")
            .args(["-D", "-e", "-f"])
            .arg(self.folder.path().join("sshd_config"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while server.try_wait().unwrap().is_none() && Instant::now() < deadline {
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                *self.server.lock().unwrap() = Some(server);
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = server.kill();
        let _ = server.wait();
        false
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        self.thaw();
        self.stop();
        if self.made_user {
            let deadline = Instant::now() + Duration::from_secs(10);
            // It fails while a process of the account is still on its way out, or another test holds the lock.
            while !quiet(Command::new("userdel").args(["-f", &self.user])) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

/// Whether the tests run as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// An account of its own, so that tests in other processes can remove theirs at any time.
fn make_user(folder: &Path) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("sf-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let home = folder.join("jail/home");
    let deadline = Instant::now() + Duration::from_secs(30);
    // An unlocked account without a password: sshd without PAM refuses locked ones.
    let arguments = ["-M", "-N", "-g", "nogroup", "-p", "*", "-s", "/bin/bash", "-d", home.to_str().unwrap(), &name];
    while !quiet(Command::new("useradd").args(arguments)) {
        assert!(Instant::now() < deadline, "useradd {name} fails");
        std::thread::sleep(Duration::from_millis(100));
    }
    name
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn quiet(command: &mut Command) -> bool {
    let output = command.stdin(Stdio::null()).output().unwrap();
    if !output.status.success() {
        let _ = std::io::stderr().write_all(&output.stderr);
    }
    output.status.success()
}

fn command(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn signal(pid: Pid, which: Signal) {
    let _ = kill_process(pid, which);
}

/// Every process below `root`, parents before children.
fn descendants(root: Pid) -> Vec<Pid> {
    let parents: Vec<(i32, i32)> = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid: i32| Some((pid, parent_of(pid)?)))
        .collect();
    let mut found = vec![root.as_raw_nonzero().get()];
    let mut next = 0;
    while let Some(&above) = found.get(next) {
        found.extend(parents.iter().filter(|(_, parent)| *parent == above).map(|(pid, _)| *pid));
        next += 1;
    }
    found.into_iter().skip(1).filter_map(Pid::from_raw).collect()
}

fn parent_of(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}
