//! Seals segments and opens them again.

use std::cell::RefCell;
use std::collections::HashSet;
use std::io;

use age::secrecy::ExposeSecret;
use age::{DecryptError, Decryptor, EncryptError, Encryptor, Identity, Recipient, x25519};
use age_core::format::{FileKey, Stanza};
use thiserror::Error;

use super::codec::{Codec, SegmentCodec, UnknownCodec};
use super::payload::{NotAuthentic, PayloadKey, SALT};
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
    scratch: Vec<u8>,
}

impl Sealer {
    /// With `verify`, each sealed segment is opened again and compared before it counts.
    pub fn new(codec: Codec, recipient: x25519::Recipient, verify: bool) -> io::Result<Self> {
        Ok(Self { codec: codec.worker()?, recipient, verify, packed: Vec::new(), scratch: Vec::new() })
    }

    /// Compresses, seals and hashes one segment into `sealed`, which is cleared first.
    pub fn seal(&mut self, plain: &[u8], sealed: &mut Vec<u8>) -> Result<SegmentRow, SealError> {
        self.codec.compress(plain, &mut self.packed)?;
        let (key, header) = begin_age_file(&self.recipient, self.packed.len(), sealed)?;
        let again = if self.verify { Some(open_again(sealed, &header)?) } else { None };
        let mut hasher = blake3::Hasher::new();
        hasher.update(sealed);
        let scratch = &mut self.scratch;
        key.seal(&self.packed, sealed, |chunk| {
            hasher.update(chunk.sealed);
            match &again {
                Some(again) if !again.opens_to(chunk, scratch) => {
                    Err(SealError::NotReproduced("the sealed bytes are not authentic".into()))
                }
                _ => Ok(()),
            }
        })?;
        // Only now: what was sealed is what is in memory still, and that has to lead back to the stream.
        if self.verify {
            self.reproduce(plain)?;
        }
        Ok(SegmentRow(plain.len() as u64, Hash::of(plain), sealed.len() as u64, Hash(hasher.finalize())))
    }

    fn reproduce(&mut self, plain: &[u8]) -> Result<(), SealError> {
        match self.codec.reproduces(&self.packed, plain) {
            Ok(true) => Ok(()),
            Ok(false) => Err(SealError::NotReproduced("other bytes came out".into())),
            Err(error) => Err(SealError::NotReproduced(error.to_string())),
        }
    }
}

impl From<NotAuthentic> for SealError {
    fn from(_: NotAuthentic) -> Self {
        Self::Seal("the cipher failed".into())
    }
}

/// The payload's key as a reader derives it: from the header as it is written, whose authentication vouches for it.
fn open_again(begun: &[u8], header: &Header) -> Result<PayloadKey, SealError> {
    open_age_header(begun, header).map(|(key, _)| key).map_err(|error| SealError::NotReproduced(error.to_string()))
}

/// What begins an age file: its header, which wraps a new file key for `recipient`, and the payload's nonce.
fn begin_age_file(
    recipient: &x25519::Recipient,
    payload: usize,
    sealed: &mut Vec<u8>,
) -> Result<(PayloadKey, Header), SealError> {
    let failed = |error: &dyn std::fmt::Display| SealError::Seal(error.to_string());
    sealed.clear();
    sealed.reserve(usize::try_from(age_file::max_sealed_len(payload as u64)).unwrap_or(0));
    let keeper = KeyKeeper { recipient, key: RefCell::new(None) };
    let encryptor =
        Encryptor::with_recipients(std::iter::once(&keeper as &dyn Recipient)).map_err(|error| failed(&error))?;
    // The writer is dropped unused: the payload is written by `PayloadKey`.
    drop(encryptor.wrap_output(&mut *sealed).map_err(|error| failed(&error))?);
    let file_key = keeper.key.into_inner().ok_or_else(|| failed(&"no file key was made"))?;
    let salt = &sealed[sealed.len() - SALT..];
    let key = PayloadKey::derive(&file_key, salt).map_err(|NotAuthentic| failed(&"the key can't be derived"))?;
    Ok((key, Header(file_key)))
}

/// Checks the header of an age file with the file key that `identity` finds in it. Returns the payload's key and
/// where the payload begins.
fn open_age_header(sealed: &[u8], identity: &dyn Identity) -> Result<(PayloadKey, usize), FormatError> {
    let mut rest = sealed;
    let finder = KeyFinder { identity, key: RefCell::new(None) };
    let decryptor = Decryptor::new_buffered(&mut rest).map_err(age_file::sort_decrypt_error)?;
    // The reader is dropped unused: the payload is read by `PayloadKey`.
    drop(decryptor.decrypt(std::iter::once(&finder as &dyn Identity)).map_err(age_file::sort_decrypt_error)?);
    let damaged = || FormatError::Damaged("its header is not readable".into());
    let file_key = finder.key.into_inner().ok_or_else(damaged)?;
    let payload = sealed.len() - rest.len();
    let salt = payload.checked_sub(SALT).map(|from| &sealed[from..payload]).ok_or_else(damaged)?;
    Ok((PayloadKey::derive(&file_key, salt).map_err(|NotAuthentic| damaged())?, payload))
}

fn copy_key(key: &FileKey) -> FileKey {
    FileKey::init_with_mut(|copy| copy.copy_from_slice(key.expose_secret()))
}

/// A recipient that keeps the file key which it wraps, so that a writer, who holds no secret of the repository, can
/// open what it has just sealed. The wrapping of the key itself is not proved by that; `init` proves it once with
/// the real identity.
struct KeyKeeper<'a> {
    recipient: &'a x25519::Recipient,
    key: RefCell<Option<FileKey>>,
}

impl Recipient for KeyKeeper<'_> {
    fn wrap_file_key(&self, key: &FileKey) -> Result<(Vec<Stanza>, HashSet<String>), EncryptError> {
        self.key.replace(Some(copy_key(key)));
        self.recipient.wrap_file_key(key)
    }
}

/// The file key of a header that was just made, as the identity that opens it.
struct Header(FileKey);

impl Identity for Header {
    fn unwrap_stanza(&self, _: &Stanza) -> Option<Result<FileKey, DecryptError>> {
        Some(Ok(copy_key(&self.0)))
    }
}

/// An identity that keeps the file key which it unwraps.
struct KeyFinder<'a> {
    identity: &'a dyn Identity,
    key: RefCell<Option<FileKey>>,
}

impl Identity for KeyFinder<'_> {
    fn unwrap_stanza(&self, stanza: &Stanza) -> Option<Result<FileKey, DecryptError>> {
        let unwrapped = self.identity.unwrap_stanza(stanza);
        if let Some(Ok(key)) = &unwrapped {
            self.key.replace(Some(copy_key(key)));
        }
        unwrapped
    }
}

/// Lets one thread open segments with the repository identity.
pub struct Opener {
    codec: Box<dyn SegmentCodec>,
    identity: x25519::Identity,
}

impl Opener {
    /// For the codec that a manifest names.
    pub fn new(codec: &CodecInfo, identity: x25519::Identity) -> Result<Self, OpenerError> {
        Ok(Self { codec: Codec::from_info(codec)?.worker()?, identity })
    }

    /// Opens `sealed` into `plain`, which is cleared first. Nothing is decrypted before size and hash are those
    /// of the signed `row`. What `sealed` holds afterwards is of no use.
    pub fn open(&mut self, row: &SegmentRow, sealed: &mut Vec<u8>, plain: &mut Vec<u8>) -> Result<(), SealError> {
        check_stored(row, sealed)?;
        let damaged = |what: String| SealError::Damaged(what);
        let (key, payload) = open_age_header(sealed, &self.identity).map_err(|error| match error {
            FormatError::NoKey => damaged("it is sealed to another key than the repository's".into()),
            other => damaged(other.to_string()),
        })?;
        key.open(sealed, payload).map_err(|NotAuthentic| damaged("its content is not authentic".into()))?;
        let expected = usize::try_from(row.bytes()).map_err(|error| damaged(error.to_string()))?;
        self.codec
            .decompress(sealed, expected, plain)
            .map_err(|error| damaged(format!("it does not decompress: {error}")))?;
        if Hash::of(plain) == row.blake3() {
            Ok(())
        } else {
            Err(damaged("it opens to other bytes than were backed up".into()))
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
            opener.open(&row, &mut sealed.clone(), &mut out).unwrap();
            assert!(out == plain);
            let mut changed = sealed.clone();
            changed[sealed.len() / 2] ^= 1;
            assert!(matches!(opener.open(&row, &mut changed, &mut out), Err(SealError::Damaged(_))));
            let mut stranger = Opener::new(&codec.info(), x25519::Identity::generate()).unwrap();
            let error = stranger.open(&row, &mut sealed, &mut out).unwrap_err();
            assert!(error.to_string().contains("another key"), "{error}");
        }
    }

    #[test]
    fn sealed_segments_are_age_files_like_any_other() {
        let identity = x25519::Identity::generate();
        let mut noise = vec![0; 300_001];
        blake3::Hasher::new().finalize_xof().fill(&mut noise);
        for plain in [&noise[..], &noise[..65_536], &noise[..1]] {
            let mut sealed = Vec::new();
            let mut sealer = Sealer::new(Codec::None, identity.to_public(), true).unwrap();
            sealer.seal(plain, &mut sealed).unwrap();
            assert!(age_file::open(&sealed, &[&identity], 1 << 20).unwrap() == plain, "the age crate reads ours");
            let mut theirs = age_file::seal(plain, &[&identity.to_public()]).unwrap();
            let row = SegmentRow(plain.len() as u64, Hash::of(plain), theirs.len() as u64, Hash::of(&theirs));
            let mut out = Vec::new();
            Opener::new(&Codec::None.info(), identity.clone()).unwrap().open(&row, &mut theirs, &mut out).unwrap();
            assert!(out == plain, "we read the age crate's");
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
            fn reproduces(&mut self, stored: &[u8], plain: &[u8]) -> io::Result<bool> {
                Ok(stored == plain)
            }
        }
        let recipient = x25519::Identity::generate().to_public();
        let mut sealer = Sealer::new(Codec::None, recipient, true).unwrap();
        sealer.codec = Box::new(Broken);
        assert!(matches!(sealer.seal(&[1, 2, 3], &mut Vec::new()), Err(SealError::NotReproduced(_))));
    }
}
