//! What the first bytes of any stream look like: for a manifest, and for a person who sees the wrong thing in a pipe.

use std::fmt;

use super::record::ByteOrder;

/// What a stream seems to be. A guess from its first bytes, not a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StreamKind {
    Empty,
    Zfs,
    Btrfs,
    Gzip,
    Zstd,
    Xz,
    Bzip2,
    Lz4,
    Zip,
    Tar,
    PgBasebackup,
    Cpio,
    PgDump,
    SqlDump,
    Sqlite,
    XfsDump,
    Qcow2,
    Age,
    Openssl,
    Text,
    Unknown,
}

impl StreamKind {
    /// A keyword for machines that never changes once released.
    pub fn as_str(self) -> &'static str {
        self.words().0
    }

    /// The keyword, and the words for people.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Empty => ("empty", "nothing at all"),
            Self::Zfs => ("zfs", "ZFS send stream"),
            Self::Btrfs => ("btrfs", "btrfs send stream"),
            Self::Gzip => ("gzip", "gzip-compressed data"),
            Self::Zstd => ("zstd", "zstd-compressed data"),
            Self::Xz => ("xz", "xz-compressed data"),
            Self::Bzip2 => ("bzip2", "bzip2-compressed data"),
            Self::Lz4 => ("lz4", "lz4-compressed data"),
            Self::Zip => ("zip", "zip archive"),
            Self::Tar => ("tar", "tar archive"),
            Self::PgBasebackup => ("pg-basebackup", "PostgreSQL base backup (tar)"),
            Self::Cpio => ("cpio", "cpio archive"),
            Self::PgDump => ("pg-dump", "PostgreSQL dump (pg_dump custom format)"),
            Self::SqlDump => ("sql-dump", "SQL dump"),
            Self::Sqlite => ("sqlite", "SQLite database"),
            Self::XfsDump => ("xfsdump", "xfsdump archive"),
            Self::Qcow2 => ("qcow2", "qcow2 disk image"),
            Self::Age => ("age", "age-encrypted data"),
            Self::Openssl => ("openssl", "data encrypted by openssl enc"),
            Self::Text => ("text", "text"),
            Self::Unknown => ("unknown", "unknown bytes"),
        }
    }
}

impl fmt::Display for StreamKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words().1)
    }
}

/// What begins with which bytes.
const BEGINNINGS: [(&[u8], StreamKind); 19] = [
    (b"btrfs-stream\0", StreamKind::Btrfs),
    (b"\x1f\x8b\x08", StreamKind::Gzip),
    (b"\x28\xb5\x2f\xfd", StreamKind::Zstd),
    (b"\xfd7zXZ\0", StreamKind::Xz),
    (b"\x04\x22\x4d\x18", StreamKind::Lz4),
    (b"PK\x03\x04", StreamKind::Zip),
    (b"070701", StreamKind::Cpio),
    (b"070702", StreamKind::Cpio),
    (b"070707", StreamKind::Cpio),
    (b"PGDMP", StreamKind::PgDump),
    (b"--\n-- PostgreSQL database", StreamKind::SqlDump),
    (b"-- MySQL dump", StreamKind::SqlDump),
    (b"-- MariaDB dump", StreamKind::SqlDump),
    (b"/*M!999999", StreamKind::SqlDump),
    (b"SQLite format 3\0", StreamKind::Sqlite),
    (b"xFSdump0", StreamKind::XfsDump),
    (b"QFI\xfb", StreamKind::Qcow2),
    (b"age-encryption.org/", StreamKind::Age),
    (b"Salted__", StreamKind::Openssl),
];

/// Where a tar header says that it is one.
const TAR_MAGIC_AT: usize = 257;
/// What PostgreSQL's server puts first into the tar file of a base backup.
const PG_BASEBACKUP_FIRST: [&[u8]; 3] = [b"backup_label\0", b"tablespace_map\0", b"backup_manifest\0"];
/// A stream this short is not judged to be text: too many bytes are letters by chance.
const LEAST_TEXT: usize = 4;

/// Says what the first bytes of a stream look like. 512 bytes tell everything that is known here; fewer tell less.
pub fn identify(first: &[u8]) -> StreamKind {
    if first.is_empty() {
        return StreamKind::Empty;
    }
    if looks_like_zfs(first) {
        return StreamKind::Zfs;
    }
    if let Some((_, kind)) = BEGINNINGS.iter().find(|(beginning, _)| first.starts_with(beginning)) {
        return *kind;
    }
    if is_bzip2(first) {
        return StreamKind::Bzip2;
    }
    if first.get(TAR_MAGIC_AT..).is_some_and(|rest| rest.starts_with(b"ustar")) {
        let postgres = PG_BASEBACKUP_FIRST.iter().any(|name| first.starts_with(name));
        return if postgres { StreamKind::PgBasebackup } else { StreamKind::Tar };
    }
    if is_text(first) { StreamKind::Text } else { StreamKind::Unknown }
}

/// Whether these are the first bytes of a ZFS send stream, in either byte order: a BEGIN record with the magic number,
/// which needs 16 bytes.
pub fn looks_like_zfs(first: &[u8]) -> bool {
    ByteOrder::of_begin(first).is_some()
}

/// `BZh`, the block size as a digit, and the magic number of a first block or of an empty file.
fn is_bzip2(first: &[u8]) -> bool {
    const BLOCK: &[u8] = &[0x31, 0x41, 0x59, 0x26, 0x53, 0x59];
    const END: &[u8] = &[0x17, 0x72, 0x45, 0x38, 0x50, 0x90];
    match first {
        [b'B', b'Z', b'h', b'1'..=b'9', rest @ ..] => rest.starts_with(BLOCK) || rest.starts_with(END),
        _ => false,
    }
}

/// UTF-8 without control characters. The last character may be cut.
fn is_text(first: &[u8]) -> bool {
    let valid = match std::str::from_utf8(first) {
        Ok(text) => text,
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&first[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return false,
    };
    first.len() >= LEAST_TEXT && valid.chars().all(|c| !c.is_control() || matches!(c, '\n' | '\r' | '\t' | '\x1b'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tar(name: &str) -> Vec<u8> {
        let mut header = vec![0; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[TAR_MAGIC_AT..TAR_MAGIC_AT + 5].copy_from_slice(b"ustar");
        header
    }

    #[test]
    fn what_is_known_is_recognised() {
        let begin = |magic: [u8; 8]| [[0; 8], magic].concat();
        let cases: [(&[u8], StreamKind); 16] = [
            (b"", StreamKind::Empty),
            (&begin(0x2_F5BA_CBAC_u64.to_le_bytes()), StreamKind::Zfs),
            (&begin(0x2_F5BA_CBAC_u64.to_be_bytes()), StreamKind::Zfs),
            (&begin(0x2_F5BA_CBAD_u64.to_be_bytes()), StreamKind::Unknown),
            (b"btrfs-stream\0\x01\0\0\0", StreamKind::Btrfs),
            (b"\x1f\x8b\x08\0\0\0\0\0", StreamKind::Gzip),
            (b"BZh91AY&SY....", StreamKind::Bzip2),
            (b"BZh91 is a bus line", StreamKind::Text),
            (&tar("etc/passwd"), StreamKind::Tar),
            (&tar("backup_label"), StreamKind::PgBasebackup),
            (b"--\n-- PostgreSQL database dump\n", StreamKind::SqlDump),
            ("cannot open: Größe".as_bytes(), StreamKind::Text),
            (&"cannot open: Größe".as_bytes()[..16], StreamKind::Text),
            (b"abc", StreamKind::Unknown),
            (b"\0\0\0\0\0\0\0\0", StreamKind::Unknown),
            (b"\xff\xfe\xfd\xfc", StreamKind::Unknown),
        ];
        for (bytes, kind) in cases {
            assert_eq!(identify(bytes), kind, "{bytes:?}");
        }
    }

    #[test]
    fn a_start_too_short_for_the_magic_number_is_not_zfs() {
        let begin = [[0; 8], 0x2_F5BA_CBAC_u64.to_le_bytes()].concat();
        assert!(!looks_like_zfs(&begin[..15]));
        assert!(looks_like_zfs(&begin));
    }
}
