//! `report`: regenerates the reports of a results directory.

use anyhow::{Context, Result};
use clap::Args;
use millpond_lab::report::Book;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

/// Rewrites results.json, results.csv and report.html in a directory of results, and prints the table
#[derive(Args)]
#[command(after_help = "Example:
  millpond lab report lab-results
  millpond lab report lab-results --into docs/performance.md --into docs/results.md")]
pub struct Report {
    /// Directory of results, written by `lab run --out`
    dir: PathBuf,
    /// Print every figure, instead of the first of each case
    #[arg(long)]
    all: bool,
    /// Regenerates the figures between `<!-- figures: EXPERIMENT... -->` and `<!-- /figures -->` of a document
    #[arg(long, value_name = "FILE")]
    into: Vec<PathBuf>,
}

impl Report {
    /// Writes the reports and prints the tables.
    ///
    /// # Errors
    /// There are no results, or a file cannot be read or written.
    pub fn run(self) -> Result<ExitCode> {
        let book = Book::read(&self.dir)?;
        book.write(&self.dir)?;
        for document in &self.into {
            let of = || document.display().to_string();
            let text = fs::read_to_string(document).with_context(of)?;
            let made = book.figures(&text, &self.dir).with_context(of)?;
            fs::write(document, made.text).with_context(of)?;
            made.missing
                .iter()
                .for_each(|name| eprintln!("millpond-lab: {}: {name} is not in {}, its figures stay", of(), self.dir.display()));
        }
        book.experiments.iter().for_each(|results| println!("{}", results.table(self.all)));
        Ok(ExitCode::SUCCESS)
    }
}
