//! Pages of the documents that are made from the code.

use std::fs;
use std::path::Path;

/// Compares a page with the text that the code makes of it. The path is relative to the top
/// directory. If `MILLPOND_REFERENCE` is set, the page is written instead (`cargo xtask reference`).
///
/// # Panics
/// When the page differs, or cannot be read or written.
#[expect(clippy::disallowed_methods, reason = "pages are files of the repository")]
pub fn compare_page(path: &str, text: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    if std::env::var_os("MILLPOND_REFERENCE").is_some() {
        fs::write(&file, text).unwrap_or_else(|error| panic!("{path}: {error}"));
        return;
    }
    let page = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{path}: {error}"));
    let differs = page.lines().zip(text.lines()).zip(1..).find(|((old, new), _)| old != new);
    if let Some(((old, new), line)) = differs {
        panic!("{path}:{line} is out of date; run 'cargo xtask reference'\nthere: {old}\nnow:   {new}");
    }
    assert!(page == text, "{path} is out of date; run 'cargo xtask reference'");
}

/// Returns a text as a cell of a table: one line, without characters that have a meaning there.
#[must_use]
pub fn cell(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.replace('|', "\\|").replace('<', "&lt;").replace('*', "\\*")
}
