//! A stand-in for the `zfs` of OpenZFS 2.1: it speaks and exits as the real one did in the recorded outputs, replays
//! real streams, checks what it receives, and goes wrong where a test tells it to.
//!
//! The folder in `STANDIN_ZFS_STATE` holds its pools; `support/pool.rs` makes one.

mod arguments;
mod change;
mod fault;
mod hold;
mod list;
mod noise;
mod numbers;
mod partial;
mod property;
mod receive;
#[allow(dead_code, reason = "the tests include this file too, and use the rest")]
mod record;
mod resume;
mod send;
#[allow(dead_code, reason = "the tests include this file too, and use the rest")]
mod state;
mod synthetic;
mod take;
mod token;
mod usage;

use std::io::Write;
use std::path::{Path, PathBuf};

use fault::Output;
use state::What;

/// What every command is given.
pub struct Call<'a> {
    pub folder: &'a Path,
    pub arguments: &'a [String],
    pub faults: &'a [What],
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(folder) = std::env::var_os(state::STATE_VARIABLE).map(PathBuf::from) else {
        eprintln!("the stand-in zfs needs {}", state::STATE_VARIABLE);
        std::process::exit(99);
    };
    log(&folder, &arguments);
    let name = arguments.first().map_or("", String::as_str);
    let name = match name {
        "recv" => "receive",
        "snap" => "snapshot",
        "--version" | "-V" => "version",
        other => other,
    };
    let rest = arguments.get(1..).unwrap_or_default();
    let faults = fault::of_this_call(&folder, name, rest);
    fault::before(&faults);
    let call = Call { folder: &folder, arguments: rest, faults: &faults };
    let status = match name {
        "version" => {
            call.say("zfs-2.1.11-1+deb12u1\nzfs-kmod-2.1.11-1+deb12u1\n");
            0
        }
        "list" => list::list(&call),
        "get" => list::get(&call),
        "send" => send::send(&call),
        "receive" => receive::receive(&call),
        "snapshot" => change::snapshot(&call),
        "bookmark" => change::bookmark(&call),
        "destroy" => change::destroy(&call),
        "hold" => hold::hold(&call),
        "release" => hold::release(&call),
        "holds" => hold::holds(&call),
        "" => usage::all("missing command"),
        _ => usage::all(&format!("unrecognized command '{name}'")),
    };
    std::process::exit(status);
}

impl Call<'_> {
    /// Puts an answer on standard output, with the faults of this call.
    pub fn say(&self, text: &str) {
        let mut text = text.to_owned();
        for fault in self.faults {
            match fault {
                What::Stdout { text: other } => text = other.clone(),
                What::Crlf => text = text.replace('\n', "\r\n"),
                What::DropColumn => {
                    let line =
                        |line: &str| line.rsplit_once('\t').map_or(String::new(), |(kept, _)| kept.to_owned()) + "\n";
                    text = text.lines().map(line).collect();
                }
                _ => {}
            }
        }
        let mut output = Output::new(self.faults);
        output.copy(&mut text.as_bytes());
        output.finish();
    }

    pub fn denied(&self, command: &str) -> bool {
        state::State::load(self.folder).denied.contains(command)
    }
}

/// One line of JSON for each call, in one write: calls may run at the same time.
fn log(folder: &Path, arguments: &[String]) {
    let line = serde_json::to_string(arguments).expect("arguments as JSON") + "\n";
    let file = std::fs::OpenOptions::new().create(true).append(true).open(folder.join("calls"));
    file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the log of calls");
}
