//! Scrub: rot is found wherever it is, repaired where there is a correct copy, and reported where
//! there is none.

use std::collections::BTreeMap;

use millpond_block::{IoKind, MemberId, Op};
use millpond_engine::{Command, Compression, DeviceCommand, JobCommand, JobKind, Layout, ScrubInfo, SnapshotId, Target, Tuning, VolumeId};
use millpond_format::{BatchHeader, Checkpoint, Item, Label, Lsn, ObjectRef, RING_OFFSET, RING_SLOTS, Root, SECTOR_BYTES};

use crate::harness::Harness;
use millpond_testing::Random;

const SIZE: u64 = 8 << 20;
const STEP: u64 = 64 << 10;
const AREA: usize = 1 << 20;

/// Data in which every page is different.
fn pattern(at: u64, round: u8) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..STEP).map(|i| (i >> 9) as u8 ^ round).collect();
    for (page, first) in bytes.chunks_mut(4096).zip(0u64..) {
        page[..8].copy_from_slice(&(at + first).to_le_bytes());
    }
    bytes
}

fn write_some(harness: &mut Harness, volume: VolumeId, round: u8, every: usize) {
    for at in (0..SIZE).step_by(STEP as usize).step_by(every) {
        harness.request(Target::Head(volume), Op::Write, at, STEP, &pattern(at, round)).unwrap();
    }
}

fn check(harness: &mut Harness, target: Target, rounds: [u8; 2]) {
    for (turn, at) in (0..SIZE).step_by(STEP as usize).enumerate() {
        let read = harness.request(target, Op::Read, at, STEP, &[]).unwrap();
        assert!(read == pattern(at, rounds[turn % 2]), "at {at}");
    }
}

/// A pool with a snapshot of one round and a head of which every second part is of another.
fn pool(sizes: &[usize], layout: Layout, compression: Compression) -> (Harness, VolumeId, SnapshotId) {
    let mut harness = Harness::new(sizes, layout);
    let volume = harness.volume("disk0", SIZE, compression);
    write_some(&mut harness, volume, 1, 1);
    let snapshot = harness.snapshot(volume, "one");
    write_some(&mut harness, volume, 2, 2);
    (harness, volume, snapshot)
}

fn scrub(harness: &mut Harness) -> ScrubInfo {
    harness.command(JobCommand::Scrub).unwrap();
    harness.finish_jobs();
    harness.engine.pool().unwrap().scrub.unwrap()
}

#[test]
fn a_sound_pool_has_no_errors() {
    for layout in [Layout::Linear, Layout::Stripe { width: 2, unit: 16384 }, Layout::Mirror { copies: 2 }] {
        for compression in [Compression::Off, Compression::Lz4] {
            let (mut harness, volume, _) = pool(&[64, 64], layout, compression);
            let found = scrub(&mut harness);
            assert!(found.complete && found.ended.is_some(), "{found:?}");
            assert_eq!((found.errors, found.repaired, found.lost_blocks, found.lost_nodes), (0, 0, 0, 0), "{layout:?} {compression:?}");
            write_some(&mut harness, volume, 2, 2);
            harness.reopen();
            assert_eq!(harness.engine.pool().unwrap().scrub, Some(found));
            assert_eq!(scrub(&mut harness).errors, 0);
        }
    }
}

/// Repairs take long. Parity is compared after them, however often its stripes have to be read
/// again until then.
#[test]
fn parity_waits_for_repairs_that_take_long() {
    let layout = Layout::Parity { width: 3, parity: 1, unit: 4096 };
    let tuning = Tuning { map_memory: 4 << 20, checkpoint_log_bytes: 2 << 20, log_percent: 1, ..Tuning::default() };
    let mut harness = Harness::with(&[64, 64, 64], layout, tuning);
    let volume = harness.volume("disk0", SIZE, Compression::Off);
    write_some(&mut harness, volume, 1, 1);
    write_some(&mut harness, volume, 2, 2);
    (0..3).for_each(|_| _ = harness.command(Command::Checkpoint).unwrap());
    let end = harness.media[1].len() - AREA;
    harness.media[1][AREA..end].iter_mut().step_by(700).for_each(|byte| *byte ^= 0x21);
    harness.start(Command::Job(JobCommand::Scrub));
    let mut held = Vec::new();
    for _ in 0..1000 {
        harness.turn();
        while let Some(io) = harness.engine.pop_io() {
            let repairs = harness.engine.pool().unwrap().scrub.is_some_and(|found| found.errors > 0);
            if repairs && matches!(io.kind, IoKind::Write { .. }) {
                held.push(io);
            } else {
                harness.perform(io);
            }
        }
    }
    assert!(!held.is_empty());
    held.into_iter().for_each(|io| harness.perform(io));
    harness.finish_jobs();
    while harness.engine.pop_reply().is_some() {}
    let second = scrub(&mut harness);
    assert_eq!((second.errors, second.lost_blocks), (0, 0), "{second:?}");
    check(&mut harness, Target::Head(volume), [2, 1]);
}

/// Places and lengths of the pages of the chunk table on a pool's only device.
fn chunk_pages(media: &[u8]) -> Vec<(usize, usize)> {
    let extent = Label::decode(&media[..SECTOR_BYTES]).unwrap().shape.extent_bytes as usize;
    let slots = (0..RING_SLOTS as usize).map(|slot| &media[RING_OFFSET as usize + slot * SECTOR_BYTES..][..SECTOR_BYTES]);
    let root = slots.filter_map(|sector| Root::decode(sector).ok()).max_by_key(|root| root.generation).unwrap();
    let place = |at: ObjectRef| (AREA + at.segment.0 as usize * extent + at.offset as usize * ObjectRef::STEP, at.bytes() as usize);
    let (at, length) = place(root.checkpoint);
    let checkpoint = Checkpoint::decode(&media[at..at + length]).unwrap();
    checkpoint.chunk_pages.iter().map(|(_, at)| place(*at)).collect()
}

/// Everything on one device rots, labels and roots too; after the scrub this device by itself has
/// all data.
#[test]
fn a_rotten_copy_is_mended_whole() {
    for compression in [Compression::Off, Compression::Lz4] {
        for spoilt in [0, 1] {
            let (mut harness, volume, snapshot) = pool(&[64, 64], Layout::Mirror { copies: 2 }, compression);
            // includes moved chunks, whose headers are elsewhere
            for round in 0..6 {
                write_some(&mut harness, volume, round, 3);
            }
            write_some(&mut harness, volume, 1, 1);
            write_some(&mut harness, volume, 2, 2);
            harness.command(Command::Checkpoint).unwrap();
            let end = harness.media[spoilt].len() - AREA;
            harness.media[spoilt][AREA..end].iter_mut().step_by(700).for_each(|byte| *byte ^= 0x21);
            harness.media[spoilt][100] ^= 1;
            harness.media[spoilt][end + (64 << 10)..end + (64 << 10) + (128 << 12)].iter_mut().step_by(900).for_each(|byte| *byte ^= 0x40);
            let found = scrub(&mut harness);
            assert!(found.errors > 100 && found.repaired > 10 && found.lost_blocks + found.lost_nodes == 0, "{found:?}");
            let device = harness.engine.pool().unwrap().devices[spoilt].clone();
            assert!(device.errors > 100 && device.repaired > 10, "{device:?}");
            assert_eq!(harness.engine.pool().unwrap().devices[1 - spoilt].errors, 0);
            harness.audit();
            assert_eq!(scrub(&mut harness).errors, 0);
            let mut alone = Harness::import_degraded(vec![harness.media[spoilt].clone()], true).unwrap();
            check(&mut alone, Target::Head(volume), [2, 1]);
            check(&mut alone, Target::Snapshot(snapshot), [1, 1]);
            alone.audit();
            assert_eq!(alone.engine.pool().unwrap().devices.iter().map(|d| d.errors).sum::<u64>(), 0);
        }
    }
}

/// Places and lengths, in bytes, of the batches of moves on a device, with their numbers.
fn moves(media: &[u8]) -> BTreeMap<usize, (usize, Lsn)> {
    let batch = |at: usize| {
        let (header, items) = BatchHeader::decode(&media[at..]).ok()?;
        let pages = usize::from(header.pages) + header.payload as usize;
        items.iter().any(|item| matches!(item, Item::Move(_))).then_some((at, (pages * 4096, header.lsn)))
    };
    (AREA..media.len() - AREA).step_by(4096).filter_map(batch).collect()
}

/// A copy that lost a batch of moves may have the header of an earlier use of the segment, sound and
/// at the same place. It does not identify the blocks.
#[test]
fn a_header_of_an_earlier_use_of_the_segment_is_not_believed() {
    let mut harness = Harness::new(&[16, 16], Layout::Mirror { copies: 2 });
    let volume = harness.volume("disk0", 8 << 20, Compression::Off);
    let blocks = 1100;
    let mut random = Random::new(1);
    let mut overwrite = |harness: &mut Harness, count: u64, round: u8| {
        for _ in 0..count {
            // one block of eight stays, so segments are sparse and not empty
            let block = random.below(blocks);
            if !block.is_multiple_of(8) {
                harness.request(Target::Head(volume), Op::Write, block * 4096, 4096, &[round; 4096]).unwrap();
            }
        }
    };
    assert_eq!(harness.write_blocks(Target::Head(volume), 0..blocks, 1, 16), 0);
    overwrite(&mut harness, 6000, 2);
    let before = harness.media.clone();
    overwrite(&mut harness, 6000, 3);
    for spoilt in [0, 1] {
        let (old, new) = (moves(&before[spoilt]), moves(&harness.media[spoilt]));
        let mut lost = 0;
        for (at, (bytes, lsn)) in new {
            if old.get(&at).is_some_and(|(_, earlier)| *earlier < lsn) {
                harness.media[spoilt][at..at + bytes].copy_from_slice(&before[spoilt][at..at + bytes]);
                lost += 1;
            }
        }
        assert!(lost > 0);
        let found = scrub(&mut harness);
        assert!(found.errors > 0 && found.repaired > 0, "{found:?}");
        assert_eq!((found.lost_blocks, found.lost_nodes), (0, 0), "{lost} batches were lost");
        assert_eq!(scrub(&mut harness).errors, 0);
        harness.audit();
    }
}

#[test]
fn what_no_copy_has_is_named() {
    for layout in [Layout::Linear, Layout::Mirror { copies: 2 }] {
        let (mut harness, volume, _) = pool(&[64, 64], layout, Compression::Off);
        let wanted = &pattern(5 * STEP, 1)[..4096];
        let mut spoilt = 0;
        for media in &mut harness.media {
            let pages: Vec<usize> = (AREA..media.len() - AREA).step_by(4096).filter(|at| media[*at..*at + 4096] == *wanted).collect();
            for at in pages {
                media[at + 17] ^= 8;
                spoilt += 1;
            }
        }
        assert!(spoilt > 0);
        let found = scrub(&mut harness);
        assert_eq!((found.lost_blocks, found.repaired), (1, 0), "{found:?}");
        assert_eq!(found.errors, spoilt);
        let lost = &found.lost[0];
        assert_eq!((lost.id, lost.volume.as_deref(), lost.offset, lost.length), (volume, Some("disk0"), 5 * STEP, 4096));
        assert!(harness.request(Target::Head(volume), Op::Read, 5 * STEP, 4096, &[]).is_err());
        // after an overwrite it can be read again
        harness.request(Target::Head(volume), Op::Write, 5 * STEP, 4096, &[9; 4096]).unwrap();
        harness.request(Target::Head(volume), Op::Read, 5 * STEP, 4096, &[]).unwrap();
    }
}

#[test]
fn checkpoint_objects_without_a_good_copy_are_written_again() {
    let (mut harness, volume, snapshot) = pool(&[64], Layout::Linear, Compression::Off);
    harness.command(Command::Checkpoint).unwrap();
    let pages = chunk_pages(&harness.media[0]);
    assert!(!pages.is_empty());
    for (at, _) in &pages {
        harness.media[0][at + 9] ^= 1;
    }
    let refused = Harness::import(harness.media.clone()).err().unwrap();
    assert_eq!(refused, "a checkpoint object does not match its checksum: the checkpoint is damaged");
    let found = scrub(&mut harness);
    assert_eq!(found.lost_blocks + found.lost_nodes, 0, "{found:?}");
    // some may have been written to other places meanwhile
    assert!(found.errors > 0 && found.errors <= pages.len() as u64 && found.repaired == found.errors, "{found:?}");
    harness.reopen();
    check(&mut harness, Target::Head(volume), [2, 1]);
    check(&mut harness, Target::Snapshot(snapshot), [1, 1]);
    assert_eq!(scrub(&mut harness).errors, 0);
}

#[test]
fn it_goes_on_beside_guests_and_can_be_stopped() {
    let (mut harness, volume, snapshot) = pool(&[64, 64], Layout::Mirror { copies: 2 }, Compression::Off);
    harness.start(Command::Job(JobCommand::Scrub));
    for round in 0..40 {
        harness.turn();
        let mut ended = 0;
        while let Some(io) = harness.engine.pop_io() {
            harness.perform(io);
            ended += 1;
            if ended > 3 {
                break;
            }
        }
        harness.write(Target::Head(volume), round % 4 * STEP, &pattern(round % 4 * STEP, if round % 2 == 0 { 2 } else { 1 }));
    }
    let jobs = harness.engine.pool().unwrap().jobs;
    assert!(jobs.iter().any(|job| job.kind == JobKind::Scrub && job.done < job.total), "{jobs:?}");
    while harness.engine.pop_reply().is_some() {}
    while harness.engine.pop_completion().is_some() {}
    harness.start(Command::Job(JobCommand::StopScrub));
    harness.settle();
    assert!(matches!(harness.engine.pop_reply(), Some((_, Ok(_)))));
    while harness.engine.pop_completion().is_some() {}
    let found = harness.engine.pool().unwrap().scrub.unwrap();
    assert!(!found.complete && found.ended.is_some() && found.errors == 0, "{found:?}");
    assert!(harness.engine.pool().unwrap().jobs.is_empty());
    assert!(harness.command(JobCommand::StopScrub).is_err());
    assert_eq!(scrub(&mut harness).errors, 0);
    check(&mut harness, Target::Snapshot(snapshot), [1, 1]);
    harness.audit();
}

/// The other device of a mirror is completely rotten: the replacement gets the data of its member.
#[test]
fn a_successor_is_filled_from_its_member() {
    let (mut harness, volume, snapshot) = pool(&[64, 64], Layout::Mirror { copies: 2 }, Compression::Off);
    harness.command(Command::Checkpoint).unwrap();
    for member in [1, 0].map(MemberId) {
        let device = harness.new_device(64);
        let other = harness.engine.pool().unwrap().devices.iter().find(|d| d.member != member).and_then(|d| d.slot).unwrap().index();
        let end = harness.media[other].len() - AREA;
        harness.media[other][AREA..end].iter_mut().for_each(|byte| *byte ^= 0x21);
        harness.command(DeviceCommand::Replace { member, device }).unwrap();
        harness.finish_jobs();
        let found = scrub(&mut harness);
        assert_eq!((found.lost_blocks, found.lost_nodes), (0, 0), "{found:?}");
        harness.audit();
    }
    check(&mut harness, Target::Head(volume), [2, 1]);
    check(&mut harness, Target::Snapshot(snapshot), [1, 1]);
}

/// Half of each page cannot be compressed: compressed blocks cross pages and the ranges that are
/// read at a time.
fn half_random(at: u64) -> Vec<u8> {
    let mut bytes = vec![0; STEP as usize];
    for (page, first) in bytes.chunks_mut(4096).zip(0u64..) {
        Random::new(at / 4096 + first).fill(&mut page[..2600]);
    }
    bytes
}

/// Each page of every copy is checked, although chunks are longer than the ranges that are read at
/// a time.
#[test]
fn a_flipped_bit_is_found_wherever_it_is() {
    for (layout, compression) in [
        (Layout::Linear, Compression::Off),
        (Layout::Linear, Compression::Lz4),
        (Layout::Stripe { width: 2, unit: 16384 }, Compression::Off),
        (Layout::Mirror { copies: 2 }, Compression::Lz4),
    ] {
        let tuning = Tuning { map_memory: 4 << 20, checkpoint_log_bytes: 2 << 20, scrub_strip: 4096, ..Tuning::default() };
        let mut harness = Harness::with(&[64, 64], layout, tuning);
        let volume = harness.volume("disk0", SIZE, compression);
        for at in (0..SIZE).step_by(STEP as usize) {
            harness.request(Target::Head(volume), Op::Write, at, STEP, &half_random(at)).unwrap();
        }
        harness.command(Command::Checkpoint).unwrap();
        let copies = if matches!(layout, Layout::Mirror { .. }) { 2 } else { 1 };
        let mut flipped = 0;
        for block in (0..SIZE / 4096).step_by(61) {
            let content = &half_random(block / 16 * STEP)[(block % 16 * 4096) as usize..][..64];
            for device in 0..2 {
                // compressed data does not begin at a page
                let here: Vec<usize> =
                    harness.media[device].chunks(512).zip(0..).filter(|(unit, _)| has(unit, content)).map(|(_, at)| at * 512).collect();
                for at in here {
                    flipped += 1;
                    let whole = harness.media[device][at..at + 512].to_vec();
                    harness.media[device][at + 300] ^= 2;
                    let found = scrub(&mut harness);
                    assert_eq!(
                        (found.errors, found.repaired, found.lost_blocks),
                        (1, copies - 1, 2 - copies),
                        "{layout:?} {block} at {at}"
                    );
                    assert_eq!(harness.media[device][at..at + 512] == whole, copies == 2);
                    harness.media[device][at..at + 512].copy_from_slice(&whole);
                }
            }
        }
        assert_eq!(flipped, (SIZE / 4096).div_ceil(61) * copies, "{layout:?} {compression:?}");
        assert_eq!(scrub(&mut harness).errors, 0);
    }
}

/// Compressed bytes follow a short header.
fn has(unit: &[u8], content: &[u8]) -> bool {
    unit[..content.len() + 32].windows(content.len()).any(|bytes| bytes == content)
}

/// Only wrong data is read again, to compare it with other copies.
#[test]
fn what_is_sound_is_read_once() {
    // with parity, the cleaner reads from the log meanwhile
    for layout in [Layout::Linear, Layout::Mirror { copies: 2 }] {
        let mut harness = Harness::new(&[64; 4], layout);
        let volume = harness.volume("disk0", SIZE, Compression::Off);
        write_some(&mut harness, volume, 1, 1);
        harness.reopen();
        harness.command(Command::Checkpoint).unwrap();
        // the first scrub closes the open segments, from which the cleaner then reads, too
        scrub(&mut harness);
        let sound = reads_of_scrub(&mut harness);
        let twice = |reads: &[(u16, u64, u64)]| reads.iter().zip(&reads[1..]).filter(|(a, b)| a.0 == b.0 && a.1 + a.2 > b.1).count();
        let bytes: u64 = sound.iter().map(|(_, _, length)| length).sum();
        assert!(bytes > SIZE && twice(&sound) == 0, "{layout:?}: {bytes} bytes");
        let wanted = &pattern(5 * STEP, 1)[..4096];
        let page_of = |medium: &Vec<u8>| medium.chunks(4096).position(|page| page == wanted);
        let (device, at) = (0..4).find_map(|device| Some((device, page_of(&harness.media[device])?))).unwrap();
        harness.media[device][at * 4096 + 17] ^= 8;
        assert!(twice(&reads_of_scrub(&mut harness)) > 0, "{layout:?}");
        assert_eq!(harness.engine.pool().unwrap().scrub.unwrap().errors, 1, "{layout:?}");
    }
}

/// Reads of a scrub except labels: device, offset and bytes, sorted.
fn reads_of_scrub(harness: &mut Harness) -> Vec<(u16, u64, u64)> {
    harness.start(Command::Job(JobCommand::Scrub));
    let mut reads = Vec::new();
    for _ in 0..10_000 {
        harness.turn();
        while let Some(io) = harness.engine.pop_io() {
            let end = (harness.media[usize::from(io.device.0)].len() - AREA) as u64;
            if let IoKind::Read { offset, length, .. } = &io.kind
                && (AREA as u64..end).contains(offset)
            {
                reads.push((io.device.0, *offset, *length as u64));
            }
            harness.perform(io);
        }
        if harness.engine.pop_reply().is_none() && harness.engine.pool().unwrap().jobs.is_empty() {
            reads.sort_unstable();
            return reads;
        }
    }
    panic!("the scrub does not end");
}
