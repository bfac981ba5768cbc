//! `zfs list` and `zfs get`.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use crate::arguments::Arguments;
use crate::property::{Entry, entries, is_known};
use crate::state::State;
use crate::{Call, usage};

pub fn list(call: &Call) -> i32 {
    match list_checked(call) {
        Ok(status) | Err(status) => status,
    }
}

pub fn get(call: &Call) -> i32 {
    match get_checked(call) {
        Ok(status) | Err(status) => status,
    }
}

fn list_checked(call: &Call) -> Result<i32, i32> {
    if call.denied("list") {
        // As where /dev/zfs is closed to this user; a mere lack of rights is no hindrance to list.
        eprintln!("Permission denied the ZFS utilities must be run as root.");
        return Err(1);
    }
    let arguments = usage::read("list", call.arguments, "HS:d:o:prs:t:")?;
    let columns: Vec<&str> =
        arguments.value('o').unwrap_or("name,used,available,referenced,mountpoint").split(',').collect();
    let sorting = arguments.values('s').chain(arguments.values('S'));
    if let Some(bad) = columns.iter().copied().chain(sorting).find(|c| !is_known(c)) {
        return Err(usage::properties("list", bad));
    }
    let state = State::load(call.folder);
    let kinds = kinds(&arguments, "list", &["filesystem", "volume"])?;
    let (mut rows, status) = choose(&state, &arguments, &arguments.operands, &kinds);
    rows.sort_by(|a, b| compare(&state, &arguments.options, a, b));
    let exact = arguments.has('p');
    let mut out = String::new();
    if !arguments.has('H') {
        if rows.is_empty() && status == 0 {
            eprintln!("no datasets available");
        } else if !rows.is_empty() {
            out += &(columns.join("  ").to_uppercase() + "\n");
        }
    }
    let between = if arguments.has('H') { "\t" } else { "  " };
    for row in &rows {
        let texts: Vec<String> = columns.iter().map(|column| row.column(&state, column, exact)).collect();
        out += &(texts.join(between) + "\n");
    }
    call.say(&out);
    Ok(status)
}

fn get_checked(call: &Call) -> Result<i32, i32> {
    let arguments = usage::read("get", call.arguments, "d:o:s:rt:Hp")?;
    let Some((wanted, names)) = arguments.operands.split_first() else {
        eprintln!("missing property argument");
        return Err(usage::of("get"));
    };
    let properties: Vec<&str> =
        if wanted == "all" { vec!["type", "creation", "used", "referenced"] } else { wanted.split(',').collect() };
    if let Some(bad) = properties.iter().find(|p| !is_known(p)) {
        return Err(usage::properties("get", bad));
    }
    let columns: Vec<&str> = match arguments.value('o') {
        None | Some("all") => vec!["name", "property", "value", "source"],
        Some(list) => list.split(',').collect(),
    };
    if let Some(bad) = columns.iter().find(|c| !["name", "property", "value", "source", "received"].contains(*c)) {
        eprintln!("invalid column name '{bad}'");
        return Err(usage::of("get"));
    }
    let sources: Option<Vec<&str>> = arguments.value('s').map(|list| list.split(',').collect());
    let state = State::load(call.folder);
    let kinds = kinds(&arguments, "get", &["filesystem", "volume", "snapshot", "bookmark"])?;
    let (mut rows, status) = choose(&state, &arguments, names, &kinds);
    // Here `-s` is a filter and no order.
    rows.sort_by(|a, b| compare(&state, &[], a, b));
    let mut out = String::new();
    if !arguments.has('H') && !rows.is_empty() {
        out += &(columns.join("  ").to_uppercase() + "\n");
    }
    for row in &rows {
        let mut names = properties.clone();
        if wanted == "all" {
            names.extend(row.dataset.properties.keys().map(String::as_str).filter(|_| row.snapshot.is_none()));
        }
        for property in names {
            let value = row.column(&state, property, arguments.has('p'));
            let source = row.property(&state, property).map_or("-".to_owned(), |(_, source)| source);
            if sources.as_ref().is_some_and(|wanted| !wanted.contains(&source.as_str())) {
                continue;
            }
            let text = |column: &&str| match *column {
                "name" => row.name.clone(),
                "property" => property.to_owned(),
                "value" => value.clone(),
                "source" => source.clone(),
                _ => "-".to_owned(),
            };
            let texts: Vec<String> = columns.iter().map(text).collect();
            out += &(texts.join(if arguments.has('H') { "\t" } else { "  " }) + "\n");
        }
    }
    call.say(&out);
    Ok(status)
}

fn kinds(arguments: &Arguments, command: &str, usual: &[&'static str]) -> Result<BTreeSet<&'static str>, i32> {
    let Some(list) = arguments.value('t') else {
        return Ok(usual.iter().copied().collect());
    };
    let mut kinds = BTreeSet::new();
    for word in list.split(',') {
        match word {
            "filesystem" | "fs" => drop(kinds.insert("filesystem")),
            "volume" | "vol" => drop(kinds.insert("volume")),
            "snapshot" | "snap" => drop(kinds.insert("snapshot")),
            "bookmark" => drop(kinds.insert("bookmark")),
            "all" => kinds.extend(["filesystem", "volume", "snapshot", "bookmark"]),
            _ => {
                eprintln!("invalid type '{word}'");
                return Err(usage::of(command));
            }
        }
    }
    Ok(kinds)
}

/// The entries that the names and `-r` or `-d` mean, and the exit status: a name that is not there spoils it.
fn choose<'a>(
    state: &'a State,
    arguments: &Arguments,
    names: &[String],
    kinds: &BTreeSet<&str>,
) -> (Vec<Entry<'a>>, i32) {
    let everything: BTreeSet<&str> = ["filesystem", "volume", "snapshot", "bookmark"].into();
    let all = entries(state, &everything);
    let mut recursive = arguments.has('r') || arguments.has('d');
    let mut depth = arguments.value('d').and_then(|n| n.parse().ok()).unwrap_or(usize::MAX);
    if names.is_empty() {
        return (entries(state, kinds), 0);
    }
    // `zfs list -t snapshot tank/data` means the snapshots of it.
    if !recursive && kinds.len() == 1 && (kinds.contains("snapshot") || kinds.contains("bookmark")) {
        recursive = true;
        depth = 1;
    }
    let mut status = 0;
    let mut chosen: Vec<Entry> = Vec::new();
    for name in names {
        if let Some(trouble) = trouble(state, arguments, name, kinds, recursive, &all) {
            eprintln!("cannot open '{name}': {trouble}");
            status = 1;
            continue;
        }
        for entry in all.iter().filter(|e| kinds.contains(e.kind) || (e.name == *name && name.contains('@'))) {
            let below = recursive && distance(&entry.name, name).is_some_and(|far| far <= depth);
            if (entry.name == *name || below) && !chosen.iter().any(|c| c.name == entry.name) {
                chosen.push(entry.clone());
            }
        }
    }
    (chosen, status)
}

/// How far `name` lies below `top`: a snapshot is one step from its dataset.
fn distance(name: &str, top: &str) -> Option<usize> {
    let rest = name.strip_prefix(top)?;
    if rest.is_empty() || rest.starts_with(['/', '@', '#']) {
        Some(rest.matches(['/', '@', '#']).count())
    } else {
        None
    }
}

fn trouble(
    state: &State,
    arguments: &Arguments,
    name: &str,
    kinds: &BTreeSet<&str>,
    recursive: bool,
    all: &[Entry],
) -> Option<String> {
    if let Some(bad) = bad_character(name) {
        return Some(format!("invalid character '{bad}' in name"));
    }
    if name.contains('@') && !kinds.contains("snapshot") && arguments.has('t') {
        return Some("snapshot delimiter '@' is not expected here".to_owned());
    }
    let Some(found) = all.iter().find(|e| e.name == name) else {
        return Some("dataset does not exist".to_owned());
    };
    let fits = kinds.contains(found.kind) || (found.kind == "snapshot" && !arguments.has('t'));
    let opens = recursive && state.datasets.contains_key(name);
    (!fits && !opens).then(|| "operation not applicable to datasets of this type".to_owned())
}

pub fn bad_character(name: &str) -> Option<char> {
    name.chars().find(|c| !(c.is_ascii_alphanumeric() || "-_.: /@#%".contains(*c)))
}

fn compare(state: &State, options: &[(char, String)], a: &Entry, b: &Entry) -> Ordering {
    for (letter, property) in options.iter().filter(|(l, _)| *l == 's' || *l == 'S') {
        let order = match (a.property(state, property), b.property(state, property)) {
            (None, None) => Ordering::Equal,
            // A row without the property stands last, whichever way is asked for.
            (None, Some(_)) => return Ordering::Greater,
            (Some(_), None) => return Ordering::Less,
            (Some((a, _)), Some((b, _))) => match (a.parse::<u64>(), b.parse::<u64>()) {
                (Ok(a), Ok(b)) if property != "name" => a.cmp(&b),
                _ => a.cmp(&b),
            },
        };
        let order = if *letter == 'S' { order.reverse() } else { order };
        if order != Ordering::Equal {
            return order;
        }
    }
    // By name, a dataset before its snapshots, and those in the order in which they were made. A bookmark's name
    // counts as a whole, `#` and all.
    let key = |entry: &Entry| {
        let (base, rest) = entry.name.split_once('@').map_or((entry.name.as_str(), ""), |(base, rest)| (base, rest));
        let txg = if rest.is_empty() { 0 } else { entry.snapshot.map_or(0, |s| s.createtxg) };
        (base.to_owned(), !rest.is_empty(), txg, rest.to_owned())
    };
    key(a).cmp(&key(b))
}
