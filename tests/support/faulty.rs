//! A store that goes wrong at its n-th operation, and counts.
#![allow(dead_code, reason = "each test binary uses a part of this")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use snapferry::store::memory::MemoryStore;
use snapferry::store::{ObjectInfo, Store, StoreError, StoreErrorKind};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Put,
    Get,
    Size,
    List,
    Delete,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing is done, and it says so.
    Refuse(StoreErrorKind),
    /// Done, and said to have failed: an answer that was lost.
    FailAfter(StoreErrorKind),
    /// Said to be done, and nothing was. What is read is said not to be there.
    Lose,
    /// One bit of the middle: of what is stored, of what is read, of a listed size.
    Flip,
    /// The second half is missing.
    Truncate,
    /// Nothing of it is there, but it is.
    Empty,
    /// Another object in its place.
    Swap,
    /// As things were when this store was made.
    Stale,
    /// Late, and right.
    Delay(Duration),
}

impl Fault {
    /// Every kind once.
    pub fn all() -> Vec<Fault> {
        let refusals = KINDS.into_iter().map(Fault::Refuse);
        refusals.chain([StoreErrorKind::Transient, StoreErrorKind::Broken].map(Fault::FailAfter)).chain(LIES).collect()
    }

    /// Whether the store claims to have kept bytes that it has not.
    pub fn lies_about(self, operation: Operation) -> bool {
        let untrue = matches!(self, Fault::Lose | Fault::Flip | Fault::Truncate | Fault::Empty | Fault::Swap);
        operation == Operation::Put && untrue
    }
}

pub const KINDS: [StoreErrorKind; 7] = [
    StoreErrorKind::NotFound,
    StoreErrorKind::Exists,
    StoreErrorKind::Denied,
    StoreErrorKind::Full,
    StoreErrorKind::TooLarge,
    StoreErrorKind::Transient,
    StoreErrorKind::Broken,
];

const LIES: [Fault; 7] = [
    Fault::Lose,
    Fault::Flip,
    Fault::Truncate,
    Fault::Empty,
    Fault::Swap,
    Fault::Stale,
    Fault::Delay(Duration::from_millis(2)),
];

pub struct Faulty {
    inner: Arc<dyn Store>,
    fault: Fault,
    /// The operations that are struck, from 0: first and behind the last.
    strikes: std::ops::Range<u64>,
    /// Only those on this name.
    only: Option<String>,
    done: AtomicU64,
    struck: Mutex<Vec<(Operation, String)>>,
    log: Mutex<Vec<(Operation, String)>>,
    /// The whole listing as it was.
    before: Vec<ObjectInfo>,
}

impl Faulty {
    /// Strikes at operation `at` and `times - 1` more.
    pub fn new(inner: Arc<dyn Store>, fault: Fault, at: u64, times: u64) -> Arc<Faulty> {
        let before = inner.list("").expect("a listing of a good store");
        let strikes = at..at.saturating_add(times);
        let (done, struck, log) = (AtomicU64::new(0), Mutex::default(), Mutex::default());
        Arc::new(Faulty { inner, fault, strikes, only: None, done, struck, log, before })
    }

    /// Strikes whenever this object is asked for.
    pub fn of_object(inner: Arc<dyn Store>, fault: Fault, name: &str) -> Arc<Faulty> {
        let mut faulty = Faulty::new(inner, fault, 0, u64::MAX);
        Arc::get_mut(&mut faulty).expect("the only one").only = Some(name.to_owned());
        faulty
    }

    /// What was asked for, in order.
    pub fn log(&self) -> Vec<(Operation, String)> {
        self.log.lock().expect("the log").clone()
    }

    /// What the fault hit; empty when the walk is beyond the last operation.
    pub fn struck(&self) -> Vec<(Operation, String)> {
        self.struck.lock().expect("the hits").clone()
    }

    /// The fault, if it is this operation's turn.
    fn turn(&self, operation: Operation, name: &str) -> Option<Fault> {
        let number = self.done.fetch_add(1, Ordering::SeqCst);
        self.log.lock().expect("the log").push((operation, name.to_owned()));
        if !self.strikes.contains(&number) || self.only.as_ref().is_some_and(|only| only != name) {
            return None;
        }
        self.struck.lock().expect("the hits").push((operation, name.to_owned()));
        if let Fault::Delay(time) = self.fault {
            thread::sleep(time);
            return None;
        }
        Some(self.fault)
    }

    fn damaged(&self, fault: Fault, name: &str, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        match fault {
            Fault::Flip => {
                let middle = bytes.len() / 2;
                if let Some(byte) = bytes.get_mut(middle) {
                    *byte ^= 1;
                }
            }
            Fault::Truncate => bytes.truncate(bytes.len() / 2),
            Fault::Empty => bytes.clear(),
            Fault::Swap => bytes = self.another(name).unwrap_or_else(|| b"another object".to_vec()),
            _ => {}
        }
        bytes
    }

    /// Another object, of the same folder if there is one.
    fn another(&self, name: &str) -> Option<Vec<u8>> {
        let folder = |name: &str| name.rsplit_once('/').map_or("", |(folder, _)| folder).to_owned();
        let listed = self.inner.list("").ok()?;
        let others = || listed.iter().filter(|object| object.name != name);
        let other = others().find(|object| folder(&object.name) == folder(name)).or_else(|| others().next())?;
        self.inner.get(&other.name, u64::MAX).ok()
    }
}

fn refused(kind: StoreErrorKind, verb: &'static str, name: &str) -> StoreError {
    StoreError::new(kind, verb, name, "as the test wants it")
}

impl Store for Faulty {
    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        match self.turn(Operation::Put, name) {
            None | Some(Fault::Stale) => self.inner.put(name, bytes),
            Some(Fault::Refuse(kind)) => Err(refused(kind, "store", name)),
            Some(Fault::FailAfter(kind)) => {
                self.inner.put(name, bytes)?;
                Err(refused(kind, "store", name))
            }
            Some(Fault::Lose) => Ok(()),
            Some(fault) => self.inner.put(name, &self.damaged(fault, name, bytes)),
        }
    }

    fn get(&self, name: &str, limit: u64) -> Result<Vec<u8>, StoreError> {
        match self.turn(Operation::Get, name) {
            None => self.inner.get(name, limit),
            Some(Fault::Refuse(kind) | Fault::FailAfter(kind)) => Err(refused(kind, "read", name)),
            Some(Fault::Lose) => Err(refused(StoreErrorKind::NotFound, "read", name)),
            Some(Fault::Stale) if !self.before.iter().any(|object| object.name == name) => {
                Err(refused(StoreErrorKind::NotFound, "read", name))
            }
            Some(fault) => {
                let bytes = self.damaged(fault, name, &self.inner.get(name, limit)?);
                if bytes.len() as u64 > limit {
                    return Err(StoreError::too_large(name, bytes.len() as u64, limit));
                }
                Ok(bytes)
            }
        }
    }

    fn size(&self, name: &str) -> Result<u64, StoreError> {
        match self.turn(Operation::Size, name) {
            None | Some(Fault::Stale) => self.inner.size(name),
            Some(Fault::Refuse(kind) | Fault::FailAfter(kind)) => Err(refused(kind, "read", name)),
            Some(Fault::Lose) => Err(refused(StoreErrorKind::NotFound, "read", name)),
            Some(Fault::Flip | Fault::Swap) => self.inner.size(name).map(|size| size ^ 1),
            Some(Fault::Truncate) => self.inner.size(name).map(|size| size / 2),
            Some(_) => self.inner.size(name).map(|_| 0),
        }
    }

    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        let fault = self.turn(Operation::List, prefix);
        let mut listed = self.inner.list(prefix)?;
        match fault {
            Some(Fault::Refuse(kind) | Fault::FailAfter(kind)) => return Err(refused(kind, "list", prefix)),
            Some(Fault::Lose | Fault::Empty) => listed.clear(),
            Some(Fault::Flip) => {
                let middle = listed.len() / 2;
                if let Some(object) = listed.get_mut(middle) {
                    object.size ^= 1;
                }
            }
            Some(Fault::Truncate) => listed.truncate(listed.len() / 2),
            Some(Fault::Swap) => {
                if let [first, .., last] = &mut listed[..] {
                    std::mem::swap(&mut first.size, &mut last.size);
                }
            }
            Some(Fault::Stale) => {
                let below = format!("{prefix}/");
                let of_then = self.before.iter().filter(|o| prefix.is_empty() || o.name.starts_with(&below));
                listed = of_then.cloned().collect();
            }
            Some(Fault::Delay(_)) | None => {}
        }
        Ok(listed)
    }

    fn delete(&self, name: &str) -> Result<(), StoreError> {
        match self.turn(Operation::Delete, name) {
            Some(Fault::Refuse(kind)) => Err(refused(kind, "delete", name)),
            Some(Fault::FailAfter(kind)) => {
                let _ = self.inner.delete(name);
                Err(refused(kind, "delete", name))
            }
            Some(Fault::Lose) => Ok(()),
            _ => self.inner.delete(name),
        }
    }
}

/// The objects of a store.
pub fn contents(store: &dyn Store) -> Vec<(String, Vec<u8>)> {
    let listed = store.list("").expect("a listing");
    listed
        .into_iter()
        .map(|object| (object.name.clone(), store.get(&object.name, u64::MAX).expect("an object")))
        .collect()
}

/// A new store with these objects.
pub fn memory_of(objects: &[(String, Vec<u8>)]) -> Arc<MemoryStore> {
    let store = MemoryStore::default();
    for (name, bytes) in objects {
        store.put(name, bytes).expect("a copy");
    }
    Arc::new(store)
}
