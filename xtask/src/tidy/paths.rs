//! Paths in texts: paths of the project must exist, and paths of one machine must not occur.

use super::tree::{Finding, SourceFile};
use std::path::Path;

/// Prefixes by which a word in backticks is recognized as a path of the project.
const OURS: [&str; 7] = ["crates/", "docs/", "fuzz/", "xtask/", ".ci/", "tests/", ".cargo/"];

/// Checks that paths in backticks and relative links of a page exist. A path with `{}`, `*` or
/// `NNNN` in it is a pattern.
pub fn check_named(root: &Path, file: &SourceFile) -> Vec<Finding> {
    let folder = root.join(&file.path).parent().map(Path::to_owned).unwrap_or_default();
    let mut findings = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        for word in line.split('`').skip(1).step_by(2) {
            let word = word.split_whitespace().next().unwrap_or_default().trim_end_matches(['/', ',', '.', ':']);
            let pattern = word.contains(['{', '*', '<', '…']) || word.contains("NNNN");
            if OURS.iter().any(|start| word.starts_with(start)) && !pattern && !root.join(word).exists() {
                findings.push(Finding::new(&file.path, index + 1, format!("names {word}, which is not there")));
            }
        }
        for link in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap_or_default();
            let elsewhere = target.is_empty() || target.contains("://") || target.starts_with("mailto:");
            if !elsewhere && !folder.join(target).exists() {
                findings.push(Finding::new(&file.path, index + 1, format!("links to {target}, which is not there")));
            }
        }
    }
    findings
}

/// Checks that a file names neither the directory of this checkout nor a home directory.
pub fn check_machine(root: &Path, file: &SourceFile) -> Vec<Finding> {
    let mut bad = vec![["/ro", "ot/"].concat(), ["/ho", "me/"].concat()];
    if let Some(above) = root.parent().filter(|p| p.components().count() > 2) {
        bad.push(format!("{}/", above.display()));
    }
    let lines = file.text.lines().enumerate();
    lines
        .filter(|(_, line)| bad.iter().any(|b| line.contains(b.as_str())))
        .map(|(index, _)| Finding::new(&file.path, index + 1, "names a path of one machine"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_lead_nowhere_are_found() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let page = |text: &str| check_named(root, &SourceFile { path: "ARCHITECTURE.md".into(), text: text.into() }).len();
        assert_eq!(page("`crates/block/src/lib.rs` and `crates/{a,b}` and [x](Cargo.toml) and [y](https://example.org/)"), 0);
        assert_eq!(page("`crates/nothing/src/lib.rs`"), 1);
        assert_eq!(page("[x](no-such-page.md#part)"), 1);
    }

    #[test]
    fn paths_of_a_machine_are_found() {
        let file = |text: String| SourceFile { path: "a".into(), text };
        let root = Path::new("/somewhere/deep/project");
        assert_eq!(check_machine(root, &file(["see /ho", "me/me/x"].concat())).len(), 1);
        assert_eq!(check_machine(root, &file("see /somewhere/deep/other".into())).len(), 1);
        assert_eq!(check_machine(root, &file("see /dev/shm and /tmp".into())), []);
    }
}
