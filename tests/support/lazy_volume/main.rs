//! Serves lazily loaded volumes to scripts. Without arguments it says how.

mod arguments;
#[path = "mod.rs"]
mod lazy_volume;

use std::process::ExitCode;

use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use arguments::{Arguments, USAGE};
use lazy_volume::{LazyVolumes, Statistics};

/// What test harnesses take for "skipped".
const SKIPPED: u8 = 77;

fn main() -> ExitCode {
    let arguments = match Arguments::read(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("lazy_volume: {error}\n{USAGE}");
            return ExitCode::FAILURE;
        }
    };
    // Before anything is mounted: a signal from here on unmounts.
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2]).expect("signal handlers");
    let Some(volumes) = LazyVolumes::mount_at(&arguments.folder, arguments.volumes) else {
        return ExitCode::from(SKIPPED);
    };
    println!("ready");
    for signal in signals.forever() {
        match signal {
            SIGHUP => (0..volumes.count()).for_each(|n| volumes.reset(n)),
            SIGUSR2 => (0..volumes.count()).for_each(|n| volumes.release(n)),
            SIGUSR1 => println!("{}", report(&volumes)),
            _ => break,
        }
    }
    let last = report(&volumes);
    drop(volumes);
    println!("{last}");
    ExitCode::SUCCESS
}

fn report(volumes: &LazyVolumes) -> Value {
    let each: Vec<Value> = (0..volumes.count()).map(|n| of_volume(volumes.statistics(n))).collect();
    json!({ "volumes": each })
}

fn of_volume(statistics: Statistics) -> Value {
    json!({
        "chunks": statistics.chunks,
        "existing": statistics.existing,
        "cold_left": statistics.cold_left,
        "reads": statistics.reads,
        "bytes": statistics.bytes,
        "max_touches": statistics.max_touches,
        "max_in_flight": statistics.max_in_flight,
        "errors": statistics.errors,
        "seconds": statistics.took.as_secs_f64(),
        "ideal_seconds": statistics.ideal.as_secs_f64(),
    })
}
