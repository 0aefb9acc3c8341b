//! A full pool with long deadlists: it keeps working through destroys and discards (I9).

use millpond_block::Op;
use millpond_engine::{
    CatalogCommand, Command, CommandError, Compression, DeviceCommand, GroupSpec, Layout, PoolState, Reply, SnapshotId, Target, Tuning,
    VolumeId,
};

use crate::harness::Harness;

/// Turns within which each operation must complete: some orders of magnitude more than it takes.
const TURNS: u32 = 60_000;

/// A pool filled to the last block that guests may have, with two snapshots: half of the first
/// one's blocks died before the second one, the rest after it.
struct Full {
    harness: Harness,
    volume: VolumeId,
    snapshots: [SnapshotId; 2],
    /// Blocks that died in snapshots; blocks behind them are only in the head.
    old: u64,
    last: u64,
}

fn fill(mut harness: Harness, old: u64) -> Full {
    let volume = harness.volume("disk0", 4 << 30, Compression::Off);
    let head = Target::Head(volume);
    assert_eq!(harness.write_blocks(head, 0..old, 1, 64), 0);
    harness.settle();
    let first = harness.snapshot(volume, "s1");
    assert_eq!(harness.write_blocks(head, (0..old).step_by(2), 2, 64), 0);
    harness.settle();
    let second = harness.snapshot(volume, "s2");
    assert_eq!(harness.write_blocks(head, (1..old).step_by(2), 3, 64), 0);
    harness.settle();
    let mut last = old;
    while last < 8 * old && harness.write_blocks(head, last..last + 64, 4, 64) == 0 {
        last += 64;
    }
    assert!(last < 8 * old, "it was never full: {}", harness.engine.space_report());
    Full { harness, volume, snapshots: [first, second], old, last }
}

impl Full {
    /// Returns the answer to a command, which must come within a limited number of turns.
    fn ask(&mut self, what: &str, command: Command) -> Result<Reply, CommandError> {
        while self.harness.engine.pop_reply().is_some() {}
        self.harness.start(command);
        for _ in 0..TURNS {
            self.harness.step();
            if let Some((_, reply)) = self.harness.engine.pop_reply() {
                return reply;
            }
        }
        panic!("{what}: no answer in {TURNS} turns: {:?} {}", self.harness.engine.state(), self.harness.engine.space_report());
    }

    fn turns(&mut self, count: u32) {
        for _ in 0..count {
            self.harness.step();
        }
    }

    fn overwrites_pass(&mut self, when: &str) {
        let (head, old) = (Target::Head(self.volume), self.old);
        let refused = self.harness.write_blocks(head, old..old + 64, 6, 16);
        assert_eq!(refused, 0, "{when}: overwrites are refused: {}", self.harness.engine.space_report());
    }

    fn discard_passes(&mut self) {
        self.harness.submit(Target::Head(self.volume), Op::Discard, self.old * 4096, (self.last - self.old) / 2 * 4096);
        for _ in 0..TURNS {
            let (answered, errors) = self.harness.step();
            if answered > 0 {
                return assert_eq!(errors, 0, "the discard is refused: {}", self.harness.engine.space_report());
            }
        }
        panic!("the discard is not answered in {TURNS} turns: {}", self.harness.engine.space_report());
    }

    /// Checks everything that a destroy must not break.
    fn goes_on(&mut self) {
        self.turns(5000);
        self.harness.now += 60_000;
        self.turns(5000);
        self.ask("a checkpoint", Command::Checkpoint).unwrap();
        self.discard_passes();
        self.overwrites_pass("after the destroy");
        let first = self.snapshots[0];
        self.ask("destroying the other snapshot", Command::Catalog(CatalogCommand::DestroySnapshots { snapshots: vec![first] })).unwrap();
        for _ in 0..TURNS {
            self.harness.step();
            if self.harness.engine.metrics().reclaim_backlog == 0 {
                break;
            }
        }
        assert_eq!(self.harness.engine.metrics().reclaim_backlog, 0, "{}", self.harness.engine.space_report());
        self.overwrites_pass("after all destroys");
        self.harness.reopen();
        self.overwrites_pass("after a restart");
        self.harness.settle();
        self.harness.audit();
        self.ask("closing", Command::Close).unwrap();
        assert_eq!(*self.harness.engine.state(), PoolState::Closed);
    }
}

fn tuning(checkpoint_log_bytes: u64) -> Tuning {
    Tuning { checkpoint_log_bytes, ..Tuning::default() }
}

fn pool(mib: usize, extent: u64, checkpoint_log_bytes: u64) -> Harness {
    Harness::with_extents(&[mib], vec![GroupSpec::data(Layout::Linear)], tuning(checkpoint_log_bytes), Some(extent))
}

/// Destroys the newer snapshot, whose list is merged with the head's: both are long.
fn destroying_one_of(harness: Harness, old: u64) {
    let mut full = fill(harness, old);
    let second = full.snapshots[1];
    full.ask("destroying a snapshot", Command::Catalog(CatalogCommand::DestroySnapshots { snapshots: vec![second] })).unwrap();
    full.goes_on();
}

#[test]
fn destroying_a_snapshot_of_a_full_pool_when_checkpoints_are_rare() {
    destroying_one_of(pool(256, 64 << 10, 1 << 30), 26_000);
}

/// Extents keep their size from when the pool was created: in a pool that has grown, lists are long
/// and segments short.
#[test]
fn destroying_a_snapshot_of_a_full_pool_that_grew() {
    let mut harness = Harness::with(&[64], Layout::Linear, tuning(1 << 30));
    let device = harness.new_device(200);
    harness.command(DeviceCommand::AddDevices { groups: vec![GroupSpec::data(Layout::Linear)], devices: vec![device] }).unwrap();
    destroying_one_of(harness, 26_000);
}
