//! `plan`: what a backup would send, what else it could, and why.

use anyhow::Result;
use indicatif::BinaryBytes;
use serde_json::json;

use super::source::{self, Considered, Origin, Terms};
use super::writer_of;
use crate::cli;
use crate::commands::init::now;
use crate::commands::repository::Repository;
use crate::commands::{Context, print_line, repository_and_word};
use crate::error::{Exit, Problem};
use crate::progress::duration;
use crate::zfs::choice::{self, Offer};
use crate::zfs::names::{Dataset, Snapshot, VersionKind};
use crate::zfs::output::Version;

/// The name under which a snapshot that is not taken yet is spoken of.
const FUTURE: &str = "now";

/// A snapshot that would be taken now.
pub fn future(name: &str) -> Version {
    let creation = now().as_second();
    Version { kind: VersionKind::Snapshot, name: name.to_owned(), guid: 0, createtxg: u64::MAX, creation }
}

/// What an offer is called; `index` is its place among the offers.
pub fn kind(offer: &Offer, index: usize) -> String {
    match &offer.base {
        None => "full".to_owned(),
        Some(base) => {
            let mark = if base.kind == VersionKind::Snapshot { '@' } else { '#' };
            format!("{} from {mark}{}", if index == 0 { "incremental" } else { "differential" }, base.name)
        }
    }
}

/// Runs `plan`.
pub fn run(context: &Context, args: cli::Plan) -> Result<Exit> {
    let (named, what) = repository_and_word(args.words, if args.how.pull.is_some() { 1 } else { 2 })?;
    let repository = Repository::open(context, &named, args.writer_key.as_deref())?;
    let (_, reader) = writer_of(&repository)?;
    let (origin, rest) = Origin::resolve(context, &repository, args.how.pull.as_deref())?;
    let what = rest.or(what).ok_or_else(|| {
        Problem::new(Exit::Usage, "a dataset is missing").hint("snapferry plan REPOSITORY DATASET[@SNAPSHOT]")
    })?;
    let usage = |error: &dyn std::fmt::Display| Problem::new(Exit::Usage, error.to_string());
    let (snapshot, future) = match what.contains('@') {
        true => (what.parse::<Snapshot>().map_err(|error| usage(&error))?, None),
        false => {
            let dataset: Dataset = what.parse().map_err(|error| usage(&error))?;
            (Snapshot { dataset, name: FUTURE.to_owned() }, Some(future(FUTURE)))
        }
    };
    let title = match &future {
        Some(_) => format!("a snapshot of {} taken now", snapshot.dataset),
        None => snapshot.to_string(),
    };
    let (catalogue, missed) = repository.load_catalogue_to_read(context, &reader)?;
    let damaged = Repository::warn_of_damaged(context, &catalogue);
    let terms = Terms::resolve(&args.how, false, None, &repository)?;
    let considered = source::consider(&origin, &terms, &snapshot, future, &catalogue, None)?;
    show(context, &title, &terms, &considered)?;
    Ok(if damaged == 0 && missed == Some(0) { Exit::Done } else { Exit::Partial })
}

fn show(context: &Context, title: &str, terms: &Terms, considered: &Considered) -> Result<()> {
    let Considered { offers, choice, rates, version, .. } = considered;
    let objection = |offer: &Offer| choice::objection(offer, terms.policy, *rates, version.creation);
    if context.json {
        let offer = |(index, offer): (usize, &Offer)| {
            json!({
                "kind": kind(offer, index).split(' ').next(), "base": offer.base.as_ref().map(|base| &base.name),
                "flags": offer.flags, "bytes": offer.bytes, "seconds": offer.send_time(*rates), "chain": offer.links,
                "restore_bytes": offer.restore_bytes(), "restore_seconds": offer.restore_time(*rates),
                "objection": objection(offer), "chosen": index == choice.index,
            })
        };
        let offers: Vec<_> = offers.iter().enumerate().map(offer).collect();
        return context.print_json(&json!({"what": title, "offers": offers, "reason": choice.reason}));
    }
    let unknown = || "?".to_owned();
    let bytes = |bytes: Option<u64>| bytes.map_or_else(unknown, |bytes| BinaryBytes(bytes).to_string());
    let time = |time: Option<f64>| time.map_or_else(unknown, duration);
    let mut rows = vec![["", "WHAT", "SEND", "TIME", "CHAIN", "RESTORE", "TIME", ""].map(str::to_owned)];
    rows.extend(offers.iter().enumerate().map(|(index, offer)| {
        [
            if index == choice.index { "*" } else { "" }.to_owned(),
            kind(offer, index),
            bytes(offer.bytes),
            time(offer.send_time(*rates)),
            offer.links.to_string(),
            bytes(offer.restore_bytes()),
            time(offer.restore_time(*rates)),
            objection(offer).map_or_else(String::new, |objection| format!("not: {objection}")),
        ]
    }));
    let widths: [usize; 8] =
        std::array::from_fn(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0));
    for row in &rows {
        let cell = |(column, text): (usize, &String)| match (column, widths[column]) {
            (0 | 1, width) => format!("{text:width$}"),
            (7, _) => text.clone(),
            (_, width) => format!("{text:>width$}"),
        };
        print_line(row.iter().enumerate().map(cell).collect::<Vec<_>>().join("  ").trim_end())?;
    }
    let chosen = &offers[choice.index];
    print_line(&format!(
        "{title}: {} with {}, because {}. Sizes and times are estimates.",
        kind(chosen, choice.index),
        if chosen.flags.is_empty() { "no flags".to_owned() } else { chosen.flags.join(" ") },
        choice.reason
    ))
}
