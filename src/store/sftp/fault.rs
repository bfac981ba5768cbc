//! What went wrong inside this store, before it is known which operation it belongs to.

use std::time::Duration;

use openssh_sftp_client::Error as SftpError;
use openssh_sftp_client::error::SftpErrorKind;

use super::text::harmless;
use crate::store::{StoreError, StoreErrorKind};

/// A failed step.
#[derive(Clone, Debug)]
pub struct Fault {
    /// How the caller of the store will see it.
    pub kind: StoreErrorKind,
    /// The cause in words.
    pub message: String,
    /// What it means for the session and for the steps after it.
    pub nature: Nature,
}

/// What a fault says beyond its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nature {
    /// The session is of no use any more.
    Lost,
    /// The server answered with its "failure", which has no reason: a full disk looks like this, and so does a
    /// name that is taken.
    Unexplained,
    /// The server or its file system can't do this.
    Unsupported,
    /// An answer that says what it means.
    Plain,
}

impl Fault {
    /// A fault that says what it means.
    pub fn new(kind: StoreErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), nature: Nature::Plain }
    }

    /// The end of a session.
    pub fn lost(kind: StoreErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), nature: Nature::Lost }
    }

    /// A session on which nothing moved.
    pub fn stalled(place: &str, limit: Duration) -> Self {
        let message = format!("connection to {place} given up: no byte came or went for {} s", limit.as_secs_f32());
        Self::lost(StoreErrorKind::Transient, message)
    }

    /// An object that is not what the server said it was a moment ago.
    pub fn changed(message: &str) -> Self {
        Self::new(StoreErrorKind::Broken, format!("the object changed while it was read: {message}"))
    }

    /// Whether the thing asked about is simply not there.
    pub fn is_not_found(&self) -> bool {
        self.kind == StoreErrorKind::NotFound
    }

    /// Whether the session ended with this.
    pub fn is_lost(&self) -> bool {
        self.nature == Nature::Lost
    }

    /// Names the operation.
    pub fn into_error(self, operation: &'static str, name: &str) -> StoreError {
        StoreError::new(self.kind, operation, name, self.message)
    }
}

impl From<SftpError> for Fault {
    fn from(error: SftpError) -> Self {
        match error {
            SftpError::SftpError(code, message) => refused(code, message.get().0),
            SftpError::UnsupportedExtension(name) => Self {
                kind: StoreErrorKind::Broken,
                message: format!("the server does not offer {name}"),
                nature: Nature::Unsupported,
            },
            other => Self::lost(StoreErrorKind::Transient, harmless(other.to_string().as_bytes(), 200)),
        }
    }
}

fn refused(code: SftpErrorKind, words: &str) -> Fault {
    use StoreErrorKind as Kind;
    let words = match harmless(words.as_bytes(), 200) {
        words if words.is_empty() => "no words".to_owned(),
        words => words,
    };
    let (kind, nature, message) = match code {
        SftpErrorKind::NoSuchFile => (Kind::NotFound, Nature::Plain, "no such file or folder".to_owned()),
        SftpErrorKind::PermDenied => (Kind::Denied, Nature::Plain, format!("the server refuses: {words}")),
        SftpErrorKind::OpUnsupported => {
            (Kind::Broken, Nature::Unsupported, format!("the server can't do this: {words}"))
        }
        SftpErrorKind::Failure => {
            (Kind::Broken, Nature::Unexplained, format!("the server failed without a reason: {words}"))
        }
        _ => (Kind::Broken, Nature::Plain, format!("the server answered with an error: {words}")),
    };
    Fault { kind, message, nature }
}
