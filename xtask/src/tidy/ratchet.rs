//! Counts that may only fall: patterns of language in doc comments, long functions, files
//! whose methods call each other in a circle, and imports that do not go down.

use super::circles;
use super::floors::{self, Wrong};
use super::tree::{Finding, SourceFile};

/// File with the highest allowed value of each count.
const NUMBERS: &str = "xtask/ratchet.toml";
/// Number of lines of a function, from its name to its last brace, above which it counts as long.
const LONG_FUNCTION: usize = 70;

/// One count.
struct Count {
    key: String,
    found: usize,
    things: &'static str,
    advice: String,
    /// A file of numbers without this count allows 0.
    may_be_absent: bool,
}

/// Checks that no count is higher than its allowed value. Prints a note for each count that is
/// lower.
pub fn check(files: &[SourceFile]) -> Vec<Finding> {
    let Some(numbers) = files.iter().find(|file| file.path == NUMBERS) else {
        return vec![Finding::new(NUMBERS, 0, "is missing: it holds the counts that may only fall")];
    };
    let mut findings = Vec::new();
    for Count { key, found, things, advice, may_be_absent } in counts(files) {
        let entry = numbers.text.lines().enumerate().find_map(|(index, line)| {
            let (name, value) = line.split_once('=')?;
            (name.trim() == key).then(|| (index + 1, value.trim().parse::<usize>()))
        });
        match entry {
            Some((line, Ok(most))) if found > most => {
                let text = format!("{key}: {found} {things}, {} more than the {most} there may be; {advice}", found - most);
                findings.push(Finding::new(NUMBERS, line, text));
            }
            Some((line, Ok(most))) if found < most => {
                eprintln!("note: {NUMBERS}:{line}: {key} fell from {most} to {found}; write {found} there")
            }
            Some((_, Ok(_))) => {}
            Some((line, Err(_))) => findings.push(Finding::new(NUMBERS, line, format!("{key} has no number; write {found} there"))),
            None if may_be_absent && found == 0 => {}
            None => findings.push(Finding::new(NUMBERS, 0, format!("lacks {key}; add \"{key} = {found}\""))),
        }
    }
    findings
}

fn counts(files: &[SourceFile]) -> Vec<Count> {
    let (mut starts, mut telling, mut persons) = (0, 0, 0);
    let mut long = Vec::new();
    for file in files.iter().filter(|file| file.path.ends_with(".rs")) {
        for words in file.text.lines().filter_map(doc_words) {
            let is_one_of = |word: &&str, of: &[&str]| of.iter().any(|one| word.eq_ignore_ascii_case(one));
            starts += usize::from(words.first().is_some_and(|word| ["What", "Who", "Whose"].contains(word)));
            telling += words.iter().filter(|word| is_one_of(word, &["told", "tells"])).count();
            persons += words.iter().filter(|word| is_one_of(word, &["nobody", "somebody"])).count();
        }
        long.extend(long_functions(&file.text).into_iter().map(|(name, lines)| format!("\n  {}: {name} ({lines})", file.path)));
    }
    let words = |key: &str, found, things| {
        let advice = "name the thing and the action instead, in the new lines that the diff shows".to_owned();
        Count { key: key.to_owned(), found, things, advice, may_be_absent: false }
    };
    let advice = format!("make one of them shorter:{}", long.concat());
    let mut counts = vec![
        words("doc-lines-that-begin-with-what-who-whose", starts, "lines"),
        words("doc-words-told-tells", telling, "words"),
        words("doc-words-nobody-somebody", persons, "words"),
        Count { key: "functions-over-70-lines".to_owned(), found: long.len(), things: "functions", advice, may_be_absent: false },
    ];
    counts.extend(circles::graphs(files).iter().map(|graph| {
        let circle = graph.largest();
        let advice = format!(
            "{} lines; `cargo xtask circles {}` shows the calls: let a new one go down, and hand results back",
            graph.lines(&circle),
            graph.name
        );
        let things = "files whose methods call each other in a circle";
        Count { key: format!("{}-files-in-a-circle-of-methods", graph.name), found: circle.len(), things, advice, may_be_absent: true }
    }));
    let imports = floors::imports(files);
    counts.extend([("up", Wrong::Up), ("across", Wrong::Across), ("without-a-floor", Wrong::Unknown)].map(|(name, wrong)| {
        let found = imports.iter().filter(|import| import.wrong == wrong).count();
        let advice = "`cargo xtask floors` lists them, and xtask/src/tidy/floors.rs has the floors: move what is needed down".to_owned();
        Count { key: format!("engine-imports-{name}"), found, things: "pairs of a file and a module", advice, may_be_absent: true }
    }));
    counts
}

/// Returns the words of a line of a doc comment; `None` for other lines.
fn doc_words(line: &str) -> Option<Vec<&str>> {
    let text = line.trim_start();
    let text = text.strip_prefix("///").or_else(|| text.strip_prefix("//!"))?;
    Some(text.split(|c: char| !c.is_ascii_alphabetic() && c != '\'').filter(|word| !word.is_empty()).collect())
}

/// Returns names and lengths of functions that are too long. rustfmt aligns the last brace of a
/// function with its first word.
fn long_functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let indent = line.len() - code.len();
        let Some(name) = function_name(code).filter(|_| !code.ends_with(['}', ';'])) else { continue };
        // a function without a body ends with a semicolon
        let same = |line: &&str| line.len() - line.trim_start().len() == indent && (line.trim_start() == "}" || line.ends_with(';'));
        let Some(length) = lines[start + 1..].iter().position(|line| !line.is_empty() && same(line)).map(|end| end + 2) else { continue };
        if length > LONG_FUNCTION && lines[start + length - 1].trim_start() == "}" {
            found.push((name.to_owned(), length));
        }
    }
    found
}

/// Returns the name of the function that begins on this line.
fn function_name(code: &str) -> Option<&str> {
    let (before, after) = code.split_once("fn ")?;
    let is_qualifier =
        |word: &str| ["pub", "const", "async", "unsafe", "extern"].contains(&word) || word.starts_with("pub(") || word.starts_with('"');
    let inside = |word: &str| word.ends_with(')'); // pub(in some::module)
    let qualifies = before.is_empty() || before.ends_with(' ');
    let all = before.split_whitespace().all(|word| is_qualifier(word) || inside(word));
    (qualifies && all).then(|| after.split(|c: char| !c.is_alphanumeric() && c != '_').next()).flatten().filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(numbers: &str, code: &str) -> [SourceFile; 2] {
        let file = |path: &str, text: &str| SourceFile { path: path.into(), text: text.into() };
        [file(NUMBERS, numbers), file("crates/x/src/a.rs", code)]
    }

    /// Returns the text of a file with these values, in the order of the counts.
    fn numbers(all: [usize; 4]) -> String {
        let words = counts(&[]).into_iter().filter(|count| !count.may_be_absent);
        let lines = words.zip(all).map(|(count, most)| format!("{} = {most}\n", count.key));
        ["# most\n".to_owned()].into_iter().chain(lines).collect()
    }

    /// Returns the counts of words and of long functions.
    fn words(files: &[SourceFile]) -> Vec<usize> {
        counts(files).iter().filter(|count| !count.may_be_absent).map(|count| count.found).collect()
    }

    #[test]
    fn a_circle_of_methods_is_counted() {
        let file = |path: &str, text: &str| SourceFile { path: path.into(), text: text.into() };
        let [a, b] = ["struct X { x: u8 }\nimpl X {\n    fn a(&self) { self.b() }\n}\n", "impl X {\n    fn b(&self) { self.a() }\n}\n"];
        let tree = |most: &str| [file(NUMBERS, &(numbers([0; 4]) + most)), file("crates/x/src/a.rs", a), file("crates/x/src/b.rs", b)];
        assert_eq!(check(&tree("x-files-in-a-circle-of-methods = 2\n")), []);
        assert_eq!(check(&tree("x-files-in-a-circle-of-methods = 1\n")).len(), 1);
        assert_eq!(check(&tree("")).len(), 1, "an absent number allows none");
    }

    #[test]
    fn a_count_may_fall_and_not_rise() {
        let code = ["/", "// What it is.\n"].concat();
        assert_eq!(check(&files(&numbers([1, 0, 0, 0]), &code)), []);
        assert_eq!(check(&files(&numbers([2, 1, 1, 1]), &code)), []);
        let found = check(&files(&numbers([0, 0, 0, 0]), &code));
        assert!(matches!(found.as_slice(), [one] if one.line == 2 && one.text.contains("1 more than the 0")), "{found:?}");
        let none = check(&files("doc-words-told-tells = many\n", &code));
        assert_eq!(none.len(), 4, "{none:?}");
        assert_eq!(check(&files("", "")[1..]).len(), 1, "no file");
    }

    #[test]
    fn words_are_counted_in_doc_comments_alone() {
        let doc = |text: &str| {
            let line = ["    /", "// ", text, "\n// What is told by nobody\nlet told = \"nobody\";\n"].concat();
            words(&files("", &line))
        };
        assert_eq!(doc("Whose turn it is: somebody told `nobody` of it, which tells."), [1, 2, 2, 0]);
        assert_eq!(doc("Says what it is. Whatever."), [0, 0, 0, 0]);
        assert_eq!(doc("what a line before it began"), [0, 0, 0, 0]);
        assert_eq!(words(&files("", &["//", "! Who\n"].concat())), [1, 0, 0, 0]);
    }

    #[test]
    fn long_functions_are_found() {
        let body = |lines: usize| "        one();\n".repeat(lines);
        let text = format!(
            "impl X {{\n    pub(in crate::a) async fn long<T>(\n        x: T,\n    ) -> u8\n    where\n        T: Y,\n    {{\n{}    }}\n\n    fn short() {{\n{}    }}\n}}\n",
            body(65),
            body(68)
        );
        assert_eq!(long_functions(&text), [("long".to_owned(), 72)]);
        let others = format!(
            "trait X {{\n    fn declared(\n        x: u8,\n    );\n}}\nmod a {{\n{}}}\nfn line() {{}}\n// a fn in words\n{}",
            body(80),
            body(80)
        );
        assert_eq!(long_functions(&others), []);
    }
}
