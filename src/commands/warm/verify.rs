//! `warm --verify`: how much is still cold.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::json;

use super::Asked;
use super::prepare::Prepared;
use super::report::{Voice, milliseconds};
use crate::cli;
use crate::commands::print_line;
use crate::error::{Exit, Problem};
use crate::warm::blockset::BlockSet;
use crate::warm::drive::{self, Observer};
use crate::warm::engine::Engine;
use crate::warm::latency::Latencies;
use crate::warm::plan::Plan;
use crate::warm::scheduler::{Failure, Scheduler, Settings, Straddle};
use crate::warm::verify::{self, Verdict};

/// Reads at once: few, so that none waits behind others.
const DEPTH: u32 = 4;
/// Blocks that are read a second time, to know how long warm reads take.
const SECOND_READING: u64 = 1000;

/// Looks at samples of all volumes, one after another.
pub fn run(count: &str, args: &cli::Warm, volumes: &[Prepared], voice: &mut Voice, asked: &Asked) -> Result<Exit> {
    let count = match count {
        "all" => u64::MAX,
        number => number.parse().ok().filter(|count| *count > 0).ok_or_else(|| {
            Problem::new(Exit::Usage, format!("--verify: {number:?} is neither a number of blocks nor \"all\""))
        })?,
    };
    let mut good = true;
    let mut rows = Vec::new();
    for volume in volumes {
        let picked = verify::sample(&volume.plan.wanted, count).context("no randomness")?;
        let again = verify::sample(&picked, SECOND_READING).context("no randomness")?;
        let mut engine = super::open_engine(args, std::slice::from_ref(volume), voice)?;
        let (first, failed) = read(args, volume, picked, &mut engine, asked)?;
        let (second, _) = read(args, volume, again, &mut engine, asked)?;
        if let Some(signal) = asked.stopped_by() {
            voice.stopped(signal, "how much is cold is not known yet");
            std::process::exit(128 + signal);
        }
        let verdict = verify::judge(&first, &second);
        good &= verdict.cold == 0 && failed == 0;
        rows.push(json!({"volume": volume.volume.identity, "device": volume.volume.node, "blocks": volume.plan.wanted.len(),
            "looked_at": verdict.looked_at, "cold": verdict.cold, "failed": failed,
            "cold_from_ms": verdict.limit.as_secs_f64() * 1e3,
            "histogram": verdict.classes.iter().map(|(below, first, second)| json!({"below_ms": below.as_secs_f64() * 1e3,
                "blocks": first, "second_reading": second})).collect::<Vec<_>>()}));
        if !voice.is_json() {
            tell(volume, &verdict, failed)?;
        }
    }
    voice.event(&json!({"event": "verified", "volumes": rows}))?;
    Ok(if good { Exit::Done } else { Exit::Partial })
}

/// Reads these blocks once, in the middle of each: the beginning may be all that came in.
fn read(
    args: &cli::Warm,
    volume: &Prepared,
    blocks: BlockSet,
    engine: &mut Engine,
    asked: &Asked,
) -> Result<(Latencies, u64)> {
    let (grid, settings) = (volume.plan.grid, volume.settings(args));
    let middle = grid.step / 2 / u64::from(settings.sector) * u64::from(settings.sector);
    let depth = crate::warm::depth::DepthSettings { fixed: Some(DEPTH), ..settings.depth };
    let settings = Settings { straddle: Straddle::Off, shift: middle, depth, ..settings };
    let mut wanted = BlockSet::new(grid.blocks());
    blocks.iter().for_each(|block| {
        wanted.insert(block);
    });
    let plan = Plan { grid, wanted, first: Vec::new() };
    let mut schedulers = [Scheduler::new(&plan, BlockSet::new(grid.blocks()), settings)];
    let mut silent = Silent { asked, failed: 0 };
    drive::run(&mut schedulers, engine, Instant::now(), &mut silent).context("the reads can't be carried on")?;
    if let Some(error) = schedulers[0].status().given_up {
        return Err(Problem::new(Exit::Failed, format!("{} answers no read: {error}", volume.shown())).into());
    }
    let latencies = schedulers[0].status().latencies.clone();
    if latencies.reads() == 0 && silent.failed > 0 {
        return Err(Problem::new(Exit::Failed, format!("{} answers no read", volume.shown())).into());
    }
    Ok((latencies, silent.failed))
}

/// Nothing is told before the end.
struct Silent<'a> {
    asked: &'a Asked,
    failed: u64,
}

impl Observer for Silent<'_> {
    fn failed(&mut self, _: usize, _: Failure) {
        self.failed += 1;
    }

    fn answered(&mut self, _: &mut [Scheduler]) {}

    fn tick(&mut self, _: &[Scheduler], _: Duration) {}

    fn stop(&self) -> bool {
        self.asked.stopped_by().is_some()
    }
}

fn tell(volume: &Prepared, verdict: &Verdict, failed: u64) -> Result<()> {
    let Verdict { looked_at, cold, limit, classes } = verdict;
    let percent = *cold as f64 * 100.0 / (*looked_at).max(1) as f64;
    let total = volume.plan.wanted.len();
    let failed = if failed > 0 { format!("; {failed} could not be read") } else { String::new() };
    print_line(&format!(
        "{}: {cold} of {looked_at} blocks looked at were cold ({percent:.1} %), of {total} in all: they took longer than {}{failed}",
        volume.shown(),
        milliseconds(*limit),
    ))?;
    print_line("      faster than       blocks  when read again")?;
    for (below, first, second) in classes {
        print_line(&format!("    {:>13} {first:>12} {second:>16}", milliseconds(*below)))?;
    }
    Ok(())
}
