//! The repository identity, its slots, and the writer key.

use std::str::FromStr;

use age::secrecy::{ExposeSecret, SecretString};
use age::x25519;
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use zeroize::Zeroizing;

use super::FormatError;
use super::signature::{Signer, SigningKey};

/// No slot is larger (bytes).
pub const MAX_SLOT: u64 = 64 * 1024;

/// The scrypt work factor (log2 of N) that is accepted from a slot at the most: about ten seconds and 1 GiB.
/// A slot comes from a host that nobody trusts, which could ask for hours otherwise.
pub const MAX_SCRYPT_WORK_FACTOR: u8 = 20;

/// What a slot holds when it is opened.
pub struct SlotContent {
    /// The repository that the slot belongs to.
    pub repository: Uuid,
    /// Whose manifests are trusted.
    pub signer: Signer,
    /// The secret that opens every segment and manifest.
    pub identity: x25519::Identity,
}

impl SlotContent {
    /// An age identity file with two comment lines.
    pub fn to_text(&self) -> Zeroizing<String> {
        let secret = self.identity.to_string();
        Zeroizing::new(format!(
            "# repository: {}\n# signer: {}\n{}\n",
            self.repository,
            self.signer,
            secret.expose_secret()
        ))
    }

    /// Reads what [`Self::to_text`] wrote.
    pub fn from_text(text: &str) -> Result<Self, FormatError> {
        let missing = |what: &str| FormatError::Malformed(format!("the slot names no {what}"));
        let comment = |key: &str| {
            text.lines().find_map(|line| line.strip_prefix("# ")?.strip_prefix(key)?.strip_prefix(": ").map(str::trim))
        };
        let repository = comment("repository").ok_or_else(|| missing("repository"))?;
        let signer = comment("signer").ok_or_else(|| missing("signer"))?;
        let secret =
            text.lines().find(|line| line.starts_with("AGE-SECRET-KEY-1")).ok_or_else(|| missing("identity"))?;
        Ok(Self {
            repository: repository
                .parse()
                .map_err(|_| FormatError::Malformed("the slot's repository is no uuid".into()))?,
            signer: signer.parse()?,
            identity: parse_identity(secret)?,
        })
    }
}

/// An `AGE-SECRET-KEY-1…`; errors never quote it.
pub fn parse_identity(text: &str) -> Result<x25519::Identity, FormatError> {
    x25519::Identity::from_str(text.trim())
        .map_err(|_| FormatError::Malformed("the age identity is not readable".into()))
}

/// An `age1…`.
pub fn parse_recipient(text: &str) -> Result<x25519::Recipient, FormatError> {
    x25519::Recipient::from_str(text.trim())
        .map_err(|_| FormatError::Malformed(format!("{text:?} is no age recipient (age1…)")))
}

/// What a backing-up host holds: it can add backups and read manifests, and opens no data.
pub struct WriterKey {
    /// The repository that it writes to.
    pub repository: Uuid,
    /// The recipient of the repository identity.
    pub recipient: String,
    /// The writer's name in manifests.
    pub writer: Uuid,
    /// Opens manifests, and nothing else.
    pub catalogue: x25519::Identity,
    /// Signs manifests.
    pub signing: SigningKey,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WriterKeyFile<'a> {
    repository: Uuid,
    recipient: &'a str,
    writer: Uuid,
    catalogue: &'a str,
    signing: &'a str,
}

impl WriterKey {
    /// A new writer's key.
    pub fn generate(repository: Uuid, recipient: String) -> Result<Self, FormatError> {
        Ok(Self {
            repository,
            recipient,
            writer: Uuid::new_v4(),
            catalogue: x25519::Identity::generate(),
            signing: SigningKey::generate()?,
        })
    }

    /// As kept in the profile folder (JSON).
    pub fn to_text(&self) -> Result<Zeroizing<String>, FormatError> {
        let catalogue: SecretString = self.catalogue.to_string();
        let signing = self.signing.to_text()?;
        let file = WriterKeyFile {
            repository: self.repository,
            recipient: &self.recipient,
            writer: self.writer,
            catalogue: catalogue.expose_secret(),
            signing: &signing,
        };
        let text = serde_json::to_string_pretty(&file).map_err(|error| FormatError::Malformed(error.to_string()))?;
        Ok(Zeroizing::new(text + "\n"))
    }

    /// Reads what [`Self::to_text`] wrote; errors never quote it.
    pub fn from_text(text: &str) -> Result<Self, FormatError> {
        let file: WriterKeyFile<'_> = serde_json::from_str(text)
            .map_err(|error| FormatError::Malformed(format!("not readable at line {}", error.line())))?;
        Ok(Self {
            repository: file.repository,
            recipient: file.recipient.to_owned(),
            writer: file.writer,
            catalogue: parse_identity(file.catalogue)?,
            signing: SigningKey::from_text(file.signing)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_survive_as_text_and_are_age_identity_files() {
        let signing = SigningKey::generate().unwrap();
        let content = SlotContent {
            repository: Uuid::new_v4(),
            signer: signing.signer().unwrap(),
            identity: x25519::Identity::generate(),
        };
        let text = content.to_text();
        let again = SlotContent::from_text(&text).unwrap();
        assert_eq!(again.repository, content.repository);
        assert_eq!(again.signer, content.signer);
        assert_eq!(again.identity.to_public().to_string(), content.identity.to_public().to_string());
        let file = age::IdentityFile::from_buffer(text.as_bytes()).unwrap();
        assert_eq!(file.into_identities().unwrap().len(), 1);
        for part in ["repository", "signer", "AGE-SECRET-KEY-1"] {
            let broken: String =
                text.lines().filter(|line| !line.contains(part)).map(|line| format!("{line}\n")).collect();
            assert!(SlotContent::from_text(&broken).is_err(), "without {part}");
        }
    }

    #[test]
    fn writer_keys_survive_as_text() {
        let key = WriterKey::generate(Uuid::new_v4(), "age1".into()).unwrap();
        let again = WriterKey::from_text(&key.to_text().unwrap()).unwrap();
        assert_eq!(again.writer, key.writer);
        assert_eq!(again.signing.signer().unwrap(), key.signing.signer().unwrap());
        let Err(error) = WriterKey::from_text("{\"writer\": \"AGE-SECRET-KEY-1SECRET\"}") else { panic!("accepted") };
        assert!(!error.to_string().contains("SECRET"), "{error}");
    }
}
