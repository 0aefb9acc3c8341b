//! Parity: small writes are mirrored in the log and move to whole stripes, and as many devices as
//! parity can replace may be lost.

use std::collections::BTreeSet;

use millpond_block::{MemberId, Op};
use millpond_engine::{
    Command, Compression, DeviceCommand, GroupSpec, JobCommand, Layout, MemberState, PoolState, ScrubInfo, SnapshotId, Target, VolumeId,
};

use crate::content::Steps;
use crate::harness::Harness;

const SIZE: u64 = 12 << 20;
const STEP: u64 = 64 << 10;
const DATA: Steps = Steps { size: SIZE, step: STEP };

fn layout(parity: u8) -> Layout {
    Layout::Parity { width: 16, parity, unit: 65536 }
}

/// A pool with a snapshot of round 1, and round 2 in its volume.
fn pool(devices: usize, parity: u8) -> (Harness, VolumeId, SnapshotId) {
    let mut harness = Harness::new(&vec![48; devices], layout(parity));
    let volume = harness.volume("disk0", SIZE, Compression::Off);
    DATA.write(&mut harness, volume, 1);
    let snapshot = harness.snapshot(volume, "one");
    DATA.write(&mut harness, volume, 2);
    (harness, volume, snapshot)
}

fn check_both(harness: &mut Harness, volume: VolumeId, snapshot: SnapshotId) {
    DATA.check(harness, Target::Head(volume), 2);
    DATA.check(harness, Target::Snapshot(snapshot), 1);
}

fn states(harness: &Harness) -> Vec<MemberState> {
    harness.engine.pool().unwrap().devices.iter().map(|d| d.state).collect()
}

#[test]
fn what_no_row_uses_is_neither_free_nor_allocated() {
    let harness = Harness::new(&[192, 96, 96], layout(1));
    let devices = harness.engine.pool().unwrap().devices;
    let unused = |at: usize| devices[at].size - devices[at].allocated - devices[at].free;
    assert!(unused(0) > 64 << 20 && devices[0].allocated < 48 << 20, "{devices:?}");
}

/// All subsets of `count` devices.
fn sets(devices: usize, count: usize) -> Vec<Vec<usize>> {
    (0u32..1 << devices)
        .filter(|set| set.count_ones() as usize == count)
        .map(|set| (0..devices).filter(|at| set & 1 << at != 0).collect())
        .collect()
}

fn without(media: &[Vec<u8>], lost: &[usize]) -> Vec<Vec<u8>> {
    media.iter().enumerate().filter(|(at, _)| !lost.contains(at)).map(|(_, medium)| medium.clone()).collect()
}

#[test]
fn writes_move_to_whole_rows() {
    let (mut harness, volume, snapshot) = pool(5, 2);
    let metrics = harness.engine.metrics();
    assert!(metrics.cleaner_bytes > 4 << 20, "{metrics:?}");
    check_both(&mut harness, volume, snapshot);
    harness.audit();
    harness.reopen();
    check_both(&mut harness, volume, snapshot);
    harness.audit();
}

#[test]
fn any_devices_that_parity_reaches_may_be_missing() {
    for (devices, parity) in [(3, 1), (4, 2), (6, 2)] {
        let (mut harness, volume, snapshot) = pool(devices, parity);
        harness.command(Command::Checkpoint).unwrap();
        for lost in sets(devices, usize::from(parity)) {
            let mut harness = Harness::import_degraded(without(&harness.media, &lost), true).unwrap();
            check_both(&mut harness, volume, snapshot);
            // the pool continues without them, and can be imported without them
            DATA.write(&mut harness, volume, 3);
            let mut harness = Harness::import(harness.media).unwrap();
            DATA.check(&mut harness, Target::Head(volume), 3);
            DATA.check(&mut harness, Target::Snapshot(snapshot), 1);
        }
        for lost in sets(devices, usize::from(parity) + 1) {
            assert!(Harness::import_degraded(without(&harness.media, &lost), true).is_err());
        }
    }
}

#[test]
fn devices_that_fail_are_given_up_and_filled_when_they_are_back() {
    let (mut harness, volume, snapshot) = pool(6, 2);
    harness.dead = vec![1];
    DATA.write(&mut harness, volume, 3);
    harness.dead = vec![1, 4];
    DATA.write(&mut harness, volume, 2);
    assert_eq!(*harness.engine.state(), PoolState::Online);
    assert_eq!(states(&harness).iter().filter(|state| **state == MemberState::Down).count(), 2);
    check_both(&mut harness, volume, snapshot);
    harness.dead.clear();
    harness.reopen();
    harness.finish_jobs();
    assert_eq!(states(&harness), [MemberState::Present; 6]);
    harness.audit();
    for lost in sets(6, 2) {
        let mut harness = Harness::import_degraded(without(&harness.media, &lost), true).unwrap();
        check_both(&mut harness, volume, snapshot);
    }
}

#[test]
fn one_too_many_stops_the_pool() {
    let (mut harness, volume, _) = pool(4, 1);
    harness.dead = vec![0];
    DATA.write(&mut harness, volume, 3);
    harness.dead = vec![0, 1];
    let refused = (0..SIZE).step_by(STEP as usize).any(|at| {
        let payload = DATA.bytes(at, 4);
        harness.request(Target::Head(volume), Op::Write, at, STEP, &payload).is_err()
    });
    assert!(refused && matches!(harness.engine.state(), PoolState::Faulted(_)));
}

#[test]
fn what_rots_is_computed_and_mended() {
    for (devices, parity) in [(3, 1), (5, 2)] {
        let (mut harness, volume, snapshot) = pool(devices, parity);
        harness.command(Command::Checkpoint).unwrap();
        for spoilt in sets(devices, usize::from(parity)) {
            let mut media = harness.media.clone();
            for device in &spoilt {
                // everything between the areas: data, parity, nodes, objects, headers
                let end = media[*device].len() - (1 << 20);
                media[*device][1 << 20..end].iter_mut().for_each(|byte| *byte ^= 0x21);
            }
            let mut harness = Harness::import(media).unwrap();
            check_both(&mut harness, volume, snapshot);
            let devices = harness.engine.pool().unwrap().devices;
            assert!(spoilt.iter().all(|device| devices[*device].errors > 0 && devices[*device].repaired > 0), "{devices:?}");
            assert!(devices.iter().enumerate().all(|(at, device)| spoilt.contains(&at) || device.errors == 0), "{devices:?}");
        }
    }
}

#[test]
fn a_missing_device_and_a_live_one_are_replaced() {
    let (harness, volume, snapshot) = pool(4, 1);
    let mut harness = Harness::import_degraded(without(&harness.media, &[2]), true).unwrap();
    let device = harness.new_device(48);
    harness.command(DeviceCommand::Replace { member: MemberId(2), device }).unwrap();
    DATA.write(&mut harness, volume, 2);
    harness.finish_jobs();
    let device = harness.new_device(48);
    harness.command(DeviceCommand::Replace { member: MemberId(0), device }).unwrap();
    DATA.write(&mut harness, volume, 2);
    harness.finish_jobs();
    harness.audit();
    harness.media.remove(0);
    let mut harness = Harness::import(harness.media).unwrap();
    assert_eq!(states(&harness), [MemberState::Present; 4]);
    check_both(&mut harness, volume, snapshot);
    for lost in 0..4 {
        let mut harness = Harness::import_degraded(without(&harness.media, &[lost]), true).unwrap();
        check_both(&mut harness, volume, snapshot);
    }
}

#[test]
fn every_device_leaves_after_new_ones_came() {
    let (mut harness, volume, snapshot) = pool(4, 2);
    let devices: Vec<_> = (0..5).map(|_| harness.new_device(48)).collect();
    harness.command(DeviceCommand::AddDevices { groups: vec![GroupSpec::data(layout(1))], devices }).unwrap();
    for member in 0..4 {
        if states(&harness).len() < 9 - usize::from(member) {
            break; // too few are left for their stripes: removed with the last one
        }
        harness.command(DeviceCommand::Remove { member: MemberId(member), dry_run: false }).unwrap();
        DATA.write(&mut harness, volume, 2);
        harness.finish_jobs();
        harness.audit();
    }
    let mut harness = Harness::import(harness.media.split_off(4)).unwrap();
    check_both(&mut harness, volume, snapshot);
    harness.audit();
    for lost in 0..5 {
        let mut harness = Harness::import_degraded(without(&harness.media, &[lost]), true).unwrap();
        check_both(&mut harness, volume, snapshot);
    }
}

#[test]
fn a_pool_with_parity_that_is_full_still_works() {
    let mut harness = Harness::new(&[24, 24, 24], layout(1));
    let volume = harness.volume("disk0", 64 << 20, Compression::Off);
    let mut written = 0;
    let mut full = false;
    for at in (0..64 << 20).step_by(STEP as usize) {
        match harness.request(Target::Head(volume), Op::Write, at, STEP, &DATA.bytes(at, 1)) {
            Ok(_) => written = at + STEP,
            Err(_) => {
                full = true;
                break;
            }
        }
    }
    assert!(full && written > 20 << 20, "{written} {}", harness.engine.space_report());
    for at in (0..written).step_by(STEP as usize) {
        assert!(harness.request(Target::Head(volume), Op::Read, at, STEP, &[]).unwrap() == DATA.bytes(at, 1));
    }
    harness.reopen();
    harness.request(Target::Head(volume), Op::Discard, 0, 8 << 20, &[]).unwrap();
    for at in (0..4 << 20).step_by(STEP as usize) {
        harness.request(Target::Head(volume), Op::Write, at, STEP, &DATA.bytes(at, 2)).unwrap();
    }
    harness.audit();
}

fn scrub(harness: &mut Harness) -> ScrubInfo {
    harness.command(JobCommand::Scrub).unwrap();
    harness.finish_jobs();
    harness.engine.pool().unwrap().scrub.unwrap()
}

/// Repairs data and parity: afterwards any device may be lost, except the one that was rotten.
#[test]
fn a_scrub_mends_all_columns_from_the_others() {
    for (parity, step) in [(1, 700), (2, 1)] {
        let (mut harness, volume, snapshot) = pool(5, parity);
        harness.command(Command::Checkpoint).unwrap();
        let end = harness.media[2].len() - (1 << 20);
        harness.media[2][1 << 20..end].iter_mut().step_by(step).for_each(|byte| *byte ^= 0x21);
        for again in [false, true] {
            let found = scrub(&mut harness);
            assert_eq!((found.lost_blocks, found.lost_nodes), (0, 0), "{found:?}");
            assert!(if again { found.errors == 0 } else { found.errors > 100 && found.repaired > 10 }, "{found:?}");
        }
        harness.audit();
        for lost in sets(5, usize::from(parity)).into_iter().filter(|set| !set.contains(&2)) {
            let mut harness = Harness::import_degraded(without(&harness.media, &lost), true).unwrap();
            check_both(&mut harness, volume, snapshot);
        }
    }
}

/// INV-SCRUB-2: two columns of a stripe are wrong, one more than parity can replace. When one of
/// them is correct again, the other is repaired.
#[test]
fn parity_of_what_is_lost_stays_as_it_is() {
    let (mut harness, volume, snapshot) = pool(4, 1);
    harness.command(Command::Checkpoint).unwrap();
    let whole = harness.media.clone();
    let known: BTreeSet<Vec<u8>> =
        (0..SIZE).step_by(STEP as usize).flat_map(|at| DATA.bytes(at, 2).chunks(4096).map(<[u8]>::to_vec).collect::<Vec<_>>()).collect();
    let is_data = |at: &usize| whole.iter().take(2).all(|medium| known.contains(&medium[*at..at + 4096]));
    // some are in the log, or dead
    let at = (1 << 20..whole[0].len() - (1 << 20)).step_by(4096).filter(is_data).step_by(11).take(50).find(|at| {
        harness.media.clone_from(&whole);
        harness.media.iter_mut().take(2).for_each(|medium| medium[at + 99] ^= 4);
        scrub(&mut harness).lost_blocks == 2
    });
    let at = at.expect("a row of which two columns are data");
    assert!([2, 3].iter().all(|device| harness.media[*device][at..at + 4096] == whole[*device][at..at + 4096]), "written at {at}");
    harness.media[0][at + 99] ^= 4;
    let found = scrub(&mut harness);
    assert_eq!((found.lost_blocks, found.errors, found.repaired), (0, 1, 1), "{found:?}");
    assert_eq!(scrub(&mut harness).errors, 0);
    check_both(&mut harness, volume, snapshot);
}

/// Every column is checked, parity too: one wrong bit in any of them is found and repaired.
#[test]
fn a_scrub_finds_one_flipped_bit_in_any_column() {
    let (mut harness, volume, snapshot) = pool(6, 2);
    harness.reopen();
    harness.command(Command::Checkpoint).unwrap();
    assert_eq!(scrub(&mut harness).errors, 0);
    // the data and P together are zeroes, so that the rest is Q
    let is_row = |at: &usize| {
        let pages = harness.media.iter().map(|medium| &medium[*at..at + 4096]);
        let left = pages.clone().fold(vec![0; 4096], |sum, page| sum.iter().zip(page).map(|(a, b)| a ^ b).collect());
        left.iter().any(|byte| *byte != 0) && pages.clone().any(|page| page == left)
    };
    let rows: Vec<usize> = (1 << 20..harness.media[0].len() - (1 << 20)).step_by(4096).filter(is_row).step_by(37).collect();
    let mut looked_at = 0;
    for at in rows {
        let whole: Vec<Vec<u8>> = harness.media.iter().map(|medium| medium[at..at + 4096].to_vec()).collect();
        for device in 0..6 {
            harness.media[device][at + 1000] ^= 16;
            let found = scrub(&mut harness);
            if device == 0 && found.errors == 0 {
                // this stripe has no live data
                harness.media[device][at + 1000] ^= 16;
                break;
            }
            looked_at += 1;
            assert_eq!((found.errors, found.repaired), (1, 1), "device {device} at {at}: {found:?}");
            assert!(harness.media.iter().zip(&whole).all(|(medium, page)| medium[at..at + 4096] == *page), "device {device} at {at}");
        }
        if looked_at >= 48 {
            break;
        }
    }
    assert!(looked_at >= 12, "{looked_at}");
    check_both(&mut harness, volume, snapshot);
}
