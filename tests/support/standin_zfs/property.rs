//! The properties of datasets, snapshots and bookmarks.

use std::collections::BTreeSet;

use crate::numbers::nice;
use crate::state::{Dataset, Snapshot, State};

/// A row of `zfs list`.
#[derive(Clone)]
pub struct Entry<'a> {
    pub name: String,
    pub kind: &'a str,
    pub dataset: &'a Dataset,
    /// The snapshot or the bookmark.
    pub snapshot: Option<&'a Snapshot>,
}

/// What the stand-in can answer; any other name is wrong usage.
const KNOWN: &[&str] = &[
    "name",
    "type",
    "guid",
    "createtxg",
    "creation",
    "used",
    "available",
    "avail",
    "referenced",
    "refer",
    "mountpoint",
    "encryption",
    "keystatus",
    "keylocation",
    "keyformat",
    "encryptionroot",
    "origin",
    "receive_resume_token",
    "userrefs",
    "defer_destroy",
    "clones",
    "written",
    "logicalreferenced",
    "logicalused",
    "compression",
    "compressratio",
    "recordsize",
    "readonly",
    "mounted",
    "canmount",
    "atime",
    "quota",
    "refquota",
    "volsize",
    "objsetid",
];
const SIZES: &[&str] = &["used", "available", "referenced", "written", "logicalreferenced", "logicalused"];

pub fn is_known(property: &str) -> bool {
    KNOWN.contains(&property) || property.contains(':') || property.starts_with("written@")
}

/// All entries of the kinds asked for, unsorted.
pub fn entries<'a>(state: &'a State, kinds: &BTreeSet<&str>) -> Vec<Entry<'a>> {
    let mut all = Vec::new();
    for (name, dataset) in &state.datasets {
        all.push(Entry { name: name.clone(), kind: &dataset.kind, dataset, snapshot: None });
        for snapshot in &dataset.snapshots {
            all.push(Entry {
                name: format!("{name}@{}", snapshot.name),
                kind: "snapshot",
                dataset,
                snapshot: Some(snapshot),
            });
        }
        for mark in &dataset.bookmarks {
            all.push(Entry { name: format!("{name}#{}", mark.name), kind: "bookmark", dataset, snapshot: Some(mark) });
        }
    }
    all.retain(|entry| kinds.contains(entry.kind));
    all
}

impl Entry<'_> {
    /// The dataset's name, without the snapshot's.
    pub fn base(&self) -> &str {
        self.name.split(['@', '#']).next().unwrap_or(&self.name)
    }

    /// The value and its source. `None` is a property that this kind does not have.
    pub fn property(&self, state: &State, property: &str) -> Option<(String, String)> {
        let none = |value: String| Some((value, "-".to_owned()));
        let dataset = self.dataset;
        if self.snapshot.is_none()
            && let Some(value) = dataset.properties.get(property)
        {
            return Some((value.clone(), "local".to_owned()));
        }
        if let Some(value) = self.snapshot.and_then(|snapshot| snapshot.properties.get(property)) {
            return Some((value.clone(), "local".to_owned()));
        }
        let filesystem = self.kind == "filesystem";
        let bookmark = self.kind == "bookmark";
        match property {
            "name" => none(self.name.clone()),
            "type" => none(self.kind.to_owned()),
            "guid" => none(self.snapshot.map_or(dataset.guid, |s| s.guid).to_string()),
            "createtxg" => none(self.snapshot.map_or(dataset.createtxg, |s| s.createtxg).to_string()),
            "creation" => none(self.snapshot.map_or(dataset.creation, |s| s.creation).to_string()),
            "referenced" | "refer" => {
                let latest = dataset.snapshots.last().map_or(24576, |s| s.referenced);
                none(self.snapshot.map_or(latest, |s| s.referenced).to_string())
            }
            _ if bookmark => None,
            "used" => none(self.snapshot.map_or_else(|| used(dataset), |s| s.used).to_string()),
            _ if property.starts_with("written@") && self.snapshot.is_none() => none("24576".to_owned()),
            "written" => none(self.snapshot.map_or(0, |s| s.referenced).to_string()),
            "logicalreferenced" => none(self.snapshot.map_or(24576, |s| s.referenced / 512 * 500).to_string()),
            "encryption" if dataset.encryption == "off" => Some(("off".to_owned(), "default".to_owned())),
            "encryption" => none(dataset.encryption.clone()),
            "keystatus" if dataset.encryption != "off" => {
                none(if dataset.key_loaded { "available" } else { "unavailable" }.to_owned())
            }
            "encryptionroot" if dataset.encryption != "off" => none(self.base().to_owned()),
            "userrefs" => none(self.snapshot?.holds.len().to_string()),
            "defer_destroy" => self.snapshot.and(none("off".to_owned())),
            "clones" => {
                self.snapshot?;
                let clones = state.datasets.iter().filter(|(_, d)| d.origin.as_ref() == Some(&self.name));
                none(clones.map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(","))
            }
            _ if self.snapshot.is_some() => None,
            "available" | "avail" => none(state.room(self.base()).unwrap_or(726_343_680).to_string()),
            "mountpoint" if filesystem => Some((format!("/{}", self.name), "default".to_owned())),
            "mounted" if filesystem => none("yes".to_owned()),
            "canmount" | "atime" if filesystem => Some(("on".to_owned(), "default".to_owned())),
            "recordsize" if filesystem => Some(("131072".to_owned(), "default".to_owned())),
            "origin" => dataset.origin.clone().and_then(none),
            "receive_resume_token" => dataset.partial.as_ref().and_then(|p| none(p.token.clone())),
            "compression" | "readonly" => Some(("off".to_owned(), "default".to_owned())),
            "volsize" if self.kind == "volume" => Some(("6291456".to_owned(), "local".to_owned())),
            "quota" | "refquota" if filesystem => Some(("0".to_owned(), "default".to_owned())),
            _ => None,
        }
    }

    /// The text of a column; `-` where there is none.
    pub fn column(&self, state: &State, property: &str, exact: bool) -> String {
        let value = self.property(state, property).map_or(String::new(), |(value, _)| value);
        match value.parse() {
            _ if value.is_empty() => "-".to_owned(),
            Ok(number) if !exact && SIZES.contains(&property) => nice(number),
            _ => value,
        }
    }
}

fn used(dataset: &Dataset) -> u64 {
    24576 + dataset.snapshots.iter().map(|s| s.used).sum::<u64>() + dataset.snapshots.last().map_or(0, |s| s.referenced)
}

impl State {
    /// The least room from the dataset up to its pool.
    pub fn room(&self, dataset: &str) -> Option<u64> {
        let ancestors = dataset.match_indices('/').map(|(at, _)| &dataset[..at]).chain([dataset]);
        ancestors.filter_map(|name| self.datasets.get(name)?.room).min()
    }
}
