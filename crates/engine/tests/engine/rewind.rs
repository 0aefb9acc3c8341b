//! Restore points of a pool: which are complete, and rewinding to them.

use std::collections::BTreeMap;

use millpond_block::Op;
use millpond_engine::{
    Aim, Busy, CatalogCommand, Command, CommandError, Compression, Fault, Layout, OpenErrorKind, PoolState, Surveyed, Target, Tuning,
    VolumeId, Whole,
};

use crate::harness::Harness;

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 1024;
const AREA: usize = 1 << 20;
const RING: usize = 64 << 10;

/// Block to version.
type Content = BTreeMap<u64, u64>;

fn bytes(version: u64) -> Vec<u8> {
    if version == 0 { vec![0; 4096] } else { version.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes().repeat(512) }
}

/// A pool with a volume, and its content at each checkpoint.
struct Past {
    harness: Harness,
    volume: VolumeId,
    content: Content,
    stamp: u64,
    /// By generation.
    states: BTreeMap<u64, Content>,
}

impl Past {
    fn new(sizes: &[usize], layout: Layout) -> Past {
        let mut harness = Harness::new(sizes, layout);
        let volume = harness.volume("disk", BLOCKS * BLOCK, Compression::Off);
        Past { harness, volume, content: Content::new(), stamp: 0, states: BTreeMap::new() }
    }

    /// Writes some blocks at various places.
    fn write(&mut self, count: u64) {
        for _ in 0..count {
            self.stamp += 1;
            let block = self.stamp.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            let block = block % BLOCKS;
            self.harness.request(Target::Head(self.volume), Op::Write, block * BLOCK, BLOCK, &bytes(self.stamp)).unwrap();
            self.content.insert(block, self.stamp);
        }
    }

    /// Writes a checkpoint and records the content.
    fn checkpoint(&mut self) -> u64 {
        self.harness.command(Command::Checkpoint).unwrap();
        let newest = Harness::survey(&self.harness.media).unwrap().points[0].id;
        self.states.insert(newest, self.content.clone());
        newest
    }

    /// Imports again with another aim.
    fn import(&mut self, aim: Aim) -> Result<(), String> {
        let tuning = Tuning { aim, ..self.harness.tuning.clone() };
        let mut harness = Harness::import_with(self.harness.media.clone(), tuning, self.harness.now + 1_000)?;
        harness.tuning.aim = Aim::Newest;
        self.harness = harness;
        Ok(())
    }

    fn verify(&mut self, content: &Content) {
        for start in (0..BLOCKS).step_by(64) {
            let got = self.harness.request(Target::Head(self.volume), Op::Read, start * BLOCK, 64 * BLOCK, &[]).unwrap();
            for (at, here) in (start..).zip(got.chunks_exact(4096)) {
                let version = content.get(&at).copied().unwrap_or(0);
                assert!(here == bytes(version), "block {at} is not version {version}");
            }
        }
        self.content.clone_from(content);
    }
}

fn whole(surveyed: &Surveyed) -> Vec<u64> {
    surveyed.points.iter().filter(|p| p.whole == Whole::Yes).map(|p| p.id).collect()
}

/// Overwrites all copies of a root.
fn spoil_root(media: &mut [Vec<u8>], generation: u64) {
    let slot = RING + (generation % 128) as usize * 4096;
    for device in media {
        let second = (device.len() / AREA - 1) * AREA;
        for area in [0, second] {
            device[area + slot..area + slot + 4096].fill(0xa5);
        }
    }
}

#[test]
fn restore_points_tell_what_would_be_lost() {
    let mut past = Past::new(&[64], Layout::Linear);
    past.write(300);
    let first = past.checkpoint();
    past.write(200);
    let second = past.checkpoint();
    past.write(50);
    let surveyed = Harness::survey(&past.harness.media).unwrap();
    let point = |id| surveyed.points.iter().find(|p| p.id == id).unwrap().clone();
    assert_eq!(surveyed.points[0].id, second);
    assert_eq!((surveyed.after, surveyed.log_damaged), (50 * BLOCK, false));
    assert_eq!(point(second).written.unwrap() - point(first).written.unwrap(), 200 * BLOCK);
    assert!(point(first).copies == 2 && whole(&surveyed).len() == surveyed.points.len(), "{surveyed:#?}");
}

#[test]
fn every_whole_point_is_what_it_was_and_what_came_later_does_not_come_back() {
    let parity = Layout::Parity { width: 16, parity: 1, unit: 65536 };
    let pools = [(&[48][..], Layout::Linear, 4), (&[48, 48], Layout::Mirror { copies: 2 }, 4), (&[48, 48, 48], parity, 0)];
    for (sizes, layout, least) in pools {
        let mut past = Past::new(sizes, layout);
        for _ in 0..6 {
            past.write(150);
            past.checkpoint();
        }
        past.write(70);
        let media = past.harness.media.clone();
        let states = past.states.clone();
        let points = whole(&Harness::survey(&media).unwrap());
        let tried: Vec<u64> = points.into_iter().filter(|id| states.contains_key(id)).collect();
        assert!(tried.len() >= least, "{tried:?}");
        for id in tried {
            past.harness.media.clone_from(&media);
            past.import(Aim::To(id)).unwrap();
            let state = states[&id].clone();
            past.verify(&state);
            past.harness.audit();
            // after a crash at once, and after one with writes, nothing of the discarded state
            // comes back
            past.import(Aim::Newest).unwrap();
            past.verify(&state);
            past.write(120);
            past.import(Aim::Newest).unwrap();
            let state = past.content.clone();
            past.verify(&state);
            past.harness.audit();
            past.checkpoint();
            past.write(400);
            past.checkpoint();
            past.import(Aim::Newest).unwrap();
            let state = past.content.clone();
            past.verify(&state);
            past.harness.audit();
        }
    }
}

#[test]
fn a_crash_before_the_rewind_holds_leaves_everything() {
    let mut past = Past::new(&[48], Layout::Linear);
    past.write(300);
    let old = past.checkpoint();
    past.write(300);
    past.checkpoint();
    past.write(40);
    let before = past.harness.media.clone();
    past.import(Aim::To(old)).unwrap();
    let after = past.harness.media.clone();
    // until the root is written, only its slot in the ring has changed
    let slot = Harness::survey(&after).unwrap().points[0].id as usize % 128 * 4096 + RING;
    let second = (after[0].len() / AREA - 1) * AREA;
    let changed = (0..after[0].len()).step_by(4096).filter(|at| before[0][*at..at + 4096] != after[0][*at..at + 4096]);
    assert_eq!(changed.collect::<Vec<_>>(), [slot, second + slot]);
    past.harness.media = before;
    past.import(Aim::Newest).unwrap();
    let state = past.content.clone();
    past.verify(&state);
}

#[test]
fn a_damaged_root_refuses_the_import_and_a_rewind_loses_nothing_of_a_sound_log() {
    let mut past = Past::new(&[48], Layout::Linear);
    past.write(300);
    past.checkpoint();
    past.write(100);
    let newest = past.checkpoint();
    past.write(30);
    let content = past.content.clone();
    spoil_root(&mut past.harness.media, newest);
    let refused = past.import(Aim::Newest).unwrap_err();
    assert!(refused.contains("damaged"), "{refused}");
    // the log continues from the checkpoint before it: nothing is lost
    past.import(Aim::Rewind).unwrap();
    past.verify(&content);
    past.harness.audit();
    past.write(10);
    past.import(Aim::Newest).unwrap();
    let content = past.content.clone();
    past.verify(&content);
}

/// Blocks and nodes are not examined before a rewind: when the log cannot be replayed because of a
/// missing node, the rewind goes back to the checkpoint before.
#[test]
fn a_rewind_that_meets_a_damaged_node_goes_back_further() {
    let mut past = Past::new(&[24], Layout::Linear);
    past.write(200);
    past.checkpoint();
    let (before, content) = (past.harness.media[0].clone(), past.content.clone());
    past.write(200);
    past.checkpoint();
    let after = past.harness.media[0].clone();
    past.write(50);
    let newest = past.harness.media[0].clone();
    let tuning = past.harness.tuning.clone();
    for aim in [Aim::Rewind, Aim::Rebuild] {
        let mut fell_back = 0;
        for at in (AREA..after.len() - AREA).step_by(4096).filter(|at| before[*at..at + 4096] != after[*at..at + 4096]) {
            let mut media = newest.clone();
            media[at + 2048] ^= 1;
            let import = |aim| Harness::import_with(vec![media.clone()], Tuning { aim, ..tuning.clone() }, past.harness.now + 1_000);
            let Err(why) = import(Aim::Newest) else { continue };
            if !why.contains("map node") {
                continue;
            }
            fell_back += 1;
            past.harness = import(aim).unwrap();
            past.harness.tuning.aim = Aim::Newest;
            let reason = past.harness.engine.pool().unwrap().fell_back;
            assert!(reason.as_ref().is_some_and(|why| why.contains("map node")), "{reason:?}");
            past.verify(&content);
            past.harness.audit();
            // nothing of the discarded state comes back
            past.import(Aim::Newest).unwrap();
            assert_eq!(past.harness.engine.pool().unwrap().fell_back, None);
            past.verify(&content);
            past.write(60);
            past.import(Aim::Newest).unwrap();
            past.checkpoint();
            past.import(Aim::Newest).unwrap();
            let state = past.content.clone();
            past.verify(&state);
            past.harness.audit();
        }
        assert!(fell_back > 0, "{aim:?}");
    }
}

/// Data that a device cannot read now does not count as damaged: a rewind does not go further back
/// because of it.
#[test]
fn a_rewind_is_refused_where_a_device_fails() {
    let mut past = Past::new(&[24], Layout::Linear);
    past.write(200);
    past.checkpoint();
    let before = past.harness.media[0].clone();
    past.write(200);
    past.checkpoint();
    let after = past.harness.media[0].clone();
    past.write(50);
    let (newest, content) = (past.harness.media[0].clone(), past.content.clone());
    let tuning = Tuning { aim: Aim::Rewind, ..past.harness.tuning.clone() };
    let mut refused = 0;
    for at in (AREA..after.len() - AREA).step_by(4096).filter(|at| before[*at..at + 4096] != after[*at..at + 4096]) {
        let mut harness = Harness::begin_import(vec![newest.clone()], tuning.clone(), past.harness.now + 1_000);
        harness.bad = Some((0, at as u64 + 2048));
        harness.settle();
        match harness.engine.state() {
            PoolState::Faulted(why) => {
                refused += u32::from(matches!(why, Fault::Open(error) if matches!(error.kind, OpenErrorKind::NodeUnreadable(_))))
            }
            _ => assert_eq!(harness.engine.pool().unwrap().fell_back, None, "page {at:#x}"),
        }
    }
    assert!(refused > 0, "no node was asked for");
    // the device works again, and nothing was lost
    past.import(Aim::Rewind).unwrap();
    past.verify(&content);
}

/// If there is no checkpoint before it, there is nothing to go back to.
#[test]
fn a_rewind_that_meets_damage_in_the_only_checkpoint_names_the_node() {
    let mut past = Past::new(&[24], Layout::Linear);
    past.harness.tuning.rewind_millis = 0;
    past.import(Aim::Newest).unwrap();
    let before = past.harness.media[0].clone();
    past.write(200);
    let only = past.checkpoint();
    let after = past.harness.media[0].clone();
    past.write(50);
    let points = Harness::survey(&past.harness.media).unwrap().points;
    points.iter().filter(|point| point.id != only).for_each(|point| spoil_root(&mut past.harness.media, point.id));
    let newest = past.harness.media[0].clone();
    let mut named = 0;
    for at in (AREA..after.len() - AREA).step_by(4096).filter(|at| before[*at..at + 4096] != after[*at..at + 4096]) {
        let mut media = newest.clone();
        media[at + 2048] ^= 1;
        let Err(why) =
            Harness::import_with(vec![media], Tuning { aim: Aim::Rewind, ..past.harness.tuning.clone() }, past.harness.now + 1_000)
        else {
            continue;
        };
        assert!(why.contains("no older checkpoint is whole") || !why.contains("map node"), "page {at:#x}: {why}");
        named += u32::from(why.contains("map node"));
    }
    assert!(named > 0);
}

#[test]
fn a_batch_that_is_gone_ends_the_log_of_a_rewind() {
    let mut past = Past::new(&[48], Layout::Linear);
    past.write(300);
    past.checkpoint();
    past.write(10);
    let state = past.content.clone();
    let before = past.harness.media.clone();
    past.write(1);
    let lost = (AREA..before[0].len() - AREA).step_by(4096).find(|at| before[0][*at..at + 4096] != past.harness.media[0][*at..at + 4096]);
    past.write(10);
    past.harness.request(Target::Head(past.volume), Op::Flush, 0, 0, &[]).unwrap();
    past.write(10);
    let at = lost.unwrap();
    past.harness.media[0][at..at + 4096].fill(0x11);
    let refused = past.import(Aim::Newest).unwrap_err();
    assert!(refused.contains("is gone"), "{refused}");
    let surveyed = Harness::survey(&past.harness.media).unwrap();
    assert!(surveyed.log_damaged && surveyed.after == 10 * BLOCK, "{surveyed:?}");
    past.import(Aim::Rewind).unwrap();
    past.verify(&state);
    past.write(25);
    past.import(Aim::Newest).unwrap();
    let state = past.content.clone();
    past.verify(&state);
    past.harness.audit();
}

#[test]
fn points_whose_segments_were_used_again_are_not_whole() {
    let mut past = Past::new(&[24], Layout::Linear);
    past.harness.tuning.rewind_millis = 0;
    past.import(Aim::Newest).unwrap();
    past.write(200);
    let old = past.checkpoint();
    for _ in 0..12 {
        past.write(900);
        past.checkpoint();
    }
    let surveyed = Harness::survey(&past.harness.media).unwrap();
    let point = surveyed.points.iter().find(|p| p.id == old).unwrap();
    assert!(!point.is_usable(), "{point:?}");
    let refused = past.import(Aim::To(old)).unwrap_err();
    assert!(refused.contains("is not whole"), "{refused}");
    // and the points reported as complete are
    let (media, states) = (past.harness.media.clone(), past.states.clone());
    for id in whole(&surveyed).into_iter().filter(|id| states.contains_key(id)) {
        past.harness.media.clone_from(&media);
        past.import(Aim::To(id)).unwrap();
        past.verify(&states[&id].clone());
    }
}

/// The oldest restore point that the engine reports, and all later ones, are whole; with retention
/// there are more of them.
#[test]
fn the_reported_oldest_restore_point_is_whole() {
    let reported = |millis: u64| {
        let mut past = Past::new(&[64], Layout::Linear);
        past.harness.tuning.rewind_millis = millis;
        let imported = past.harness.now;
        past.import(Aim::Newest).unwrap();
        let mut counts = Vec::new();
        for _ in 0..8 {
            past.write(900);
            past.checkpoint();
            let metrics = past.harness.engine.metrics();
            let (oldest, last) = (metrics.oldest_restore_point.unwrap(), metrics.last_checkpoint.unwrap());
            assert!(oldest <= last && last.0 <= past.harness.now && oldest.0 >= imported, "{oldest:?} {last:?}");
            let surveyed = Harness::survey(&past.harness.media).unwrap();
            let later: Vec<_> = surveyed.points.iter().filter(|point| point.time >= oldest).collect();
            assert!(later.iter().all(|point| point.whole == Whole::Yes), "{oldest:?}: {later:#?}");
            counts.push(later.len());
        }
        counts.into_iter().max().unwrap()
    };
    let (without, with) = (reported(0), reported(u64::MAX));
    assert!(without >= 1 && with > without, "{without} without retention, {with} with it");
}

#[test]
fn freed_segments_rest_for_the_time_of_a_rewind() {
    let retained = |millis: u64| {
        let mut past = Past::new(&[256], Layout::Linear);
        past.harness.tuning.rewind_millis = millis;
        past.import(Aim::Newest).unwrap();
        past.write(1_000);
        let old = past.checkpoint();
        for _ in 0..6 {
            past.write(300);
            past.checkpoint();
        }
        let surveyed = Harness::survey(&past.harness.media).unwrap();
        surveyed.points.iter().find(|p| p.id == old).unwrap().whole.clone()
    };
    assert_eq!(retained(u64::MAX), Whole::Yes);
    assert!(matches!(retained(0), Whole::No(_) | Whole::WithLog(_)));
}

#[test]
fn a_pool_that_is_only_read_is_never_written_to() {
    for (sizes, layout) in [(&[48][..], Layout::Linear), (&[48, 48], Layout::Mirror { copies: 2 })] {
        let mut past = Past::new(sizes, layout);
        past.write(300);
        let old = past.checkpoint();
        let snapshot = past.harness.snapshot(past.volume, "kept");
        past.write(300);
        let (media, now, content) = (past.harness.media.clone(), past.harness.now, past.content.clone());
        for aim in [Aim::Newest, Aim::Rewind, Aim::To(old)] {
            let tuning = Tuning { read_only: true, aim, ..past.harness.tuning.clone() };
            let mut harness = Harness::import_with(media.clone(), tuning, now + 1).unwrap();
            assert!(harness.engine.pool().unwrap().read_only);
            let head = Target::Head(past.volume);
            assert!(harness.engine.geometry(head).unwrap().1.read_only);
            assert!(harness.request(head, Op::Write, 0, BLOCK, &bytes(1)).is_err());
            assert!(harness.request(head, Op::Discard, 0, BLOCK, &[]).is_err());
            harness.request(head, Op::Flush, 0, 0, &[]).unwrap();
            let refused = harness.command(CatalogCommand::DestroySnapshots { snapshots: vec![snapshot] }).unwrap_err();
            assert_eq!(refused, CommandError::Busy(Busy::ReadOnly));
            let state = if aim == Aim::To(old) { past.states[&old].clone() } else { content.clone() };
            for (block, version) in &state {
                assert!(harness.request(head, Op::Read, block * BLOCK, BLOCK, &[]).unwrap() == bytes(*version), "block {block}");
            }
            // after some time it ends
            harness.now += 3_600_000;
            harness.settle();
            harness.command(Command::Close).unwrap();
            assert_eq!(*harness.engine.state(), PoolState::Closed);
            assert!(harness.media == media, "a device was written to");
        }
    }
}

#[test]
fn a_pool_without_any_root_is_rebuilt_with_its_log() {
    for (sizes, layout) in [(&[48][..], Layout::Linear), (&[48, 48], Layout::Mirror { copies: 2 })] {
        let mut past = Past::new(sizes, layout);
        for _ in 0..4 {
            past.write(150);
            past.checkpoint();
        }
        past.write(70);
        let content = past.content.clone();
        for device in &mut past.harness.media {
            let second = (device.len() / AREA - 1) * AREA;
            for area in [0, second] {
                device[area + RING..area + RING + 128 * 4096].fill(0xa5);
            }
        }
        let refused = past.import(Aim::Newest).unwrap_err();
        assert!(refused.contains("no root"), "{refused}");
        past.import(Aim::Rebuild).unwrap();
        past.verify(&content);
        past.harness.audit();
        // it is an ordinary pool again
        past.import(Aim::Newest).unwrap();
        past.verify(&content);
        past.write(30);
        past.import(Aim::Newest).unwrap();
        for _ in 0..4 {
            past.write(40);
            past.checkpoint();
            past.import(Aim::Newest).unwrap();
        }
        let content = past.content.clone();
        past.verify(&content);
        past.harness.audit();
    }
}

#[test]
fn a_rebuild_that_does_not_come_to_its_root_leaves_a_pool_that_is_refused() {
    let mut past = Past::new(&[48], Layout::Linear);
    past.write(300);
    past.checkpoint();
    past.write(50);
    let content = past.content.clone();
    past.harness.media[0][RING..RING + 128 * 4096].fill(0xa5);
    let second = (past.harness.media[0].len() / AREA - 1) * AREA;
    past.harness.media[0][second + RING..second + RING + 128 * 4096].fill(0xa5);
    let broken = past.harness.media.clone();
    past.import(Aim::Rebuild).unwrap();
    let newest = Harness::survey(&past.harness.media).unwrap().points[0].id;
    // the rings are new, but the new root is not written yet
    [newest, newest - 1].into_iter().for_each(|generation| spoil_root(&mut past.harness.media, generation));
    let mut halfway = broken;
    for area in [0, second] {
        let ring = area + RING..area + RING + 128 * 4096;
        halfway[0][ring.clone()].clone_from_slice(&past.harness.media[0][ring]);
    }
    past.harness.media = halfway;
    let refused = past.import(Aim::Newest).unwrap_err();
    assert!(refused.contains("damaged"), "{refused}");
    past.import(Aim::Rebuild).unwrap();
    past.verify(&content);
}

#[test]
fn a_rewind_of_a_pool_that_uses_segments_again_at_once_replays_its_log() {
    let parity = Layout::Parity { width: 16, parity: 1, unit: 65536 };
    for (sizes, layout) in [(&[48, 48, 48][..], parity), (&[24], Layout::Linear)] {
        let mut past = Past::new(sizes, layout);
        for _ in 0..6 {
            past.write(600);
            past.checkpoint();
        }
        past.write(400);
        let content = past.content.clone();
        past.import(Aim::Rewind).unwrap();
        past.verify(&content);
        past.harness.audit();
        past.import(Aim::Newest).unwrap();
        past.verify(&content);
    }
}
