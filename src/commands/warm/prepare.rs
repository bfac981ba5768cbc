//! From the command line to volumes that are open, with a plan for each.

use std::fs::File;
use std::io::BufReader;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::cli::{self, WhichBlocks};
use crate::error::{Exit, Problem};
use crate::warm::blockset::BlockSet;
use crate::warm::depth::DepthSettings;
use crate::warm::device::Device;
use crate::warm::plan::{DEFAULT_STEP, Grid, Plan, Wishes};
use crate::warm::scheduler::{Scheduler, Settings, Straddle};
use crate::warm::state::{self, Owner, StateError, StateFile};
use crate::warm::target::{self, System, TargetError, Volume};
use crate::warm::{blocks, first};

/// A volume that is ready to be read.
pub struct Prepared {
    /// What and where it is.
    pub volume: Volume,
    /// Open.
    pub device: Device,
    /// Which blocks, in what order.
    pub plan: Plan,
    /// Whose state it is.
    pub owner: Owner,
    /// Whether what is read is written down, so that another run can go on.
    pub is_kept: bool,
    /// Read before.
    pub touched: BlockSet,
    /// Files below `--first` whose place could not be told.
    pub left_out: u64,
}

/// Everything up to the first read.
pub fn prepare(args: &cli::Warm) -> Result<Vec<Prepared>> {
    let system = System::new(args.sysfs.clone(), args.image);
    let volumes = target::resolve(&system, &args.targets).map_err(target_problem)?;
    for (option, given) in [("--blocks", args.which.blocks.is_some()), ("--state", args.resume.state.is_some())] {
        if given && volumes.len() > 1 {
            let message = format!("{option} is for one volume, and these are {}", volumes.len());
            return Err(Problem::new(Exit::Usage, message).into());
        }
    }
    let step = size_of(args.which.step.as_deref(), "--step")?.unwrap_or(DEFAULT_STEP);
    let listed = args.which.blocks.as_deref().map(|path| read_blocks(path, step)).transpose()?;
    let (mut prepared, mut placed) = (Vec::new(), vec![false; args.which.first.len()]);
    for volume in volumes {
        let device = open(&volume, &system)?;
        if step < u64::from(device.read_size) || !step.is_multiple_of(u64::from(device.sector)) {
            let message = format!("--step: blocks of {step} bytes can't be read from {}", volume.node.display());
            let hint = format!("it is a multiple of {}, and at least {}", device.sector, device.read_size);
            return Err(Problem::new(Exit::Usage, message).hint(hint).into());
        }
        let grid = Grid { size: device.size, step };
        let mut wishes = Wishes {
            parts: parts(&args.which, &volume, device.size)?,
            first: ranges(&args.which.first_range, device.size)?,
            only_first: args.which.only_first,
            blocks: listed.clone(),
        };
        let left_out = add_first(&system, &args.which, &volume, &mut wishes, &mut placed)?;
        let plan = Plan::new(grid, &wishes).map_err(|error| Problem::new(Exit::Usage, error.to_string()))?;
        let owner = Owner { identity: volume.identity.clone(), grid };
        let touched = BlockSet::new(grid.blocks());
        prepared.push(Prepared { volume, device, plan, owner, is_kept: false, touched, left_out });
    }
    if let Some(place) = placed.iter().position(|placed| !placed) {
        let path = args.which.first[place].display();
        return Err(Problem::new(Exit::Usage, format!("--first: {path} is on none of these volumes"))
            .hint("it must lie on a file system that is directly on one of them, or on a partition of it")
            .into());
    }
    if args.which.only_first && args.which.first.is_empty() && args.which.first_range.is_empty() {
        return Err(Problem::new(Exit::Usage, "--only-first needs something that comes first")
            .hint("give --first PATH or --first-range FROM-TO")
            .into());
    }
    Ok(prepared)
}

fn open(volume: &Volume, system: &System) -> Result<Device> {
    Device::open(volume, &system.sysfs).map_err(|error| {
        let problem = Problem::new(Exit::Failed, error.to_string());
        let is_file = |name: &&String| Path::new(name.as_str()).is_file();
        match volume.named.iter().find(is_file).filter(|_| !system.images) {
            Some(name) => problem.hint(format!("{name} lies on that; with --image the file itself is read")).into(),
            None => problem.into(),
        }
    })
}

fn target_problem(error: TargetError) -> anyhow::Error {
    let (exit, hint) = match &error {
        TargetError::Missing { hint, .. } => (Exit::Missing, hint.clone()),
        TargetError::NoMountPoint { hint, .. } => (Exit::Usage, hint.clone()),
        TargetError::Unfit { .. } => (Exit::Usage, None),
        TargetError::Io { .. } => (Exit::Failed, None),
    };
    let problem = Problem::new(exit, error.to_string());
    match hint {
        Some(hint) => problem.hint(hint).into(),
        None => problem.into(),
    }
}

fn read_blocks(path: &Path, step: u64) -> Result<Vec<u64>> {
    let shown = path.display();
    let read = if path == Path::new("-") {
        blocks::read(std::io::stdin().lock(), step)
    } else {
        let file = File::open(path).with_context(|| format!("cannot read {shown}"))?;
        blocks::read(BufReader::new(file), step)
    };
    match read {
        Ok(blocks) if blocks.is_empty() => {
            Err(Problem::new(Exit::Usage, format!("--blocks {shown}: the list is empty")).into())
        }
        Ok(blocks) => Ok(blocks),
        Err(error) => Err(Problem::new(Exit::Usage, format!("--blocks {shown}: {error}")).into()),
    }
}

/// What `--offset` and `--length` leave of the parts that were named.
fn parts(which: &WhichBlocks, volume: &Volume, size: u64) -> Result<Vec<Range<u64>>> {
    let offset = size_of(which.offset.as_deref(), "--offset")?;
    let length = size_of(which.length.as_deref(), "--length")?;
    if offset.is_none() && length.is_none() {
        return Ok(volume.parts.clone());
    }
    if length == Some(0) {
        return Err(Problem::new(Exit::Usage, "--length 0 leaves nothing to be read").into());
    }
    let from = offset.unwrap_or(0);
    if from >= size {
        let message = format!("--offset {from} is beyond the end of {}, which has {size} bytes", volume.node.display());
        return Err(Problem::new(Exit::Usage, message).into());
    }
    let window = from..length.map_or(size, |length| from.saturating_add(length).min(size));
    if volume.parts.is_empty() {
        return Ok(vec![window]);
    }
    let cut = |part: &Range<u64>| part.start.max(window.start)..part.end.min(window.end);
    let mut left: Vec<Range<u64>> = volume.parts.iter().map(cut).filter(|part| !part.is_empty()).collect();
    if left.is_empty() {
        // Nothing at all, which is not the same as no wish.
        left.push(0..0);
    }
    Ok(left)
}

fn size_of(text: Option<&str>, option: &str) -> Result<Option<u64>> {
    text.map(|text| parse_size(text, option)).transpose()
}

fn parse_size(text: &str, option: &str) -> Result<u64> {
    let size = text.trim().parse::<bytesize::ByteSize>().map(|size| size.as_u64());
    size.map_err(|_| Problem::new(Exit::Usage, format!("{option}: {text:?} is no size such as 512KiB or 10GiB")).into())
}

fn ranges(texts: &[String], size: u64) -> Result<Vec<Range<u64>>> {
    let range = |text: &String| {
        let wrong = || Problem::new(Exit::Usage, format!("--first-range: {text:?} is nothing such as 0-1GiB"));
        let (from, to) = text.split_once('-').ok_or_else(wrong)?;
        let range = parse_size(from, "--first-range")?..parse_size(to, "--first-range")?;
        if range.start >= size {
            let message = format!("--first-range {text} is beyond the end of the volume, which has {size} bytes");
            return Err(Problem::new(Exit::Usage, message).into());
        }
        if range.is_empty() { Err(wrong().into()) } else { Ok(range) }
    };
    texts.iter().map(range).collect()
}

/// Adds the places of the files of `--first` that are on this volume. Returns how many files could not be looked at.
fn add_first(
    system: &System,
    which: &WhichBlocks,
    volume: &Volume,
    wishes: &mut Wishes,
    placed: &mut [bool],
) -> Result<u64> {
    let mut left_out = 0;
    for (path, placed) in which.first.iter().zip(placed) {
        let failed = |error: first::FirstError| Problem::new(Exit::Failed, format!("--first: {error}"));
        let Some((disk, begin)) = target::place_of(system, first::device_of(path).map_err(failed)?) else { continue };
        if Some(&disk) != volume.name.as_ref() {
            continue;
        }
        let (extents, missing) = first::extents(path).map_err(failed)?;
        wishes.first.extend(extents.into_iter().map(|extent| begin + extent.start..begin + extent.end));
        left_out += missing;
        *placed = true;
    }
    Ok(left_out)
}

impl Prepared {
    /// The kernel's name, and what it is called elsewhere.
    pub fn shown(&self) -> String {
        let node = self.volume.node.display();
        if self.volume.identity.starts_with("vol-") {
            format!("{node} ({})", self.volume.identity)
        } else {
            node.to_string()
        }
    }

    /// Finds the place of the state and what was read before. `None` where it can't be kept.
    pub fn take_up(&mut self, args: &cli::Warm, state_dir: Option<&Path>) -> Result<Option<StateFile>> {
        let file_in = |folder: &Path| state::file_in(folder, &self.owner);
        let given = args.resume.state.clone().or_else(|| state_dir.map(file_in));
        let Some(path) = given.clone().or_else(|| default_folder().as_deref().map(file_in)) else { return Ok(None) };
        let problem = |error: StateError| {
            let hint = match error {
                StateError::Busy { .. } => {
                    return Problem::new(Exit::Busy, error.to_string()).hint("try again when it has ended");
                }
                StateError::Foreign { .. } => "give another --state FILE: this one is left alone",
                _ => "remove it, give --state FILE, or read everything once more with --again",
            };
            Problem::new(Exit::Failed, format!("the state of the warm-up: {error}")).hint(hint)
        };
        match state::load(&path, &self.owner) {
            Ok(touched) => self.touched = touched,
            Err(_) if args.resume.again => {}
            Err(error) => return Err(problem(error).into()),
        }
        if args.resume.again {
            // What is not planned now stays read.
            self.touched.subtract(&self.plan.wanted);
        }
        match StateFile::create(&path, &self.owner, self.touched.clone()) {
            Ok(file) => {
                self.is_kept = true;
                Ok(Some(file))
            }
            Err(error @ (StateError::Busy { .. } | StateError::Foreign { .. })) => Err(problem(error).into()),
            Err(error) if given.is_some() => Err(Problem::new(Exit::Failed, error.to_string()).into()),
            Err(error) => {
                tracing::warn!("{error}: a run that is interrupted will begin anew");
                Ok(None)
            }
        }
    }

    /// How many of the planned blocks were read before.
    pub fn touched_before(&self) -> u64 {
        let mut touched = self.plan.wanted.clone();
        touched.intersect(&self.touched);
        touched.len()
    }

    /// Whether nothing is left to be read.
    pub fn is_finished(&self) -> bool {
        self.touched_before() == self.plan.wanted.len()
    }

    /// Its scheduler.
    pub fn scheduler(&self, args: &cli::Warm) -> Scheduler {
        Scheduler::new(&self.plan, self.touched.clone(), self.settings(args))
    }

    /// How it is to be read.
    pub fn settings(&self, args: &cli::Warm) -> Settings {
        let how = &args.how;
        Settings {
            read_size: self.device.read_size,
            sector: self.device.sector,
            shift: 0,
            retries: how.retries,
            max_iops: how.max_iops,
            straddle: match how.straddle {
                cli::Straddle::Auto => Straddle::Auto,
                cli::Straddle::On => Straddle::On,
                cli::Straddle::Off => Straddle::Off,
            },
            patience: Duration::from_secs(how.give_up_after),
            depth: DepthSettings {
                fixed: how.depth,
                queue: self.device.queue,
                io_timeout: self.device.io_timeout,
                background: how.background,
                try_pairs: false,
            },
        }
    }
}

/// Where states are kept unless told otherwise: a place that does not outlive the machine's run.
fn default_folder() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some(PathBuf::from("/run/snapferry"));
    }
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    if runtime.is_none() {
        tracing::info!("there is no XDG_RUNTIME_DIR to keep a state in: a run that is interrupted will begin anew");
    }
    runtime.map(|path| path.join("snapferry"))
}
