//! One verb a file. Here, and only here, the islands meet.

#![warn(missing_docs)]

pub mod backup;
pub mod catalogue;
pub mod chain;
pub mod check;
pub mod connect;
pub mod generate;
pub mod holds;
pub mod init;
pub mod journal;
pub mod key;
pub mod list;
pub mod lock;
pub mod made;
pub mod prune;
pub mod removals;
pub mod repository;
pub mod rescue;
pub mod restore;
pub mod secrets;
pub mod seen;
pub mod unlock;
pub mod warm;

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use jiff::{SignedDuration, Timestamp};

use crate::cli::{Cli, Command, Global};
use crate::error::{Exit, Problem, ReaderGone, say, tame};
use crate::format::names::BackupId;
use crate::profile::Places;
use crate::store::Store;
use crate::zfs::command::{Zfs, ZfsError, ZfsErrorKind};
use crate::zfs::message;

/// What every command knows of how it was called.
pub struct Context {
    /// Where things are kept.
    pub places: Places,
    /// `--quiet`
    pub quiet: bool,
    /// `--verbose`
    pub verbose: bool,
    /// `--json`
    pub json: bool,
    /// `--dry-run`
    pub dry_run: bool,
    /// Whether a person looks at standard error.
    pub terminal: bool,
    /// The `zfs` program.
    pub zfs: Zfs,
    /// The ssh program with its options; `None`: the profile's, else `ssh`.
    pub ssh_command: Option<Vec<String>>,
    /// Transfers at once; `None`: the profile's, else 4.
    pub connections: Option<usize>,
    /// A store to use instead of the one that the URL names. For tests.
    pub store: Option<Arc<dyn Store>>,
}

impl Context {
    /// From the options of every command.
    pub fn new(global: Global) -> Result<Self> {
        let ssh_command = global.ssh_command.map(|text| split_words(&text, "--ssh-command")).transpose()?;
        let zfs_command: OsString = global.zfs_command.into();
        Ok(Self {
            places: Places::resolve(global.config_dir, global.state_dir)?,
            quiet: global.quiet,
            verbose: global.verbose > 0,
            json: global.json,
            dry_run: global.dry_run,
            terminal: std::io::stderr().is_terminal(),
            zfs: Zfs::new(zfs_command),
            ssh_command,
            connections: global.connections.map(usize::from),
            store: None,
        })
    }

    /// Something that a person at a terminal likes to know; nothing in a pipe or from cron, unless `-v`.
    pub fn note(&self, text: &str) {
        if !self.quiet && !self.json && (self.terminal || self.verbose) {
            say(format_args!("snapferry: {text}"));
        }
    }

    /// What a dry run would do: the answer that was asked for.
    pub fn say_plan(&self, text: &str) -> Result<()> {
        if self.json { self.print_json(&serde_json::json!({"plan": text})) } else { print_line(text) }
    }

    /// Something that must be known, whatever the options.
    pub fn warn(&self, text: &str) {
        let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        if self.json {
            say(format_args!("{}", serde_json::json!({"warning": {"message": text}})));
        } else {
            say(format_args!("snapferry: warning: {text}"));
        }
    }

    /// Whether a progress bar is drawn.
    pub fn shows_progress(&self) -> bool {
        self.terminal && !self.quiet && !self.json
    }

    /// Prints one JSON object.
    pub fn print_json(&self, value: &serde_json::Value) -> Result<()> {
        print_line(&serde_json::to_string_pretty(value)?)
    }
}

/// Writes a line to standard output, or several, without anything that could act on a terminal.
pub fn print_line(text: &str) -> Result<()> {
    print_text(&format!("{}\n", tame(text)))
}

/// Writes to standard output. A reader that went away, as `head` does, is [`ReaderGone`].
pub fn print_text(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    written.map_err(|error| match error.kind() {
        std::io::ErrorKind::BrokenPipe => ReaderGone.into(),
        _ => anyhow::anyhow!("cannot write to standard output: {error}"),
    })
}

/// What a failed `zfs` command means to a person.
pub fn zfs_problem(error: ZfsError) -> anyhow::Error {
    let known = message::hint(&error.stderr);
    let (exit, hint) = match error.kind {
        ZfsErrorKind::NotStarted => (Exit::Failed, Some("--zfs-command names the program")),
        ZfsErrorKind::Unreachable => (Exit::Failed, Some("try the same host with ssh -o BatchMode=yes first")),
        ZfsErrorKind::NoSuchDataset => (Exit::Missing, None),
        ZfsErrorKind::Denied | ZfsErrorKind::Failed => match known {
            Some(hint) if hint.kind == message::Kind::Busy => (Exit::Busy, Some(hint.text)),
            known => (Exit::Failed, known.map(|hint| hint.text)),
        },
    };
    let problem = Problem::new(exit, error.to_string());
    match hint {
        Some(hint) => problem.hint(hint).into(),
        None => problem.into(),
    }
}

/// Reads a span of time such as `30d` or `12h`, a day having 24 hours.
pub fn parse_time(option: &str, text: &str) -> Result<SignedDuration> {
    let bad = || Problem::new(Exit::Usage, format!("{option}: {text:?} is no time such as 30d or 12h"));
    let span: jiff::Span = text.parse().map_err(|_| bad())?;
    let time = span.to_duration(jiff::SpanRelativeTo::days_are_24_hours()).map_err(|_| bad())?;
    if time.is_negative() { Err(bad().into()) } else { Ok(time) }
}

/// An id for something that begins at `started`.
pub fn new_id(started: Timestamp) -> Result<BackupId> {
    let mut random = [0u8; 8];
    getrandom::fill(&mut random).context("no randomness")?;
    Ok(BackupId::new(started, random))
}

/// Splits a command as a shell does, without running one.
pub fn split_words(text: &str, option: &str) -> Result<Vec<String>> {
    match shlex::split(text) {
        Some(words) if !words.is_empty() => Ok(words),
        _ => Err(Problem::new(Exit::Usage, format!("{option} can't be split into words: {text:?}")).into()),
    }
}

/// A repository and up to one further word; a repository that is not named comes from `SNAPFERRY_REPOSITORY`.
/// `full` is how many words there are when it is named.
pub fn repository_and_word(words: Vec<String>, full: usize) -> Result<(String, Option<String>)> {
    let mut words = words.into_iter();
    if words.len() >= full.max(1)
        && let Some(repository) = words.next()
    {
        return Ok((repository, words.next()));
    }
    Ok((default_repository(None)?, words.next()))
}

/// The repository that was named, or that of the environment.
pub fn default_repository(named: Option<String>) -> Result<String> {
    named.or_else(|| std::env::var("SNAPFERRY_REPOSITORY").ok().filter(|name| !name.is_empty())).ok_or_else(|| {
        Problem::new(Exit::Usage, "no repository is named")
            .hint("name it on the command line, or set SNAPFERRY_REPOSITORY")
            .into()
    })
}

/// Runs what was typed.
pub fn run(cli: Cli) -> Result<Exit> {
    match cli.command {
        Command::Completions { shell } => generate::completions(shell),
        Command::Man => generate::man(),
        // It needs no configuration, no key and no home.
        Command::Warm(args) => warm::run(&cli.global, &args),
        command => {
            let context = Context::new(cli.global)?;
            match command {
                Command::Init(args) => init::run(&context, args),
                Command::Backup(args) => backup::run(&context, args),
                Command::Plan(args) => backup::explain(&context, args),
                Command::Holds(args) => holds::run(&context, args),
                Command::Prune(args) => prune::run(&context, args),
                Command::List(args) => list::run(&context, args),
                Command::Check(args) => check::run(&context, args),
                Command::Restore(args) => restore::run(&context, args),
                Command::Connect(args) => connect::run(&context, args),
                Command::Key(args) => key::run(&context, args),
                Command::Completions { .. } | Command::Man | Command::Warm(_) => unreachable!("handled above"),
            }
        }
    }
}
