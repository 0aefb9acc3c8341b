//! `rewind`: lets a pool go back to earlier checkpoints. The disk is rewritten in rounds with a
//! checkpoint between them; then every checkpoint that is listed as intact is imported read-only,
//! and the oldest one is imported for good. The disk must have its content of a single instant, in
//! the order of the writes.

use super::Setup;
use crate::load::{Endpoint, Ledger, audit, write_blocks};
use crate::peer::{Contender, DISK, Millpond, POOL, millpond_binary};
use crate::process::Workspace;
use crate::report::{Goal, Results};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Instant;

const SIZE: u64 = 256 << 20;
const BLOCK: u64 = 4096;
const ROUNDS: u64 = 8;
const LEAST_ROUNDS: u64 = 3;
const LIST: &str = "list checkpoints";
const PLAN: &str = "say what would be lost (-n)";
const LOOK: &str = "import to look at one (--readonly)";
const BACK: &str = "go back for good";

pub fn run_rewind(setup: &Setup, results: &mut Results) -> Result<()> {
    if setup.contenders(&["millpond"], results).is_empty() {
        return Ok(());
    }
    results.skip("zfs-zvol", "the lab does not drive ZFS; there, nothing tells which -T would work");
    for rep in 0..setup.reps {
        results.say(&format!("repetition {} of {}", rep + 1, setup.reps));
        one(setup, results, rep)?;
    }
    for case in [LOOK, BACK] {
        results.promise(case, "inconsistent", "millpond", Goal::NeverAbove(0.0));
    }
    results.promise(LIST, "whole", "millpond", Goal::NeverBelow(LEAST_ROUNDS as f64));
    Ok(())
}

fn timed<T>(results: &mut Results, rep: usize, case: &str, step: impl FnOnce() -> Result<T>) -> Result<T> {
    let begin = Instant::now();
    let value = step().with_context(|| case.to_owned())?;
    results.add(rep, "millpond", case, "seconds", begin.elapsed().as_secs_f64());
    Ok(value)
}

fn one(setup: &Setup, results: &mut Results, rep: usize) -> Result<()> {
    let workspace = Workspace::new(&setup.dir, "rewind")?;
    let mut millpond = Millpond::new(millpond_binary()?);
    millpond.start_empty(workspace.path())?;
    let size = (setup.size.unwrap_or((SIZE as f64 * setup.scale.min(1.0)) as u64).max(8 << 20)) / BLOCK * BLOCK;
    let rounds = setup.scaled(ROUNDS, LEAST_ROUNDS).min(ROUNDS);
    // room for every round, so that no space that an older checkpoint needs is reused
    let device = format!("{}:{}", millpond.device().display(), (rounds + 2) * size + (2 << 30));
    millpond.cli(&["pool", "create", POOL, "linear", &device])?;
    millpond.cli(&["create", DISK, "-L", &size.to_string()])?;
    let endpoint = millpond.export(DISK)?;
    let mut ledger = Ledger::new(setup.seed_of(rep), usize::try_from(size / BLOCK)?, BLOCK as usize);
    for _ in 0..rounds {
        let blocks = 0..ledger.blocks();
        let written = write_blocks(&endpoint, &mut ledger, blocks, 1, &AtomicBool::new(false), &AtomicU64::new(0))?;
        ensure!(written.broken.is_none(), "the connection broke");
        // an export of the pool writes a checkpoint
        millpond.cli(&["pool", "export", POOL])?;
        millpond.cli(&["pool", "import", POOL])?;
    }
    millpond.cli(&["pool", "export", POOL])?;
    let dir = workspace.path().display().to_string();
    let listed = timed(results, rep, LIST, || millpond.json(&["pool", "checkpoints", POOL, "-d", &dir]))?;
    let points = listed.as_array().context("no list of checkpoints")?;
    let whole: Vec<&Value> = points.iter().filter(|p| p.get("verified").and_then(Value::as_str) == Some("yes")).collect();
    results.add(rep, "millpond", LIST, "listed", points.len() as f64);
    results.add(rep, "millpond", LIST, "whole", whole.len() as f64);
    let ids = whole.iter().map(|p| p.get("id").and_then(Value::as_u64).context("a checkpoint without id")).collect::<Result<Vec<u64>>>()?;
    let oldest = ids.iter().min().context("no checkpoint is whole")?.to_string();
    timed(results, rep, PLAN, || millpond.cli(&["pool", "import", POOL, "--to", &oldest, "-n"]))?;
    let (mut inconsistent, mut states, mut oldest) = (0, Vec::new(), None);
    for id in &ids {
        timed(results, rep, LOOK, || millpond.cli(&["pool", "import", POOL, "--readonly", "--to", &id.to_string()]))?;
        // the first checkpoints may be older than the volume
        if millpond.cli(&["show", DISK]).is_ok() {
            let state = state(&endpoint, &ledger, rounds)?;
            inconsistent += u32::from(state.is_none());
            oldest = oldest.min(Some(*id)).or(Some(*id));
            states.extend(state);
        }
        millpond.cli(&["pool", "export", POOL])?;
    }
    states.dedup();
    results.add(rep, "millpond", LOOK, "inconsistent", f64::from(inconsistent));
    results.add(rep, "millpond", LOOK, "different_states", states.len() as f64);
    let back = oldest.context("no checkpoint has the disk")?;
    timed(results, rep, BACK, || millpond.cli(&["pool", "import", POOL, "--to", &back.to_string(), "-y"]))?;
    let before = state(&endpoint, &ledger, rounds)?;
    millpond.kill9()?;
    millpond.launch()?;
    let after = state(&endpoint, &ledger, rounds)?;
    results.add(rep, "millpond", BACK, "inconsistent", f64::from(u8::from(before.is_none() || before != after)));
    millpond.stop()
}

/// Returns the round that the disk is in, and the number of blocks written in it; `None` if the
/// disk was never in this state.
fn state(endpoint: &Endpoint, ledger: &Ledger, rounds: u64) -> Result<Option<(u64, usize)>> {
    let (versions, found) = audit(endpoint, ledger, |block, data| ledger.judge_between(block, data, 0, rounds))?;
    let Some(newest) = versions.first().copied().flatten().filter(|_| found.wrong + found.lost == 0) else { return Ok(None) };
    let written = versions.iter().take_while(|v| **v == Some(newest)).count();
    let rest_is_older = versions.iter().skip(written).all(|v| v.map(|v| v + 1) == Some(newest));
    Ok(Some((newest, written)).filter(|_| rest_is_older))
}
