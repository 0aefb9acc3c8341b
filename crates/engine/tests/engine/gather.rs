//! Blocks that guests read together and that lie apart are written next to each other.

use millpond_block::{Io, IoKind, Op, Tag};
use millpond_engine::{CatalogCommand, Command, Compression, Gather, GroupSpec, JobCommand, Layout, Reply, Target, Tuning, VolumeId, Wipe};
use millpond_testing::Random;

use crate::harness::Harness;

mod forwards;

const BLOCK: u64 = 4096;
const SIZE: u64 = 4 << 20;
const BLOCKS: u64 = SIZE / BLOCK;
/// Bytes of a long read.
const STEP: u64 = 64 << 10;
/// Bytes by which map nodes and checkpoint objects may differ.
const METADATA: u64 = 16 << 10;
/// Blocks of a leaf of the map.
const LEAF: u64 = 512;

fn tuning() -> Tuning {
    Tuning { map_memory: 4 << 20, checkpoint_log_bytes: 2 << 20, rewind_checkpoints: 0, rewind_millis: 0, ..Tuning::default() }
}

/// A volume and the number in each of its blocks.
struct Disk {
    harness: Harness,
    volume: VolumeId,
    numbers: Vec<u64>,
    random: Random,
}

fn content(block: u64, number: u64) -> Vec<u8> {
    let mut bytes = vec![number as u8; BLOCK as usize];
    bytes[..8].copy_from_slice(&block.to_le_bytes());
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    bytes
}

impl Disk {
    fn new(compression: Compression, tuning: Tuning) -> Disk {
        Disk::on(Harness::with_extents(&[128], vec![GroupSpec::data(Layout::Linear)], tuning, Some(1 << 20)), compression)
    }

    /// A volume on these devices.
    fn on(mut harness: Harness, compression: Compression) -> Disk {
        let volume = harness.volume("disk", SIZE, compression);
        let mut disk = Disk { harness, volume, numbers: vec![0; BLOCKS as usize], random: Random::new(3) };
        disk.write(0..BLOCKS);
        disk
    }

    /// A volume whose blocks were all overwritten at random.
    fn scattered(tuning: Tuning) -> Disk {
        let mut disk = Disk::new(Compression::Off, tuning);
        disk.scatter(0..BLOCKS);
        disk
    }

    fn head(&self) -> Target {
        Target::Head(self.volume)
    }

    fn write(&mut self, blocks: impl Iterator<Item = u64>) {
        for block in blocks {
            self.numbers[block as usize] += 1;
            self.harness.write(self.head(), block * BLOCK, &content(block, self.numbers[block as usize]));
        }
        self.harness.settle();
        while self.harness.engine.pop_completion().is_some() {}
    }

    /// Overwrites blocks in random order.
    fn scatter(&mut self, blocks: impl Iterator<Item = u64>) {
        let mut left: Vec<u64> = blocks.collect();
        let order: Vec<u64> = (0..left.len()).map(|_| left.swap_remove(self.random.index(left.len()))).collect();
        self.write(order.into_iter());
    }

    /// Reads the volume in long reads; returns the device reads that one of them needed, times 100.
    fn scan(&mut self) -> u64 {
        let before = self.harness.engine.metrics().data_reads;
        let gathered = self.gathered();
        for at in (0..SIZE).step_by(STEP as usize) {
            let read = self.harness.request(self.head(), Op::Read, at, STEP, &[]).unwrap();
            let expected: Vec<u8> =
                (at / BLOCK..(at + STEP) / BLOCK).flat_map(|block| content(block, self.numbers[block as usize])).collect();
            assert!(read == expected, "at {at}");
        }
        // those of the gatherer are not the guests'
        if self.gathered() > gathered { 0 } else { (self.harness.engine.metrics().data_reads - before) * 100 / (SIZE / STEP) }
    }

    /// Scans until `bytes` bytes more were gathered.
    fn scan_until(&mut self, bytes: u64) {
        let before = self.gathered();
        for _ in 0..20 {
            self.scan();
            self.pause();
            if self.gathered() - before >= bytes {
                return;
            }
        }
        panic!("{} bytes were gathered, not {bytes}: {}", self.gathered() - before, self.harness.engine.space_report());
    }

    /// Lets some time pass.
    fn pause(&mut self) {
        for _ in 0..4 {
            self.harness.now += 500;
            self.harness.settle();
        }
    }

    fn gathered(&self) -> u64 {
        self.harness.engine.metrics().gathered_bytes
    }

    /// Frees what nothing needs.
    fn rest(&mut self) {
        for _ in 0..3 {
            assert_eq!(self.harness.command(Command::Checkpoint), Ok(Reply::Done));
            self.pause();
        }
    }

    /// Reads scattered blocks until the gatherer's first read is in flight; returns the operations
    /// that were not performed.
    fn begin_gathering(&mut self) -> Vec<Io> {
        for at in (0..LEAF * BLOCK).step_by(STEP as usize).cycle().take(10_000) {
            self.harness.submit(self.head(), Op::Read, at, STEP);
            self.answer();
            // no guest waits: reads are the gatherer's
            self.harness.turn();
            let held: Vec<Io> = std::iter::from_fn(|| self.harness.engine.pop_io()).collect();
            if held.iter().any(|io| matches!(io.kind, IoKind::Read { .. })) {
                return held;
            }
            held.into_iter().for_each(|io| self.harness.perform(io));
        }
        panic!("nothing is gathered");
    }

    /// Runs turns until a request is answered.
    fn answer(&mut self) {
        while self.harness.engine.pop_completion().is_none() {
            self.harness.turn();
            while let Some(io) = self.harness.engine.pop_io() {
                self.harness.perform(io);
            }
        }
    }

    /// Gathers, and ends the daemon when so many pages of the first batch are written.
    fn tear_gathered_batch(&mut self, pages: usize) {
        let mut held = self.begin_gathering();
        let (device, offset, pieces) = 'found: {
            for _ in 0..1_000 {
                for io in std::mem::take(&mut held) {
                    match io.kind {
                        IoKind::Write { offset, pieces } if self.gathered() > 0 => break 'found (io.device, offset, pieces),
                        _ => self.harness.perform(io),
                    }
                }
                self.harness.turn();
                held.extend(std::iter::from_fn(|| self.harness.engine.pop_io()));
            }
            panic!("nothing is written");
        };
        let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.bytes().to_vec()).collect();
        let (at, torn) = (offset as usize, bytes.len().min(pages * BLOCK as usize));
        self.harness.media[device.0 as usize][at..at + torn].copy_from_slice(&bytes[..torn]);
        self.harness.reopen();
    }

    /// Performs operations, and lets some time pass.
    fn perform(&mut self, held: Vec<Io>) {
        held.into_iter().for_each(|io| self.harness.perform(io));
        self.pause();
    }
}

#[test]
fn long_reads_of_a_scattered_volume_need_one_device_read_each() {
    let mut disk = Disk::scattered(tuning());
    assert!(disk.scan() > 1000, "the blocks are not scattered");
    disk.rest();
    let (before, space) = (disk.harness.engine.pool().unwrap().allocated, disk.harness.engine.volumes());
    disk.scan_until(SIZE);
    assert_eq!(disk.gathered(), SIZE, "each leaf once");
    assert_eq!(disk.harness.engine.volumes(), space, "no volume owns more or less");
    let reads = disk.scan();
    assert!((100..115).contains(&reads), "{reads} device reads for 100 long ones");
    disk.rest();
    let after = disk.harness.engine.pool().unwrap().allocated;
    assert!(after <= before + METADATA, "{before} bytes became {after}");
    disk.harness.audit();
    // what is in order stays where it is
    for _ in 0..20 {
        disk.scan();
    }
    assert_eq!(disk.gathered(), SIZE);
    disk.harness.reopen();
    disk.scan();
    disk.harness.audit();
}

#[test]
fn a_crash_replays_what_was_gathered() {
    let mut disk = Disk::scattered(tuning());
    disk.scan_until(SIZE);
    disk.write([3, 700, 5].into_iter());
    disk.harness.reopen();
    let reads = disk.scan();
    assert!(reads < 120, "{reads} device reads for 100 long ones");
    disk.harness.audit();
}

#[test]
fn no_snapshot_grows() {
    let mut disk = Disk::scattered(tuning());
    let older = disk.harness.snapshot(disk.volume, "older");
    disk.scatter((0..BLOCKS).filter(|block| block % 2 == 0));
    let snapshot = disk.harness.snapshot(disk.volume, "snapshot");
    disk.scatter((0..BLOCKS).filter(|block| block % 4 < 2));
    disk.rest();
    let diff = |disk: &mut Disk, older| {
        let newer = Target::Head(disk.volume);
        disk.harness.engine.start_diff(Tag(9), Some(Target::Snapshot(older)), newer);
        disk.harness.settle();
        disk.harness.engine.pop_diff().unwrap().1.unwrap()
    };
    let diffs = [diff(&mut disk, older), diff(&mut disk, snapshot)];
    let (before, snapshots) = (disk.harness.engine.pool().unwrap().allocated, disk.harness.engine.snapshots());
    disk.scan_until(SIZE / 2);
    assert_eq!(disk.gathered(), SIZE / 2, "only blocks of the head alone");
    disk.rest();
    assert_eq!(disk.harness.engine.snapshots(), snapshots);
    let after = disk.harness.engine.pool().unwrap().allocated;
    assert!(after <= before + METADATA, "{before} bytes became {after}");
    assert_eq!([diff(&mut disk, older), diff(&mut disk, snapshot)], diffs);
    for _ in 0..20 {
        disk.scan();
    }
    assert_eq!(disk.gathered(), SIZE / 2, "no gain is left");
    disk.harness.audit();
    disk.harness.command(CatalogCommand::DestroySnapshots { snapshots: vec![older, snapshot] }).unwrap();
    disk.pause();
    disk.scan_until(SIZE / 2);
    disk.scan();
    disk.harness.audit();
}

/// INV-GATHER-1.
#[test]
fn whatever_guests_do_in_between_wins() {
    for nth in 0..6 {
        let mut disk = Disk::scattered(tuning());
        let first = disk.harness.snapshot(disk.volume, "first");
        let old = disk.numbers.clone();
        disk.scatter(0..BLOCKS);
        let held = disk.begin_gathering();
        match nth {
            0 => (0..LEAF).for_each(|block| {
                disk.numbers[block as usize] += 1;
                disk.harness.write(disk.head(), block * BLOCK, &content(block, disk.numbers[block as usize]));
                disk.answer();
            }),
            1 => drop(disk.harness.snapshot(disk.volume, "now")),
            2 => {
                disk.harness.command(CatalogCommand::Rollback { snapshot: first, keep_as: "kept".into() }).unwrap();
                disk.numbers = old;
            }
            3 => drop(disk.harness.command(Command::Checkpoint).unwrap()),
            4 => disk.harness.reopen(),
            _ => {}
        }
        if nth != 4 {
            disk.perform(held);
        }
        // a leaf that a snapshot has is not gathered at all; of one that a guest writes to, blocks that
        // are read after that may be
        if nth != 0 {
            assert_eq!(disk.gathered() > 0, matches!(nth, 3 | 5), "case {nth}");
        }
        disk.scan();
        disk.harness.audit();
        disk.harness.reopen();
        disk.scan();
        disk.harness.audit();
    }
}

/// INV-GATHER-1.
#[test]
fn what_was_cleared_in_between_does_not_come_back() {
    for nth in 0..3 {
        let mut disk = Disk::scattered(tuning());
        let held = disk.begin_gathering();
        let resize = |size| Command::Catalog(CatalogCommand::ResizeVolume { volume: disk.volume, size });
        match nth {
            0 => {
                disk.harness.submit(disk.head(), Op::Discard, 256 * BLOCK, 256 * BLOCK);
                disk.answer();
                disk.perform(held);
            }
            1 => {
                let (shrink, grow) = (resize(256 * BLOCK), resize(SIZE));
                disk.harness.command(shrink).unwrap();
                disk.perform(held);
                disk.harness.command(grow).unwrap();
            }
            _ => {
                disk.harness.command(CatalogCommand::DestroyVolume { volume: disk.volume }).unwrap();
                disk.perform(held);
                assert_eq!(disk.gathered(), 0);
                disk.harness.audit();
                continue;
            }
        }
        assert!(disk.gathered() <= 256 * BLOCK, "case {nth}");
        let read = disk.harness.request(disk.head(), Op::Read, 256 * BLOCK, 256 * BLOCK, &[]).unwrap();
        assert!(read.iter().all(|byte| *byte == 0), "case {nth}");
        disk.harness.audit();
    }
}

#[test]
fn a_batch_that_is_torn_leaves_the_blocks_where_they_were() {
    for pages in [0, 1, 5, 100] {
        let mut disk = Disk::scattered(tuning());
        disk.tear_gathered_batch(pages);
        disk.scan();
        disk.harness.audit();
    }
}

#[test]
fn a_block_that_cannot_be_read_stays_where_it_is() {
    let mut disk = Disk::scattered(tuning());
    let bad = content(100, disk.numbers[100]);
    let place = disk.harness.media[0].chunks_exact(BLOCK as usize).position(|page| page == bad).unwrap();
    disk.harness.media[0][place * BLOCK as usize + 2000] ^= 4;
    for _ in 0..4 {
        for at in (0..SIZE).step_by(STEP as usize) {
            let read = disk.harness.request(disk.head(), Op::Read, at, STEP, &[]);
            assert_eq!(read.is_err(), at == 100 * BLOCK / STEP * STEP, "at {at}");
        }
        disk.pause();
    }
    let gathered = disk.gathered();
    assert_eq!(gathered, SIZE - BLOCK, "all others, also those that are read with it");
    for _ in 0..100 {
        assert!(disk.harness.request(disk.head(), Op::Read, 100 * BLOCK / STEP * STEP, STEP, &[]).is_err());
        disk.pause();
    }
    assert_eq!(disk.gathered(), gathered, "no read brings a gain any more");
    assert!(disk.harness.request(disk.head(), Op::Read, 100 * BLOCK, BLOCK, &[]).is_err());
    assert!(disk.harness.request(disk.head(), Op::Read, 101 * BLOCK, BLOCK, &[]).unwrap() == content(101, disk.numbers[101]));
    disk.harness.reopen();
    assert!(disk.harness.request(disk.head(), Op::Read, 100 * BLOCK, BLOCK, &[]).is_err());
}

#[test]
fn nothing_is_gathered_where_that_is_not_wanted() {
    let mut disk = Disk::scattered(Tuning { gather: Gather { after_reads: 0, ..Gather::default() }, ..tuning() });
    for _ in 0..5 {
        disk.scan();
    }
    assert_eq!(disk.gathered(), 0);
    // a device read each for blocks that are compressed, in whatever order they are
    let mut disk = Disk::new(Compression::Lz4, tuning());
    disk.scatter(0..BLOCKS);
    for _ in 0..5 {
        disk.scan();
    }
    assert_eq!(disk.gathered(), 0);
    // short reads need one device read each anyway
    let mut disk = Disk::scattered(tuning());
    for block in (0..BLOCKS).cycle().take(5 * BLOCKS as usize) {
        disk.harness.request(disk.head(), Op::Read, block * BLOCK, BLOCK, &[]).unwrap();
    }
    assert_eq!(disk.gathered(), 0);
    // a leaf that is written more than it is read
    for _ in 0..20 {
        disk.scan();
        disk.scatter(0..BLOCKS);
    }
    assert_eq!(disk.gathered(), 0);
    // a pool that is being wiped waits
    let held = disk.begin_gathering();
    disk.harness.start(Command::Job(JobCommand::Wipe { how: Wipe::Zero, dry_run: false }));
    disk.harness.turn();
    held.into_iter().for_each(|io| disk.harness.perform(io));
    disk.harness.turn();
    assert_eq!(disk.gathered(), 0);
}

/// A block would have fewer copies than before.
#[test]
fn nothing_is_gathered_while_a_device_is_missing() {
    let groups = vec![GroupSpec::data(Layout::Mirror { copies: 2 })];
    let mut disk = Disk::on(Harness::with_extents(&[128, 128], groups, tuning(), Some(1 << 20)), Compression::Off);
    disk.scatter(0..BLOCKS / 2);
    disk.harness.dead.push(1);
    disk.scatter(BLOCKS / 2..BLOCKS);
    disk.rest();
    for _ in 0..5 {
        disk.scan();
        disk.pause();
    }
    assert_eq!(disk.gathered(), 0);
}

/// The loss by a rewind is counted in bytes that guests wrote.
#[test]
fn it_does_not_count_as_written_by_guests() {
    let mut disk = Disk::scattered(tuning());
    let written = disk.harness.engine.metrics().written_bytes;
    disk.scan_until(SIZE);
    assert_eq!(disk.harness.engine.metrics().written_bytes, written);
    disk.harness.reopen();
    assert_eq!(disk.harness.engine.metrics().written_bytes, written);
}

/// Overwrites all of a volume, 64 KiB at a time.
fn overwrite(harness: &mut Harness, volume: VolumeId, size: u64, byte: u8) {
    for at in (0..size).step_by(STEP as usize) {
        harness.write(Target::Head(volume), at, &[byte; STEP as usize]);
        harness.settle();
        assert!(harness.engine.pop_completion().is_some_and(|done| done.result.is_ok()));
    }
}

/// Each byte costs the cleaner several there. A leaf that has begun is finished, so the bound is
/// exceeded by less than a leaf, and that is paid before the next one begins.
#[test]
fn in_a_pool_that_is_nearly_full_it_writes_a_fiftieth_of_what_guests_write() {
    let harness = Harness::with_extents(&[72], vec![GroupSpec::data(Layout::Linear)], tuning(), Some(1 << 20));
    let mut disk = Disk::on(harness, Compression::Off);
    disk.scatter(0..BLOCKS);
    let full = disk.harness.engine.pool().unwrap().size * 86 / 100 - SIZE;
    let other = disk.harness.volume("other", full >> 20 << 20, Compression::Off);
    overwrite(&mut disk.harness, other, full >> 20 << 20, 1);
    disk.rest();
    let pool = disk.harness.engine.pool().unwrap();
    assert!(pool.allocated * 100 > pool.size * 82, "{} of {} bytes", pool.allocated, pool.size);
    let earned = |disk: &Disk| disk.harness.engine.metrics().user_bytes / 50;
    assert!((1..LEAF * BLOCK).contains(&earned(&disk)));
    // both leaves are wanted, and the guests' writes so far are worth a part of one
    for _ in 0..20 {
        disk.scan();
        disk.pause();
    }
    assert_eq!(disk.gathered(), LEAF * BLOCK, "one leaf");
    // the other one begins when that one is paid
    while disk.gathered() == LEAF * BLOCK {
        let before = earned(&disk);
        overwrite(&mut disk.harness, other, 1 << 20, 2);
        disk.scan();
        disk.pause();
        assert!(disk.gathered() == LEAF * BLOCK || earned(&disk) > LEAF * BLOCK, "{before} bytes were allowed");
        assert!(before <= LEAF * BLOCK + (1 << 20), "it never begins");
    }
    assert_eq!(disk.gathered(), SIZE);
    disk.harness.audit();
}

#[test]
fn jobs_rate_bounds_it() {
    let mut disk = Disk::scattered(tuning());
    disk.harness.command(JobCommand::SetJobRate { rate: 128 << 10 }).unwrap();
    disk.scan();
    disk.scan();
    let (begun, before) = (disk.harness.now, disk.gathered());
    while disk.harness.now < begun + 8_000 {
        disk.harness.now += 100;
        disk.harness.settle();
    }
    let bytes = disk.gathered() - before;
    assert!(bytes < 2 << 20, "{bytes} bytes in eight seconds");
    disk.harness.command(JobCommand::SetJobRate { rate: 0 }).unwrap();
    disk.pause();
    assert_eq!(disk.gathered(), SIZE);
}
