//! Experiments that cannot be run yet: listed, each with the reason. The reason is what the daemon answers to the first command of the
//! experiment, so that the list does not go on saying so when the daemon has learnt it.

use super::Setup;
use crate::peer::{Contender, Millpond, POOL, millpond_binary};
use crate::process::{Workspace, tail};
use crate::report::Results;
use anyhow::Result;

const UNMEASURED: &str = "this daemon can do it, the lab does not measure it yet";

/// What the daemon answers to a command; `DIR` in it is a directory.
fn answer(setup: &Setup, words: &[&str]) -> Result<String> {
    let workspace = Workspace::new(&setup.dir, "absent")?;
    let mut millpond = Millpond::new(millpond_binary()?);
    millpond.start_empty(workspace.path())?;
    let dir = workspace.path().display().to_string();
    let words: Vec<String> = words.iter().map(|word| word.replace("DIR", &dir)).collect();
    let answer = match millpond.cli(&words) {
        Ok(_) => UNMEASURED.to_owned(),
        Err(error) => {
            let text = format!("{error:#}");
            tail(text.split_once("millpond: ").map_or(&text, |(_, line)| line), 400).to_owned()
        }
    };
    millpond.stop()?;
    Ok(answer)
}

/// C-lost.
///
/// # Errors
/// The daemon does not start.
pub fn lost_special(setup: &Setup, results: &mut Results) -> Result<()> {
    let why = answer(setup, &["pool", "import", POOL, "-d", "DIR", "--rebuild"])?;
    // an empty directory holds no pool, which says nothing of what would become of one
    let why = if why.contains("no pool") || why.contains("not found") { UNMEASURED.to_owned() } else { why };
    results.leave_out(&why);
    Ok(())
}
