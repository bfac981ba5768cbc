//! `key`: who can open a repository. Each change writes or deletes one small slot; no backup is touched.

use anyhow::Result;
use serde_json::json;

use super::init::{NewSlot, SlotKey, add_slot};
use super::lock::RunLock;
use super::made::Made;
use super::repository::Repository;
use super::rescue::RecoverySheet;
use super::secrets::{self, PassphraseSource};
use super::unlock::{Slot, Unlocked, is_given, slots, unlock};
use super::{Context, default_repository, print_line, repository_and_word};
use crate::cli::{Key, NewPassphrase, OpenWith};
use crate::error::{Exit, Problem};
use crate::format::keys::SlotContent;
use crate::format::names;
use crate::profile::replace_private;
use crate::store::StoreErrorKind;

/// Runs `key`.
pub fn run(context: &Context, command: Key) -> Result<Exit> {
    match command {
        Key::List { repository } => list(context, &default_repository(repository)?),
        Key::Add { repository, keys, new, open } => {
            let repository = Repository::open(context, &default_repository(repository)?, None)?;
            let recipients = secrets::recipients(&keys.recipient, &keys.recipients_file)?;
            let mut added: Vec<SlotKey> = recipients.into_iter().map(SlotKey::Recipient).collect();
            added.extend(new_passphrase(context, &new)?);
            if added.is_empty() {
                return Err(Problem::new(Exit::Usage, "a recipient or a new passphrase is needed")
                    .hint("give --recipient age1… or --new-passphrase-file FILE")
                    .into());
            }
            add(context, &repository, &added, &open)?;
            rewrite_sheet(context, &repository);
            Ok(Exit::Done)
        }
        Key::Remove { words, open } => {
            let (named, slot) = repository_and_word(words, 2)?;
            let slot = slot.ok_or_else(|| {
                Problem::new(Exit::Usage, "the slot's name is missing").hint("snapferry key list shows them")
            })?;
            let repository = Repository::open(context, &named, None)?;
            remove(context, &repository, &slot, &open)?;
            rewrite_sheet(context, &repository);
            Ok(Exit::Done)
        }
        Key::Passwd { repository, new, open } => passwd(context, &default_repository(repository)?, &new, &open),
    }
}

fn new_passphrase(context: &Context, new: &NewPassphrase) -> Result<Option<SlotKey>> {
    let prompt = new.new_passphrase.then_some(PassphraseSource::Prompt { what: "New passphrase", confirm: true });
    let source = secrets::source(new.new_passphrase_file.as_ref(), new.new_passphrase_command.as_ref(), prompt)?;
    source.map(|source| secrets::passphrase(context, &source).map(SlotKey::Passphrase)).transpose()
}

fn list(context: &Context, named: &str) -> Result<Exit> {
    let repository = Repository::open(context, named, None)?;
    let made = Made::load(&repository.state)?;
    let slots = slots(&repository)?;
    if context.json {
        let rows = slots.iter().map(|slot| {
            let kind = if slot.is_passphrase { "passphrase" } else { "recipient" };
            json!({"name": slot.name, "kind": kind, "for": made.whose(&slot.name)})
        });
        context.print_json(&json!({"repository": repository.uuid, "slots": rows.collect::<Vec<_>>()}))?;
        return Ok(Exit::Done);
    }
    for slot in &slots {
        print_line(&format!("{:<22} {}", slot.name, whose(&made, slot)))?;
    }
    Ok(Exit::Done)
}

/// For whom a slot is, in words.
fn whose<'m>(made: &'m Made, slot: &Slot) -> &'m str {
    let unknown = if slot.is_passphrase { "a passphrase" } else { "a recipient that this machine did not add" };
    made.whose(&slot.name).unwrap_or(unknown)
}

/// Opens the repository with what is given and adds slots; returns how it was opened.
fn add(context: &Context, repository: &Repository, keys: &[SlotKey], open: &OpenWith) -> Result<Unlocked> {
    let _lock = RunLock::take_to_change(context, &repository.state)?;
    let unlocked = unlock(context, repository, open)?;
    let signer = repository.signer.clone().or_else(|| unlocked.slot_signer.clone());
    let signer = signer.ok_or_else(|| {
        Problem::new(Exit::NoKey, "nothing here says whose signatures to trust")
            .hint("use a profile: snapferry connect makes one")
    })?;
    let content = SlotContent { repository: repository.uuid, signer, identity: unlocked.identity.clone() };
    for key in keys {
        if context.dry_run {
            context.say_plan(&format!("would add a slot for {}", key.shown()))?;
            continue;
        }
        let NewSlot { name, sealed, whose, .. } =
            add_slot(repository.store.as_ref(), &repository.location, &content, key, &[])?;
        Made::load(&repository.state)?.add(names::slot(&name), &sealed, Some(whose))?;
        if context.json {
            context.print_json(&json!({"added": name, "for": key.shown()}))?;
        } else if !context.quiet {
            print_line(&format!("added {name} for {}", key.shown()))?;
        }
    }
    Ok(unlocked)
}

fn remove(context: &Context, repository: &Repository, slot: &str, open: &OpenWith) -> Result<()> {
    let _lock = RunLock::take_to_change(context, &repository.state)?;
    let slots = slots(repository)?;
    if !slots.iter().any(|known| known.name == slot) {
        return Err(Problem::new(Exit::Missing, format!("there is no slot {slot:?}"))
            .hint("snapferry key list shows them")
            .into());
    }
    if slots.len() == 1 {
        return Err(Problem::new(
            Exit::Failed,
            "the last slot can't be removed: nobody could open the repository any more",
        )
        .hint("add another one first: snapferry key add")
        .into());
    }
    let mut made = Made::load(&repository.state)?;
    // Anybody can put a slot there that opens to nothing: only one that is known to be right may be the one that stays.
    if !slots.iter().any(|other| other.name != slot && made.is_slot(&other.name, &other.sealed)) {
        prove_another(context, repository, slot, open)?;
    }
    if context.dry_run {
        return context.say_plan(&format!("would remove {slot}"));
    }
    let name = names::slot(slot);
    if let Err(error) = repository.store.delete(&name) {
        // A deletion that landed and was not acknowledged is what was asked for.
        let gone = repository.store.size(&name).is_err_and(|size| size.kind == StoreErrorKind::NotFound);
        if !gone {
            return Err(repository.store_problem(error));
        }
    }
    made.forget(&name)?;
    if context.json {
        context.print_json(&json!({"removed": slot}))?;
    } else if !context.quiet {
        print_line(&format!("removed {slot}"))?;
        print_line(
            "whoever copied the slot before, and has its key, can still open what was backed up so far and later",
        )?;
    }
    Ok(())
}

/// Opens another slot than `slot` with what is given.
fn prove_another(context: &Context, repository: &Repository, slot: &str, open: &OpenWith) -> Result<()> {
    let opened = if is_given(open) { unlock(context, repository, open)?.slot } else { None };
    if opened.is_some_and(|opened| opened != slot) {
        return Ok(());
    }
    Err(Problem::new(Exit::Failed, format!("none of the slots beside {slot} is known here to open the repository"))
        .hint("give what opens another one, such as --identity FILE, to prove that it stays open; nothing was changed")
        .into())
}

fn passwd(context: &Context, named: &str, new: &NewPassphrase, open: &OpenWith) -> Result<Exit> {
    let repository = Repository::open(context, named, None)?;
    let new = match new_passphrase(context, new)? {
        Some(new) => new,
        None => {
            let prompt = PassphraseSource::Prompt { what: "New passphrase", confirm: true };
            SlotKey::Passphrase(secrets::passphrase(context, &prompt)?)
        }
    };
    let unlocked = add(context, &repository, &[new], open)?;
    match unlocked.slot {
        Some(old) if unlocked.by_passphrase => remove(context, &repository, &old, &OpenWith::default())?,
        _ => context.warn("the old passphrase still opens the repository: it was not used, so its slot is not known; snapferry key remove takes it away"),
    }
    rewrite_sheet(context, &repository);
    Ok(Exit::Done)
}

/// The recovery sheet of this machine tells who opens the repository: after a change it must not tell of yesterday.
fn rewrite_sheet(context: &Context, repository: &Repository) {
    let path = context.places.recovery_sheet(&repository.named);
    let Some(profile) = repository.profile.as_ref().filter(|_| path.exists() && !context.dry_run) else { return };
    let written = slots(repository).and_then(|slots| {
        let made = Made::load(&repository.state)?;
        let told = |slot: &Slot| match made.is_slot(&slot.name, &slot.sealed) {
            true => whose(&made, slot).to_owned(),
            // Anybody may have put it there.
            false => format!("{}: not made on this machine, try it before you count on it", whose(&made, slot)),
        };
        let told: Vec<String> = slots.iter().map(told).collect();
        let rows: Vec<(&str, &str)> =
            slots.iter().map(|slot| slot.name.as_str()).zip(told.iter().map(String::as_str)).collect();
        let sheet = RecoverySheet {
            name: &repository.named,
            url: &profile.url,
            descriptor: &repository.descriptor,
            signer: &profile.signer,
            slots: &rows,
            rescue_blake3: made.blake3_of(names::RESCUE),
        };
        replace_private(&path, sheet.text().as_bytes())
    });
    match written {
        Ok(()) if context.json || context.quiet => {}
        Ok(()) => context.note(&format!("{} was written anew: replace the copies that you keep", path.display())),
        Err(error) => {
            context.warn(&format!("the recovery sheet {} still tells of the keys before: {error:#}", path.display()))
        }
    }
}
