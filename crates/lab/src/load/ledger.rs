//! Self-identifying blocks and the memory of what was acknowledged: after a crash every block says which write it holds.

use super::random::Rng;

const MAGIC: u64 = u64::from_le_bytes(*b"MPLEDGER");
const HEAD: usize = 32;

/// What a block turned out to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A version at least as new as the last acknowledged one, whole.
    Kept(u64),
    /// An older version than the last acknowledged one: that write is lost.
    Lost {
        /// What is there (0 = never written).
        found: u64,
        /// What was acknowledged.
        acknowledged: u64,
    },
    /// No version that this client ever wrote there: torn, foreign or misplaced data.
    Wrong,
}

/// Versions of every block of a range: the newest sent and the newest acknowledged. Version 0 is "never written", all zeroes.
#[derive(Clone, Debug)]
pub struct Ledger {
    run: u64,
    block_bytes: usize,
    sent: Vec<u64>,
    acknowledged: Vec<u64>,
}

impl Ledger {
    /// For `blocks` blocks that are all zeroes now. `run` tells two ledgers apart.
    pub fn new(run: u64, blocks: usize, block_bytes: usize) -> Ledger {
        assert!(block_bytes >= HEAD + 8, "a block must hold its identity");
        Ledger { run, block_bytes, sent: vec![0; blocks], acknowledged: vec![0; blocks] }
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.sent.len()
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Fills `data` with the next version of a block and remembers that it is being sent.
    pub fn write(&mut self, block: usize, data: &mut [u8]) -> u64 {
        self.sent[block] += 1;
        let version = self.sent[block];
        render(self.run, block as u64, version, &mut data[..self.block_bytes]);
        version
    }

    /// The server acknowledged this version.
    pub fn acknowledge(&mut self, block: usize, version: u64) {
        self.acknowledged[block] = self.acknowledged[block].max(version);
    }

    /// Newest acknowledged version of a block.
    pub fn acknowledged(&self, block: usize) -> u64 {
        self.acknowledged[block]
    }

    /// Judges what was read; anything between the newest acknowledged and the newest sent version is right.
    pub fn judge(&self, block: usize, data: &[u8]) -> Verdict {
        self.judge_between(block, data, self.acknowledged[block], self.sent[block])
    }

    /// Judges a state that was frozen when versions `at_least` to `at_most` could be there: a snapshot.
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

    /// What was read becomes the new truth: versions that were sent and not acknowledged are decided by what is there.
    pub fn settle(&mut self, block: usize, version: u64) {
        self.acknowledged[block] = version;
    }

    /// Newest acknowledged version of every block, and newest sent, as they are now.
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
    fn every_kind_of_loss_is_told() {
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
