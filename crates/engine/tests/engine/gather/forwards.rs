//! Blocks that snapshots share are gathered, too, and keep their addresses (INV-FORWARD-1 to
//! INV-FORWARD-4).

use millpond_block::{Io, IoKind, MemberId, Op, Tag};
use millpond_engine::{
    CatalogCommand, Command, Compression, DeviceCommand, Gather, GroupSpec, Layout, Reply, SnapshotId, Target, Tuning, VolumeId,
};
use millpond_testing::Random;

use super::{BLOCK, BLOCKS, Disk, LEAF, METADATA, SIZE, STEP, content, tuning};
use crate::harness::Harness;

/// A scattered volume in a pool with the feature.
fn scattered(tuning: Tuning) -> Disk {
    let mut disk = Disk::scattered(tuning);
    disk.harness.command(DeviceCommand::TurnFeaturesOn).unwrap();
    disk
}

/// Content of a block; number 0: it was discarded.
fn expected(block: u64, number: u64) -> Vec<u8> {
    if number == 0 { vec![0; BLOCK as usize] } else { content(block, number) }
}

impl Disk {
    /// Reads a version in long reads.
    fn check(&mut self, version: Target, numbers: &[u64]) {
        for at in (0..SIZE).step_by(STEP as usize) {
            let read = self.harness.request(version, Op::Read, at, STEP, &[]).unwrap();
            let blocks = at / BLOCK..(at + STEP) / BLOCK;
            let wanted: Vec<u8> = blocks.flat_map(|block| expected(block, numbers[block as usize])).collect();
            assert!(read == wanted, "{version:?} at {at}");
        }
    }

    fn allocated(&self) -> u64 {
        self.harness.engine.pool().unwrap().allocated
    }

    fn destroy(&mut self, snapshots: Vec<SnapshotId>) {
        self.harness.command(CatalogCommand::DestroySnapshots { snapshots }).unwrap();
        self.pause();
    }
}

#[test]
fn shared_blocks_are_gathered_and_no_snapshot_grows() {
    let mut disk = scattered(tuning());
    let mut snapshots = Vec::new();
    for name in ["a", "b", "c"] {
        snapshots.push((disk.harness.snapshot(disk.volume, name), disk.numbers.clone()));
        disk.write((0..BLOCKS).step_by(97));
    }
    disk.rest();
    let diff = |disk: &mut Disk, older| {
        let newer = Target::Head(disk.volume);
        disk.harness.engine.start_diff(Tag(9), Some(Target::Snapshot(older)), newer);
        disk.harness.settle();
        disk.harness.engine.pop_diff().unwrap().1.unwrap()
    };
    let diffs: Vec<_> = snapshots.iter().map(|(id, _)| diff(&mut disk, *id)).collect();
    let (before, listed, volumes) = (disk.allocated(), disk.harness.engine.snapshots(), disk.harness.engine.volumes());
    assert!(disk.scan() > 1000, "the blocks are not scattered");
    disk.scan_until(SIZE);
    let reads = disk.scan();
    assert!((100..120).contains(&reads), "{reads} device reads for 100 long ones");
    disk.rest();
    assert_eq!((disk.harness.engine.snapshots(), disk.harness.engine.volumes()), (listed, volumes));
    let after = disk.allocated();
    assert!(after <= before + 2 * METADATA, "{before} bytes became {after}");
    assert_eq!(snapshots.iter().map(|(id, _)| diff(&mut disk, *id)).collect::<Vec<_>>(), diffs);
    disk.harness.audit();
    for _ in 0..20 {
        disk.scan();
    }
    assert_eq!(disk.gathered(), SIZE, "what is in order stays where it is");
    for crash in [true, false] {
        if !crash {
            disk.rest();
        }
        disk.harness.reopen();
        disk.scan();
        for (id, numbers) in &snapshots {
            disk.check(Target::Snapshot(*id), numbers);
        }
        disk.harness.audit();
    }
    disk.destroy(snapshots.into_iter().map(|(id, _)| id).collect());
    disk.rest();
    assert!(disk.allocated() < before, "{before} bytes became {}", disk.allocated());
    disk.scan();
    disk.harness.audit();
}

#[test]
fn a_crash_replays_forwards() {
    let mut disk = scattered(tuning());
    let snapshot = disk.harness.snapshot(disk.volume, "s");
    let old = disk.numbers.clone();
    disk.scan_until(SIZE);
    disk.write([3, 700, 5].into_iter());
    for _ in 0..2 {
        disk.harness.reopen();
        assert!(disk.scan() < 130);
        disk.check(Target::Snapshot(snapshot), &old);
        disk.harness.audit();
    }
}

#[test]
fn a_torn_batch_of_forwards_leaves_the_blocks_where_they_were() {
    for pages in [0, 1, 5, 100] {
        let mut disk = scattered(tuning());
        let snapshot = disk.harness.snapshot(disk.volume, "s");
        disk.tear_gathered_batch(pages);
        disk.scan();
        let numbers = disk.numbers.clone();
        disk.check(Target::Snapshot(snapshot), &numbers);
        disk.harness.audit();
    }
}

#[test]
fn whatever_happens_before_forwards_are_made_wins() {
    for nth in 0..5 {
        let mut disk = scattered(tuning());
        let first = disk.harness.snapshot(disk.volume, "first");
        let old = disk.numbers.clone();
        let held = disk.begin_gathering();
        match nth {
            0 => (0..LEAF).for_each(|block| {
                disk.numbers[block as usize] += 1;
                disk.harness.write(disk.head(), block * BLOCK, &content(block, disk.numbers[block as usize]));
                disk.answer();
            }),
            1 => drop(disk.harness.snapshot(disk.volume, "now")),
            2 => drop(disk.harness.command(CatalogCommand::Rollback { snapshot: first, keep_as: "kept".into() }).unwrap()),
            3 => {
                disk.harness.submit(disk.head(), Op::Discard, 0, SIZE);
                disk.answer();
                disk.numbers.fill(0);
                disk.harness.start(Command::Catalog(CatalogCommand::DestroySnapshots { snapshots: vec![first] }));
            }
            _ => {}
        }
        disk.perform(held);
        while disk.harness.engine.pop_reply().is_some() {}
        for _ in 0..2 {
            let numbers = disk.numbers.clone();
            disk.check(disk.head(), &numbers);
            if nth != 3 {
                disk.check(Target::Snapshot(first), &old);
            }
            disk.pause();
            disk.harness.audit();
            disk.harness.reopen();
        }
    }
}

/// A pool whose cleaner works, and versions of its volume.
struct Versions {
    disk: Disk,
    snapshots: Vec<(SnapshotId, Vec<u64>)>,
    named: u64,
    random: Random,
    /// Bytes that were gathered, and moved by the cleaner, before the last import.
    before: (u64, u64),
}

impl Versions {
    /// Bytes that were gathered, and moved by the cleaner.
    fn work(&self) -> (u64, u64) {
        let metrics = self.disk.harness.engine.metrics();
        (self.before.0 + metrics.gathered_bytes, self.before.1 + metrics.cleaner_bytes)
    }

    fn step(&mut self) {
        let volume = self.disk.volume;
        match self.random.below(24) {
            0..4 => {
                let blocks: Vec<u64> = (0..1 + self.random.below(400)).map(|_| self.random.below(BLOCKS)).collect();
                self.disk.write(blocks.into_iter());
            }
            4..9 => {
                let numbers = self.disk.numbers.clone();
                self.disk.check(Target::Head(volume), &numbers);
                self.disk.pause();
            }
            9..11 if self.snapshots.len() < 5 => {
                self.named += 1;
                let id = self.disk.harness.snapshot(volume, &format!("s{}", self.named));
                self.snapshots.push((id, self.disk.numbers.clone()));
            }
            9..12 if !self.snapshots.is_empty() => {
                let at = self.random.index(self.snapshots.len());
                let (id, _) = self.snapshots.swap_remove(at);
                self.disk.harness.command(CatalogCommand::DestroySnapshots { snapshots: vec![id] }).unwrap();
            }
            12 => {
                let first = self.random.below(BLOCKS);
                let count = (1 + self.random.below(100)).min(BLOCKS - first);
                self.disk.harness.request(Target::Head(volume), Op::Discard, first * BLOCK, count * BLOCK, &[]).unwrap();
                self.disk.numbers[first as usize..(first + count) as usize].fill(0);
            }
            13 if self.snapshots.len() < 5 => {
                let Some((id, numbers)) = self.random.pick(self.snapshots.iter()).cloned() else { return };
                self.named += 1;
                let keep_as = format!("s{}", self.named);
                self.disk.harness.command(CatalogCommand::Rollback { snapshot: id, keep_as: keep_as.clone() }).unwrap();
                let kept = self.disk.harness.engine.snapshots().into_iter().find(|snapshot| snapshot.name == keep_as).unwrap();
                self.snapshots.push((kept.id, std::mem::replace(&mut self.disk.numbers, numbers)));
            }
            14..16 => {
                let Some((id, numbers)) = self.random.pick(self.snapshots.iter()).cloned() else { return };
                self.disk.check(Target::Snapshot(id), &numbers);
            }
            16 => {
                self.before = self.work();
                self.disk.harness.reopen();
            }
            17 => drop(self.disk.harness.command(Command::Checkpoint).unwrap()),
            _ => self.disk.pause(),
        }
    }

    fn check_all(&mut self) {
        for _ in 0..4 {
            self.disk.pause();
        }
        for (id, numbers) in self.snapshots.clone() {
            self.disk.check(Target::Snapshot(id), &numbers);
        }
        self.disk.harness.audit();
    }
}

#[test]
fn versions_stay_what_they_are() {
    for seed in 0..3 {
        let gather = Gather { after_reads: 64, ..Gather::default() };
        let tuning = Tuning { gather, ..tuning() };
        let harness = Harness::with_extents(&[68], vec![GroupSpec::data(Layout::Linear)], tuning, Some(1 << 20));
        let mut disk = Disk::on(harness, Compression::Off);
        disk.harness.command(DeviceCommand::TurnFeaturesOn).unwrap();
        disk.scatter(0..BLOCKS);
        let mut versions = Versions { disk, snapshots: Vec::new(), named: 0, random: Random::new(seed), before: (0, 0) };
        for step in 0..400 {
            versions.step();
            if step % 50 == 49 {
                versions.check_all();
            }
        }
        let all = versions.snapshots.drain(..).map(|(id, _)| id).collect();
        versions.disk.destroy(all);
        versions.disk.rest();
        versions.check_all();
        let (gathered, moved) = versions.work();
        assert!(gathered > SIZE && moved > SIZE / 4, "seed {seed}: {gathered} bytes gathered, {moved} moved");
        let allocated = versions.disk.allocated();
        assert!(allocated <= SIZE + 8 * METADATA, "{allocated} bytes for a volume of {SIZE}");
    }
}

/// INV-FORWARD-5.
#[test]
fn volumes_that_share_blocks_do_not_take_them_from_each_other() {
    let mut disk = scattered(tuning());
    let snapshot = disk.harness.snapshot(disk.volume, "s");
    let clone = CatalogCommand::Clone { snapshot, name: "clone".into() };
    let Reply::Volume(clone) = disk.harness.command(clone).unwrap() else { panic!("no clone") };
    let mut other = (clone, disk.numbers.clone());
    let swap = |disk: &mut Disk, other: &mut (VolumeId, Vec<u64>)| {
        std::mem::swap(&mut disk.volume, &mut other.0);
        std::mem::swap(&mut disk.numbers, &mut other.1);
    };
    for part in 0..2 {
        disk.scatter((0..BLOCKS).filter(|block| block % 4 == part));
        swap(&mut disk, &mut other);
    }
    let mut gathered = Vec::new();
    for _ in 0..40 {
        disk.scan();
        disk.pause();
        swap(&mut disk, &mut other);
        gathered.push(disk.gathered());
    }
    assert!((SIZE..=SIZE * 2).contains(&gathered[39]), "{gathered:?}");
    assert_eq!(gathered[20], gathered[39], "it ends: {gathered:?}");
    // what it was cloned from belongs to it after its promotion
    disk.harness.command(CatalogCommand::Promote { volume: clone, dry_run: false }).unwrap();
    for _ in 0..80 {
        disk.scan();
        disk.pause();
        swap(&mut disk, &mut other);
        gathered.push(disk.gathered());
    }
    assert!(gathered[119] > gathered[39], "{gathered:?}");
    assert_eq!(gathered[90], gathered[119], "it ends: {gathered:?}");
    disk.harness.audit();
    disk.harness.reopen();
    disk.scan();
    swap(&mut disk, &mut other);
    disk.scan();
    disk.harness.audit();
}

/// A slot that a forward leads to is freed without a record, its chunk moved without it, and then the
/// daemon ends: until the next import has freed the slot again, its forward leads nowhere.
#[test]
fn a_crash_between_a_free_and_a_checkpoint_may_leave_a_forward_behind() {
    let tuning = Tuning { checkpoint_log_bytes: 1 << 30, ..tuning() };
    let harness = Harness::with_extents(&[64, 64], vec![GroupSpec::data(Layout::Linear)], tuning, Some(1 << 20));
    let mut disk = Disk::on(harness, Compression::Off);
    disk.harness.command(DeviceCommand::TurnFeaturesOn).unwrap();
    disk.scatter(0..BLOCKS);
    let snapshot = disk.harness.snapshot(disk.volume, "s");
    disk.scan_until(SIZE);
    disk.rest();
    disk.write((0..BLOCKS).filter(|block| block % 2 == 0));
    disk.destroy(vec![snapshot]);
    disk.harness.start(Command::Devices(DeviceCommand::Remove { member: MemberId(0), dry_run: false }));
    let (mut held, mut audits): (Vec<Io>, u64) = (Vec::new(), 0);
    for _ in 0..2_000 {
        for io in std::mem::take(&mut held) {
            let is_write = matches!(io.kind, IoKind::Write { .. });
            disk.harness.perform(io);
            let tuning = Tuning { read_only: true, ..disk.harness.tuning.clone() };
            // once the device is removed, it cannot be imported any more
            if is_write && let Ok(mut now) = Harness::import_with(disk.harness.media.clone(), tuning, disk.harness.now) {
                now.audit();
                audits += 1;
            }
        }
        disk.harness.turn();
        held.extend(std::iter::from_fn(|| disk.harness.engine.pop_io()));
        if held.is_empty() {
            disk.harness.now += 100;
        }
    }
    assert!(audits > 20, "{audits} audits");
    disk.scan();
    disk.pause();
    disk.harness.audit();
}
