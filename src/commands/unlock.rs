//! Gets the repository identity out of a slot.

use std::io::IsTerminal;
use std::path::PathBuf;

use age::{Decryptor, Identity, scrypt, x25519};
use anyhow::Result;

use super::Context;
use super::catalogue::{Reader, is_of_the_object};
use super::repository::Repository;
use super::secrets::{self, PassphraseSource};
use super::seen::Seen;
use crate::cli::OpenWith;
use crate::error::{Exit, Problem};
use crate::format::keys::{MAX_SCRYPT_WORK_FACTOR, MAX_SLOT, SlotContent};
use crate::format::signature::Signer;
use crate::format::{age_file, names};

/// More slots than this are not looked at: each may cost a second.
const MAX_SLOTS: usize = 100;

/// A slot as it was fetched.
pub struct Slot {
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub sealed: Vec<u8>,
    /// Sealed to a passphrase.
    pub is_passphrase: bool,
}

/// Fetches all slots. One that can't be read is passed over, aloud: anybody may have put it there.
pub fn slots(repository: &Repository) -> Result<Vec<Slot>> {
    let listed = repository.store.list(names::KEYS).map_err(|error| repository.store_problem(error))?;
    let named = listed.iter().filter_map(|object| Some((names::parse_slot(&object.name)?.to_owned(), object)));
    let fetched =
        named.take(MAX_SLOTS).filter_map(|(name, object)| match repository.store.get(&object.name, MAX_SLOT) {
            Err(error) if is_of_the_object(&error) => {
                tracing::warn!("{error}");
                None
            }
            Err(error) => Some(Err(repository.store_problem(error))),
            Ok(sealed) => {
                let is_passphrase = Decryptor::new_buffered(&sealed[..]).is_ok_and(|decryptor| decryptor.is_scrypt());
                Some(Ok(Slot { name, sealed, is_passphrase }))
            }
        });
    fetched.collect()
}

/// An opened repository: the identity, the slot it came from, and whether a passphrase vouches for the slot.
pub struct Unlocked {
    /// Opens every segment and manifest.
    pub identity: x25519::Identity,
    /// The slot; `None` when the repository identity itself was given.
    pub slot: Option<String>,
    /// What the slot says of the signer.
    pub slot_signer: Option<Signer>,
    /// The slot was opened with a passphrase, which authenticates what is in it.
    pub by_passphrase: bool,
}

/// Whether anything was given that opens a repository.
pub fn is_given(open: &OpenWith) -> bool {
    !open.identity.is_empty() || open.passphrase_file.is_some() || open.passphrase_command.is_some() || open.passphrase
}

/// Opens a slot with what was given, what the profile names, or a passphrase from the terminal.
pub fn unlock(context: &Context, repository: &Repository, open: &OpenWith) -> Result<Unlocked> {
    let mut files = open.identity.clone();
    if !is_given(open) {
        files.extend(repository.profile.as_ref().and_then(|profile| profile.identity.clone()));
    }
    for identity in secrets::plain_identities(&files) {
        if identity.to_public().to_string() == repository.recipient.to_string() {
            return Ok(Unlocked { identity, slot: None, slot_signer: None, by_passphrase: false });
        }
    }
    let slots = slots(repository)?;
    let identities = secrets::identities(&files)?;
    let borrowed: Vec<&dyn Identity> = identities.iter().map(AsRef::as_ref).collect();
    for slot in slots.iter().filter(|slot| !slot.is_passphrase && !borrowed.is_empty()) {
        if let Some(unlocked) = try_slot(context, repository, slot, &borrowed)? {
            return Ok(unlocked);
        }
    }
    let asked = open.passphrase
        || (files.is_empty() && std::io::stdin().is_terminal() && slots.iter().any(|slot| slot.is_passphrase));
    let prompt = (asked && open.passphrase_file.is_none() && open.passphrase_command.is_none())
        .then_some(PassphraseSource::Prompt { what: "Passphrase", confirm: false });
    let source = secrets::source(open.passphrase_file.as_ref(), open.passphrase_command.as_ref(), prompt)?;
    let Some(source) = source else { return Err(nothing_opens(repository, &slots, &files, !files.is_empty())) };
    let mut identity = scrypt::Identity::new(secrets::passphrase(context, &source)?);
    identity.set_max_work_factor(MAX_SCRYPT_WORK_FACTOR);
    for slot in slots.iter().filter(|slot| slot.is_passphrase) {
        if let Some(unlocked) = try_slot(context, repository, slot, &[&identity])? {
            return Ok(unlocked);
        }
    }
    Err(nothing_opens(repository, &slots, &files, true))
}

fn try_slot(
    context: &Context,
    repository: &Repository,
    slot: &Slot,
    identities: &[&dyn Identity],
) -> Result<Option<Unlocked>> {
    let Ok(plain) = age_file::open(&slot.sealed, identities, MAX_SLOT) else { return Ok(None) };
    let plain = zeroize::Zeroizing::new(plain);
    let content = std::str::from_utf8(&plain).ok().and_then(|text| SlotContent::from_text(text).ok());
    // Anyone who knows a recipient can put a slot there: one that opens to something else is passed over, aloud.
    let Some(content) =
        content.filter(|content| content.repository == repository.uuid && is_identity_of(content, repository))
    else {
        context.warn(&format!("slot {} opens, but is not of this repository; somebody else put it there", slot.name));
        return Ok(None);
    };
    Ok(Some(Unlocked {
        identity: content.identity,
        slot: Some(slot.name.clone()),
        slot_signer: Some(content.signer),
        by_passphrase: slot.is_passphrase,
    }))
}

fn is_identity_of(content: &SlotContent, repository: &Repository) -> bool {
    content.identity.to_public().to_string() == repository.recipient.to_string()
}

fn nothing_opens(repository: &Repository, slots: &[Slot], files: &[PathBuf], something_given: bool) -> anyhow::Error {
    let passphrases = slots.iter().filter(|slot| slot.is_passphrase).count();
    let kinds = format!("{passphrases} for a passphrase, {} for a recipient", slots.len() - passphrases);
    if something_given {
        let problem = Problem::new(
            Exit::NoKey,
            format!("no key here opens the repository at {} (slots: {kinds})", repository.location),
        );
        let shut = files.iter().find(|file| !secrets::has_terminal() && secrets::has_own_passphrase(file));
        return match shut {
            Some(file) => problem.hint(format!(
                "{} has a passphrase of its own, which can only be typed at a terminal; there is none here",
                file.display()
            )),
            None => problem.hint("it is another key or passphrase than those of this repository; nothing was fetched"),
        }
        .into();
    }
    Problem::new(
        Exit::NoKey,
        format!("a key is needed to open the repository at {} (slots: {kinds})", repository.location),
    )
    .hint("give --identity FILE, --passphrase-file FILE or --passphrase-command COMMAND")
    .into()
}

/// What reads manifests on the strength of an unlocked repository: the signer is the profile's, else the given
/// one, else that of a passphrase slot, else the one that was taken before, else the slot's, taken on first use.
pub fn reader(context: &Context, repository: &Repository, open: &OpenWith, unlocked: &Unlocked) -> Result<Reader> {
    let identity = unlocked.identity.clone();
    let given = open.signer.as_deref().map(str::parse::<Signer>).transpose();
    let given = given.map_err(|error| Problem::new(Exit::Usage, format!("--signer: {error}")))?;
    if let (Some(given), Some(known)) = (&given, &repository.signer)
        && given != known
    {
        return Err(Problem::new(Exit::NoKey, "--signer is another key than the one that the profile trusts").into());
    }
    if let Some(signer) = given.or_else(|| repository.signer.clone()) {
        return Ok(Reader { identity, signer });
    }
    let slot_signer = unlocked.slot_signer.clone();
    if let (true, Some(signer)) = (unlocked.by_passphrase, &slot_signer) {
        return Ok(Reader { identity, signer: signer.clone() });
    }
    let mut seen = Seen::load(&repository.state)?;
    if let Some(known) = seen.signer() {
        let signer: Signer = known.parse().map_err(|error| anyhow::anyhow!("the remembered signer: {error}"))?;
        if slot_signer.is_some_and(|slot| slot != signer) {
            return Err(Problem::new(Exit::NoKey, "the repository names another signer than before")
                .hint("give the right one, from the recovery sheet, with --signer")
                .into());
        }
        return Ok(Reader { identity, signer });
    }
    let Some(signer) = slot_signer else {
        return Err(Problem::new(Exit::NoKey, "nothing here says whose signatures to trust")
            .hint("give --signer RW…, from the recovery sheet")
            .into());
    };
    context.warn(&format!(
        "the signer {signer} is taken on the repository's own word; compare it with the recovery sheet (or give --signer)"
    ));
    if !context.dry_run
        && let Err(error) = seen.trust_signer(&signer.to_string())
    {
        context.warn(&format!("it can't be remembered: {error:#}"));
    }
    Ok(Reader { identity, signer })
}
