//! The `ssh` process under a session: how it is called, and what its last words mean.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::SftpOptions;
use super::text::Tail;
use crate::children::TrackedChild;
use crate::ssh::FIXED_OPTIONS;
use crate::store::StoreErrorKind;

/// What is sent is sealed already; this cipher is the cheapest on processors of the last ten years.
const CIPHERS: &str = "Ciphers=^aes128-gcm@openssh.com";

/// How long an `ssh` whose input was closed may take to leave by itself.
const LEAVE_LIMIT: Duration = Duration::from_secs(2);

/// A running `ssh` with the SFTP subsystem at its other end.
#[derive(Debug)]
pub struct Ssh {
    child: TrackedChild,
    words: Tail,
}

impl Ssh {
    /// Starts it. `with_cipher` is off for an `ssh` that does not know our cipher.
    pub fn spawn(options: &SftpOptions, with_cipher: bool) -> io::Result<(Self, OwnedFd, OwnedFd)> {
        let mut command = command(options, with_cipher)?;
        tracing::debug!(?command, "starting ssh");
        let mut child = TrackedChild::spawn(&mut command)?;
        let process = child.inner();
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (process.stdin.take(), process.stdout.take(), process.stderr.take())
        else {
            return Err(io::Error::other("ssh was started without its pipes"));
        };
        let words = Tail::default();
        let listener = words.clone();
        // Never joined: a process that outlives ssh may hold the pipe open.
        thread::Builder::new().name("ssh stderr".into()).spawn(move || listener.follow(stderr))?;
        Ok((Self { child, words }, stdin.into(), stdout.into()))
    }

    /// Whether the process is still there.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Gives the process a moment to leave by itself, then ends it. Says whether it left.
    pub fn finish(&mut self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        while self.is_running() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        let left = !self.is_running();
        self.child.kill();
        left
    }

    /// What it said last, or how it ended if it said nothing.
    pub fn last_words(&mut self) -> String {
        // The thread that listens may be a moment behind the end of the process.
        let deadline = Instant::now() + Duration::from_millis(200);
        while self.words.words().is_empty() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        match (self.words.words(), self.child.try_wait()) {
            (words, _) if !words.is_empty() => words,
            (_, Ok(Some(status))) => format!("ended with {status} and without a word"),
            _ => "ended without a word".to_owned(),
        }
    }
}

impl Drop for Ssh {
    fn drop(&mut self) {
        self.finish(LEAVE_LIMIT);
    }
}

fn command(options: &SftpOptions, with_cipher: bool) -> io::Result<Command> {
    let (program, arguments) = options
        .ssh_command
        .split_first()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no ssh command"))?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // The first value that ssh meets counts, so the user's own come first.
    let timeout = format!("ConnectTimeout={}", options.connect_timeout.as_secs().max(1));
    let own = FIXED_OPTIONS.iter().copied().chain([timeout.as_str()]).chain(with_cipher.then_some(CIPHERS));
    for option in options.ssh_options.iter().map(String::as_str).chain(own) {
        command.args(["-o", option]);
    }
    if let Some(port) = options.port {
        command.args(["-p", &port.to_string()]);
    }
    if let Some(user) = &options.user {
        command.args(["-l", user]);
    }
    command.args(["-s", "--", &options.host, "sftp"]);
    Ok(command)
}

/// Whether these are the words of an `ssh` that is too old for `^` or was built without the cipher.
pub fn rejects_cipher(words: &str) -> bool {
    words.contains("Bad SSH2 cipher spec")
}

/// Sorts the last words of an `ssh`. What is not known is worth another try: most of it is the network.
pub fn kind_of(words: &str) -> StoreErrorKind {
    const DENIED: [&str; 6] = [
        "Permission denied (",
        "Host key verification failed",
        "Too many authentication failures",
        "No supported authentication methods",
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "This account is currently not available",
    ];
    const BROKEN: [&str; 9] = [
        // A name that does not exist; a resolver that does not answer says "Temporary failure in name resolution".
        "Name or service not known",
        "No address associated with hostname",
        "subsystem request failed",
        "Bad configuration option",
        "command-line: line",
        "Can't open user config file",
        "no matching ",
        "jumphost loop",
        "Bad owner or permissions",
    ];
    let has = |phrases: &[&str]| phrases.iter().any(|phrase| words.contains(phrase));
    if has(&DENIED) {
        StoreErrorKind::Denied
    } else if has(&BROKEN) {
        StoreErrorKind::Broken
    } else {
        StoreErrorKind::Transient
    }
}

/// Says in full what ssh's own words leave to be guessed.
pub fn explained(words: &str) -> String {
    if words.contains("subsystem request failed") {
        return format!("the server offers no SFTP to this account ({words})");
    }
    format!("ssh: {}", words.strip_prefix("ssh: ").unwrap_or(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_holds_no_shell_and_no_surprise() {
        let mut options = SftpOptions::new("host.example", "/archive");
        options.user = Some("backup".into());
        options.port = Some(2222);
        options.ssh_command = vec!["ssh".into(), "-F".into(), "cfg".into()];
        options.ssh_options = vec!["IdentityFile=/k".into()];
        let command = command(&options, true).unwrap();
        let arguments: Vec<&str> = command.get_args().map(|a| a.to_str().unwrap()).collect();
        assert_eq!(arguments[..6], ["-F", "cfg", "-o", "IdentityFile=/k", "-o", "BatchMode=yes"]);
        let end = ["-o", CIPHERS, "-p", "2222", "-l", "backup", "-s", "--", "host.example", "sftp"];
        assert!(arguments.ends_with(&end), "{arguments:?}");
    }

    #[test]
    fn last_words_are_sorted() {
        use StoreErrorKind as Kind;
        for (words, kind) in [
            ("backup@host: Permission denied (publickey).", Kind::Denied),
            ("Host key verification failed.", Kind::Denied),
            ("ssh: connect to host h port 22: Connection refused", Kind::Transient),
            ("ssh: Could not resolve hostname h: Temporary failure in name resolution", Kind::Transient),
            ("ssh: Could not resolve hostname h: Name or service not known", Kind::Broken),
            ("Timeout, server h not responding.", Kind::Transient),
            ("kex_exchange_identification: read: Connection reset by peer", Kind::Transient),
            ("subsystem request failed on channel 0", Kind::Broken),
            ("something never heard of", Kind::Transient),
        ] {
            assert_eq!(kind_of(words), kind, "{words}");
        }
    }
}
