//! Copies of labels that are damaged, or cannot be read or written: a device keeps a good label.

use std::slice::from_ref;

use millpond_block::{Io, IoKind, MemberId};
use millpond_engine::{Busy, Class, Command, CommandError, DeviceCommand, GroupSpec, JobCommand, Layout, PoolState};
use millpond_format::{AREA_BYTES, DeviceNote, FEATURES, FeatureSet, Label, SECTOR_BYTES};

use crate::features::{DEDUP, HINTS, TREES, WITH_ALL, import, in_force, label, sectors, tuning, upgraded};
use crate::golden::{golden, second_area};
use crate::harness::Harness;

/// Imports an upgraded pool of two devices that both have data. One copy of the first one's label,
/// whose offset is returned, too, can be neither read nor written.
fn with_a_bad_copy(second: bool) -> (Harness, u64) {
    let mut harness = Harness::with(&[16, 16], Layout::Linear, tuning(FEATURES));
    harness.command(Command::Close).unwrap();
    let mut media = upgraded(&harness.media, WITH_ALL).media;
    let at = if second { second_area(&media[0]) } else { 0 };
    media[0][at..at + SECTOR_BYTES].fill(0);
    let at = at as u64;
    (import_with_bad(media, at), at)
}

fn import_with_bad(media: Vec<Vec<u8>>, at: u64) -> Harness {
    let mut harness = Harness::begin_import(media, tuning(WITH_ALL), 1);
    (harness.bad, harness.unwritable) = (Some((0, at)), vec![(0, at)]);
    harness.settle();
    assert_eq!(*harness.engine.state(), PoolState::Online);
    assert!(in_force(&harness).is_empty());
    harness
}

fn add_device(harness: &mut Harness) -> Command {
    let device = harness.new_device(16);
    let groups = vec![GroupSpec::data(Layout::Linear)];
    Command::Devices(DeviceCommand::AddDevices { groups, devices: vec![device] })
}

/// The shape may change with one label of a device, and features stay out of force; with the next
/// import, too.
#[test]
fn a_copy_that_cannot_be_written_stops_no_pool() {
    for second in [false, true] {
        let (mut harness, at) = with_a_bad_copy(second);
        let added = add_device(&mut harness);
        harness.command(added).unwrap();
        assert!(*harness.engine.state() == PoolState::Online && in_force(&harness).is_empty());
        assert_eq!(harness.command(DeviceCommand::TurnFeaturesOn), Err(CommandError::Busy(Busy::LabelUnwritten(MemberId(0)))));
        harness.command(Command::Close).unwrap();
        let again = import_with_bad(harness.media, at);
        assert_eq!(again.engine.pool().unwrap().devices.len(), 3);
    }
}

/// The replacement has two labels, so the features are in force.
#[test]
fn features_are_in_force_once_a_device_with_a_bad_label_is_replaced() {
    for second in [false, true] {
        let (mut harness, _) = with_a_bad_copy(second);
        let device = harness.new_device(16);
        harness.command(DeviceCommand::Replace { member: MemberId(0), device }).unwrap();
        harness.finish_jobs();
        assert_eq!(*harness.engine.state(), PoolState::Online);
        assert_eq!(in_force(&harness), FeatureSet::of([&HINTS, &TREES, &DEDUP]));
    }
}

/// Neither a description nor a scrub is worth overwriting the only label of a device.
#[test]
fn the_only_label_of_a_device_is_not_overwritten_for_notes_or_a_scrub() {
    for second in [false, true] {
        let (mut harness, _) = with_a_bad_copy(second);
        let before: Vec<_> = harness.media.iter().map(|image| sectors(image)).collect();
        let device = harness.engine.pool().unwrap().devices[1].id;
        harness.engine.describe_devices(vec![DeviceNote { device, size: 1, path: "/dev/b".into(), serial: String::new() }]);
        harness.settle();
        harness.command(JobCommand::Scrub).unwrap();
        harness.finish_jobs();
        assert_eq!(*harness.engine.state(), PoolState::Online);
        assert!(harness.engine.pool().unwrap().scrub.unwrap().errors > 0, "the scrub finds it");
        assert!(harness.media.iter().map(|image| sectors(image)).eq(before), "labels are written");
    }
}

/// A copy that can be written again is written before the only label, whichever it is: power may fail
/// in any of these writes.
#[test]
fn a_copy_that_can_be_written_again_is_written_before_the_only_label() {
    for second in [false, true] {
        let (mut harness, at) = with_a_bad_copy(second);
        (harness.bad, harness.unwritable) = (None, Vec::new());
        let added = add_device(&mut harness);
        harness.start(added);
        let (mut cuts, mut order) = (Vec::new(), Vec::new());
        for _ in 0..500 {
            harness.turn();
            for io in std::iter::from_fn(|| harness.engine.pop_io()).collect::<Vec<_>>() {
                if let IoKind::Write { offset, pieces } = &io.kind
                    && [0, (16 << 20) - AREA_BYTES].contains(offset)
                    && io.device.0 == 0
                {
                    let (mut media, start) = (harness.media.clone(), *offset as usize);
                    media[0][start..start + 512].copy_from_slice(&pieces[0].bytes()[..512]);
                    cuts.push(media);
                    order.push(*offset);
                }
                harness.perform(io);
            }
        }
        assert!(harness.engine.pop_reply().expect("the device is added").1.is_ok());
        assert_eq!((order.len(), order.first()), (2, Some(&at)));
        assert_eq!(in_force(&harness), FeatureSet::of([&HINTS, &TREES, &DEDUP]));
        for media in cuts {
            let again = import(&media, WITH_ALL);
            assert!(again.is_ok(), "second {second}: {:?}", again.err());
        }
    }
}

/// A spare that lacks a copy of its label waits for another change of the labels.
#[test]
fn the_only_label_of_a_device_is_not_overwritten_for_a_spare() {
    let group = |class, layout, devices| GroupSpec { class, layout, devices: Some(devices) };
    let groups = vec![group(Class::Data, Layout::Mirror { copies: 2 }, 2), group(Class::Spare, Layout::Linear, 1)];
    let mut harness = Harness::with_groups(&[16; 3], groups, tuning(FEATURES));
    harness.command(Command::Close).unwrap();
    let mut media = upgraded(&harness.media, WITH_ALL).media;
    let at = second_area(&media[0]);
    media[2][at..at + SECTOR_BYTES].fill(0);
    let before = sectors(&media[0]);
    let harness = import_with_bad(media.clone(), at as u64);
    assert!(sectors(&harness.media[0]) == before);
    // with two labels of the others, all are written
    let harness = import(&media, WITH_ALL).unwrap();
    assert!(sectors(&harness.media[0]) != before && in_force(&harness) == FeatureSet::of([&HINTS, &TREES, &DEDUP]));
}

/// A second label of another pool, by a later program, is from an earlier use of the device.
#[test]
fn a_second_label_of_another_pool_does_not_matter() {
    let mut image = golden("clean");
    let at = second_area(&image);
    let features = FeatureSet::of([&DEDUP]);
    for (pool, used) in [(millpond_format::PoolId([9; 16]), true), (label(&image, 0).pool, false)] {
        let later = Label { pool, features, ..label(&image, 0) }.encode();
        image[at..at + SECTOR_BYTES].copy_from_slice(&later);
        assert_eq!(import(from_ref(&image), FEATURES).is_ok(), used);
    }
}

/// Imports a pool of version 0.1.0, without features, whose first device gets a bad copy later on.
fn plain() -> Harness {
    let mut harness = Harness::with(&[16, 16], Layout::Linear, tuning(FEATURES));
    harness.command(Command::Close).unwrap();
    import(&harness.media, FEATURES).unwrap()
}

/// A scrub writes a wrong copy alone, in pools without features, too: the other label of the device
/// stays as it is, also if the write fails.
#[test]
fn a_scrub_writes_a_wrong_copy_alone() {
    for (second, writable) in [(false, true), (true, true), (false, false), (true, false)] {
        let mut harness = plain();
        let before: Vec<_> = harness.media.iter().map(|image| sectors(image)).collect();
        let at = if second { second_area(&harness.media[0]) } else { 0 };
        harness.media[0][at..at + SECTOR_BYTES].fill(0x5a);
        if !writable {
            harness.unwritable = vec![(0, at as u64)];
        }
        harness.command(JobCommand::Scrub).unwrap();
        harness.finish_jobs();
        assert_eq!(*harness.engine.state(), PoolState::Online);
        let found = harness.engine.pool().unwrap().scrub.unwrap();
        assert_eq!((found.errors, found.repaired), (1, u64::from(writable)));
        let after: Vec<_> = harness.media.iter().map(|image| sectors(image)).collect();
        assert_eq!(after == before, writable, "the copy is as it was");
        assert!(after[0][usize::from(!second)] == before[0][usize::from(!second)] && after[1] == before[1], "others are written");
        // a description is stored once both labels are there
        let device = harness.engine.pool().unwrap().devices[1].id;
        harness.engine.describe_devices(vec![DeviceNote { device, size: 1, path: "/dev/b".into(), serial: String::new() }]);
        harness.settle();
        assert_eq!(sectors(&harness.media[1]) != before[1], writable);
    }
}

/// Returns whether a device has a label after a write at `torn` that a power cut interrupted.
fn is_left(image: &[u8], torn: usize) -> bool {
    let others = [0, second_area(image)].into_iter().filter(|at| *at != torn);
    others.into_iter().any(|at| Label::decode(&image[at..at + SECTOR_BYTES]).is_ok())
}

/// A change of the labels waits for the copies that a scrub writes, and begins with those that are not
/// flushed yet: power may fail at each write.
#[test]
fn a_change_of_labels_beside_a_scrub_leaves_a_label() {
    for (second, described) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut tried = 0;
        'wait: for wait in 0..12 {
            let mut harness = plain();
            let at = if second { second_area(&harness.media[0]) } else { 0 };
            harness.media[0][at..at + SECTOR_BYTES].fill(0x5a);
            harness.start(Command::Job(JobCommand::Scrub));
            // what is in the cache of the first device: offset and bytes of its labels
            let mut cached: Vec<(usize, Vec<u8>)> = Vec::new();
            let (mut durable, mut found) = (harness.media[0].clone(), false);
            // label writes that take some turns
            let mut slow: Vec<(u64, Io)> = Vec::new();
            for turn in 0..120u64 {
                if turn == wait && described {
                    let device = harness.engine.pool().unwrap().devices[1].id;
                    harness.engine.describe_devices(vec![DeviceNote { device, size: 1, path: "/dev/b".into(), serial: String::new() }]);
                } else if turn == wait {
                    let added = add_device(&mut harness);
                    harness.start(added);
                }
                harness.turn();
                while slow.first().is_some_and(|(since, _)| since + 4 < turn) {
                    let (_, io) = slow.remove(0);
                    if let IoKind::Write { offset, pieces } = &io.kind {
                        cached.push((*offset as usize, pieces[0].bytes()[..SECTOR_BYTES].to_vec()));
                    }
                    harness.perform(io);
                }
                for io in std::iter::from_fn(|| harness.engine.pop_io()).collect::<Vec<_>>() {
                    match &io.kind {
                        IoKind::Write { offset, .. } if io.device.0 == 0 && [0, (16 << 20) - AREA_BYTES].contains(offset) => {
                            let same = |(_, io): &(u64, Io)| matches!(io.kind, IoKind::Write { offset: other, .. } if other == *offset);
                            assert!(!slow.iter().any(same), "a copy is written twice at once: either may be the last");
                            // before the scrub has found the copy, a change of the labels knows of none
                            found |= *offset as usize == at;
                            if !found {
                                continue 'wait;
                            }
                            // power fails: this one is torn, and those before it are lost
                            assert!(is_left(&durable, *offset as usize), "second {second}, after {wait} turns: no label is left");
                            slow.push((turn, io));
                            continue;
                        }
                        IoKind::Flush if io.device.0 == 0 => {
                            for (at, bytes) in cached.drain(..) {
                                durable[at..at + SECTOR_BYTES].copy_from_slice(&bytes);
                            }
                        }
                        _ => {}
                    }
                    harness.perform(io);
                }
            }
            harness.settle();
            assert_eq!(harness.engine.pool().unwrap().devices.len(), if described { 2 } else { 3 });
            let [first, last] = sectors(&harness.media[0]);
            assert!(first == last, "second {second}, after {wait} turns");
            tried += 1;
        }
        assert!(tried > 4, "second {second}: {tried} changes beside the scrub");
    }
}

/// A bad first copy is left behind by a change of the shape, and counts no more when it can be read
/// again.
#[test]
fn an_older_first_copy_does_not_count() {
    let mut harness = plain();
    let old = sectors(&harness.media[0])[0].clone();
    harness.media[0][..SECTOR_BYTES].fill(0x5a);
    harness.unwritable = vec![(0, 0)];
    harness.command(JobCommand::Scrub).unwrap();
    harness.finish_jobs();
    let added = add_device(&mut harness);
    harness.command(added).unwrap();
    assert_eq!(*harness.engine.state(), PoolState::Online);
    harness.command(Command::Close).unwrap();
    harness.media[0][..SECTOR_BYTES].copy_from_slice(&old);
    // the others are away
    let why = import(&harness.media[..1], FEATURES).err().unwrap();
    assert!(why.contains('3') || why.contains("lacks"), "{why}");
    let again = import(&harness.media, FEATURES).unwrap();
    assert_eq!(again.engine.pool().unwrap().devices.len(), 3);
}
