//! Confirmation by the user before data is lost.

use std::io::{self, BufRead, IsTerminal, Write};

use clap::Args;

use millpond_api::failure::{Failure, Outcome};

/// Options of destructive verbs.
#[derive(Clone, Copy, Debug, Args)]
pub struct Consent {
    /// Only report what would be lost
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Do not ask for confirmation
    #[arg(short = 'y', long)]
    pub yes: bool,
}

/// Dry-run message about connected clients that would block the operation.
pub fn refused_for(connected: &[String]) -> String {
    format!("it would be refused without --force: connected are {}\n", connected.join(", "))
}

/// Names shown in a question of one line; on a terminal all names are listed before the question.
const NAMED: usize = 8;

impl Consent {
    /// Asks once for several things. On a terminal all of them are listed first.
    ///
    /// # Errors
    /// When the user does not agree.
    pub fn ask_for_all(self, verb: &str, lost: &[String]) -> Outcome {
        if lost.len() > 1 && !self.yes && io::stdin().is_terminal() {
            lost.iter().for_each(|name| eprintln!("  {name}"));
            return self.ask(verb, &format!("these {}", lost.len()));
        }
        let named = lost.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
        match lost.len() {
            1 => self.ask(verb, &named),
            all @ 0..=NAMED => self.ask(verb, &format!("{named} ({all} in all)")),
            all => self.ask(verb, &format!("{named}, … ({all} in all)")),
        }
    }

    /// Asks on a terminal. Without a terminal, `-y` must have been given.
    ///
    /// # Errors
    /// When the user does not agree.
    pub fn ask(self, verb: &str, lost: &str) -> Outcome {
        if self.yes {
            return Ok(());
        }
        if !io::stdin().is_terminal() {
            return Err(Failure::failed(format!(
                "not asked to {verb} without a terminal: {lost} would be lost; add -y to agree, -n to see more"
            )));
        }
        let mut err = io::stderr().lock();
        // If the question cannot be shown, no answer arrives, which counts as no.
        let _ = write!(err, "{verb}: {lost} will be lost. Go on? [y/N] ").and_then(|()| err.flush());
        let mut answer = String::new();
        let read = io::stdin().lock().read_line(&mut answer);
        if read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes") {
            return Ok(());
        }
        Err(Failure::failed(format!("{verb} was not agreed to; nothing is changed")))
    }
}
