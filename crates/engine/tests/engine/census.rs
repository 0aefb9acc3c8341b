//! The census predicts how much special devices would hold; compared with the same writes on a pool
//! with special devices.

use millpond_block::{MemberId, Op};
use millpond_engine::{
    CatalogCommand, Class, Command, Compression, DeviceCommand, GroupSpec, Layout, QueryCommand, Reply, Target, Tuning, VolumeCensus,
    VolumeId, VolumeOptions, WRITE_SIZES, WriteSizes,
};

use crate::harness::Harness;
use millpond_testing::Random;

const SIZE: u64 = 48 << 20;
const BLOCK: u64 = 4096;

pub fn census(harness: &mut Harness) -> WriteSizes {
    match harness.command(QueryCommand::WriteSizes).unwrap() {
        Reply::WriteSizes(census) => census,
        other => panic!("{other:?}"),
    }
}

fn of(census: &WriteSizes, volume: VolumeId) -> VolumeCensus {
    *census.volumes.iter().find(|of| of.volume == volume).unwrap()
}

/// Bytes that came with writes of at most `bytes` bytes.
fn up_to(of: &VolumeCensus, bytes: u64) -> u64 {
    WRITE_SIZES.iter().zip(of.sizes).filter(|(size, _)| **size <= bytes).map(|(_, bytes)| bytes).sum()
}

fn small(blocks: u64) -> VolumeOptions {
    VolumeOptions { special_small_blocks: (blocks * BLOCK) as u32, ..VolumeOptions::default() }
}

/// A pool with special devices, or without.
fn pool(special: bool) -> (Harness, VolumeId) {
    let group = |class, devices| GroupSpec { class, layout: Layout::Linear, devices: Some(devices) };
    let tuning = Tuning { map_memory: 512 << 10, checkpoint_log_bytes: 8 << 20, ..Tuning::default() };
    let mut groups = vec![group(Class::Data, 1)];
    groups.extend(special.then(|| group(Class::Special, 1)));
    let mut harness = Harness::with_groups(&[320, 160][..groups.len()], groups, tuning);
    let volume = harness.volume("disk0", SIZE, Compression::Off);
    (harness, volume)
}

/// Fills the volume in large writes; then writes 1 to 8 blocks, and sometimes 64 to 400, at random
/// places, with a snapshot after every third write.
fn write(harness: &mut Harness, volume: VolumeId, rounds: u64) {
    let mut random = Random::new(11);
    let mut below = |n| random.below(n);
    let all = SIZE / BLOCK / 256;
    for step in 0..all + rounds {
        let (blocks, at) = match step < all {
            true => (256, step * 256),
            false => {
                let blocks = if below(32) == 0 { 64 + below(337) } else { 1 << below(4) };
                (blocks, below(SIZE / BLOCK - blocks))
            }
        };
        let bytes: Vec<u8> = (0..blocks * BLOCK).map(|i| (i >> 7) as u8 ^ ((i * step) >> 11) as u8).collect();
        harness.request(Target::Head(volume), Op::Write, at * BLOCK, blocks * BLOCK, &bytes).unwrap();
        if step >= all && step % (rounds / 3) == 7 {
            harness.snapshot(volume, &format!("s{step}"));
        }
    }
}

#[test]
fn what_is_foretold_is_what_special_devices_hold() {
    let (mut harness, volume) = pool(false);
    write(&mut harness, volume, 900);
    let sizes = census(&mut harness);
    assert_eq!((sizes.special, sizes.special_nodes, of(&sizes, volume).special), (0, 0, 0));
    harness.reopen();
    assert_eq!(census(&mut harness).volumes, sizes.volumes, "after an import");
    // half of an overwritten write counts as a write of half the size, which shows between sizes
    // close to each other
    for (blocks, percent) in [(2, 10), (8, 5), (16, 5)] {
        let (mut harness, volume) = pool(true);
        harness.command(Command::Checkpoint).unwrap();
        harness.command(CatalogCommand::SetOptions { volume, options: small(blocks) }).unwrap();
        write(&mut harness, volume, 900);
        let there = of(&census(&mut harness), volume);
        let foretold = up_to(&of(&sizes, volume), blocks * BLOCK);
        assert!(there.special > 256 << 10, "{there:?}");
        assert!(foretold.abs_diff(there.special) * 100 <= there.special * percent, "up to {blocks} blocks: {foretold}, {there:?}");
        // a pool with special devices gets the same numbers
        assert!(up_to(&there, blocks * BLOCK).abs_diff(foretold) * 100 <= foretold * percent, "{foretold} {there:?}");
    }
}

#[test]
fn cleaning_and_removals_change_nothing() {
    let (mut harness, volume) = pool(false);
    write(&mut harness, volume, 600);
    let sizes = census(&mut harness);
    let devices = vec![harness.new_device(320)];
    harness.command(DeviceCommand::AddDevices { groups: vec![GroupSpec::data(Layout::Linear)], devices }).unwrap();
    harness.command(DeviceCommand::Remove { member: MemberId(0), dry_run: false }).unwrap();
    harness.finish_jobs();
    assert!(harness.engine.metrics().cleaner_bytes > 10 << 20);
    assert_eq!(census(&mut harness).volumes, sizes.volumes);
}

#[test]
fn what_versions_share_counts_once() {
    let (mut harness, volume) = pool(false);
    let put = |harness: &mut Harness, volume: VolumeId, at: u64, blocks: u64| {
        harness.request(Target::Head(volume), Op::Write, at * BLOCK, blocks * BLOCK, &vec![3; (blocks * BLOCK) as usize]).unwrap();
    };
    put(&mut harness, volume, 0, 200);
    put(&mut harness, volume, 1000, 4);
    let old = harness.snapshot(volume, "old");
    put(&mut harness, volume, 50, 2);
    harness.snapshot(volume, "new");
    put(&mut harness, volume, 1000, 1);
    let Reply::Volume(clone) = harness.command(CatalogCommand::Clone { snapshot: old, name: "clone".into() }).unwrap() else { panic!() };
    put(&mut harness, clone, 3000, 16);
    let blocks = |census: &WriteSizes, volume: VolumeId| of(census, volume).sizes.map(|bytes| bytes / BLOCK);
    let sizes = census(&mut harness);
    // of the four blocks the snapshots have one, and the head has three
    assert_eq!(blocks(&sizes, volume), [1, 2, 4, 0, 0, 0, 200]);
    assert_eq!(blocks(&sizes, clone), [0, 0, 0, 0, 16, 0, 0]);
    harness.command(CatalogCommand::Rollback { snapshot: old, keep_as: "kept".into() }).unwrap();
    put(&mut harness, volume, 0, 8);
    let sizes = census(&mut harness);
    assert_eq!(blocks(&sizes, volume), [1, 2, 4, 8, 0, 0, 200]);
    assert_eq!(blocks(&sizes, clone), [0, 0, 0, 0, 16, 0, 0]);
}
