//! Passphrases and identities: from files, commands and prompts, never from an argument.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use age::cli_common::{StdinGuard, read_identities, read_recipients};
use age::secrecy::SecretString;
use age::{Identity, Recipient, x25519};
use anyhow::{Context as _, Result};
use zeroize::Zeroizing;

use super::{Context, split_words};
use crate::children::TrackedChild;
use crate::error::{Exit, Problem};
use crate::format::age_file::one_line;
use crate::format::keys::{MAX_SCRYPT_WORK_FACTOR, parse_identity};

/// No passphrase is longer (bytes).
const MAX_PASSPHRASE: u64 = 64 * 1024;

/// Where a passphrase comes from.
pub enum PassphraseSource<'a> {
    /// A file.
    File(&'a Path),
    /// The output of a command.
    Command(&'a str),
    /// The person at the terminal; `confirm` asks twice.
    Prompt {
        /// What is asked for.
        what: &'a str,
        /// For a new one.
        confirm: bool,
    },
}

/// The one source of several options that was given.
pub fn source<'a>(
    file: Option<&'a PathBuf>,
    command: Option<&'a String>,
    prompt: Option<PassphraseSource<'a>>,
) -> Result<Option<PassphraseSource<'a>>> {
    let mut given = [
        file.map(|file| PassphraseSource::File(file)),
        command.map(|command| PassphraseSource::Command(command)),
        prompt,
    ]
    .into_iter()
    .flatten();
    let first = given.next();
    if given.next().is_some() {
        return Err(Problem::new(
            Exit::Usage,
            "a passphrase comes from a file, a command or a prompt, not from several",
        )
        .into());
    }
    Ok(first)
}

/// Reads a passphrase. A line's end at its end is not part of it.
pub fn passphrase(context: &Context, source: &PassphraseSource<'_>) -> Result<SecretString> {
    let text = match source {
        PassphraseSource::File(path) => from_file(context, path)?,
        PassphraseSource::Command(command) => from_command(command)?,
        PassphraseSource::Prompt { what, confirm } => from_prompt(what, *confirm)?,
    };
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    if text.is_empty() {
        return Err(Problem::new(Exit::Usage, "the passphrase is empty").into());
    }
    Ok(SecretString::from(text.to_owned()))
}

fn from_file(context: &Context, path: &Path) -> Result<Zeroizing<String>> {
    let unreadable = || format!("cannot read the passphrase file {}", path.display());
    let file = fs::File::open(path).with_context(unreadable)?;
    let meta = file.metadata().with_context(unreadable)?;
    if meta.is_file() && meta.mode() & 0o044 != 0 {
        context.warn(&format!("the passphrase file {} can be read by others; chmod 600 it", path.display()));
    }
    let mut text = Zeroizing::new(String::new());
    file.take(MAX_PASSPHRASE).read_to_string(&mut text).with_context(unreadable)?;
    Ok(text)
}

fn from_command(command: &str) -> Result<Zeroizing<String>> {
    let words = split_words(command, "--passphrase-command")?;
    // Its output may hold the passphrase and its arguments may hint at it: neither stands in an error.
    let failed = |why: String| Problem::new(Exit::NoKey, format!("the passphrase command {:?} {why}", words[0]));
    let mut process = Command::new(&words[0]);
    process.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = TrackedChild::spawn(&mut process).map_err(|error| failed(format!("cannot be started: {error}")))?;
    let mut text = Zeroizing::new(String::new());
    if let Some(stdout) = child.inner().stdout.take() {
        stdout
            .take(MAX_PASSPHRASE)
            .read_to_string(&mut text)
            .map_err(|_| failed("printed something else than text".into()))?;
    }
    let status = child.wait().map_err(|error| failed(format!("failed: {error}")))?;
    if !status.success() {
        return Err(failed(format!("failed ({status})")).into());
    }
    Ok(text)
}

fn from_prompt(what: &str, confirm: bool) -> Result<Zeroizing<String>> {
    if !has_terminal() {
        return Err(no_terminal(what));
    }
    let ask = |prompt: String| {
        rpassword::prompt_password(prompt).map(Zeroizing::new).map_err(|error| {
            // Ctrl-C there is a byte that rpassword turns into the signal, which ends the program with its own words.
            if error.kind() == std::io::ErrorKind::Interrupted {
                std::thread::sleep(Duration::from_secs(5));
            }
            no_terminal(what)
        })
    };
    let first = ask(format!("{what}: "))?;
    if confirm && *ask(format!("{what}, again: "))? != *first {
        return Err(Problem::new(Exit::Usage, "the two passphrases differ").into());
    }
    Ok(first)
}

/// Whether there is a terminal to ask at, wherever standard input comes from.
pub fn has_terminal() -> bool {
    fs::File::open("/dev/tty").is_ok()
}

fn no_terminal(what: &str) -> anyhow::Error {
    Problem::new(Exit::NoKey, format!("there is no terminal to ask for the {}", what.to_lowercase()))
        .hint("give --passphrase-file or --passphrase-command")
        .into()
}

/// What the age library says, in our manner: one line, no full stop, and no invisible marks around what it quotes.
fn words_of_age(text: &str) -> String {
    one_line(text).replace(['\u{2068}', '\u{2069}'], "").trim_end_matches('.').to_owned()
}

/// Identities from files: age identity files (also passphrase-protected ones), SSH private keys, age plugins.
pub fn identities(files: &[PathBuf]) -> Result<Vec<Box<dyn Identity>>> {
    let names: Vec<String> = files.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    let what = names.join(", ");
    read_identities(names, Some(MAX_SCRYPT_WORK_FACTOR), &mut StdinGuard::new(false)).map_err(|error| {
        Problem::new(Exit::NoKey, format!("the identity {what} can't be used: {}", words_of_age(&error.to_string())))
            .into()
    })
}

/// Whether an identity file is itself sealed with a passphrase: an SSH key, or an age file.
pub fn has_own_passphrase(file: &Path) -> bool {
    let mut bytes = Zeroizing::new(Vec::new());
    if fs::File::open(file).and_then(|file| file.take(MAX_PASSPHRASE).read_to_end(&mut bytes)).is_err() {
        return false;
    }
    matches!(age::ssh::Identity::from_buffer(bytes.as_slice(), None), Ok(age::ssh::Identity::Encrypted(_)))
        || age::Decryptor::new_buffered(age::armor::ArmoredReader::new(bytes.as_slice())).is_ok()
}

/// Plain age identities in files, for a person who holds the repository identity itself.
pub fn plain_identities(files: &[PathBuf]) -> Vec<x25519::Identity> {
    let texts = files.iter().filter_map(|path| {
        let mut text = Zeroizing::new(String::new());
        fs::File::open(path).ok()?.take(MAX_PASSPHRASE).read_to_string(&mut text).ok()?;
        Some(text)
    });
    texts.flat_map(|text| text.lines().filter_map(|line| parse_identity(line).ok()).collect::<Vec<_>>()).collect()
}

/// A recipient with the text that it came from.
pub struct NamedRecipient {
    /// As it was typed, or as it stands in the file.
    pub text: String,
    /// What age makes of it.
    pub recipient: Box<dyn Recipient + Send>,
}

/// Recipients as typed and from files, each on its own.
pub fn recipients(typed: &[String], files: &[PathBuf]) -> Result<Vec<NamedRecipient>> {
    let mut texts: Vec<String> = typed.iter().map(|text| text.trim().to_owned()).collect();
    for file in files {
        let text =
            fs::read_to_string(file).with_context(|| format!("cannot read the recipients file {}", file.display()))?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        texts.extend(lines.map(str::to_owned));
    }
    texts.into_iter().map(recipient).collect()
}

fn recipient(text: String) -> Result<NamedRecipient> {
    if text.starts_with("AGE-SECRET-KEY-") || text.starts_with("AGE-PLUGIN-") {
        // The text is a secret: it must not come back in the error.
        return Err(Problem::new(
            Exit::Usage,
            "an identity (secret key) was given where a recipient (public key) belongs",
        )
        .hint("age-keygen -y FILE prints the recipient of an identity file")
        .into());
    }
    let read = read_recipients(vec![text.clone()], vec![], vec![], None, &mut StdinGuard::new(true));
    let mut read = read.map_err(|error| {
        Problem::new(
            Exit::Usage,
            format!("{text:?} is no recipient that can be used: {}", words_of_age(&error.to_string())),
        )
        .hint("recipients are age1…, \"ssh-ed25519 …\", \"ssh-rsa …\", or those of an age plugin on this machine")
    })?;
    match (read.pop(), read.pop()) {
        (Some(recipient), None) => Ok(NamedRecipient { text, recipient }),
        _ => Err(Problem::new(Exit::Usage, format!("{text:?} is not one recipient")).into()),
    }
}
