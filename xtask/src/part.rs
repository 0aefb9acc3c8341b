//! One part of a check: a command with a time budget, and a summary of all parts at the end.

use anyhow::{Context, Result};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// Result of a part.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The check succeeded.
    Passed,
    /// The check failed, for this reason.
    Failed(String),
    /// The check could not run here, for this reason.
    Skipped(String),
}

/// Results of all parts so far.
#[derive(Default)]
pub struct Parts(Vec<(String, Outcome, Duration)>);

impl Parts {
    /// Runs a command. It fails with its exit code, or when its budget is exceeded.
    pub fn command(&mut self, name: &str, minutes: u64, command: &mut Command) {
        self.check(name, || within(Duration::from_secs(minutes * 60), command));
    }

    /// Runs a check written in Rust.
    pub fn check(&mut self, name: &str, check: impl FnOnce() -> Result<Outcome>) {
        println!("=== {name}");
        let begin = Instant::now();
        let outcome = check().unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")));
        self.note(name, outcome, begin.elapsed());
    }

    /// Records a part that cannot run here.
    pub fn skip(&mut self, name: &str, reason: &str) {
        self.note(name, Outcome::Skipped(reason.to_owned()), Duration::ZERO);
    }

    fn note(&mut self, name: &str, outcome: Outcome, took: Duration) {
        println!("{}", line(name, &outcome, took));
        self.0.push((name.to_owned(), outcome, took));
    }

    /// Prints one line per part; returns true if none failed.
    pub fn finish(self) -> bool {
        println!("\n=== summary");
        for (name, outcome, took) in &self.0 {
            println!("{}", line(name, outcome, *took));
        }
        self.0.iter().all(|(_, outcome, _)| !matches!(outcome, Outcome::Failed(_)))
    }
}

fn line(name: &str, outcome: &Outcome, took: Duration) -> String {
    let seconds = took.as_secs_f64();
    match outcome {
        Outcome::Passed => format!("passed   {name} ({seconds:.0} s)"),
        Outcome::Failed(why) => format!("FAILED   {name} ({seconds:.0} s): {why}"),
        Outcome::Skipped(why) => format!("SKIPPED  {name}: {why}"),
    }
}

/// Runs a command in its own process group, which is killed as a whole when the time limit is
/// exceeded.
pub fn within(limit: Duration, command: &mut Command) -> Result<Outcome> {
    println!("    {}", words(command));
    let mut child = command.process_group(0).spawn().with_context(|| format!("starting {}", words(command)))?;
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(if status.success() { Outcome::Passed } else { Outcome::Failed(format!("{status}")) });
        }
        if begin.elapsed() > limit {
            Command::new("kill")
                .args(["-TERM", "--", &format!("-{}", child.id())])
                .status()
                .context("ending a part that takes too long")?;
            thread::sleep(Duration::from_secs(3));
            Command::new("kill")
                .args(["-KILL", "--", &format!("-{}", child.id())])
                .status()
                .context("ending a part that takes too long")?;
            child.wait()?;
            return Ok(Outcome::Failed(format!("not done within {} minutes", limit.as_secs() / 60)));
        }
        thread::sleep(Duration::from_millis(50));
    }
}

fn words(command: &Command) -> String {
    let all = std::iter::once(command.get_program()).chain(command.get_args());
    all.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_ends_with_its_budget() {
        let outcome = within(Duration::from_millis(100), Command::new("sh").args(["-c", "sleep 60 & sleep 60"])).unwrap();
        assert!(matches!(outcome, Outcome::Failed(_)));
        assert_eq!(within(Duration::from_secs(20), &mut Command::new("true")).unwrap(), Outcome::Passed);
        assert!(matches!(within(Duration::from_secs(20), &mut Command::new("false")).unwrap(), Outcome::Failed(_)));
    }
}
