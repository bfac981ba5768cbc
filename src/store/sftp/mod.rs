//! Objects over SFTP, through the user's own `ssh`.
//!
//! `ssh` itself is the user's: configuration, agent, known hosts, jump hosts and hardware keys work as they do at
//! the prompt, and no SSH code is linked in. The SFTP packets are `openssh-sftp-client`'s, with its asynchronous
//! world kept inside this folder. What that library lacks for a server that nobody trusts is added here: frames
//! are checked before it sees them (`frames`), silence and ends of sessions have causes (`session`), and nothing
//! is ever replaced (`objects`).
//!
//! A session is one `ssh` process and one connection. OpenSSH lets one session carry 2 MiB per round trip, so
//! there are several, and each carries several operations at once: while one waits for its answer, another's
//! bytes move. Callers that want the most run two operations for each connection. A login costs a third of a second
//! and the work of two processors, so sessions after the first are opened beside the work, and only when there is
//! much of it.

mod fault;
mod folders;
#[doc(hidden)]
pub mod frames;
mod link;
mod objects;
mod session;
mod ssh;
mod text;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};

use self::fault::Fault;
use self::folders::Folders;
use self::session::Session;
use super::{InFlight, ObjectInfo, Store, StoreError, StoreErrorKind, is_own_name_part};

/// Where the repository is and how it is reached.
#[derive(Clone, Debug)]
pub struct SftpOptions {
    /// The account; `ssh` decides if it is not given.
    pub user: Option<String>,
    /// A host name, an address, or an alias from the user's ssh configuration.
    pub host: String,
    /// The port; `ssh` decides if it is not given.
    pub port: Option<u16>,
    /// The repository's folder: absolute, or relative to the folder that a login starts in.
    pub path: String,
    /// The most sessions that are open at once. One is opened when needed, each further one when those that are open
    /// were busy for [`Self::patience`].
    pub connections: usize,
    /// The program and the arguments that come before ours.
    pub ssh_command: Vec<String>,
    /// More options for `ssh -o`; they win over ours.
    pub ssh_options: Vec<String>,
    /// An operation fails when for so long no byte came or went on its session.
    pub stall_timeout: Duration,
    /// How long connecting may take, login and all.
    pub connect_timeout: Duration,
    /// How long all open sessions have to be in use before there is one more.
    pub patience: Duration,
}

impl SftpOptions {
    /// A place with everything else as it usually is.
    pub fn new(host: &str, path: &str) -> Self {
        Self {
            user: None,
            host: host.to_owned(),
            port: None,
            path: path.to_owned(),
            connections: 2,
            ssh_command: vec!["ssh".to_owned()],
            ssh_options: Vec::new(),
            stall_timeout: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(30),
            patience: Duration::from_secs(1),
        }
    }

    /// The host as a person writes it.
    fn place(&self) -> String {
        match &self.user {
            Some(user) => format!("{user}@{}", self.host),
            None => self.host.clone(),
        }
    }

    /// `ssh` would take a leading dash for an option and other odd characters for part of its configuration.
    fn check(&self) -> Result<(), &'static str> {
        let odd = |text: &str| text.starts_with('-') || text.chars().any(|c| c.is_control() || c.is_whitespace());
        if self.host.is_empty() || odd(&self.host) || self.host.contains('@') {
            return Err("this is no host name");
        }
        if self.user.as_deref().is_some_and(|user| user.is_empty() || odd(user)) {
            return Err("this is no user name");
        }
        if self.path.chars().any(char::is_control) {
            return Err("the path holds a control character");
        }
        Ok(())
    }
}

/// A folder at an SFTP server.
///
/// Opening it connects to nothing; the first operation does. A folder that does not exist is an empty store, and
/// the first `put` makes it. Files are flushed to disk where the server offers that, folders can't be: SFTP has
/// no request for it.
#[derive(Debug)]
pub struct SftpStore {
    options: SftpOptions,
    root: String,
    folders: Folders,
    in_flight: InFlight,
    // Before the runtime, because the end of a session needs it.
    slots: Vec<Arc<Slot>>,
    growth: Mutex<Growth>,
    runtime: Arc<Runtime>,
}

/// A place for a session, and how many operations are using it or waiting for it.
#[derive(Debug, Default)]
struct Slot {
    users: AtomicUsize,
    session: Mutex<Option<Arc<Session>>>,
    /// Has had a session, so that operations may be given to it.
    used: AtomicBool,
}

/// When the next session is opened.
#[derive(Debug, Default)]
struct Growth {
    /// Since when no open session was without work.
    busy_since: Option<Instant>,
    /// The thread that opens one.
    opening: Option<JoinHandle<()>>,
    /// A further session was refused. Who asks again and again is taken for an attacker.
    refused: Arc<AtomicBool>,
}

impl SftpStore {
    /// Checks the options. Nothing is sent yet.
    pub fn open(options: SftpOptions) -> Result<Self, StoreError> {
        let place = options.place();
        let broken = |message: &str| StoreError::new(StoreErrorKind::Broken, "connect to", &place, message);
        options.check().map_err(broken)?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("sftp")
            .enable_all()
            .build()
            .map_err(|e| StoreError::from_io("connect to", &place, &e))?;
        let root = match options.path.trim_end_matches('/') {
            "" if options.path.starts_with('/') => "/".to_owned(),
            "." => String::new(),
            root => root.to_owned(),
        };
        let slots: Vec<_> = (0..options.connections.max(1)).map(|_| Arc::new(Slot::default())).collect();
        slots[0].used.store(true, Ordering::Relaxed);
        let (folders, growth) = (Folders::below(&root), Mutex::default());
        let runtime = Arc::new(runtime);
        Ok(Self { options, root, folders, in_flight: InFlight::default(), slots, growth, runtime })
    }

    /// Ends every `ssh` process. Dropping the store does the same.
    pub fn close(self) {}

    fn path(&self, name: &str) -> Result<String, Fault> {
        if name.split('/').all(is_own_name_part) {
            return Ok(joined(&self.root, name));
        }
        Err(Fault::new(StoreErrorKind::Broken, "this is not a name of an object"))
    }

    /// Runs one operation on the least busy session.
    fn run<T>(
        &self,
        operation: &'static str,
        name: &str,
        work: impl AsyncFnOnce(&Session) -> Result<T, Fault>,
    ) -> Result<T, StoreError> {
        let slot = Reserved::least_busy(&self.slots);
        let result = self.session(slot.0).and_then(|session| {
            self.grow();
            session.run(&self.runtime, work(&session))
        });
        result.map_err(|fault| fault.into_error(operation, name))
    }

    /// Opens one more session, beside the work, when those that are open have had no rest for a while.
    fn grow(&self) {
        let mut growth = self.growth.lock().unwrap_or_else(PoisonError::into_inner);
        let (used, unused): (Vec<_>, Vec<_>) = self.slots.iter().partition(|slot| slot.used.load(Ordering::Relaxed));
        // The one that asks is a user itself.
        if used.iter().any(|slot| slot.users.load(Ordering::Relaxed) < 2) {
            growth.busy_since = None;
            return;
        }
        let since = *growth.busy_since.get_or_insert_with(Instant::now);
        let opening = growth.opening.as_ref().is_some_and(|thread| !thread.is_finished());
        let refused = growth.refused.load(Ordering::Relaxed);
        let may = !opening && !refused && since.elapsed() >= self.options.patience;
        let Some(slot) = unused.first().filter(|_| may) else { return };
        growth.busy_since = None;
        let (slot, options, runtime) = (Arc::clone(slot), self.options.clone(), Arc::clone(&self.runtime));
        let refused = Arc::clone(&growth.refused);
        let open = move || {
            match Session::open(&runtime, &options) {
                Ok(session) => {
                    *slot.session.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(session));
                    slot.used.store(true, Ordering::Relaxed);
                }
                // The work goes on without it.
                Err(fault) => {
                    refused.store(true, Ordering::Relaxed);
                    tracing::debug!("no further session: {}", fault.message);
                }
            }
            // Where the store has gone meanwhile, this is the end of the session, which needs the runtime.
            drop(slot);
            drop(runtime);
        };
        growth.opening = thread::Builder::new().name("ssh login".into()).spawn(open).ok();
    }

    /// The slot's session, opened anew if there is none or the one before has died.
    fn session(&self, slot: &Slot) -> Result<Arc<Session>, Fault> {
        let mut place = slot.session.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(session) = place.as_ref().filter(|session| session.is_alive()) {
            return Ok(Arc::clone(session));
        }
        // The dead one goes first: its process must not linger beside the new one.
        *place = None;
        let session = Arc::new(Session::open(&self.runtime, &self.options)?);
        *place = Some(Arc::clone(&session));
        Ok(session)
    }
}

/// One use of a slot, counted from the choice to the end.
struct Reserved<'a>(&'a Slot);

impl<'a> Reserved<'a> {
    fn least_busy(slots: &'a [Arc<Slot>]) -> Self {
        let used = slots.iter().filter(|slot| slot.used.load(Ordering::Relaxed));
        let slot = used.min_by_key(|slot| slot.users.load(Ordering::Relaxed)).unwrap_or(&slots[0]);
        slot.users.fetch_add(1, Ordering::Relaxed);
        Self(slot)
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Store for SftpStore {
    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let path = self.path(name).map_err(|fault| fault.into_error("store", name))?;
        let _claim = self.in_flight.claim(name)?;
        self.run("store", name, async |session| objects::put(session, &self.folders, &path, bytes).await)
    }

    fn get(&self, name: &str, limit: u64) -> Result<Vec<u8>, StoreError> {
        let mut bytes = Vec::new();
        self.get_into(name, limit, &mut bytes)?;
        Ok(bytes)
    }

    fn get_into(&self, name: &str, limit: u64, buffer: &mut Vec<u8>) -> Result<(), StoreError> {
        let path = self.path(name).map_err(|fault| fault.into_error("read", name))?;
        self.run("read", name, async |session| objects::get(session, &path, limit, buffer).await)
    }

    fn size(&self, name: &str) -> Result<u64, StoreError> {
        let path = self.path(name).map_err(|fault| fault.into_error("read", name))?;
        self.run("read", name, async |session| objects::size(session, &path).await)
    }

    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        if !prefix.is_empty() {
            self.path(prefix).map_err(|fault| fault.into_error("list", prefix))?;
        }
        let shown = if prefix.is_empty() { self.options.path.as_str() } else { prefix };
        let mut objects = self.run("list", shown, async |session| folders::list(session, &self.root, prefix).await)?;
        objects.sort_unstable();
        Ok(objects)
    }

    fn delete(&self, name: &str) -> Result<(), StoreError> {
        let path = self.path(name).map_err(|fault| fault.into_error("delete", name))?;
        self.run("delete", name, async |session| objects::delete(session, &path).await)
    }
}

/// `below` inside `folder`, either of which may be empty.
fn joined(folder: &str, below: &str) -> String {
    match (folder, below) {
        ("", path) | (path, "") => path.to_owned(),
        (folder, below) if folder.ends_with('/') => format!("{folder}{below}"),
        (folder, below) => format!("{folder}/{below}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_join() {
        assert_eq!(joined("", "a"), "a");
        assert_eq!(joined("/", "a"), "/a");
        assert_eq!(joined("/archive", "a/b"), "/archive/a/b");
        assert_eq!(joined("/archive", ""), "/archive");
    }

    #[test]
    fn hosts_and_users_that_ssh_would_misread_are_refused() {
        for (user, host) in [(None, "-oProxyCommand=x"), (None, ""), (None, "a b"), (Some("-l"), "h"), (Some(""), "h")]
        {
            let mut options = SftpOptions::new(host, "/archive");
            options.user = user.map(str::to_owned);
            assert_eq!(SftpStore::open(options).unwrap_err().kind, StoreErrorKind::Broken, "{user:?} {host}");
        }
    }

    #[test]
    fn names_that_this_program_does_not_make_are_refused_without_a_connection() {
        let store = SftpStore::open(SftpOptions::new("host.invalid", "/archive")).unwrap();
        for name in ["", "../x", "a//b", "/a", "a/", "a/.b", "x.part", "a b", "a\nb"] {
            assert_eq!(store.put(name, b"").unwrap_err().kind, StoreErrorKind::Broken, "{name:?}");
            assert_eq!(store.get(name, 1).unwrap_err().kind, StoreErrorKind::Broken, "{name:?}");
            assert_eq!(store.delete(name).unwrap_err().kind, StoreErrorKind::Broken, "{name:?}");
        }
        assert!(store.list("..").is_err());
    }
}
