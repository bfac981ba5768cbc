//! Seals segments and opens them again.

use std::cell::RefCell;
use std::collections::HashSet;
use std::io;

use age::secrecy::ExposeSecret;
use age::{DecryptError, EncryptError, Identity, Recipient, x25519};
use age_core::format::{FileKey, Stanza};
use thiserror::Error;

use super::codec::{Codec, SegmentCodec, UnknownCodec};
use crate::format::manifest::{CodecInfo, Hash, SegmentRow};
use crate::format::{FormatError, age_file};

/// Why a segment could not be made or opened.
#[derive(Debug, Error)]
pub enum SealError {
    /// The compressor or decompressor failed.
    #[error("compression failed: {0}")]
    Codec(#[from] io::Error),
    /// Sealing itself failed.
    #[error("sealing failed: {0}")]
    Seal(String),
    /// What was just sealed does not open to what went in: a fault of memory, processor or program.
    #[error("what was just sealed does not open to what went in ({0}); check this machine's memory")]
    NotReproduced(String),
    /// The object is not the signed one.
    #[error("{0}")]
    Damaged(String),
}

/// Lets one thread seal segments to the repository recipient, for which no secret is needed.
pub struct Sealer {
    codec: Box<dyn SegmentCodec>,
    recipient: x25519::Recipient,
    verify: bool,
    packed: Vec<u8>,
    again: Vec<u8>,
}

impl Sealer {
    /// With `verify`, each sealed segment is opened again and compared before it counts.
    pub fn new(codec: Codec, recipient: x25519::Recipient, verify: bool) -> io::Result<Self> {
        Ok(Self { codec: codec.worker()?, recipient, verify, packed: Vec::new(), again: Vec::new() })
    }

    /// Compresses, seals and hashes one segment into `sealed`, which is cleared first.
    pub fn seal(&mut self, plain: &[u8], sealed: &mut Vec<u8>) -> Result<SegmentRow, SealError> {
        self.codec.compress(plain, &mut self.packed)?;
        let keeper = KeyKeeper { recipient: self.recipient.clone(), key: RefCell::new(None) };
        age_file::seal_into(&self.packed, &[&keeper], sealed).map_err(|error| SealError::Seal(error.to_string()))?;
        if self.verify {
            self.open_again(plain, sealed, &keeper)?;
        }
        Ok(SegmentRow(plain.len() as u64, Hash::of(plain), sealed.len() as u64, Hash::of(sealed)))
    }

    fn open_again(&mut self, plain: &[u8], sealed: &[u8], keeper: &KeyKeeper) -> Result<(), SealError> {
        let not_reproduced = |what: &dyn std::fmt::Display| SealError::NotReproduced(what.to_string());
        let limit = self.packed.len() as u64;
        age_file::open_into(sealed, &[keeper], limit, &mut self.packed).map_err(|error| not_reproduced(&error))?;
        self.codec.decompress(&self.packed, plain.len(), &mut self.again).map_err(|error| not_reproduced(&error))?;
        if self.again == plain { Ok(()) } else { Err(not_reproduced(&"other bytes came out")) }
    }
}

/// A recipient that remembers the file key which it wrapped, so that a writer, who holds no secret of the
/// repository, can open what it has just sealed. The wrapping of the key itself is not proved by that; `init`
/// proves it once with the real identity.
struct KeyKeeper {
    recipient: x25519::Recipient,
    key: RefCell<Option<FileKey>>,
}

fn copy_key(key: &FileKey) -> FileKey {
    FileKey::init_with_mut(|copy| copy.copy_from_slice(key.expose_secret()))
}

impl Recipient for KeyKeeper {
    fn wrap_file_key(&self, key: &FileKey) -> Result<(Vec<Stanza>, HashSet<String>), EncryptError> {
        self.key.replace(Some(copy_key(key)));
        self.recipient.wrap_file_key(key)
    }
}

impl Identity for KeyKeeper {
    fn unwrap_stanza(&self, _: &Stanza) -> Option<Result<FileKey, DecryptError>> {
        self.key.borrow().as_ref().map(|key| Ok(copy_key(key)))
    }
}

/// Lets one thread open segments with the repository identity.
pub struct Opener {
    codec: Box<dyn SegmentCodec>,
    identity: x25519::Identity,
    packed: Vec<u8>,
}

impl Opener {
    /// For the codec that a manifest names.
    pub fn new(codec: &CodecInfo, identity: x25519::Identity) -> Result<Self, OpenerError> {
        Ok(Self { codec: Codec::from_info(codec)?.worker()?, identity, packed: Vec::new() })
    }

    /// Opens `sealed` into `plain`, which is cleared first. Nothing is decrypted before size and hash are those
    /// of the signed `row`.
    pub fn open(&mut self, row: &SegmentRow, sealed: &[u8], plain: &mut Vec<u8>) -> Result<(), SealError> {
        check_stored(row, sealed)?;
        // The codec may have made it larger than the stream was, by a little.
        let limit = row.stored_bytes();
        age_file::open_into(sealed, &[&self.identity], limit, &mut self.packed).map_err(|error| match error {
            FormatError::NoKey => SealError::Damaged("it is sealed to another key than the repository's".into()),
            other => SealError::Damaged(other.to_string()),
        })?;
        let expected = usize::try_from(row.bytes()).map_err(|error| SealError::Damaged(error.to_string()))?;
        self.codec
            .decompress(&self.packed, expected, plain)
            .map_err(|error| SealError::Damaged(format!("it does not decompress: {error}")))?;
        if Hash::of(plain) == row.blake3() {
            Ok(())
        } else {
            Err(SealError::Damaged("it opens to other bytes than were backed up".into()))
        }
    }
}

/// That an object is the signed one, which needs no key.
pub fn check_stored(row: &SegmentRow, sealed: &[u8]) -> Result<(), SealError> {
    if sealed.len() as u64 != row.stored_bytes() {
        let message = format!("it has {} bytes where {} were stored", sealed.len(), row.stored_bytes());
        return Err(SealError::Damaged(message));
    }
    if Hash::of(sealed) != row.stored_blake3() {
        return Err(SealError::Damaged("it was changed or damaged: its hash is not the signed one".into()));
    }
    Ok(())
}

/// Why nothing of a backup can be opened by this program.
#[derive(Debug, Error)]
pub enum OpenerError {
    /// Written by a newer program.
    #[error(transparent)]
    Codec(#[from] UnknownCodec),
    /// The decompressor could not be set up.
    #[error("the decompressor could not be set up: {0}")]
    Setup(#[from] io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_segments_open_only_as_what_they_were() {
        let identity = x25519::Identity::generate();
        let plain: Vec<u8> = (0..300_000u32).map(|n| (n / 100) as u8).collect();
        for codec in [Codec::Zstd(3), Codec::Gzip(6), Codec::None] {
            let mut sealer = Sealer::new(codec, identity.to_public(), true).unwrap();
            let mut sealed = Vec::new();
            let row = sealer.seal(&plain, &mut sealed).unwrap();
            let mut opener = Opener::new(&codec.info(), identity.clone()).unwrap();
            let mut out = Vec::new();
            opener.open(&row, &sealed, &mut out).unwrap();
            assert!(out == plain);
            let mut changed = sealed.clone();
            changed[sealed.len() / 2] ^= 1;
            assert!(matches!(opener.open(&row, &changed, &mut out), Err(SealError::Damaged(_))));
            let mut stranger = Opener::new(&codec.info(), x25519::Identity::generate()).unwrap();
            let error = stranger.open(&row, &sealed, &mut out).unwrap_err();
            assert!(error.to_string().contains("another key"), "{error}");
        }
    }

    #[test]
    fn a_codec_that_loses_data_is_caught_before_it_counts() {
        struct Broken;
        impl SegmentCodec for Broken {
            fn compress(&mut self, plain: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
                out.clear();
                out.extend(plain.iter().map(|byte| byte & 0xfe));
                Ok(())
            }
            fn decompress(&mut self, stored: &[u8], _: usize, out: &mut Vec<u8>) -> io::Result<()> {
                out.clear();
                out.extend_from_slice(stored);
                Ok(())
            }
        }
        let recipient = x25519::Identity::generate().to_public();
        let mut sealer = Sealer::new(Codec::None, recipient, true).unwrap();
        sealer.codec = Box::new(Broken);
        assert!(matches!(sealer.seal(&[1, 2, 3], &mut Vec::new()), Err(SealError::NotReproduced(_))));
    }
}
