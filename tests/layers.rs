//! The island rule, and the other rules that a look at the sources can hold: what imports what, where `unsafe` may
//! stand, and how long files and functions are.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

struct Source {
    /// From `src`, such as `store/sftp/mod.rs`.
    name: String,
    /// Without what the tests of the file import.
    code: String,
    lines: usize,
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut paths = Vec::new();
    collect(&root, &mut paths);
    assert!(paths.len() > 40, "{} sources", paths.len());
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("a source");
        let code = text.split("\n#[cfg(test)]\nmod tests {").next().expect("a beginning").to_owned();
        let name = path.strip_prefix(&root).expect("below src").display().to_string();
        Source { name, lines: code.lines().count(), code: without_comments_and_strings(&code) }
    };
    paths.into_iter().map(read).collect()
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect(&path, paths);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            paths.push(path);
        }
    }
}

/// Blanks comments, strings and characters, so that braces and words in them don't count.
fn without_comments_and_strings(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let length = token(rest);
        if length == 0 {
            out.push(next);
            rest = &rest[next.len_utf8()..];
        } else {
            out.extend(rest[..length].chars().filter(|c| *c == '\n'));
            rest = &rest[length..];
        }
    }
    out
}

/// The length of a comment, string or character at the beginning of `text`; 0 if there is none.
fn token(text: &str) -> usize {
    if text.starts_with("//") {
        return text.find('\n').unwrap_or(text.len());
    }
    if let Some(raw) = text.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            let end = format!("\"{}", "#".repeat(hashes));
            return raw[hashes + 1..].find(&end).map_or(text.len(), |at| 1 + hashes + 1 + at + end.len());
        }
    }
    match text.as_bytes() {
        [b'"', ..] => quoted(text, '"'),
        // A character, but not a lifetime.
        [b'\'', b'\\', ..] => quoted(text, '\''),
        [b'\'', ..] => {
            let mut chars = text.char_indices().skip(1);
            match (chars.next(), chars.next()) {
                (Some(_), Some((at, '\''))) => at + 1,
                _ => 0,
            }
        }
        _ => 0,
    }
}

fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The modules of this package that a source names, by `crate::…` or `super::…` beyond its own island.
fn imports(source: &Source) -> Vec<String> {
    let words = |text: &str| {
        let name: String = text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        if name.is_empty() {
            // use crate::{a, b::c}
            let list = text.strip_prefix('{').and_then(|text| text.split('}').next()).unwrap_or("");
            return list
                .split(',')
                .map(|item| item.trim().split(':').next().unwrap_or("").to_owned())
                .collect::<Vec<_>>();
        }
        vec![name]
    };
    let by_crate = source.code.split("crate::").skip(1).flat_map(words);
    // So many times `super` from a file leads to the root.
    let parts = source.name.split('/').count();
    let depth = if source.name.ends_with("mod.rs") { parts - 1 } else { parts };
    let to_root = "super::".repeat(depth);
    let by_super = source.code.split(to_root.as_str()).skip(1).flat_map(words);
    by_crate.chain(by_super).filter(|name| !name.is_empty()).collect()
}

/// What each part of the tree may name of the others. Itself always.
fn allowed(part: &str) -> Option<&'static [&'static str]> {
    Some(match part {
        "format" | "cli" | "error" | "progress" | "children" | "signals" | "ssh" => &[],
        "pipeline" => &["format"],
        "store" => &["children", "ssh"],
        "zfs" => &["children"],
        "warm" => &["children"],
        "retention" => &[],
        "profile" => &["error", "format"],
        // Here, and only here, the islands meet.
        "commands" | "main" | "lib" => return None,
        other => panic!("src/{other} is new: say in tests/layers.rs what it may import"),
    })
}

fn part(source: &Source) -> &str {
    source.name.split('/').next().expect("a part").trim_end_matches(".rs")
}

#[test]
fn islands_import_one_another_never() {
    let mut wrong = Vec::new();
    for source in sources() {
        let part = part(&source);
        let Some(allowed) = allowed(part) else { continue };
        for name in imports(&source) {
            if name != part && !allowed.contains(&name.as_str()) {
                wrong.push(format!("src/{} imports {name}", source.name));
            }
        }
    }
    assert!(wrong.is_empty(), "forbidden imports:\n{}", wrong.join("\n"));
}

fn has_word(code: &str, word: &str) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word)
        .any(|(at, _)| !code[..at].ends_with(is_name) && !code[at + word.len()..].starts_with(is_name))
}

/// Libraries that belong to one place: the command line, its errors, and the terminal.
#[test]
fn libraries_stay_where_they_belong() {
    let places: [(&str, &[&str]); 8] = [
        ("anyhow", &["commands", "main", "profile", "error"]),
        ("clap", &["commands", "main", "cli"]),
        ("indicatif", &["commands", "progress"]),
        ("rpassword", &["commands"]),
        ("tokio", &["store"]),
        ("openssh_sftp_client", &["store"]),
        ("minisign", &["format"]),
        ("signal_hook", &["commands", "main", "signals"]),
    ];
    let sources = sources();
    for (library, places) in places {
        let users: Vec<&Source> = sources.iter().filter(|source| has_word(&source.code, library)).collect();
        assert!(!users.is_empty(), "nobody uses {library}: take it out of this list");
        for source in users {
            assert!(places.contains(&part(source)), "src/{} uses {library}", source.name);
        }
    }
}

#[test]
fn unsafe_stands_in_one_file() {
    for source in sources() {
        let allowed = source.name == "warm/uring.rs";
        assert!(allowed || !has_word(&source.code, "unsafe"), "src/{} has unsafe code", source.name);
    }
    for root in ["lib.rs", "main.rs"] {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(root)).expect("a root");
        let says = ["#![forbid(unsafe_code)]", "#![deny(unsafe_code)]"].iter().any(|lint| text.contains(lint));
        assert!(says, "src/{root} does not deny unsafe code");
    }
}

/// 300 lines are normal, 700 are refused; the tests in a file don't count.
#[test]
fn files_are_short() {
    for source in sources() {
        assert!(source.lines <= 700, "src/{} has {} lines without its tests", source.name, source.lines);
    }
}

/// Nine in ten functions under 30 lines, none over 80.
#[test]
fn functions_are_short() {
    let mut all = BTreeMap::new();
    for source in sources() {
        for (name, lines) in functions(&source.code) {
            assert!(lines <= 80, "src/{}: {name} has {lines} lines", source.name);
            *all.entry(lines > 30).or_insert(0usize) += 1;
        }
    }
    let (short, long) = (all.get(&false).copied().unwrap_or(0), all.get(&true).copied().unwrap_or(0));
    assert!(short > 300, "only {short} functions were found");
    assert!(long * 10 <= short + long, "{long} of {} functions have more than 30 lines", short + long);
}

/// The functions with a body, and their lines from `fn` to the closing brace.
fn functions(code: &str) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        let before = code[..at].chars().next_back();
        let rest = &code[at..];
        let Some(body) = rest.find(['{', ';']) else { continue };
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_') || rest.as_bytes()[body] == b';' {
            continue;
        }
        let mut depth = 0;
        let end = rest[body..].char_indices().find(|(_, c)| {
            depth += match c {
                '{' => 1,
                '}' => -1,
                _ => 0,
            };
            depth == 0
        });
        let Some((end, _)) = end else { continue };
        let name = rest[3..].split(['(', '<']).next().unwrap_or("").to_owned();
        found.push((name, rest[..=body + end].lines().count()));
    }
    found
}

#[test]
fn the_look_at_the_sources_sees_what_it_should() {
    let source =
        |name: &str, code: &str| Source { name: name.into(), code: without_comments_and_strings(code), lines: 1 };
    let of = |name: &str, code: &str| imports(&source(name, code));
    assert_eq!(of("store/retry.rs", "use crate::zfs::names;"), ["zfs"]);
    assert_eq!(of("store/retry.rs", "use super::super::zfs;"), ["zfs"]);
    assert_eq!(of("store/sftp/link.rs", "use super::super::super::pipeline::seal;"), ["pipeline"]);
    assert_eq!(of("store/mod.rs", "use super::zfs;"), ["zfs"]);
    assert_eq!(of("store/mod.rs", "use crate::{children, format::names};"), ["children", "format"]);
    assert_eq!(
        of("store/mod.rs", "// crate::zfs\nlet x = \"crate::zfs\"; r#\"crate::zfs\"#; '\"'; let y = 'a';"),
        [""; 0]
    );
    assert_eq!(of("store/mod.rs", "fn a() -> crate::format::Hash {}"), ["format"]);
    assert!(has_word("unsafe {", "unsafe") && !has_word("unsafe_code", "unsafe"));
    let code = "fn a() {\n{}\n}\nfn b();\npub fn c<T>(x: T) {}\n";
    assert_eq!(functions(code), [("a".to_owned(), 3), ("c".to_owned(), 1)]);
}
