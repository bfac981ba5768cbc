//! Object names. Nothing about host, dataset or snapshot is in any of them.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;

use super::FormatError;

/// The plain descriptor.
pub const DESCRIPTOR: &str = "snapferry.json";
/// How to restore without this program.
pub const RESCUE: &str = "RESCUE.txt";
/// The folder of slots.
pub const KEYS: &str = "keys";
/// The folder of manifests and their signatures.
pub const MANIFESTS: &str = "manifests";
/// The folder of records of what was removed.
pub const REMOVALS: &str = "removals";
/// The folder of segments.
pub const SEGMENTS: &str = "segments";

/// `YYYYMMDDTHHMMSSZ-` (UTC, when the backup began) and 16 random lower-case hex digits. Used once.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackupId(String);

impl BackupId {
    /// An id for a backup that begins now.
    pub fn new(started: Timestamp, random: [u8; 8]) -> Self {
        Self(format!("{}-{:016x}", started.strftime("%Y%m%dT%H%M%SZ"), u64::from_be_bytes(random)))
    }

    /// When the backup began, by the clock of the machine that made it.
    pub fn began(&self) -> Option<Timestamp> {
        let digits = |range: std::ops::Range<usize>| self.0.get(range)?.parse::<i8>().ok();
        let year = self.0.get(..4)?.parse().ok()?;
        let [month, day, hour, minute, second] = [4..6, 6..8, 9..11, 11..13, 13..15].map(digits);
        let date = jiff::civil::Date::new(year, month?, day?).ok()?;
        let time = jiff::civil::Time::new(hour?, minute?, second?, 0).ok()?;
        jiff::tz::Offset::UTC.to_timestamp(date.to_datetime(time)).ok()
    }

    /// The id as it stands in object names.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for BackupId {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        let shape = |(n, byte): (usize, u8)| match n {
            8 => byte == b'T',
            15 => byte == b'Z',
            16 => byte == b'-',
            0..=15 => byte.is_ascii_digit(),
            _ => byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte),
        };
        if text.len() == 33 && text.bytes().enumerate().all(shape) {
            Ok(Self(text.to_owned()))
        } else {
            Err(FormatError::Malformed(format!("{text:?} is no backup id")))
        }
    }
}

impl fmt::Display for BackupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl serde::Serialize for BackupId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> serde::Deserialize<'de> for BackupId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A sealed manifest.
pub fn manifest(id: &BackupId) -> String {
    format!("{MANIFESTS}/{id}.age")
}

/// A manifest's signature.
pub fn signature(id: &BackupId) -> String {
    format!("{MANIFESTS}/{id}.age.minisig")
}

/// A record of what was removed.
pub fn removal(id: &BackupId) -> String {
    format!("{REMOVALS}/{id}.age")
}

/// The signature of such a record.
pub fn removal_signature(id: &BackupId) -> String {
    format!("{REMOVALS}/{id}.age.minisig")
}

/// The name of such a record in an object name.
pub fn parse_removal(object: &str) -> Option<BackupId> {
    object.strip_prefix("removals/")?.strip_suffix(".age")?.parse().ok()
}

/// The backup that a signature's object name belongs to.
pub fn parse_signature(object: &str) -> Option<BackupId> {
    object.strip_prefix("manifests/")?.strip_suffix(".age.minisig")?.parse().ok()
}

/// The folder of a backup's segments.
pub fn segments(id: &BackupId) -> String {
    format!("{SEGMENTS}/{id}")
}

/// One segment; `extension` is the codec's, such as `zst`.
pub fn segment(id: &BackupId, number: u64, extension: &str) -> String {
    format!("{SEGMENTS}/{id}/{:03}/{number:09}.{extension}.age", number / 1000)
}

/// A slot.
pub fn slot(name: &str) -> String {
    format!("{KEYS}/{name}.age")
}

/// The slot's name in an object name.
pub fn parse_slot(object: &str) -> Option<&str> {
    object.strip_prefix("keys/")?.strip_suffix(".age").filter(|name| !name.contains('/'))
}

/// The backup that a manifest's object name belongs to.
pub fn parse_manifest(object: &str) -> Option<BackupId> {
    object.strip_prefix("manifests/")?.strip_suffix(".age")?.parse().ok()
}

/// The backup that a segment's object name belongs to.
pub fn parse_segment_owner(object: &str) -> Option<BackupId> {
    object.strip_prefix("segments/")?.split('/').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_format() {
        let id = BackupId::new("2026-11-30T22:40:20.9Z".parse().unwrap(), [0, 1, 2, 3, 4, 5, 0xfe, 0xff]);
        assert_eq!(id.as_str(), "20261130T224020Z-000102030405feff");
        assert_eq!(manifest(&id), "manifests/20261130T224020Z-000102030405feff.age");
        assert_eq!(segment(&id, 12_345, "zst"), "segments/20261130T224020Z-000102030405feff/012/000012345.zst.age");
        assert_eq!(segment(&id, 1_234_567, "raw").rsplit_once('/').unwrap().0.rsplit_once('/').unwrap().1, "1234");
        assert_eq!(parse_manifest(&manifest(&id)), Some(id.clone()));
        assert_eq!(parse_segment_owner(&segment(&id, 0, "gz")), Some(id.clone()));
        assert_eq!(parse_manifest(&signature(&id)), None);
    }

    #[test]
    fn ids_of_another_shape_are_refused() {
        for bad in [
            "",
            "20261130T224020Z-000102030405fefF",
            "20261130T224020Z-000102030405fef",
            "../../../../etc/passwd/x/y/z/zzzzz",
        ] {
            assert!(bad.parse::<BackupId>().is_err(), "{bad}");
        }
    }
}
