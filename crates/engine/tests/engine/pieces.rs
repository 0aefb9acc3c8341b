//! Deadlists that are longer than the memory for them: their pieces are read again to be freed.

use millpond_engine::{Command, Compression, Layout, Reply, SnapshotId, Target, Tuning, VolumeId};

use crate::rig::Rig;

const BLOCKS: u64 = 16_384;
const VERSIONS: u8 = 15;
/// Bytes that content may take which can be read again, with what says where epochs begin.
const LIMIT: u64 = 32 << 10;
/// The same with what is not written yet, two pieces for freeing and eight for a checkpoint.
const MOST: u64 = 72 << 10;

fn tuning(piece_memory: u64) -> Tuning {
    Tuning { map_memory: 8 << 20, checkpoint_log_bytes: 1 << 20, piece_bytes: 2 << 10, piece_memory, ..Tuning::default() }
}

fn check(rig: &Rig) {
    let memory = rig.engine.metrics().piece_memory;
    assert!(memory < MOST, "{memory} bytes are in memory");
}

/// Half of all blocks, at random.
fn half(version: u8) -> impl Iterator<Item = u64> {
    let mixed = move |i: u64| ((i << 8 | u64::from(version)).wrapping_mul(0x9e37_79b9_7f4a_7c15)) >> 40;
    (0..BLOCKS).map(|i| i * 2503 % BLOCKS).filter(move |i| mixed(*i) % 2 == 0)
}

/// A volume of which half of the blocks died in each of some snapshots.
fn aged(piece_memory: u64) -> (Rig, VolumeId, Vec<SnapshotId>) {
    let mut rig = Rig::with(&[640], Layout::Linear, tuning(piece_memory));
    let volume = rig.volume("disk0", BLOCKS * 4096, Compression::Off);
    assert_eq!(rig.write_blocks(Target::Head(volume), 0..BLOCKS, 0, 8), 0);
    let mut snapshots = Vec::new();
    for version in 1..=VERSIONS {
        snapshots.push(rig.snapshot(volume, &format!("s{version}")));
        let mut blocks = half(version).peekable();
        while blocks.peek().is_some() {
            assert_eq!(rig.write_blocks(Target::Head(volume), blocks.by_ref().take(500), version, 8), 0);
            if piece_memory == LIMIT {
                check(&rig);
            }
        }
    }
    rig.command(Command::Checkpoint).unwrap();
    rig.settle();
    (rig, volume, snapshots)
}

/// Turns until all that was destroyed is free.
fn free(rig: &mut Rig) {
    for _ in 0..100_000 {
        rig.step();
        check(rig);
        if rig.engine.metrics().reclaim_backlog == 0 {
            rig.settle();
            while rig.engine.pop_reply().is_some() {}
            return rig.audit();
        }
    }
    panic!("{}", rig.engine.space_report());
}

#[test]
fn lists_are_longer_than_memory() {
    let all = aged(u64::MAX).0.engine.metrics().piece_memory;
    assert!(all > 3 * MOST, "only {all} bytes are all there is");
    let (mut rig, volume, mut snapshots) = aged(LIMIT);
    rig.audit();
    // every second one: what died after it is split, and joined with what died before
    let every_second: Vec<SnapshotId> = snapshots.iter().skip(1).step_by(2).copied().collect();
    snapshots.retain(|id| !every_second.contains(id));
    rig.start(Command::DestroySnapshots { snapshots: every_second });
    free(&mut rig);
    rig.command(Command::Checkpoint).unwrap();
    let reads = rig.engine.metrics().piece_reads;
    assert!(reads > 20, "{reads} pieces were read");
    // what is in pieces is known without reading them
    let told = |rig: &Rig| rig.engine.snapshots().iter().map(|s| s.unique_bytes).collect::<Vec<_>>();
    let before = told(&rig);
    rig.reopen();
    check(&rig);
    assert_eq!((told(&rig), rig.engine.metrics().piece_reads), (before, 0));
    rig.audit();
    // a crash while they are freed
    let last = snapshots.pop().unwrap();
    rig.start(Command::DestroySnapshots { snapshots });
    for _ in 0..40 {
        rig.step();
        check(&rig);
    }
    rig.reopen();
    free(&mut rig);
    // the head's list goes with the volume, and nothing of it is read
    assert_eq!(rig.write_blocks(Target::Head(volume), half(99), 99, 8), 0);
    rig.command(Command::Checkpoint).unwrap();
    let reads = rig.engine.metrics().piece_reads;
    rig.command(Command::DestroyVolume { volume }).unwrap();
    assert_eq!(rig.engine.snapshots().iter().filter(|s| s.id == last).count(), 0);
    rig.settle();
    assert_eq!((rig.engine.metrics().piece_reads, rig.engine.metrics().piece_memory), (reads, 0));
    (0..3).for_each(|_| assert_eq!(rig.command(Command::Checkpoint), Ok(Reply::Done)));
    rig.audit();
    assert!(rig.engine.pool().unwrap().allocated < 1 << 20, "{:?}", rig.engine.pool());
}

/// What is in a piece that cannot be read is not freed, and nobody waits for it. It is tried again after a while.
#[test]
fn pieces_that_cannot_be_read_hold_nobody_up() {
    let (mut rig, volume, snapshots) = aged(LIMIT);
    rig.reopen();
    rig.unreadable = true;
    let all: Vec<SnapshotId> = snapshots.iter().skip(1).copied().collect();
    rig.command(Command::DestroySnapshots { snapshots: all }).unwrap();
    let metrics = rig.engine.metrics();
    assert!(metrics.piece_failures > 20 && metrics.reclaim_backlog > BLOCKS * 4096, "{metrics:?}");
    rig.command(Command::Checkpoint).unwrap();
    rig.unreadable = false;
    rig.audit();
    assert_eq!(rig.write_blocks(Target::Head(volume), 0..100, 77, 8), 0);
    let backlog = rig.engine.metrics().reclaim_backlog;
    assert!(backlog > BLOCKS * 4096, "it is not tried again at once");
    rig.now += 40_000;
    rig.settle();
    assert_eq!(rig.engine.metrics().reclaim_backlog, 0);
    rig.audit();
}
