//! Allowed dependencies between crates. Arrows never point up. Of the product's crates, the lab and
//! the end-to-end tests depend on the protocols alone: they drive servers with the project's
//! clients. No crate depends on the end-to-end tests, which have no library. Every crate may use
//! `millpond-testing`, and only its tests.

use super::tree::{Finding, SourceFile};

/// Crate that the tests of every other one may use.
const TESTING: &str = "millpond-testing";

/// A crate's folder and the crates of the project that it may depend on.
const ARROWS: &[(&str, &[&str])] = &[
    ("crates/block", &[]),
    ("crates/format", &["millpond-block"]),
    ("crates/cipher", &[]),
    ("crates/device", &["millpond-block"]),
    ("crates/export", &["millpond-block"]),
    ("crates/engine", &["millpond-block", "millpond-format"]),
    ("crates/sim", &["millpond-block", "millpond-bucket", "millpond-format", "millpond-device", "millpond-engine"]),
    ("crates/api", &["millpond-block", "millpond-format"]),
    ("crates/bucket", &["millpond-format"]),
    ("crates/daemon", &["millpond-block", "millpond-format", "millpond-device", "millpond-export", "millpond-engine", "millpond-api"]),
    ("crates/images", &["millpond-export", "millpond-api"]),
    ("crates/backup", &["millpond-api", "millpond-bucket", "millpond-images"]),
    (
        "crates/app",
        &[
            "millpond-backup",
            "millpond-block",
            "millpond-bucket",
            "millpond-device",
            "millpond-export",
            "millpond-engine",
            "millpond-api",
            "millpond-images",
            "millpond-daemon",
        ],
    ),
    ("crates/lab", &["millpond-export"]),
    ("tests/e2e", &["millpond-bucket", "millpond-export", "millpond-format", "millpond-lab"]),
    ("crates/testing", &[]),
    ("xtask", &[]),
];

/// Returns true if one crate may depend on the other, by the names of their folders.
pub fn may_use(name: &str, other: &str) -> bool {
    let allowed = ARROWS.iter().find(|(folder, _)| folder.strip_prefix("crates/") == Some(name)).map_or(&[][..], |(_, allowed)| *allowed);
    allowed.iter().any(|allowed| allowed.strip_prefix("millpond-") == Some(other))
}

/// Checks one Cargo.toml.
pub fn check(file: &SourceFile) -> Vec<Finding> {
    let Some(folder) = file.path.strip_suffix("/Cargo.toml") else { return Vec::new() };
    if folder == "fuzz" {
        return Vec::new(); // drives every parser, in a workspace of its own
    }
    let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == folder) else {
        return vec![Finding::new(&file.path, 0, "is a crate that the table of arrows in xtask/src/tidy/arrows.rs does not know")];
    };
    let mut section = String::new();
    let mut findings = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with('[') {
            section = line.trim_matches(['[', ']']).to_owned();
        }
        let table_name = section.strip_prefix("dependencies.").or_else(|| section.strip_prefix("dev-dependencies."));
        let in_table = section.ends_with("dependencies") || table_name.is_some();
        let key =
            if line.starts_with('[') { table_name.unwrap_or_default() } else { line.split(['.', '=', ' ']).next().unwrap_or_default() };
        let own = folder.strip_prefix("crates/").is_some_and(|name| key.strip_prefix("millpond-") == Some(name)); // its own test features
        let in_tests = key == TESTING && section.starts_with("dev-dependencies");
        if in_table && key.starts_with("millpond-") && !own && !in_tests && !allowed.contains(&key) {
            findings.push(Finding::new(&file.path, index + 1, format!("{folder} may not depend on {key}: the arrow would point up")));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> usize {
        check(&SourceFile { path: path.into(), text: text.into() }).len()
    }

    #[test]
    fn arrows_up_are_found() {
        assert_eq!(findings("crates/engine/Cargo.toml", "[dependencies]\nmillpond-block.workspace = true\n"), 0);
        assert_eq!(findings("crates/engine/Cargo.toml", "[dependencies]\nmillpond-export.workspace = true\n"), 1);
        assert_eq!(findings("crates/engine/Cargo.toml", "[dependencies]\nmillpond-device.workspace = true\n"), 1);
        assert_eq!(findings("crates/export/Cargo.toml", "[dev-dependencies]\nmillpond-engine = { path = \"../engine\" }\n"), 1);
        assert_eq!(findings("crates/block/Cargo.toml", "[dev-dependencies]\nmillpond-testing.workspace = true\n"), 0);
        assert_eq!(findings("crates/block/Cargo.toml", "[dependencies]\nmillpond-testing.workspace = true\n"), 1);
        assert_eq!(findings("crates/lab/Cargo.toml", "[dependencies.millpond-block]\nworkspace = true\n"), 1);
        assert_eq!(findings("crates/lab/Cargo.toml", "[package]\nname = \"millpond-lab\"\n"), 0);
        assert_eq!(findings("tests/e2e/Cargo.toml", "[dev-dependencies]\nmillpond-lab.workspace = true\n"), 0);
        assert_eq!(findings("tests/e2e/Cargo.toml", "[dev-dependencies]\nmillpond-engine.workspace = true\n"), 1);
        assert_eq!(findings("crates/new/Cargo.toml", ""), 1);
    }
}
