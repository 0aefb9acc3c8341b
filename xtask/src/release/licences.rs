//! Licences of the crates that are linked into the programs.

use super::output;
use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Begins of the names of files with a licence or a copyright.
const NAMES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE"];
/// Levels of directories below a crate where such files are looked for: bundled C libraries have
/// their own.
const DEPTH: usize = 3;

/// Crates and their licences.
pub struct Licences {
    /// Name and version, and expression of the licence.
    crates: BTreeMap<String, String>,
    /// Crates by the text that they have in common.
    texts: BTreeMap<String, BTreeSet<String>>,
}

impl Licences {
    /// Finds the crates that the programs link for this host.
    pub fn of_programs(root: &Path) -> Result<Licences> {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["metadata", "--format-version", "1", "--locked", "--filter-platform", "x86_64-unknown-linux-gnu"]);
        let metadata: Value = serde_json::from_str(&output(cargo.current_dir(root))?).context("the output of cargo metadata")?;
        let packages = metadata["packages"].as_array().context("packages")?;
        let mut licences = Licences { crates: BTreeMap::new(), texts: BTreeMap::new() };
        for id in linked(&metadata)? {
            let package = packages.iter().find(|package| package["id"] == id.as_str()).with_context(|| format!("no package {id}"))?;
            if !package["source"].is_null() {
                licences.add(package)?;
            }
        }
        Ok(licences)
    }

    fn add(&mut self, package: &Value) -> Result<()> {
        let text = |key: &str| package[key].as_str().unwrap_or_default();
        let name = format!("{} {}", text("name"), text("version"));
        let expression = package["license"].as_str().with_context(|| format!("{name} names no licence"))?;
        let manifest = PathBuf::from(text("manifest_path"));
        let dir = manifest.parent().context("the directory of a crate")?;
        for file in files(dir, DEPTH)? {
            let bytes = fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
            let lines: Vec<String> = String::from_utf8_lossy(&bytes).lines().map(|line| line.trim_end().to_owned()).collect();
            let below = file.strip_prefix(dir)?.parent().filter(|dir| !dir.as_os_str().is_empty());
            let who = below.map_or_else(|| name.clone(), |below| format!("{name} ({})", below.display()));
            self.texts.entry(lines.join("\n").trim().to_owned()).or_default().insert(who);
        }
        self.crates.insert(name, expression.to_owned());
        Ok(())
    }

    /// Returns a table of the crates, each line indented by a blank.
    pub fn table(&self) -> String {
        self.crates.iter().fold(String::new(), |mut table, (name, expression)| {
            // Writing to a string cannot fail.
            let _ = writeln!(table, " {name}: {expression}");
            table
        })
    }

    /// Returns all texts, each below the names of the crates that it belongs to.
    pub fn texts(&self) -> String {
        let mut all = format!("Crates that Millpond's programs contain\n\n{}", self.table());
        for (text, names) in &self.texts {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let _ = write!(all, "\n{}\n{}:\n\n{text}\n", "=".repeat(80), names.join(", "));
        }
        all
    }
}

/// Returns the ids of the packages that are linked into the programs.
fn linked(metadata: &Value) -> Result<BTreeSet<String>> {
    let nodes = metadata["resolve"]["nodes"].as_array().context("resolved packages")?;
    let is_program = |package: &&Value| package["name"] == "millpond" || package["name"] == "millpond-lab";
    let programs = metadata["packages"].as_array().into_iter().flatten().filter(is_program);
    let mut queue: Vec<String> = programs.filter_map(|package| package["id"].as_str().map(str::to_owned)).collect();
    let mut found = BTreeSet::new();
    while let Some(id) = queue.pop() {
        if !found.insert(id.clone()) {
            continue;
        }
        let node = nodes.iter().find(|node| node["id"] == id.as_str()).with_context(|| format!("{id} is not resolved"))?;
        let is_linked = |dependency: &&Value| dependency["dep_kinds"].as_array().into_iter().flatten().any(|kind| kind["kind"].is_null());
        let dependencies = node["deps"].as_array().into_iter().flatten().filter(is_linked);
        queue.extend(dependencies.filter_map(|dependency| dependency["pkg"].as_str().map(str::to_owned)));
    }
    Ok(found)
}

fn files(dir: &Path, depth: usize) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        if path.is_dir() && depth > 0 {
            found.extend(files(&path, depth - 1)?);
        } else if path.is_file() && NAMES.iter().any(|begin| name.starts_with(begin)) && !name.ends_with(".RS") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
