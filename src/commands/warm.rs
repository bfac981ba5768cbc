//! `warm`: volumes made from snapshots, each block read once. Everything else about it is in the island of that name.

mod prepare;
mod report;
mod verify;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context as _, Result};
use signal_hook::consts::SIGUSR1;
use signal_hook::flag;

use self::prepare::Prepared;
use self::report::Voice;
use self::watch::Watch;
use crate::cli::{self, Global};
use crate::error::{Exit, Problem};
use crate::warm::drive;
use crate::warm::engine::{Engine, EngineChoice};
use crate::warm::scheduler::Scheduler;

/// What a signal asked for.
pub struct Asked {
    /// The signal that ends the run; 0 is none.
    stop: Arc<AtomicUsize>,
    /// Somebody wants to know how it stands.
    status: Arc<AtomicBool>,
}

impl Asked {
    /// From here on signals end the run in order. A second one ends the program at once.
    fn listen() -> Result<Self> {
        let asked = Self { stop: Arc::default(), status: Arc::default() };
        let again = Arc::new(AtomicBool::new(false));
        for signal in crate::signals::ending() {
            flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&again))?;
            flag::register(signal, Arc::clone(&again))?;
            flag::register_usize(signal, Arc::clone(&asked.stop), signal as usize)?;
        }
        flag::register(SIGUSR1, Arc::clone(&asked.status))?;
        Ok(asked)
    }

    /// The signal that ends the run.
    pub fn stopped_by(&self) -> Option<i32> {
        match self.stop.load(Ordering::Relaxed) {
            0 => None,
            signal => i32::try_from(signal).ok(),
        }
    }

    /// Whether somebody wants to know, once.
    pub fn wants_status(&self) -> bool {
        self.status.swap(false, Ordering::Relaxed)
    }
}

/// Runs `warm`. A run that a signal ended exits as that signal says.
pub fn run(global: &Global, args: &cli::Warm) -> Result<Exit> {
    let mut voice = Voice::new(global, args);
    match go(global, args, &mut voice) {
        Err(error) => {
            voice.syslog_error(&crate::error::message_of(&error));
            Err(error)
        }
        done => done,
    }
}

fn go(global: &Global, args: &cli::Warm, voice: &mut Voice) -> Result<Exit> {
    let asked = Asked::listen().context("signals can't be listened to")?;
    let mut volumes = prepare::prepare(args)?;
    if global.dry_run {
        voice.plan(&volumes, args)?;
        return Ok(Exit::Done);
    }
    if let Some(count) = &args.verify {
        return verify::run(count, args, &volumes, voice, &asked);
    }
    let mut states = Vec::new();
    let mut unfinished = Vec::new();
    for mut volume in volumes.drain(..) {
        let state = volume.take_up(args, global.state_dir.as_deref())?;
        if volume.is_finished() {
            voice.finished_before(&volume)?;
        } else {
            states.push(state);
            unfinished.push(volume);
        }
    }
    let volumes = unfinished;
    if volumes.is_empty() {
        return Ok(Exit::Done);
    }
    let mut engine = open_engine(args, &volumes, voice)?;
    let mut schedulers: Vec<Scheduler> = volumes.iter().map(|volume| volume.scheduler(args)).collect();
    voice.begin(&volumes, engine.name())?;
    let start = Instant::now();
    let mut watch = Watch::new(&volumes, states, voice, &asked);
    drive::run(&mut schedulers, &mut engine, start, &mut watch).context("the reads can't be carried on")?;
    drop(watch);
    let stopped = asked.stopped_by();
    voice.end(&volumes, &schedulers, start.elapsed(), stopped)?;
    if let Some(signal) = stopped.filter(|_| !schedulers.iter().all(Scheduler::is_finished)) {
        std::process::exit(128 + signal);
    }
    verdict(&volumes, &schedulers)
}

/// Done only if every planned block was read.
fn verdict(volumes: &[Prepared], schedulers: &[Scheduler]) -> Result<Exit> {
    let silent = volumes.iter().zip(schedulers).find(|(_, scheduler)| scheduler.touched().is_empty());
    if let Some((volume, scheduler)) = silent {
        let why = scheduler.status().given_up.map_or_else(|| "every read failed".to_owned(), |error| error.to_string());
        return Err(Problem::new(Exit::Failed, format!("{} answers no read: {why}", volume.shown()))
            .hint("this run brought nothing in")
            .into());
    }
    let whole = schedulers.iter().all(|scheduler| scheduler.status().touched == scheduler.status().planned);
    Ok(if whole { Exit::Done } else { Exit::Partial })
}

fn open_engine(args: &cli::Warm, volumes: &[Prepared], voice: &Voice) -> Result<Engine> {
    let choice = match args.how.engine {
        cli::ReadEngine::Auto => EngineChoice::Auto,
        cli::ReadEngine::IoUring => EngineChoice::Ring,
        cli::ReadEngine::Threads => EngineChoice::Threads,
    };
    let files = volumes.iter().map(|volume| volume.device.file.try_clone()).collect::<Result<Vec<_>, _>>()?;
    let depth = args.how.depth.unwrap_or(512).saturating_mul(u32::try_from(volumes.len()).unwrap_or(u32::MAX));
    let (mut engine, refused) = Engine::new(choice, files, depth).map_err(|error| {
        Problem::new(Exit::Failed, format!("io_uring: {error}"))
            .hint("old kernels, seccomp, kernel.io_uring_disabled or a small ulimit -l refuse it; --engine threads does without")
    })?;
    if let Some(why) = refused {
        voice.note(&format!("io_uring is not to be had here ({why}): reading with threads"));
    }
    if args.how.background && !engine.be_idle() {
        voice.note("without io_uring the priority of reads is that of the process: start it with ionice -c 3");
    }
    Ok(engine)
}
