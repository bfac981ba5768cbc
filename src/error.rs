//! What a failed command says and how it exits.

use std::fmt;
use std::io::Write;

/// How the program exits; the table stands in the README and the manual page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Done.
    Done = 0,
    /// Failed.
    Failed = 1,
    /// Wrong usage, or a configuration that can't be understood.
    Usage = 2,
    /// Done in part: something is reported as damaged, missing or failed.
    Partial = 3,
    /// The repository or the thing asked for does not exist.
    Missing = 4,
    /// No key here opens it, or a signature is not by the trusted signer.
    NoKey = 5,
    /// Another run holds the lock; try again.
    Busy = 6,
}

impl Exit {
    /// The status for the operating system.
    pub fn code(self) -> i32 {
        self as i32
    }
}

/// An error with an exit code of its own and, perhaps, advice. Anywhere in an anyhow chain.
#[derive(Debug)]
pub struct Problem {
    /// How the program exits.
    pub exit: Exit,
    message: String,
    hint: Option<String>,
}

impl Problem {
    /// `message`: no capital at its beginning, no full stop at its end.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into(), hint: None }
    }

    /// Advice for the person who reads it.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Problem {}

/// Nobody reads what the program prints any more. It ends without a word then, as other programs in a pipe do.
#[derive(Debug)]
pub struct ReaderGone;

impl fmt::Display for ReaderGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nobody reads standard output any more")
    }
}

impl std::error::Error for ReaderGone {}

/// Exit code and hint of the outermost [`Problem`] in the chain.
fn problem(error: &anyhow::Error) -> Option<&Problem> {
    error.chain().find_map(|cause| cause.downcast_ref())
}

/// The exit code of a failed command.
pub fn exit_of(error: &anyhow::Error) -> Exit {
    problem(error).map_or(Exit::Failed, |problem| problem.exit)
}

/// The error as one line, without anything that could act on a terminal.
pub fn message_of(error: &anyhow::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in error.chain() {
        let text = cause.to_string();
        // Wrappers of the standard library repeat the text of what they wrap.
        if !parts.iter().any(|part| part.contains(&text)) {
            parts.push(text);
        }
    }
    parts.join(": ").chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A line on standard error, or several, without anything that could act on a terminal: names come from everywhere.
/// Whoever reads it may have gone, or its disk may be full: that ends no work.
pub fn say(line: fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{}", tame(&line.to_string()));
}

/// The text without control characters but line ends.
pub fn tame(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { ' ' } else { c }).collect()
}

/// Prints `snapferry: error: …` and `snapferry: hint: …`, or one JSON object, on standard error.
pub fn report(error: &anyhow::Error, json: bool) {
    let (message, hint) = (message_of(error), problem(error).and_then(|problem| problem.hint.as_deref()));
    if json {
        say(format_args!(
            "{}",
            serde_json::json!({"error": {"message": message, "hint": hint, "exit_code": exit_of(error).code()}})
        ));
        return;
    }
    say(format_args!("snapferry: error: {message}"));
    if let Some(hint) = hint {
        say(format_args!("snapferry: hint: {hint}"));
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn code_and_text_come_from_the_whole_chain() {
        let error =
            Err::<(), _>(Problem::new(Exit::Busy, "another run holds the lock")).context("cannot back up").unwrap_err();
        assert_eq!(exit_of(&error), Exit::Busy);
        assert_eq!(message_of(&error), "cannot back up: another run holds the lock");
        let plain = anyhow::anyhow!("first\nsecond\u{1b}[31m");
        assert_eq!(exit_of(&plain), Exit::Failed);
        assert_eq!(message_of(&plain), "first second [31m");
    }
}
