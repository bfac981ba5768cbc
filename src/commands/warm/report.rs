//! What is said of a warm-up: to a terminal, as JSON, to syslog.

use std::time::Duration;

use anyhow::{Context as _, Result};
use indicatif::BinaryBytes;
use serde_json::{Value, json};
use syslog::{Facility, Formatter3164, Logger, LoggerBackend};

use super::prepare::Prepared;
use crate::cli::{self, Global};
use crate::commands::print_line;
use crate::error::say;
use crate::progress::{counted, duration};
use crate::warm::latency::{Latencies, Percentiles};
use crate::warm::scheduler::{Failure, Scheduler, Status};

/// So many blocks that could not be read are told one by one; all of them as JSON.
const TOLD_SINGLY: u64 = 20;
/// So many ranges of them stand in the summary.
const TOLD_RANGES: usize = 20;
/// What volumes of the usual kind were seen to do (blocks a second), for the estimate of a plan.
const USUAL_RATE: f64 = 250.0;

/// Who is told, and how.
pub struct Voice {
    quiet: bool,
    json: bool,
    verbose: bool,
    /// A person looks at standard error.
    pub terminal: bool,
    syslog: Option<Logger<LoggerBackend, Formatter3164>>,
}

impl Voice {
    /// As the command line wants it.
    pub fn new(global: &Global, args: &cli::Warm) -> Self {
        let mut voice = Self {
            quiet: global.quiet || args.silent,
            json: global.json,
            verbose: global.verbose > 0,
            terminal: std::io::IsTerminal::is_terminal(&std::io::stderr()),
            syslog: None,
        };
        // As with syslog(3), work does not wait for somebody to listen.
        match args.syslog.then(|| open_syslog(args)).transpose() {
            Ok(syslog) => voice.syslog = syslog,
            Err(error) => voice.warn(&format!("{error:#}; going on without it")),
        }
        voice
    }

    /// Whether progress is drawn.
    pub fn shows_progress(&self) -> bool {
        self.terminal && !self.quiet && !self.json
    }

    /// Whether progress is told as JSON.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// For a person at a terminal, or with `-v`.
    pub fn note(&self, text: &str) {
        if !self.quiet && !self.json && (self.terminal || self.verbose) {
            say(format_args!("snapferry: {text}"));
        }
    }

    /// What is said when not all is well, but for `-s`.
    fn tell(&self, text: &str) {
        if !self.quiet && !self.json {
            say(format_args!("snapferry: {text}"));
        }
    }

    /// For everybody.
    pub fn warn(&self, text: &str) {
        if self.json {
            say(format_args!("{}", json!({"warning": {"message": text}})));
        } else {
            say(format_args!("snapferry: warning: {text}"));
        }
    }

    /// One event, on a line of its own.
    pub fn event(&self, event: &Value) -> Result<()> {
        if self.json { print_line(&event.to_string()) } else { Ok(()) }
    }

    /// The plan, and nothing else.
    pub fn plan(&self, volumes: &[Prepared], args: &cli::Warm) -> Result<()> {
        let rate = args.how.max_iops.map_or(USUAL_RATE, |iops| f64::from(iops).min(USUAL_RATE));
        if self.json {
            let rows: Vec<Value> = volumes.iter().map(|volume| plan_json(volume, rate)).collect();
            return print_line(&serde_json::to_string_pretty(&json!({"volumes": rows}))?);
        }
        for volume in volumes {
            let (plan, grid) = (&volume.plan, volume.plan.grid);
            let wanted = plan.wanted.len();
            print_line(&format!(
                "{} for {}: {} of {}, {} in all",
                volume.shown(),
                volume.volume.named.join(", "),
                counted(wanted, "block"),
                BinaryBytes(grid.step),
                BinaryBytes(grid.bytes_of(&plan.wanted)),
            ))?;
            if !plan.first.is_empty() {
                let then = if args.which.only_first { "and nothing else" } else { "then the rest" };
                print_line(&format!("    first {}, {then}", counted(plan.first_blocks(), "block")))?;
            }
            if plan.left_out() > 0 {
                print_line(&format!("    {} of the volume stay as they are", counted(plan.left_out(), "block")))?;
            }
            print_line(&format!(
                "    about {} at {rate:.0} blocks a second, as volumes of the usual kind do; blocks that the snapshot does not have take no time",
                duration(wanted as f64 / rate)
            ))?;
        }
        Ok(())
    }

    /// The reads begin.
    pub fn begin(&mut self, volumes: &[Prepared], engine: &str) -> Result<()> {
        for volume in volumes {
            let (shown, wanted) = (volume.shown(), volume.plan.wanted.len());
            let before = volume.touched_before();
            self.syslog_info(&format!("Info: Start initialize of '{shown}'."));
            self.syslog_info(&format!("Info: Target size = {} bytes.", volume.device.size));
            let going_on = if before > 0 { format!(", going on after {before}") } else { String::new() };
            let named = volume.volume.named.join(", ");
            let whence = if shown.contains(&named) { String::new() } else { format!(" for {named}") };
            self.note(&format!("{shown}{whence}: {}{going_on}, with {engine}", counted(wanted, "block")));
            if volume.left_out > 0 {
                self.warn(&format!("--first: {} could not be looked at", counted(volume.left_out, "file or folder")));
            }
        }
        let rows: Vec<Value> = volumes
            .iter()
            .map(|volume| {
                json!({"volume": volume.volume.identity, "device": volume.volume.node, "size": volume.device.size,
                    "step": volume.plan.grid.step, "blocks": volume.plan.wanted.len(), "touched_before": volume.touched_before(),
                    "left_out": volume.plan.left_out()})
            })
            .collect();
        self.event(&json!({"event": "start", "engine": engine, "volumes": rows}))
    }

    /// Nothing is left to be read.
    pub fn finished_before(&mut self, volume: &Prepared) -> Result<()> {
        let blocks = volume.plan.wanted.len();
        let what = match blocks {
            0 => "nothing of it is to be read".to_owned(),
            _ => format!("all {} were read before; --again reads them again", counted(blocks, "block")),
        };
        let text = format!("{}: {what}", volume.shown());
        self.syslog_info(&format!("Info: {text}"));
        self.note(&text);
        self.event(&json!({"event": "finished_before", "volume": volume.volume.identity, "device": volume.volume.node,
            "blocks": blocks}))
    }

    /// A block was given up. `so_far`: how many of its volume.
    pub fn block_failed(&mut self, volume: &Prepared, failure: Failure, so_far: u64) {
        let (offset, error) = (failure.block * volume.plan.grid.step, failure.error.to_string());
        let text = format!("{}: block {} at byte {offset} can't be read: {error}", volume.shown(), failure.block);
        if self.json {
            // A reader that went away is met at the end.
            let _ = self.event(
                &json!({"event": "block_failed", "volume": volume.volume.identity, "device": volume.volume.node,
                "block": failure.block, "offset": offset, "error": error}),
            );
        } else if so_far <= TOLD_SINGLY {
            self.warn(&text);
        } else if so_far == TOLD_SINGLY + 1 {
            self.warn(&format!("{}: further blocks that can't be read are told at the end", volume.shown()));
        }
        if so_far <= TOLD_SINGLY {
            self.syslog_error(&text);
        }
    }

    /// How it stands, now and then.
    pub fn progress(&mut self, volumes: &[Prepared], schedulers: &[Scheduler], to_syslog: bool) {
        for (volume, scheduler) in volumes.iter().zip(schedulers) {
            let status = scheduler.status();
            let percent = (status.touched + status.failed) as f64 * 100.0 / status.planned.max(1) as f64;
            if to_syslog {
                self.syslog_info(&format!("Info: '{}': {percent:.1}% done.", volume.shown()));
            } else {
                let _ = self.event(&json!({"event": "progress", "volume": volume.volume.identity,
                    "device": volume.volume.node, "blocks": status.planned, "touched": status.touched,
                    "failed": status.failed, "depth": status.depth}));
            }
        }
    }

    /// Somebody sent SIGUSR1.
    pub fn status(&self, volumes: &[Prepared], schedulers: &[Scheduler], elapsed: Duration) {
        for (volume, scheduler) in volumes.iter().zip(schedulers) {
            say(format_args!("snapferry: {}: {}", volume.shown(), status_line(&scheduler.status(), volume, elapsed)));
        }
    }

    /// The summary, which is true.
    pub fn end(
        &mut self,
        volumes: &[Prepared],
        schedulers: &[Scheduler],
        elapsed: Duration,
        stopped: Option<i32>,
    ) -> Result<()> {
        let mut rows = Vec::new();
        for (volume, scheduler) in volumes.iter().zip(schedulers) {
            let status = scheduler.status();
            rows.push(done_json(volume, &status, elapsed));
            self.tell_end(volume, scheduler, elapsed, stopped);
        }
        if let Some(signal) = stopped.filter(|_| schedulers.iter().any(|scheduler| !scheduler.is_finished())) {
            let kept = volumes.iter().all(|volume| volume.is_kept);
            let hint = if kept { "the same command goes on where it was" } else { "the same command begins anew" };
            self.stopped(signal, hint);
        }
        let name = stopped.map(signal_name);
        self.event(&json!({"event": "done", "seconds": elapsed.as_secs_f64(), "stopped_by": name, "volumes": rows}))
    }

    /// A signal ended it.
    pub fn stopped(&self, signal: i32, hint: &str) {
        let message = format!("stopped by {}", signal_name(signal));
        if self.json {
            let error = json!({"message": message, "hint": hint, "exit_code": 128 + signal});
            say(format_args!("{}", json!({"error": error})));
        } else {
            say(format_args!("snapferry: error: {message}\nsnapferry: hint: {hint}"));
        }
    }

    fn tell_end(&mut self, volume: &Prepared, scheduler: &Scheduler, elapsed: Duration, stopped: Option<i32>) {
        let (status, shown) = (scheduler.status(), volume.shown());
        let left = status.planned - status.touched - status.failed;
        let whole = status.touched == status.planned;
        let word = if whole { "initialised" } else { "NOT wholly initialised" };
        let line = format!("{shown}: {word}: {}", status_line(&status, volume, elapsed));
        if whole {
            self.note(&line)
        } else {
            self.tell(&line)
        }
        if status.latencies.reads() > 0 {
            self.note(&format!("{shown}: {}", latency_words(status.latencies)));
        }
        if let Some(limit) = limit_line(&status, elapsed) {
            self.note(&format!("{shown}: {limit}"));
        }
        if volume.plan.left_out() > 0 {
            self.note(&format!("{shown}: {} were not asked for", counted(volume.plan.left_out(), "block")));
        }
        if status.failed > 0 {
            self.warn(&format!(
                "{shown}: {} could not be read: {}",
                counted(status.failed, "block"),
                failed_ranges(scheduler)
            ));
        }
        if let Some(error) = status.given_up {
            self.warn(&format!("{shown} answers no more ({error})"));
        }
        if left > 0 && stopped.is_none() {
            self.warn(&format!("{shown}: {} are still cold", counted(left, "block")));
        }
        if whole {
            self.syslog_info(&format!("Info: '{shown}': Complete."));
        } else {
            self.syslog_error(&format!("Error: {line}"));
        }
    }

    fn syslog_info(&mut self, text: &str) {
        if let Some(syslog) = &mut self.syslog {
            let _ = syslog.info(text);
        }
    }

    /// An error, for syslog alone.
    pub fn syslog_error(&mut self, text: &str) {
        if let Some(syslog) = &mut self.syslog {
            let _ = syslog.err(text);
        }
    }
}

fn signal_name(signal: i32) -> &'static str {
    signal_hook::low_level::signal_name(signal).unwrap_or("a signal")
}

fn open_syslog(args: &cli::Warm) -> Result<Logger<LoggerBackend, Formatter3164>> {
    let process = std::env::args_os().next().map(std::path::PathBuf::from);
    let process = process.as_deref().and_then(|path| path.file_name()).and_then(|name| name.to_str());
    let formatter = Formatter3164 {
        facility: Facility::LOG_USER,
        hostname: None,
        process: process.unwrap_or("snapferry").to_owned(),
        pid: std::process::id(),
    };
    let opened = match &args.syslog_socket {
        Some(socket) => syslog::unix_custom(formatter, socket),
        None => syslog::unix(formatter),
    };
    opened.map_err(|error| anyhow::anyhow!("{error}")).context("syslog can't be reached")
}

fn plan_json(volume: &Prepared, rate: f64) -> Value {
    let (plan, grid) = (&volume.plan, volume.plan.grid);
    json!({
        "volume": volume.volume.identity, "device": volume.volume.node, "named": volume.volume.named,
        "size": volume.device.size, "step": grid.step, "read_size": volume.device.read_size, "sector": volume.device.sector,
        "blocks": plan.wanted.len(), "first_blocks": plan.first_blocks(), "bytes": grid.bytes_of(&plan.wanted),
        "left_out": plan.left_out(), "estimated_seconds": plan.wanted.len() as f64 / rate,
    })
}

fn done_json(volume: &Prepared, status: &Status<'_>, elapsed: Duration) -> Value {
    let latency = |of: Option<Percentiles>| {
        of.map(
            |of| json!({"reads": of.reads, "p50_ms": of.p50.as_secs_f64() * 1e3, "p99_ms": of.p99.as_secs_f64() * 1e3}),
        )
    };
    json!({
        "volume": volume.volume.identity, "device": volume.volume.node, "blocks": status.planned, "touched": status.touched,
        "touched_before": status.before, "failed": status.failed,
        "left_cold": status.planned - status.touched, "left_out": volume.plan.left_out(),
        "cold_blocks": status.cold_blocks, "requests": status.requests, "bytes": status.bytes,
        "blocks_per_second": rate(status, elapsed), "depth": status.depth, "deepest": status.deepest,
        "knee": status.knee, "straddling": status.pairs, "cold": latency(status.latencies.cold()),
        "warm": latency(status.latencies.warm()), "given_up": status.given_up.map(|error| error.to_string()),
    })
}

/// Blocks a second of this run.
fn rate(status: &Status<'_>, elapsed: Duration) -> f64 {
    (status.touched - status.before) as f64 / elapsed.as_secs_f64().max(1e-3)
}

fn status_line(status: &Status<'_>, volume: &Prepared, elapsed: Duration) -> String {
    let blocks = rate(status, elapsed);
    let step = volume.plan.grid.step;
    let failed = if status.failed > 0 { format!(", {} failed", status.failed) } else { String::new() };
    format!(
        "{} of {} touched{failed} in {}, {blocks:.0} a second ({}/s of the volume, {} read), up to {} reads at once{}",
        status.touched,
        counted(status.planned, "block"),
        duration(elapsed.as_secs_f64()),
        BinaryBytes((blocks * step as f64) as u64),
        BinaryBytes(status.bytes),
        status.deepest,
        if status.pairs { ", two blocks a read" } else { "" },
    )
}

fn latency_words(latencies: &Latencies) -> String {
    let words = |name: &str, of: Option<Percentiles>| {
        of.map(|Percentiles { reads, p50, p99 }| {
            format!("{reads} {name} reads: half in {}, 99 % in {}", milliseconds(p50), milliseconds(p99))
        })
    };
    let both = [words("cold", latencies.cold()), words("warm", latencies.warm())];
    both.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// Three digits of it.
pub fn milliseconds(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1e3;
    if ms < 10.0 { format!("{ms:.2} ms") } else { format!("{ms:.0} ms") }
}

/// Says so where the volume is the limit, and not how it is read.
fn limit_line(status: &Status<'_>, elapsed: Duration) -> Option<String> {
    let knee = status.knee?;
    let cold = status.cold_blocks as f64 / elapsed.as_secs_f64().max(1e-3);
    Some(format!(
        "the volume is the limit: {cold:.0} cold blocks a second, and more than {knee} reads at once bring no more"
    ))
}

fn failed_ranges(scheduler: &Scheduler) -> String {
    let ranges: Vec<String> = scheduler
        .failed()
        .ranges()
        .take(TOLD_RANGES + 1)
        .map(|range| {
            if range.end - range.start == 1 {
                range.start.to_string()
            } else {
                format!("{}-{}", range.start, range.end - 1)
            }
        })
        .collect();
    let more = if ranges.len() > TOLD_RANGES { " and more" } else { "" };
    format!("{}{more}", ranges[..ranges.len().min(TOLD_RANGES)].join(", "))
}
