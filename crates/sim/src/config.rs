//! What a seed means: the devices, the pool, the guests and the fate of one world.

mod buffered;
mod cached;
mod clones;
mod full;
mod long;
mod mirrored;
mod parity;
mod restarts;
mod strict;

use millpond_block::{CacheMode, SectorProfile};
use millpond_device::DeviceGeometry;
use millpond_engine::{Compression, Discard, GroupSpec, Layout, Planted, ReadySpace, Tuning};
use millpond_format::AREA_BYTES;

use crate::disk::{Erased, Profile};
use crate::fault::{Fault, FaultKind};
use crate::machine::Latency;
use crate::rng::{Rng, mix as hash};
pub use cached::Cached;
pub use full::Full;
pub use long::Long;
pub use mirrored::Mirrored;
pub use restarts::{Restarts, holder};
pub use strict::{LOOSE, STRICT};

/// What the caller wants, beyond the seed.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Print every event.
    pub trace: bool,
    /// A bug to plant in the engine.
    pub planted: Option<Planted>,
    /// No faults but crashes.
    pub faultless: bool,
    /// This kind of fault, in every world.
    pub fault: Option<FaultKind>,
    /// Per mille of the usual number of requests; 0 means 1000.
    pub scale: u64,
    /// The system under test never reuses space: do not fill it up, and do not ask for space back.
    pub append_only: bool,
    /// Pools of four times the size, never filled up: worlds in which running out of space plays no part.
    pub roomy: bool,
    /// A power-cut sweep goes over roots in a ring that is full, with what earlier crashes left in it.
    pub laps: bool,
    /// Guests with files in every world, not only in some.
    pub bytes: bool,
    /// Mirrors in every world.
    pub mirrors: bool,
    /// Parity in every world.
    pub parity: bool,
    /// A cache in every world.
    pub caches: bool,
    /// Spares in every world, which is one of mirrors where it is none of parity.
    pub spares: bool,
    /// Worlds of mirrors, and of other layouts, in all of which devices are taken out of the pool, too.
    pub removals: bool,
    /// Jobs in every world, which is one of mirrors where it is none of parity.
    pub jobs: bool,
    /// Worlds of their own for long chunk tables.
    pub long_tables: bool,
    /// Worlds of their own for large pools that run full.
    pub full: bool,
    /// In every world what was written after a checkpoint is damaged.
    pub rescue: bool,
    /// Worlds of their own for daemons that start again and import their pool by themselves.
    pub restarts: bool,
    /// The daemon's shard between guests, engine and devices, and hosts that take the pool from each other, in every world.
    pub gate: bool,
    /// Worlds of their own for cache modes that become stricter while requests are under way.
    pub strict: bool,
    /// Devices behind a page cache, whose flushes fail, in every world.
    pub buffered: bool,
    /// Many clones that are promoted, in every world.
    pub clones: bool,
    /// The caller's clock, in nanoseconds of its thread: turns are timed by it. Nothing in a world follows from it.
    pub clock: Option<fn() -> u64>,
}

impl Options {
    /// With a bug planted, in worlds that have what it takes to find it where few others have.
    #[must_use]
    pub fn planting(mut self, bug: Planted) -> Options {
        self.planted = Some(bug);
        self.parity |= matches!(bug, Planted::ParityFromRot | Planted::SkimOneCopy | Planted::LeaveGivenUp);
        self.removals |= bug == Planted::LeaveGivenUp;
        self.mirrors |= bug == Planted::LateAnswersCount;
        self.long_tables |= bug == Planted::CrowdTheLog;
        self.rescue |= bug == Planted::NothingRests;
        self.gate |= matches!(bug, Planted::HoldClaims | Planted::ForgetHeld | Planted::LeaveLate | Planted::BurstTwice);
        self.strict |= bug == Planted::LoosenUnderWay;
        self.buffered |= bug == Planted::TrustPageCache;
        self.clones |= bug == Planted::PromoteKeepsDeadlists;
        self.full |= matches!(bug, Planted::ForgetReservations | Planted::NothingUnique);
        self.restarts |=
            matches!(bug, Planted::ServeUnremembered | Planted::TrustAnyDevice | Planted::ForgetNewLabels | Planted::WaitForNobody);
        self.restarts |= matches!(bug, Planted::LeaveOutUnasked | Planted::ForgetLeftBehind | Planted::JoinApart);
        self
    }
}

/// What happens in a world.
#[derive(Clone, Copy, Debug, Default)]
pub enum Kind {
    /// Guests and operators do anything.
    #[default]
    Any,
    /// See [`Long`].
    Long(Long),
    /// See [`Full`].
    Full(Full),
    /// What was written after a checkpoint is damaged.
    Rescue,
    /// See [`Restarts`].
    Restarts(Restarts),
    /// Cache modes become stricter while requests are under way, and then the power fails; so many times.
    Strict(u64),
}

/// How an era ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// `kill -9`.
    Kill,
    /// The power fails.
    Power,
    /// A clean shutdown.
    Close,
}

/// The time between two crashes.
#[derive(Clone, Copy, Debug)]
pub struct Era {
    /// Guest requests.
    pub requests: u64,
    /// How it ends.
    pub end: End,
}

/// A volume that is there from the start.
#[derive(Clone, Copy, Debug)]
pub struct VolumeSpec {
    /// Bytes.
    pub size: u64,
    /// Sectors.
    pub sector: SectorProfile,
    /// Cache mode.
    pub cache: CacheMode,
    /// Compression.
    pub compression: Compression,
}

/// Weights of what guests and operators do.
#[derive(Clone, Debug)]
pub struct Mix {
    /// Read, write, discard, write zeroes, flush, cache hint, malformed request.
    pub requests: [u64; 7],
    /// Commands per thousand steps.
    pub commands: u64,
    /// Percent of writes with FUA.
    pub fua: u64,
    /// Percent of requests that are not aligned to blocks (where sectors allow).
    pub unaligned: u64,
    /// Percent of requests in the hot spot.
    pub hot: u64,
    /// Percent of requests that go on where the last one ended.
    pub sequential: u64,
    /// Most blocks of a usual request.
    pub blocks: u64,
    /// Commands are about clones, mostly.
    pub clones: bool,
}

/// One world.
#[derive(Clone, Debug)]
pub struct Config {
    /// Geometry and kind of each device.
    pub devices: Vec<(DeviceGeometry, Profile)>,
    /// Layout of a pool of one group.
    pub layout: Layout,
    /// What a world of mirrors has.
    pub mirrored: Option<Mirrored>,
    /// What a world with a cache has.
    pub cached: Option<Cached>,
    /// Bytes that fit, where that is not the sum of all devices.
    pub usable: u64,
    /// Bytes of a segment on one device.
    pub extent: u64,
    /// Knobs of the engine.
    pub tuning: Tuning,
    /// How long device operations take.
    pub latency: Latency,
    /// The first volumes.
    pub volumes: Vec<VolumeSpec>,
    /// The eras.
    pub eras: Vec<Era>,
    /// The fault.
    pub fault: Option<Fault>,
    /// Weights.
    pub mix: Mix,
    /// Most requests under way.
    pub depth: usize,
    /// Percent of steps that give the engine a turn at once.
    pub eager: u64,
    /// The volumes are larger than the pool, so that it fills up.
    pub tight: bool,
    /// The devices held another pool before.
    pub second_hand: bool,
    /// At the end everything is destroyed and wiped.
    pub wiped: bool,
    /// Nothing about reuse of space is asked.
    pub append_only: bool,
    /// A power-cut sweep goes over roots in a ring that is full, with what earlier crashes left in it.
    pub laps: bool,
    /// Devices are behind a page cache.
    pub buffered: bool,
    /// What happens in it.
    pub kind: Kind,
}

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
/// Segments that a pool must have at least.
const LEAST_SEGMENTS: u64 = 64;
/// Bytes that labels take of every device.
const LABELS: u64 = 2 * AREA_BYTES;

impl Config {
    /// The world of a seed.
    pub fn new(rng: &mut Rng, options: &Options) -> Config {
        let tight = rng.percent(30) && !options.append_only && !options.roomy;
        // Small pools where they are to fill up, and for a system that reads all of it at every import.
        let small = tight || options.append_only;
        let extent = (64 * KIB) << if small { rng.below(2) } else { rng.weighted(&[5, 4, 2, 1, 1]) as u64 };
        let count = 1 + rng.weighted(&[5, 3, 2]);
        let layout = if rng.percent(50) {
            Layout::Linear
        } else {
            Layout::Stripe { width: rng.between(1, count as u64) as u16, unit: (4096 << rng.below(5)) as u32 }
        };
        let width = if let Layout::Stripe { width, .. } = layout { u64::from(width) } else { 1 };
        let extents = LEAST_SEGMENTS * width + rng.below(if extent > 256 * KIB { 16 } else { 100 });
        let devices = devices(extents * if options.roomy { 4 } else { 1 }, extent, count, rng);
        let pool = extents * extent;
        let percent = if tight { rng.between(90, 160) } else { rng.between(10, 45) };
        let volumes = volumes(pool * percent / 100, tight, rng);
        let scale = if options.scale == 0 { 1000 } else { options.scale };
        let mut eras: Vec<Era> = (0..rng.between(1, 5)).map(|_| era(scale, rng)).collect();
        let fault = match options.fault {
            _ if options.faultless => None,
            Some(kind) => Some(kind),
            None => rng.percent(40).then(|| *rng.pick(&FaultKind::ALL)),
        };
        let fault = fault.map(|kind| Fault::random(kind, count, eras.len() as u32, rng));
        if let Some(last) = eras.last_mut()
            && rng.percent(50)
        {
            last.end = End::Close;
        }
        Config {
            devices,
            layout,
            mirrored: None,
            cached: None,
            usable: 0,
            extent,
            tuning: tuning(options, rng),
            latency: Latency { base: rng.between(5, 100), spread: rng.between(0, 2000), tail: rng.between(0, 10), read_part: 1 },
            volumes,
            eras,
            fault,
            mix: mix(rng),
            depth: 1 << rng.below(6),
            eager: *rng.pick(&[100, 90, 50, 20]),
            tight,
            second_hand: rng.percent(10),
            wiped: false,
            append_only: options.append_only,
            laps: options.laps,
            buffered: false,
            kind: Kind::Any,
        }
    }

    /// Is the world of this seed one of mirrors? No seed below that found something before there were any.
    pub fn is_mirrored(seed: u64, options: &Options) -> bool {
        (seed % 16 == 10 && options.fault.is_none() && !options.append_only && !options.parity)
            || options.mirrors
            || ((options.removals || options.jobs || options.spares) && !options.parity)
    }

    /// Is it one of parity?
    pub fn is_coded(seed: u64, options: &Options) -> bool {
        (seed % 16 == 6 && options.fault.is_none() && !options.append_only && !options.mirrors) || options.parity
    }

    /// Turns the world into what its seed makes of it. True when its devices come and go.
    pub fn transform(&mut self, seed: u64, options: &Options) -> bool {
        let mut rng = Rng::new(hash(!seed));
        if options.long_tables {
            self.lengthen(&mut rng.fork(10));
            return false;
        }
        if options.full {
            self.fill_up(&mut rng.fork(11));
            return false;
        }
        if options.rescue {
            self.endanger(&mut rng.fork(12));
            return false;
        }
        if options.restarts {
            self.restart(&mut rng.fork(13));
            return false;
        }
        if options.strict {
            self.tighten(&mut rng.fork(14));
            return false;
        }
        if options.clones {
            self.branch(&mut rng.fork(16));
            return false;
        }
        if options.buffered {
            self.buffer(&mut rng.fork(15));
            return false;
        }
        let transformed = match (Config::is_mirrored(seed, options), Config::is_coded(seed, options)) {
            (true, _) => {
                self.mirror(&mut rng);
                true
            }
            (_, true) => {
                self.code(&mut rng, Config::has_removals(seed, options));
                true
            }
            _ => false,
        };
        if transformed {
            self.take_out(Config::has_removals(seed, options), Config::has_jobs(seed, options));
            if Config::has_spares(seed, options) {
                self.spare(&mut rng.fork(8));
            }
            if Config::has_hangs(seed) {
                self.hang(&mut Rng::new(hash(seed ^ 0x6861_6e67)));
            }
        }
        if Config::has_cache(seed, options) {
            self.cache(&mut rng.fork(7));
        }
        if Config::remembers(seed, options) {
            self.remember(&mut rng.fork(9));
        }
        let (jobs, damage) = self.mirrored.as_ref().map_or((false, false), |mirrored| (mirrored.jobs, mirrored.damage));
        // what a device wrote elsewhere than it was told to is in no segment, and nobody knows of it
        self.wiped = (seed % 8 == 3 || jobs) && !damage && !options.append_only;
        transformed
    }

    /// Turns the world into one that needs a way back: of a pool that is never full, so that what is freed rests for two checkpoints at
    /// least.
    fn endanger(&mut self, rng: &mut Rng) {
        (self.fault, self.second_hand, self.tight, self.kind) = (None, false, false, Kind::Rescue);
        self.tuning.rewind_checkpoints = rng.between(3, 5) as u32;
        self.tuning.checkpoint_log_bytes = self.tuning.checkpoint_log_bytes.max(MIB);
        self.devices.iter_mut().for_each(|(geometry, _)| geometry.size = (geometry.size - LABELS) * 3 + LABELS);
        self.volumes = volumes(self.pool_bytes() * rng.between(3, 10) / 100, false, rng);
        self.eras.truncate(2);
    }

    /// Are devices taken out of the pool, too? In no world that found something before they were.
    pub fn has_removals(seed: u64, options: &Options) -> bool {
        let some = if options.mirrors { seed % 8 == 4 } else { seed / 16 % 2 == 1 };
        let coded = seed / 16 % 8 == 5 && !options.parity && Config::is_coded(seed, options);
        options.removals || coded || (some && Config::is_mirrored(seed, options))
    }

    /// Are there jobs? In no world that found something before there were.
    fn has_jobs(seed: u64, options: &Options) -> bool {
        let asked = options.mirrors || options.parity || options.removals || options.spares;
        options.jobs || if asked { seed % 16 == 14 } else { (seed / 16).is_multiple_of(4) }
    }

    /// Are there spares? In no world that found something before there were.
    fn has_spares(seed: u64, options: &Options) -> bool {
        let usual = !(options.mirrors || options.parity || options.removals || options.jobs);
        options.spares || (usual && seed / 16 % 4 == 1)
    }

    /// Do devices take their time? In no world that found something before they did.
    fn has_hangs(seed: u64) -> bool {
        hash(seed ^ 0x7369_6c65).is_multiple_of(3)
    }

    /// What the pool is made of.
    pub fn groups(&self) -> Vec<GroupSpec> {
        let alone = || vec![GroupSpec { devices: Some(self.needed()), ..GroupSpec::data(self.layout) }];
        let mut groups = self.mirrored.as_ref().map_or_else(alone, |m| m.groups.clone());
        if let (Some(last), Some(cache)) = (groups.last_mut(), self.cache_group()) {
            if last.devices.is_none() {
                last.devices = Some(self.needed());
            }
            groups.push(cache);
        }
        groups
    }

    /// Bytes of all devices, or what fits of them.
    pub fn pool_bytes(&self) -> u64 {
        if self.usable > 0 {
            return self.usable;
        }
        self.devices.iter().map(|(g, _)| g.size).sum()
    }
}

/// Devices that together hold so many extents, in uneven parts.
fn devices(extents: u64, extent: u64, count: usize, rng: &mut Rng) -> Vec<(DeviceGeometry, Profile)> {
    let mut left = extents;
    (1..=count as u64)
        .map(|nth| {
            let rest = count as u64 - nth;
            let fair = left / (rest + 1);
            let own = if rest == 0 { left } else { rng.between(fair / 2, fair).max(1) };
            left -= own;
            device(own * extent, rng)
        })
        .collect()
}

fn device(bytes: u64, rng: &mut Rng) -> (DeviceGeometry, Profile) {
    // The second label area begins at a multiple of its size.
    let size = bytes.next_multiple_of(AREA_BYTES) + LABELS + rng.below(4) * 4096;
    let physical = *rng.pick(&[512, 4096]);
    let logical = if physical == 4096 && rng.percent(30) { 4096 } else { 512 };
    let geometry = DeviceGeometry { size, logical_sector: logical, physical_sector: physical };
    // Even a device that says 4096 may tear at 512: only half of them are as good as they say.
    let whole_pages = physical == 4096 && (logical == 4096 || rng.percent(50));
    (geometry, Profile { whole_pages, erased: *rng.pick(&[Erased::Zero, Erased::Old, Erased::Garbage]) })
}

fn volumes(total: u64, tight: bool, rng: &mut Rng) -> Vec<VolumeSpec> {
    let count = rng.between(1, 4);
    let most = if tight { 8 * MIB } else { MIB };
    let spec = |rng: &mut Rng| VolumeSpec {
        size: ((total / count).min(most) * rng.between(50, 150) / 100).max(64 * KIB) / 4096 * 4096,
        sector: *rng.pick(&SectorProfile::ALL),
        cache: CacheMode::ALL[rng.weighted(&[2, 1, 1, 6, 1])],
        compression: *rng.pick(&[Compression::Off, Compression::Off, Compression::Lz4, Compression::Zstd]),
    };
    (0..count).map(|_| spec(rng)).collect()
}

fn era(scale: u64, rng: &mut Rng) -> Era {
    let requests = match rng.below(4) {
        0 => rng.between(5, 60),
        1 | 2 => rng.between(60, 300),
        _ => rng.between(300, 900),
    };
    Era {
        requests: (requests * scale / 1000).max(1),
        end: *rng.pick(&[End::Kill, End::Kill, End::Power, End::Power, End::Power, End::Close]),
    }
}

fn tuning(options: &Options, rng: &mut Rng) -> Tuning {
    let tuning = Tuning {
        map_memory: *rng.pick(&[64 * KIB, 256 * KIB, 64 * MIB]),
        checkpoint_log_bytes: (64 * KIB) << rng.below(7),
        rewind_checkpoints: rng.below(4) as u32,
        discard: if rng.percent(70) { Discard::Lazy } else { Discard::Never },
        log_percent: 50,
        planted: options.planted,
        ..Tuning::default()
    };
    // no choices of their own, so that every seed keeps its world
    let rewind_millis = u64::from(tuning.rewind_checkpoints) * 1_000;
    let scrub_strip = tuning.scrub_strip.min((tuning.map_memory / 16) as u32);
    let piece_bytes = tuning.piece_bytes.min((tuning.map_memory / 256) as u32);
    // what pieces hold is read back all the time, but for a few where maps have room enough
    let piece_memory = if tuning.map_memory < 64 * MIB { 0 } else { 2 * KIB };
    let (discard, ready) = host_space(&tuning);
    Tuning { rewind_millis, scrub_strip, piece_bytes, piece_memory, discard, ready, ..tuning }
}

/// How free segments' space is dealt with: as follows from other choices. Pools are small and worlds short, so thresholds are, too.
fn host_space(tuning: &Tuning) -> (Discard, ReadySpace) {
    let nth = tuning.checkpoint_log_bytes.trailing_zeros() + tuning.map_memory.trailing_zeros() / 2;
    let discard = if tuning.discard == Discard::Lazy && nth.is_multiple_of(4) { Discard::Now } else { tuning.discard };
    let ready = ReadySpace {
        prepare: !nth.is_multiple_of(3) || tuning.planted == Some(Planted::PrepareInUse),
        least: MIB >> (nth % 4),
        most: 2 * MIB,
        at_first: u64::from(nth % 2) * MIB,
        surplus_millis: u64::from(tuning.rewind_checkpoints) * 100,
        resting: MIB,
    };
    (discard, ready)
}

fn mix(rng: &mut Rng) -> Mix {
    let usual = [30, 45, 5, 4, 6, 1, 1];
    let writes = [5, 80, 2, 2, 3, 0, 0];
    let erasing = [20, 40, 20, 12, 5, 1, 1];
    let flushing = [10, 50, 3, 3, 30, 1, 1];
    Mix {
        requests: [usual, usual, writes, erasing, flushing][rng.index(5)],
        commands: *rng.pick(&[0, 10, 30, 100, 200]),
        fua: *rng.pick(&[0, 5, 30]),
        unaligned: *rng.pick(&[0, 20, 60]),
        hot: rng.between(0, 80),
        sequential: rng.between(0, 40),
        blocks: *rng.pick(&[1, 4, 16]),
        clones: false,
    }
}
