//! A scanner for Rust code as rustfmt leaves it: code without comments, texts and tests, and the
//! methods of each type.

use super::tree::SourceFile;
use std::collections::BTreeSet;
use std::ops::Range;

/// A method with `self`.
pub struct Method {
    /// Type that it belongs to.
    pub owner: String,
    /// Its name.
    pub name: String,
}

/// A call of a method.
pub struct Call<'a> {
    /// Type of the `impl` block around it.
    pub inside: Option<&'a str>,
    /// Receiver.
    pub on: On<'a>,
    /// Name of the method.
    pub name: &'a str,
}

/// Receiver of a call.
#[derive(Debug, PartialEq, Eq)]
pub enum On<'a> {
    /// `self.name()` or `Self::name()`.
    Own,
    /// `Type::name()`.
    Type(&'a str),
    /// Any other value.
    Value,
}

/// Code of a file.
pub struct Code {
    text: String,
    impls: Vec<(String, Range<usize>)>,
}

/// Returns the files of products, without tests and what only tests use.
pub fn products(files: &[SourceFile]) -> Vec<&SourceFile> {
    let is_rust = |file: &&SourceFile| file.path.starts_with("crates/") && file.path.contains("/src/") && file.path.ends_with(".rs");
    let is_test = |path: &str| path.ends_with("/tests.rs") || path.contains("/tests/") || path.contains("/testing");
    let rust: Vec<&SourceFile> = files.iter().filter(is_rust).filter(|file| !is_test(&file.path)).collect();
    let tests: BTreeSet<String> = rust.iter().flat_map(|file| test_modules(file)).collect();
    let is_of = |path: &str, module: &String| path.strip_prefix(module.as_str()).is_some_and(|rest| rest.starts_with(['.', '/']));
    rust.into_iter().filter(|file| !tests.iter().any(|module| is_of(&file.path, module))).collect()
}

/// Returns the paths, without `.rs`, of the modules that a file declares for tests.
fn test_modules(file: &SourceFile) -> Vec<String> {
    let (folder, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
    let stem = name.trim_end_matches(".rs");
    let below = if ["lib", "main", "mod"].contains(&stem) { folder.to_owned() } else { format!("{folder}/{stem}") };
    let lines: Vec<&str> = file.text.lines().map(str::trim).collect();
    let pairs = lines.windows(2).filter(|pair| pair[0] == "#[cfg(test)]");
    let modules = pairs.filter_map(|pair| pair[1].strip_suffix(';')?.rsplit_once("mod ").map(|(_, module)| module));
    modules.map(|module| format!("{below}/{module}")).collect()
}

impl Code {
    /// Reads the code of a file.
    pub fn new(text: &str) -> Code {
        let text = without_tests(without_words(text));
        let impls = impls(&text);
        Code { text, impls }
    }

    /// Returns the code, in which spaces replace comments, texts and tests.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the types that the file defines.
    pub fn types(&self) -> Vec<&str> {
        let words = words(&self.text);
        let pairs = words.windows(2).filter(|pair| ["struct", "enum", "trait", "union"].contains(&pair[0].1));
        pairs.map(|pair| pair[1].1).collect()
    }

    /// Returns the types that the file has `impl` blocks of.
    pub fn owners(&self) -> impl Iterator<Item = &str> {
        self.impls.iter().map(|(owner, _)| owner.as_str())
    }

    /// Returns all methods with `self`, those of traits included.
    pub fn methods(&self) -> Vec<Method> {
        let mut methods = Vec::new();
        let all = words(&self.text);
        for pair in all.windows(2).filter(|pair| pair[0].1 == "fn") {
            let (at, name) = pair[1];
            let is_type = at > pair[0].0 + "fn ".len(); // fn(name)
            if !is_type && takes_self(&self.text[at + name.len()..]) {
                let owner = self.inside(at).map_or("?", |owner| owner).to_owned();
                methods.push(Method { owner, name: name.to_owned() });
            }
        }
        methods
    }

    /// Returns all calls of methods.
    pub fn calls(&self) -> Vec<Call<'_>> {
        let mut calls = Vec::new();
        let all = words(&self.text);
        for (index, (at, name)) in all.iter().enumerate() {
            let after = self.text[at + name.len()..].trim_start();
            if !(after.starts_with('(') || after.starts_with("::<")) {
                continue;
            }
            let before = self.text[..*at].trim_end();
            let previous = index.checked_sub(1).and_then(|previous| all.get(previous)).map_or("", |(_, word)| *word);
            let on = if let Some(receiver) = before.strip_suffix('.') {
                let receiver = receiver.trim_end();
                let path = receiver.strip_suffix("self").is_some_and(|rest| !rest.trim_end().ends_with('.'));
                if path && previous == "self" { On::Own } else { On::Value }
            } else if before.ends_with("::") {
                match previous {
                    "Self" => On::Own,
                    owner => On::Type(owner),
                }
            } else {
                continue;
            };
            calls.push(Call { inside: self.inside(*at), on, name });
        }
        calls
    }

    /// Returns the type of the `impl` block around a place.
    fn inside(&self, at: usize) -> Option<&str> {
        self.impls.iter().find(|(_, place)| place.contains(&at)).map(|(owner, _)| owner.as_str())
    }
}

/// Returns true if the text after a function's name has parameters of which the first is `self`.
fn takes_self(text: &str) -> bool {
    let mut angles = 0;
    let mut characters = text.char_indices();
    let start = characters.find_map(|(at, character)| {
        angles += i32::from(character == '<');
        angles -= i32::from(character == '>' && !text[..at].ends_with('-'));
        (character == '(' && angles == 0).then_some(at + 1)
    });
    let first = start.map_or("", |start| text[start..].split([',', ')']).next().unwrap_or_default());
    first.split([' ', '&', ':', '\n']).any(|word| word == "self")
}

/// Returns all words with their places. A word is a name, a keyword or a number.
fn words(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut start = None;
    for (at, byte) in text.bytes().chain([b' ']).enumerate() {
        let inside = byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii();
        match (start, inside) {
            (None, true) => start = Some(at),
            (Some(begin), false) => {
                found.push((begin, &text[begin..at]));
                start = None;
            }
            _ => {}
        }
    }
    found
}

/// Returns the types and places of all `impl` blocks.
fn impls(text: &str) -> Vec<(String, Range<usize>)> {
    let mut found: Vec<(String, Range<usize>)> = Vec::new();
    for (at, word) in words(text) {
        let before = text[..at].trim_end();
        let begins = before.is_empty() || before.ends_with(['}', ';', '{', ']']) || before.ends_with("unsafe");
        if word != "impl" || !begins {
            continue;
        }
        let Some(open) = text[at..].find('{').map(|open| at + open) else { continue };
        if let Some(owner) = owner(&text[at + word.len()..open]) {
            found.push((owner, at..end_of_block(text, open)));
        }
    }
    found
}

/// Returns the type of an `impl` block by the text between `impl` and its brace.
fn owner(header: &str) -> Option<String> {
    let header = header.split(" where").next()?.split("\nwhere").next()?.trim();
    // generic parameters of the block
    let mut rest = header;
    if header.starts_with('<') {
        let mut depth = 0;
        let end = header.char_indices().find(|(at, character)| {
            depth += i32::from(*character == '<');
            depth -= i32::from(*character == '>' && !header[..*at].ends_with('-'));
            depth == 0
        });
        rest = &header[end?.0 + 1..];
    }
    let name = rest.rsplit_once(" for ").map_or(rest, |(_, name)| name).trim();
    let path = name.split('<').next()?.trim().trim_start_matches(['&', '(', '[']);
    let last = path.rsplit("::").next()?.split_whitespace().last()?;
    Some(last.to_owned())
}

/// Returns the place behind the brace that closes the one at `open`.
fn end_of_block(text: &str, open: usize) -> usize {
    let mut depth = 0;
    for (at, byte) in text.bytes().enumerate().skip(open) {
        depth += i32::from(byte == b'{');
        depth -= i32::from(byte == b'}');
        if depth == 0 {
            return at + 1;
        }
    }
    text.len()
}

/// Replaces what only tests compile by spaces.
fn without_tests(text: String) -> String {
    const MARK: &str = "#[cfg(test)]";
    let mut bytes = text.clone().into_bytes();
    for (at, _) in text.match_indices(MARK) {
        let begin = at + MARK.len();
        let item = text[begin..].find(['{', ';']).map(|found| begin + found);
        let Some(first) = item else { continue };
        let is_item = text[begin..first]
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .any(|word| ["fn", "mod", "impl", "use", "struct", "enum", "const", "static", "type", "trait"].contains(&word));
        let end = if text[first..].starts_with('{') { end_of_block(&text, first) } else { first + 1 };
        // a field or an expression has no keyword of an item
        if is_item && !text[begin..first].contains([',', '=']) {
            blank(&mut bytes[at..end]);
        }
    }
    String::from_utf8(bytes).unwrap_or_default()
}

/// Replaces comments and the content of texts by spaces.
fn without_words(text: &str) -> String {
    let source = text.as_bytes();
    let mut bytes = source.to_vec();
    let mut at = 0;
    while at < source.len() {
        let rest = &text.as_bytes()[at..];
        let word_before = at > 0 && (source[at - 1].is_ascii_alphanumeric() || source[at - 1] == b'_');
        let length = match rest {
            [b'/', b'/', ..] => rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len()),
            [b'/', b'*', ..] => comment(rest),
            [b'r', b'"' | b'#', ..] if !word_before => raw_text(rest).unwrap_or(0),
            [b'b', b'r', b'"' | b'#', ..] if !word_before => raw_text(&rest[1..]).map_or(0, |length| length + 1),
            [b'"', ..] => quoted(rest, b'"'),
            [b'\'', b'\\', ..] => quoted(rest, b'\''),
            [b'\'', ..] => character(&text[at..]),
            _ => 0,
        };
        blank(&mut bytes[at..at + length]);
        at += length.max(1);
    }
    String::from_utf8(bytes).unwrap_or_default()
}

fn blank(bytes: &mut [u8]) {
    bytes.iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
}

/// Returns the length of a comment between slashes and asterisks, others in it included.
fn comment(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match rest[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at.min(rest.len())
}

/// Returns the length of a raw text, from its `r`.
fn raw_text(rest: &[u8]) -> Option<usize> {
    let hashes = rest[1..].iter().take_while(|byte| **byte == b'#').count();
    if rest.get(1 + hashes) != Some(&b'"') {
        return None;
    }
    let end = [b"\"".as_slice(), &b"#".repeat(hashes)].concat();
    let body = 2 + hashes;
    let length = rest[body..].windows(end.len()).position(|window| window == end)?;
    Some(body + length + end.len())
}

/// Returns the length of a text in quotation marks.
fn quoted(rest: &[u8], mark: u8) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != mark {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

/// Returns the length of a character in quotation marks; 0 for a lifetime.
fn character(rest: &str) -> usize {
    let mut characters = rest.char_indices().skip(2);
    characters.next().filter(|(_, character)| *character == '\'').map_or(0, |(at, _)| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r##"
//! self.comment() { in words
struct Pool<'a> { name: &'a str }
impl<T: Fn(u8) -> bool> Pool<'_> {
    fn new(pool: &Other) -> Self { Self::made() }
    pub(crate) fn step(&mut self) -> Result<(), String> {
        self.text("self.quoted( {", '{', '\'', r#"a " self.raw("#); /* self.old( /* } */ */
        self.field.deep().count::<u8>();
        Pool::named(self)
    }
    fn chain<F: Fn() -> u8>(
        mut self,
    ) {
        self
            .broken()
    }
}
impl std::fmt::Display for crate::pool::Other {
    fn fmt(&self, f: &mut F) -> R { other.show(f) }
}
fn free(x: impl Fn()) { x.call() }
#[cfg(test)]
mod tests {
    fn f() { self.tested() }
}
"##;

    #[test]
    fn methods_belong_to_their_types() {
        let code = Code::new(TEXT);
        let methods: Vec<(String, String)> = code.methods().into_iter().map(|method| (method.owner, method.name)).collect();
        let expected = [("Pool", "step"), ("Pool", "chain"), ("Other", "fmt")];
        assert_eq!(methods, expected.map(|(owner, name)| (owner.to_owned(), name.to_owned())));
        assert_eq!(code.types(), ["Pool"]);
        assert_eq!(code.owners().collect::<Vec<_>>(), ["Pool", "Other"]);
    }

    #[test]
    fn calls_are_found_in_code_alone() {
        let code = Code::new(TEXT);
        let calls: Vec<_> = code.calls().into_iter().map(|call| (call.inside.unwrap_or(""), call.on, call.name)).collect();
        let expected = [
            ("Pool", On::Own, "made"),
            ("Pool", On::Own, "text"),
            ("Pool", On::Value, "deep"),
            ("Pool", On::Value, "count"),
            ("Pool", On::Type("Pool"), "named"),
            ("Pool", On::Own, "broken"),
            ("Other", On::Value, "show"),
            ("", On::Value, "call"),
        ];
        assert_eq!(calls, expected);
    }

    #[test]
    fn texts_and_lifetimes_are_told_apart() {
        let text = "fn f<'a>(x: &'a str) { g('a', b'\"', '\\'', \"\\\"\", 'é') } // 'x\n";
        let code = Code::new(text);
        assert_eq!(code.text().len(), text.len());
        assert_eq!(code.text().split_whitespace().collect::<String>(), "fnf<'a>(x:&'astr){g(,b,,,)}");
    }

    #[test]
    fn modules_of_tests_are_no_products() {
        let file = |path: &str, text: &str| SourceFile { path: path.into(), text: text.into() };
        let files = [
            file("crates/x/src/lib.rs", "mod a;\n#[cfg(test)]\nmod model;\n"),
            file("crates/x/src/a.rs", "#[cfg(test)]\nmod tests;\n"),
            file("crates/x/src/a/tests.rs", ""),
            file("crates/x/src/model.rs", ""),
            file("crates/x/src/model/b.rs", ""),
            file("crates/x/src/models.rs", ""),
            file("crates/x/tests/c.rs", ""),
        ];
        let paths: Vec<&str> = products(&files).iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["crates/x/src/lib.rs", "crates/x/src/a.rs", "crates/x/src/models.rs"]);
    }
}
