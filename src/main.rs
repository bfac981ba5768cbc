//! Parse, run, exit.

#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used)]

use std::fmt::{Debug, Write};
use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use clap::Parser;
use clap::error::ErrorKind;
use signal_hook::consts::SIGPIPE;
use signal_hook::iterator::Signals;
use snapferry::cli::{Cli, Command, Ebsinit};
use snapferry::error::{Exit, Problem, ReaderGone};
use snapferry::{children, commands, error};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// A signal came, and its thread decides how the program ends.
static STOPPING: AtomicBool = AtomicBool::new(false);

fn main() -> ExitCode {
    let cli = if is_called("ebsinit") { as_ebsinit() } else { Cli::try_parse().unwrap_or_else(|error| usage(&error)) };
    let (json, verbose, quiet) = (cli.global.json, cli.global.verbose, cli.global.quiet);
    log_to_stderr(verbose, quiet, json);
    // It ends in order: it says what it has done and writes down where it was.
    if !matches!(cli.command, Command::Warm(_)) {
        stop_on_signals(json);
    }
    let result = commands::run(cli);
    while STOPPING.load(Ordering::SeqCst) {
        // What failed because its children were ended by the signal is no error of its own.
        thread::park();
    }
    children::end_all();
    let exit = match result {
        Ok(exit) => exit,
        Err(error) if error.is::<ReaderGone>() => {
            // Ends the process by that signal.
            let _ = signal_hook::low_level::emulate_default_handler(SIGPIPE);
            Exit::Failed
        }
        Err(error) => {
            error::report(&error, json);
            error::exit_of(&error)
        }
    };
    // Threads may still be blocked on a source or a store that failed: nothing waits for them.
    std::process::exit(exit.code())
}

/// Whether the program was started under this name, as by a symlink.
fn is_called(name: &str) -> bool {
    std::env::args_os().next().is_some_and(|program| Path::new(&program).file_name().is_some_and(|file| file == name))
}

/// The command line of the tool of that name, in our words.
fn as_ebsinit() -> Cli {
    let Ebsinit { silent, syslog, version, target } = Ebsinit::parse();
    if version {
        println!("ebsinit (snapferry {})", env!("CARGO_PKG_VERSION"));
        std::process::exit(0);
    }
    let mut words = vec!["snapferry".to_owned(), "warm".to_owned(), "--image".to_owned()];
    words.extend(silent.then(|| "--silent".to_owned()));
    words.extend(syslog.then(|| "--syslog".to_owned()));
    words.push("--".to_owned());
    words.extend(target);
    Cli::parse_from(words)
}

/// Help and version go out as they are; wrong usage is JSON where JSON was asked for.
fn usage(error: &clap::Error) -> ! {
    let json = std::env::args_os().take_while(|word| word != "--").any(|word| word == "--json");
    let asked_for = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    if !json || asked_for {
        error.exit();
    }
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    let problem = Problem::new(Exit::Usage, line.strip_prefix("error: ").unwrap_or(line));
    error::report(&problem.hint("--help tells what is understood").into(), true);
    std::process::exit(Exit::Usage.code())
}

/// What happens below the commands is told with `-v`; warnings always.
fn log_to_stderr(verbose: u8, quiet: bool, json: bool) {
    let level = match (verbose, quiet) {
        (0, true) => LevelFilter::ERROR,
        // A person at a terminal wants to know why nothing moves; cron wants silence when it went well in the end.
        (0, false) if std::io::stderr().is_terminal() && !json => LevelFilter::INFO,
        (0, false) => LevelFilter::WARN,
        (1, _) => LevelFilter::INFO,
        (2, _) => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    tracing_subscriber::registry().with(Lines { json }.with_filter(level)).init();
}

/// Prints events in the words of the program: a line each, or JSON.
struct Lines {
    json: bool,
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        let text: String = message.0.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let warning = *event.metadata().level() <= Level::WARN;
        match (self.json, warning) {
            (true, true) => error::say(format_args!("{}", serde_json::json!({"warning": {"message": text}}))),
            (true, false) => error::say(format_args!("{}", serde_json::json!({"note": {"message": text}}))),
            (false, true) => error::say(format_args!("snapferry: warning: {text}")),
            (false, false) => error::say(format_args!("snapferry: {text}")),
        }
    }
}

/// The text of an event, and after it what else it carries.
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let written = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
        // A String takes everything.
        let _ = written;
    }
}

/// A signal may come at any instant: the manifest is the only commit, so there is nothing to undo. Children are
/// ended, and the person is told what to do next.
fn stop_on_signals(json: bool) {
    let Ok(mut signals) = Signals::new(snapferry::signals::ending()) else { return };
    thread::spawn(move || {
        let Some(signal) = signals.forever().next() else { return };
        STOPPING.store(true, Ordering::SeqCst);
        children::end_all();
        if std::io::stderr().is_terminal() {
            // The progress bar's line.
            let _ = std::io::Write::write_all(&mut std::io::stderr(), b"\r\x1b[K");
        }
        let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
        let (message, hint) =
            (format!("stopped by {name}"), "nothing half-made is visible; the same command goes on where it was");
        if json {
            error::say(format_args!(
                "{}",
                serde_json::json!({"error": {"message": message, "hint": hint, "exit_code": 128 + signal}})
            ));
        } else {
            error::say(format_args!("snapferry: error: {message}\nsnapferry: hint: {hint}"));
        }
        std::process::exit(128 + signal);
    });
}
