//! `connect`: a profile for a repository that exists, on a machine that restores from it.

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::json;

use super::init::stable_url;
use super::repository::Repository;
use super::unlock::{reader, unlock};
use super::{Context, print_line};
use crate::cli;
use crate::error::{Exit, Problem};
use crate::format::signature::Signer;
use crate::profile::{Profile, is_profile_name, load_writer_key};

/// Runs `connect`.
pub fn run(context: &Context, args: cli::Connect) -> Result<Exit> {
    if !is_profile_name(&args.name) {
        return Err(Problem::new(Exit::Usage, format!("{:?} can't name a profile", args.name)).into());
    }
    if is_profile_name(&args.url) {
        return Err(Problem::new(Exit::Usage, format!("{:?} is no URL or path", args.url))
            .hint("write a folder as ./name")
            .into());
    }
    let path = context.places.profile(&args.name);
    if path.exists() {
        return Err(Problem::new(Exit::Failed, format!("{} exists already", path.display())).into());
    }
    let repository = Repository::open(context, &args.url, None)?;
    let unlocked = unlock(context, &repository, &args.open)?;
    let reader = reader(context, &repository, &args.open, &unlocked)?;
    let (catalogue, _) = repository.load_catalogue_to_read(context, &reader)?;
    if catalogue.backups.is_empty() && catalogue.damaged.iter().any(|damaged| damaged.foreign) {
        return Err(Problem::new(
            Exit::NoKey,
            format!("no manifest in {} is signed by {}", repository.location, reader.signer),
        )
        .hint("look at the signer on the recovery sheet")
        .into());
    }
    Repository::warn_of_damaged(context, &catalogue);
    let writer_key = own_writer_key(context, &args.name, &repository, &reader.signer)?;
    let profile = Profile {
        url: stable_url(&repository.location, &args.url),
        repository: repository.uuid,
        recipient: repository.recipient.to_string(),
        signer: reader.signer.to_string(),
        writer_key: writer_key.as_deref().and_then(Path::file_name).map(PathBuf::from),
        identity: args.open.identity.first().and_then(|path| std::path::absolute(path).ok()),
        compression: None,
        ssh_command: context.ssh_command.clone(),
        connections: None,
        ..Profile::default()
    };
    if context.dry_run {
        context.say_plan(&format!("would write {}", path.display()))?;
        return Ok(Exit::Done);
    }
    profile.save(&context.places, &args.name)?;
    if context.json {
        context.print_json(&json!({"repository": profile.repository, "url": profile.url, "signer": profile.signer,
            "profile": path, "backups": catalogue.backups.len(), "damaged": catalogue.damaged.len()}))?;
    } else if !context.quiet {
        print_line(&format!(
            "connected to {} at {}: {} backups",
            profile.repository,
            profile.url,
            catalogue.backups.len()
        ))?;
        if let Some(path) = &writer_key {
            print_line(&format!("writer key      {}  (this machine can back up there)", path.display()))?;
        }
        print_line(&format!("next: snapferry list {}", args.name))?;
    }
    Ok(if catalogue.damaged.is_empty() { Exit::Done } else { Exit::Partial })
}

/// The writer key that an `init` which was killed before its profile left here, if it is this repository's.
fn own_writer_key(context: &Context, name: &str, repository: &Repository, signer: &Signer) -> Result<Option<PathBuf>> {
    let path = context.places.writer_key(name);
    if !path.exists() {
        return Ok(None);
    }
    let key = load_writer_key(&path)?;
    if key.repository == repository.uuid
        && key.recipient == repository.descriptor.recipient
        && key.signing.signer()? == *signer
    {
        return Ok(Some(path));
    }
    context.warn(&format!("{} is the writer key of another repository, and is left alone", path.display()));
    Ok(None)
}
