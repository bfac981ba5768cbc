//! `zfs send`: finds the stored stream that answers the question, and replays it.

use std::fs::File;
use std::io::{self, IsTerminal};

use crate::arguments::Arguments;
use crate::fault::Output;
use crate::list::bad_character;
use crate::numbers::nice;
use crate::record::{BEGIN, Sealer, each_record};
use crate::state::{Dataset, Snapshot, State, Stream, What};
use crate::synthetic::synthetic_stream;
use crate::token::Token;
use crate::{Call, resume, usage};

const LONG: &[(&str, char)] = &[
    ("replicate", 'R'),
    ("skip-missing", 's'),
    ("props", 'p'),
    ("parsable", 'P'),
    ("dedup", 'D'),
    ("verbose", 'v'),
    ("dryrun", 'n'),
    ("large-block", 'L'),
    ("embed", 'e'),
    ("resume", 't'),
    ("compressed", 'c'),
    ("raw", 'w'),
    ("backup", 'b'),
    ("holds", 'h'),
];

pub fn send(call: &Call) -> i32 {
    let arguments = match usage::read_long("send", call.arguments, "i:I:RsDpVvnPLeht:cwb", LONG) {
        Ok(arguments) => arguments,
        Err(status) => return status,
    };
    let state = State::load(call.folder);
    let result = match arguments.value('t') {
        Some(token) => resumed(call, &state, &arguments, token),
        None => plain(call, &state, &arguments),
    };
    match result {
        Ok(()) => 0,
        Err((status, message)) => {
            eprintln!("{message}");
            status
        }
    }
}

type Refused = (i32, String);

fn plain(call: &Call, state: &State, arguments: &Arguments) -> Result<(), Refused> {
    let [name] = &arguments.operands[..] else {
        let missing = arguments.operands.is_empty();
        eprintln!("{}", if missing { "missing snapshot argument" } else { "too many arguments" });
        std::process::exit(usage::of("send"));
    };
    to_terminal(arguments)?;
    let refuse = |message: String| (1, message);
    let cannot = |why: &str| refuse(format!("warning: cannot send '{name}': {why}"));
    let missing = |what: &str| refuse(format!("cannot open '{what}': dataset does not exist"));
    if let Some(bad) = bad_character(name) {
        return Err(refuse(format!("cannot open '{name}': invalid character '{bad}' in name")));
    }
    let Some((base, _)) = name.split_once('@') else {
        return Err(match state.datasets.contains_key(name) {
            true => cannot("target is busy; if a filesystem, it must not be mounted"),
            false => missing(name),
        });
    };
    let package = arguments.has('R') || arguments.has('I');
    let Some(dataset) = state.datasets.get(base) else {
        // The real one opens the dataset first where it walks through snapshots, and then names only that.
        return Err(missing(if package { base } else { name }));
    };
    let from = source(state, arguments, base)?;
    let Some(to) = state.snapshot(name) else {
        return Err(missing(name));
    };
    if let Some((source_name, source)) = &from {
        let same = source_name.split(['@', '#']).next() == Some(base) || dataset.origin.as_ref() == Some(source_name);
        if !same || source.createtxg >= to.createtxg {
            return Err(cannot("not an earlier snapshot from the same fs"));
        }
    }
    if dataset.encryption != "off" && !dataset.key_loaded && !arguments.has('w') && !arguments.has('n') {
        let line =
            |s: &Snapshot| format!("cannot open '{base}@{}': snapshot delimiter '@' is not expected here\n", s.name);
        let oddities: String = dataset.snapshots.iter().map(line).collect();
        return Err(refuse(oddities + &cannot("dataset key must be loaded").1));
    }
    if arguments.has('R') {
        children(state, base, name)?;
    }
    let from_guid = from.as_ref().map(|(_, s)| s.guid);
    let stream = match find(state, dataset, to.guid, from_guid, &options(arguments)) {
        // A dry run needs no stream.
        None if arguments.has('n') => Stream { estimate: to.referenced / 10 * 9, ..Stream::default() },
        None if state.made_up.is_some() => made_up(state, call, to, from_guid, name),
        stream => stored(stream, call),
    };
    let from_name = from.map(|(name, _)| name);
    tell(call, arguments, &stream, from_name.as_deref(), name, "");
    if arguments.has('n') {
        return Ok(());
    }
    if call.denied("send") {
        return Err(cannot("permission denied"));
    }
    to_null(name)?;
    replay(call, &stream);
    Ok(())
}

/// The snapshot or bookmark of `-i` or `-I`, with its full name.
fn source<'a>(state: &'a State, arguments: &Arguments, base: &str) -> Result<Option<(String, &'a Snapshot)>, Refused> {
    let Some(text) = arguments.value('I').or(arguments.value('i')) else {
        return Ok(None);
    };
    let full = match text {
        _ if text.starts_with(['@', '#']) => format!("{base}{text}"),
        _ if text.contains(['@', '#']) => text.to_owned(),
        _ => format!("{base}@{text}"),
    };
    if full.contains('#') {
        if arguments.has('I') {
            return Err((1, "Error: multiple snapshots cannot be sent from a bookmark.".to_owned()));
        }
        let name = &arguments.operands[0];
        let gone = || (1, format!("warning: cannot send '{name}': incremental source ({full}) does not exist"));
        return state.bookmark(&full).map(|mark| Some((full.clone(), mark))).ok_or_else(gone);
    }
    let gone = || (1, format!("cannot open '{full}': dataset does not exist"));
    state.snapshot(&full).map(|snapshot| Some((full.clone(), snapshot))).ok_or_else(gone)
}

/// With `-R` each descendant that has snapshots at all must have this one.
fn children(state: &State, base: &str, name: &str) -> Result<(), Refused> {
    let snapshot = name.split_once('@').map_or("", |(_, snapshot)| snapshot);
    let below = state.datasets.iter().filter(|(n, _)| n.strip_prefix(base).is_some_and(|rest| rest.starts_with('/')));
    for (child, dataset) in below {
        if !dataset.snapshots.iter().any(|s| s.name == snapshot) {
            return Err((
                1,
                format!(
                    "cannot send {name} recursively: snapshot {child}@{snapshot} does not exist\n\
                     warning: cannot send '{name}': backup failed"
                ),
            ));
        }
    }
    Ok(())
}

/// The letters that change the bytes, in the order of `Stream::options`.
fn options(arguments: &Arguments) -> String {
    "RILecwph".chars().filter(|letter| arguments.has(*letter)).collect()
}

/// The stream stored for exactly this, or for the same without options that do nothing to plain data.
fn find(state: &State, dataset: &Dataset, to: u64, from: Option<u64>, options: &str) -> Option<Stream> {
    let mut tries = vec![options.to_owned()];
    tries.push(options.replace(['L', 'e', 'c', 'p'], ""));
    if dataset.encryption == "off" {
        tries.push(options.replace(['L', 'e', 'c', 'w', 'p'], ""));
    }
    let fits =
        |stream: &&Stream, options: &String| stream.to == to && stream.from == from && stream.options == *options;
    tries.iter().find_map(|options| state.streams.iter().find(|s| fits(s, options))).cloned()
}

/// A test that asks for a stream it did not store is wrong itself: an exit status that the real one never has.
/// The same question has the same answer, as from the real one.
fn made_up(state: &State, call: &Call, to: &Snapshot, from: Option<u64>, name: &str) -> Stream {
    let (bytes, from) = (state.made_up.unwrap_or(0), from.unwrap_or(0));
    let file = call.folder.join(format!("made-up-{}-{from}-{}.zfs", to.guid, std::process::id()));
    std::fs::write(&file, synthetic_stream(to.guid, from, name, bytes, to.guid ^ from)).expect("a made-up stream");
    Stream { file, estimate: bytes as u64 / 14 * 13, ..Stream::default() }
}

fn stored(stream: Option<Stream>, call: &Call) -> Stream {
    stream.unwrap_or_else(|| {
        eprintln!("the stand-in zfs has no stream for: send {}", call.arguments.join(" "));
        std::process::exit(99);
    })
}

/// What `-v` and `-P` print, with or without `-n`.
fn tell(call: &Call, arguments: &Arguments, stream: &Stream, from: Option<&str>, to: &str, before: &str) {
    let (parsable, dry) = (arguments.has('P'), arguments.has('n'));
    if !(arguments.has('v') || (parsable && dry)) {
        return;
    }
    let mut text = before.to_owned();
    let single = match from {
        Some(from) => format!("incremental\t{from}\t{to}\t{}", stream.estimate),
        None => format!("full\t{to}\t{}", stream.estimate),
    };
    let lines = if stream.dry_run.is_empty() { vec![single] } else { stream.dry_run.clone() };
    for line in &lines {
        text += &if parsable { format!("{line}\n") } else { for_people(line) };
    }
    text += &if parsable {
        format!("size\t{}\n", stream.estimate)
    } else {
        format!("total estimated size is {}\n", nice(stream.estimate))
    };
    // On stdout only where no stream is to come.
    if dry { call.say(&text) } else { eprint!("{text}") }
}

fn for_people(line: &str) -> String {
    let fields: Vec<&str> = line.split('\t').collect();
    let size = |text: &str| nice(text.parse().unwrap_or(0));
    match fields[..] {
        ["full", to, bytes] => format!("full send of {to} estimated size is {}\n", size(bytes)),
        ["incremental", from, to, bytes] => format!("send from {from} to {to} estimated size is {}\n", size(bytes)),
        _ => panic!("a dry run's line that is none: {line}"),
    }
}

fn resumed(call: &Call, state: &State, arguments: &Arguments, text: &str) -> Result<(), Refused> {
    let token =
        Token::decode(text).map_err(|why| (255, format!("cannot resume send: resume token is corrupt ({why})")))?;
    let gone = || (255, format!("cannot resume send: '{}' used in the initial send no longer exists", token.to_name));
    let holds = |dataset: &Dataset| dataset.snapshots.iter().any(|s| s.guid == token.to_guid);
    let Some((_, dataset)) = state.datasets.iter().find(|(_, d)| holds(d)) else {
        // What is in the token is shown before it is looked up.
        match (arguments.has('v'), arguments.has('n')) {
            (true, true) => call.say(&token.describe()),
            (true, false) => eprint!("{}", token.describe()),
            (false, _) => {}
        }
        return Err(gone());
    };
    to_terminal(arguments)?;
    let from = (token.from_guid != 0).then_some(token.from_guid);
    let mut stream = stored(find(state, dataset, token.to_guid, from, &token.options()), call);
    stream.estimate = stream.estimate.saturating_sub(token.bytes);
    stream.dry_run.clear();
    let source = token.from_guid;
    let named = |(name, d): (&String, &Dataset)| {
        d.snapshots.iter().find(|s| s.guid == source).map(|s| format!("{name}@{}", s.name))
    };
    let from_name = from.and_then(|_| state.datasets.iter().find_map(named));
    tell(call, arguments, &stream, from_name.as_deref(), &token.to_name, &token.describe());
    if !arguments.has('n') {
        to_null(&token.to_name)?;
        let whole =
            std::fs::read(&stream.file).unwrap_or_else(|e| panic!("cannot read {}: {e}", stream.file.display()));
        let mut output = Output::new(call.faults);
        output.copy(&mut &resume::from(&whole, token.object, token.offset)[..]);
        output.finish();
    }
    Ok(())
}

fn replay(call: &Call, stream: &Stream) {
    let mut output = Output::new(call.faults);
    let guid = call.faults.iter().find_map(|f| if let What::OtherGuid { guid } = f { Some(*guid) } else { None });
    if let Some(guid) = guid {
        let whole =
            std::fs::read(&stream.file).unwrap_or_else(|e| panic!("cannot read {}: {e}", stream.file.display()));
        output.copy(&mut &with_guid(&whole, guid)[..]);
    } else {
        let mut file =
            File::open(&stream.file).unwrap_or_else(|e| panic!("cannot open {}: {e}", stream.file.display()));
        output.copy(&mut file);
    }
    output.finish();
}

/// The same stream, of a snapshot with another GUID, and valid.
fn with_guid(stream: &[u8], guid: u64) -> Vec<u8> {
    let mut sealer = Sealer::new(Vec::new());
    each_record(stream, |mut record, payload| {
        if record.kind() == BEGIN && !record.compound() {
            record.set64(40, guid);
        }
        sealer.put(record, payload).expect("writing to memory");
    });
    sealer.into_inner()
}

fn to_terminal(arguments: &Arguments) -> Result<(), Refused> {
    if !arguments.has('n') && io::stdout().is_terminal() {
        let message = "Error: Stream can not be written to a terminal.\nYou must redirect standard output.";
        return Err((1, message.to_owned()));
    }
    Ok(())
}

fn to_null(name: &str) -> Result<(), Refused> {
    let target = std::fs::read_link("/proc/self/fd/1").unwrap_or_default();
    if target.as_os_str() == "/dev/null" || target.as_os_str() == "/dev/zero" {
        return Err((
            1,
            format!(
                "warning: cannot send '{name}': Invalid argument\n\
                 Error: Writing directly to /dev/{{null,zero}} files on certain kernels is not currently implemented.\n\
                 (As a workaround, try \"zfs send [...] | cat > /dev/null\")"
            ),
        ));
    }
    if target.as_os_str() == "/dev/full" {
        return Err((1, format!("warning: cannot send '{name}': Invalid argument")));
    }
    Ok(())
}

/// Standard output takes no more, and it is not a closed pipe.
pub fn cannot_write(error: &io::Error) -> ! {
    let name = std::env::args().next_back().unwrap_or_default();
    eprintln!("warning: cannot send '{name}': {error}");
    std::process::exit(1);
}
