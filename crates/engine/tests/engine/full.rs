//! A full pool with long deadlists: it keeps working through destroys and discards (I9).

use millpond_block::Op;
use millpond_engine::{
    Absent, CatalogCommand, Command, CommandError, Compression, DeviceCommand, GroupSpec, Layout, PoolState, Reply, SnapshotId, Target,
    Tuning, VolumeId,
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

/// A pool whose log has no room for another record, and whose devices complete nothing; and its
/// volume.
fn without_room() -> (Harness, VolumeId) {
    let mut harness = Harness::with(&[12], Layout::Linear, tuning(64 << 20));
    let volume = harness.volume("disk0", 32 << 20, Compression::Off);
    let head = Target::Head(volume);
    assert_eq!(harness.write_blocks(head, 0..16, 1, 16), 0);
    harness.settle();
    while harness.engine.pop_completion().is_some() {}
    // guests leave room to records, which discards take
    for step in 0..20_000u64 {
        if step < 4_000 {
            harness.write(head, step * 4096, &[2; 4096]);
        } else {
            harness.submit(head, Op::Discard, step % 16 * 4096, 4096);
        }
        if step % 4 == 0 {
            harness.turn();
        }
    }
    (harness, volume)
}

/// Commands that log nothing wait for no room in the log: those that free space are among them.
#[test]
fn commands_that_log_nothing_wait_for_no_room() {
    let (mut harness, volume) = without_room();
    harness.start(Command::Catalog(CatalogCommand::RenameVolume { volume, name: "disk1".into() }));
    harness.turn();
    assert!(harness.engine.pop_reply().is_none(), "a command with a record waits");
    let stopped = harness.command_beside(Command::Devices(DeviceCommand::StopRemoving));
    assert_eq!(stopped, Err(CommandError::NotFound(Absent::Removal)));
}

/// A close logs nothing, and does not wait for room either.
#[test]
fn a_pool_without_room_is_closed() {
    let (mut harness, _) = without_room();
    harness.start(Command::Close);
    harness.turn();
    assert_eq!(*harness.engine.state(), PoolState::Closing);
    while *harness.engine.state() == PoolState::Closing {
        harness.settle();
        harness.now += 1_000;
    }
    assert_eq!(*harness.engine.state(), PoolState::Closed);
}

/// A write beyond what guests can fill waits while destroyed data is being freed.
#[test]
fn a_write_waits_for_space_that_is_being_freed() {
    const LEAF: u64 = 512;
    let mut harness = pool(256, 256 << 10, 64 << 20);
    // a block in each leaf: freeing these takes more than one turn
    let sparse = harness.volume("disk0", 4 << 30, Compression::Off);
    let full = Target::Head(harness.volume("disk1", 4 << 30, Compression::Off));
    assert_eq!(harness.write_blocks(Target::Head(sparse), (0..1000).map(|leaf| leaf * LEAF), 1, 64), 0);
    let mut end = 0;
    for length in [1 << 20, 4096] {
        while harness.request(full, Op::Write, end, length, &vec![2; length as usize]).is_ok() {
            end += length;
        }
    }
    assert!(end > 200 << 20, "{end}");
    harness.start(Command::Catalog(CatalogCommand::DestroyVolume { volume: sparse }));
    harness.turn();
    // as much as is freed, at once
    assert_eq!(harness.write_blocks(full, (0..900).map(|block| end / 4096 + block), 3, 900), 0);
    harness.settle();
    while harness.engine.pop_reply().is_some() {}
    harness.audit();
}

/// Segments whose writes are in flight cannot be cleaned yet: while no free segment is left and all
/// writes are in flight, further writes wait and are not refused.
#[test]
fn a_burst_larger_than_the_free_space_waits_for_its_own_writes() {
    let mut harness = pool(8, 64 << 10, 64 << 20);
    let head = Target::Head(harness.volume("disk0", 32 << 20, Compression::Off));
    harness.settle();
    let every = |part: u64, of: u64| (0..400u64).filter(move |block| block % of < part);
    let blocks = || every(1, 1).chain(every(1, 2)).chain(every(2, 4)).chain(every(4, 8));
    for block in blocks() {
        harness.write(head, block * 4096, &[7; 4096]);
    }
    for _ in 0..3_000 {
        harness.turn();
        assert!(harness.engine.pop_completion().is_none());
    }
    harness.settle();
    let answers: Vec<_> = std::iter::from_fn(|| harness.engine.pop_completion()).map(|done| done.result.err()).collect();
    assert_eq!(answers, vec![None; blocks().count()]);
    harness.audit();
}
