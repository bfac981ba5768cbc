//! The payload of an age file (age-encryption.org/v1): STREAM, ChaCha20-Poly1305 in chunks of 64 KiB under a key
//! derived from the file key, with *ring* as the cipher.
//!
//! Headers, and with them everything that concerns keys, are the `age` crate's. Its payload code takes twice the
//! time for the same bytes (no room for the output, a wiped buffer for each chunk), which is most of the work on
//! streams that don't compress; see `docs/performance.md`.

use age::secrecy::ExposeSecret;
use age_core::format::FileKey;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};

/// Plaintext bytes in a chunk.
const CHUNK: usize = 64 * 1024;
/// Bytes of a chunk's authentication tag.
const TAG: usize = 16;
/// Bytes of the random nonce between header and payload, which the key is derived with.
pub const SALT: usize = 16;

/// Why a payload does not open, without a word more than an attacker may know.
#[derive(Debug, PartialEq, Eq)]
pub struct NotAuthentic;

/// The key of one payload.
pub struct PayloadKey(LessSafeKey);

impl PayloadKey {
    /// HKDF-SHA-256 of the file key with the payload's own nonce.
    pub fn derive(file_key: &FileKey, salt: &[u8]) -> Result<Self, NotAuthentic> {
        let key = zeroize::Zeroizing::new(age_core::primitives::hkdf(salt, b"payload", file_key.expose_secret()));
        UnboundKey::new(&CHACHA20_POLY1305, key.as_slice())
            .map(|key| Self(LessSafeKey::new(key)))
            .map_err(|_| NotAuthentic)
    }

    /// Seals `plain` and appends it to `out`. Each chunk is handed to `after` while it is still near the processor.
    pub fn seal<E: From<NotAuthentic>>(
        &self,
        plain: &[u8],
        out: &mut Vec<u8>,
        mut after: impl FnMut(&Chunk<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let count = plain.len().div_ceil(CHUNK).max(1);
        out.reserve(plain.len() + count * TAG);
        for number in 0..count {
            let chunk = plain.chunks(CHUNK).nth(number).unwrap_or_default();
            let (from, last) = (out.len(), number + 1 == count);
            out.extend_from_slice(chunk);
            let sealed = self.0.seal_in_place_separate_tag(nonce(number, last), Aad::empty(), &mut out[from..]);
            out.extend_from_slice(sealed.map_err(|_| NotAuthentic)?.as_ref());
            after(&Chunk { number, last, plain: chunk, sealed: &out[from..] })?;
        }
        Ok(())
    }

    /// Whether a sealed chunk opens to exactly its plaintext; `scratch` is memory for one chunk.
    pub fn opens_to(&self, chunk: &Chunk<'_>, scratch: &mut Vec<u8>) -> bool {
        scratch.clear();
        scratch.extend_from_slice(chunk.sealed);
        let opened = self.0.open_in_place(nonce(chunk.number, chunk.last), Aad::empty(), scratch);
        opened.is_ok_and(|opened| *opened == *chunk.plain)
    }

    /// Opens the payload that begins at `from` in `sealed`, in its place: `sealed` holds the plaintext alone then,
    /// or nothing, if any chunk is not authentic.
    pub fn open(&self, sealed: &mut Vec<u8>, from: usize) -> Result<(), NotAuthentic> {
        let opened = self.open_chunks(sealed, from);
        sealed.truncate(*opened.as_ref().unwrap_or(&0));
        opened.map(drop)
    }

    fn open_chunks(&self, sealed: &mut [u8], from: usize) -> Result<usize, NotAuthentic> {
        let payload = sealed.len().checked_sub(from).filter(|length| *length > 0).ok_or(NotAuthentic)?;
        let count = payload.div_ceil(CHUNK + TAG);
        let mut end = 0;
        for number in 0..count {
            let chunk = from + number * (CHUNK + TAG);
            let until = sealed.len().min(chunk + CHUNK + TAG);
            let nonce = nonce(number, number + 1 == count);
            let opened = self.0.open_within(nonce, Aad::empty(), &mut sealed[end..until], chunk - end..);
            let length = opened.map_err(|_| NotAuthentic)?.len();
            // Only a payload of nothing has an empty chunk: anything else is not how age writes it.
            if length == 0 && number > 0 {
                return Err(NotAuthentic);
            }
            end += length;
        }
        Ok(end)
    }
}

/// A chunk that was just sealed.
pub struct Chunk<'a> {
    number: usize,
    last: bool,
    plain: &'a [u8],
    /// With its tag.
    pub sealed: &'a [u8],
}

/// An 11-byte big-endian counter and a byte that marks the last chunk.
fn nonce(number: usize, last: bool) -> Nonce {
    let mut bytes = [0u8; 12];
    bytes[3..11].copy_from_slice(&(number as u64).to_be_bytes());
    bytes[11] = u8::from(last);
    Nonce::assume_unique_for_key(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> PayloadKey {
        PayloadKey::derive(&FileKey::new(Box::new([7; 16])), &[9; SALT]).unwrap()
    }

    fn sealed(plain: &[u8]) -> Vec<u8> {
        let mut payload = b"header".to_vec();
        let mut scratch = Vec::new();
        let check = |chunk: &Chunk<'_>| if key().opens_to(chunk, &mut scratch) { Ok(()) } else { Err(NotAuthentic) };
        key().seal(plain, &mut payload, check).unwrap();
        payload
    }

    fn opened(payload: &[u8]) -> Result<Vec<u8>, NotAuthentic> {
        let mut buffer = payload.to_vec();
        let result = key().open(&mut buffer, 6);
        assert!(result.is_ok() || buffer.is_empty(), "nothing that is not authentic may be left");
        result.map(|()| buffer)
    }

    #[test]
    fn chunks_can_be_neither_changed_nor_cut_nor_moved() {
        for length in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 3 * CHUNK + 5] {
            let plain: Vec<u8> = (0..length).map(|n| (n % 253) as u8).collect();
            let payload = sealed(&plain);
            assert!(opened(&payload).unwrap() == plain, "{length}");
            for bad in [6, 6 + length / 2, 6 + length, payload.len() - 1] {
                let mut changed = payload.clone();
                changed[bad] ^= 4;
                assert_eq!(opened(&changed), Err(NotAuthentic), "{length} {bad}");
                assert_eq!(opened(&payload[..bad]), Err(NotAuthentic), "{length} cut to {bad}");
            }
            if length == 3 * CHUNK {
                let mut swapped = payload.clone();
                swapped[6..].rotate_left(CHUNK + TAG);
                assert_eq!(opened(&swapped), Err(NotAuthentic));
                assert_eq!(opened(&payload[..6 + 2 * (CHUNK + TAG)]), Err(NotAuthentic), "whole chunks cut off");
            }
        }
    }

    #[test]
    fn a_chunk_that_does_not_open_to_its_plaintext_is_told() {
        let payload = sealed(b"plain");
        let chunk = |plain, number, last| Chunk { number, last, plain, sealed: &payload[6..] };
        let mut scratch = Vec::new();
        assert!(key().opens_to(&chunk(b"plain", 0, true), &mut scratch));
        assert!(!key().opens_to(&chunk(b"plaiN", 0, true), &mut scratch));
        assert!(!key().opens_to(&chunk(b"plain", 1, true), &mut scratch));
        assert!(!key().opens_to(&chunk(b"plain", 0, false), &mut scratch));
    }
}
