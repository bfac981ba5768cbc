//! Names of datasets, snapshots and bookmarks, as zfs(8) allows them: letters, digits and `-_.: `, parts separated
//! by `/`, fewer than 256 bytes in all.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A name that ZFS does not allow.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{name:?} is no {what}: {why}")]
pub struct BadName {
    name: String,
    what: &'static str,
    why: &'static str,
}

/// ZFS's own limit, with the final NUL.
const MAX_NAME: usize = 256;

fn check_part(part: &str) -> Result<(), &'static str> {
    if part.is_empty() {
        Err("a part of it is empty")
    } else if part == "." || part == ".." {
        Err("\".\" and \"..\" are not allowed")
    } else if !part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.: ".contains(&b)) {
        Err("only letters, digits and -_.: are allowed")
    } else {
        Ok(())
    }
}

fn check_dataset(name: &str) -> Result<(), &'static str> {
    if name.len() >= MAX_NAME {
        return Err("it is too long");
    }
    // Also keeps a name from being taken for an option.
    if !name.starts_with(|first: char| first.is_ascii_alphabetic()) {
        return Err("a pool's name begins with a letter");
    }
    name.split('/').try_for_each(check_part)
}

/// `pool/path`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dataset(String);

impl Dataset {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Dataset {
    type Err = BadName;

    fn from_str(name: &str) -> Result<Self, BadName> {
        let bad = |why| BadName { name: name.to_owned(), what: "dataset name", why };
        check_dataset(name).map(|()| Self(name.to_owned())).map_err(bad)
    }
}

impl fmt::Display for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// `pool/path@name`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Snapshot {
    /// Before the `@`.
    pub dataset: Dataset,
    /// After it.
    pub name: String,
}

impl FromStr for Snapshot {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let bad = |why| BadName { name: text.to_owned(), what: "snapshot name", why };
        let (dataset, name) = text.split_once('@').ok_or_else(|| bad("it has the form dataset@snapshot"))?;
        check_part(name).map_err(bad)?;
        if text.len() >= MAX_NAME {
            return Err(bad("it is too long"));
        }
        Ok(Self { dataset: dataset.parse()?, name: name.to_owned() })
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.dataset, self.name)
    }
}

/// What a dataset keeps of its past under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionKind {
    /// `dataset@name`.
    Snapshot,
    /// `dataset#name`: remembers a point to send from, and no data.
    Bookmark,
}

/// A base as a person names it: `@monday`, `#monday`, `monday` or with the dataset before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseName {
    /// `None` if it was not said.
    pub kind: Option<VersionKind>,
    /// Without mark and dataset.
    pub name: String,
}

impl BaseName {
    /// Reads what stands after `--base`, for a snapshot of `dataset`.
    pub fn parse(text: &str, dataset: &Dataset) -> Result<Self, BadName> {
        let bad = |why| BadName { name: text.to_owned(), what: "base", why };
        let (kind, before, name) = match text.find(['@', '#']) {
            None => (None, "", text),
            Some(mark) if text.as_bytes()[mark] == b'@' => {
                (Some(VersionKind::Snapshot), &text[..mark], &text[mark + 1..])
            }
            Some(mark) => (Some(VersionKind::Bookmark), &text[..mark], &text[mark + 1..]),
        };
        if !before.is_empty() && before != dataset.as_str() {
            return Err(bad("a base is a snapshot or bookmark of the same dataset"));
        }
        check_part(name).map_err(bad)?;
        Ok(Self { kind, name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_zfs_allows() {
        for good in ["tank", "tank/data", "tank/My Files/a.b:c-d_e", "t/1"] {
            assert_eq!(good.parse::<Dataset>().unwrap().as_str(), good);
        }
        let long = format!("tank/{}", "x".repeat(250));
        assert!(long.parse::<Dataset>().is_ok());
        assert!(format!("{long}x").parse::<Dataset>().is_err());
        let snapshot: Snapshot = "tank/data@syncoid_host_2024-03-05:17:19:30-GMT02:00".parse().unwrap();
        assert_eq!(snapshot.dataset.as_str(), "tank/data");
    }

    #[test]
    fn names_that_it_does_not() {
        for bad in
            ["", "/tank", "tank/", "tank//x", "-r", "1tank", "tank/%recv", "tank/é", "tank/..", "tank/a\nb", "tank@x"]
        {
            assert!(bad.parse::<Dataset>().is_err(), "{bad:?}");
        }
        for bad in ["tank", "tank@", "tank@a@b", "tank@a/b", "@x", "-i@x", "tank@a#b", "tank@%x"] {
            assert!(bad.parse::<Snapshot>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn bases_as_people_write_them() {
        let dataset: Dataset = "tank/data".parse().unwrap();
        let parse = |text| BaseName::parse(text, &dataset);
        assert_eq!(parse("@mon").unwrap(), BaseName { kind: Some(VersionKind::Snapshot), name: "mon".into() });
        assert_eq!(parse("tank/data#mon").unwrap(), BaseName { kind: Some(VersionKind::Bookmark), name: "mon".into() });
        assert_eq!(parse("mon").unwrap(), BaseName { kind: None, name: "mon".into() });
        for bad in ["tank/other@mon", "@", "", "@a@b", "mon;rm"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
