//! Reads the checkout and applies all rules.

use super::{arrows, book, circles, floors, invariants, messages, paths, ratchet, source};
use anyhow::{Context, Result};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Violation of a rule.
#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    /// Path of the file, relative to the top directory.
    pub file: String,
    /// Line, from 1; 0 for the file as a whole.
    pub line: usize,
    /// Description and remedy.
    pub text: String,
}

impl Finding {
    /// Makes a finding at a line.
    pub fn new(file: &str, line: usize, text: impl Into<String>) -> Finding {
        Finding { file: file.to_owned(), line, text: text.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.text)
    }
}

/// A text file of the checkout.
pub struct SourceFile {
    /// Path relative to the top directory.
    pub path: String,
    /// Complete text.
    pub text: String,
}

/// Names of files and directories that are not source.
const NOT_SOURCE: [&str; 6] = ["target", ".git", "millpond-data", "artifacts", "corpus", "lab-results"];

/// Checks all rules.
///
/// # Errors
/// When the checkout cannot be read.
pub fn check(root: &Path) -> Result<Vec<Finding>> {
    let files = read(root)?;
    let mut findings = Vec::new();
    for file in &files {
        if file.path.ends_with("Cargo.toml") {
            findings.extend(arrows::check(file));
        }
        if file.path.ends_with(".rs") {
            findings.extend(source::check(file));
            findings.extend(messages::check(file));
        }
        if file.path.ends_with(".md") {
            findings.extend(paths::check_named(root, file));
        }
        findings.extend(paths::check_machine(root, file));
    }
    findings.extend(source::unreached(&files));
    findings.extend(invariants::check(&files));
    findings.extend(book::check(&files));
    findings.extend(ratchet::check(&files));
    if !files.iter().any(|f| f.path == "ARCHITECTURE.md") {
        findings.push(Finding::new("ARCHITECTURE.md", 0, "is missing"));
    }
    Ok(findings)
}

/// Describes the largest circle of each crate, or of one.
///
/// # Errors
/// When the checkout cannot be read, or has no such crate.
pub fn describe_circles(root: &Path, name: Option<&str>) -> Result<String> {
    let graphs = circles::graphs(&read(root)?);
    let chosen: Vec<_> = graphs.iter().filter(|graph| name.is_none_or(|name| graph.name == name)).collect();
    anyhow::ensure!(!chosen.is_empty(), "no such crate below crates/");
    Ok(chosen.iter().map(|graph| graph.describe() + "\n").collect())
}

/// Lists the imports of the engine that do not go down.
///
/// # Errors
/// When the checkout cannot be read.
pub fn describe_floors(root: &Path) -> Result<String> {
    Ok(floors::describe(&floors::imports(&read(root)?)))
}

fn read(root: &Path) -> Result<Vec<SourceFile>> {
    let mut files = Vec::new();
    gather(root, root, &mut files)?;
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

fn gather(root: &Path, dir: &Path, files: &mut Vec<SourceFile>) -> Result<()> {
    let mut entries: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))? {
        entries.push(entry?.path());
    }
    for path in entries {
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        if NOT_SOURCE.contains(&name) {
            continue;
        }
        if path.is_dir() {
            gather(root, &path, files)?;
        } else if let Ok(text) = fs::read_to_string(&path) {
            // files that are not text have no rules here
            let relative = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            files.push(SourceFile { path: relative, text });
        }
    }
    Ok(())
}
