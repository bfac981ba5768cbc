//! `zfs hold`, `zfs release` and `zfs holds`.

use crate::property::entries;
use crate::state::State;
use crate::{Call, usage};

pub fn hold(call: &Call) -> i32 {
    each_snapshot(call, "hold", |holds, tag| {
        if holds.iter().any(|held| held == tag) {
            return Err("cannot hold snapshot '{}': tag already exists on this dataset");
        }
        holds.push(tag.to_owned());
        Ok(())
    })
}

pub fn release(call: &Call) -> i32 {
    each_snapshot(call, "release", |holds, tag| {
        let before = holds.len();
        holds.retain(|held| held != tag);
        if holds.len() < before {
            Ok(())
        } else {
            Err("cannot release hold from snapshot '{}': no such tag on this dataset")
        }
    })
}

fn each_snapshot(
    call: &Call,
    command: &str,
    change: impl Fn(&mut Vec<String>, &str) -> Result<(), &'static str>,
) -> i32 {
    let arguments = match usage::read(command, call.arguments, "r") {
        Ok(arguments) => arguments,
        Err(status) => return status,
    };
    let Some((tag, names)) = arguments.operands.split_first().filter(|(_, names)| !names.is_empty()) else {
        eprintln!("missing {} argument", if arguments.operands.is_empty() { "tag" } else { "snapshot" });
        return usage::of(command);
    };
    if call.denied(command) {
        eprintln!("cannot {command}: permission denied");
        return 1;
    }
    State::update(call.folder, |state| {
        let mut status = 0;
        for name in names {
            let Some((base, short)) = name.split_once('@').filter(|_| state.snapshot(name).is_some()) else {
                let what = if command == "hold" { "hold snapshot" } else { "release hold from snapshot" };
                eprintln!("cannot {what} '{name}': dataset does not exist");
                status = 1;
                continue;
            };
            let below = format!("{base}/");
            for (dataset, found) in &mut state.datasets {
                if dataset != base && !(arguments.has('r') && dataset.starts_with(&below)) {
                    continue;
                }
                for snapshot in found.snapshots.iter_mut().filter(|s| s.name == short) {
                    if let Err(message) = change(&mut snapshot.holds, tag) {
                        eprintln!("{}", message.replace("{}", &format!("{dataset}@{short}")));
                        status = 1;
                    }
                }
            }
        }
        status
    })
}

pub fn holds(call: &Call) -> i32 {
    let arguments = match usage::read("holds", call.arguments, "rH") {
        Ok(arguments) => arguments,
        Err(status) => return status,
    };
    if arguments.operands.is_empty() {
        eprintln!("missing snapshot argument");
        return usage::of("holds");
    }
    let state = State::load(call.folder);
    let mut out = String::new();
    if !arguments.has('H') {
        out += "NAME  TAG  TIMESTAMP\n";
    }
    for name in &arguments.operands {
        if state.snapshot(name).is_none() {
            eprintln!("cannot open '{name}': dataset does not exist");
            return 1;
        }
        let (base, short) = name.split_once('@').unwrap_or((name, ""));
        for entry in entries(&state, &["snapshot"].into()) {
            let same = entry.snapshot.is_some_and(|s| s.name == short);
            let below = arguments.has('r') && entry.base().starts_with(&format!("{base}/"));
            if !same || !(entry.name == *name || below) {
                continue;
            }
            for tag in entry.snapshot.iter().flat_map(|s| &s.holds) {
                out += &format!("{}\t{tag}\tMon Nov 30 21:36 2026\n", entry.name);
            }
        }
    }
    call.say(&out);
    0
}
