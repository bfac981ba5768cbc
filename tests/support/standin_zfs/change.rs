//! `zfs snapshot`, `zfs bookmark` and `zfs destroy`, as little as tests need.

use crate::state::{Snapshot, State};
use crate::{Call, usage};

pub fn snapshot(call: &Call) -> i32 {
    let arguments = match usage::read("snapshot", call.arguments, "ro:") {
        Ok(arguments) => arguments,
        Err(status) => return status,
    };
    if arguments.operands.is_empty() {
        eprintln!("missing snapshot argument");
        return usage::of("snapshot");
    }
    let properties: Vec<(&str, &str)> = arguments.values('o').filter_map(|pair| pair.split_once('=')).collect();
    State::update(call.folder, |state| {
        for name in &arguments.operands {
            let Some((base, snapshot)) = name.split_once('@') else {
                eprintln!("cannot open '{name}': dataset does not exist");
                return usage::of("snapshot");
            };
            if !state.datasets.contains_key(base) {
                eprintln!("cannot open '{base}': dataset does not exist");
                return usage::of("snapshot");
            }
            let trouble = match () {
                () if state.denied.contains("snapshot") => "permission denied",
                () if !properties.is_empty() && state.denied.contains("userprop") => "permission denied",
                () if snapshot.contains('/') => "trailing slash in name",
                () if state.snapshot(name).is_some() => "dataset already exists",
                () => "",
            };
            if !trouble.is_empty() {
                eprintln!("cannot create snapshot '{name}': {trouble}");
                return 1;
            }
            let below = format!("{base}/");
            let datasets =
                state.datasets.keys().filter(|n| *n == base || (arguments.has('r') && n.starts_with(&below)));
            for dataset in datasets.cloned().collect::<Vec<_>>() {
                make(state, &dataset, snapshot, &properties);
            }
        }
        0
    })
}

fn make(state: &mut State, base: &str, name: &str, properties: &[(&str, &str)]) {
    let (guid, createtxg, creation) = (state.guid(), state.tick(), state.now());
    let dataset = state.datasets.get_mut(base).expect("the dataset was there");
    let referenced = dataset.snapshots.last().map_or(24576, |s| s.referenced);
    let changed = dataset.modified || dataset.snapshots.is_empty();
    dataset.modified = false;
    let name = name.to_owned();
    let properties = properties.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let made = Snapshot { name, guid, createtxg, creation, referenced, changed, properties, ..Snapshot::default() };
    dataset.snapshots.push(made);
}

pub fn bookmark(call: &Call) -> i32 {
    let arguments = match usage::read("bookmark", call.arguments, "") {
        Ok(arguments) => arguments,
        Err(status) => return status,
    };
    let [source, new] = &arguments.operands[..] else {
        eprintln!("missing {} argument", if arguments.operands.is_empty() { "source" } else { "bookmark" });
        return usage::of("bookmark");
    };
    State::update(call.folder, |state| {
        let Some(mut mark) = state.snapshot(source).or(state.bookmark(source)).cloned() else {
            eprintln!("cannot open '{source}': dataset does not exist");
            return usage::of("bookmark");
        };
        // The short form `#name` is for the dataset of the source.
        let base = source.split(['@', '#']).next().unwrap_or(source);
        let full = if new.starts_with('#') { format!("{base}{new}") } else { new.clone() };
        let trouble = match full.split_once('#') {
            _ if state.denied.contains("bookmark") => "permission denied",
            Some((dataset, _)) if dataset != base => "source is not an ancestor of the new bookmark's dataset",
            Some(_) if state.bookmark(&full).is_some() => "bookmark exists",
            Some((dataset, name)) => {
                mark.name = name.to_owned();
                mark.holds.clear();
                state.datasets.get_mut(dataset).expect("the source's dataset").bookmarks.push(mark);
                return 0;
            }
            None => "missing '#' delimiter in bookmark name",
        };
        eprintln!("cannot create bookmark '{full}': {trouble}");
        1
    })
}

pub fn destroy(call: &Call) -> i32 {
    let arguments = match usage::read("destroy", call.arguments, "vpndfrR") {
        Ok(arguments) => arguments,
        Err(status) => return status,
    };
    let [name] = &arguments.operands[..] else {
        let missing = arguments.operands.is_empty();
        eprintln!("{}", if missing { "missing dataset argument" } else { "too many arguments" });
        return usage::of("destroy");
    };
    let result = State::update(call.folder, |state| {
        if name.contains('@') { destroy_snapshot(state, name) } else { destroy_other(state, name, arguments.has('r')) }
    });
    match result {
        Ok(()) => 0,
        Err(message) => {
            eprintln!("{message}");
            1
        }
    }
}

fn destroy_snapshot(state: &mut State, name: &str) -> Result<(), String> {
    let Some(snapshot) = state.snapshot(name) else {
        return Err("could not find any snapshots to destroy; check snapshot names.".to_owned());
    };
    if state.denied.contains("destroy") {
        return Err("cannot destroy snapshots: permission denied".to_owned());
    }
    if !snapshot.holds.is_empty() {
        return Err(format!("cannot destroy snapshot {name}: dataset is busy"));
    }
    if let Some((clone, dataset)) = state.datasets.iter().find(|(_, d)| d.origin.as_deref() == Some(name)) {
        let mut text = format!("cannot destroy '{name}': snapshot has dependent clones\n");
        text += "use '-R' to destroy the following datasets:\n";
        text.extend(dataset.snapshots.iter().map(|s| format!("{clone}@{}\n", s.name)));
        return Err(text + clone);
    }
    let (base, short) = name.split_once('@').expect("a snapshot's name");
    state.datasets.get_mut(base).expect("its dataset").snapshots.retain(|s| s.name != short);
    Ok(())
}

fn destroy_other(state: &mut State, name: &str, recursive: bool) -> Result<(), String> {
    if let Some((base, short)) = name.split_once('#') {
        let there = state.bookmark(name).is_some();
        if let Some(dataset) = state.datasets.get_mut(base).filter(|_| there) {
            dataset.bookmarks.retain(|m| m.name != short);
            return Ok(());
        }
        return Err(format!("bookmark '{name}' does not exist."));
    }
    let Some(dataset) = state.datasets.get(name) else {
        return Err(format!("cannot open '{name}': dataset does not exist"));
    };
    let below: Vec<String> = state.datasets.keys().filter(|n| n.starts_with(&format!("{name}/"))).cloned().collect();
    if !recursive && (!below.is_empty() || !dataset.snapshots.is_empty()) {
        let mut text = format!("cannot destroy '{name}': filesystem has children\n");
        text += "use '-r' to destroy the following datasets:";
        text.extend(below.iter().map(|n| format!("\n{n}")));
        text.extend(dataset.snapshots.iter().map(|s| format!("\n{name}@{}", s.name)));
        return Err(text);
    }
    for gone in below.iter().map(String::as_str).chain([name]) {
        state.datasets.remove(gone);
    }
    Ok(())
}
