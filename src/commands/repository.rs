//! A repository, found by profile or URL, whose descriptor agrees with what this machine trusts.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use age::x25519;
use anyhow::{Context as _, Result};
use uuid::Uuid;

use super::Context;
use super::catalogue::{Catalogue, Reader, Rows};
use super::seen::Seen;
use crate::error::{Exit, Problem};
use crate::format::age_file;
use crate::format::descriptor::{Descriptor, MAX_DESCRIPTOR};
use crate::format::keys::{WriterKey, parse_recipient};
use crate::format::names;
use crate::format::signature::Signer;
use crate::profile::{Profile, is_profile_name, load_writer_key};
use crate::store::location::Location;
use crate::store::{self, Store, StoreError, StoreErrorKind, StoreOptions};

/// Transfers at once, unless told otherwise: two ssh sessions with two objects each.
const DEFAULT_CONNECTIONS: usize = 4;

/// A repository whose descriptor was read and agrees with the profile, if there is one.
pub struct Repository {
    /// Where objects live.
    pub store: Arc<dyn Store>,
    /// What it says of itself, which agrees with what is trusted here.
    pub descriptor: Descriptor,
    /// Where that is.
    pub location: Location,
    /// As the person named it.
    pub named: String,
    /// Its uuid.
    pub uuid: Uuid,
    /// What segments are sealed to.
    pub recipient: x25519::Recipient,
    /// Whose signatures are trusted; `None` when nothing on this machine says so.
    pub signer: Option<Signer>,
    /// What this machine backs up with, if it does.
    pub writer: Option<WriterKey>,
    /// Its profile, if it was named by one.
    pub profile: Option<Profile>,
    /// The folder of its state.
    pub state: PathBuf,
    /// Transfers at once.
    pub connections: usize,
}

impl Repository {
    /// By a profile's name or a URL.
    pub fn open(context: &Context, named: &str, writer_key: Option<&Path>) -> Result<Self> {
        let profile = find_profile(context, named)?;
        let url = profile.as_ref().map_or(named, |profile| profile.url.as_str());
        let location: Location = url.parse().map_err(|error| Problem::new(Exit::Usage, format!("{error}")))?;
        let writer = match (writer_key, &profile) {
            (Some(file), _) => Some(load_writer_key(file)?),
            (None, Some(profile)) => profile.writer_key(&context.places)?,
            (None, None) => None,
        };
        let connections =
            context.connections.or(profile.as_ref().and_then(|profile| profile.connections.map(usize::from)));
        let connections = connections.unwrap_or(DEFAULT_CONNECTIONS);
        let store = open_store(context, &location, profile.as_ref(), connections)?;
        let descriptor = read_descriptor(store.as_ref(), &location)?;
        let trusted = Trusted::of(profile.as_ref(), writer.as_ref())?;
        let recipient = trusted.check(&descriptor, &location)?;
        Ok(Self {
            state: context.places.state_of(&descriptor.repository),
            uuid: descriptor.repository,
            descriptor,
            named: named.to_owned(),
            signer: trusted.signer,
            location,
            store,
            recipient,
            writer,
            profile,
            connections,
        })
    }

    /// What a failed store operation means to a person.
    pub fn store_problem(&self, error: StoreError) -> anyhow::Error {
        store_problem(error, &self.location)
    }

    /// [`Self::load_catalogue`] for commands that only read: a memory that can't be read must not keep anybody from his
    /// backups. `None`: whether any are missed can't be told, which was said.
    pub fn load_catalogue_to_read(&self, context: &Context, reader: &Reader) -> Result<(Catalogue, Option<usize>)> {
        if let Err(error) = Seen::load(&self.state) {
            context.warn(&format!("{error:#}; whether backups were taken away since can't be told"));
            return Ok((Catalogue::load(self, reader, Rows::Drop)?, None));
        }
        let (catalogue, _, missed) = self.load_catalogue(context, reader)?;
        Ok((catalogue, Some(missed)))
    }

    /// What this machine's writer key reads manifests with.
    pub fn writer_reader(&self) -> Option<Reader> {
        let writer = self.writer.as_ref()?;
        Some(Reader { identity: writer.catalogue.clone(), signer: self.signer.clone()? })
    }

    /// Loads the catalogue and compares it with what this machine saw before. Returns how many backups are missed,
    /// each of which was reported.
    pub fn load_catalogue(&self, context: &Context, reader: &Reader) -> Result<(Catalogue, Seen, usize)> {
        let catalogue = Catalogue::load(self, reader, Rows::Drop)?;
        let mut seen = Seen::load(&self.state)?;
        let missed = seen.missed(&catalogue);
        for (id, backup) in &missed {
            context.warn(&format!(
                "backup {id} (number {} of its writer) was in this repository before and is gone: it was removed elsewhere, \
                 or an older state was put back; snapferry check --accept {} accepts that",
                backup.sequence, self.named
            ));
        }
        // A memory that can't be kept (a read-only rescue system) must not stop a restore.
        if !context.dry_run
            && let Err(error) = seen.remember(&catalogue)
        {
            context.warn(&format!("what was seen in the repository can't be remembered: {error:#}"));
        }
        Ok((catalogue, seen, missed.len()))
    }

    /// Seals what this machine writes down for itself and for whoever restores, and signs it. Proves both before anything
    /// is stored. Returns the sealed bytes and the signature.
    pub fn seal(&self, writer: &WriterKey, plain: &[u8], comment: &str, limit: u64) -> Result<(Vec<u8>, Vec<u8>)> {
        let recipients: [&dyn age::Recipient; 2] = [&self.recipient, &writer.catalogue.to_public()];
        let sealed = age_file::seal(plain, &recipients).context("it can't be sealed")?;
        let signature = writer.signing.sign(&sealed, comment)?;
        writer.signing.signer()?.verify(&sealed, &signature, comment).context("its own signature does not hold")?;
        let again = age_file::open(&sealed, &[&writer.catalogue], limit).context("it does not open again")?;
        if again != plain {
            anyhow::bail!("it does not read as it was written");
        }
        Ok((sealed, signature))
    }

    /// That the repository is still there: a disk that was unmounted meanwhile leaves a folder that takes everything.
    pub fn confirm(&self) -> Result<()> {
        let descriptor = read_descriptor(self.store.as_ref(), &self.location)?;
        if descriptor.repository == self.uuid {
            return Ok(());
        }
        Err(Problem::new(Exit::Failed, format!("another repository came to be at {} meanwhile", self.location)).into())
    }

    /// Tells of manifests that can't be used, where their absence decides something: a newer backup would have been
    /// restored, or been the base. Returns how many there are.
    pub fn warn_of_damaged(context: &Context, catalogue: &Catalogue) -> usize {
        for damaged in &catalogue.damaged {
            context.warn(&format!("backup {} can't be used: {}", damaged.id, damaged.reason));
        }
        catalogue.damaged.len()
    }
}

/// What this machine trusts of a repository before it talks to it.
struct Trusted {
    repository: Option<(Uuid, String)>,
    signer: Option<Signer>,
}

impl Trusted {
    fn of(profile: Option<&Profile>, writer: Option<&WriterKey>) -> Result<Self> {
        let own = writer.map(|writer| (writer.repository, writer.recipient.clone()));
        let Some(profile) = profile else {
            let signer = writer.map(|writer| writer.signing.signer()).transpose()?;
            return Ok(Self { repository: own, signer });
        };
        let said = (profile.repository, profile.recipient.clone());
        if own.is_some_and(|own| own != said) {
            return Err(
                Problem::new(Exit::Usage, "the writer key belongs to another repository than the profile").into()
            );
        }
        Ok(Self { repository: Some(said), signer: Some(profile.signer()?) })
    }

    /// The descriptor comes from a host that nobody trusts: it may only confirm what is known.
    fn check(&self, descriptor: &Descriptor, location: &Location) -> Result<x25519::Recipient> {
        if let Some((uuid, recipient)) = &self.repository
            && (descriptor.repository != *uuid || descriptor.recipient != *recipient)
        {
            let message = format!(
                "the repository at {location} is not the one that this machine knows: it says it is {}, and {uuid} is expected{}",
                descriptor.repository,
                if descriptor.repository == *uuid { ", with another recipient" } else { "" }
            );
            return Err(Problem::new(Exit::NoKey, message)
                .hint("another repository was put in its place, or the profile's url points elsewhere; nothing was read or written")
                .into());
        }
        parse_recipient(&descriptor.recipient).map_err(|error| anyhow::anyhow!("the descriptor at {location}: {error}"))
    }
}

fn find_profile(context: &Context, named: &str) -> Result<Option<Profile>> {
    if !is_profile_name(named) {
        return Ok(None);
    }
    Profile::load(&context.places, named).map(Some)
}

/// The store of a location, with what the command line and the profile say of it.
pub fn open_store(
    context: &Context,
    location: &Location,
    profile: Option<&Profile>,
    connections: usize,
) -> Result<Arc<dyn Store>> {
    if let Some(store) = &context.store {
        return Ok(Arc::clone(store));
    }
    let of_profile = profile.and_then(|profile| profile.ssh_command.clone());
    let ssh_command = context.ssh_command.clone().or(of_profile).unwrap_or_else(|| vec!["ssh".to_owned()]);
    store::open(location, &StoreOptions { ssh_command, connections }).map_err(|error| store_problem(error, location))
}

fn read_descriptor(store: &dyn Store, location: &Location) -> Result<Descriptor> {
    let bytes = store.get(names::DESCRIPTOR, MAX_DESCRIPTOR).map_err(|error| match error.kind {
        StoreErrorKind::NotFound => Problem::new(Exit::Missing, format!("there is no repository at {location}"))
            .hint("snapferry init makes one; if it should be there, look at the path, or whether the disk is mounted")
            .into(),
        _ => store_problem(error, location),
    })?;
    Descriptor::from_bytes(&bytes)
        .map_err(|error| anyhow::anyhow!("the descriptor of the repository at {location}: {error}"))
}

/// What a failed store operation means to a person.
pub fn store_problem(error: StoreError, location: &Location) -> anyhow::Error {
    let hint = match error.kind {
        StoreErrorKind::Denied => "look at the account, its key and the permissions at the far end",
        StoreErrorKind::Full => "there is no space or quota left at the far end",
        StoreErrorKind::Transient => {
            "the connection failed again and again; run the same command later (a backup goes on where it was)"
        }
        _ => return Problem::new(Exit::Failed, format!("{location}: {error}")).into(),
    };
    Problem::new(Exit::Failed, format!("{location}: {error}")).hint(hint).into()
}
