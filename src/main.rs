//! Parse, run, exit.

#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used)]

use std::io::IsTerminal;
use std::process::ExitCode;
use std::thread;

use clap::Parser;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use snapferry::cli::Cli;
use snapferry::{children, commands, error};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let (json, verbose, quiet) = (cli.global.json, cli.global.verbose, cli.global.quiet);
    log_to_stderr(verbose, quiet);
    stop_on_signals(json);
    let result = commands::run(cli);
    children::end_all();
    let exit = match result {
        Ok(exit) => exit,
        Err(error) => {
            error::report(&error, json);
            error::exit_of(&error)
        }
    };
    // Threads may still be blocked on a source or a store that failed: nothing waits for them.
    std::process::exit(exit.code())
}

/// What happens below the commands is told with `-v`; warnings always.
fn log_to_stderr(verbose: u8, quiet: bool) {
    struct Silent;
    impl FormatTime for Silent {
        fn format_time(&self, w: &mut Writer<'_>) -> std::fmt::Result {
            w.write_str("snapferry:")
        }
    }
    let level = match (verbose, quiet) {
        (0, true) => tracing::Level::ERROR,
        (0, false) => tracing::Level::WARN,
        (1, _) => tracing::Level::INFO,
        (2, _) => tracing::Level::DEBUG,
        _ => tracing::Level::TRACE,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false)
        .with_level(verbose > 1)
        .with_timer(Silent)
        .init();
}

/// A signal may come at any instant: the manifest is the only commit, so there is nothing to undo. Children are
/// ended, and the person is told what to do next.
fn stop_on_signals(json: bool) {
    let Ok(mut signals) = Signals::new([SIGINT, SIGTERM, SIGHUP]) else { return };
    thread::spawn(move || {
        let Some(signal) = signals.forever().next() else { return };
        children::end_all();
        if std::io::stderr().is_terminal() {
            // The progress bar's line.
            eprint!("\r\u{1b}[K");
        }
        let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
        let (message, hint) =
            (format!("stopped by {name}"), "nothing half-made is visible; the same command goes on where it was");
        if json {
            eprintln!(
                "{}",
                serde_json::json!({"error": {"message": message, "hint": hint, "exit_code": 128 + signal}})
            );
        } else {
            eprintln!("snapferry: error: {message}\nsnapferry: hint: {hint}");
        }
        std::process::exit(128 + signal);
    });
}
