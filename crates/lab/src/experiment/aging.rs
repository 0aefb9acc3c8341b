//! Ages a volume: rounds of random 4 KiB overwrites with snapshots in between.

use crate::load::{Client, Endpoint, LoadSpec, Op, Rng, run};
use crate::peer::Contender;
use anyhow::{Context, Result};

const BLOCK: usize = 4096;
const DEPTH: usize = 32;

/// Parameters of ageing. The overwrites do not depend on the number of snapshots, so volumes of one
/// seed differ only in their snapshots.
#[derive(Clone, Copy, Debug)]
pub struct Aging {
    /// Rounds of overwrites.
    pub rounds: u64,
    /// Random 4 KiB overwrites per round.
    pub blocks: u64,
    /// Number of snapshots, spread evenly over the rounds.
    pub snapshots: u64,
    /// Seed of the random choices.
    pub seed: u64,
}

impl Aging {
    /// Fills the volume, overwrites all of it in random order, then runs the rounds. `snapshot(n)`
    /// takes the n-th snapshot.
    ///
    /// # Errors
    /// A write or a snapshot failed.
    pub fn apply(&self, contender: &mut dyn Contender, mut snapshot: impl FnMut(&mut dyn Contender, u64) -> Result<()>) -> Result<()> {
        let endpoint = contender.endpoint()?;
        run(&endpoint, &LoadSpec::fill()).context("filling")?;
        run(&endpoint, &LoadSpec::scramble(self.seed)).context("overwriting at random")?;
        let mut writer = Writer::new(&endpoint, self.seed)?;
        let mut taken = 0;
        for round in 0..self.rounds {
            while taken < self.snapshots * (round + 1) / self.rounds {
                snapshot(contender, taken).with_context(|| format!("snapshot {taken}"))?;
                taken += 1;
            }
            writer.write(self.blocks)?;
        }
        Ok(())
    }
}

/// Writes random blocks over one connection.
pub struct Writer {
    client: Client,
    rng: Rng,
}

impl Writer {
    /// Connects to the endpoint.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub fn new(endpoint: &Endpoint, seed: u64) -> Result<Writer> {
        let mut client = Client::connect(endpoint, DEPTH, BLOCK, false).with_context(|| format!("connecting to {endpoint}"))?;
        for slot in 0..DEPTH {
            Rng::new(seed ^ slot as u64).fill(client.data(slot));
        }
        Ok(Writer { client, rng: Rng::new(seed) })
    }

    /// Overwrites `blocks` random blocks and waits for all replies.
    ///
    /// # Errors
    /// A write failed.
    pub fn write(&mut self, blocks: u64) -> Result<()> {
        let total = self.client.size() / BLOCK as u64;
        let mut left = blocks;
        let mut idle: Vec<usize> = (0..DEPTH).collect();
        let mut done = Vec::new();
        while left > 0 || idle.len() < DEPTH {
            while left > 0 {
                let Some(slot) = idle.pop() else { break };
                let stamp = self.rng.next();
                self.client.data(slot)[..8].copy_from_slice(&stamp.to_le_bytes());
                let block = self.rng.below(total);
                self.client.submit(slot, Op::Write, block * BLOCK as u64, BLOCK);
                left -= 1;
            }
            done.clear();
            self.client.wait(&mut done)?;
            for finished in &done {
                anyhow::ensure!(finished.error == 0, "a write was refused: NBD error {}", finished.error);
                idle.push(finished.slot);
            }
        }
        Ok(())
    }
}
