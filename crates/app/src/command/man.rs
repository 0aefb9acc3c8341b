//! `man`: writes the manual pages, one for each command.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, Command, CommandFactory};
use clap_mangen::Man as Page;
use millpond_api::failure::{Failure, Outcome};

use super::Cli;

/// Title of the manual, in the header of each page.
const MANUAL: &str = "Millpond";

/// Write the manual pages into a directory
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond man /usr/local/share/man/man1
  man millpond-pool-create

The directory is created if it is missing. One page for each command: millpond.1, millpond-create.1, millpond-pool-create.1 and so on.
The Debian package installs the pages.")]
pub struct Man {
    /// The directory
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

impl Man {
    pub fn run(self) -> Outcome {
        let failed = |path: &Path, e: &std::io::Error| Failure::failed(format!("cannot write {}: {e}", path.display()));
        fs::create_dir_all(&self.dir).map_err(|e| failed(&self.dir, &e))?;
        for (name, text) in pages(Cli::command()) {
            let path = self.dir.join(name);
            fs::write(&path, text).map_err(|e| failed(&path, &e))?;
        }
        Ok(())
    }
}

/// Returns the names and texts of all pages.
fn pages(mut command: Command) -> Vec<(String, Vec<u8>)> {
    command = command.disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    add_pages(&command, &mut pages);
    pages
}

fn add_pages(command: &Command, pages: &mut Vec<(String, Vec<u8>)>) {
    command.get_subcommands().filter(|sub| !sub.is_hide_set()).for_each(|sub| add_pages(sub, pages));
    let page = Page::new(command.clone()).source(concat!("millpond ", env!("CARGO_PKG_VERSION"))).manual(MANUAL);
    let mut text = Vec::new();
    // Writing to memory cannot fail.
    let _ = page.render(&mut text);
    pages.push((page.get_filename(), text));
}
