//! `completions` and `man`: made from the command line's own description.

use std::io::Write;

use anyhow::Result;
use clap::CommandFactory;

use super::print_text;
use crate::cli::{Cli, Shell};
use crate::error::Exit;

/// Prints completions for a shell.
pub fn completions(shell: Shell) -> Result<Exit> {
    let shell = match shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "snapferry", &mut script);
    print_text(&String::from_utf8(script)?)?;
    Ok(Exit::Done)
}

/// Prints one manual page: the program, then each verb.
pub fn man() -> Result<Exit> {
    let mut page = Vec::new();
    let mut command = Cli::command();
    command.build();
    clap_mangen::Man::new(command.clone()).render(&mut page)?;
    render_verbs(&command, &mut page)?;
    print_text(&in_ascii(&String::from_utf8(page)?))?;
    Ok(Exit::Done)
}

/// Every troff reads ASCII alone.
fn in_ascii(page: &str) -> String {
    page.chars().map(|c| if c.is_ascii() { c.to_string() } else { format!("\\[u{:04X}]", u32::from(c)) }).collect()
}

fn render_verbs(command: &clap::Command, page: &mut Vec<u8>) -> Result<()> {
    for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help") {
        let name = verb.get_bin_name().unwrap_or(verb.get_name()).to_owned();
        writeln!(page, ".SH \"{}\"", name.to_uppercase())?;
        // Global options stand once, in the main part.
        let own = verb.clone().mut_args(|arg| if arg.is_global_set() { arg.hide(true) } else { arg });
        let man = clap_mangen::Man::new(own);
        man.render_description_section(page)?;
        man.render_synopsis_section(page)?;
        man.render_options_section(page)?;
        render_verbs(verb, page)?;
    }
    Ok(())
}
