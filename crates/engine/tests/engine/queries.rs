//! Queries of the map: which blocks hold data, which changed.

use millpond_block::{ByteRange, DiskError, Op, Query, Since, Tag};
use millpond_engine::{CatalogCommand, Compression, Layout, SnapshotId, Target, VolumeId};

use crate::harness::Harness;
use millpond_testing::Random;

const MIB: u64 = 1 << 20;

fn range(offset: u64, length: u64) -> ByteRange {
    ByteRange { offset, length }
}

fn write(harness: &mut Harness, volume: VolumeId, offset: u64, length: u64) {
    harness.request(Target::Head(volume), Op::Write, offset, length, &vec![0x5a; length as usize]).unwrap();
}

#[test]
fn data_and_holes_are_told_to_the_sector() {
    let mut harness = Harness::new(&[64], Layout::Linear);
    let volume = harness.volume("disk0", 1 << 40, Compression::Off);
    let head = Target::Head(volume);
    assert_eq!(harness.query(head, None, range(0, 1 << 40), 10), Ok(vec![(1 << 40, false)]), "an empty disk is one hole");
    write(&mut harness, volume, 8192, 512);
    write(&mut harness, volume, 3 * MIB, 64 << 10);
    let first = [(8192, false), (4096, true), (3 * MIB - 12288, false), (64 << 10, true)];
    let whole = [&first[..], &[((1 << 40) - 3 * MIB - (64 << 10), false)]].concat();
    assert_eq!(harness.query(head, None, range(0, 1 << 40), 10), Ok(whole));
    assert_eq!(harness.query(head, None, range(0, 1 << 40), 4), Ok(first.to_vec()), "no more than asked for");
    assert_eq!(harness.query(head, None, range(0, 1 << 40), 1), Ok(vec![(8192, false)]));
    assert_eq!(harness.query(head, None, range(8192 + 512, 1024), 10), Ok(vec![(1024, true)]));
    assert_eq!(harness.query(head, None, range(12288 - 512, 1024), 10), Ok(vec![(512, true), (512, false)]));
    assert_eq!(harness.query(head, None, range((1 << 40) - 512, 512), 10), Ok(vec![(512, false)]));
    assert_eq!(harness.query(head, None, range((1 << 40) - 512, 1024), 10), Err(DiskError::OutOfBounds));
    assert_eq!(harness.query(head, None, range(1, 512), 10), Err(DiskError::Invalid));
    assert_eq!(harness.query(head, None, range(0, 0), 10), Err(DiskError::Invalid));
    harness.request(head, Op::Discard, 0, 4 * MIB, &[]).unwrap();
    assert_eq!(harness.query(head, None, range(0, 8 * MIB), 10), Ok(vec![(8 * MIB, false)]));
}

#[test]
fn changes_since_a_snapshot_outlive_the_daemon_and_the_rollback() {
    let mut harness = Harness::new(&[64], Layout::Linear);
    let volume = harness.volume("disk0", 16 * MIB, Compression::Lz4);
    let head = Target::Head(volume);
    write(&mut harness, volume, 0, 16384);
    let a = harness.snapshot(volume, "a");
    let changes = |harness: &mut Harness, target, since| harness.query(target, Some(since), range(0, 16 * MIB), 100);
    assert_eq!(changes(&mut harness, head, a), Ok(vec![(16 * MIB, false)]));
    write(&mut harness, volume, 4096, 512);
    harness.request(head, Op::Discard, 12288, 4096, &[]).unwrap();
    harness.request(head, Op::WriteZeroes { may_unmap: true }, 8 * MIB, MIB, &[]).unwrap();
    let changed = vec![(4096, false), (4096, true), (4096, false), (4096, true), (16 * MIB - 16384, false)];
    assert_eq!(changes(&mut harness, head, a), Ok(changed.clone()), "zeroes over a hole change nothing, a discard does");
    harness.reopen();
    assert_eq!(changes(&mut harness, head, a), Ok(changed.clone()));
    let b = harness.snapshot(volume, "b");
    assert_eq!(changes(&mut harness, Target::Snapshot(b), a), Ok(changed.clone()), "between two snapshots");
    harness.command(CatalogCommand::Rollback { snapshot: a, keep_as: "old".into() }).unwrap();
    assert_eq!(changes(&mut harness, head, a), Ok(vec![(16 * MIB, false)]));
    assert_eq!(changes(&mut harness, head, b), Ok(changed));
    harness.command(CatalogCommand::DestroySnapshots { snapshots: vec![b] }).unwrap();
    assert_eq!(changes(&mut harness, head, b), Err(DiskError::Invalid), "what is gone cannot be compared with");
    assert_eq!(changes(&mut harness, Target::Snapshot(b), a), Err(DiskError::Shutdown));
    let size = 32 * MIB;
    harness.command(CatalogCommand::ResizeVolume { volume, size }).unwrap();
    write(&mut harness, volume, 24 * MIB, 4096);
    let grown = harness.query(head, Some(a), range(0, size), 100);
    assert_eq!(grown, Ok(vec![(24 * MIB, false), (4096, true), (8 * MIB - 4096, false)]));
}

/// If a query shows a hole, and the old data is back after the daemon's death, an incremental copy
/// is wrong (I10).
#[test]
fn what_is_being_discarded_is_a_hole_only_when_that_cannot_be_lost() {
    let mut harness = Harness::new(&[64], Layout::Linear);
    let volume = harness.volume("disk0", 16 * MIB, Compression::Off);
    let head = Target::Head(volume);
    write(&mut harness, volume, 0, MIB);
    harness.submit(head, Op::Discard, 0, MIB);
    harness.engine.query(head, Tag(1), Query { range: range(0, 4 * MIB), since: None, most: 9 });
    let mut held = Vec::new();
    for _ in 0..50 {
        harness.turn();
        held.extend(std::iter::from_fn(|| harness.engine.pop_io()));
        assert!(harness.engine.pop_answer().is_none(), "told while the record is on its way");
    }
    assert!(!held.is_empty());
    held.into_iter().for_each(|io| harness.perform(io));
    harness.settle();
    let runs = harness.engine.pop_answer().expect("an answer").result.expect("runs");
    assert_eq!(runs.iter().map(|run| (run.length, run.set)).collect::<Vec<_>>(), [(4 * MIB, false)]);
}

#[test]
fn a_long_answer_comes_in_parts_and_holds_nobody_up() {
    let mut harness = Harness::new(&[256], Layout::Linear);
    let volume = harness.volume("disk0", 128 * MIB, Compression::Off);
    let head = Target::Head(volume);
    (0..64).for_each(|leaf| write(&mut harness, volume, leaf * 2 * MIB, 4096));
    let all = range(0, 128 * MIB);
    assert_eq!(harness.query(head, None, all, 1000).map(|runs| runs.len()), Ok(128), "the nodes are in memory now");
    harness.engine.query(head, Tag(1), Query { range: all, since: None, most: 1000 });
    harness.turn();
    assert!(harness.engine.pop_answer().is_none(), "64 leaves in one turn");
    harness.submit(head, Op::Read, 4096, 4096);
    assert!(harness.engine.pop_completion().is_some(), "a hole is read meanwhile");
    harness.settle();
    assert!(harness.engine.pop_answer().is_some());
    harness.engine.query(head, Tag(2), Query { range: all, since: Some(Since(99)), most: 1 });
    assert_eq!(harness.engine.pop_answer().expect("an answer").result, Err(DiskError::Invalid));
}

/// Versions by block: 0 is a hole, every write makes a new version.
#[derive(Clone)]
struct Model {
    blocks: Vec<u32>,
    last: u32,
}

impl Model {
    fn runs(&self, since: Option<&Vec<u32>>, range: ByteRange) -> Vec<(u64, bool)> {
        let mut runs: Vec<(u64, bool)> = Vec::new();
        for sector in range.offset / 512..(range.offset + range.length) / 512 {
            let block = sector as usize / 8;
            let set = self.blocks[block] != since.map_or(0, |old| old[block]);
            match runs.last_mut() {
                Some(last) if last.1 == set => last.0 += 512,
                _ => runs.push((512, set)),
            }
        }
        runs
    }
}

/// Compares random writes, discards, snapshots, rollbacks and crashes with versions by block.
#[test]
fn queries_agree_with_a_list_of_versions() {
    const BLOCKS: u64 = 3000;
    let mut random = Random::new(1);
    let mut below = |most| random.below(most);
    let mut harness = Harness::new(&[192], Layout::Linear);
    let volume = harness.volume("disk0", BLOCKS * 4096, Compression::Off);
    let head = Target::Head(volume);
    let mut model = Model { blocks: vec![0; BLOCKS as usize], last: 0 };
    let mut kept: Vec<(SnapshotId, Vec<u32>)> = Vec::new();
    for step in 0..400 {
        let most = if below(4) == 0 { 900 } else { 12 };
        let (first, count) = (below(BLOCKS), 1 + below(most));
        let count = count.min(BLOCKS - first);
        let touched = first as usize..(first + count) as usize;
        match below(20) {
            0..=9 => {
                model.last += 1;
                write(&mut harness, volume, first * 4096, count * 4096);
                model.blocks[touched].fill(model.last);
            }
            10..=13 => {
                harness.request(head, Op::Discard, first * 4096, count * 4096, &[]).unwrap();
                model.blocks[touched].fill(0);
            }
            14..=15 => kept.push((harness.snapshot(volume, &format!("s{step}")), model.blocks.clone())),
            16 if !kept.is_empty() => {
                let (id, blocks) = kept[below(kept.len() as u64) as usize].clone();
                harness.command(CatalogCommand::Rollback { snapshot: id, keep_as: format!("r{step}") }).unwrap();
                model.blocks = blocks;
            }
            17 => harness.reopen(),
            _ => {}
        }
        let offset = below(BLOCKS * 8) * 512;
        let asked = range(offset, (1 + below(BLOCKS * 8 - offset / 512)) * 512);
        let old = if kept.is_empty() || below(3) == 0 { None } else { kept.get(below(kept.len() as u64) as usize) };
        let most = 1 + below(40) as usize;
        let answer = harness.query(head, old.map(|(id, _)| *id), asked, most).unwrap();
        let mut expected = model.runs(old.map(|(_, blocks)| blocks), asked);
        expected.truncate(most);
        assert_eq!(answer, expected, "step {step}: {asked:?} since {:?}", old.map(|(id, _)| id));
    }
}
