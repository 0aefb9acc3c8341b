//! The user's word before something is lost.

use std::io::{self, BufRead, IsTerminal, Write};

use clap::Args;

use crate::failure::{Failure, Outcome};

/// Options of destructive verbs.
#[derive(Clone, Copy, Debug, Args)]
pub struct Consent {
    /// Only say what would be lost
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Do not ask
    #[arg(short = 'y', long)]
    pub yes: bool,
}

/// What a dry run says of clients that stand in the way.
pub fn refused_for(connected: &[String]) -> String {
    format!("it would be refused without --force: connected are {}\n", connected.join(", "))
}

impl Consent {
    /// Asks on a terminal; elsewhere `-y` must have been given.
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
        // A question that cannot be shown is answered by nobody, and that is a no.
        let _ = write!(err, "{verb}: {lost} will be lost. Go on? [y/N] ").and_then(|()| err.flush());
        let mut answer = String::new();
        let read = io::stdin().lock().read_line(&mut answer);
        if read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes") {
            return Ok(());
        }
        Err(Failure::failed(format!("{verb} was not agreed to; nothing is changed")))
    }
}
