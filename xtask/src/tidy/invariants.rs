//! Numbers of invariants (`INV-AREA-N`, and `IN` for the engine as a whole) and the page that
//! defines them.

use super::tree::{Finding, SourceFile};
use std::collections::{BTreeMap, BTreeSet};

/// Page that defines each number under its own heading.
const PAGE: &str = "docs/invariants.md";
const HEADING: &str = "### ";

/// Checks that each cited number has one definition, that each definition has a sentence and is
/// cited in code, and that functions named on the page exist.
pub fn check(files: &[SourceFile]) -> Vec<Finding> {
    let Some(page) = files.iter().find(|file| file.path == PAGE) else {
        return vec![Finding::new(PAGE, 0, "is missing: it defines the numbers of invariants")];
    };
    let (defined, mut findings) = definitions(page);
    let mut in_code = BTreeSet::new();
    for file in files.iter().filter(|file| file.path != PAGE) {
        for (index, line) in file.text.lines().enumerate() {
            for number in numbers(line) {
                if !defined.contains_key(number) {
                    findings.push(Finding::new(
                        &file.path,
                        index + 1,
                        format!("cites {number}, which {PAGE} does not define; define it there"),
                    ));
                }
                if file.path.starts_with("crates/") && file.path.ends_with(".rs") {
                    in_code.insert(number);
                }
            }
        }
    }
    let uncited = defined.iter().filter(|(number, _)| !in_code.contains(*number));
    findings.extend(uncited.map(|(number, line)| {
        Finding::new(PAGE, *line, format!("defines {number}, which no code cites; cite it where it is asserted, or remove it"))
    }));
    findings.extend(missing_names(page, files));
    findings
}

/// Returns the numbers that the page defines, with their lines.
fn definitions(page: &SourceFile) -> (BTreeMap<&str, usize>, Vec<Finding>) {
    let mut defined = BTreeMap::new();
    let mut findings = Vec::new();
    let lines: Vec<&str> = page.text.lines().collect();
    for (index, line) in lines.iter().enumerate() {
        let Some(number) = line.strip_prefix(HEADING) else { continue };
        if numbers(number) != [number] {
            findings.push(Finding::new(PAGE, index + 1, "a heading of this level is the number of an invariant and nothing else"));
            continue;
        }
        if let Some(before) = defined.insert(number, index + 1) {
            findings.push(Finding::new(
                PAGE,
                index + 1,
                format!("defines {number} again (first in line {before}); give one of them another number"),
            ));
        }
        if lines.get(index + 1).is_none_or(|sentence| !sentence.starts_with(|c: char| c.is_ascii_uppercase())) {
            findings.push(Finding::new(PAGE, index + 1, format!("the line after {number} begins the sentence that states the rule")));
        }
    }
    (defined, findings)
}

/// Returns the numbers of invariants in a text.
fn numbers(text: &str) -> Vec<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_');
    words.map(|word| word.trim_end_matches('-')).filter(|word| is_number(word)).collect()
}

fn is_number(word: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match word.strip_prefix("INV-").and_then(|rest| rest.rsplit_once('-')) {
        Some((area, number)) => digits(number) && area.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-'),
        None => word.strip_prefix('I').is_some_and(digits),
    }
}

/// Checks that each function named on the page after a Rust file is in that file, in the form:
/// `path.rs` (`function`, `another`).
fn missing_names(page: &SourceFile, files: &[SourceFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut source: Option<&SourceFile> = None;
    for (index, line) in page.text.lines().enumerate() {
        if !line.starts_with(' ') {
            source = None;
        }
        for word in line.split('`').skip(1).step_by(2) {
            if word.ends_with(".rs") {
                source = files.iter().find(|file| file.path == word);
            } else if let Some(file) = source.filter(|_| is_function(word))
                && !file.text.contains(&format!("fn {word}("))
                && !file.text.contains(&format!("fn {word}<"))
            {
                findings.push(Finding::new(PAGE, index + 1, format!("names the function {word}, which is not in {}", file.path)));
            }
        }
    }
    findings
}

/// Returns true for the name of a function. Options and planted bugs have hyphens, functions have
/// none.
fn is_function(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a number, which is assembled here so that this file cites none.
    fn number(area: &str) -> String {
        ["INV", area, "1"].join("-")
    }

    fn page(text: &str) -> SourceFile {
        SourceFile { path: PAGE.into(), text: text.into() }
    }

    fn code(text: &str) -> SourceFile {
        SourceFile { path: "crates/x/src/a.rs".into(), text: text.into() }
    }

    fn said(files: &[SourceFile]) -> Vec<String> {
        check(files).into_iter().map(|finding| finding.to_string()).collect()
    }

    #[test]
    fn numbers_are_told_from_other_words() {
        let (long, old) = (number("READ-CACHE"), ["I", "12"].concat());
        assert_eq!(numbers(&format!("// {long}: see `{old}`; {old}, ({long})-")), [&*long, &*old, &*old, &*long]);
        assert_eq!(numbers(&format!("grep INV- INV-LOG INV-log-1 {old}b INT12 I/O SI12")), [""; 0]);
    }

    #[test]
    fn each_number_is_defined_once_and_cited_in_code() {
        let (a, b) = (number("A"), number("B"));
        let both = format!("# Rules\n### {a}\nIt holds.\n### {b}\nIt holds, too.\n");
        assert_eq!(said(&[page(&both), code(&format!("// {a} and {b}"))]), [""; 0]);
        let uncited = said(&[page(&both), code(&format!("// {a}")), SourceFile { path: "docs/b.md".into(), text: b.clone() }]);
        assert!(matches!(uncited.as_slice(), [one] if one.starts_with("docs/invariants.md:4:") && one.contains(&b)), "{uncited:?}");
        let undefined = said(&[page(&format!("### {a}\nIt holds.\n")), code(&format!("// {a}\n// {b}"))]);
        assert!(matches!(undefined.as_slice(), [one] if one.starts_with("crates/x/src/a.rs:2:") && one.contains(&b)), "{undefined:?}");
        let twice = said(&[page(&format!("### {a}\nIt holds.\n### {a}\nIt does not.\n")), code(&a)]);
        assert!(matches!(twice.as_slice(), [one] if one.starts_with("docs/invariants.md:3:")), "{twice:?}");
        assert_eq!(said(&[code(&a)]).len(), 1, "no page");
    }

    #[test]
    fn a_definition_is_a_heading_and_a_sentence() {
        let a = number("A");
        assert_eq!(said(&[page(&format!("### {a}\n\nIt holds.\n")), code(&a)]).len(), 1);
        assert_eq!(said(&[page(&format!("### {a}\n- Kept: nowhere.\n")), code(&a)]).len(), 1);
        assert_eq!(said(&[page(&format!("### {a}\nIt holds.\n### Others\n")), code(&a)]).len(), 1);
    }

    #[test]
    fn functions_that_are_named_exist() {
        let a = number("A");
        let names = |words: &str| {
            let text = format!("### {a}\nIt holds.\n- Kept: `crates/x/src/a.rs` (`f`,\n  {words}).\n- Tested: `no_path_before_this`.\n");
            said(&[page(&text), code(&format!("// {a}\nfn f() {{}}\nfn generic<T>() {{}}\n"))]).len()
        };
        assert_eq!(names("`generic`), `--an-option`, `a-bug`, `docs/page.md` (`f`"), 0);
        assert_eq!(names("`g`"), 1);
    }
}
