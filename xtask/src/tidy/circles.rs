//! Files whose methods call each other in a circle, although no `use` shows it: the methods of a
//! type that has `impl` blocks in several files need none.

use super::arrows;
use super::code::{self, Code, On};
use super::tree::SourceFile;
use std::collections::{BTreeMap, BTreeSet};

/// Methods of the standard library, which a value of unknown type more likely has than a type of
/// the project.
const STANDARD: [&str; 42] = [
    "all", "any", "as_ref", "borrow", "clear", "clone", "contains", "drain", "end", "entry", "extend", "filter", "find", "first", "flush",
    "get", "insert", "is_empty", "iter", "keys", "last", "len", "lock", "map", "max", "min", "next", "pop", "position", "push", "read",
    "recv", "remove", "replace", "send", "sort", "split", "start", "take", "unwrap", "values", "write",
];

/// Number of calls by method.
type Methods = BTreeMap<String, usize>;

/// Files of a crate and the calls between them.
pub struct Graph {
    /// Name of the crate's folder.
    pub name: String,
    /// Path and lines of each file.
    pub files: Vec<(String, usize)>,
    /// Calls from the first file to the second.
    pub calls: BTreeMap<(usize, usize), Methods>,
    /// Arrows of the methods of each type.
    pub types: BTreeMap<String, BTreeSet<(usize, usize)>>,
}

/// Returns the graph of each crate.
pub fn graphs(files: &[SourceFile]) -> Vec<Graph> {
    let mut crates: BTreeMap<&str, Vec<(&SourceFile, Code)>> = BTreeMap::new();
    for file in code::products(files) {
        let name = file.path.split('/').nth(1).unwrap_or_default();
        crates.entry(name).or_default().push((file, Code::new(&file.text)));
    }
    let names: Vec<(&str, BTreeSet<String>)> = crates.iter().map(|(name, files)| (*name, method_names(files))).collect();
    let graph = |(name, files): (&&str, &Vec<(&SourceFile, Code)>)| {
        let foreign = names.iter().filter(|(other, _)| arrows::may_use(name, other));
        let foreign = foreign.flat_map(|(_, methods)| methods.iter().map(String::as_str));
        graph(name, files, foreign.chain(STANDARD).collect())
    };
    crates.iter().map(graph).collect()
}

fn method_names(files: &[(&SourceFile, Code)]) -> BTreeSet<String> {
    files.iter().flat_map(|(_, code)| code.methods()).map(|method| method.name).collect()
}

/// Returns the calls of methods of types that have `impl` blocks in several files.
fn graph(name: &str, files: &[(&SourceFile, Code)], foreign: BTreeSet<&str>) -> Graph {
    let types = Types::new(files);
    let mut places: BTreeMap<(String, String), usize> = BTreeMap::new(); // file of each method of a type
    let mut owners: BTreeMap<String, BTreeSet<String>> = BTreeMap::new(); // types that have a method of this name
    let mut spread: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new(); // files with `impl` blocks of a type
    for (index, (file, code)) in files.iter().enumerate() {
        for owner in code.owners() {
            spread.entry(types.nearest(owner, &file.path)).or_default().insert(index);
        }
        for method in code.methods() {
            let owner = types.nearest(&method.owner, &file.path);
            owners.entry(method.name.clone()).or_default().insert(owner.clone());
            places.insert((owner, method.name), index);
        }
    }
    let mut types_called: BTreeMap<String, BTreeSet<(usize, usize)>> = BTreeMap::new();
    let mut calls: BTreeMap<(usize, usize), Methods> = BTreeMap::new();
    for (index, (file, code)) in files.iter().enumerate() {
        for call in code.calls() {
            let only = owners.get(call.name).filter(|owners| owners.len() == 1 && !foreign.contains(call.name));
            let owner = match (call.on, call.inside) {
                (On::Own, Some(own)) => Some(types.nearest(own, &file.path)),
                (On::Type(owner), _) => Some(types.nearest(owner, &file.path)),
                _ => only.and_then(|owners| owners.first().cloned()),
            };
            let Some(owner) = owner.filter(|owner| spread.get(owner).is_some_and(|files| files.len() > 1)) else { continue };
            let method = (owner, call.name.to_owned());
            if let Some(target) = places.get(&method).filter(|target| **target != index) {
                types_called.entry(method.0).or_default().insert((index, *target));
                *calls.entry((index, *target)).or_default().entry(call.name.to_owned()).or_default() += 1;
            }
        }
    }
    let files = files.iter().map(|(file, _)| (file.path.clone(), file.text.lines().count())).collect();
    Graph { name: name.to_owned(), files, calls, types: types_called }
}

/// The files that define each type.
struct Types<'a>(BTreeMap<&'a str, Vec<&'a str>>);

impl<'a> Types<'a> {
    fn new(files: &'a [(&SourceFile, Code)]) -> Types<'a> {
        let mut types: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (file, code) in files {
            code.types().into_iter().for_each(|name| types.entry(name).or_default().push(&file.path));
        }
        Types(types)
    }

    /// Returns a type's name with the file that defines it, the nearest one if several do.
    fn nearest(&self, name: &str, from: &str) -> String {
        let common = |path: &str| path.split(['/', '.']).zip(from.split(['/', '.'])).take_while(|(a, b)| a == b).count();
        let files = self.0.get(name).into_iter().flatten();
        let nearest = files.max_by_key(|path| common(path)).copied().unwrap_or_default();
        format!("{name} of {nearest}")
    }
}

impl Graph {
    /// Returns the files of the largest circle; none if there is no circle.
    pub fn largest(&self) -> Vec<usize> {
        largest(self.files.len(), &self.arrows(|_| true))
    }

    /// Returns the files that each file calls.
    fn arrows(&self, stays: impl Fn((usize, usize)) -> bool) -> Vec<Vec<usize>> {
        let mut arrows = vec![Vec::new(); self.files.len()];
        for (from, to) in self.calls.keys().filter(|arrow| stays(**arrow)) {
            arrows[*from].push(*to);
        }
        arrows
    }

    /// Returns the lines of files.
    pub fn lines(&self, files: &[usize]) -> usize {
        files.iter().map(|file| self.files[*file].1).sum()
    }

    /// Describes the largest circle: its files, its arrows with most calls, and the arrows after
    /// whose removal it is smallest.
    pub fn describe(&self) -> String {
        let circle = self.largest();
        let all: Vec<usize> = (0..self.files.len()).collect();
        let of = |part: usize, whole: usize| format!("{part} of {whole}");
        let mut text = format!("{}: {} files, ", self.name, of(circle.len(), all.len()));
        text += &format!("{} lines in the largest circle\n", of(self.lines(&circle), self.lines(&all)));
        if circle.is_empty() {
            return text;
        }
        for (name, arrows) in &self.types {
            let circle = largest(all.len(), &self.arrows(|arrow| arrows.contains(&arrow)));
            if !circle.is_empty() {
                text += &format!("  by the methods of {name} alone: {} files, {} lines\n", circle.len(), self.lines(&circle));
            }
        }
        let inside = |(from, to): (usize, usize)| circle.contains(&from) && circle.contains(&to);
        let arrows: Vec<(usize, usize)> = self.calls.keys().copied().filter(|arrow| inside(*arrow)).collect();
        let without =
            |stays: &dyn Fn((usize, usize)) -> bool| largest(all.len(), &self.arrows(|arrow| inside(arrow) && stays(arrow))).len();
        text += "\n  lines  calls out  calls in  circle without its calls  file\n";
        for file in &circle {
            let count = |end: &dyn Fn(&(usize, usize)) -> usize| -> usize {
                arrows.iter().filter(|arrow| end(arrow) == *file).map(|arrow| self.count(*arrow)).sum()
            };
            let (out, within) = (count(&|arrow| arrow.0), count(&|arrow| arrow.1));
            let rest = without(&|arrow| arrow.0 != *file);
            text += &format!("  {:>5}  {out:>9}  {within:>8}  {rest:>24}  {}\n", self.files[*file].1, self.short(*file));
        }
        text += &format!("\n  arrows between folders ({} arrows between files)\n", arrows.len());
        for ((from, to), methods) in self.folders(&arrows) {
            text += &format!("  {:>5} calls  {from} -> {to}: {}\n", methods.values().sum::<usize>(), most_called(&methods));
        }
        text += "\n  the arrows with most calls\n";
        let mut heavy = arrows.clone();
        heavy.sort_by_key(|arrow| std::cmp::Reverse(self.count(*arrow)));
        heavy.iter().take(30).for_each(|arrow| text += &self.arrow(*arrow));
        text += "\n  the arrows without which the circle is smallest\n";
        let mut cuts: Vec<(usize, usize, (usize, usize))> =
            arrows.iter().map(|arrow| (without(&|other| other != *arrow), self.count(*arrow), *arrow)).collect();
        cuts.sort_unstable();
        for (rest, _, arrow) in cuts.iter().filter(|(rest, ..)| *rest < circle.len()).take(20) {
            text += &format!("  {rest:>5} files left {}", self.arrow(*arrow));
        }
        text
    }

    fn count(&self, arrow: (usize, usize)) -> usize {
        self.calls.get(&arrow).map_or(0, |methods| methods.values().sum())
    }

    /// Returns the calls between the folders of these arrows, most first.
    fn folders(&self, arrows: &[(usize, usize)]) -> Vec<((String, String), Methods)> {
        let folder = |file: usize| self.short(file).split('/').next().unwrap_or_default().trim_end_matches(".rs").to_owned();
        let mut folders: BTreeMap<(String, String), Methods> = BTreeMap::new();
        for arrow in arrows {
            let methods = folders.entry((folder(arrow.0), folder(arrow.1))).or_default();
            self.calls.get(arrow).into_iter().flatten().for_each(|(name, calls)| *methods.entry(name.clone()).or_default() += calls);
        }
        let mut sorted: Vec<_> = folders.into_iter().filter(|((from, to), _)| from != to).collect();
        sorted.sort_by_key(|(_, methods)| std::cmp::Reverse(methods.values().sum::<usize>()));
        sorted
    }

    /// Describes an arrow: calls, files, and its methods with most calls.
    fn arrow(&self, arrow: (usize, usize)) -> String {
        let methods = self.calls.get(&arrow).map(most_called).unwrap_or_default();
        format!("  {:>5} calls  {} -> {}: {methods}\n", self.count(arrow), self.short(arrow.0), self.short(arrow.1))
    }

    /// Returns the path of a file in its crate.
    fn short(&self, file: usize) -> &str {
        let path = self.files[file].0.as_str();
        path.split_once("/src/").map_or(path, |(_, short)| short)
    }
}

/// Returns the methods with most calls, in words.
fn most_called(methods: &Methods) -> String {
    let mut sorted: Vec<(&String, &usize)> = methods.iter().collect();
    sorted.sort_by_key(|(_, calls)| std::cmp::Reverse(**calls));
    let mut shown: Vec<String> = sorted.iter().take(6).map(|(name, calls)| format!("{name} {calls}")).collect();
    shown.extend((sorted.len() > shown.len()).then(|| format!("and {} others", sorted.len() - shown.len())));
    shown.join(", ")
}

/// Returns the largest strongly connected component of more than one file, by Tarjan's algorithm.
fn largest(count: usize, arrows: &[Vec<usize>]) -> Vec<usize> {
    let mut search = Search { arrows, order: vec![None; count], low: vec![0; count], on_stack: vec![false; count], ..Search::default() };
    for file in 0..count {
        if search.order[file].is_none() {
            search.visit(file);
        }
    }
    search.largest.sort_unstable();
    search.largest
}

#[derive(Default)]
struct Search<'a> {
    arrows: &'a [Vec<usize>],
    order: Vec<Option<usize>>,
    low: Vec<usize>,
    on_stack: Vec<bool>,
    stack: Vec<usize>,
    visited: usize,
    largest: Vec<usize>,
}

impl Search<'_> {
    fn visit(&mut self, file: usize) {
        self.order[file] = Some(self.visited);
        self.low[file] = self.visited;
        self.visited += 1;
        self.stack.push(file);
        self.on_stack[file] = true;
        for target in &self.arrows[file] {
            match self.order[*target] {
                None => {
                    self.visit(*target);
                    self.low[file] = self.low[file].min(self.low[*target]);
                }
                Some(order) if self.on_stack[*target] => self.low[file] = self.low[file].min(order),
                Some(_) => {}
            }
        }
        if self.order[file] == Some(self.low[file]) {
            let begin = self.stack.iter().rposition(|other| *other == file).unwrap_or(0);
            let component = self.stack.split_off(begin);
            component.iter().for_each(|other| self.on_stack[*other] = false);
            if component.len() > self.largest.len().max(1) {
                self.largest = component;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(texts: &[(&str, &str)]) -> Vec<SourceFile> {
        texts.iter().map(|(path, text)| SourceFile { path: (*path).to_owned(), text: (*text).to_owned() }).collect()
    }

    fn circle(files: &[SourceFile], name: &str) -> Vec<String> {
        let graphs = graphs(files);
        let graph = graphs.iter().find(|graph| graph.name == name).unwrap();
        let mut names: Vec<String> = graph.largest().into_iter().map(|file| graph.short(file).to_owned()).collect();
        names.sort();
        names
    }

    const STATE: (&str, &str) =
        ("crates/engine/src/state.rs", "pub struct Pool { x: u8 }\nimpl Pool {\n    fn turn(&mut self) { self.step(); }\n}\n");
    const TASK: (&str, &str) = ("crates/engine/src/task.rs", "impl Pool {\n    fn step(&mut self) { self.append(); }\n}\n");
    const LEAF: (&str, &str) = ("crates/engine/src/leaf.rs", "impl Pool {\n    fn append(&mut self) { self.push(1); }\n}\n");

    #[test]
    fn a_chain_is_no_circle() {
        assert_eq!(circle(&files(&[STATE, TASK, LEAF]), "engine"), [""; 0]);
    }

    #[test]
    fn methods_of_one_type_in_several_files_are_a_circle() {
        let back = ("crates/engine/src/leaf.rs", "impl Pool {\n    fn append(&mut self) { if full { self.turn() } }\n}\n");
        assert_eq!(circle(&files(&[STATE, TASK, back]), "engine"), ["leaf.rs", "state.rs", "task.rs"]);
        let test = (
            "crates/engine/src/leaf.rs",
            "impl Pool {\n    fn append(&mut self) {}\n    #[cfg(test)]\n    fn t(&mut self) { self.turn() }\n}\n",
        );
        assert_eq!(circle(&files(&[STATE, TASK, test]), "engine"), [""; 0]);
    }

    #[test]
    fn calls_through_another_value_count_where_the_name_is_unique() {
        let back = |body: &str| {
            (
                "crates/engine/src/leaf.rs".to_owned(),
                format!("impl Pool {{\n    fn append(&mut self) {{}}\n}}\nfn free(pool: &mut Pool) {{ {body} }}\n"),
            )
        };
        let found = |body: &str, more: &[(&str, &str)]| {
            let (path, text) = back(body);
            circle(&files(&[&[STATE, TASK, (&path, &text)], more].concat()), "engine").len()
        };
        assert_eq!(found("pool.turn()", &[]), 3);
        assert_eq!(found("Pool::turn(pool)", &[]), 3);
        assert_eq!(found("pool.next()", &[]), 0);
        let page = "struct Page { x: u8 }\nimpl Page {\n    fn turn(&self) {}\n}\n";
        assert_eq!(found("page.turn()", &[("crates/engine/src/page.rs", page)]), 0);
        assert_eq!(found("page.turn()", &[("crates/block/src/page.rs", page)]), 0, "the engine may use it");
        assert_eq!(found("pool.turn()", &[("crates/app/src/page.rs", page)]), 3, "the engine cannot use it");
    }

    #[test]
    fn types_of_one_name_are_told_apart() {
        let other = [
            ("crates/engine/src/other/state.rs", "pub struct Pool { x: u8 }\nimpl Pool {\n    fn turn(&mut self) {}\n}\n"),
            ("crates/engine/src/other/leaf.rs", "impl Pool {\n    fn append(&mut self) { self.turn() }\n}\n"),
        ];
        assert_eq!(circle(&files(&[STATE, TASK, LEAF, other[0], other[1]]), "engine"), [""; 0]);
    }

    #[test]
    fn the_largest_circle_is_found() {
        let arrows = vec![vec![1], vec![0], vec![3], vec![4], vec![2, 0], vec![2]];
        assert_eq!(largest(6, &arrows), [2, 3, 4]);
        assert_eq!(largest(2, &[vec![0], vec![]]), [0; 0], "a file alone is no circle");
    }

    #[test]
    fn a_description_shows_where_to_cut() {
        let back = ("crates/engine/src/leaf.rs", "impl Pool {\n    fn append(&mut self) { self.turn(); self.turn() }\n}\n");
        let text = graphs(&files(&[STATE, TASK, back]))[0].describe();
        assert!(text.starts_with("engine: 3 of 3 files, 10 of 10 lines"), "{text}");
        assert!(text.contains("2 calls  leaf.rs -> state.rs: turn 2"), "{text}");
        assert!(text.contains("    0 files left       1 calls  state.rs -> task.rs: step 1"), "{text}");
    }
}
