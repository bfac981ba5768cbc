//! Where a repository is, as a person writes it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use thiserror::Error;

/// A place that can't be understood.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{url:?} is no place for a repository: {why}")]
pub struct BadLocation {
    url: String,
    why: &'static str,
}

/// A folder, or a path on an SSH host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A folder of this machine, absolute.
    Directory(PathBuf),
    /// SFTP over the user's own ssh.
    Sftp(SftpLocation),
}

/// A path on an SSH host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SftpLocation {
    /// `None`: as the user's ssh configuration says.
    pub user: Option<String>,
    /// A host's name, an address, or an alias of the ssh configuration.
    pub host: String,
    /// `None`: as the user's ssh configuration says.
    pub port: Option<u16>,
    /// Absolute, or relative to the login folder.
    pub path: String,
}

impl FromStr for Location {
    type Err = BadLocation;

    fn from_str(url: &str) -> Result<Self, BadLocation> {
        // What stands before the @ may hold a password, which an error must not repeat.
        let shown = url.rsplit_once('@').map_or_else(|| url.to_owned(), |(_, rest)| format!("…@{rest}"));
        let bad = |why| BadLocation { url: shown.clone(), why };
        if url.is_empty() || url.chars().any(char::is_control) {
            return Err(bad("it is empty or has control characters"));
        }
        if let Some(rest) = url.strip_prefix("ssh://").or_else(|| url.strip_prefix("sftp://")) {
            return ssh_url(rest).map(Self::Sftp).map_err(bad);
        }
        if let Some(path) = url.strip_prefix("file://") {
            return directory(path).map_err(bad);
        }
        if url.contains("://") {
            return Err(bad("only file://, ssh:// and sftp:// are known"));
        }
        // As scp reads it: a colon before any slash makes it remote.
        match url.split_once(':') {
            Some((login, path)) if !login.contains('/') => {
                let (user, host) = login_parts(login).map_err(bad)?;
                // SFTP starts in the login folder, and knows no "~".
                let path = path.strip_prefix("~/").unwrap_or(path);
                let path = if path.is_empty() || path == "~" { "." } else { path };
                Ok(Self::Sftp(SftpLocation { user, host, port: None, path: path.to_owned() }))
            }
            _ => directory(url).map_err(bad),
        }
    }
}

fn directory(path: &str) -> Result<Location, &'static str> {
    std::path::absolute(Path::new(path)).map(Location::Directory).map_err(|_| "it is no path")
}

fn ssh_url(rest: &str) -> Result<SftpLocation, &'static str> {
    let (authority, path) = rest.split_once('/').ok_or("a path is missing: ssh://host/path")?;
    // Before the port is looked for: a password would be taken for one.
    login_parts(authority)?;
    let (login, port) = match authority.rsplit_once(':') {
        // An IPv6 address in brackets has colons of its own.
        Some((login, port)) if !port.ends_with(']') => {
            (login, Some(port.parse().map_err(|_| "its port is no number")?))
        }
        _ => (authority, None),
    };
    let (user, host) = login_parts(login)?;
    if path.is_empty() {
        return Err("a path is missing: ssh://host/path");
    }
    let path = path.strip_prefix("~/").map_or_else(|| format!("/{path}"), str::to_owned);
    Ok(SftpLocation { user, host, port, path })
}

fn login_parts(login: &str) -> Result<(Option<String>, String), &'static str> {
    let (user, host) = login.rsplit_once('@').map_or((None, login), |(user, host)| (Some(user.to_owned()), host));
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if user.as_deref().is_some_and(|user| user.contains(':')) {
        return Err("a password does not belong in it: it would be kept in files and shown in errors");
    }
    // ssh would take these for options.
    if host.is_empty()
        || host.starts_with('-')
        || user.as_deref().is_some_and(|user| user.is_empty() || user.starts_with('-'))
    {
        return Err("its host or user is empty or begins with \"-\"");
    }
    Ok((user, host.to_owned()))
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => path.display().fmt(f),
            // ssh://host/ is refused as a path that was forgotten, and ssh://host/~/ is the login folder.
            Self::Sftp(SftpLocation { user, host, port: None, path }) if path == "/" || path.starts_with("/~/") => {
                let login = user.as_ref().map_or_else(String::new, |user| format!("{user}@"));
                write!(f, "{login}{host}:{path}")
            }
            Self::Sftp(SftpLocation { user, host, port, path }) => {
                f.write_str("ssh://")?;
                if let Some(user) = user {
                    write!(f, "{user}@")?;
                }
                if host.contains(':') {
                    write!(f, "[{host}]")?
                } else {
                    f.write_str(host)?
                }
                if let Some(port) = port {
                    write!(f, ":{port}")?;
                }
                if path.starts_with('/') { f.write_str(path) } else { write!(f, "/~/{path}") }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sftp(user: Option<&str>, host: &str, port: Option<u16>, path: &str) -> Location {
        Location::Sftp(SftpLocation { user: user.map(str::to_owned), host: host.into(), port, path: path.into() })
    }

    #[test]
    fn places_as_people_write_them() {
        for (url, location) in [
            ("/srv/backup", Location::Directory("/srv/backup".into())),
            ("file:///srv/backup", Location::Directory("/srv/backup".into())),
            ("/srv/with:colon", Location::Directory("/srv/with:colon".into())),
            ("ssh://backup@host:2222/archive", sftp(Some("backup"), "host", Some(2222), "/archive")),
            ("ssh://host/~/archive", sftp(None, "host", None, "archive")),
            ("sftp://[::1]:22/a b", sftp(None, "::1", Some(22), "/a b")),
            ("ssh://[fe80::1]/a", sftp(None, "fe80::1", None, "/a")),
            ("me@host:archive/x", sftp(Some("me"), "host", None, "archive/x")),
            ("host:/archive", sftp(None, "host", None, "/archive")),
            ("host:", sftp(None, "host", None, ".")),
            ("host:~", sftp(None, "host", None, ".")),
            ("host:~/archive", sftp(None, "host", None, "archive")),
            ("me@host:/", sftp(Some("me"), "host", None, "/")),
            ("host:/~/x", sftp(None, "host", None, "/~/x")),
        ] {
            let parsed: Location = url.parse().unwrap();
            assert_eq!(parsed, location, "{url}");
            assert_eq!(parsed.to_string().parse::<Location>().unwrap(), location, "{url}");
        }
        assert!(matches!("relative".parse::<Location>().unwrap(), Location::Directory(path) if path.is_absolute()));
    }

    #[test]
    fn passwords_are_refused_and_not_repeated() {
        for url in ["ssh://me:secret@host/x", "ssh://me:secret@host:22/x"] {
            let text = url.parse::<Location>().unwrap_err().to_string();
            assert!(!text.contains("secret"), "{text}");
        }
    }

    #[test]
    fn places_that_are_none() {
        for bad in [
            "",
            "http://x/y",
            "ssh://host",
            "ssh://host/",
            "ssh://-oProxyCommand=x/y",
            "-o:x",
            "ssh://@h/x",
            "ssh://h:x/y",
            "a\nb",
        ] {
            assert!(bad.parse::<Location>().is_err(), "{bad}");
        }
    }
}
