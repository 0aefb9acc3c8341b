//! The book: every page of `docs` is in its table of contents once, links stay within the book and
//! lead to a heading that exists, and every block of code states its language.

use super::tree::{Finding, SourceFile};
use std::collections::{BTreeMap, BTreeSet};

/// Directory of the pages.
const DOCS: &str = "docs/";
/// The table of contents, in the form that mdBook reads.
const SUMMARY: &str = "docs/SUMMARY.md";
/// Languages of blocks with commands. The end-to-end test `book` runs them.
const COMMANDS: [&str; 2] = ["sh", "console"];
/// Follows the language of a block that no test runs, and precedes the reason.
const NOT_RUN: &str = "not run: ";

/// Checks all pages of the book.
pub fn check(files: &[SourceFile]) -> Vec<Finding> {
    let pages: BTreeMap<&str, &SourceFile> = files.iter().filter(|f| is_page(&f.path)).map(|f| (f.path.as_str(), f)).collect();
    let Some(summary) = pages.get(SUMMARY) else {
        return vec![Finding::new(SUMMARY, 0, "is missing: it is the table of contents of the book")];
    };
    let mut findings = contents(summary, &pages);
    for page in pages.values() {
        findings.extend(links(page, &pages));
        findings.extend(blocks(page));
    }
    findings
}

fn is_page(path: &str) -> bool {
    path.starts_with(DOCS) && path.ends_with(".md")
}

/// Checks that the table of contents lists each page once, and nothing else.
fn contents(summary: &SourceFile, pages: &BTreeMap<&str, &SourceFile>) -> Vec<Finding> {
    let (mut listed, mut findings) = (BTreeSet::new(), Vec::new());
    for (line, target) in targets(&summary.text) {
        let path = resolve(SUMMARY, target);
        if !pages.contains_key(path.as_str()) {
            findings.push(Finding::new(SUMMARY, line, format!("lists {target}, which is no page of the book")));
        } else if !listed.insert(path) {
            findings.push(Finding::new(SUMMARY, line, format!("lists {target} again")));
        }
    }
    let missing = pages.keys().filter(|path| **path != SUMMARY && !listed.contains(**path));
    findings.extend(missing.map(|path| Finding::new(path, 0, format!("is not in {SUMMARY}; add it at its place there"))));
    findings
}

/// Checks the links of a page to pages of the book. `paths` checks that the files exist.
fn links(page: &SourceFile, pages: &BTreeMap<&str, &SourceFile>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, target) in targets(&page.text) {
        if target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        let (file, part) = target.split_once('#').unwrap_or((target, ""));
        let path = if file.is_empty() { page.path.clone() } else { resolve(&page.path, file) };
        if !path.starts_with(DOCS) {
            let text = format!("links to {target}, which is not in the book; name the file in backticks");
            findings.push(Finding::new(&page.path, line, text));
        } else if let Some(other) = pages.get(path.as_str())
            && !part.is_empty()
            && !headings(&other.text).contains(part)
        {
            findings.push(Finding::new(&page.path, line, format!("links to {target}, but {path} has no such heading")));
        }
    }
    findings
}

/// Checks that each block of a page states its language, and that commands are in blocks which a
/// test runs, or which give a reason why not.
fn blocks(page: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut open: Option<&str> = None;
    for (index, line) in page.text.lines().enumerate() {
        let mut find = |text: &str| findings.push(Finding::new(&page.path, index + 1, text));
        match (line.trim_start().strip_prefix("```"), open) {
            (Some(info), None) => {
                let (language, rest) = info.split_once(' ').unwrap_or((info, ""));
                if language.is_empty() {
                    find("begins a block without a language; sh and console are commands, text is for the rest");
                }
                let reason = rest.strip_prefix(NOT_RUN).map(str::trim);
                if COMMANDS.contains(&language) && !rest.is_empty() && reason.is_none_or(str::is_empty) {
                    find("says something else after the language than 'not run: REASON'");
                }
                open = Some(language);
            }
            (Some(_), Some(_)) => open = None,
            (None, Some(language)) if !COMMANDS.contains(&language) && (line.starts_with("millpond ") || line.starts_with("$ ")) => {
                find("is a command in a block of another language; use sh or console");
            }
            _ => {}
        }
    }
    findings
}

/// Returns the targets of the links of a text, with their lines. Blocks of code have no links.
fn targets(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut code = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            code = !code;
        } else if !code {
            let starts = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
            found.extend(starts.map(|target| (index + 1, target)));
        }
    }
    found
}

/// Returns the path of a link's target: both are relative to the top directory.
fn resolve(page: &str, target: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            name => parts.push(name),
        }
    }
    parts.join("/")
}

/// Returns the names of the headings of a page, as mdBook and GitHub form them.
fn headings(text: &str) -> BTreeSet<String> {
    let mut names: BTreeSet<String> = BTreeSet::new();
    let mut code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            code = !code;
        }
        let title = line.trim_start_matches('#');
        if code || title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let name: String = title.trim().chars().filter_map(part_of_name).collect();
        let again = (1..).map(|number| format!("{name}-{number}"));
        let free = std::iter::once(name.clone()).chain(again).find(|name| !names.contains(name));
        names.extend(free);
    }
    names
}

fn part_of_name(c: char) -> Option<char> {
    match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c.to_ascii_lowercase()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(pages: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<SourceFile> = pages.iter().map(|(path, text)| SourceFile { path: (*path).into(), text: (*text).into() }).collect();
        check(&files).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn each_page_is_listed_once() {
        assert_eq!(found(&[(SUMMARY, "- [A](a.md)"), ("docs/a.md", "# A")]), [""; 0]);
        let findings = found(&[(SUMMARY, "- [A](a.md)\n- [A](a.md)\n- [C](c.md)"), ("docs/a.md", "# A"), ("docs/d/b.md", "# B")]);
        assert_eq!(findings.len(), 3, "{findings:?}");
        assert!(findings.iter().any(|f| f.starts_with("docs/SUMMARY.md:2:") && f.contains("again")), "{findings:?}");
        assert!(findings.iter().any(|f| f.starts_with("docs/SUMMARY.md:3:") && f.contains("no page")), "{findings:?}");
        assert!(findings.iter().any(|f| f.starts_with("docs/d/b.md:0:")), "{findings:?}");
    }

    #[test]
    fn links_lead_to_headings_of_the_book() {
        let page =
            |text: &str| found(&[(SUMMARY, "[A](a.md)[B](d/b.md)"), ("docs/a.md", text), ("docs/d/b.md", "# One `two`: 3\n[a](../a.md)")]);
        assert_eq!(page("# A\n[x](#a) [y](d/b.md#one-two-3) [z](https://example.org/#no)"), [""; 0]);
        assert_eq!(page("```text\n[x](#none)\n# B\n```"), [""; 0]);
        for wrong in ["[x](#b)", "[x](d/b.md#one)", "[x](../README.md)"] {
            assert_eq!(page(wrong).len(), 1, "{wrong}");
        }
        assert!(headings("# A\n## A\n### A").contains("a-2"));
    }

    #[test]
    fn blocks_state_their_language_and_why_they_are_not_run() {
        let page = |text: &str| found(&[(SUMMARY, "[A](a.md)"), ("docs/a.md", text)]).len();
        assert_eq!(page("```sh\nmillpond list\n```\n```console not run: another host\n$ millpond list\n```\n```text\na\n```"), 0);
        for wrong in ["```\na\n```", "```text\nmillpond list\n```", "```sh later\na\n```", "```sh not run: \na\n```"] {
            assert_eq!(page(wrong), 1, "{wrong}");
        }
    }
}
