//! The real program on a folder: a repository and a machine that can be copied, killed and tampered with.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::bench::{Bench, SEGMENT, files_of};

pub struct Machine<'b> {
    pub bench: &'b Bench,
    folder: TempDir,
}

/// How a run ended, and what it said.
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Ended {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ended { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }
}

impl Machine<'_> {
    /// With a fresh repository.
    pub fn new(bench: &Bench, folder: TempDir) -> Machine<'_> {
        let machine = Machine { bench, folder };
        let url = machine.repo().display().to_string();
        let line = bench.init_line().replace("/nowhere", &url);
        machine.must(&line);
        machine
    }

    /// With a full backup and two incremental ones.
    pub fn with_chain(bench: &Bench, folder: TempDir) -> Machine<'_> {
        let machine = Machine::new(bench, folder);
        for snapshot in ["s1", "s2", "s3"] {
            machine.must(&backup_line(snapshot));
        }
        machine
    }

    /// The same again, elsewhere.
    pub fn copy(&self, folder: TempDir) -> Self {
        let machine = Machine { bench: self.bench, folder };
        for part in ["repo", "config"] {
            copy_tree(&self.folder.path().join(part), &machine.folder.path().join(part));
        }
        let profile = machine.config().join("offsite.toml");
        let text = fs::read_to_string(&profile).expect("a profile");
        let (old, new) = (self.repo().display().to_string(), machine.repo().display().to_string());
        fs::write(&profile, text.replace(&old, &new)).expect("a profile");
        machine
    }

    pub fn repo(&self) -> PathBuf {
        self.folder.path().join("repo")
    }

    pub fn config(&self) -> PathBuf {
        self.folder.path().join("config")
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_snapferry"));
        command.arg("--config-dir").arg(self.config()).arg("--zfs-command").arg(self.bench.zfs());
        command.args(line.split_whitespace()).env_remove("SNAPFERRY_STATE_DIR").env_remove("SNAPFERRY_REPOSITORY");
        command
    }

    pub fn run(&self, line: &str) -> Ended {
        self.command(line).output().expect("the program runs").into()
    }

    pub fn must(&self, line: &str) -> Ended {
        let ended = self.run(line);
        assert_eq!(ended.code, Some(0), "{line}: {}{}", ended.stdout, ended.stderr);
        ended
    }

    pub fn identity(&self) -> String {
        self.bench.identity.display().to_string()
    }

    /// Restores one backup's own stream; nothing if it failed, and then nothing may have been left either.
    pub fn restored(&self, backup: &str) -> (Ended, Option<Vec<u8>>) {
        let folder = self.file("restored");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).expect("a folder");
        let file = folder.join("stream");
        let ended =
            self.run(&format!("restore offsite {backup} --output {} --identity {}", file.display(), self.identity()));
        let files = files_of(&folder);
        match ended.code {
            Some(0 | 3) => {
                assert_eq!(files.len(), 1, "{}", ended.stderr);
                (ended, files.into_iter().next().map(|(_, bytes)| bytes))
            }
            _ => {
                assert_eq!(files, [], "left by a failed restore: {}", ended.stderr);
                (ended, None)
            }
        }
    }

    /// Every file of the repository.
    pub fn objects(&self) -> Vec<String> {
        files_of(&self.repo()).into_iter().map(|(name, _)| name).collect()
    }
}

pub fn backup_line(snapshot: &str) -> String {
    format!("--connections 1 backup offsite tank/data@{snapshot} --segment-size {SEGMENT}")
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    fs::set_permissions(to, fs::metadata(from).expect("a folder").permissions()).expect("its mode");
    for entry in fs::read_dir(from).expect("a folder") {
        let path = entry.expect("an entry").path();
        let target = to.join(path.file_name().expect("a name"));
        if path.is_dir() {
            copy_tree(&path, &target);
        } else {
            fs::copy(&path, &target).expect("a copy");
            let mode = fs::metadata(&path).expect("a file").permissions().mode();
            fs::set_permissions(&target, fs::Permissions::from_mode(mode)).expect("its mode");
        }
    }
}
