//! `report`: the results of a directory, once more.

use anyhow::Result;
use clap::Args;
use millpond_lab::report::Book;
use std::path::PathBuf;
use std::process::ExitCode;

/// Writes results.json, results.csv and report.html of a directory of results again, and prints the table
#[derive(Args)]
#[command(after_help = "Example: millpond lab report lab-results")]
pub struct Report {
    /// Where `lab run --out` left them
    dir: PathBuf,
    /// Every figure, instead of the first of each case
    #[arg(long)]
    all: bool,
}

impl Report {
    /// Writes and prints.
    ///
    /// # Errors
    /// There are no results, or the directory cannot be written.
    pub fn run(self) -> Result<ExitCode> {
        let book = Book::read(&self.dir)?;
        book.write(&self.dir)?;
        book.experiments.iter().for_each(|results| println!("{}", results.table(self.all)));
        Ok(ExitCode::SUCCESS)
    }
}
