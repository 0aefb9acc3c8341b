//! Runs seeds and catches all failures, panics included.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::config::Options;
use crate::oracle::Verdict;
use crate::power_cut;
use crate::system::System;
use crate::world::{Stats, World};

/// Number of events shown with a finding.
const TAIL: usize = 60;

/// Kind of run for a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// A world with guests, faults and crashes.
    #[default]
    World,
    /// A short trace with power cuts at every event.
    PowerCut,
}

/// A broken promise.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Description of the violation.
    pub what: String,
    /// The last events, one line each.
    pub tail: Vec<String>,
}

/// Result of a seed.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// Hash of all its events.
    pub digest: u64,
    /// Its counters.
    pub stats: Stats,
    /// The first finding, if any.
    pub finding: Option<Finding>,
}

thread_local! {
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Stops panics from being printed, for the whole process; they become findings.
pub fn quiet_panics() {
    std::panic::set_hook(Box::new(|info| PANIC.set(Some(info.to_string()))));
}

/// Runs a seed.
pub fn run<S: System>(seed: u64, mode: Mode, options: &Options) -> Outcome {
    let mut world: World<S> = match mode {
        Mode::World => World::new(seed, options),
        Mode::PowerCut => power_cut::world(seed, options),
    };
    let verdict = catch_unwind(AssertUnwindSafe(|| match mode {
        Mode::World => world.run(),
        Mode::PowerCut => power_cut::sweep(&mut world),
    }));
    let finding = match verdict {
        Ok(verdict) => finding(verdict, &world),
        Err(payload) => {
            let text = payload.downcast_ref::<String>().cloned().or_else(|| payload.downcast_ref::<&str>().map(|s| (*s).to_owned()));
            let what = PANIC.take().or(text).unwrap_or_else(|| "a panic without a message".to_owned());
            Some(Finding { what, tail: world.trace.tail(TAIL) })
        }
    };
    Outcome { seed, digest: world.trace.digest(), stats: world.stats, finding }
}

fn finding<S: System>(verdict: Verdict, world: &World<S>) -> Option<Finding> {
    verdict.err().map(|violation| Finding { what: violation.0, tail: world.trace.tail(TAIL) })
}
