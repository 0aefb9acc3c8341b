//! A directory of results of one or more runs, summarized in `results.json`, `results.csv` and
//! `report.html`. Every experiment keeps command, time and machine of its run; figures of different
//! runs are never combined in a ratio.

use super::{Results, csv};
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// Version of `results.json`.
const VERSION: u32 = 2;
const GATHERED: &str = "results.json";

/// All results of a directory.
#[derive(Debug, Serialize, Deserialize)]
pub struct Book {
    /// Version of the document.
    pub version: u32,
    /// Results in the order of measurement.
    pub experiments: Vec<Results>,
}

impl Book {
    /// Reads every `NAME.json` of a directory.
    ///
    /// # Errors
    /// There is none, or one is not a result file of this program.
    pub fn read(dir: &Path) -> Result<Book> {
        let entries = fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))?;
        let mut files: Vec<PathBuf> = entries.filter_map(|entry| entry.ok().map(|e| e.path())).collect();
        files.retain(|file| file.extension().is_some_and(|e| e == "json") && file.file_name().is_some_and(|name| name != GATHERED));
        files.sort();
        let mut experiments = Vec::new();
        for file in &files {
            let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
            let results: Results =
                serde_json::from_str(&text).with_context(|| format!("{} is no report of this program", file.display()))?;
            experiments.push(results);
        }
        ensure!(!experiments.is_empty(), "{} holds no results; `millpond lab run EXPERIMENT --out DIR` makes some", dir.display());
        experiments.sort_by(|a, b| a.began.cmp(&b.began));
        Ok(Book { version: VERSION, experiments })
    }

    /// Writes `results.json`, `results.csv` and `report.html`.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write(&self, dir: &Path) -> Result<()> {
        let write =
            |name: &str, text: &str| fs::write(dir.join(name), text).with_context(|| format!("writing {name} in {}", dir.display()));
        write(GATHERED, &serde_json::to_string_pretty(self)?)?;
        let lines: String = self.experiments.iter().map(Results::csv).collect();
        write("results.csv", &(csv::HEADER.to_owned() + &lines))?;
        write("report.html", &self.page())
    }
}
