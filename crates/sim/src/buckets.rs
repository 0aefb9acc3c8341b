//! Worlds of hosts that fight for the terms of a bucket, from the command line.

use std::ops::Range;
use std::process::ExitCode;
use std::time::Instant;

use millpond_bucket::Planted;
use millpond_sim::{TermOptions, TermStats, run_terms};

/// Names of the bugs that these worlds must find.
pub const NAMES: [&str; 3] = ["exists-is-success", "list-believed", "counter-restarts"];
const BUGS: [Planted; 3] = [Planted::ExistsIsSuccess, Planted::ListBelieved, Planted::CounterRestarts];
/// Seeds within which a bug must be found.
const MAX_SEEDS: u64 = 100;

/// Runs seeds.
pub fn run(seeds: Range<u64>, trace: bool, keep_going: bool) -> ExitCode {
    let (started, mut total, mut count, mut findings) = (Instant::now(), TermStats::default(), 0u64, 0u64);
    for seed in seeds {
        let outcome = run_terms(seed, &TermOptions { trace, planted: None });
        count += 1;
        total.add(&outcome.stats);
        if trace || outcome.finding.is_some() {
            println!("{}", outcome.trace.join("\n"));
        }
        if let Some(what) = outcome.finding {
            println!("seed {seed}: {what}\nagain: millpond-sim --seed {seed} --trace --buckets");
            findings += 1;
            if !keep_going {
                break;
            }
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    println!("{count} seeds, {findings} findings, {seconds:.1} s ({:.1} ms a seed)", seconds * 1000.0 / count.max(1) as f64);
    println!("  {} requests, {} of them with faults; {} crashes, {} pauses", total.requests, total.faults, total.crashes, total.pauses);
    println!(
        "  {} terms taken, {} lost to another host, {} resumed, {} ended by a later one; {} anchors committed",
        total.terms, total.lost, total.resumed, total.fenced, total.commits
    );
    if findings == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Proves that a planted bug of buckets is found; `None` if the name is of another bug.
pub fn planted(name: &str, seeds: Range<u64>) -> Option<ExitCode> {
    let bug = NAMES.iter().zip(BUGS).find(|(known, _)| **known == name).map(|(_, bug)| bug)?;
    if !cfg!(feature = "planted") {
        eprintln!("this binary cannot plant bugs; build it with --features planted");
        return Some(ExitCode::FAILURE);
    }
    for seed in seeds.start..seeds.end.min(seeds.start + MAX_SEEDS) {
        if let Some(what) = run_terms(seed, &TermOptions { trace: false, planted: Some(bug) }).finding {
            if let Some(other) = run_terms(seed, &TermOptions::default()).finding {
                println!("seed {seed} finds something without {name} too, and proves nothing: {other}");
                continue;
            }
            println!("{name}: found by seed {seed} ({} seeds): {what}", seed - seeds.start + 1);
            return Some(ExitCode::SUCCESS);
        }
    }
    println!("{name}: NOT found in {MAX_SEEDS} seeds");
    Some(ExitCode::FAILURE)
}
