//! Content of a volume by rounds, written and compared in steps.

use millpond_block::Op;
use millpond_engine::{Target, VolumeId};
use millpond_testing::pattern;

use crate::harness::Harness;

/// A volume's size, and the length of each request, in bytes.
pub struct Steps {
    pub size: u64,
    pub step: u64,
}

impl Steps {
    /// Returns the bytes of a round from `at` on.
    pub fn bytes(&self, at: u64, round: u8) -> Vec<u8> {
        pattern(at, self.step as usize, round)
    }

    /// Writes a round to the whole volume.
    pub fn write(&self, harness: &mut Harness, volume: VolumeId, round: u8) {
        for at in (0..self.size).step_by(self.step as usize) {
            harness.request(Target::Head(volume), Op::Write, at, self.step, &self.bytes(at, round)).unwrap();
        }
    }

    /// Checks that a head or snapshot consists of a round.
    pub fn check(&self, harness: &mut Harness, target: Target, round: u8) {
        for at in (0..self.size).step_by(self.step as usize) {
            let read = harness.request(target, Op::Read, at, self.step, &[]).unwrap();
            assert!(read == self.bytes(at, round), "at {at}");
        }
    }
}
