//! Rules about single Rust files, and files that no module declares.

use super::tree::{Finding, SourceFile};
use std::collections::BTreeSet;

const LONG: usize = 600;
const TOO_LONG: usize = 1000;
/// The only places where `unsafe` is allowed.
const UNSAFE_ALLOWED: &[&str] = &["crates/device/src/uring", "crates/device/src/mapping", "crates/cipher/src/xts.rs"];
/// Maximum distance in lines of a SAFETY comment above the `unsafe` code.
const SAFETY_REACH: usize = 8;

/// Returns words that must not be committed, assembled here so that this file does not contain
/// them.
fn banned() -> [String; 4] {
    [["to", "do!("], ["unimple", "mented!("], ["db", "g!("], ["#[ign", "ore"]].map(|parts| parts.concat())
}

/// Checks one file.
pub fn check(file: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    let lines = file.text.lines().count();
    if lines > TOO_LONG {
        findings.push(Finding::new(&file.path, lines, format!("{lines} lines; split it, {TOO_LONG} is the end")));
    } else if lines > LONG {
        eprintln!("note: {}: {lines} lines; over {LONG} think again", file.path);
    }
    let banned = banned();
    for (index, line) in file.text.lines().enumerate() {
        for word in banned.iter().filter(|word| line.contains(word.as_str())) {
            findings.push(Finding::new(&file.path, index + 1, format!("`{}` does not stay", word.trim_end_matches('('))));
        }
    }
    findings.extend(check_unsafe(file));
    let name = file.path.rsplit('/').next().unwrap_or_default();
    if name == "mod.rs" {
        findings.push(Finding::new(&file.path, 0, "a module with submodules is a file named after it beside its folder, not mod.rs"));
    }
    if name == "lib.rs" && !file.path.starts_with("fuzz/") {
        findings.extend(only_declarations(file));
    }
    let crate_root = name == "lib.rs" || file.path.ends_with("/src/main.rs");
    let may_hold_unsafe = UNSAFE_ALLOWED.iter().any(|p| file.path.split("/src/").next() == p.split("/src/").next());
    if crate_root
        && !may_hold_unsafe
        && file.path.contains("/src/")
        && !file.path.starts_with("fuzz/")
        && !file.text.contains("#![forbid(unsafe_code)]")
    {
        findings.push(Finding::new(&file.path, 1, "the root of a crate without unsafe code says `#![forbid(unsafe_code)]`"));
    }
    findings
}

fn check_unsafe(file: &SourceFile) -> Vec<Finding> {
    let allowed = UNSAFE_ALLOWED.iter().any(|prefix| file.path.starts_with(prefix));
    let lines: Vec<&str> = file.text.lines().collect();
    let mut findings = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let code = without_text(line);
        let is_unsafe = code.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe");
        if !is_unsafe {
            continue;
        }
        if !allowed {
            findings.push(Finding::new(&file.path, index + 1, "unsafe code belongs into the files named in xtask/src/tidy/source.rs"));
        } else if !lines[index.saturating_sub(SAFETY_REACH)..=index].iter().any(|l| l.contains("SAFETY") || l.contains("# Safety")) {
            findings.push(Finding::new(&file.path, index + 1, "unsafe without a SAFETY comment above it"));
        }
    }
    findings
}

/// Returns a line without its comment and without the content of string literals.
fn without_text(line: &str) -> String {
    let mut quoted = false;
    let mut code = String::new();
    let mut characters = line.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\\' if quoted => drop(characters.next()),
            '"' => quoted = !quoted,
            '/' if !quoted && characters.peek() == Some(&'/') => break,
            _ if !quoted => code.push(character),
            _ => {}
        }
    }
    code
}

/// Returns a line without its comment.
pub fn without_comment(line: &str) -> &str {
    let (mut quoted, mut escaped) = (false, false);
    for (at, character) in line.char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            '/' if !quoted && line.get(at..).is_some_and(|rest| rest.starts_with("//")) => return line.get(..at).unwrap_or_default(),
            _ => {}
        }
    }
    line
}

/// Checks that `lib.rs` contains only docs, `mod` and `pub use`.
fn only_declarations(file: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut open = false; // inside a declaration of several lines
    for (index, line) in file.text.lines().enumerate() {
        let code = without_text(line);
        let code = code.trim();
        if code.is_empty() || code.starts_with('#') {
            continue;
        }
        if !open {
            let bare = code
                .strip_prefix("pub(crate) ")
                .or_else(|| code.strip_prefix("pub(super) "))
                .or_else(|| code.strip_prefix("pub "))
                .unwrap_or(code);
            if !(bare.starts_with("mod ") && bare.ends_with(';') || bare.starts_with("use ")) {
                findings.push(Finding::new(&file.path, index + 1, "lib.rs holds docs, `mod` and `pub use` alone; move this into a module"));
                break;
            }
        }
        open = !code.ends_with(';');
    }
    findings
}

/// Finds files that no `mod` declares, and that are therefore never compiled.
pub fn unreached(files: &[SourceFile]) -> Vec<Finding> {
    let rust: Vec<&SourceFile> = files.iter().filter(|f| f.path.ends_with(".rs") && f.path.contains("/src/")).collect();
    let named: BTreeSet<String> = rust.iter().flat_map(|f| declared(f)).collect();
    let is_root = |path: &str| path.ends_with("/src/lib.rs") || path.ends_with("/src/main.rs") || path.contains("/src/bin/");
    let dead = rust.iter().filter(|f| !is_root(&f.path) && !named.contains(&f.path));
    dead.map(|f| Finding::new(&f.path, 0, "no `mod` names this file; delete it or declare it")).collect()
}

/// Returns the files that the `mod` lines of a file may refer to.
fn declared(file: &SourceFile) -> Vec<String> {
    let (folder, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
    let stem = name.trim_end_matches(".rs");
    let below = if ["lib", "main"].contains(&stem) { folder.to_owned() } else { format!("{folder}/{stem}") };
    let mut paths = Vec::new();
    for line in file.text.lines() {
        let code = without_text(line);
        let words: Vec<&str> = code.trim().trim_end_matches(';').split_whitespace().collect();
        if let [.., "mod", module] = words.as_slice() {
            paths.push(format!("{below}/{module}.rs"));
        }
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> SourceFile {
        SourceFile { path: path.into(), text: text.into() }
    }

    #[test]
    fn code_in_a_crate_root_is_found() {
        let good = "//! Docs.\n#![forbid(unsafe_code)]\nmod a;\n#[cfg(test)]\nmod tests;\npub use a::{\n    One,\n    Two,\n};\n";
        assert_eq!(check(&file("crates/block/src/lib.rs", good)), []);
        let bad = good.to_owned() + "pub const X: u8 = 1;\n";
        assert_eq!(check(&file("crates/block/src/lib.rs", &bad)).len(), 1);
        assert_eq!(check(&file("crates/block/src/lib.rs", "mod a;\n")).len(), 1, "no forbid");
    }

    #[test]
    fn unsafe_is_where_it_may_be() {
        let keyword = ["un", "safe"].concat();
        let block = format!("fn f() {{\n    {keyword} {{ g() }}\n}}\n");
        assert_eq!(check(&file("crates/engine/src/a.rs", &block)).len(), 1);
        assert_eq!(check(&file("crates/device/src/uring.rs", &block)).len(), 1, "no SAFETY");
        let explained = block.replace("    ", "    // SAFETY: g has no conditions.\n    ");
        assert_eq!(check(&file("crates/device/src/uring/ring.rs", &explained)), []);
        assert_eq!(check(&file("crates/engine/src/a.rs", &format!("// {keyword} in words\nlet a = \"{keyword}\";\n"))), []);
    }

    #[test]
    fn banned_words_and_length() {
        for word in banned() {
            assert_eq!(check(&file("crates/engine/src/a.rs", &format!("    {word}\n"))).len(), 1, "{word}");
        }
        assert_eq!(check(&file("crates/engine/src/a.rs", &"\n".repeat(1001))).len(), 1);
        assert_eq!(check(&file("crates/engine/src/a.rs", &"\n".repeat(1000))), []);
    }

    #[test]
    fn a_file_that_nobody_names_is_dead() {
        let files = [
            file("crates/x/src/lib.rs", "mod a;\n"),
            file("crates/x/src/a.rs", "mod tests;\n"),
            file("crates/x/src/a/tests.rs", ""),
            file("crates/x/src/b.rs", ""),
        ];
        let dead: Vec<String> = unreached(&files).into_iter().map(|f| f.file).collect();
        assert_eq!(dead, ["crates/x/src/b.rs"]);
    }
}
