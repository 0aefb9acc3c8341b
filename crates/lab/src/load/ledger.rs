//! Self-identifying blocks, and a record of acknowledged versions: after a crash, every block
//! identifies the write whose data it has.

use super::random::Rng;

const MAGIC: u64 = u64::from_le_bytes(*b"MPLEDGER");
const HEAD: usize = 32;

/// Result of checking a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The block has this version, which is at least the newest acknowledged one.
    Kept(u64),
    /// The block has an older version than the newest acknowledged one: that write is lost.
    Lost {
        /// Version found (0 = never written).
        found: u64,
        /// Newest acknowledged version.
        acknowledged: u64,
    },
    /// The data is no version that this client wrote to the block: torn, foreign or misplaced.
    Wrong,
}

/// Newest sent and newest acknowledged version of every block of a range. Version 0 is "never
/// written", all zeroes.
#[derive(Clone, Debug)]
pub struct Ledger {
    run: u64,
    block_bytes: usize,
    sent: Vec<u64>,
    acknowledged: Vec<u64>,
}

impl Ledger {
    /// Makes a ledger for `blocks` blocks that are all zeroes now. `run` distinguishes ledgers.
    pub fn new(run: u64, blocks: usize, block_bytes: usize) -> Ledger {
        assert!(block_bytes >= HEAD + 8, "a block must hold its identity");
        Ledger { run, block_bytes, sent: vec![0; blocks], acknowledged: vec![0; blocks] }
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.sent.len()
    }

    /// Size of a block in bytes.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Fills `data` with the next version of a block and records it as sent; returns the version.
    pub fn write(&mut self, block: usize, data: &mut [u8]) -> u64 {
        self.sent[block] += 1;
        let version = self.sent[block];
        render(self.run, block as u64, version, &mut data[..self.block_bytes]);
        version
    }

    /// Records that the server acknowledged a version.
    pub fn acknowledge(&mut self, block: usize, version: u64) {
        self.acknowledged[block] = self.acknowledged[block].max(version);
    }

    /// Returns the newest acknowledged version of a block.
    pub fn acknowledged(&self, block: usize) -> u64 {
        self.acknowledged[block]
    }

    /// Judges data that was read: any version from the newest acknowledged to the newest sent one
    /// is right.
    pub fn judge(&self, block: usize, data: &[u8]) -> Verdict {
        self.judge_between(block, data, self.acknowledged[block], self.sent[block])
    }

    /// Judges data of a snapshot, in which versions `at_least` to `at_most` are right.
    pub fn judge_between(&self, block: usize, data: &[u8], at_least: u64, at_most: u64) -> Verdict {
        let Some(found) = self.version_of(block, data) else { return Verdict::Wrong };
        if found > at_most {
            Verdict::Wrong
        } else if found < at_least {
            Verdict::Lost { found, acknowledged: at_least }
        } else {
            Verdict::Kept(found)
        }
    }

    /// Takes the version that was read as the acknowledged one, which decides the fate of
    /// unacknowledged writes.
    pub fn settle(&mut self, block: usize, version: u64) {
        self.acknowledged[block] = version;
    }

    /// Returns the newest acknowledged and the newest sent version of every block.
    pub fn bounds(&self) -> (Vec<u64>, Vec<u64>) {
        (self.acknowledged.clone(), self.sent.clone())
    }

    fn version_of(&self, block: usize, data: &[u8]) -> Option<u64> {
        let data = data.get(..self.block_bytes)?;
        if data.iter().all(|b| *b == 0) {
            return Some(0);
        }
        let version = u64::from_le_bytes(data.get(24..32)?.try_into().ok()?);
        let mut expected = vec![0; self.block_bytes];
        render(self.run, block as u64, version, &mut expected);
        (expected == data).then_some(version)
    }
}

fn render(run: u64, block: u64, version: u64, data: &mut [u8]) {
    for (field, value) in data.chunks_exact_mut(8).zip([MAGIC, run, block, version]) {
        field.copy_from_slice(&value.to_le_bytes());
    }
    Rng::new(run ^ block.rotate_left(20) ^ version.rotate_left(50)).fill(&mut data[HEAD..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_loss_is_reported() {
        let mut ledger = Ledger::new(9, 4, 512);
        let (mut one, mut two) = (vec![0; 512], vec![0; 512]);
        assert_eq!(ledger.judge(1, &vec![0; 512]), Verdict::Kept(0));
        let first = ledger.write(1, &mut one);
        ledger.acknowledge(1, first);
        ledger.write(1, &mut two);
        assert_eq!(ledger.judge(1, &one), Verdict::Kept(1));
        assert_eq!(ledger.judge(1, &two), Verdict::Kept(2), "sent and not acknowledged may be there");
        assert_eq!(ledger.judge(1, &vec![0; 512]), Verdict::Lost { found: 0, acknowledged: 1 });
        ledger.acknowledge(1, 2);
        assert_eq!(ledger.judge(1, &one), Verdict::Lost { found: 1, acknowledged: 2 });
        assert_eq!(ledger.judge(2, &two), Verdict::Wrong, "a block in another's place");
        let mut torn = one.clone();
        torn[256..].copy_from_slice(&two[256..]);
        assert_eq!(ledger.judge(1, &torn), Verdict::Wrong, "half of each");
        let mut other = Ledger::new(10, 4, 512);
        other.write(1, &mut torn);
        assert_eq!(ledger.judge(1, &torn), Verdict::Wrong, "another run's");
    }
}
