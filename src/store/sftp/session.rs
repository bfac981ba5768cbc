//! One `ssh` process with the SFTP library on top: opened, watched, and ended with its cause.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use openssh_sftp_client::{Sftp, SftpOptions as LibraryOptions};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::SftpOptions;
use super::fault::Fault;
use super::link::{FromServer, LinkState, ToServer};
use super::ssh::{self, Ssh};
use crate::store::StoreErrorKind;

/// How much longer than its own limit `ssh` may take, so that its words come first.
const CONNECT_GRACE: Duration = Duration::from_secs(2);
/// How long a failed `ssh` may take to say why.
const WORDS_LIMIT: Duration = Duration::from_secs(1);
/// A request's payload where the server has not shown that it takes less: what OpenSSH allows.
const REQUEST_BYTES: u32 = 255 << 10;

/// An open SFTP session. Several threads may use it at once.
#[derive(Debug)]
pub struct Session {
    // Dropped before the process, so that ssh sees the end of its input and leaves by itself.
    sftp: Sftp,
    process: Mutex<Ssh>,
    link: Arc<LinkState>,
    given_up: AtomicBool,
    cause: OnceLock<Fault>,
    place: String,
    stall_timeout: Duration,
    /// The largest payload of one WRITE that the server was seen to allow.
    pub write_bytes: AtomicU32,
    /// The same for READ.
    pub read_bytes: AtomicU32,
}

impl Session {
    /// Connects, trying again at once without our cipher if this `ssh` does not know it.
    pub fn open(runtime: &Runtime, options: &SftpOptions) -> Result<Self, Fault> {
        match Self::connect(runtime, options, true) {
            Err(fault) if ssh::rejects_cipher(&fault.message) => Self::connect(runtime, options, false),
            result => result,
        }
    }

    fn connect(runtime: &Runtime, options: &SftpOptions, with_cipher: bool) -> Result<Self, Fault> {
        let program = options.ssh_command.first().map_or("ssh", String::as_str);
        let broken = |e: std::io::Error| Fault::lost(StoreErrorKind::Broken, format!("cannot start {program:?}: {e}"));
        let (mut process, stdin, stdout) = Ssh::spawn(options, with_cipher).map_err(broken)?;
        let link = Arc::new(LinkState::default());
        match runtime.block_on(greet(stdin, stdout, &link, options.connect_timeout + CONNECT_GRACE)) {
            Ok(sftp) => Ok(Self {
                sftp,
                process: Mutex::new(process),
                link,
                given_up: AtomicBool::new(false),
                cause: OnceLock::new(),
                place: options.place(),
                stall_timeout: options.stall_timeout,
                write_bytes: AtomicU32::new(REQUEST_BYTES),
                read_bytes: AtomicU32::new(REQUEST_BYTES),
            }),
            Err(NotGreeted::Late) => {
                process.finish(Duration::ZERO);
                let seconds = options.connect_timeout.as_secs_f32();
                let message = format!("cannot connect to {}: no answer within {seconds} s", options.place());
                Err(Fault::lost(StoreErrorKind::Transient, message))
            }
            Err(NotGreeted::Failed) => {
                Err(end_with_cause(&mut process, &link, &format!("cannot connect to {}", options.place())))
            }
        }
    }

    /// Whether another operation may be started on it.
    pub fn is_alive(&self) -> bool {
        !self.link.has_ended() && !self.given_up.load(Ordering::Acquire) && self.process().is_running()
    }

    /// The library's session.
    pub fn sftp(&self) -> &Sftp {
        &self.sftp
    }

    /// Runs one operation to its end, unless nothing moves for too long. An end of the session comes back with
    /// its cause.
    pub fn run<T>(&self, runtime: &Runtime, operation: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
        match runtime.block_on(self.watch(operation)) {
            Err(fault) if fault.is_lost() => Err(self.end(fault)),
            result => result,
        }
    }

    /// Time alone says nothing: a slow link is fine, a silent one is not.
    async fn watch<T>(&self, operation: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
        let mut operation = pin!(operation);
        let step = (self.stall_timeout / 4).clamp(Duration::from_millis(10), Duration::from_secs(1));
        let (mut seen, mut since) = (self.link.moved(), Instant::now());
        loop {
            if let Ok(result) = timeout(step, &mut operation).await {
                return result;
            }
            let moved = self.link.moved();
            if moved != seen {
                (seen, since) = (moved, Instant::now());
            } else if since.elapsed() >= self.stall_timeout {
                let stalled = Fault::stalled(&self.place, self.stall_timeout);
                let _ = self.cause.set(stalled.clone());
                return Err(stalled);
            }
        }
    }

    /// Ends the process, so that every other operation on this session fails now and not after its own wait.
    fn end(&self, first_sign: Fault) -> Fault {
        self.given_up.store(true, Ordering::Release);
        let mut process = self.process();
        if self.cause.get().is_some() {
            process.finish(Duration::ZERO);
        }
        let cause = self.cause.get_or_init(|| {
            tracing::debug!(sign = first_sign.message, "SFTP session ended");
            end_with_cause(&mut process, &self.link, &format!("connection to {} lost", self.place))
        });
        cause.clone()
    }

    fn process(&self) -> MutexGuard<'_, Ssh> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum NotGreeted {
    Late,
    Failed,
}

async fn greet(
    stdin: std::os::fd::OwnedFd,
    stdout: std::os::fd::OwnedFd,
    link: &Arc<LinkState>,
    limit: Duration,
) -> Result<Sftp, NotGreeted> {
    let to_server = ToServer::new(stdin, Arc::clone(link)).map_err(|_| NotGreeted::Failed)?;
    let from_server = FromServer::new(stdout, Arc::clone(link)).map_err(|_| NotGreeted::Failed)?;
    // Zero: the task that writes is woken for each request and takes along what has gathered meanwhile.
    let library_options = LibraryOptions::new().flush_interval(Duration::ZERO);
    // A task of its own: limits that make no sense let the library panic, which must end this session alone.
    let greeting = tokio::spawn(Sftp::new(to_server, from_server, library_options));
    match timeout(limit, greeting).await {
        Ok(Ok(Ok(sftp))) => Ok(sftp),
        Ok(_) => Err(NotGreeted::Failed),
        Err(_) => Err(NotGreeted::Late),
    }
}

/// What the server did wrong, or else ssh's own words, after `what`.
fn end_with_cause(process: &mut Ssh, link: &LinkState, what: &str) -> Fault {
    if let Some(violation) = link.violation() {
        process.finish(Duration::ZERO);
        return Fault::lost(StoreErrorKind::Broken, format!("{what}: {violation}"));
    }
    let left = process.finish(WORDS_LIMIT);
    if !left && !link.has_ended() {
        return Fault::lost(StoreErrorKind::Broken, format!("{what}: the server does not keep to the SFTP protocol"));
    }
    let words = process.last_words();
    Fault::lost(ssh::kind_of(&words), format!("{what} ({})", ssh::explained(&words)))
}
