//! age v1 files (age-encryption.org/v1), made and read by the `age` crate. No cipher code of our own.

use std::io::{self, Read, Write};

use age::{DecryptError, Decryptor, EncryptError, Encryptor, Identity, Recipient};

use super::FormatError;

/// What an age file adds to its plaintext, at the most, for a handful of recipients: header, and 16 bytes for
/// each 64 KiB chunk. Bounds what is fetched on the word of a manifest row.
pub fn max_sealed_len(plain: u64) -> u64 {
    plain + (plain / 65_536 + 1) * 16 + 16_384
}

/// Encrypts `plain` to all `recipients`, into a buffer that is cleared first.
pub fn seal_into(plain: &[u8], recipients: &[&dyn Recipient], sealed: &mut Vec<u8>) -> Result<(), EncryptError> {
    sealed.clear();
    sealed.reserve(usize::try_from(max_sealed_len(plain.len() as u64)).unwrap_or(0));
    let encryptor = Encryptor::with_recipients(recipients.iter().copied())?;
    let mut writer = encryptor.wrap_output(sealed)?;
    writer.write_all(plain)?;
    writer.finish()?;
    Ok(())
}

/// Encrypts `plain` to all `recipients`.
pub fn seal(plain: &[u8], recipients: &[&dyn Recipient]) -> Result<Vec<u8>, EncryptError> {
    let mut sealed = Vec::new();
    seal_into(plain, recipients, &mut sealed)?;
    Ok(sealed)
}

/// Opens an age file with the first of `identities` that fits, into a buffer that is cleared first. At most
/// `limit` bytes of plaintext are taken.
pub fn open_into(
    sealed: &[u8],
    identities: &[&dyn Identity],
    limit: u64,
    plain: &mut Vec<u8>,
) -> Result<(), FormatError> {
    plain.clear();
    let decryptor = Decryptor::new_buffered(sealed).map_err(sort_decrypt_error)?;
    let reader = decryptor.decrypt(identities.iter().copied()).map_err(sort_decrypt_error)?;
    reader.take(limit.saturating_add(1)).read_to_end(plain).map_err(|error| sort_read_error(&error))?;
    if plain.len() as u64 > limit {
        return Err(FormatError::Inconsistent(format!("it holds more than the {limit} bytes that are allowed")));
    }
    Ok(())
}

/// Opens an age file with the first of `identities` that fits.
pub fn open(sealed: &[u8], identities: &[&dyn Identity], limit: u64) -> Result<Vec<u8>, FormatError> {
    let mut plain = Vec::new();
    open_into(sealed, identities, limit, &mut plain)?;
    Ok(plain)
}

/// What the age crate's refusal means here.
pub fn sort_decrypt_error(error: DecryptError) -> FormatError {
    match error {
        DecryptError::NoMatchingKeys | DecryptError::KeyDecryptionFailed => FormatError::NoKey,
        DecryptError::DecryptionFailed => FormatError::NoKey,
        DecryptError::InvalidHeader => FormatError::Damaged("it is no age file".into()),
        DecryptError::InvalidMac => FormatError::Damaged("its header is not authentic".into()),
        DecryptError::UnknownFormat => FormatError::Damaged("it is no age v1 file".into()),
        DecryptError::Io(error) => sort_read_error(&error),
        other => FormatError::Damaged(one_line(&other.to_string())),
    }
}

fn sort_read_error(error: &io::Error) -> FormatError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => FormatError::Damaged("it ends too early".into()),
        _ => FormatError::Damaged("its content is not authentic".into()),
    }
}

/// Messages of the age crate span lines; an error here is one.
pub fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_only_with_the_key_and_only_unchanged() {
        let identity = age::x25519::Identity::generate();
        let recipient = identity.to_public();
        let plain: Vec<u8> = (0..200_000u32).map(|n| n as u8).collect();
        let sealed = seal(&plain, &[&recipient]).unwrap();
        assert!(sealed.len() as u64 <= max_sealed_len(plain.len() as u64));
        assert_eq!(open(&sealed, &[&identity], 200_000).unwrap(), plain);
        assert!(matches!(open(&sealed, &[&identity], 199_999), Err(FormatError::Inconsistent(_))));
        assert_eq!(open(&sealed, &[&age::x25519::Identity::generate()], 1 << 20), Err(FormatError::NoKey));
        for position in [0, 30, 100, 200, sealed.len() / 2, sealed.len() - 1] {
            let mut changed = sealed.clone();
            changed[position] ^= 1;
            assert!(open(&changed, &[&identity], 1 << 20).is_err(), "byte {position}");
        }
        for length in [0, 10, 150, 65_536, sealed.len() - 1] {
            assert!(open(&sealed[..length], &[&identity], 1 << 20).is_err(), "cut to {length}");
        }
    }
}
