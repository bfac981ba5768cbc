//! What is changed at the source: snapshots, holds and bookmarks, each by a command of its own.
//!
//! Nothing is ever destroyed recursively, deferred or by force.

use super::command::{Zfs, ZfsError, ZfsErrorKind};
use super::names::{Dataset, Snapshot};

/// No command gets more arguments than this: a command line has an end.
const NAMES_AT_ONCE: usize = 200;

impl Zfs {
    /// Takes a snapshot, of all datasets below at the same instant with `recursive`, with user properties on it.
    pub fn snapshot(&self, snapshot: &Snapshot, recursive: bool, properties: &[(&str, &str)]) -> Result<(), ZfsError> {
        let name = snapshot.to_string();
        let properties: Vec<String> = properties.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let mut args = vec!["snapshot"];
        if recursive {
            args.push("-r");
        }
        for property in &properties {
            args.extend(["-o", property]);
        }
        args.push(&name);
        self.answer(&args).map(drop)
    }

    /// Keeps a snapshot from being destroyed. A hold of this tag that is there already is as good.
    pub fn hold(&self, snapshot: &Snapshot, tag: &str) -> Result<(), ZfsError> {
        match self.answer(&["hold", tag, &snapshot.to_string()]) {
            Err(error) if error.says("tag already exists") => Ok(()),
            other => other.map(drop),
        }
    }

    /// Releases a hold on these snapshots (`dataset@name`). One that is gone already is as good.
    pub fn release(&self, snapshots: &[String], tag: &str) -> Result<(), ZfsError> {
        for names in snapshots.chunks(NAMES_AT_ONCE) {
            let mut args = vec!["release", tag];
            args.extend(names.iter().map(String::as_str));
            match self.answer(&args) {
                Err(error) if error.says("no such tag") || error.kind == ZfsErrorKind::NoSuchDataset => {}
                other => drop(other?),
            }
        }
        Ok(())
    }

    /// Makes the bookmark `name` of a snapshot. One that is there already is as good: names are made from GUIDs.
    pub fn bookmark(&self, snapshot: &Snapshot, name: &str) -> Result<(), ZfsError> {
        match self.answer(&["bookmark", &snapshot.to_string(), &format!("{}#{name}", snapshot.dataset)]) {
            Err(error) if error.says("bookmark exists") => Ok(()),
            other => other.map(drop),
        }
    }

    /// Destroys one bookmark.
    pub fn destroy_bookmark(&self, dataset: &Dataset, name: &str) -> Result<(), ZfsError> {
        match self.answer(&["destroy", &format!("{dataset}#{name}")]) {
            Err(error) if error.says("does not exist") => Ok(()),
            other => other.map(drop),
        }
    }

    /// Destroys one snapshot, if nothing holds it and no clone stands on it.
    pub fn destroy_snapshot(&self, snapshot: &Snapshot) -> Result<(), ZfsError> {
        match self.answer(&["destroy", &snapshot.to_string()]) {
            Err(error) if error.kind == ZfsErrorKind::NoSuchDataset => Ok(()),
            other => other.map(drop),
        }
    }
}
