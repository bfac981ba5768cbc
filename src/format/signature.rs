//! minisign signatures (Ed25519, prehashed; <https://jedisct1.github.io/minisign/>).

use std::fmt;
use std::io::Cursor;
use std::str::FromStr;

use minisign::{KeyPair, PublicKey, SecretKey, SecretKeyBox, SignatureBox};
use thiserror::Error;
use zeroize::Zeroizing;

use super::FormatError;

/// No signature file is larger (bytes).
pub const MAX_SIGNATURE: u64 = 4096;

/// Why a signature is not accepted.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum SignatureError {
    /// Not a minisign signature.
    #[error("its signature file is not readable")]
    Malformed,
    /// Made with another key.
    #[error("it is signed by somebody else (key {0}), not by the trusted signer (key {1})")]
    OtherSigner(String, String),
    /// The signed bytes are not these.
    #[error("its signature does not fit: the object was changed, or is not the signed one")]
    Mismatch,
    /// A good signature of another object.
    #[error("its signature was made for something else ({0})")]
    OtherObject(String),
}

/// Whose signatures are trusted: a minisign public key, `RW…`.
#[derive(Clone, PartialEq, Eq)]
pub struct Signer(PublicKey);

impl Signer {
    /// Checks `signature` over `bytes`, made for exactly `comment`.
    pub fn verify(&self, bytes: &[u8], signature: &[u8], comment: &str) -> Result<(), SignatureError> {
        let text =
            std::str::from_utf8(signature).ok().filter(|text| has_shape(text)).ok_or(SignatureError::Malformed)?;
        let signature = SignatureBox::from_string(text).map_err(|_| SignatureError::Malformed)?;
        if signature.keynum() != self.0.keynum() {
            return Err(SignatureError::OtherSigner(key_number(signature.keynum()), key_number(self.0.keynum())));
        }
        if !signature.is_prehashed() {
            return Err(SignatureError::Malformed);
        }
        minisign::verify(&self.0, &signature, Cursor::new(bytes), true, false, false)
            .map_err(|_| SignatureError::Mismatch)?;
        // A signature without a trusted comment passes the check above.
        let found = signature.trusted_comment().map_err(|_| SignatureError::Malformed)?;
        if found == comment { Ok(()) } else { Err(SignatureError::OtherObject(found.escape_debug().to_string())) }
    }
}

/// Four lines: a comment, 74 bytes in base64 (algorithm, key number, signature), the trusted comment, 64 bytes in
/// base64. The library takes shorter ones for granted and panics on them.
fn has_shape(text: &str) -> bool {
    let base64 = |line: &str, padded: usize, padding: usize| {
        line.len() == padded
            && line.bytes().take(padded - padding).all(|b| b.is_ascii_alphanumeric() || b == b'+' || b == b'/')
            && line.bytes().skip(padded - padding).all(|b| b == b'=')
    };
    let lines: Vec<_> = text.lines().collect();
    matches!(lines[..], [untrusted, signature, trusted, global] if untrusted.starts_with("untrusted comment: ")
        && base64(signature, 100, 1) && trusted.starts_with("trusted comment: ") && base64(global, 88, 2))
}

/// As minisign shows key numbers.
fn key_number(keynum: &[u8]) -> String {
    keynum.iter().rev().map(|byte| format!("{byte:02X}")).collect()
}

impl fmt::Display for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.to_base64())
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signer({self})")
    }
}

impl FromStr for Signer {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        PublicKey::from_base64(text.trim())
            .map(Self)
            .map_err(|_| FormatError::Malformed(format!("{text:?} is no minisign public key (RW…)")))
    }
}

/// The secret half, held by a backing-up host.
pub struct SigningKey(SecretKey);

impl SigningKey {
    /// A new key from the system's randomness.
    pub fn generate() -> Result<Self, FormatError> {
        let pair = KeyPair::generate_unencrypted_keypair();
        pair.map(|pair| Self(pair.sk))
            .map_err(|error| FormatError::Malformed(format!("no signing key could be made: {error}")))
    }

    /// The public half.
    pub fn signer(&self) -> Result<Signer, FormatError> {
        PublicKey::from_secret_key(&self.0).map(Signer).map_err(|error| FormatError::Malformed(error.to_string()))
    }

    /// Signs `bytes` for `comment` (one line).
    pub fn sign(&self, bytes: &[u8], comment: &str) -> Result<Vec<u8>, FormatError> {
        minisign::sign(None, &self.0, Cursor::new(bytes), Some(comment), Some("signature of a snapferry manifest"))
            .map(|signature| signature.into_string().into_bytes())
            .map_err(|error| FormatError::Malformed(format!("signing failed: {error}")))
    }

    /// The second line of a minisign secret key file without a password.
    pub fn to_text(&self) -> Result<Zeroizing<String>, FormatError> {
        let text = self.0.to_box(None).map_err(|error| FormatError::Malformed(error.to_string()))?.into_string();
        let text = Zeroizing::new(text);
        Ok(Zeroizing::new(text.lines().nth(1).unwrap_or_default().to_owned()))
    }

    /// Reads what [`Self::to_text`] wrote.
    pub fn from_text(text: &str) -> Result<Self, FormatError> {
        let file = format!("untrusted comment: minisign unencrypted secret key\n{}\n", text.trim());
        SecretKeyBox::from_string(&file)
            .and_then(SecretKeyBox::into_unencrypted_secret_key)
            .map(Self)
            .map_err(|_| FormatError::Malformed("the signing key is not readable".into()))
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_signed_bytes_by_the_signer_for_the_object_pass() {
        let key = SigningKey::generate().unwrap();
        let signer = key.signer().unwrap();
        let signature = key.sign(b"manifest", "snapferry:a:b").unwrap();
        assert_eq!(signer.verify(b"manifest", &signature, "snapferry:a:b"), Ok(()));
        assert_eq!(signer.verify(b"manifesT", &signature, "snapferry:a:b"), Err(SignatureError::Mismatch));
        assert!(matches!(signer.verify(b"manifest", &signature, "snapferry:a:c"), Err(SignatureError::OtherObject(_))));
        let other = SigningKey::generate().unwrap().signer().unwrap();
        assert!(matches!(other.verify(b"manifest", &signature, "snapferry:a:b"), Err(SignatureError::OtherSigner(..))));
        assert_eq!(signer.verify(b"manifest", b"", "snapferry:a:b"), Err(SignatureError::Malformed));
    }

    #[test]
    fn every_changed_byte_of_a_signature_is_noticed() {
        let key = SigningKey::generate().unwrap();
        let signer = key.signer().unwrap();
        let signature = key.sign(b"manifest", "snapferry:a:b").unwrap();
        let first_line = signature.iter().position(|byte| *byte == b'\n').unwrap();
        for position in first_line + 1..signature.len() - 1 {
            let mut changed = signature.clone();
            changed[position] ^= 2;
            assert!(signer.verify(b"manifest", &changed, "snapferry:a:b").is_err(), "byte {position}");
            assert!(signer.verify(b"manifest", &signature[..position], "snapferry:a:b").is_err(), "cut at {position}");
        }
    }

    #[test]
    fn keys_survive_as_text() {
        let key = SigningKey::generate().unwrap();
        let again = SigningKey::from_text(&key.to_text().unwrap()).unwrap();
        let signature = again.sign(b"x", "c").unwrap();
        let signer: Signer = key.signer().unwrap().to_string().parse().unwrap();
        assert_eq!(signer.verify(b"x", &signature, "c"), Ok(()));
        assert!(SigningKey::from_text("RWQ").is_err());
        assert!(!format!("{key:?}").contains(key.to_text().unwrap().as_str()));
    }
}
