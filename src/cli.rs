//! What was typed. No other file knows clap, and nothing here decides anything.
#![allow(rustdoc::broken_intra_doc_links, reason = "these comments are the help text, and [ ] in it means optional")]

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// The command line.
#[derive(Debug, Parser)]
#[command(
    name = "snapferry",
    version,
    about = "Carries ZFS snapshot streams away and back: compressed, sealed on this machine, checked, resumable",
    long_about = "Carries ZFS snapshot streams away and back. A stream is compressed and sealed on this machine with every core \
        and kept at a place that nobody needs to trust: a folder, or any SSH host with SFTP. Any machine with the key \
        restores it, into any pool.",
    after_help = "Exit codes: 0 done; 1 failed; 2 wrong usage or configuration; 3 done in part, something is damaged or \
        missing; 4 does not exist; 5 no key here opens it, or not signed by the trusted signer; 6 busy, try again; \
        130 and 143 stopped by a signal.",
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub struct Cli {
    /// Options that every command takes.
    #[command(flatten)]
    pub global: Global,
    /// The verb.
    #[command(subcommand)]
    pub command: Command,
}

/// Options that every command takes.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of every command")]
pub struct Global {
    /// Where profiles and writer keys are kept [default: ~/.config/snapferry; root: /etc/snapferry]
    #[arg(long, global = true, value_name = "DIR", env = "SNAPFERRY_CONFIG_DIR", hide_env_values = true)]
    pub config_dir: Option<PathBuf>,
    /// Where journals and memories are kept [default: ~/.local/state/snapferry; root: /var/lib/snapferry; with --config-dir: DIR/state]
    #[arg(long, global = true, value_name = "DIR", env = "SNAPFERRY_STATE_DIR", hide_env_values = true)]
    pub state_dir: Option<PathBuf>,
    /// Print nothing but errors and what was asked for
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Say more on standard error
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Print JSON on standard output, and errors as JSON on standard error
    #[arg(long, global = true)]
    pub json: bool,
    /// Show what would be done, and do nothing
    #[arg(short = 'n', long, global = true)]
    pub dry_run: bool,
    /// The ssh program with its own options, split like a shell does (no shell is run)
    #[arg(long, global = true, value_name = "COMMAND", env = "SNAPFERRY_SSH_COMMAND", hide_env_values = true)]
    pub ssh_command: Option<String>,
    /// How many transfers run at once [default: 4]
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=32))]
    pub connections: Option<u8>,
    /// The zfs program
    #[arg(long, global = true, value_name = "PROGRAM", default_value = "zfs")]
    pub zfs_command: PathBuf,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a repository and a profile for it
    Init(Init),
    /// Back up a dataset, a snapshot, or a stream from standard input
    Backup(Backup),
    /// Show what a backup would send, what else it could, and why
    Plan(Plan),
    /// Show or release what backups hold at the source
    Holds(Holds),
    /// Remove old backups by a policy, never one that another needs
    Prune(Prune),
    /// List the backups in a repository
    List(List),
    /// Check a repository
    Check(Check),
    /// Restore a backup
    Restore(Restore),
    /// Make a profile for a repository that exists, to restore on another machine
    Connect(Connect),
    /// Show and change who can open a repository
    #[command(subcommand)]
    Key(Key),
    /// Initialise volumes made from snapshots: read each block once, many at a time
    Warm(Warm),
    /// Print shell completions
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page
    Man,
}

/// Shells that completions are made for.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Shell {
    /// bash
    Bash,
    /// zsh
    Zsh,
    /// fish
    Fish,
}

/// Who shall be able to open a repository.
#[derive(Debug, Args)]
pub struct NewKeys {
    /// A recipient: age1…, an ssh-ed25519 or ssh-rsa public key, or that of an age plugin (may be repeated)
    #[arg(short, long, value_name = "RECIPIENT")]
    pub recipient: Vec<String>,
    /// A file of recipients, one a line (may be repeated)
    #[arg(short = 'R', long, value_name = "FILE")]
    pub recipients_file: Vec<PathBuf>,
}

/// What opens a repository.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "What opens the repository")]
pub struct OpenWith {
    /// An age identity file or an SSH private key (may be repeated)
    #[arg(short, long, value_name = "FILE")]
    pub identity: Vec<PathBuf>,
    /// A file that holds the passphrase
    #[arg(long, value_name = "FILE")]
    pub passphrase_file: Option<PathBuf>,
    /// A command that prints the passphrase, split like a shell does (no shell is run)
    #[arg(long, value_name = "COMMAND")]
    pub passphrase_command: Option<String>,
    /// Ask for the passphrase
    #[arg(long)]
    pub passphrase: bool,
    /// The public key whose signatures are trusted, from the recovery sheet (RW…)
    #[arg(long, value_name = "KEY")]
    pub signer: Option<String>,
}

/// `init`
#[derive(Debug, Args)]
pub struct Init {
    /// The profile's name
    pub name: String,
    /// Where the repository will be: a folder, ssh://user@host[:port]/path or user@host:path
    pub url: String,
    /// Who shall be able to open it.
    #[command(flatten)]
    pub keys: NewKeys,
    /// A file that holds a passphrase that shall open it
    #[arg(long, value_name = "FILE")]
    pub passphrase_file: Option<PathBuf>,
    /// A command that prints such a passphrase
    #[arg(long, value_name = "COMMAND")]
    pub passphrase_command: Option<String>,
    /// Ask for such a passphrase
    #[arg(long)]
    pub passphrase: bool,
    /// An identity of one of the recipients, to prove that it opens what was written
    #[arg(short, long, value_name = "FILE")]
    pub identity: Vec<PathBuf>,
}

/// `backup`
#[derive(Debug, Args)]
pub struct Backup {
    /// A repository [default: SNAPFERRY_REPOSITORY], and a dataset, of which a snapshot is taken, or a snapshot
    #[arg(value_names = ["REPOSITORY", "DATASET[@SNAPSHOT]"], num_args = 0..=2)]
    pub words: Vec<String>,
    /// Back up what comes on standard input: any stream
    #[arg(long, requires = "name", conflicts_with_all = ["full", "base", "pull", "send_flags", "max_chain", "full_every",
        "recursive", "matching", "exclude", "catch_up", "keep_source", "snapshot_name"])]
    pub stdin: bool,
    /// The name that a stream from standard input is found by
    #[arg(long, value_name = "NAME", requires = "stdin")]
    pub name: Option<String>,
    /// Send the whole snapshot, whatever is kept already
    #[arg(long, conflicts_with = "base")]
    pub full: bool,
    /// Send what changed since this snapshot or bookmark (@monday, #monday)
    #[arg(long, value_name = "BASE")]
    pub base: Option<String>,
    /// How to compress: zstd[:1-19], gzip[:1-9] or none [default: zstd:3]
    #[arg(short = 'z', long, value_name = "CODEC")]
    pub compression: Option<String>,
    /// Bytes of stream in each stored object, such as 16MiB [default: 16 MiB, more for huge streams]
    #[arg(long, value_name = "SIZE")]
    pub segment_size: Option<String>,
    /// Start over instead of going on where an interrupted run stopped
    #[arg(long)]
    pub no_resume: bool,
    /// Don't open each sealed segment again before it is stored
    #[arg(long)]
    pub no_verify: bool,
    /// A writer key, for use without a profile
    #[arg(long, value_name = "FILE")]
    pub writer_key: Option<PathBuf>,
    /// How it is sent.
    #[command(flatten)]
    pub how: HowToSend,
    /// Which snapshots.
    #[command(flatten)]
    pub which: WhichSnapshots,
}

/// How a dataset is sent, for `backup` and `plan`.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "How it is sent")]
pub struct HowToSend {
    /// The dataset or snapshot is at another machine, whose zfs is run by ssh: user@host:dataset, ssh://user@host:port/dataset
    #[arg(long, value_name = "SOURCE")]
    pub pull: Option<String>,
    /// Flags of zfs send, of -L -c -w -p, kept for the life of a chain [default: -L -c; encrypted datasets: -w]
    #[arg(long, value_name = "FLAGS", allow_hyphen_values = true)]
    pub send_flags: Option<String>,
    /// Begin a new chain when one has so many backups [default: found by cost, at most 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_chain: Option<u32>,
    /// Begin a new chain when the full backup is older than this, such as 30d
    #[arg(long, value_name = "TIME")]
    pub full_every: Option<String>,
}

/// Which snapshots of a dataset `backup` takes.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Which snapshots of a dataset")]
pub struct WhichSnapshots {
    /// All datasets below as well, their snapshots taken at the same instant, each with a chain of its own
    #[arg(short, long)]
    pub recursive: bool,
    /// Take no snapshot: back up the newest that is there and whose name fits this pattern (may be repeated)
    #[arg(long = "match", value_name = "GLOB")]
    pub matching: Vec<String>,
    /// Take no snapshot: back up the newest that is there and whose name does not fit (may be repeated)
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<String>,
    /// Also back up each snapshot that was made since the newest one that is kept
    #[arg(long)]
    pub catch_up: bool,
    /// Then destroy the older of the snapshots that snapferry took for this repository, all but this many
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub keep_source: Option<u32>,
    /// The name of snapshots that are taken, as for strftime [default: snapferry_%Y%m%dT%H%M%SZ]
    #[arg(long, value_name = "PATTERN")]
    pub snapshot_name: Option<String>,
}

/// `plan`
#[derive(Debug, Args)]
pub struct Plan {
    /// A repository [default: SNAPFERRY_REPOSITORY], and a dataset or a snapshot
    #[arg(value_names = ["REPOSITORY", "DATASET[@SNAPSHOT]"], num_args = 0..=2)]
    pub words: Vec<String>,
    /// A writer key, for use without a profile
    #[arg(long, value_name = "FILE")]
    pub writer_key: Option<PathBuf>,
    /// How it would be sent.
    #[command(flatten)]
    pub how: HowToSend,
}

/// `holds`
#[derive(Debug, Args)]
pub struct Holds {
    /// A repository [default: SNAPFERRY_REPOSITORY], and list (the default) or release
    #[arg(value_names = ["REPOSITORY", "ACTION"], num_args = 0..=2)]
    pub words: Vec<String>,
    /// Release also what an interrupted backup needs to go on, and what other machines hold for this repository
    #[arg(long)]
    pub all: bool,
    /// The dataset is at another machine, whose zfs is run by ssh: user@host:dataset
    #[arg(long, value_name = "SOURCE")]
    pub pull: Option<String>,
    /// A writer key, for use without a profile
    #[arg(long, value_name = "FILE")]
    pub writer_key: Option<PathBuf>,
}

/// `prune`
#[derive(Debug, Args)]
pub struct Prune {
    /// A repository [default: SNAPFERRY_REPOSITORY]
    pub repository: Option<String>,
    /// Keep the newest N of each dataset
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub keep_last: u32,
    /// Keep the newest of each of the last N hours that have a backup (UTC)
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub keep_hourly: u32,
    /// The same with days
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub keep_daily: u32,
    /// The same with ISO weeks
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub keep_weekly: u32,
    /// The same with months
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub keep_monthly: u32,
    /// The same with years
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub keep_yearly: u32,
    /// Keep all that are no older than this, counted from the newest of the dataset, such as 30d
    #[arg(long, value_name = "TIME")]
    pub keep_within: Option<String>,
    /// Leave objects of no backup alone until they are so old [default: 7d]
    #[arg(long, value_name = "TIME")]
    pub grace: Option<String>,
    /// A writer key, for use without a profile
    #[arg(long, value_name = "FILE")]
    pub writer_key: Option<PathBuf>,
}

/// `list`
#[derive(Debug, Args)]
pub struct List {
    /// A repository [default: SNAPFERRY_REPOSITORY], and what to list of it: a dataset, dataset@snapshot, or a stream's name
    #[arg(value_names = ["REPOSITORY", "NAME"], num_args = 0..=2)]
    pub words: Vec<String>,
    /// What opens it.
    #[command(flatten)]
    pub open: OpenWith,
    /// A writer key, for use without a profile
    #[arg(long, value_name = "FILE")]
    pub writer_key: Option<PathBuf>,
}

/// `check`
#[derive(Debug, Args)]
pub struct Check {
    /// A repository [default: SNAPFERRY_REPOSITORY]
    pub repository: Option<String>,
    /// Fetch all objects, or a random sample (5%), and compare them with what was signed
    #[arg(long, value_name = "PART", num_args = 0..=1, require_equals = true, default_missing_value = "100%")]
    pub read_data: Option<String>,
    /// Accept the repository's present state as right: backups that are gone are no longer missed
    #[arg(long)]
    pub accept: bool,
    /// What opens it.
    #[command(flatten)]
    pub open: OpenWith,
    /// A writer key, for use without a profile
    #[arg(long, value_name = "FILE")]
    pub writer_key: Option<PathBuf>,
}

/// `restore`
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("destination").required(true))]
pub struct Restore {
    /// A repository [default: SNAPFERRY_REPOSITORY], and a backup: dataset[@snapshot], a stream's name, or an id
    #[arg(value_names = ["REPOSITORY", "BACKUP"], num_args = 1..=2)]
    pub words: Vec<String>,
    /// Receive the whole chain into this dataset, which need not exist
    #[arg(long, value_name = "DATASET", group = "destination")]
    pub to: Option<String>,
    /// Write that backup's own stream into a file, or - for standard output
    #[arg(short, long, value_name = "FILE", group = "destination")]
    pub output: Option<PathBuf>,
    /// Write each stream of the chain into a file of its own, in order
    #[arg(long, value_name = "DIR", group = "destination")]
    pub output_dir: Option<PathBuf>,
    /// Receive over an existing dataset (zfs receive -F), or replace existing files
    #[arg(long)]
    pub force: bool,
    /// What opens it.
    #[command(flatten)]
    pub open: OpenWith,
}

/// `connect`
#[derive(Debug, Args)]
pub struct Connect {
    /// The profile's name
    pub name: String,
    /// Where the repository is
    pub url: String,
    /// What opens it.
    #[command(flatten)]
    pub open: OpenWith,
}

/// `key`
#[derive(Debug, Subcommand)]
pub enum Key {
    /// List the slots: who can open the repository
    List {
        /// A repository [default: SNAPFERRY_REPOSITORY]
        repository: Option<String>,
    },
    /// Add a recipient or a passphrase
    Add {
        /// A repository [default: SNAPFERRY_REPOSITORY]
        repository: Option<String>,
        /// Who shall be able to open it as well.
        #[command(flatten)]
        keys: NewKeys,
        /// A new passphrase.
        #[command(flatten)]
        new: NewPassphrase,
        /// What opens it now.
        #[command(flatten)]
        open: OpenWith,
    },
    /// Remove a slot, by its name
    Remove {
        /// A repository and a slot; without the first, SNAPFERRY_REPOSITORY
        #[arg(value_names = ["REPOSITORY", "SLOT"], num_args = 1..=2)]
        words: Vec<String>,
        /// What opens another slot; needed where this machine did not make one that stays.
        #[command(flatten)]
        open: OpenWith,
    },
    /// Change the passphrase
    Passwd {
        /// A repository [default: SNAPFERRY_REPOSITORY]
        repository: Option<String>,
        /// The new passphrase.
        #[command(flatten)]
        new: NewPassphrase,
        /// What opens it now; the slot of the old passphrase is removed.
        #[command(flatten)]
        open: OpenWith,
    },
}

/// A passphrase that shall open a repository from now on.
#[derive(Debug, Args)]
pub struct NewPassphrase {
    /// A file that holds the new passphrase
    #[arg(long, value_name = "FILE")]
    pub new_passphrase_file: Option<PathBuf>,
    /// A command that prints the new passphrase
    #[arg(long, value_name = "COMMAND")]
    pub new_passphrase_command: Option<String>,
    /// Ask for the new passphrase
    #[arg(long)]
    pub new_passphrase: bool,
}

/// `warm`
#[derive(Clone, Debug, Default, Args)]
pub struct Warm {
    /// Volume ids (vol-…), devices, partitions, LVM, md and dm devices, or mount points
    #[arg(required = true, value_name = "DEVICE")]
    pub targets: Vec<String>,
    /// Say nothing but errors (as -q)
    #[arg(short, long)]
    pub silent: bool,
    /// Tell beginning, progress, errors and end to syslog as well
    #[arg(short = 'l', long)]
    pub syslog: bool,
    /// The socket of syslog
    #[arg(long, hide = true, value_name = "SOCKET")]
    pub syslog_socket: Option<PathBuf>,
    /// A regular file is a volume itself, and does not stand for the device that it lies on
    #[arg(long)]
    pub image: bool,
    /// What is read first and how much.
    #[command(flatten)]
    pub which: WhichBlocks,
    /// How it is read.
    #[command(flatten)]
    pub how: HowToRead,
    /// How it goes on after an interruption.
    #[command(flatten)]
    pub resume: WarmState,
    /// Read nothing but samples (all: everything) again, and judge by latency how much is still cold
    #[arg(long, value_name = "COUNT|all", num_args = 0..=1, require_equals = true, default_missing_value = "1000")]
    pub verify: Option<String>,
    /// Another /sys
    #[arg(long, hide = true, value_name = "DIR")]
    pub sysfs: Option<PathBuf>,
}

/// Which blocks `warm` reads, and in what order.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Which blocks, in what order")]
pub struct WhichBlocks {
    /// A file or folder of a mounted file system, whose blocks come first (may be repeated)
    #[arg(long, value_name = "PATH")]
    pub first: Vec<PathBuf>,
    /// Bytes of the volume that come first, such as 0-1GiB (may be repeated)
    #[arg(long, value_name = "FROM-TO")]
    pub first_range: Vec<String>,
    /// End when what comes first is read
    #[arg(long)]
    pub only_first: bool,
    /// Only the blocks in this output of "aws ebs list-snapshot-blocks" (-: standard input)
    #[arg(long, value_name = "FILE")]
    pub blocks: Option<PathBuf>,
    /// Begin at this byte of the volume
    #[arg(long, value_name = "SIZE")]
    pub offset: Option<String>,
    /// Go no further than this
    #[arg(long, value_name = "SIZE")]
    pub length: Option<String>,
    /// Bytes of a block [default: 512KiB]
    #[arg(long, value_name = "SIZE")]
    pub step: Option<String>,
}

/// How `warm` reads.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "How to read")]
pub struct HowToRead {
    /// So many reads at once for each volume [default: found out, 8 to 512]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub depth: Option<u32>,
    /// At most so many reads a second for each volume
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_iops: Option<u32>,
    /// Stay out of the way of an application on the same volume
    #[arg(long)]
    pub background: bool,
    /// Touch two blocks with one read across the border between them
    #[arg(long, value_enum, default_value_t)]
    pub straddle: Straddle,
    /// How often a block that can't be read is tried again
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub retries: u32,
    /// What carries the reads
    #[arg(long, value_enum, default_value_t)]
    pub engine: ReadEngine,
    /// A read that has not come back after so many seconds counts as failed
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..))]
    pub give_up_after: u64,
}

/// Where `warm` keeps what it has read.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "After an interruption")]
pub struct WarmState {
    /// Where the blocks that were read are kept [default: a file of the volume in --state-dir, /run/snapferry, or $XDG_RUNTIME_DIR/snapferry]
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// Read everything once more, whatever was read before
    #[arg(long)]
    pub again: bool,
}

/// Whether one read touches two blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Straddle {
    /// Try it, and keep it where it pays
    #[default]
    Auto,
    /// Always
    On,
    /// Never
    Off,
}

/// What carries reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ReadEngine {
    /// io_uring, or threads where the system refuses it
    #[default]
    Auto,
    /// io_uring
    IoUring,
    /// pread on threads
    Threads,
}

/// What the program takes under the name `ebsinit`: the options of that tool.
#[derive(Debug, Parser)]
#[command(
    name = "ebsinit",
    about = "Initialise a volume made from a snapshot: snapferry warm with the options of ebsinit",
    disable_version_flag = true,
    arg_required_else_help = true
)]
pub struct Ebsinit {
    /// Say nothing but errors
    #[arg(short, long)]
    pub silent: bool,
    /// Tell beginning, progress and end to syslog as well
    #[arg(short = 'l', long)]
    pub syslog: bool,
    /// Print the version
    #[arg(short, long)]
    pub version: bool,
    /// The volume
    #[arg(value_name = "DEVICE", required_unless_present = "version")]
    pub target: Option<String>,
}
