//! `zfs` at the other end of ssh.
//!
//! ssh joins its words with spaces and hands the whole to the account's login shell. Each word is therefore quoted so
//! that any shell reads it as exactly one word; nothing else stands on that line.

use std::process::Command;

use thiserror::Error;

/// A source that can't be understood.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{text:?} is no source to pull from: {why}")]
pub struct BadRemote {
    text: String,
    why: &'static str,
}

/// An account at a host, and how ssh is called.
#[derive(Clone, Debug)]
pub struct Remote {
    /// The ssh program and its options, all but the host.
    ssh: Vec<String>,
    host: RemoteHost,
}

/// An account at a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteHost {
    /// `None`: as the ssh configuration says.
    pub user: Option<String>,
    /// A name, an address, or an alias of the ssh configuration.
    pub host: String,
    /// `None`: as the ssh configuration says.
    pub port: Option<u16>,
}

impl RemoteHost {
    /// Reads `[user@]host:dataset…` or `ssh://[user@]host[:port]/dataset…`. Returns what follows the host as well.
    pub fn parse(text: &str) -> Result<(Self, String), BadRemote> {
        let bad = |why| BadRemote { text: text.to_owned(), why };
        let (login, port, rest) = match text.strip_prefix("ssh://") {
            Some(url) => {
                let (authority, rest) = url.split_once('/').ok_or_else(|| bad("the dataset is missing"))?;
                let (login, port) = split_port(authority).map_err(bad)?;
                (login, port, rest)
            }
            None => {
                let from = text.find(']').unwrap_or(0);
                let colon = text[from..].find(':').ok_or_else(|| bad("it has the form user@host:dataset"))? + from;
                (&text[..colon], None, &text[colon + 1..])
            }
        };
        let (user, host) = match login.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, login),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let is_plain = |part: &str| {
            !part.is_empty() && !part.starts_with('-') && !part.contains(|c: char| c.is_control() || c.is_whitespace())
        };
        if !is_plain(host) || !user.is_none_or(is_plain) {
            return Err(bad("user or host is empty, begins with a dash, or has spaces in it"));
        }
        if rest.is_empty() {
            return Err(bad("the dataset is missing"));
        }
        Ok((Self { user: user.map(str::to_owned), host: host.to_owned(), port }, rest.to_owned()))
    }
}

fn split_port(authority: &str) -> Result<(&str, Option<u16>), &'static str> {
    match authority.rsplit_once(':') {
        Some((login, port)) if !port.ends_with(']') => {
            let port = port.parse().ok().filter(|port| *port > 0).ok_or("the port is no number")?;
            Ok((login, Some(port)))
        }
        _ => Ok((authority, None)),
    }
}

impl Remote {
    /// `ssh` is the program with its own options (those of the connection are for the caller to add).
    pub fn new(ssh: Vec<String>, host: RemoteHost) -> Self {
        Self { ssh, host }
    }

    /// `user@host`.
    pub fn name(&self) -> String {
        match &self.host.user {
            Some(user) => format!("{user}@{}", self.host.host),
            None => self.host.host.clone(),
        }
    }

    /// The host alone.
    pub fn host(&self) -> &str {
        &self.host.host
    }

    /// ssh with a command of these words, each of which arrives as one word.
    pub(super) fn command(&self, words: &[String]) -> Command {
        let mut ssh = self.ssh.iter();
        let mut command = Command::new(ssh.next().map_or("ssh", String::as_str));
        command.args(ssh);
        if let Some(port) = self.host.port {
            command.args(["-p", &port.to_string()]);
        }
        if let Some(user) = &self.host.user {
            command.args(["-l", user]);
        }
        // Messages are parsed and quoted: they must not depend on the far end's language. `env`, because not every
        // login shell knows assignments before a command.
        let line = ["env", "LC_ALL=C"].into_iter().chain(words.iter().map(String::as_str));
        let line = line.map(quoted).collect::<Vec<_>>().join(" ");
        command.args(["-T", "--", &self.host.host, &line]);
        command
    }
}

/// One word for any shell that knows quotes: fish, unlike the others, minds a backslash between single quotes.
fn quoted(word: &str) -> String {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-_./:=@,+".contains(&b);
    if !word.is_empty() && word.bytes().all(is_plain) {
        return word.to_owned();
    }
    let inner = |c: char| match c {
        '\'' => r#"'"'"'"#.to_owned(),
        '\\' => r#"'"\\"'"#.to_owned(),
        other => other.to_string(),
    };
    format!("'{}'", word.chars().map(inner).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> (Option<String>, String, Option<u16>, String) {
        let (RemoteHost { user, host, port }, rest) = RemoteHost::parse(text).unwrap();
        (user, host, port, rest)
    }

    #[test]
    fn sources_as_people_write_them() {
        let of = |user: Option<&str>, host: &str, port, rest: &str| {
            (user.map(str::to_owned), host.to_owned(), port, rest.to_owned())
        };
        assert_eq!(host("root@nas:tank/data"), of(Some("root"), "nas", None, "tank/data"));
        assert_eq!(host("nas:tank/My Files@a:b"), of(None, "nas", None, "tank/My Files@a:b"));
        assert_eq!(host("ssh://nas:2222/tank/data@x"), of(None, "nas", Some(2222), "tank/data@x"));
        assert_eq!(host("ssh://a@[::1]:22/tank"), of(Some("a"), "::1", Some(22), "tank"));
        assert_eq!(host("a@[fe80::1]:tank"), of(Some("a"), "fe80::1", None, "tank"));
        for bad in [
            "tank/data",
            "-oProxyCommand=x:tank",
            "a b:tank",
            ":tank",
            "nas:",
            "ssh://nas",
            "ssh://nas:0/t",
            "@nas:t",
            "-l@nas:t",
        ] {
            assert!(RemoteHost::parse(bad).is_err(), "{bad}");
        }
    }

    /// Every shell of this machine reads hostile words as they were.
    #[test]
    fn each_word_arrives_as_one_word() {
        let hostile = [
            "plain",
            "",
            " ",
            "two words",
            "a'b",
            "'",
            "''",
            "\"",
            "$HOME",
            "$(touch x)",
            "`id`",
            "a\\b",
            "\\",
            ";",
            "&",
            "|",
            "*",
            "~",
            "#c",
            "!x",
            "a=b",
            "-n",
            "{a,b}",
            "a\tb",
            "%s",
            "tank/My Files@it's; rm -rf /",
        ];
        let line = hostile.map(quoted).join(" ");
        for shell in ["sh", "bash", "dash", "zsh", "fish"] {
            let script = format!("printf '<%s>\\n' {line}");
            let Ok(output) = Command::new(shell).args(["-c", &script]).output() else { continue };
            let expected: String = hostile.iter().map(|word| format!("<{word}>\n")).collect();
            assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{shell}");
        }
    }

    #[test]
    fn the_command_line_of_ssh() {
        let (host, _) = RemoteHost::parse("ssh://root@nas:2222/x").unwrap();
        let remote = Remote::new(vec!["ssh".into(), "-oBatchMode=yes".into()], host);
        let command = remote.command(&["zfs".into(), "list".into(), "tank/My Files".into()]);
        let words: Vec<_> = command.get_args().map(|word| word.to_str().unwrap()).collect();
        assert_eq!(
            words,
            ["-oBatchMode=yes", "-p", "2222", "-l", "root", "-T", "--", "nas", "env LC_ALL=C zfs list 'tank/My Files'"]
        );
    }
}
