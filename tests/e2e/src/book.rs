//! The commands of the book: every block of the tutorial and of the how-to pages runs as it is
//! printed, in the order of its page, in a private copy of the system with a new daemon.
//!
//! | block | is |
//! |---|---|
//! | `sh` | commands, each of which must succeed |
//! | `console` | commands after `$ `, and parts of their output; `…` stands for anything |
//! | a comment `<!-- run` … `-->` | commands that prepare the next block |
//! | `sh not run: REASON` | not run |
//!
//! A command must fail if a line of its output begins with `millpond: `.
//! `start`, `stop` and `afresh` of `prelude.sh` handle the daemon.

use super::subject::Subject;
use anyhow::{Context, Result, bail, ensure};
use millpond_lab::peer::millpond_binary;
use millpond_lab::process::tail;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

const STAGE: &str = include_str!("book/stage.sh");
const PRELUDE: &str = include_str!("book/prelude.sh");
/// Begins a part of the table of contents with pages whose commands are not run.
const CONTRIBUTORS: &str = "# For contributors";
/// Precedes the line number of each step, and the end, in the output of a script.
const MARK: char = '\u{1}';
const END: &str = "end";
const NOT_RUN: &str = "not run: ";
/// Begins each error of the command line.
const ERROR: &str = "millpond: ";
/// Time limit of the commands of a page, in seconds.
const LIMIT_SECS: &str = "240";
/// Each of these pages must be found wrong.
const WRONG: [(&str, &str); 4] = [
    ("a command fails", "```sh\nmillpond show tank/none\n```\n"),
    ("a command in the middle fails", "```sh\nfalse\ntrue\n```\n"),
    ("the output differs", "```console\n$ millpond pool list -H -o name\ntank\n```\n"),
    ("a command succeeds that has to fail", "```console\n$ echo millpond: no\nmillpond: no\n```\n"),
];

/// Commands of a page that run together.
struct Step {
    /// Number of the first line, from 1.
    line: usize,
    commands: String,
    /// Parts of the output, in order.
    expected: Vec<String>,
}

/// The blocks of a page.
#[derive(Default)]
struct Page {
    steps: Vec<Step>,
    /// Number of blocks that run.
    blocks: usize,
    /// Lines and reasons of the blocks that do not run.
    left_out: Vec<(usize, String)>,
}

/// Runs the commands of all pages.
pub fn commands(subject: &mut Subject) -> Result<()> {
    for (number, (about, text)) in WRONG.iter().enumerate() {
        let page = Page::parse(text)?;
        ensure!(page.run(&subject.file(&format!("wrong{number}"))).is_err(), "a page in which {about} was found right");
    }
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let (mut blocks, mut left_out, mut failures) = (0, Vec::new(), Vec::new());
    let chosen = std::env::var("MILLPOND_PAGE").ok();
    for name in pages(&docs)?.iter().filter(|name| chosen.as_ref().is_none_or(|chosen| *name == chosen)) {
        let text = fs::read_to_string(docs.join(name)).with_context(|| format!("reading {name}"))?;
        let page = Page::parse(&text).with_context(|| name.clone())?;
        if page.blocks > 0
            && let Err(error) = page.run(&subject.file(&name.replace('/', "-")))
        {
            failures.push(format!("docs/{name}:{error:#}"));
        }
        blocks += page.blocks;
        left_out.extend(page.left_out.into_iter().map(|(line, reason)| format!("docs/{name}:{line}: {reason}")));
    }
    println!("book: {blocks} blocks of commands ran, {} are marked as not run:", left_out.len());
    left_out.iter().for_each(|line| println!("    {line}"));
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    ensure!(blocks > 0, "no block of commands was found");
    Ok(())
}

/// Returns the pages before those for contributors, in their order.
fn pages(docs: &Path) -> Result<Vec<String>> {
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).context("reading docs/SUMMARY.md")?;
    let (before, _) = summary.split_once(CONTRIBUTORS).context("docs/SUMMARY.md has no part for contributors")?;
    Ok(before.split("](").skip(1).filter_map(|rest| rest.split(')').next()).map(str::to_owned).collect())
}

impl Page {
    fn parse(text: &str) -> Result<Page> {
        let mut page = Page::default();
        let mut lines = text.lines().zip(1..);
        while let Some((line, number)) = lines.next() {
            let end = if line == "<!-- run" { "-->" } else { "```" };
            let Some(info) = line.strip_prefix("```").or((end == "-->").then_some("sh")) else { continue };
            let block: Vec<(&str, usize)> = lines.by_ref().take_while(|(line, _)| *line != end).collect();
            let (language, rest) = info.split_once(' ').unwrap_or((info, ""));
            if !["sh", "console"].contains(&language) {
                continue;
            }
            if let Some(reason) = rest.strip_prefix(NOT_RUN) {
                page.left_out.push((number, reason.to_owned()));
                continue;
            }
            ensure!(rest.is_empty(), "line {number}: '{rest}' is no reason");
            page.blocks += usize::from(end == "```");
            match language {
                "sh" => {
                    let commands = block.iter().map(|(line, _)| format!("{line}\n")).collect();
                    page.steps.push(Step { line: number, commands, expected: Vec::new() });
                }
                _ => page.steps.extend(dialogue(&block)?),
            }
        }
        Ok(page)
    }

    /// Runs the commands below a directory, which is created.
    fn run(&self, dir: &Path) -> Result<()> {
        fs::create_dir_all(dir)?;
        let (stage, script) = (dir.join("stage.sh"), dir.join("script.sh"));
        fs::write(&stage, STAGE)?;
        fs::write(&script, self.script())?;
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", LIMIT_SECS, "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child"]);
        let said = command.arg("bash").arg(&stage).arg(dir).arg(millpond_binary()?).arg(&script).output().context("starting unshare")?;
        let text = format!("{}{}", String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
        let mut parts = text.split(MARK);
        let before = parts.next().unwrap_or_default();
        let parts: Vec<(&str, &str)> = parts.map(|part| part.split_once('\n').unwrap_or((part, ""))).collect();
        ensure!(!parts.is_empty(), "0: the stage cannot be made: {}", tail(before, 2000));
        if parts.last().is_none_or(|(mark, _)| *mark != END) {
            let (line, said) = parts.last().copied().unwrap_or_default();
            bail!("{line}: a command of the block from this line on failed, or its end was not reached: {}", tail(said, 2000));
        }
        for (step, (_, said)) in self.steps.iter().zip(&parts) {
            if let Some(missing) = missing(&step.expected, said) {
                bail!("{}: '{missing}' is not in the output at its place: {}", step.line, tail(said, 3000));
            }
        }
        Ok(())
    }

    fn script(&self) -> String {
        let mut script = PRELUDE.to_owned();
        for Step { line, commands, expected } in &self.steps {
            // writing to a string cannot fail
            let _ = write!(script, "\nprintf '\\001%s\\n' {line}\n");
            let must_fail = expected.iter().any(|line| line.starts_with(ERROR));
            let _ = if must_fail {
                write!(script, "if\n{commands}then echo 'it succeeded, and an error is expected'; exit 1; fi\n")
            } else {
                write!(script, "{commands}")
            };
        }
        script + &format!("\nprintf '\\001%s\\n' {END}\n")
    }
}

/// Returns the steps of a block with prompts.
fn dialogue(block: &[(&str, usize)]) -> Result<Vec<Step>> {
    let mut steps: Vec<Step> = Vec::new();
    let mut continues = false;
    for (line, number) in block {
        if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step { line: *number, commands: format!("{command}\n"), expected: Vec::new() });
        } else {
            let last = steps.last_mut().with_context(|| format!("line {number}: no command is above this output"))?;
            if continues {
                let _ = writeln!(last.commands, "{line}");
            } else if !line.trim().is_empty() {
                last.expected.push((*line).to_owned());
            }
        }
        continues = line.ends_with('\\');
    }
    Ok(steps)
}

/// Returns the first expected line that the output does not have after the ones before it.
fn missing<'a>(expected: &'a [String], output: &str) -> Option<&'a str> {
    let plain = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut lines = output.lines().map(plain);
    let has = |line: &str, wanted: &str| {
        let mut rest = line;
        wanted.split('…').map(str::trim).all(|part| match rest.find(part) {
            Some(at) => {
                rest = &rest[at + part.len()..];
                true
            }
            None => false,
        })
    };
    expected.iter().map(String::as_str).find(|wanted| {
        let wanted = plain(wanted);
        !lines.any(|line| has(&line, &wanted))
    })
}
