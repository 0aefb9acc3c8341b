//! One flipped bit anywhere: labels, roots, headers, nodes, objects, data, parity, cache. Reads
//! return correct data or an error. With redundancy they return correct data, the pool can be
//! imported without options, and a scrub repairs the bit.
//!
//! `MILLPOND_FLIPS` sets how many bits of each pool are tried; `all` tries one in every significant
//! byte.

use std::collections::BTreeMap;
use std::env;

use millpond_block::{DeviceSlot, Op};
use millpond_engine::{
    CatalogCommand, Class, Command, Compression, GroupSpec, JobCommand, Layout, SnapshotId, Target, Tuning, VolumeId, VolumeOptions,
};
use millpond_format::{BATCH_FIXED, BatchHeader, RING_OFFSET, RING_SLOTS, SECTOR_BYTES};

use crate::harness::Harness;

const SIZE: usize = 1 << 20;
const STEP: usize = 64 << 10;
const AREA: usize = 1 << 20;
const PAGE: usize = 4096;
/// First bytes of guests' pages that are not compressed.
const MARK: &[u8; 8] = b"GUESTDAT";
const HEADER: &[u8; 4] = b"MPBH";
/// Rounds of overwriting until the cleaner has moved something.
const ROUNDS: u8 = 60;
/// Number of the newest batches of which a header byte is tried in any case.
const NEWEST: usize = 100;
/// One of this many repaired flips is followed by a check without the other devices.
const TRIALS: usize = 3;

/// Data of a step of a volume: pages that identify themselves; half of each can be compressed.
fn pattern(at: usize, round: u8) -> Vec<u8> {
    let noise = |i: usize| ((i ^ usize::from(round) << 24).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8;
    let mut bytes: Vec<u8> = (at..at + STEP).map(|i| if i % PAGE < PAGE / 2 { round } else { noise(i) }).collect();
    for (page, nth) in bytes.chunks_mut(PAGE).zip(0..) {
        page[..8].copy_from_slice(MARK);
        page[8..16].copy_from_slice(&((at + nth * PAGE) as u64).to_le_bytes());
    }
    bytes
}

/// A pool and its expected content.
struct Pool {
    name: &'static str,
    /// Number of devices that each group can do without.
    spare: usize,
    harness: Harness,
    model: BTreeMap<Target, Vec<u8>>,
}

/// Places of bits to flip, by kind of content.
type Places = [Vec<(usize, usize)>; 5];

fn tuning() -> Tuning {
    Tuning { map_memory: 256 << 10, checkpoint_log_bytes: 1 << 20, log_percent: 10, ..Tuning::default() }
}

impl Pool {
    fn write(&mut self, volume: VolumeId, at: usize, round: u8) {
        let bytes = pattern(at, round);
        self.harness.request(Target::Head(volume), Op::Write, at as u64, STEP as u64, &bytes).unwrap();
        let model = self.model.entry(Target::Head(volume)).or_insert_with(|| vec![0; SIZE]);
        model[at..at + STEP].copy_from_slice(&bytes);
    }

    fn snapshot(&mut self, volume: VolumeId, name: &str) -> SnapshotId {
        let id = self.harness.snapshot(volume, name);
        self.model.insert(Target::Snapshot(id), self.model[&Target::Head(volume)].clone());
        id
    }

    /// Creates a pool with plain, compressed and small blocks, snapshots, moved chunks, several
    /// checkpoints, and a log after the last one, all of it flushed.
    fn new(name: &'static str, spare: usize, sizes: &[usize], groups: Vec<GroupSpec>) -> Pool {
        let harness = Harness::with_groups(sizes, groups, tuning());
        let mut pool = Pool { name, spare, harness, model: BTreeMap::new() };
        let packings = [("a", Compression::Off), ("b", Compression::Lz4), ("c", Compression::Off)];
        let [a, b, c] = packings.map(|(name, packing)| pool.harness.volume(name, SIZE as u64, packing));
        let options = VolumeOptions { special_small_blocks: 128 << 10, ..VolumeOptions::default() };
        pool.harness.command(CatalogCommand::SetOptions { volume: c, options }).unwrap();
        let steps = |every: usize| (0..SIZE).step_by(STEP * every);
        for volume in [a, b, c] {
            steps(1).for_each(|at| pool.write(volume, at, 1));
        }
        for volume in [a, b] {
            pool.snapshot(volume, "one");
        }
        pool.harness.command(Command::Checkpoint).unwrap();
        for round in 2..ROUNDS {
            steps(2).for_each(|at| pool.write(a, at, round));
            steps(3).for_each(|at| pool.write(b, at, round));
            if pool.harness.engine.metrics().cleaner_bytes > SIZE as u64 / 4 {
                break;
            }
        }
        assert!(pool.harness.engine.metrics().cleaner_bytes > 0, "{name}: nothing was moved");
        for _ in 0..3 {
            assert_eq!(pool.errors("before"), 0);
        }
        pool.harness.command(Command::Checkpoint).unwrap();
        for volume in [c, b, a] {
            steps(4).for_each(|at| pool.write(volume, at, 100));
        }
        pool.harness.request(Target::Head(a), Op::Flush, 0, 0, &[]).unwrap();
        // the header of this batch shows that all before it is durable; its own durability is not
        // recorded
        pool.write(a, 0, 100);
        pool
    }

    /// Reads everything and returns the number of failed steps. Other data than was written is a
    /// failure of the test.
    fn errors(&mut self, what: &str) -> usize {
        let mut errors = 0;
        for (target, model) in &self.model {
            for (at, wanted) in (0u64..).step_by(STEP).zip(model.chunks(STEP)) {
                match self.harness.request(*target, Op::Read, at, STEP as u64, &[]) {
                    Ok(read) => assert!(read == wanted, "{} {what}: wrong data of {target:?} at {at}", self.name),
                    Err(_) => errors += 1,
                }
            }
        }
        errors
    }

    /// Significant bytes: all or one in sixteen of the pool's own structures, one in each page of
    /// guests' data.
    fn places(media: &[Vec<u8>]) -> Places {
        let [mut labels, mut roots, mut headers, mut others, mut data]: Places = Default::default();
        for (device, medium) in media.iter().enumerate() {
            for area in [0, medium.len() - AREA] {
                labels.extend((0..SECTOR_BYTES).map(|at| (device, area + at)));
                let ring = area + RING_OFFSET as usize;
                let slots = (0..RING_SLOTS as usize).map(|slot| ring + slot * SECTOR_BYTES);
                let written = slots.filter(|at| medium[*at..at + SECTOR_BYTES].iter().any(|byte| *byte != 0));
                // fields of a root are at its start, its checksum is at its end
                roots.extend(written.flat_map(|at| (0..400).chain(SECTOR_BYTES - 4..SECTOR_BYTES).map(move |byte| (device, at + byte))));
            }
            for at in (AREA..medium.len() - AREA).step_by(PAGE) {
                let page = &medium[at..at + PAGE];
                if page.starts_with(MARK) {
                    data.push((device, at + (at / PAGE * 37) % PAGE));
                } else if page.starts_with(HEADER) {
                    headers.extend((0..BATCH_FIXED + 160).map(|byte| (device, at + byte)));
                } else if page.iter().any(|byte| *byte != 0) {
                    // nodes, objects, compressed blocks, parity
                    others.extend((0..PAGE).step_by(16).map(|byte| (device, at + byte + (at / PAGE) % 16)));
                }
            }
        }
        [labels, roots, headers, others, data]
    }

    /// A byte of the header of each of the newest batches: those after the last checkpoint, and some
    /// before it.
    fn newest_headers(media: &[Vec<u8>]) -> impl Iterator<Item = (usize, usize)> {
        let mut headers = Vec::new();
        for (device, medium) in media.iter().enumerate() {
            for at in (AREA..medium.len() - AREA).step_by(PAGE) {
                if let Ok((header, _)) = BatchHeader::decode(&medium[at..]) {
                    headers.push((header.lsn, (device, at + at / PAGE % BATCH_FIXED)));
                }
            }
        }
        headers.sort_unstable();
        headers.into_iter().rev().take(NEWEST).map(|(_, place)| place)
    }

    /// Flips bits one at a time in the pool as killed and as closed; by default `few` bits in each.
    #[allow(clippy::disallowed_methods, reason = "a person asks for more than fits into every test run")]
    fn try_flips(mut self, few: usize) {
        let killed = self.harness.media.clone();
        self.harness.command(Command::Close).unwrap();
        let closed = std::mem::take(&mut self.harness.media);
        for (what, base) in [("killed", killed), ("closed", closed)] {
            let few = match env::var("MILLPOND_FLIPS").as_deref() {
                Ok("all") => usize::MAX,
                Ok(count) => count.parse().unwrap(),
                Err(_) => few,
            };
            self.try_some(what, &base, few);
        }
    }

    #[allow(clippy::disallowed_macros, reason = "says what was tried")]
    fn try_some(&mut self, what: &str, base: &[Vec<u8>], count: usize) {
        let all = Self::places(base);
        // the same number of each kind, with a stride that has no factor in common with pages or
        // slots
        let stride = |places: &[(usize, usize)]| (places.len() / (count / all.len()).max(1)).max(1) | 1;
        let mut places: Vec<(usize, usize)> = all.iter().flat_map(|places| places.iter().copied().step_by(stride(places))).collect();
        if self.spare == 0 {
            places.extend(Self::newest_headers(base));
        }
        let (mut refused, mut errors, mut mended) = (0, 0, 0);
        let mut media = base.to_vec();
        for (nth, (device, at)) in places.iter().copied().enumerate() {
            let what = format!("{what}, bit {} of byte {at} of device {device}", nth % 8);
            media.iter_mut().zip(base).for_each(|(medium, base)| medium.copy_from_slice(base));
            media[device][at] ^= 1 << (nth % 8);
            match Harness::import_with(std::mem::take(&mut media), tuning(), self.harness.now + 1000) {
                Ok(harness) => self.harness = harness,
                Err(why) if self.spare > 0 => panic!("{} {what}: refused: {why}", self.name),
                Err(why) => {
                    assert!(why.len() > 20, "{} {what}: {why}", self.name);
                    (refused, media) = (refused + 1, base.to_vec());
                    continue;
                }
            }
            let wrong = self.errors(&what);
            errors += wrong;
            if self.spare > 0 {
                assert_eq!(wrong, 0, "{} {what}", self.name);
                mended += usize::from(self.mend(&what));
                if nth % TRIALS == 0 {
                    self.do_without(device, &what);
                }
            }
            media = std::mem::take(&mut self.harness.media);
        }
        // check that the test reaches the cases that it is about
        assert!(if self.spare > 0 { mended > 0 } else { refused + errors > 0 }, "{} {what}: {refused} {errors} {mended}", self.name);
        println!("{} {what}: {} bits, {refused} imports refused, {errors} errors, {mended} mended", self.name, places.len());
    }

    /// Runs a scrub that repairs everything, and a second one that must find nothing. True when the
    /// first one found something.
    fn mend(&mut self, what: &str) -> bool {
        let scrub = |harness: &mut Harness| {
            harness.command(JobCommand::Scrub).unwrap();
            harness.finish_jobs();
            harness.engine.pool().unwrap().scrub.unwrap()
        };
        let first = scrub(&mut self.harness);
        assert_eq!((first.lost_blocks, first.lost_nodes), (0, 0), "{} {what}: {first:?}", self.name);
        self.harness.audit();
        let second = scrub(&mut self.harness);
        assert_eq!((second.errors, second.repaired), (0, 0), "{} {what}: after {first:?} a second scrub finds {second:?}", self.name);
        first.errors > 0 || self.harness.engine.pool().unwrap().devices.iter().any(|device| device.repaired > 0)
    }

    /// Removes as many other devices of its class as the pool can do without, so the repaired data
    /// is used.
    fn do_without(&mut self, flipped: usize, what: &str) {
        let devices = self.harness.engine.pool().unwrap().devices;
        let class = devices[flipped].class;
        let others = devices.iter().filter(|device| device.class == class && device.slot != Some(DeviceSlot(flipped as u16)));
        let lost: Vec<usize> = others.filter_map(|device| device.slot.map(DeviceSlot::index)).take(self.spare).collect();
        let there = self.harness.media.iter().enumerate().filter(|(at, _)| !lost.contains(at));
        let media: Vec<Vec<u8>> = there.map(|(_, medium)| medium.clone()).collect();
        let tuning = Tuning { degraded: true, ..tuning() };
        let alone = Harness::import_with(media, tuning, self.harness.now + 1000);
        let whole =
            std::mem::replace(&mut self.harness, alone.unwrap_or_else(|why| panic!("{} {what}: without {lost:?}: {why}", self.name)));
        assert_eq!(self.errors(&format!("{what}, mended, without {lost:?}")), 0, "{} {what}: without {lost:?}", self.name);
        self.harness = whole;
    }
}

const MIRROR: Layout = Layout::Mirror { copies: 2 };

fn group(class: Class, layout: Layout, devices: usize) -> GroupSpec {
    GroupSpec { class, layout, devices: Some(devices) }
}

#[test]
fn a_flipped_bit_of_one_device_is_never_wrong_data() {
    Pool::new("linear", 0, &[12], vec![GroupSpec::data(Layout::Linear)]).try_flips(200);
}

#[test]
fn a_flipped_bit_of_a_stripe_with_special_and_log_is_never_wrong_data() {
    let stripe = Layout::Stripe { width: 2, unit: 16384 };
    let groups = vec![group(Class::Data, stripe, 2), group(Class::Special, Layout::Linear, 1), group(Class::Log, Layout::Linear, 1)];
    Pool::new("stripe", 0, &[10, 10, 10, 10], groups).try_flips(200);
}

#[test]
fn a_flipped_bit_of_a_mirror_with_a_cache_is_mended() {
    let groups = vec![group(Class::Data, MIRROR, 2), group(Class::Cache, Layout::Linear, 1)];
    Pool::new("mirror", 1, &[12, 12, 8], groups).try_flips(100);
}

#[test]
fn a_flipped_bit_of_parity_is_mended() {
    let parity = Layout::Parity { width: 16, parity: 1, unit: 4096 };
    Pool::new("parity1", 1, &[12, 12, 12], vec![group(Class::Data, parity, 3)]).try_flips(30);
}

#[test]
fn a_flipped_bit_of_double_parity_with_special_devices_is_mended() {
    let parity = Layout::Parity { width: 16, parity: 2, unit: 4096 };
    let groups = vec![group(Class::Data, parity, 4), group(Class::Special, Layout::Mirror { copies: 3 }, 3)];
    Pool::new("parity2", 2, &[12, 12, 12, 12, 10, 10, 10], groups).try_flips(25);
}
