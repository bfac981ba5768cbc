//! Where objects live. A store knows names and bytes only: no format, no keys, no meaning.
//!
//! Names are relative paths with `/` between the parts, made by this program alone
//! (lower-case letters, digits, `.`, `-`, `_`). What a store *lists* comes from a host that nobody
//! needs to trust: names that don't fit are left out here, and everything else is checked by the caller.

#![warn(missing_docs)]

pub mod contract;
pub mod directory;
pub mod location;
pub mod memory;
pub mod retry;
pub mod sftp;

use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thiserror::Error;

use directory::DirectoryStore;
use location::Location;
use retry::{Retry, RetryPolicy};
use sftp::{SftpOptions, SftpStore};

/// Where sealed objects live.
///
/// The unit is a whole object in memory, not a stream, because a retry must be able to start over.
pub trait Store: Send + Sync {
    /// Stores `bytes` under `name`, whole or not at all, on disk when this returns where the server can
    /// promise that. Never replaces an object: [`StoreErrorKind::Exists`] then. Makes folders as needed.
    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError>;

    /// The whole object. [`StoreErrorKind::TooLarge`] if it holds more than `limit` bytes, and never
    /// allocates more than that on the word of the other side.
    fn get(&self, name: &str, limit: u64) -> Result<Vec<u8>, StoreError>;

    /// [`Store::get`] into a buffer that is used again, where a store can; what it held is gone either way.
    fn get_into(&self, name: &str, limit: u64, buffer: &mut Vec<u8>) -> Result<(), StoreError> {
        *buffer = self.get(name, limit)?;
        Ok(())
    }

    /// The object's size in bytes.
    fn size(&self, name: &str) -> Result<u64, StoreError>;

    /// Every object below the folder `prefix` (no slash at its end; "" is the root), at any depth, sorted by
    /// name; names are relative to the store's root. A folder that does not exist is empty. `.part` files,
    /// links and names that this program would not make are left out.
    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>, StoreError>;

    /// Removes one object; [`StoreErrorKind::NotFound`] when it is not there.
    fn delete(&self, name: &str) -> Result<(), StoreError>;
}

/// How a store is reached.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// The ssh program with the person's own options, word by word.
    pub ssh_command: Vec<String>,
    /// Transfers at once.
    pub connections: usize,
}

/// The store of a location, its transient failures tried again. Nothing is contacted here.
pub fn open(location: &Location, options: &StoreOptions) -> Result<Arc<dyn Store>, StoreError> {
    Ok(match location {
        Location::Directory(path) => Arc::new(Retry::new(DirectoryStore::new(path), RetryPolicy::default())),
        Location::Sftp(place) => {
            let sftp = SftpOptions {
                user: place.user.clone(),
                port: place.port,
                ssh_command: options.ssh_command.clone(),
                connections: options.connections.div_ceil(TRANSFERS_A_SESSION),
                ..SftpOptions::new(&place.host, &place.path)
            };
            Arc::new(Retry::new(SftpStore::open(sftp)?, RetryPolicy::default()))
        }
    })
}

/// Each ssh session carries so many transfers at once: one alone leaves it idle between objects.
const TRANSFERS_A_SESSION: usize = 2;

/// One line of a listing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectInfo {
    /// Path from the store's root.
    pub name: String,
    /// Bytes.
    pub size: u64,
}

/// What went wrong, as far as code decides on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreErrorKind {
    /// No such object, or no such repository path.
    NotFound,
    /// An object of that name is there already.
    Exists,
    /// The store refuses: permissions, login, read-only file system.
    Denied,
    /// No space or quota left.
    Full,
    /// The object is larger than the caller allows.
    TooLarge,
    /// May succeed when tried again: a dropped connection, a time-out.
    Transient,
    /// Anything else.
    Broken,
}

/// A failed operation on a store.
#[derive(Debug, Error)]
#[error("cannot {operation} {name}: {message}")]
pub struct StoreError {
    /// What code decides on.
    pub kind: StoreErrorKind,
    /// A verb: `store`, `read`, `list`, `delete`, `connect to`.
    pub operation: &'static str,
    /// The object's name, or the place itself.
    pub name: String,
    /// The cause, for a person.
    pub message: String,
}

impl StoreError {
    /// An error with its cause in words.
    pub fn new(kind: StoreErrorKind, operation: &'static str, name: &str, message: impl Into<String>) -> Self {
        Self { kind, operation, name: name.to_owned(), message: message.into() }
    }

    /// Sorts an error of the operating system.
    pub fn from_io(operation: &'static str, name: &str, error: &io::Error) -> Self {
        use StoreErrorKind as Kind;
        let kind = match error.kind() {
            io::ErrorKind::NotFound => Kind::NotFound,
            io::ErrorKind::AlreadyExists => Kind::Exists,
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Kind::Denied,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => Kind::Full,
            io::ErrorKind::Interrupted
            | io::ErrorKind::TimedOut
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::StaleNetworkFileHandle => Kind::Transient,
            _ => Kind::Broken,
        };
        Self::new(kind, operation, name, error.to_string())
    }

    /// The answer of [`Store::get`] to an object beyond the caller's limit (both in bytes).
    pub fn too_large(name: &str, size: u64, limit: u64) -> Self {
        let message = format!("it has {size} bytes where at most {limit} are expected");
        Self::new(StoreErrorKind::TooLarge, "read", name, message)
    }

    /// Whether trying again may help.
    pub fn is_transient(&self) -> bool {
        self.kind == StoreErrorKind::Transient
    }
}

/// Whether this program could have made `part` as one part of an object's name. Anything else that a
/// listing shows is somebody else's file (or an attack) and is passed over.
pub fn is_own_name_part(part: &str) -> bool {
    !part.is_empty()
        && part.len() <= 255
        && !part.starts_with('.')
        && !part.ends_with(".part")
        && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

/// The names that are being written right now. Two writers of one name would share one `.part` file, so the
/// second is refused as if the object were there already. (Other processes are kept apart by random names.)
#[derive(Debug, Default)]
pub struct InFlight(Mutex<HashSet<String>>);

/// Holds a name until it is dropped.
#[derive(Debug)]
pub struct InFlightName<'a> {
    names: &'a InFlight,
    name: &'a str,
}

impl InFlight {
    /// Claims `name`, or [`StoreErrorKind::Exists`].
    pub fn claim<'a>(&'a self, name: &'a str) -> Result<InFlightName<'a>, StoreError> {
        if self.names().insert(name.to_owned()) {
            Ok(InFlightName { names: self, name })
        } else {
            Err(StoreError::new(StoreErrorKind::Exists, "store", name, "it is being written already"))
        }
    }

    fn names(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for InFlightName<'_> {
    fn drop(&mut self) {
        self.names.names().remove(self.name);
    }
}
