//! Bases: clones of publications, whose blocks are fetched when they are read.

use std::collections::{BTreeMap, BTreeSet};

use millpond_block::{Buf, ByteRange, DiskError, Op, SectorProfile};
use millpond_engine::{
    BaseInfo, Busy, CatalogCommand, Command, CommandError, Compression, DeviceCommand, Fetch, FetchError, Invalid, Layout, NewBase,
    PoolState, Reply, SnapshotId, Target, Tuning, VolumeId,
};
use millpond_format::{BASES, FEATURES, Feature};

use crate::harness::Harness;

mod ahead;
mod moves;

static WITH_BASES: &[Feature] = &[FEATURES[0], FEATURES[1], BASES];
/// Those of version 0.1.0.
static WITHOUT_BASES: &[Feature] = &[FEATURES[0], FEATURES[1]];

/// Bytes that are fetched at a time.
const UNIT: u64 = 64 << 10;
/// Bytes of the base: 3 leaves and a bit, not a multiple of the unit.
const SIZE: u64 = 1600 * 4096 + 4096;

fn tuning() -> Tuning {
    Tuning { map_memory: 4 << 20, checkpoint_log_bytes: 2 << 20, features: WITH_BASES, ..Tuning::default() }
}

/// Content of a block of the base: every fifth block and some chunks are zero.
fn block_of(block: u64) -> Vec<u8> {
    let zero = block % 5 == 4 || block / 16 % 7 == 3;
    (0..4096u64).map(|at| if zero { 0 } else { (block * 31 + at / 8 + 1) as u8 }).collect()
}

fn content(offset: u64, length: u64) -> Vec<u8> {
    let bytes: Vec<u8> = (offset / 4096..(offset + length).div_ceil(4096))
        .flat_map(|block| if block * 4096 < SIZE { block_of(block) } else { vec![0; 4096] })
        .collect();
    bytes[(offset % 4096) as usize..][..length as usize].to_vec()
}

fn buf_of(bytes: &[u8]) -> Buf {
    let mut buf = Buf::zeroed(bytes.len());
    buf.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
    buf
}

/// A store of chunks.
#[derive(Default)]
struct Store {
    /// Number of fetches, by chunk.
    fetched: BTreeMap<u64, u32>,
    /// Chunks that it does not have.
    missing: BTreeSet<u64>,
    away: bool,
}

impl Store {
    fn result(&mut self, fetch: Fetch) -> Result<Option<Buf>, FetchError> {
        *self.fetched.entry(fetch.chunk).or_default() += 1;
        if self.missing.contains(&fetch.chunk) {
            return Err(FetchError::Missing);
        }
        let offset = fetch.chunk * UNIT;
        let bytes = content(offset, UNIT.min(SIZE - offset));
        Ok((!bytes.iter().all(|byte| *byte == 0)).then(|| buf_of(&bytes)))
    }

    /// Answers all fetches, the last one first.
    fn serve(&mut self, harness: &mut Harness) {
        harness.settle();
        while !self.away {
            let mut fetches: Vec<Fetch> = std::iter::from_fn(|| harness.engine.pop_fetch()).collect();
            if fetches.is_empty() {
                return;
            }
            fetches.reverse();
            for fetch in fetches {
                let result = self.result(fetch);
                harness.engine.fetched(fetch, result);
            }
            harness.settle();
        }
    }

    fn request(&mut self, harness: &mut Harness, target: Target, op: Op, offset: u64, length: u64) -> Result<Vec<u8>, DiskError> {
        harness.submit(target, op, offset, length);
        self.serve(harness);
        let done = harness.engine.pop_completion().expect("an answer");
        done.result.map(|data| data.iter().map(|piece| piece.bytes()).collect::<Vec<_>>().concat())
    }

    fn write(&mut self, harness: &mut Harness, target: Target, offset: u64, bytes: &[u8]) {
        harness.write(target, offset, bytes);
        self.serve(harness);
        harness.engine.pop_completion().expect("an answer").result.unwrap();
    }

    /// Checks a range of a volume whose size is at least that of the base.
    fn check(&mut self, harness: &mut Harness, target: Target, offset: u64, wanted: &[u8]) {
        let read = self.request(harness, target, Op::Read, offset, wanted.len() as u64).unwrap();
        if let Some(at) = (0..wanted.len()).find(|at| read[*at] != wanted[*at]) {
            panic!("{target:?} at {}: {} instead of {}", offset + at as u64, read[at], wanted[at]);
        }
    }

    fn fetches(&self) -> u32 {
        self.fetched.values().sum()
    }
}

fn base(harness: &mut Harness, name: &str, compression: Compression) -> NewBase {
    let source = BaseInfo { unit: UNIT as u32, source: "a store".to_owned() };
    let command = CatalogCommand::CreateBase { name: name.to_owned(), size: SIZE, sector: SectorProfile::S512e, compression, source };
    match harness.command(command).unwrap() {
        Reply::Base(base) => base,
        other => panic!("{other:?}"),
    }
}

fn clone_of(harness: &mut Harness, snapshot: SnapshotId, name: &str) -> VolumeId {
    match harness.command(CatalogCommand::Clone { snapshot, name: name.to_owned() }).unwrap() {
        Reply::Volume(volume) => volume,
        other => panic!("{other:?}"),
    }
}

/// A pool of `mib` MiB with a base and a clone of it.
fn pool(mib: usize, compression: Compression) -> (Harness, NewBase, VolumeId) {
    let mut harness = Harness::with(&[mib], Layout::Linear, tuning());
    harness.command(DeviceCommand::TurnFeaturesOn).unwrap();
    let base = base(&mut harness, "golden", compression);
    let clone = clone_of(&mut harness, base.snapshot, "vm");
    (harness, base, clone)
}

#[test]
fn every_chunk_is_fetched_once_and_kept() {
    for compression in [Compression::Off, Compression::Lz4] {
        let (mut harness, base, clone) = pool(64, compression);
        let mut store = Store::default();
        for offset in (0..SIZE).step_by(40 << 10) {
            let length = (40 << 10).min(SIZE - offset);
            store.check(&mut harness, Target::Head(clone), offset, &content(offset, length));
        }
        assert!(store.fetched.values().all(|times| *times == 1), "{:?}", store.fetched);
        assert_eq!(store.fetches() as u64, SIZE.div_ceil(UNIT));
        // the base, its snapshot and other clones have it, too, and after a restart
        let other = clone_of(&mut harness, base.snapshot, "vm2");
        for crash in [false, true] {
            if crash {
                harness.reopen();
            }
            for target in [Target::Head(clone), Target::Head(other), Target::Head(base.volume), Target::Snapshot(base.snapshot)] {
                store.check(&mut harness, target, 0, &content(0, SIZE));
            }
        }
        assert_eq!(store.fetches() as u64, SIZE.div_ceil(UNIT));
        harness.audit();
        let infos = harness.engine.volumes();
        let info = |volume| infos.iter().find(|info| info.id == volume).unwrap();
        assert_eq!(info(base.volume).base.as_ref().unwrap().source, "a store");
        assert!(info(base.volume).read_only && info(clone).base.is_none() && !info(clone).read_only);
        assert_eq!(info(clone).referenced_bytes, 0);
        assert!(info(base.volume).referenced_bytes < SIZE, "blocks of zeroes are holes");
    }
}

#[test]
fn a_read_waits_for_all_its_chunks_and_others_go_on() {
    let (mut harness, _, clone) = pool(64, Compression::Off);
    let (mut store, target) = (Store::default(), Target::Head(clone));
    harness.submit(target, Op::Read, UNIT / 2, 2 * UNIT);
    harness.submit(target, Op::Read, UNIT, 4096);
    harness.settle();
    let fetches: Vec<Fetch> = std::iter::from_fn(|| harness.engine.pop_fetch()).collect();
    assert_eq!(fetches.iter().map(|fetch| fetch.chunk).collect::<Vec<_>>(), [0, 1, 2]);
    harness.write(target, 100 * UNIT / 4, &[7; 4096]);
    harness.settle();
    assert!(harness.engine.pop_completion().unwrap().result.is_ok(), "the write does not wait");
    for fetch in [fetches[2], fetches[1]] {
        let result = store.result(fetch);
        harness.engine.fetched(fetch, result);
    }
    harness.settle();
    let done = harness.engine.pop_completion().unwrap().result.unwrap();
    assert_eq!(done.iter().map(|piece| piece.len()).sum::<usize>(), 4096, "the second read needs one chunk");
    assert!(harness.engine.pop_completion().is_none());
    let result = store.result(fetches[0]);
    harness.engine.fetched(fetches[0], result);
    // an answer that comes twice is ignored
    let result = store.result(fetches[0]);
    harness.engine.fetched(fetches[0], result);
    harness.settle();
    let done = harness.engine.pop_completion().unwrap().result.unwrap();
    assert_eq!(done.iter().map(|piece| piece.bytes()).collect::<Vec<_>>().concat(), content(UNIT / 2, 2 * UNIT));
    harness.audit();
}

#[test]
fn no_more_than_sixteen_chunks_are_fetched_at_a_time() {
    let (mut harness, _, clone) = pool(64, Compression::Off);
    harness.submit(Target::Head(clone), Op::Read, 0, 40 * UNIT);
    harness.settle();
    let fetches: Vec<Fetch> = std::iter::from_fn(|| harness.engine.pop_fetch()).collect();
    assert_eq!(fetches.len(), 16);
    let mut store = Store::default();
    let result = store.result(fetches[5]);
    harness.engine.fetched(fetches[5], result);
    assert_eq!(harness.engine.pop_fetch().map(|fetch| fetch.chunk), Some(16));
}

#[test]
fn what_cannot_be_fetched_is_an_error_and_is_tried_again() {
    let (mut harness, _, clone) = pool(64, Compression::Off);
    let mut store = Store { missing: BTreeSet::from([1]), ..Store::default() };
    let target = Target::Head(clone);
    assert_eq!(store.request(&mut harness, target, Op::Read, 0, 3 * UNIT), Err(DiskError::Io));
    store.check(&mut harness, target, 0, &content(0, UNIT));
    // a chunk that is too short is damaged
    harness.submit(target, Op::Read, UNIT, 4096);
    harness.settle();
    let fetch = harness.engine.pop_fetch().unwrap();
    harness.engine.fetched(fetch, Ok(Some(buf_of(&[1; 512]))));
    harness.settle();
    assert_eq!(harness.engine.pop_completion().unwrap().result.map(|_| ()), Err(DiskError::Io));
    // a write of a whole block needs nothing, one of a part fails
    harness.write(target, UNIT + 8192, &[9; 4096]);
    harness.write(target, UNIT + 4096 + 512, &[9; 512]);
    store.serve(&mut harness);
    let results: Vec<bool> = std::iter::from_fn(|| harness.engine.pop_completion()).map(|done| done.result.is_ok()).collect();
    assert_eq!(results, [true, false]);
    store.missing.clear();
    let mut wanted = content(UNIT, UNIT);
    wanted[8192..12288].fill(9);
    store.check(&mut harness, target, UNIT, &wanted);
}

#[test]
fn writes_and_discards_of_a_clone_hide_what_they_cover_and_no_more() {
    let (mut harness, base, clone) = pool(64, Compression::Off);
    let (mut store, target) = (Store::default(), Target::Head(clone));
    let mut wanted = content(0, SIZE);
    // before anything was fetched: within a leaf, across leaves, parts of blocks
    for (offset, length) in [(4096 * 3, 4096), (4096 * 510, 4096 * 5), (4096 * 700 + 512, 1024), (4096 * 1599, 8192)] {
        store.write(&mut harness, target, offset, &vec![0xee; length as usize]);
        wanted[offset as usize..][..length as usize].fill(0xee);
    }
    for (op, offset, length) in [
        (Op::Discard, 4096 * 100, 4096 * 30),
        (Op::Discard, 4096 * 1000, 4096 * 540),
        (Op::WriteZeroes { may_unmap: true }, 4096 * 200 + 512, 4096 * 2),
        (Op::Discard, 4096 * 1595, 4096 * 6),
    ] {
        store.request(&mut harness, target, op, offset, length).unwrap();
        wanted[offset as usize..][..length as usize].fill(0);
    }
    for reopens in 0..3 {
        match reopens {
            0 => {}
            1 => harness.reopen(),
            _ => {
                harness.command(Command::Checkpoint).unwrap();
                harness.reopen();
            }
        }
        store.check(&mut harness, target, 0, &wanted);
        store.check(&mut harness, Target::Snapshot(base.snapshot), 0, &content(0, SIZE));
        harness.audit();
    }
    assert!(store.fetched.values().all(|times| *times <= 1), "{:?}", store.fetched);
    // all of it, which leaves a map without nodes
    store.request(&mut harness, target, Op::Discard, 0, SIZE).unwrap();
    store.check(&mut harness, target, 0, &vec![0; SIZE as usize]);
    harness.reopen();
    store.check(&mut harness, target, 0, &vec![0; SIZE as usize]);
    harness.audit();
}

#[test]
fn a_discard_of_a_clone_of_any_size_is_done_in_few_steps() {
    let mut harness = Harness::with(&[64], Layout::Linear, tuning());
    harness.command(DeviceCommand::TurnFeaturesOn).unwrap();
    let source = BaseInfo { unit: 4 << 20, source: String::new() };
    let (size, sector) = (10 << 40, SectorProfile::S4kn);
    let command = CatalogCommand::CreateBase { name: "golden".into(), size, sector, compression: Compression::Off, source };
    let Reply::Base(base) = harness.command(command).unwrap() else { panic!("no base") };
    let clone = clone_of(&mut harness, base.snapshot, "vm");
    harness.submit(Target::Head(clone), Op::Discard, 4096, size - 3 * 4096);
    let mut turns = 0;
    while harness.step().0 == 0 {
        turns += 1;
    }
    assert!(turns < 400, "{turns} turns");
    let mut ranges = harness.query(Target::Head(clone), None, ByteRange { offset: 0, length: size }, 10).unwrap();
    let holes = ranges.iter().filter(|(_, set)| !set).map(|(length, _)| length).sum::<u64>();
    while ranges.iter().map(|(length, _)| length).sum::<u64>() < size {
        let offset = ranges.iter().map(|(length, _)| length).sum::<u64>();
        ranges.extend(harness.query(Target::Head(clone), None, ByteRange { offset, length: size - offset }, 10).unwrap());
    }
    assert!(holes > 0);
    let set: u64 = ranges.iter().filter(|(_, set)| *set).map(|(length, _)| length).sum();
    assert_eq!(set, 3 * 4096, "{ranges:?}");
    harness.reopen();
    harness.audit();
}

#[test]
fn beyond_its_base_a_clone_is_zero() {
    let (mut harness, _, clone) = pool(64, Compression::Off);
    let (mut store, target) = (Store::default(), Target::Head(clone));
    let more = SIZE + (8 << 20);
    harness.command(CatalogCommand::ResizeVolume { volume: clone, size: more }).unwrap();
    let mut wanted = content(0, SIZE);
    wanted.resize(more as usize, 0);
    store.check(&mut harness, target, 0, &wanted);
    assert_eq!(store.fetches() as u64, SIZE.div_ceil(UNIT));
    store.write(&mut harness, target, SIZE + (4 << 20), &[5; 4096]);
    wanted[(SIZE + (4 << 20)) as usize..][..4096].fill(5);
    store.check(&mut harness, target, 0, &wanted);
    // what a shrink cuts off does not come back
    let less = 4096 * 321;
    harness.command(CatalogCommand::ResizeVolume { volume: clone, size: less }).unwrap();
    harness.settle();
    harness.command(CatalogCommand::ResizeVolume { volume: clone, size: more }).unwrap();
    wanted[less as usize..].fill(0);
    for _ in 0..2 {
        store.check(&mut harness, target, 0, &wanted);
        harness.audit();
        harness.reopen();
    }
}

/// Returns the number of nodes of all maps.
fn nodes(harness: &Harness) -> u64 {
    let audit = harness.engine.audit(&mut |device, offset, out| {
        let at = offset as usize;
        out.copy_from_slice(&harness.media[device.index()][at..at + out.len()]);
    });
    assert!(audit.findings.is_empty(), "{:#?}", audit.findings);
    audit.nodes
}

#[test]
fn neither_a_clone_nor_an_import_clears_blocks_beyond_the_base() {
    let mut harness = Harness::with(&[64], Layout::Linear, tuning());
    harness.command(DeviceCommand::TurnFeaturesOn).unwrap();
    // whole leaves: where a leaf lies partly beyond the end, every import clears that part
    let (size, sector) = (4 * 512 * 4096, SectorProfile::S512e);
    let source = BaseInfo { unit: UNIT as u32, source: String::new() };
    let command = CatalogCommand::CreateBase { name: "golden".into(), size, sector, compression: Compression::Off, source };
    let Reply::Base(base) = harness.command(command).unwrap() else { panic!("no base") };
    let clone = clone_of(&mut harness, base.snapshot, "vm");
    for _ in 0..2 {
        assert_eq!(nodes(&harness), 0, "a map was changed");
        harness.reopen();
    }
    let mut store = Store::default();
    store.write(&mut harness, Target::Head(clone), 0, &[1; 4096]);
    assert_eq!(nodes(&harness), 2, "a write changes the path to its block");
}

#[test]
fn comparisons_take_what_reads_as_a_base_for_data() {
    let (mut harness, base, clone) = pool(64, Compression::Off);
    let mut store = Store::default();
    let range = ByteRange { offset: 0, length: SIZE };
    let target = Target::Head(clone);
    assert_eq!(harness.query(target, None, range, 10).unwrap(), [(SIZE, true)]);
    let first = harness.snapshot(clone, "first");
    assert_eq!(harness.query(target, Some(first), range, 10).unwrap(), [(SIZE, false)]);
    store.write(&mut harness, target, 4096 * 600, &[3; 8192]);
    store.request(&mut harness, target, Op::Discard, 4096 * 900, 4096 * 10).unwrap();
    let changed = [(4096 * 600, false), (8192, true), (4096 * 298, false), (40960, true), (SIZE - 4096 * 910, false)];
    assert_eq!(harness.query(target, Some(first), range, 10).unwrap(), changed);
    let holes = [(4096 * 900, true), (40960, false), (SIZE - 4096 * 910, true)];
    assert_eq!(harness.query(target, None, range, 10).unwrap(), holes);
    // what is fetched meanwhile changes nothing in clones
    store.check(&mut harness, Target::Snapshot(first), 0, &content(0, SIZE));
    assert_eq!(harness.query(target, Some(first), range, 10).unwrap(), changed);
    // in the base, holes show that blocks are zero
    let runs = harness.query(Target::Head(base.volume), None, range, 2000).unwrap();
    let zero: u64 = runs.iter().filter(|(_, set)| !set).map(|(length, _)| length).sum();
    assert_eq!(zero, (0..SIZE / 4096).filter(|block| block_of(*block)[0] == 0 && block_of(*block)[4095] == 0).count() as u64 * 4096);
    let more = SIZE + (6 << 20);
    harness.command(CatalogCommand::ResizeVolume { volume: clone, size: more }).unwrap();
    let all = ByteRange { offset: 0, length: more };
    let holes = [(4096 * 900, true), (40960, false), (SIZE - 4096 * 910, true), (more - SIZE, false)];
    assert_eq!(harness.query(target, None, all, 10).unwrap(), holes);
}

#[test]
fn snapshots_clones_and_rollbacks_of_clones_read_the_base() {
    let (mut harness, _, clone) = pool(64, Compression::Off);
    let mut store = Store::default();
    let first = harness.snapshot(clone, "first");
    store.write(&mut harness, Target::Head(clone), 0, &vec![1; UNIT as usize]);
    let second = harness.snapshot(clone, "second");
    let inner = clone_of(&mut harness, second, "inner");
    store.write(&mut harness, Target::Head(inner), UNIT, &vec![2; UNIT as usize]);
    harness.command(CatalogCommand::Promote { volume: inner, dry_run: false }).unwrap();
    harness.command(CatalogCommand::Rollback { snapshot: first, keep_as: "kept".into() }).unwrap();
    harness.command(CatalogCommand::DestroySnapshots { snapshots: vec![first] }).unwrap();
    for _ in 0..2 {
        let mut wanted = content(0, SIZE);
        wanted[..UNIT as usize].fill(1);
        store.check(&mut harness, Target::Head(clone), 0, &wanted);
        wanted[UNIT as usize..][..UNIT as usize].fill(2);
        store.check(&mut harness, Target::Snapshot(second), 2 * UNIT, &content(2 * UNIT, SIZE - 2 * UNIT));
        store.check(&mut harness, Target::Head(inner), 2 * UNIT, &content(2 * UNIT, SIZE - 2 * UNIT));
        harness.audit();
        harness.reopen();
    }
}

#[test]
fn a_base_is_not_changed() {
    let (mut harness, base, clone) = pool(64, Compression::Off);
    let volume = base.volume;
    let busy = |command: CatalogCommand, harness: &mut Harness| {
        assert_eq!(harness.command(command.clone()), Err(CommandError::Busy(Busy::Base)), "{command:?}");
    };
    busy(CatalogCommand::ResizeVolume { volume, size: SIZE * 2 }, &mut harness);
    busy(CatalogCommand::Promote { volume: clone, dry_run: false }, &mut harness);
    busy(CatalogCommand::Rollback { snapshot: base.snapshot, keep_as: "kept".into() }, &mut harness);
    busy(CatalogCommand::SetSector { volume, sector: SectorProfile::S4kn }, &mut harness);
    busy(CatalogCommand::SetProperties { volume, cache: None, compression: None, read_only: Some(false) }, &mut harness);
    busy(CatalogCommand::RenameSnapshot { snapshot: base.snapshot, name: "other".into() }, &mut harness);
    let snapshot =
        CatalogCommand::Snapshot { targets: vec![(volume, "s".into())], description: String::new(), expires: None, lock_millis: None };
    busy(snapshot, &mut harness);
    harness.write(Target::Head(volume), 0, &[1; 4096]);
    harness.settle();
    assert_eq!(harness.engine.pop_completion().unwrap().result.map(|_| ()), Err(DiskError::ReadOnly));
    let has_clones = Err(CommandError::Busy(Busy::HasClones { snapshot: "origin".into(), hidden: false }));
    assert_eq!(harness.command(CatalogCommand::DestroySnapshots { snapshots: vec![base.snapshot] }), has_clones);
    assert_eq!(harness.command(CatalogCommand::DestroyVolume { volume }), has_clones);
    let mut store = Store::default();
    store.check(&mut harness, Target::Head(clone), 0, &content(0, SIZE));
    harness.command(CatalogCommand::DestroyVolume { volume: clone }).unwrap();
    busy(CatalogCommand::DestroySnapshots { snapshots: vec![base.snapshot] }, &mut harness);
    harness.command(CatalogCommand::DestroyVolume { volume }).unwrap();
    harness.settle();
    harness.command(Command::Checkpoint).unwrap();
    harness.settle();
    assert_eq!(harness.engine.volumes().len(), 0);
    let live = harness.engine.pool().unwrap().allocated;
    assert!(live < 1 << 20, "{live} bytes are not free again");
    harness.audit();
    harness.reopen();
}

#[test]
fn a_pool_without_the_feature_has_no_bases() {
    let mut harness = Harness::with(&[64], Layout::Linear, tuning());
    let source = BaseInfo { unit: UNIT as u32, source: String::new() };
    let command = |source| CatalogCommand::CreateBase {
        name: "golden".into(),
        size: SIZE,
        sector: SectorProfile::S512e,
        compression: Compression::Off,
        source,
    };
    assert_eq!(harness.command(command(source)), Err(CommandError::Invalid(Invalid::NoBases)));
    harness.command(DeviceCommand::TurnFeaturesOn).unwrap();
    for unit in [0, 2048, 12 << 10, 8 << 20] {
        let source = BaseInfo { unit, source: String::new() };
        assert_eq!(harness.command(command(source)), Err(CommandError::Invalid(Invalid::Base)));
    }
    harness.command(Command::Close).unwrap();
    let older = Tuning { features: WITHOUT_BASES, ..tuning() };
    let why = Harness::import_with(harness.media, older, 1).err().unwrap();
    assert!(why.contains("bases"), "{why}");
}

#[test]
fn a_close_fails_the_reads_that_wait() {
    let (mut harness, base, clone) = pool(64, Compression::Off);
    let mut store = Store { away: true, ..Store::default() };
    harness.submit(Target::Head(clone), Op::Read, 0, 20 * UNIT);
    harness.write(Target::Head(clone), 30 * UNIT + 512, &[1; 512]);
    harness.settle();
    let fetch = harness.engine.pop_fetch().unwrap();
    assert_eq!((fetch.base, fetch.chunk), (base.volume, 0));
    harness.command(Command::Close).unwrap();
    assert_eq!(*harness.engine.state(), PoolState::Closed);
    let results: Vec<_> = std::iter::from_fn(|| harness.engine.pop_completion()).map(|done| done.result.map(|_| ())).collect();
    assert_eq!(results, [Err(DiskError::Shutdown); 2]);
    // an answer for the old engine reaches the new one
    harness.reopen();
    harness.submit(Target::Head(clone), Op::Read, 5 * UNIT, 4096);
    harness.settle();
    let other = harness.engine.pop_fetch().unwrap();
    assert!(other.id != fetch.id && other.chunk == 5, "{other:?}");
    harness.engine.fetched(fetch, Ok(Some(buf_of(&vec![9; UNIT as usize]))));
    harness.settle();
    assert!(harness.engine.pop_completion().is_none());
    let result = store.result(other);
    harness.engine.fetched(other, result);
    harness.settle();
    assert!(harness.engine.pop_completion().unwrap().result.is_ok());
    store.away = false;
    store.check(&mut harness, Target::Head(clone), 0, &content(0, SIZE));
}

#[test]
fn a_full_pool_serves_what_it_cannot_keep() {
    let (mut harness, _, clone) = pool(16, Compression::Off);
    let filler = harness.volume("filler", 64 << 20, Compression::Off);
    let failed = harness.write_blocks(Target::Head(filler), 0..16384, 6, 8);
    assert!(failed > 0, "the pool is not full");
    let mut store = Store::default();
    for _ in 0..2 {
        for offset in (0..SIZE).step_by(10 * UNIT as usize) {
            let length = (10 * UNIT).min(SIZE - offset);
            store.check(&mut harness, Target::Head(clone), offset, &content(offset, length));
        }
    }
    assert!(store.fetched.values().any(|times| *times > 1), "everything was kept");
    harness.audit();
    harness.command(CatalogCommand::DestroyVolume { volume: filler }).unwrap();
    harness.settle();
    store.check(&mut harness, Target::Head(clone), 0, &content(0, SIZE));
    let before = store.fetches();
    store.check(&mut harness, Target::Head(clone), 0, &content(0, SIZE));
    assert_eq!(store.fetches(), before, "there is room again");
}
