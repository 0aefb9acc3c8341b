//! Floors of the engine's modules: imports go down.

use super::code::{self, Code};
use super::tree::SourceFile;
use std::collections::BTreeMap;

const SOURCE: &str = "crates/engine/src/";
/// Modules by floor, the lowest first. Modules of one floor do not know each other.
const FLOORS: [&[&str]; 9] = [
    &["error"],
    &["api", "options", "slab", "throttle", "tuning", "units"],
    &["codec", "io", "log", "space", "tree"],
    &["cache", "core", "map", "read_ahead", "read_cache"],
    &["store"],
    &["catalog", "open", "pool", "query", "request", "startup", "restore_points", "task"],
    &["check", "scheduler"],
    &["engine"],
    &["machine"],
];

/// Direction of an import that is not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wrong {
    /// Of a module on a higher floor.
    Up,
    /// Of another module on the same floor.
    Across,
    /// Of or in a module that the table of floors does not have.
    Unknown,
}

/// An import that is not allowed.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Import {
    /// Its direction.
    pub wrong: Wrong,
    /// Path of the file.
    pub file: String,
    /// Module that it imports from.
    pub module: String,
}

/// Returns the imports of the engine that are not allowed, once for each file and module.
pub fn imports(files: &[SourceFile]) -> Vec<Import> {
    let engine: Vec<&SourceFile> = code::products(files).into_iter().filter(|file| file.path.starts_with(SOURCE)).collect();
    let root = engine.iter().find(|file| file.path.ends_with("src/lib.rs")).map(|file| Code::new(&file.text));
    let exported = root.as_ref().map(|code| exported(code.text())).unwrap_or_default();
    let mut found = Vec::new();
    for file in engine {
        let own = file.path[SOURCE.len()..].split(['/', '.']).next().unwrap_or_default();
        if own == "lib" {
            continue;
        }
        for name in imported(Code::new(&file.text).text()) {
            // the root exports all types of `api`, and of `error` below it
            let other = if name.starts_with(char::is_uppercase) { "api" } else { &name };
            let module = exported.get(&name).map_or(other, String::as_str);
            if let Some(wrong) = direction(own, module) {
                found.push(Import { wrong, file: file.path.clone(), module: module.to_owned() });
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

fn direction(from: &str, to: &str) -> Option<Wrong> {
    let floor = |module: &str| FLOORS.iter().position(|modules| modules.contains(&module));
    match (floor(from), floor(to)) {
        (Some(own), Some(other)) if other > own => Some(Wrong::Up),
        (Some(own), Some(other)) => (own == other && from != to).then_some(Wrong::Across),
        _ => Some(Wrong::Unknown),
    }
}

/// Returns the names that follow `crate::`, directly or in braces.
fn imported(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (at, mark) in text.match_indices("crate::") {
        let rest = text[at + mark.len()..].trim_start();
        let mut depth = 0;
        let mut begins = true; // at the begin of a path below `crate::`
        for (place, character) in rest.char_indices() {
            match character {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 1 => begins = true,
                _ if character.is_alphanumeric() && begins && depth <= 1 => {
                    names.push(rest[place..].split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default().to_owned());
                    begins = false;
                }
                _ => {}
            }
            if depth == 0 && character != ' ' {
                break; // one path, or the last brace
            }
        }
    }
    names
}

/// Returns the module of each name that the crate's root exports.
fn exported(text: &str) -> BTreeMap<String, String> {
    let mut modules = BTreeMap::new();
    for statement in text.split(';') {
        let Some((_, path)) = statement.rsplit_once("use ") else { continue };
        let mut words = path.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
        if let Some(module) = words.next() {
            modules.extend(words.map(|name| (name.to_owned(), module.to_owned())));
        }
    }
    modules
}

/// Describes these imports by direction and pair of modules.
pub fn describe(imports: &[Import]) -> String {
    let mut pairs: BTreeMap<(Wrong, &str, &str), Vec<&str>> = BTreeMap::new();
    for Import { wrong, file, module } in imports {
        let own = file[SOURCE.len()..].split(['/', '.']).next().unwrap_or_default();
        pairs.entry((*wrong, own, module)).or_default().push(&file[SOURCE.len()..]);
    }
    let line =
        |((wrong, from, to), files): (&(Wrong, &str, &str), &Vec<&str>)| format!("{wrong:?}: {from} -> {to}: {}\n", files.join(", "));
    pairs.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<(Wrong, String)> {
        let file = |path: &str, text: &str| SourceFile { path: format!("{SOURCE}{path}"), text: text.to_owned() };
        let root = "pub use api::{Time, listed::Other};\npub use pool::Target;\nmod api;\n";
        imports(&[file("lib.rs", root), file(path, text)]).into_iter().map(|import| (import.wrong, import.module)).collect()
    }

    #[test]
    fn imports_go_down() {
        assert_eq!(found("task/a.rs", "use crate::core::Core;\nuse crate::task::B;\nuse crate::Time;\n"), []);
        assert_eq!(found("core/a.rs", "use crate::task::B;\nuse crate::task::C;\n"), [(Wrong::Up, "task".to_owned())]);
        assert_eq!(found("api.rs", "use crate::Target;\n"), [(Wrong::Up, "pool".to_owned())]);
        assert_eq!(found("task/a.rs", "fn f() { crate::open::g() }\n"), [(Wrong::Across, "open".to_owned())]);
        assert_eq!(found("new.rs", "use crate::api::Time;\n"), [(Wrong::Unknown, "api".to_owned())]);
        assert_eq!(found("core/a.rs", "// use crate::task::B;\n#[cfg(test)]\nuse crate::task::B;\n"), []);
    }

    #[test]
    fn braces_have_several_imports() {
        let text = "use crate::{\n    api::{pool, task},\n    open::A,\n    Target,\n};\nuse crate::engine;\n";
        assert_eq!(imported(text), ["api", "open", "Target", "engine"]);
        assert_eq!(found("log.rs", "use crate::{Time, Target};\n"), [(Wrong::Up, "pool".to_owned())]);
    }
}
