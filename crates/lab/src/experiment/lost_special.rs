//! `lost-special`: removes all special devices of a pool after the daemon was killed. The pool must
//! be imported without them, with heads and snapshots unchanged; data that was only on special
//! devices must be named and refused, not read wrong.

use super::Setup;
use crate::load::{Client, Endpoint, Ledger, Op, Verdict, audit, write_blocks};
use crate::peer::{Contender, Millpond, POOL, millpond_binary};
use crate::process::Workspace;
use crate::report::{Claim, Goal, Results};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Instant;

const SIZE: u64 = 512 << 20;
const BLOCK: u64 = 4096;
const DEPTH: usize = 32;
const SNAPSHOTS: u64 = 20;
/// Before each snapshot one in so many blocks of the disk is rewritten.
const REWRITTEN: usize = 8;
/// One in so many blocks of the second volume is only on special devices.
const SMALL: usize = 16;
const BIG: &str = "lab/big";
const LITTLE: &str = "lab/little";
const PLAN: &str = "say what would be lost (-n)";
const REBUILD: &str = "import without special devices";
const HEADS: &str = "heads afterwards";
const OLD: &str = "snapshots afterwards";
const LOST: &str = "blocks that were there alone";

pub fn run_lost_special(setup: &Setup, results: &mut Results) -> Result<()> {
    if setup.contenders(&["millpond"], results).is_empty() {
        return Ok(());
    }
    results.skip("zfs-zvol", "the lab does not drive ZFS; there, the pool is lost with its special device");
    for rep in 0..setup.reps {
        results.say(&format!("repetition {} of {}", rep + 1, setup.reps));
        one(setup, results, rep)?;
    }
    for case in [HEADS, OLD] {
        results.promise(case, "lost or wrong", "millpond", Goal::NeverAbove(0.0));
    }
    results.promise(LOST, "read all the same", "millpond", Goal::NeverAbove(0.0));
    results.promise(LOST, "not named", "millpond", Goal::NeverAbove(0.0));
    let why = "the lab does not drive ZFS; a figure of 0 says that the pool came up with all heads and snapshots";
    results.claim(Claim::new("C-lost", "pools lost with the special device", 1.0, "pools").ours(Some(0.0)).because(why));
    Ok(())
}

fn write(endpoint: &Endpoint, ledger: &mut Ledger, blocks: impl Iterator<Item = usize>) -> Result<()> {
    let written = write_blocks(endpoint, ledger, blocks, DEPTH, &AtomicBool::new(false), &AtomicU64::new(0))?;
    ensure!(written.broken.is_none(), "the connection broke");
    Ok(())
}

fn one(setup: &Setup, results: &mut Results, rep: usize) -> Result<()> {
    let workspace = Workspace::new(&setup.dir, "lost-special")?;
    let mut millpond = Millpond::new(millpond_binary()?);
    millpond.start_empty(workspace.path())?;
    let size = setup.size_or(SIZE);
    let at = |name: &str, bytes: u64| format!("{}:{bytes}", workspace.path().join(name).display());
    let [a, b] = ["a", "b"].map(|name| at(name, 4 * size + (1 << 30)));
    let [s, t] = ["s", "t"].map(|name| at(name, size / 2 + (128 << 20)));
    millpond.cli(&["pool", "create", POOL, "mirror", &a, &b, "special", "mirror", &s, &t])?;
    for name in [BIG, LITTLE] {
        millpond.cli(&["create", name, "-L", &size.to_string()])?;
    }
    let blocks = usize::try_from(size / BLOCK)?;
    let (seed, block) = (setup.seed_of(rep), BLOCK as usize);
    let (mut big, mut little) = (Ledger::new(seed, blocks, block), Ledger::new(seed + 1, blocks, block));
    let (to_big, to_little) = (millpond.export(BIG)?, millpond.export(LITTLE)?);
    write(&to_big, &mut big, 0..blocks)?;
    write(&to_little, &mut little, 0..blocks)?;
    let mut frozen = Vec::new();
    for index in 0..setup.scaled(SNAPSHOTS, 3).min(SNAPSHOTS) {
        write(&to_big, &mut big, (index as usize % REWRITTEN..blocks).step_by(REWRITTEN))?;
        millpond.cli(&["snapshot", &format!("{BIG}@{index}")])?;
        frozen.push(big.bounds());
    }
    millpond.cli(&["set", "special_small_blocks=4k", LITTLE])?;
    write(&to_little, &mut little, (0..blocks).step_by(SMALL))?;
    // later batches on normal devices carry the index of the batches that are only on special
    // devices
    write(&to_big, &mut big, (0..blocks).step_by(REWRITTEN))?;
    millpond.kill9()?;
    for name in ["s", "t"] {
        fs::remove_file(workspace.path().join(name)).context("taking a device away")?;
    }
    millpond.launch()?;
    let dir = workspace.path().display().to_string();
    let refused = millpond.cli(&["pool", "import", POOL, "-d", &dir]).err().map(|why| format!("{why:#}"));
    ensure!(refused.as_ref().is_some_and(|why| why.contains("--rebuild")), "an import without them is not refused: {refused:?}");

    let begin = Instant::now();
    let planned = millpond.json(&["pool", "import", POOL, "-d", &dir, "--rebuild", "-n"])?;
    results.add(rep, "millpond", PLAN, "seconds", begin.elapsed().as_secs_f64());
    let named = named_blocks(&planned)?;
    let begin = Instant::now();
    millpond.cli(&["pool", "import", POOL, "-d", &dir, "--rebuild", "-y"])?;
    results.add(rep, "millpond", REBUILD, "seconds", begin.elapsed().as_secs_f64());

    let (_, found) = audit(&to_big, &big, |block, data| big.judge(block, data))?;
    results.add(rep, "millpond", HEADS, "lost or wrong", (found.lost + found.wrong) as f64);
    let mut wrong = 0;
    for (index, (least, most)) in frozen.iter().enumerate() {
        let snapshot = millpond.export(&format!("{BIG}@{index}"))?;
        let (_, found) = audit(&snapshot, &big, |block, data| big.judge_between(block, data, least[block], most[block]))?;
        wrong += found.lost + found.wrong;
    }
    results.add(rep, "millpond", OLD, "lost or wrong", wrong as f64);
    let (read, unnamed) = read_named(&to_little, &little, &named, blocks)?;
    results.add(rep, "millpond", LOST, "named", named.len() as f64);
    results.add(rep, "millpond", LOST, "read all the same", f64::from(read));
    results.add(rep, "millpond", LOST, "not named", f64::from(unnamed));
    millpond.stop()
}

/// Reads all blocks of the second volume. Returns the number of blocks named as lost that are read
/// all the same, and of lost or wrong ones that are not named.
fn read_named(endpoint: &Endpoint, ledger: &Ledger, named: &BTreeSet<u64>, blocks: usize) -> Result<(u32, u32)> {
    let block = BLOCK as usize;
    let (mut read, mut unnamed) = (0, 0);
    let mut client = Client::connect(endpoint, 1, block, false)?;
    for index in 0..blocks {
        let right = client
            .call(Op::Read, index as u64 * BLOCK, block)
            .is_ok()
            .then(|| matches!(ledger.judge(index, &client.data(0)[..block]), Verdict::Kept(_)));
        match (named.contains(&(index as u64)), right) {
            (true, Some(_)) => read += 1,
            (false, None | Some(false)) => unnamed += 1,
            _ => {}
        }
    }
    Ok((read, unnamed))
}

/// Returns the blocks of the second volume in a list of losses.
fn named_blocks(planned: &Value) -> Result<BTreeSet<u64>> {
    let mut blocks = BTreeSet::new();
    for lost in planned.as_array().context("no list of what would be lost")? {
        ensure!(lost["name"] == LITTLE, "{lost} has no small writes");
        let field = |name: &str| lost[name].as_u64().with_context(|| format!("{lost} has no {name}"));
        let first = field("offset")? / BLOCK;
        blocks.extend(first..first + field("length")? / BLOCK);
    }
    Ok(blocks)
}
