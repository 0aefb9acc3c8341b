//! A page of the book: its blocks of commands, the script that runs them, and the check of its output.

use anyhow::{Context, Result, bail, ensure};
use millpond_lab::process::tail;
use std::fmt::Write as _;

/// Precedes the line number of each step, and the end, in the output of a script.
pub const MARK: char = '\u{1}';
const END: &str = "end";
const NOT_RUN: &str = "not run: ";
/// Begins each error of the command line.
const ERROR: &str = "millpond: ";
/// Reasons of blocks that the test `walk` runs: on the host, and in the guest of its host.
const BY_WALK: &str = "the end-to-end test walk does it";
const IN_GUEST: &str = "it is typed in the guest";
/// Ends the commands that a script passes on to a guest.
const TYPED: &str = "END_OF_TYPED_COMMANDS";

/// Test that runs a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runner {
    /// `book`, with the blocks that need neither systemd nor a guest.
    Book,
    /// `walk`, in a fresh Debian.
    Walk,
}

/// Commands of a page that run together.
struct Step {
    /// Number of the first line, from 1.
    line: usize,
    commands: String,
    /// Whether the commands are typed in a guest.
    guest: bool,
    /// Parts of the output, in order.
    expected: Vec<String>,
}

/// The blocks of a page.
#[derive(Default)]
pub struct Page {
    steps: Vec<Step>,
    /// Number of blocks that run.
    pub blocks: usize,
    /// Lines and reasons of the blocks that do not run.
    pub left_out: Vec<(usize, String)>,
}

impl Runner {
    /// Begins a comment with commands that prepare the next block.
    fn comment(self) -> &'static str {
        match self {
            Runner::Book => "<!-- run",
            Runner::Walk => "<!-- walk",
        }
    }
}

impl Page {
    /// Reads the blocks that a test runs.
    ///
    /// # Errors
    /// A block has words that are no reason, or output before its first command.
    pub fn parse(text: &str, runner: Runner) -> Result<Page> {
        let mut page = Page::default();
        let mut lines = text.lines().zip(1..);
        while let Some((line, number)) = lines.next() {
            let end = if line == runner.comment() { "-->" } else { "```" };
            let Some(info) = line.strip_prefix("```").or((end == "-->").then_some("sh")) else { continue };
            let block: Vec<(&str, usize)> = lines.by_ref().take_while(|(line, _)| *line != end).collect();
            let (language, rest) = info.split_once(' ').unwrap_or((info, ""));
            if !["sh", "console"].contains(&language) {
                continue;
            }
            let mut guest = false;
            if let Some(reason) = rest.strip_prefix(NOT_RUN) {
                guest = reason == IN_GUEST;
                if runner == Runner::Book || !(guest || reason == BY_WALK) {
                    page.left_out.push((number, reason.to_owned()));
                    continue;
                }
            } else {
                ensure!(rest.is_empty(), "line {number}: '{rest}' is no reason");
            }
            page.blocks += usize::from(end == "```");
            match language {
                "sh" => {
                    let commands = block.iter().map(|(line, _)| format!("{line}\n")).collect();
                    page.steps.push(Step { line: number, commands, guest, expected: Vec::new() });
                }
                _ => page.steps.extend(dialogue(&block, guest)?),
            }
        }
        Ok(page)
    }

    /// Returns the script that runs the commands after others. It needs a function `in_guest` for
    /// commands that are typed in a guest.
    pub fn script(&self, prelude: &str) -> String {
        let mut script = prelude.to_owned();
        for Step { line, commands, guest, expected } in &self.steps {
            // writing to a string cannot fail
            let _ = write!(script, "\nprintf '\\001%s\\n' {line}\n");
            let must_fail = expected.iter().any(|line| line.starts_with(ERROR));
            let _ = if *guest {
                write!(script, "in_guest << '{TYPED}'\n{commands}{TYPED}\n")
            } else if must_fail {
                write!(script, "if\n{commands}then echo 'it succeeded, and an error is expected'; exit 1; fi\n")
            } else {
                write!(script, "{commands}")
            };
        }
        script + &format!("\nprintf '\\001%s\\n' {END}\n")
    }

    /// Checks the output of the script.
    ///
    /// # Errors
    /// A command failed, or a part of its output is missing; with its line.
    pub fn judge(&self, text: &str) -> Result<()> {
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
}

/// Returns the steps of a block with prompts.
fn dialogue(block: &[(&str, usize)], guest: bool) -> Result<Vec<Step>> {
    let mut steps: Vec<Step> = Vec::new();
    let mut continues = false;
    for (line, number) in block {
        if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step { line: *number, commands: format!("{command}\n"), guest, expected: Vec::new() });
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
