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

pub mod page;

use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_lab::peer::millpond_binary;
use page::{Page, Runner};
use std::fs;
use std::path::Path;
use std::process::Command;

const STAGE: &str = include_str!("book/stage.sh");
const PRELUDE: &str = include_str!("book/prelude.sh");
/// Begins a part of the table of contents with pages whose commands are not run.
const CONTRIBUTORS: &str = "# For contributors";
/// Time limit of the commands of a page, in seconds.
const LIMIT_SECS: &str = "240";
/// Each of these pages must be found wrong.
const WRONG: [(&str, &str); 4] = [
    ("a command fails", "```sh\nmillpond show tank/none\n```\n"),
    ("a command in the middle fails", "```sh\nfalse\ntrue\n```\n"),
    ("the output differs", "```console\n$ millpond pool list -H -o name\ntank\n```\n"),
    ("a command succeeds that has to fail", "```console\n$ echo millpond: no\nmillpond: no\n```\n"),
];

/// Runs the commands of all pages.
pub fn commands(subject: &mut Subject) -> Result<()> {
    for (number, (about, text)) in WRONG.iter().enumerate() {
        let page = Page::parse(text, Runner::Book)?;
        ensure!(run(&page, &subject.file(&format!("wrong{number}"))).is_err(), "a page in which {about} was found right");
    }
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let (mut blocks, mut left_out, mut failures) = (0, Vec::new(), Vec::new());
    let chosen = std::env::var("MILLPOND_PAGE").ok();
    for name in pages(&docs)?.iter().filter(|name| chosen.as_ref().is_none_or(|chosen| *name == chosen)) {
        let text = fs::read_to_string(docs.join(name)).with_context(|| format!("reading {name}"))?;
        let page = Page::parse(&text, Runner::Book).with_context(|| name.clone())?;
        if page.blocks > 0
            && let Err(error) = run(&page, &subject.file(&name.replace('/', "-")))
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

/// Runs the commands of a page below a directory, which is created.
fn run(page: &Page, dir: &Path) -> Result<()> {
    fs::create_dir_all(dir)?;
    let (stage, script) = (dir.join("stage.sh"), dir.join("script.sh"));
    fs::write(&stage, STAGE)?;
    fs::write(&script, page.script(PRELUDE))?;
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", LIMIT_SECS, "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child"]);
    let said = command.arg("bash").arg(&stage).arg(dir).arg(millpond_binary()?).arg(&script).output().context("starting unshare")?;
    page.judge(&format!("{}{}", String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr)))
}
