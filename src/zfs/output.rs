//! What `zfs … -H -p` prints, parsed.

use super::names::VersionKind;

/// A snapshot or bookmark as `zfs list` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Snapshot or bookmark.
    pub kind: VersionKind,
    /// After the `@` or `#`.
    pub name: String,
    /// The same for a snapshot, its bookmarks, and its received copies.
    pub guid: u64,
    /// The transaction group that made it: orders the versions of a dataset, whatever the clock said.
    pub createtxg: u64,
    /// Seconds since 1970.
    pub creation: i64,
}

/// The columns that [`versions`] reads.
pub const VERSION_COLUMNS: &str = "name,guid,createtxg,creation";

/// Reads `zfs list -H -p -t snapshot,bookmark -o name,guid,createtxg,creation`, of `dataset` alone: lines of other
/// datasets are passed over, a line of another shape is an error (quoted).
pub fn versions(text: &str, dataset: &str) -> Result<Vec<Version>, String> {
    let mut found = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let unreadable = || odd_line(line);
        let [name, guid, createtxg, creation] = line.split('\t').collect::<Vec<_>>()[..] else {
            return Err(unreadable());
        };
        let mark = name.find(['@', '#']).ok_or_else(unreadable)?;
        if &name[..mark] != dataset {
            continue;
        }
        found.push(Version {
            kind: if name.as_bytes()[mark] == b'@' { VersionKind::Snapshot } else { VersionKind::Bookmark },
            name: name[mark + 1..].to_owned(),
            guid: guid.parse().map_err(|_| unreadable())?,
            createtxg: createtxg.parse().map_err(|_| unreadable())?,
            creation: creation.parse().map_err(|_| unreadable())?,
        });
    }
    Ok(found)
}

/// A hold that keeps a snapshot from being destroyed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// `dataset@snapshot`.
    pub snapshot: String,
    /// Its tag.
    pub tag: String,
    /// When it was made, as `zfs holds` shows it (local time of that machine); only shown.
    pub since: String,
}

fn odd_line(line: &str) -> String {
    format!("a line of another shape than expected: {:?}", line.chars().take(120).collect::<String>())
}

/// Reads `zfs list -H -p -o name,userrefs`: the snapshots that have holds.
pub fn held(text: &str) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let (name, count) = line.split_once('\t').ok_or_else(|| odd_line(line))?;
        if count.parse::<u64>().map_err(|_| odd_line(line))? > 0 {
            found.push(name.to_owned());
        }
    }
    Ok(found)
}

/// Reads `zfs holds -H`.
pub fn holds(text: &str) -> Result<Vec<Hold>, String> {
    let lines = text.lines().filter(|line| !line.is_empty());
    let hold = |line: &str| match line.split('\t').collect::<Vec<_>>()[..] {
        [snapshot, tag, since] => Ok(Hold { snapshot: snapshot.into(), tag: tag.into(), since: since.into() }),
        _ => Err(odd_line(line)),
    };
    lines.map(hold).collect()
}

/// Reads `zfs get -H -p -o name,value` of the snapshots of `dataset` alone: snapshot name and value.
pub fn named_values(text: &str, dataset: &str) -> Result<Vec<(String, String)>, String> {
    let mut found = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once('\t').ok_or_else(|| odd_line(line))?;
        if let Some((of, snapshot)) = name.split_once('@')
            && of == dataset
        {
            found.push((snapshot.to_owned(), value.to_owned()));
        }
    }
    Ok(found)
}

/// Reads `zfs list -H -p -t bookmark -o name,guid`: dataset, name and GUID.
pub fn bookmarks(text: &str) -> Result<Vec<(String, String, u64)>, String> {
    let lines = text.lines().filter(|line| !line.is_empty());
    let bookmark = |line: &str| {
        let (name, guid) = line.split_once('\t')?;
        let (dataset, name) = name.split_once('#')?;
        Some((dataset.to_owned(), name.to_owned(), guid.parse().ok()?))
    };
    lines.map(|line| bookmark(line).ok_or_else(|| odd_line(line))).collect()
}

/// The size in the last line of `zfs send -nvP`: an estimate in bytes, which the stream may exceed.
pub fn estimate(text: &str) -> Option<u64> {
    text.lines().rev().find_map(|line| line.strip_prefix("size\t")?.trim().parse().ok())
}

/// The `toguid` among the contents of a resume token, as `zfs send -nvP -t TOKEN` shows them.
pub fn token_guid(text: &str) -> Option<u64> {
    let hex = text.lines().find_map(|line| line.trim().strip_prefix("toguid = 0x"))?;
    u64::from_str_radix(hex.trim(), 16).ok()
}

/// A single value of `zfs get -H -p -o value`; `None` for `-`.
pub fn value(text: &str) -> Option<&str> {
    text.lines().next().map(str::trim).filter(|value| !value.is_empty() && *value != "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    // As OpenZFS 2.1.11 printed them.
    const LISTED: &str = "tank/data@s1\t10836421798840580573\t10\t1796074257\ntank/data@s2\t13617474349262005280\t11\t1796074258\ntank/data#b2\t13617474349262005280\t11\t1796074258\n";

    #[test]
    fn snapshots_and_bookmarks() {
        let found = versions(LISTED, "tank/data").unwrap();
        assert_eq!(found.len(), 3);
        assert_eq!((found[0].name.as_str(), found[0].guid, found[0].createtxg), ("s1", 10_836_421_798_840_580_573, 10));
        assert_eq!((found[2].kind, found[2].guid), (VersionKind::Bookmark, found[1].guid));
        assert_eq!(versions(LISTED, "tank"), Ok(vec![]));
        assert_eq!(versions("", "tank"), Ok(vec![]));
    }

    #[test]
    fn odd_lines_are_errors() {
        for odd in
            ["tank/data@s1", "tank/data@s1\tx\t1\t1", "no mark\t1\t1\t1", "tank/data@s1\t-1\t1\t1", "a\tb\tc\td\te"]
        {
            assert!(versions(odd, "tank/data").is_err(), "{odd}");
        }
    }

    #[test]
    fn holds_and_bookmarks() {
        let text = "tank/proj@r1\tkeepme\tMon Nov 30 21:31 2026\ntank/proj/child@r1\tkeepme\tMon Nov 30 21:31 2026\n";
        let found = holds(text).unwrap();
        assert_eq!(
            (found.len(), found[1].snapshot.as_str(), found[0].tag.as_str()),
            (2, "tank/proj/child@r1", "keepme")
        );
        assert_eq!(held("tank/a@b\t0\ntank/a@c\t2\n"), Ok(vec!["tank/a@c".to_owned()]));
        assert_eq!(named_values("t/a@s\tx\nt/a/b@s\ty\n", "t/a"), Ok(vec![("s".to_owned(), "x".to_owned())]));
        assert_eq!(bookmarks("t/a#b\t7\n"), Ok(vec![("t/a".to_owned(), "b".to_owned(), 7)]));
        assert!(holds("one\ttwo").is_err() && held("a").is_err() && held("a\t-").is_err());
        assert!(named_values("a", "a").is_err() && bookmarks("a@b\t7").is_err());
    }

    #[test]
    fn sizes_and_values() {
        assert_eq!(estimate("full\ttank/data@s1\t1378720\nsize\t1378720\n"), Some(1_378_720));
        assert_eq!(estimate("nothing here"), None);
        assert_eq!(value("aes-256-gcm\n"), Some("aes-256-gcm"));
        assert_eq!(
            token_guid("resume token contents:\nnvlist version: 0\n\ttoguid = 0x9662b436543139dd\n"),
            Some(0x9662_b436_5431_39dd)
        );
        assert_eq!(token_guid("size\t1"), None);
        assert_eq!(value("-\n"), None);
        assert_eq!(value(""), None);
    }
}
