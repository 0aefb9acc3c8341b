//! A full pool: reads, flushes, removal of snapshots and discards still work, nothing acknowledged
//! is lost, and freed space can be written again.

use super::PATIENCE;
use super::subject::Subject;
use anyhow::{Context, Result, bail, ensure};
use millpond_lab::load::{Client, Endpoint, Op, Rng};
use millpond_lab::peer::{Contender, DISK, POOL};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const POOL_BYTES: u64 = 256 << 20;
const VOLUME: u64 = 1 << 30;
const CHUNK: usize = 256 << 10;
const ENOSPC: u32 = 28;

/// Seed of the content of each chunk of the volume; absent chunks are zeroes.
type Truth = BTreeMap<u64, u64>;

fn content(seed: u64) -> Vec<u8> {
    let mut data = vec![0; CHUNK];
    Rng::new(seed).fill(&mut data);
    data
}

/// Writes a chunk; false if the pool is full.
fn write(client: &mut Client, truth: &mut Truth, chunk: u64, seed: u64) -> Result<bool> {
    client.data(0).copy_from_slice(&content(seed));
    client.submit(0, Op::Write, chunk * CHUNK as u64, CHUNK);
    let mut done = Vec::new();
    client.wait(&mut done)?;
    match done.first().context("no reply")?.error {
        0 => {
            truth.insert(chunk, seed);
            Ok(true)
        }
        ENOSPC => Ok(false),
        other => bail!("a write on a full pool: NBD error {other} instead of {ENOSPC} (no space)"),
    }
}

fn fill(client: &mut Client, truth: &mut Truth, from: u64) -> Result<u64> {
    let mut chunk = from;
    while chunk < VOLUME / CHUNK as u64 {
        if !write(client, truth, chunk, chunk * 3 + 1)? {
            return Ok(chunk);
        }
        chunk += 1;
    }
    bail!("a volume four times the pool was written and the pool never said that it is full")
}

fn check(client: &mut Client, truth: &Truth, refused: Option<u64>) -> Result<()> {
    for (chunk, seed) in truth.iter().filter(|(chunk, _)| Some(**chunk) != refused) {
        client.call(Op::Read, chunk * CHUNK as u64, CHUNK).with_context(|| format!("reading chunk {chunk} of a full pool"))?;
        ensure!(client.data(0) == content(*seed), "chunk {chunk} is not what was acknowledged");
    }
    Ok(())
}

fn connect(endpoint: &Endpoint) -> Result<Client> {
    Client::connect(endpoint, 1, CHUNK, false).context("connecting")
}

pub fn run(subject: &mut Subject) -> Result<()> {
    let dir = subject.file("server");
    std::fs::create_dir_all(&dir)?;
    let millpond = subject.millpond()?;
    millpond.start_empty(&dir)?;
    millpond.cli(&["pool", "create", POOL, "linear", &format!("{}:{POOL_BYTES}", millpond.device().display())])?;
    millpond.cli(&["create", DISK, "-L", &VOLUME.to_string()])?;
    let endpoint = millpond.export(DISK)?;
    let mut truth = Truth::new();
    let mut client = connect(&endpoint)?;
    for chunk in 0..64 {
        ensure!(write(&mut client, &mut truth, chunk, chunk + 7)?, "full after {chunk} chunks");
    }
    millpond.snapshot("early")?;
    for chunk in 0..64 {
        ensure!(write(&mut client, &mut truth, chunk, chunk + 1000)?, "full after {chunk} chunks");
    }
    let refused = fill(&mut client, &mut truth, 64)?;
    ensure!(refused * CHUNK as u64 > POOL_BYTES / 2, "full after {refused} chunks: much less than the pool has");
    client.call(Op::Flush, 0, 0).context("a flush on a full pool")?;
    check(&mut client, &truth, Some(refused))?;

    drop(client);
    millpond.kill9()?;
    millpond.restart().context("restarting a full pool")?;
    let mut client = connect(&endpoint)?;
    check(&mut client, &truth, Some(refused))?;

    // space is freed by deleting a snapshot, and by discards
    millpond.control()?.post("/v1/destroy", &json!({"name": format!("{DISK}@early")})).context("destroying a snapshot of a full pool")?;
    for chunk in 100..200 {
        client.call(Op::Trim, chunk * CHUNK as u64, CHUNK).context("a discard on a full pool")?;
        truth.remove(&chunk);
    }
    client.call(Op::Flush, 0, 0)?;
    let end = Instant::now() + PATIENCE;
    let mut written = 0;
    while written < 50 {
        if write(&mut client, &mut truth, 100 + written, written + 5000)? {
            written += 1;
        } else {
            ensure!(Instant::now() < end, "25 MiB were discarded, and only {written} chunks could be written");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    check(&mut client, &truth, Some(refused))
}
