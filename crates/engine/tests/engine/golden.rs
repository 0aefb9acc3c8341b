//! Golden pools: images of version 1 of the format that every later engine imports, and damaged
//! copies that it refuses with these messages.
//!
//! `MILLPOND_GOLDEN=write cargo test -p millpond-engine golden` writes the images again.

use std::path::PathBuf;

use millpond_block::{MemberId, Op};
use millpond_engine::{Aim, CatalogCommand, Command, Compression, HoldInfo, Layout, PoolId, Reply, Target, Tuning};
use millpond_format::testing::{Kind, dump, put_checksum_right, undump};
use millpond_format::{AREA_BYTES, Column, DeviceId, Label, Member, RING_OFFSET, RING_SLOTS, Root, SECTOR_BYTES};

use crate::harness::Harness;

const SIZE_MIB: usize = 6;
const VOLUME: u64 = 256 << 10;
const BLOCK: u64 = 4096;

/// Written blocks: first block, number, byte.
type Content<'a> = &'a [(u64, u64, u8)];

/// Expected content of a target, by name: `volume` or `volume@snapshot`.
type Expected = &'static [(&'static str, Content<'static>)];

const BEFORE: Content<'_> = &[(0, 8, 0x11), (20, 4, 0x22)];
const AFTER: Content<'_> = &[(0, 2, 0x11), (2, 3, 0x33), (5, 3, 0x11), (21, 3, 0x22)];

/// A golden pool: its name, the function that makes it, its content.
type Pool = (&'static str, fn() -> Harness, Expected);

const POOLS: [Pool; 5] = [
    ("clean", clean, &[("disk", BEFORE), ("packed", BEFORE)]),
    ("dirty-log", dirty, &[("disk", AFTER), ("packed", BEFORE), ("late", &[(7, 1, 0x44)])]),
    ("snapshots", snapshots, &[("disk", BEFORE), ("disk@one", BEFORE), ("disk@two", AFTER), ("copy", AFTER), ("packed", BEFORE)]),
    ("promoted", promoted, &[("disk", BEFORE), ("copy@one", BEFORE), ("copy@two", AFTER), ("copy", AFTER), ("branch", BEFORE)]),
    ("holds", holds, &[("disk@one", BEFORE), ("disk@two", AFTER)]),
];

/// Tags of the snapshots that have some, `-` for holds without a tag.
const TAGS: &[(&str, &str)] = &[("one", "- audit backup"), ("two", "late")];

fn fill(harness: &mut Harness, volume: &str, content: Content<'_>) {
    let target = target(harness, volume);
    for (first, count, byte) in content {
        harness.request(target, Op::Write, first * BLOCK, count * BLOCK, &vec![*byte; (count * BLOCK) as usize]).unwrap();
    }
}

fn target(harness: &Harness, name: &str) -> Target {
    let (volume, snapshot) = name.split_once('@').map_or((name, None), |(volume, snapshot)| (volume, Some(snapshot)));
    let id = harness.engine.volumes().iter().find(|v| v.name == volume).unwrap_or_else(|| panic!("no volume {volume}")).id;
    match snapshot {
        None => Target::Head(id),
        Some(name) => Target::Snapshot(harness.engine.snapshots().iter().find(|s| s.volume == id && s.name == name).unwrap().id),
    }
}

fn base() -> Harness {
    let mut harness = Harness::new(&[SIZE_MIB], Layout::Linear);
    harness.volume("disk", VOLUME, Compression::Off);
    harness.volume("packed", VOLUME, Compression::Lz4);
    fill(&mut harness, "disk", BEFORE);
    fill(&mut harness, "packed", BEFORE);
    harness
}

fn change(harness: &mut Harness) {
    fill(harness, "disk", &[(2, 3, 0x33)]);
    let disk = target(harness, "disk");
    harness.request(disk, Op::Discard, 20 * BLOCK, BLOCK, &[]).unwrap();
}

fn clean() -> Harness {
    let mut harness = base();
    harness.command(Command::Close).unwrap();
    harness
}

fn dirty() -> Harness {
    let mut harness = base();
    harness.command(Command::Checkpoint).unwrap();
    change(&mut harness);
    harness.volume("late", VOLUME, Compression::Zstd);
    fill(&mut harness, "late", &[(7, 1, 0x44)]);
    harness
}

fn snapshots() -> Harness {
    let mut harness = base();
    let Target::Head(disk) = target(&harness, "disk") else { panic!("a volume") };
    let one = harness.snapshot(disk, "one");
    change(&mut harness);
    let two = harness.snapshot(disk, "two");
    harness.command(CatalogCommand::Clone { snapshot: two, name: "copy".into() }).unwrap();
    harness.command(Command::Checkpoint).unwrap();
    fill(&mut harness, "disk", &[(0, 30, 0x55)]);
    harness.command(CatalogCommand::Rollback { snapshot: one, keep_as: "kept".into() }).unwrap();
    harness.command(Command::Close).unwrap();
    harness
}

/// A promoted clone, and another clone of a snapshot that was not moved: its lineage has a lower id
/// than the lineage that it starts from.
fn promoted() -> Harness {
    let mut harness = base();
    let Target::Head(disk) = target(&harness, "disk") else { panic!("a volume") };
    harness.snapshot(disk, "one");
    change(&mut harness);
    let two = harness.snapshot(disk, "two");
    fill(&mut harness, "disk", &[(0, 30, 0x55)]);
    let three = harness.snapshot(disk, "three");
    harness.command(CatalogCommand::Clone { snapshot: three, name: "branch".into() }).unwrap();
    fill(&mut harness, "branch", &[(0, 30, 0)]);
    fill(&mut harness, "branch", BEFORE);
    let Reply::Volume(copy) = harness.command(CatalogCommand::Clone { snapshot: two, name: "copy".into() }).unwrap() else { panic!() };
    harness.command(Command::Checkpoint).unwrap();
    harness.command(CatalogCommand::Promote { volume: copy, dry_run: false }).unwrap();
    harness.command(Command::Checkpoint).unwrap();
    fill(&mut harness, "disk", &[(0, 30, 0)]);
    fill(&mut harness, "disk", BEFORE);
    harness.command(Command::Close).unwrap();
    harness
}

/// Snapshots with holds, with and without tags.
fn holds() -> Harness {
    let mut harness = base();
    let Target::Head(disk) = target(&harness, "disk") else { panic!("a volume") };
    let one = harness.snapshot(disk, "one");
    change(&mut harness);
    let two = harness.snapshot(disk, "two");
    let hold = |snapshot, tag: Option<&str>| {
        Command::Catalog(CatalogCommand::Hold { snapshot, tag: tag.map(str::to_owned), until: None, locked: false })
    };
    for command in [hold(one, Some("audit")), hold(one, None), hold(one, Some("backup"))] {
        harness.command(command).unwrap();
    }
    harness.command(Command::Checkpoint).unwrap();
    harness.command(hold(two, Some("late"))).unwrap();
    harness.command(Command::Close).unwrap();
    harness
}

fn tags(harness: &Harness) -> Vec<(String, String)> {
    let tag = |hold: &HoldInfo| hold.tag.clone().unwrap_or_else(|| "-".to_owned());
    let snapshots = harness.engine.snapshots();
    let held = snapshots.iter().filter(|s| s.holds > 0);
    held.map(|s| (s.name.clone(), s.hold_list.iter().map(tag).collect::<Vec<_>>().join(" "))).collect()
}

fn verify(harness: &mut Harness, expected: Expected, name: &str) {
    for (who, content) in expected {
        let mut wanted = vec![0u8; VOLUME as usize];
        for (first, count, byte) in *content {
            wanted[(first * BLOCK) as usize..((first + count) * BLOCK) as usize].fill(*byte);
        }
        let target = target(harness, who);
        assert!(harness.request(target, Op::Read, 0, VOLUME, &[]).unwrap() == wanted, "{name}: {who} reads as something else");
    }
    let held: &[(&str, &str)] = if name == "holds" { TAGS } else { &[] };
    assert!(
        tags(harness).iter().map(|(name, tags)| (name.as_str(), tags.as_str())).eq(held.iter().copied()),
        "{name}: {:?}",
        tags(harness)
    );
    harness.audit();
}

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{name}.txt"))
}

#[allow(clippy::disallowed_methods, reason = "reads the golden files")]
pub fn golden(name: &str) -> Vec<u8> {
    undump(&std::fs::read_to_string(file(name)).unwrap()).unwrap()
}

#[test]
#[allow(clippy::disallowed_methods, reason = "writes the golden files when asked to")]
fn golden_pools_are_imported() {
    for (name, make, expected) in POOLS {
        let made = make().media.remove(0);
        assert!(made == make().media.remove(0), "{name}: the engine is not deterministic");
        if std::env::var("MILLPOND_GOLDEN").is_ok_and(|word| word == "write") {
            std::fs::write(file(name), dump(&made)).unwrap();
        }
        for image in [made, golden(name)] {
            let mut harness = Harness::import(vec![image]).unwrap_or_else(|why| panic!("{name}: {why}"));
            assert_eq!(harness.engine.metrics().replayed_batches > 0, name == "dirty-log", "{name}: replayed batches");
            verify(&mut harness, expected, name);
            harness.reopen();
            verify(&mut harness, expected, name);
            // as this version stores it
            harness.command(Command::Checkpoint).unwrap();
            harness.reopen();
            verify(&mut harness, expected, name);
            destroy_all(&mut harness);
        }
    }
}

/// Destroys everything and checks that all space is freed, also that of deadlists of an older
/// version.
fn destroy_all(harness: &mut Harness) {
    for snapshot in harness.engine.snapshots() {
        for hold in snapshot.hold_list {
            harness.command(CatalogCommand::Release { snapshot: snapshot.id, tag: hold.tag }).unwrap();
        }
    }
    // clones are destroyed before their origins
    while !harness.engine.volumes().is_empty() {
        let gone = harness
            .engine
            .volumes()
            .iter()
            .filter(|volume| harness.command(CatalogCommand::DestroyVolume { volume: volume.id }).is_ok())
            .count();
        assert!(gone > 0, "{:?}", harness.engine.volumes());
    }
    harness.settle();
    harness.command(Command::Checkpoint).unwrap();
    harness.reopen();
    assert_eq!(harness.engine.metrics().reclaim_backlog, 0);
    harness.audit();
}

pub fn second_area(image: &[u8]) -> usize {
    image.len() - AREA_BYTES as usize
}

/// Changes the label in both areas.
pub fn relabel(image: &mut [u8], change: impl Fn(&mut [u8])) {
    for at in [0, second_area(image)] {
        change(&mut image[at..at + SECTOR_BYTES]);
    }
}

/// Generation of the newest root in an image.
fn newest(image: &[u8]) -> u64 {
    let slots = (0..RING_SLOTS as usize).map(|slot| &image[RING_OFFSET as usize + slot * SECTOR_BYTES..][..SECTOR_BYTES]);
    slots.filter_map(|sector| Root::decode(sector).ok()).map(|root| root.generation).max().unwrap()
}

fn refused(media: Vec<Vec<u8>>, why: &str) {
    match Harness::import(media) {
        Ok(_) => panic!("imported, but should say: {why}"),
        Err(said) => assert_eq!(said, why),
    }
}

#[test]
fn golden_pools_with_damaged_labels_are_refused() {
    let whole = golden("clean");
    let twin = |change: &dyn Fn(&mut [u8])| {
        let mut image = whole.clone();
        relabel(&mut image, change);
        vec![image]
    };
    let none = |why: &str| format!("device 0 has no label of a pool ({why}); leave it out or name the right device");
    refused(vec![whole[..5 << 20].to_vec()], "member 0 of pool 'pond' is smaller than it was: it was cut off");
    refused(vec![whole[..AREA_BYTES as usize].to_vec()], "no device is large enough to hold a pool");
    refused(vec![vec![0; whole.len()]], &none("not a Millpond structure"));
    refused(twin(&|label| label.fill(0xa5)), &none("not a Millpond structure"));
    refused(twin(&|label| label[30] ^= 4), &none("checksum mismatch"));
    let newer = twin(&|label| {
        label[8] = 4;
        put_checksum_right(Kind::Label, label);
    });
    refused(
        newer,
        "device 0 has a label for another program (format version 4 is not this program's); use the one that it was made with, or a newer one",
    );
    let features = twin(&|label| {
        label[18] = 0x80;
        put_checksum_right(Kind::Label, label);
    });
    refused(
        features,
        "device 0 has a label for another program (needs features 0x80 that this program does not have); use the one that it was made with, or a newer one",
    );
    let other = |change: &dyn Fn(&mut Label)| {
        twin(&|sector| {
            let mut label = Label::decode(sector).unwrap();
            change(&mut label);
            sector.copy_from_slice(&label.encode());
        })
        .remove(0)
    };
    let foreign = other(&|label| (label.pool, label.name) = (PoolId([9; 16]), "lake".into()));
    let (own, not_own) = ("07".repeat(16), "09".repeat(16));
    refused(vec![whole.clone(), foreign], &format!("device 1 belongs to pool 'lake' ({not_own}), not to 'pond' ({own})"));
    refused(vec![whole.clone(), whole.clone()], "device 1 is given twice, or is a copy of another");
    let two = other(&|label| {
        let more = Member { device: DeviceId(77), ..label.shape.members[0] };
        label.shape.members.push(more);
        label.shape.groups[0].columns.push(Column { member: MemberId(1), first: 0, extents: 1 });
        label.shape.next.0 += 1;
    });
    refused(vec![two], "member 1 of the 2 devices of pool 'pond' is missing");
    let mut one_copy = whole.clone();
    one_copy[..SECTOR_BYTES].fill(0xa5);
    assert!(Harness::import(vec![one_copy]).is_ok(), "the second label is enough");
}

#[test]
fn golden_pools_with_damaged_roots_are_refused() {
    for (name, _, expected) in POOLS {
        let whole = golden(name);
        let (generation, second) = (newest(&whole), second_area(&whole));
        let slot = Root::slot_offset(generation) as usize;
        for at in [slot, second + slot] {
            let mut image = whole.clone();
            image[at + 40] ^= 1;
            let mut harness = Harness::import(vec![image]).unwrap_or_else(|why| panic!("{name}: {why}"));
            verify(&mut harness, expected, name);
        }
        let mut image = whole.clone();
        (image[slot + 40], image[second + slot + 3000]) = (0xff, 0xff);
        let lost = "was committed and is damaged in both copies (device 0, slot";
        refused(vec![image], &format!("root {generation} {lost} {generation}): an older root would lose what came after it"));
        let mut image = whole.clone();
        for at in [slot, second + slot] {
            image[at + 8] = 3;
            put_checksum_right(Kind::Root, &mut image[at..at + SECTOR_BYTES]);
        }
        refused(vec![image], &format!("device 0, slot {generation} of its roots: format version 3 is not this program's"));
        let mut image = whole.clone();
        for area in [0, second] {
            image[area + RING_OFFSET as usize..area + slot + SECTOR_BYTES].fill(0);
        }
        refused(vec![image], "no root of the pool is readable");
        let root = Root::decode(&whole[slot..slot + SECTOR_BYTES]).unwrap();
        let mut image = whole.clone();
        let object = AREA_BYTES as usize + root.checkpoint.segment.0 as usize * (64 << 10) + root.checkpoint.offset as usize * 64;
        image[object + 9] ^= 0x10;
        refused(vec![image], "a checkpoint object does not match its checksum: the checkpoint is damaged");
        // a power cut during the first write of the next root leaves the second area as before
        let mut image = whole.clone();
        image[slot + SECTOR_BYTES..slot + SECTOR_BYTES + 512].fill(0x77);
        let mut harness = Harness::import(vec![image]).unwrap_or_else(|why| panic!("{name}: {why}"));
        verify(&mut harness, expected, name);
    }
}

#[test]
fn golden_pools_have_restore_points_that_can_be_used() {
    for (name, _, expected) in POOLS {
        let image = vec![golden(name)];
        let newest = Harness::survey(&image).unwrap().points.remove(0);
        assert!(newest.is_usable(), "{name}: {newest:?}");
        let tuning = Tuning { aim: Aim::Rewind, ..Tuning::default() };
        let mut harness = Harness::import_with(image, tuning, 1).unwrap_or_else(|why| panic!("{name}: {why}"));
        verify(&mut harness, expected, name);
    }
}
