//! `holds`: what backups hold at the source, why, and how to get rid of it.

use anyhow::Result;
use serde_json::json;

use super::backup::pins::{Pins, Tag, bookmark_prefix};
use super::backup::source::Origin;
use super::lock::RunLock;
use super::repository::Repository;
use super::{Context, journal, print_line, repository_and_word, zfs_problem};
use crate::cli;
use crate::error::{Exit, Problem};
use crate::zfs::output::Hold;

/// What a hold is there for.
struct Explained {
    hold: Hold,
    stale: bool,
    why: &'static str,
}

/// Runs `holds`.
pub fn run(context: &Context, args: cli::Holds) -> Result<Exit> {
    let mut words = args.words;
    let action = words.pop_if(|word| matches!(word.as_str(), "list" | "release")).unwrap_or_else(|| "list".to_owned());
    let (named, further) = repository_and_word(words, 1)?;
    if let Some(further) = further {
        return Err(Problem::new(Exit::Usage, format!("{further:?} is neither list nor release")).into());
    }
    let repository = Repository::open(context, &named, args.writer_key.as_deref())?;
    let Some(writer) = &repository.writer else {
        return Err(Problem::new(Exit::NoKey, format!("there is no writer key for {named} on this machine"))
            .hint("holds are made by the machine that backs up")
            .into());
    };
    let origin = Origin::resolve(context, &repository, args.pull.as_deref())?.0;
    let pins = Pins { context, zfs: &origin.zfs, repository: repository.uuid, writer: writer.writer };
    // Another run may be under way: its hold is not stale, and releasing needs the lock. A look must not keep one from it.
    let lock = if action == "release" { RunLock::take_to_change(context, &repository.state)? } else { None };
    let running = lock.is_none() && RunLock::take(&repository.state).is_err();
    let holds = explained(&pins, &repository, running)?;
    if action == "list" {
        return list(context, &origin, &repository, &holds).map(|()| Exit::Done);
    }
    for Explained { hold, .. } in holds.iter().filter(|explained| explained.stale || args.all) {
        if context.dry_run {
            context.say_plan(&format!("would release {} on {}", hold.tag, hold.snapshot))?;
            continue;
        }
        origin.zfs.release(std::slice::from_ref(&hold.snapshot), &hold.tag).map_err(zfs_problem)?;
        context.note(&format!("released {} on {}", hold.tag, hold.snapshot));
    }
    Ok(Exit::Done)
}

fn explained(pins: &Pins<'_>, repository: &Repository, running: bool) -> Result<Vec<Explained>> {
    let claimed = journal::claimed(&repository.state);
    let all = pins.zfs.holds(None).map_err(zfs_problem)?;
    let of_this = all.into_iter().filter_map(|hold| Some((Tag::parse(&hold.tag)?, hold)));
    let of_this = of_this.filter(|(tag, _)| tag.repository == repository.uuid);
    Ok(of_this
        .map(|(tag, hold)| {
            let stale = pins.is_stale(&hold, &claimed);
            let why = match () {
                () if !tag.is_of(&pins.writer) => "of another machine that backs up into this repository",
                () if stale && running => "of a backup under way, or left behind by a run that ended without a word",
                () if stale => {
                    "left behind by a run that ended without a word; the next backup releases it, and so does release"
                }
                () if running => "of a backup that is under way or was interrupted",
                () => "of a backup that was interrupted: the same command goes on with it",
            };
            Explained { hold, stale: stale && !running, why }
        })
        .collect())
}

fn list(context: &Context, origin: &Origin, repository: &Repository, holds: &[Explained]) -> Result<()> {
    let prefix = bookmark_prefix(&repository.uuid);
    let bookmarks = origin.zfs.bookmarks().map_err(zfs_problem)?;
    let bookmarks: Vec<_> =
        bookmarks.into_iter().filter(|(_, name, guid)| *name == format!("{prefix}{guid}")).collect();
    if context.json {
        let hold = |Explained { hold, stale, why }: &Explained| json!({"snapshot": hold.snapshot, "tag": hold.tag, "since": hold.since, "stale": stale, "why": why});
        let bookmark = |(dataset, name, guid): &(String, String, u64)| json!({"bookmark": format!("{dataset}#{name}"), "guid": guid.to_string()});
        return context.print_json(&json!({
            "holds": holds.iter().map(hold).collect::<Vec<_>>(),
            "bookmarks": bookmarks.iter().map(bookmark).collect::<Vec<_>>(),
        }));
    }
    for Explained { hold, why, .. } in holds {
        print_line(&format!("{}  since {}\n    {}: {why}", hold.snapshot, hold.since, hold.tag))?;
    }
    for (dataset, name, _) in &bookmarks {
        print_line(&format!("{dataset}#{name}\n    a base for the next incremental backup"))?;
    }
    if holds.is_empty() && bookmarks.is_empty() {
        context.note("nothing is held or bookmarked for this repository here");
    }
    Ok(())
}
