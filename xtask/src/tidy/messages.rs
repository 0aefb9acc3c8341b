//! Rules about errors: code decides by kinds, not by words of a message, and the engine knows no
//! words of the command line.

use super::source::without_comment;
use super::tree::{Finding, SourceFile};

/// Names of values that hold a message for people.
const MESSAGES: &[&str] = &["error", "err", "reason", "message", "why", "refused", "refusal", "fault", "failure"];
/// Methods that look for words.
const LOOKS: &[&str] = &[".contains(\"", ".starts_with(\"", ".ends_with(\""];
/// The crate that knows no command line.
const ENGINE: &str = "crates/engine/src/";
/// Crates that see the program from outside, as a user does: by its messages alone.
const OUTSIDE: &[&str] = &["crates/lab/", "tests/"];
/// Beginnings of quoted commands.
const COMMANDS: &[&str] = &["'millpond ", "'pool "];

/// Checks a Rust file. Tests may compare what users see.
pub fn check(file: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !file.path.contains("/src/") || file.path.contains("/tests") || OUTSIDE.iter().any(|folder| file.path.starts_with(folder)) {
        return findings;
    }
    for (index, line) in file.text.lines().take_while(|line| line.trim() != "mod tests {").enumerate() {
        let code = without_comment(line);
        if let Some(name) = LOOKS.iter().find_map(|look| searched_message(code, look)) {
            let text = format!("`{name}` is for people: decide by the kind of the error and its fields");
            findings.push(Finding::new(&file.path, index + 1, text));
        }
        if file.path.starts_with(ENGINE)
            && let Some(word) = command_word(code)
        {
            let text = format!(
                "`{word}` is a word of the command line, which the engine does not know: crates/daemon/src/hint.rs says it, by kind"
            );
            findings.push(Finding::new(&file.path, index + 1, text));
        }
    }
    findings
}

/// Returns the message in which a line looks for words with this method.
fn searched_message<'a>(code: &'a str, look: &str) -> Option<&'a str> {
    let before = |(at, _): (usize, &str)| code.get(..at).unwrap_or_default();
    code.match_indices(look).map(before).find_map(|before| {
        let part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '(' | ')');
        let receiver = before.rsplit(|c: char| !part(c)).next().unwrap_or_default();
        receiver.split(['.', '(', ')']).find(|name| MESSAGES.contains(name))
    })
}

/// Returns an option or a quoted command in a line. Rust has no operator `--`.
fn command_word(code: &str) -> Option<&str> {
    let option = |(at, _): (usize, &str)| {
        let word = code.get(at..).unwrap_or_default();
        let end = word.find(|c: char| !c.is_ascii_lowercase() && c != '-').unwrap_or(word.len());
        word.get(..end).filter(|word| word.trim_start_matches('-').starts_with(|c: char| c.is_ascii_lowercase()))
    };
    let command = COMMANDS.iter().find(|command| code.contains(**command)).copied();
    code.match_indices("--").find_map(option).or(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, code: &str) -> Vec<usize> {
        check(&SourceFile { path: path.into(), text: code.into() }).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_decision_by_words_is_found() {
        for code in [
            "if reason.contains(\"damaged\") {",
            "let option = if error.message.contains(\"no root\") { 1 } else { 2 };",
            "Faulted(why) if why.starts_with(\"no \") => 1,",
            "matches!(state, Faulted(why) if !why.to_string().ends_with(\"gone\"))",
        ] {
            assert_eq!(found("crates/app/src/a.rs", code), [1], "{code}");
            assert_eq!(found("crates/app/src/a/tests.rs", code), [0; 0], "{code}");
            assert_eq!(found("crates/app/src/a.rs", &format!("#[cfg(test)]\nmod tests {{\n{code}")), [0; 0], "{code}");
        }
        for code in
            ["path.starts_with(\"/dev\")", "error.kinds.contains(&kind)", "// reason.contains(\"damaged\")", "words.contains(\"busy\")"]
        {
            assert_eq!(found("crates/app/src/a.rs", code), [0; 0], "{code}");
        }
    }

    #[test]
    fn a_word_of_the_command_line_in_the_engine_is_found() {
        for code in [
            "#[error(\"name it, or use --degraded\")]",
            "        with --rebuild, which\"",
            "Some(\"see 'pool jobs'\")",
            "\"'millpond list'\"",
        ] {
            assert_eq!(found("crates/engine/src/a.rs", code), [1], "{code}");
            assert_eq!(found("crates/app/src/a.rs", code), [0; 0], "{code}");
        }
        for code in ["// --degraded", "let a = 1; // see 'pool jobs'", "\"a -- b\"", "\"pool 'tank'\"", "\"--------\""] {
            assert_eq!(found("crates/engine/src/a.rs", code), [0; 0], "{code}");
        }
    }
}
