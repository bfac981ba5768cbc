//! `init`: makes a repository, proves that what it wrote can be opened, and only then a profile for it.

use std::path::PathBuf;

use age::secrecy::SecretString;
use age::{Identity, Recipient, scrypt, x25519};
use anyhow::{Context as _, Result, bail};
use jiff::Timestamp;
use serde_json::json;
use uuid::Uuid;
use zeroize::Zeroizing;

use super::made::Made;
use super::repository::{open_store, store_problem};
use super::rescue::{RecoverySheet, rescue_text};
use super::secrets::{self, NamedRecipient, PassphraseSource};
use super::{Context, print_line};
use crate::cli;
use crate::error::{Exit, Problem};
use crate::format::descriptor::Descriptor;
use crate::format::keys::{MAX_SLOT, SlotContent, WriterKey};
use crate::format::manifest::Hash;
use crate::format::{age_file, names};
use crate::pipeline::codec::Codec;
use crate::pipeline::seal::{Opener, Sealer};
use crate::profile::{Profile, is_profile_name, write_private};
use crate::progress::counted;
use crate::store::location::Location;
use crate::store::{Store, StoreErrorKind};

/// The scrypt work factor of new passphrase slots (log2 of N): about a second, as age itself does.
pub const SCRYPT_WORK_FACTOR: u8 = 18;

/// Who a new slot is for.
pub enum SlotKey {
    /// A passphrase.
    Passphrase(SecretString),
    /// A recipient.
    Recipient(NamedRecipient),
}

impl SlotKey {
    /// A word for the slot's name, so that a listing tells something.
    fn kind(&self) -> &'static str {
        match self {
            Self::Passphrase(_) => "passphrase",
            Self::Recipient(named) if named.text.starts_with("ssh-") => "ssh",
            Self::Recipient(_) => "age",
        }
    }

    /// What a person knows it by.
    pub fn shown(&self) -> String {
        match self {
            Self::Passphrase(_) => "a passphrase".into(),
            Self::Recipient(named) => named.text.clone(),
        }
    }
}

/// A slot that was just stored.
pub struct NewSlot {
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub sealed: Vec<u8>,
    /// Its own key opened it here.
    pub opened: bool,
    /// For whom it is.
    pub whose: String,
}

/// Makes a new slot, proves what can be proved, stores it and reads it back: a passphrase opens it; for a
/// recipient one of `identities`, if any is given.
pub fn add_slot(
    store: &dyn Store,
    location: &Location,
    content: &SlotContent,
    key: &SlotKey,
    identities: &[Box<dyn Identity>],
) -> Result<NewSlot> {
    let mut random = [0u8; 4];
    getrandom::fill(&mut random).context("no randomness")?;
    let name = format!("{}-{:08x}", key.kind(), u32::from_be_bytes(random));
    let text = content.to_text();
    let sealed = match key {
        SlotKey::Passphrase(passphrase) => {
            let mut recipient = scrypt::Recipient::new(passphrase.clone());
            recipient.set_work_factor(SCRYPT_WORK_FACTOR);
            age_file::seal(text.as_bytes(), &[&recipient])
        }
        SlotKey::Recipient(named) => age_file::seal(text.as_bytes(), &[named.recipient.as_ref() as &dyn Recipient]),
    };
    let sealed = sealed.map_err(|error| {
        let message = format!("nothing can be sealed to {}: {}", key.shown(), age_file::one_line(&error.to_string()));
        Problem::new(Exit::Usage, message)
    })?;
    let opened = prove_slot(&sealed, &text, key, identities)?;
    put_proved(store, location, &names::slot(&name), &sealed)?;
    Ok(NewSlot { name, sealed, opened, whose: key.shown() })
}

/// Stores a new small object and reads it back. One that is not there as it should be is taken away again.
fn put_proved(store: &dyn Store, location: &Location, name: &str, bytes: &[u8]) -> Result<()> {
    let failed = match store.put(name, bytes) {
        // That one is somebody else's.
        Err(error) if error.kind == StoreErrorKind::Exists => return Err(store_problem(error, location)),
        Err(error) => store_problem(error, location),
        Ok(()) => match store.get(name, bytes.len() as u64) {
            Ok(back) if back == bytes => return Ok(()),
            Ok(_) => anyhow::anyhow!("{location}: {name} came back other than it was stored"),
            Err(error) => store_problem(error, location),
        },
    };
    // It may be there although its storing failed.
    let _ = store.delete(name);
    Err(failed)
}

fn prove_slot(sealed: &[u8], text: &str, key: &SlotKey, identities: &[Box<dyn Identity>]) -> Result<bool> {
    let with_passphrase;
    let tried: Vec<&dyn Identity> = match key {
        SlotKey::Passphrase(passphrase) => {
            let mut identity = scrypt::Identity::new(passphrase.clone());
            identity.set_max_work_factor(SCRYPT_WORK_FACTOR);
            with_passphrase = identity;
            vec![&with_passphrase]
        }
        SlotKey::Recipient(_) => identities.iter().map(AsRef::as_ref).collect(),
    };
    match age_file::open(sealed, &tried, MAX_SLOT).map(Zeroizing::new) {
        Ok(plain) if plain.as_slice() == text.as_bytes() => Ok(true),
        Ok(_) => bail!("the new slot opens to something else than was put in"),
        // Without its identity a recipient's slot can't be opened here, which is as it should be.
        Err(_) if matches!(key, SlotKey::Recipient(_)) => Ok(false),
        Err(error) => bail!("the new slot does not open with its own passphrase: {error}"),
    }
}

/// Runs `init`.
pub fn run(context: &Context, args: cli::Init) -> Result<Exit> {
    if !is_profile_name(&args.name) {
        return Err(Problem::new(Exit::Usage, format!("{:?} can't name a profile", args.name))
            .hint("letters, digits, dots, dashes and underscores will do, such as: snapferry init offsite URL")
            .into());
    }
    let location: Location = args.url.parse().map_err(|error| Problem::new(Exit::Usage, format!("{error}")))?;
    let files = Files::new(context, &args.name)?;
    let keys = slot_keys(context, &args)?;
    let identities = secrets::identities(&args.identity)?;
    if context.dry_run {
        context.say_plan(&format!(
            "would make a repository at {location}, opened by {}",
            counted(keys.len() as u64, "slot")
        ))?;
        return Ok(Exit::Done);
    }
    let store = open_store(context, &location, None, 1)?;
    refuse_existing(store.as_ref(), &location)?;
    let identity = x25519::Identity::generate();
    let recipient = identity.to_public().to_string();
    let descriptor = Descriptor::new(Uuid::new_v4(), recipient.clone(), now());
    let writer = WriterKey::generate(descriptor.repository, recipient)?;
    let content = SlotContent { repository: descriptor.repository, signer: writer.signing.signer()?, identity };
    prove_sealing(&content)?;
    // The writer key first: a repository that nobody can write to would be in the way of the next try.
    write_private(&files.writer_key, writer.to_text()?.as_bytes())?;
    let made = make(store.as_ref(), &location, &descriptor, &content, &keys, &identities);
    if made.is_err() {
        let _ = std::fs::remove_file(&files.writer_key);
    }
    let slots = made?;
    let profile = Profile {
        url: stable_url(&location, &args.url),
        repository: descriptor.repository,
        recipient: descriptor.recipient.clone(),
        signer: content.signer.to_string(),
        writer_key: files.writer_key.file_name().map(PathBuf::from),
        identity: None,
        compression: None,
        ssh_command: context.ssh_command.clone(),
        connections: None,
        ..Profile::default()
    };
    profile.save(&context.places, &args.name)?;
    let shown: Vec<(&str, &str)> = slots.iter().map(|slot| (slot.name.as_str(), slot.whose.as_str())).collect();
    let rescue = rescue_text(&descriptor);
    let sheet = RecoverySheet {
        name: &args.name,
        url: &profile.url,
        descriptor: &descriptor,
        signer: &profile.signer,
        slots: &shown,
        rescue_blake3: Some(Hash::of(rescue.as_bytes())),
    };
    write_private(&files.sheet, sheet.text().as_bytes())?;
    let mut made = Made::load(&context.places.state_of(&descriptor.repository))?;
    made.add(names::RESCUE.to_owned(), rescue.as_bytes(), None)?;
    for slot in &slots {
        made.add(names::slot(&slot.name), &slot.sealed, Some(slot.whose.clone()))?;
    }
    tell(context, &args.name, &profile, &files, &slots)?;
    Ok(Exit::Done)
}

/// Now, to the second.
pub fn now() -> Timestamp {
    Timestamp::from_second(Timestamp::now().as_second()).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// A relative folder is kept as an absolute one: cron starts elsewhere.
pub fn stable_url(location: &Location, typed: &str) -> String {
    match location {
        Location::Directory(path) => path.display().to_string(),
        Location::Sftp(_) => typed.to_owned(),
    }
}

struct Files {
    writer_key: PathBuf,
    sheet: PathBuf,
}

impl Files {
    fn new(context: &Context, name: &str) -> Result<Self> {
        let places = &context.places;
        let files = Self { writer_key: places.writer_key(name), sheet: places.recovery_sheet(name) };
        for path in [&places.profile(name), &files.writer_key, &files.sheet] {
            if path.exists() {
                let hint = if places.profile(name).exists() {
                    "choose another name; nothing was changed".to_owned()
                } else {
                    format!(
                        "choose another name; or, if an interrupted init left it: snapferry connect {name} URL takes it up \
                         where the repository was made, and where it was not, remove the file; nothing was changed"
                    )
                };
                return Err(Problem::new(Exit::Failed, format!("{} exists already", path.display())).hint(hint).into());
            }
        }
        Ok(files)
    }
}

fn slot_keys(context: &Context, args: &cli::Init) -> Result<Vec<SlotKey>> {
    let recipients = secrets::recipients(&args.keys.recipient, &args.keys.recipients_file)?;
    let mut keys: Vec<SlotKey> = recipients.into_iter().map(SlotKey::Recipient).collect();
    let prompt = args.passphrase.then_some(PassphraseSource::Prompt { what: "New passphrase", confirm: true });
    if let Some(source) = secrets::source(args.passphrase_file.as_ref(), args.passphrase_command.as_ref(), prompt)? {
        keys.push(SlotKey::Passphrase(secrets::passphrase(context, &source)?));
    }
    if keys.is_empty() {
        return Err(Problem::new(
            Exit::Usage,
            "nobody could open the repository: a recipient or a passphrase is needed",
        )
        .hint("give --recipient age1… (age-keygen makes one), --passphrase-file FILE, or --passphrase to be asked")
        .into());
    }
    Ok(keys)
}

fn refuse_existing(store: &dyn Store, location: &Location) -> Result<()> {
    match store.size(names::DESCRIPTOR) {
        Ok(_) => Err(Problem::new(Exit::Failed, format!("there is a repository at {location} already"))
            .hint("snapferry connect makes a profile for it; nothing was changed")
            .into()),
        Err(error) if error.kind == StoreErrorKind::NotFound => {
            let listed = store.list(names::MANIFESTS).map_err(|error| store_problem(error, location))?;
            if listed.is_empty() {
                return Ok(());
            }
            Err(Problem::new(
                Exit::Failed,
                format!("{location} holds manifests of a repository whose descriptor is gone"),
            )
            .into())
        }
        Err(error) => Err(store_problem(error, location)),
    }
}

/// Seals a trial segment and a trial manifest as backups will be, and opens them with the identity.
fn prove_sealing(content: &SlotContent) -> Result<()> {
    let trial: Vec<u8> = (0..100_000u32).map(|n| (n % 251) as u8).collect();
    let (codec, mut sealed, mut plain) = (Codec::default(), Vec::new(), Vec::new());
    let row = Sealer::new(codec, content.identity.to_public(), true)?.seal(&trial, &mut sealed)?;
    Opener::new(&codec.info(), content.identity.clone())?.open(&row, &mut sealed, &mut plain)?;
    if plain != trial {
        bail!("a trial segment did not come back as it was; nothing was written");
    }
    Ok(())
}

/// The descriptor comes last but for the slots' sake it is what makes the repository; slots before it are harmless.
fn make(
    store: &dyn Store,
    location: &Location,
    descriptor: &Descriptor,
    content: &SlotContent,
    keys: &[SlotKey],
    identities: &[Box<dyn Identity>],
) -> Result<Vec<NewSlot>> {
    let mut slots = Vec::new();
    let result = keys.iter().try_for_each(|key| {
        slots.push(add_slot(store, location, content, key, identities)?);
        anyhow::Ok(())
    });
    let result = result.and_then(|()| {
        if !identities.is_empty() && !slots.iter().any(|slot| slot.opened && !slot.name.starts_with("passphrase")) {
            return Err(Problem::new(Exit::NoKey, "the given identity opens none of the new slots")
                .hint("it does not belong to any of the recipients; no repository was made")
                .into());
        }
        // An earlier try may have left it behind.
        match store.delete(names::RESCUE) {
            Err(error) if error.kind != StoreErrorKind::NotFound => return Err(store_problem(error, location)),
            _ => {}
        }
        put_proved(store, location, names::RESCUE, rescue_text(descriptor).as_bytes())?;
        put_proved(store, location, names::DESCRIPTOR, &descriptor.to_bytes())
    });
    if let Err(error) = result {
        for slot in &slots {
            let _ = store.delete(&names::slot(&slot.name));
        }
        return Err(error);
    }
    Ok(slots)
}

fn tell(context: &Context, name: &str, profile: &Profile, files: &Files, slots: &[NewSlot]) -> Result<()> {
    let config = context.places.profile(name);
    if context.json {
        let slots: Vec<_> =
            slots.iter().map(|slot| json!({"name": slot.name, "for": slot.whose, "proved": slot.opened})).collect();
        return context.print_json(&json!({
            "repository": profile.repository, "url": profile.url, "recipient": profile.recipient, "signer": profile.signer,
            "profile": config, "writer_key": files.writer_key, "recovery_sheet": files.sheet, "slots": slots,
        }));
    }
    if context.quiet {
        return Ok(());
    }
    print_line(&format!("made the repository {} at {}", profile.repository, profile.url))?;
    print_line("it is opened by:")?;
    for slot in slots {
        let proof = if slot.opened { "proved: it opens" } else { "not proved here: give --identity to init to try it" };
        print_line(&format!("  {:<22} {}  ({proof})", slot.name, slot.whose))?;
    }
    print_line(&format!("profile         {}", config.display()))?;
    print_line(&format!(
        "writer key      {}  (adds backups, opens no data; stays on this machine)",
        files.writer_key.display()
    ))?;
    print_line(&format!("recovery sheet  {}", files.sheet.display()))?;
    print_line(
        "keep elsewhere, not on this machine alone: the recovery sheet, and the identity file or passphrase that opens the repository",
    )?;
    print_line(&format!("next: snapferry backup {name} DATASET"))
}
