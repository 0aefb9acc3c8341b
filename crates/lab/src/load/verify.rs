//! Writes ledger blocks until stopped or until the server dies, and verifies them.

use super::client::Client;
use super::endpoint::Endpoint;
use super::ledger::{Ledger, Verdict};
use super::op::Op;
use anyhow::{Context, Result, bail};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Result of a write load that can be verified.
#[derive(Debug)]
pub struct Written {
    /// Number of acknowledged writes.
    pub acknowledged: u64,
    /// Error of the connection that ended the load, if any.
    pub broken: Option<io::Error>,
}

/// Writes the given blocks of the ledger, `depth` in flight, one request per block; no block may
/// occur twice. Counts acknowledged writes in `progress`. A broken connection ends the load without
/// an error: the ledger has the writes acknowledged until then.
///
/// # Errors
/// The server cannot be reached, or refuses a write.
pub fn write_blocks(
    endpoint: &Endpoint,
    ledger: &mut Ledger,
    blocks: impl Iterator<Item = usize>,
    depth: usize,
    stop: &AtomicBool,
    progress: &AtomicU64,
) -> Result<Written> {
    let client = Client::connect(endpoint, depth, ledger.block_bytes(), false).with_context(|| format!("connecting to {endpoint}"))?;
    write_over(client, ledger, blocks, depth, stop, progress)
}

/// Runs [`write_blocks`] over an existing connection, made for this depth and the ledger's block
/// size.
///
/// # Errors
/// The server refuses a write.
pub fn write_over(
    mut client: Client,
    ledger: &mut Ledger,
    mut blocks: impl Iterator<Item = usize>,
    depth: usize,
    stop: &AtomicBool,
    progress: &AtomicU64,
) -> Result<Written> {
    let bytes = ledger.block_bytes();
    let mut current = vec![(0usize, 0u64); depth];
    let mut start = |client: &mut Client, ledger: &mut Ledger, slot: usize| -> Option<(usize, u64)> {
        let block = if stop.load(Ordering::Relaxed) { None } else { blocks.next() }?;
        let version = ledger.write(block, client.data(slot));
        client.submit(slot, Op::Write, (block * bytes) as u64, bytes);
        Some((block, version))
    };
    let mut in_flight = 0;
    for (slot, entry) in current.iter_mut().enumerate() {
        if let Some(started) = start(&mut client, ledger, slot) {
            *entry = started;
            in_flight += 1;
        }
    }
    let mut written = Written { acknowledged: 0, broken: None };
    let mut done = Vec::new();
    while in_flight > 0 {
        done.clear();
        if let Err(error) = client.wait(&mut done) {
            written.broken = Some(error);
        }
        for finished in &done {
            if finished.error != 0 {
                bail!("the server refused a write: NBD error {}", finished.error);
            }
            let (block, version) = current[finished.slot];
            ledger.acknowledge(block, version);
            written.acknowledged += 1;
            match start(&mut client, ledger, finished.slot) {
                Some(started) => current[finished.slot] = started,
                None => in_flight -= 1,
            }
        }
        progress.store(written.acknowledged, Ordering::Relaxed);
        if written.broken.is_some() {
            break;
        }
        if let Err(error) = client.kick() {
            written.broken = Some(error); // replies that arrived before the end are still to be read
            while client.wait(&mut done).is_ok() {
                for finished in done.drain(..).filter(|d| d.error == 0) {
                    let (block, version) = current[finished.slot];
                    ledger.acknowledge(block, version);
                    written.acknowledged += 1;
                }
            }
            break;
        }
    }
    Ok(written)
}

/// Result of verifying all blocks.
#[derive(Clone, Debug, Default)]
pub struct Audit {
    /// Number of blocks read.
    pub checked: u64,
    /// Blocks with an older version than the acknowledged one.
    pub lost: u64,
    /// Blocks with data that was never written to them.
    pub wrong: u64,
    /// Descriptions of the first findings.
    pub examples: Vec<String>,
}

/// Reads every block of the ledger and judges it by `judge(block, data)`; returns the versions
/// found (`None` = wrong data) and the counts.
///
/// # Errors
/// The server cannot be reached, or a read fails.
pub fn audit(endpoint: &Endpoint, ledger: &Ledger, judge: impl Fn(usize, &[u8]) -> Verdict) -> Result<(Vec<Option<u64>>, Audit)> {
    const PER_READ: usize = 256;
    let bytes = ledger.block_bytes();
    let mut client = Client::connect(endpoint, 1, PER_READ * bytes, false).with_context(|| format!("connecting to {endpoint}"))?;
    let mut audit = Audit::default();
    let mut versions = Vec::with_capacity(ledger.blocks());
    while versions.len() < ledger.blocks() {
        let first = versions.len();
        let count = PER_READ.min(ledger.blocks() - first);
        client.call(Op::Read, (first * bytes) as u64, count * bytes)?;
        for (index, data) in client.data(0)[..count * bytes].chunks(bytes).enumerate() {
            let block = first + index;
            audit.checked += 1;
            let verdict = judge(block, data);
            match verdict {
                Verdict::Kept(version) => versions.push(Some(version)),
                Verdict::Lost { found, .. } => {
                    audit.lost += 1;
                    versions.push(Some(found));
                }
                Verdict::Wrong => {
                    audit.wrong += 1;
                    versions.push(None);
                }
            }
            if !matches!(verdict, Verdict::Kept(_)) && audit.examples.len() < 5 {
                audit.examples.push(format!("block {block}: {verdict:?}"));
            }
        }
    }
    Ok((versions, audit))
}
