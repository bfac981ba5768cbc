//! Repository profiles: one TOML file each, and where things are kept. What was typed and found is resolved here
//! once; nothing below looks at the environment.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use zeroize::Zeroizing;

use crate::error::{Exit, Problem};
use crate::format::keys::WriterKey;
use crate::format::signature::Signer;

/// No profile or key file is larger (bytes).
const MAX_FILE: u64 = 1024 * 1024;

/// Where profiles and states are kept.
#[derive(Clone, Debug)]
pub struct Places {
    /// Profiles, writer keys, recovery sheets.
    pub config: PathBuf,
    /// Journals, locks, and what was seen.
    pub state: PathBuf,
}

impl Places {
    /// From the options, else where the system keeps such things.
    pub fn resolve(config: Option<PathBuf>, state: Option<PathBuf>) -> Result<Self> {
        if let Some(config) = config {
            let state = state.unwrap_or_else(|| config.join("state"));
            return Ok(Self { config, state });
        }
        if rustix::process::geteuid().is_root() {
            let state = state.unwrap_or_else(|| PathBuf::from("/var/lib/snapferry"));
            return Ok(Self { config: PathBuf::from("/etc/snapferry"), state });
        }
        let below = |variable: &str, home: &str| {
            let xdg = std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
            xdg.or_else(|| Some(std::env::home_dir()?.join(home))).map(|path| path.join("snapferry"))
        };
        let homeless =
            || Problem::new(Exit::Usage, "there is no home folder to keep profiles in").hint("give --config-dir");
        Ok(Self {
            config: below("XDG_CONFIG_HOME", ".config").ok_or_else(homeless)?,
            state: state.or_else(|| below("XDG_STATE_HOME", ".local/state")).ok_or_else(homeless)?,
        })
    }

    /// The file of a profile.
    pub fn profile(&self, name: &str) -> PathBuf {
        self.config.join(format!("{name}.toml"))
    }

    /// The file of a writer key.
    pub fn writer_key(&self, name: &str) -> PathBuf {
        self.config.join(format!("{name}.writer-key"))
    }

    /// The file of a recovery sheet.
    pub fn recovery_sheet(&self, name: &str) -> PathBuf {
        self.config.join(format!("{name}.recovery.txt"))
    }

    /// The folder of a repository's state.
    pub fn state_of(&self, repository: &Uuid) -> PathBuf {
        self.state.join(repository.to_string())
    }
}

/// A repository as this machine knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Where it is.
    pub url: String,
    /// Its uuid.
    pub repository: Uuid,
    /// The recipient of the repository identity: what segments are sealed to.
    pub recipient: String,
    /// Whose signatures are trusted.
    pub signer: String,
    /// The writer key's file, beside the profile unless absolute. Absent on a machine that only restores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub writer_key: Option<PathBuf>,
    /// An identity file that is tried when none is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<PathBuf>,
    /// Default of `--compression`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compression: Option<String>,
    /// Default of `--ssh-command`, word by word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ssh_command: Option<Vec<String>>,
    /// Default of `--connections`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<u8>,
    /// Default of `--snapshot-name`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_name: Option<String>,
    /// Default of `--send-flags`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send_flags: Option<String>,
    /// Default of `--max-chain`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_chain: Option<u32>,
    /// Default of `--full-every`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full_every: Option<String>,
    /// Default of `--keep-source`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_source: Option<u32>,
}

/// Whether `name` can name a profile (and is no URL).
pub fn is_profile_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 100
        && !name.starts_with(['.', '-'])
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

impl Profile {
    /// Reads a profile.
    pub fn load(places: &Places, name: &str) -> Result<Self> {
        let path = places.profile(name);
        let text = match read_private(&path) {
            Err(error) if is_missing(&error) => {
                return Err(Problem::new(Exit::Missing, format!("there is no profile {name:?} in {}", places.config.display()))
                    .hint(format!("make it with: snapferry init {name} URL (new repository) or snapferry connect {name} URL (existing one)"))
                    .into());
            }
            other => other?,
        };
        let profile: Self = toml::from_str(&text).map_err(|error| {
            let message = format!("the profile {} can't be understood: {}", path.display(), one_line(&error));
            Problem::new(Exit::Usage, message)
        })?;
        profile.signer()?;
        Ok(profile)
    }

    /// The trusted signer.
    pub fn signer(&self) -> Result<Signer> {
        self.signer.parse().map_err(|error| Problem::new(Exit::Usage, format!("the profile's signer: {error}")).into())
    }

    /// Its writer key, if it has one.
    pub fn writer_key(&self, places: &Places) -> Result<Option<WriterKey>> {
        self.writer_key.as_ref().map(|file| load_writer_key(&places.config.join(file))).transpose()
    }

    /// Writes a new profile; never over an existing one.
    pub fn save(&self, places: &Places, name: &str) -> Result<PathBuf> {
        let path = places.profile(name);
        let text = format!(
            "# A snapferry repository, as this machine knows it. It holds no secret.\n{}",
            toml::to_string(self).context("the profile can't be written as TOML")?
        );
        write_private(&path, text.as_bytes())?;
        Ok(path)
    }
}

fn one_line(error: &toml::de::Error) -> String {
    error.message().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Reads a writer key.
pub fn load_writer_key(path: &Path) -> Result<WriterKey> {
    let text = read_private(path)?;
    WriterKey::from_text(&text)
        .map_err(|error| Problem::new(Exit::Usage, format!("the writer key {}: {error}", path.display())).into())
}

/// Whether an error is a missing file.
fn is_missing(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Reads a file that nobody else may read or change.
pub fn read_private(path: &Path) -> Result<Zeroizing<String>> {
    let shown = path.display();
    let meta = fs::metadata(path).with_context(|| format!("cannot read {shown}"))?;
    if meta.mode() & 0o077 != 0 {
        let message = format!("{shown} can be read or changed by others (mode {:04o})", meta.mode() & 0o7777);
        return Err(Problem::new(Exit::Usage, message).hint(format!("chmod 600 {shown}")).into());
    }
    let me = rustix::process::geteuid().as_raw();
    if meta.uid() != me && meta.uid() != 0 && me != 0 {
        return Err(Problem::new(Exit::Usage, format!("{shown} belongs to another user (uid {})", meta.uid())).into());
    }
    if meta.len() > MAX_FILE {
        return Err(Problem::new(Exit::Usage, format!("{shown} is too large ({} bytes)", meta.len())).into());
    }
    Ok(Zeroizing::new(fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?))
}

/// Makes a folder that only its owner can enter.
pub fn make_private_dir(path: &Path) -> Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.with_context(|| format!("cannot make the folder {}", path.display()))
}

/// Writes a new file, mode 0600, on disk when this returns; never over an existing one.
pub fn write_private(path: &Path, bytes: &[u8]) -> Result<()> {
    let shown = path.display();
    if let Some(parent) = path.parent() {
        make_private_dir(parent)?;
    }
    let opened = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let mut file = opened.with_context(|| format!("cannot make {shown}"))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).with_context(|| format!("cannot write {shown}"))
}

/// Replaces a file whole or not at all, mode 0600.
pub fn replace_private(path: &Path, bytes: &[u8]) -> Result<()> {
    let shown = path.display();
    let parent = path.parent().unwrap_or(Path::new("."));
    make_private_dir(parent)?;
    let mut file = tempfile::NamedTempFile::new_in(parent).with_context(|| format!("cannot write beside {shown}"))?;
    file.write_all(bytes).and_then(|()| file.as_file().sync_all()).with_context(|| format!("cannot write {shown}"))?;
    file.persist(path).with_context(|| format!("cannot replace {shown}"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn places() -> (tempfile::TempDir, Places) {
        let dir = tempfile::tempdir().unwrap();
        let places = Places::resolve(Some(dir.path().join("config")), None).unwrap();
        (dir, places)
    }

    fn profile() -> Profile {
        Profile {
            url: "ssh://backup@host/archive".into(),
            repository: Uuid::new_v4(),
            recipient: "age1".into(),
            signer: WriterKey::generate(Uuid::new_v4(), String::new()).unwrap().signing.signer().unwrap().to_string(),
            writer_key: Some("offsite.writer-key".into()),
            identity: None,
            compression: None,
            ssh_command: None,
            connections: None,
            ..Profile::default()
        }
    }

    #[test]
    fn profiles_survive_and_are_never_overwritten() {
        let (_dir, places) = places();
        let profile = profile();
        let path = profile.save(&places, "offsite").unwrap();
        assert_eq!(Profile::load(&places, "offsite").unwrap(), profile);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(profile.save(&places, "offsite").is_err());
    }

    #[test]
    fn unknown_keys_and_open_files_are_refused() {
        let (_dir, places) = places();
        let path = profile().save(&places, "offsite").unwrap();
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{text}encrypt = true\n")).unwrap();
        let error = Profile::load(&places, "offsite").unwrap_err();
        assert!(crate::error::message_of(&error).contains("encrypt"), "{error:#}");
        fs::write(&path, text).unwrap();
        for mode in [0o640, 0o604, 0o620] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let error = Profile::load(&places, "offsite").unwrap_err();
            assert_eq!(crate::error::exit_of(&error), Exit::Usage, "{mode:o}");
        }
        assert_eq!(crate::error::exit_of(&Profile::load(&places, "none").unwrap_err()), Exit::Missing);
    }
}
