//! Files of digests: the kind, the seed and the digest of a run on each line. They show whether a
//! change of the code changes its behaviour.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use clap::Parser;
use millpond_engine::Engine;
use millpond_sim::{Outcome, run as run_seed};

use crate::{Args, again};

const HEADER: &str = "\
# Digests of runs of the simulator: kind, seed, digest of all events. A change that keeps the behaviour keeps them.
# Compare: cargo xtask digests. After an intended change of behaviour: cargo xtask digests --record, in a commit of its own that says why.
";
/// Kind of the runs without an option.
const ORDINARY: &str = "ordinary";
const CHANGED: &str = "\
behaviour changed: the engine or the simulator acts differently in these runs, or answers differently.
If it is on purpose, record the digests again (cargo xtask digests --record), in a commit of its own that says why.";

/// One line of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    kind: String,
    seed: u64,
    /// Zero for a new line.
    digest: u64,
}

/// Compares the digests of runs with those of a file, or writes them to it; returns true if there is
/// no difference and no finding.
///
/// # Errors
/// When the file cannot be read, parsed or written, or has no line for these options.
pub fn run(file: &Path, args: &Args) -> Result<bool, String> {
    let records = args.record.is_some();
    let text = if records && !file.exists() { String::new() } else { fs::read_to_string(file).map_err(|e| e.to_string())? };
    let mut lines = parse(&text)?;
    let chosen = if records { add(&mut lines, args) } else { choose(&lines, args) };
    if chosen.is_empty() {
        return Err("no line for these options; add seeds with --seeds A..B --record".to_owned());
    }
    let begin = Instant::now();
    let outcomes = run_all(&chosen.iter().map(|index| &lines[*index]).collect::<Vec<_>>(), args.jobs.max(1))?;
    let clean = report_findings(&outcomes)?;
    let seconds = begin.elapsed().as_secs_f64();
    if !records {
        let differing = differences(chosen.iter().map(|index| &lines[*index]).zip(outcomes.iter().map(|(_, outcome)| outcome.digest)));
        println!("{} digests, {} differ, {seconds:.1} s", chosen.len(), differing.values().map(Vec::len).sum::<usize>());
        for (kind, seeds) in &differing {
            let list: Vec<String> = seeds.iter().map(u64::to_string).collect();
            println!("{kind}: seeds {}", list.join(", "));
            println!("  to see one: {}", again(seeds[0], &arguments(kind)?));
        }
        if !differing.is_empty() {
            println!("{CHANGED}");
        }
        return Ok(clean && differing.is_empty());
    }
    if !clean {
        return Err("nothing is recorded, because of the findings".to_owned());
    }
    for (index, (_, outcome)) in chosen.iter().zip(&outcomes) {
        lines[*index].digest = outcome.digest;
    }
    fs::write(file, render(&lines)).map_err(|e| e.to_string())?;
    println!("{} digests recorded in {}, {seconds:.1} s", chosen.len(), file.display());
    Ok(true)
}

/// Runs the seeds of these lines; returns their options and outcomes in the same order.
fn run_all(lines: &[&Line], jobs: usize) -> Result<Vec<(Args, Outcome)>, String> {
    let arguments = lines.iter().map(|line| arguments(&line.kind)).collect::<Result<Vec<_>, _>>()?;
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let (Some(line), Some(args)) = (lines.get(index), arguments.get(index)) else { break };
                    let outcome = run_seed::<Engine>(line.seed, args.mode(), &args.options());
                    if let Ok(mut outcomes) = outcomes.lock() {
                        outcomes.insert(index, outcome);
                    }
                }
            });
        }
    });
    let outcomes = outcomes.into_inner().map_err(|_| "a thread of the runs ended early".to_owned())?;
    Ok(arguments.into_iter().zip(outcomes.into_values()).collect())
}

/// Prints the findings of runs; returns true if there are none.
fn report_findings(outcomes: &[(Args, Outcome)]) -> Result<bool, String> {
    let mut clean = true;
    for (args, outcome) in outcomes {
        if let Some(finding) = &outcome.finding {
            println!("seed {}: {}\nagain: {}", outcome.seed, finding.what, again(outcome.seed, args));
            clean = false;
        }
    }
    Ok(clean)
}

/// Returns the seeds whose digests differ, by kind.
fn differences<'a>(pairs: impl Iterator<Item = (&'a Line, u64)>) -> BTreeMap<&'a str, Vec<u64>> {
    let mut differing: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for (line, _) in pairs.filter(|(line, digest)| line.digest != *digest) {
        differing.entry(&line.kind).or_default().push(line.seed);
    }
    differing
}

/// Returns the lines that the options name: without a kind and seeds all, otherwise those of the
/// kind, and of the seeds if there are any.
fn choose(lines: &[Line], args: &Args) -> Vec<usize> {
    let (kind, seeds) = (name(args), args.named_seeds());
    let all = kind == ORDINARY && seeds.is_none();
    let is_chosen = |line: &Line| all || (line.kind == kind && seeds.as_ref().is_none_or(|seeds| seeds.contains(&line.seed)));
    (0..lines.len()).filter(|index| is_chosen(&lines[*index])).collect()
}

/// Returns the lines that the options name. Adds those of the seeds that are not there, behind the
/// others of their kind.
fn add(lines: &mut Vec<Line>, args: &Args) -> Vec<usize> {
    let kind = name(args);
    for seed in args.named_seeds().into_iter().flatten() {
        if !lines.iter().any(|line| line.kind == kind && line.seed == seed) {
            let end = lines.iter().rposition(|line| line.kind == kind).map_or(lines.len(), |last| last + 1);
            lines.insert(end, Line { kind: kind.clone(), seed, digest: 0 });
        }
    }
    choose(lines, args)
}

/// Returns the name of a kind: its options without hyphens in front, joined.
fn name(args: &Args) -> String {
    let words: Vec<String> = args.kind().iter().map(|word| word.trim_start_matches('-').to_owned()).collect();
    if words.is_empty() { ORDINARY.to_owned() } else { words.join("+") }
}

/// Returns the arguments of a kind.
fn arguments(kind: &str) -> Result<Args, String> {
    let words = kind.split('+').filter(|word| *word != ORDINARY).map(|word| format!("--{word}"));
    let args = Args::try_parse_from(["millpond-sim".to_owned()].into_iter().chain(words)).map_err(|e| format!("{kind}: {e}"))?;
    if name(&args) == kind { Ok(args) } else { Err(format!("the kind {kind} is written {}", name(&args))) }
}

fn parse(text: &str) -> Result<Vec<Line>, String> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|(index, line)| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let parsed = if let [kind, seed, digest] = words.as_slice() {
                seed.parse().ok().zip(u64::from_str_radix(digest, 16).ok()).map(|(seed, digest)| Line {
                    kind: (*kind).to_owned(),
                    seed,
                    digest,
                })
            } else {
                None
            };
            parsed.ok_or_else(|| format!("line {}: expected a kind, a seed and a digest", index + 1))
        })
        .collect()
}

fn render(lines: &[Line]) -> String {
    let lines = lines.iter().map(|line| format!("{} {} {:016x}\n", line.kind, line.seed, line.digest));
    [HEADER.to_owned()].into_iter().chain(lines).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn args(words: &[&str]) -> Args {
        Args::try_parse_from(["millpond-sim"].iter().chain(words)).unwrap()
    }

    fn line(kind: &str, seed: u64, digest: u64) -> Line {
        Line { kind: kind.to_owned(), seed, digest }
    }

    #[test]
    fn a_kind_is_its_options() {
        for words in [&[][..], &["--removals", "--parity"], &["--fault=rot", "--scale=300"], &["--power-cut", "--laps", "--roomy"]] {
            let one = args(words);
            assert_eq!(arguments(&name(&one)).unwrap().kind(), one.kind());
        }
        assert_eq!(name(&args(&["--parity", "--removals", "--seed", "3"])), "removals+parity");
        assert!(arguments("parity+removals").is_err(), "the order of options is fixed");
        assert!(arguments("no-such-kind").is_err());
    }

    #[test]
    fn every_option_of_a_world_is_part_of_the_kind() {
        let command = Args::command();
        let flags = command.get_arguments().filter(|argument| matches!(argument.get_action(), clap::ArgAction::SetTrue));
        // worlds of buckets have no engine, and no digests
        let others = ["trace", "keep-going", "buckets"];
        let names: Vec<&str> = flags.filter_map(clap::Arg::get_long).filter(|name| !others.contains(name)).collect();
        assert!(names.len() > 15, "{names:?}");
        for name in names {
            let flag = format!("--{name}");
            let words: &[&str] = if name == "laps" { &["--power-cut", &flag] } else { &[&flag] };
            assert!(args(words).kind().contains(&flag), "Args::kind does not know {flag}");
        }
    }

    #[test]
    fn a_file_keeps_its_lines() {
        let lines = vec![line("removals+parity", 3, u64::MAX), line(ORDINARY, 7, 1)];
        assert_eq!(parse(&render(&lines)).unwrap(), lines);
        assert!(parse("ordinary 7\n").is_err());
        assert!(parse("ordinary seven 0\n").is_err());
    }

    #[test]
    fn options_choose_lines() {
        let lines = vec![line("full", 0, 1), line(ORDINARY, 0, 2), line(ORDINARY, 5, 3)];
        assert_eq!(choose(&lines, &args(&[])), [0, 1, 2]);
        assert_eq!(choose(&lines, &args(&["--full"])), [0]);
        assert_eq!(choose(&lines, &args(&["--seeds", "0..5"])), [1]);
        assert_eq!(choose(&lines, &args(&["--full", "--seed", "5"])), [0; 0]);
    }

    #[test]
    fn new_seeds_come_behind_those_of_their_kind() {
        let mut lines = vec![line("full", 0, 1), line(ORDINARY, 0, 2)];
        assert_eq!(add(&mut lines, &args(&["--full", "--seeds", "0..2"])), [0, 1]);
        assert_eq!(lines, [line("full", 0, 1), line("full", 1, 0), line(ORDINARY, 0, 2)]);
        assert_eq!(add(&mut lines, &args(&["--gate", "--count", "1"])), [3]);
        assert_eq!(add(&mut lines, &args(&[])), [0, 1, 2, 3]);
    }

    #[test]
    fn differing_seeds_are_named() {
        let lines = [line("full", 0, 1), line("full", 1, 1), line(ORDINARY, 0, 2)];
        let found = differences(lines.iter().zip([1, 5, 7]));
        assert_eq!(found, BTreeMap::from([("full", vec![1]), (ORDINARY, vec![0])]));
    }
}
