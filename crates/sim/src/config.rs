//! Derives the configuration of one world from its seed: devices, pool, guests, crashes and faults.

mod bases;
mod buffered;
mod cached;
mod capacity;
mod clones;
mod full;
mod keys;
mod layout;
mod long;
mod mirrored;
mod parity;
mod restarts;
mod strict;

use millpond_block::{CacheMode, DeviceGeometry, SectorProfile};
use millpond_engine::{Compression, Discard, Gather, Layout, Planted, ReadySpace, Tuning};
use millpond_format::AREA_BYTES;

use crate::disk::{Erased, Profile};
use crate::fault::{Fault, FaultKind};
use crate::machine::Latency;
use crate::rng::{Rng, mix as hash};
pub use bases::{Bases, MOST_BYTES, base};
pub use cached::Cached;
pub use capacity::Capacity;
pub use full::Full;
pub use long::Long;
pub use mirrored::Mirrored;
pub use restarts::{Restarts, holder};
pub use strict::{LOOSE, STRICT};

/// Options of a run, beyond the seed.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Prints every event.
    pub trace: bool,
    /// Bug to plant in the engine.
    pub planted: Option<Planted>,
    /// Injects no faults; crashes remain.
    pub faultless: bool,
    /// Injects this kind of fault in every world.
    pub fault: Option<FaultKind>,
    /// Number of requests, in per mille of the usual number; 0 means 1000.
    pub scale: u64,
    /// The system under test never reuses space: worlds neither fill it up nor check that freed
    /// space comes back.
    pub append_only: bool,
    /// Makes pools four times as large and never fills them, so that running out of space plays no
    /// part.
    pub roomy: bool,
    /// Makes a power-cut sweep write roots into a full ring that holds what earlier crashes left.
    pub laps: bool,
    /// Adds guests with byte-granular requests (files) to every world, not only to some.
    pub bytes: bool,
    /// Uses mirrors in every world.
    pub mirrors: bool,
    /// Uses parity in every world.
    pub parity: bool,
    /// Uses a cache in every world.
    pub caches: bool,
    /// Uses spares in every world. A world without parity gets mirrors.
    pub spares: bool,
    /// Removes devices from the pool in every world. A world without parity gets mirrors.
    pub removals: bool,
    /// Runs jobs (rebalance, scrub, wipe) in every world. A world without parity gets mirrors.
    pub jobs: bool,
    /// Runs the worlds of [`Long`]: large chunk tables.
    pub long_tables: bool,
    /// Runs the worlds of [`Full`]: large pools that run full.
    pub full: bool,
    /// Damages pages written after a checkpoint, in every world.
    pub rescue: bool,
    /// Runs the worlds of [`Restarts`]: daemons that restart and import their pool automatically.
    pub restarts: bool,
    /// Puts the daemon's shard between guests, engine and devices, and has hosts take the pool from
    /// each other, in every world.
    pub gate: bool,
    /// Runs worlds in which cache modes become stricter while requests are in flight.
    pub strict: bool,
    /// Puts devices behind a page cache, whose flushes fail, in every world.
    pub buffered: bool,
    /// Makes and promotes many clones in every world.
    pub clones: bool,
    /// Makes bases and clones of them in every world.
    pub bases: bool,
    /// Gathers blocks in every world, also those that snapshots share.
    pub forwards: bool,
    /// Has the data class of every pool in a bucket.
    pub capacity: bool,
    /// Changes the key table in every world. A world without parity gets mirrors.
    pub keys: bool,
    /// The caller's clock, in nanoseconds of its thread, to time turns. It does not influence the
    /// world.
    pub clock: Option<fn() -> u64>,
}

impl Options {
    /// Plants a bug, and selects the kind of world that can find it where ordinary worlds rarely
    /// can.
    #[must_use]
    pub fn planting(mut self, bug: Planted) -> Options {
        self.planted = Some(bug);
        self.parity |= matches!(bug, Planted::ParityFromRot | Planted::SkimOneCopy | Planted::LeaveGivenUp);
        self.removals |= bug == Planted::LeaveGivenUp;
        self.mirrors |= matches!(bug, Planted::LateAnswersCount | Planted::LagForEver);
        self.keys |= bug == Planted::OldTableCounts;
        self.long_tables |= bug == Planted::CrowdTheLog;
        self.rescue |= bug == Planted::NothingRests;
        self.gate |= matches!(bug, Planted::HoldClaims | Planted::ForgetHeld | Planted::LeaveLate | Planted::BurstTwice);
        self.strict |= bug == Planted::LoosenUnderWay;
        self.buffered |= bug == Planted::TrustPageCache;
        self.clones |= bug == Planted::PromoteKeepsDeadlists;
        self.bases |= matches!(bug, Planted::BaseReadsZero | Planted::BaseClearNotLogged | Planted::BaseClearWhole);
        self.bases |= matches!(bug, Planted::BaseFetchByOrder | Planted::BaseCompareHides | Planted::BaseForgotten);
        self.bases |= matches!(bug, Planted::BaseCloseWaits | Planted::BaseEntryAsHole | Planted::BaseAheadFails);
        self.forwards |= matches!(bug, Planted::ForwardKeepsTarget | Planted::ForwardForgotten);
        self.capacity |= matches!(bug, Planted::PlacedEarly | Planted::BucketByOrder | Planted::PlacedNotLogged);
        self.capacity |= matches!(bug, Planted::MetaInBucket | Planted::TermNotLogged | Planted::GatheredTwice);
        self.full |= matches!(bug, Planted::ForgetReservations | Planted::NothingUnique);
        self.restarts |=
            matches!(bug, Planted::ServeUnremembered | Planted::TrustAnyDevice | Planted::ForgetNewLabels | Planted::WaitForNobody);
        self.restarts |= matches!(bug, Planted::LeaveOutUnasked | Planted::ForgetLeftBehind | Planted::JoinApart);
        self
    }
}

/// Kind of world.
#[derive(Clone, Copy, Debug, Default)]
pub enum Kind {
    /// Guests and operators at random.
    #[default]
    Any,
    /// See [`Long`].
    Long(Long),
    /// See [`Full`].
    Full(Full),
    /// Pages written after a checkpoint are damaged.
    Rescue,
    /// See [`Restarts`].
    Restarts(Restarts),
    /// Cache modes become stricter while requests are in flight, then the power fails. Holds the
    /// number of repetitions.
    Strict(u64),
}

/// How the time between two crashes ends.
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
pub struct CrashInterval {
    /// Number of guest requests.
    pub requests: u64,
    pub end: End,
}

/// A volume created at the start.
#[derive(Clone, Copy, Debug)]
pub struct VolumeSpec {
    /// In bytes.
    pub size: u64,
    pub sector: SectorProfile,
    pub cache: CacheMode,
    pub compression: Compression,
}

/// Weights of the actions of guests and operators.
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
    /// Percent of requests in the first tenth of the volume.
    pub hot: u64,
    /// Percent of requests that continue where the last one ended.
    pub sequential: u64,
    /// Maximum blocks of an ordinary request.
    pub blocks: u64,
    /// Most commands concern clones.
    pub clones: bool,
    /// Bases are made, and most requests and commands concern their clones.
    pub bases: bool,
}

/// Configuration of one world.
#[derive(Clone, Debug)]
pub struct Config {
    /// Geometry and kind of each device.
    pub devices: Vec<(DeviceGeometry, Profile)>,
    /// Layout, if the pool has one group.
    pub layout: Layout,
    /// Groups and fault settings of worlds with redundancy.
    pub mirrored: Option<Mirrored>,
    /// Cache devices and their fault rate.
    pub cached: Option<Cached>,
    /// Bases and their store, in worlds with bases.
    pub bases: Option<Bases>,
    /// Changes of the key table, per mille of steps; 0 in a pool without.
    pub key_changes: u64,
    /// The bucket for data, and the manners of its store, in pools with one.
    pub capacity: Option<Capacity>,
    /// The pool is created with all features, or they are turned on at the start.
    pub features_on: bool,
    pub turns_features_on: bool,
    /// Usable bytes, or 0 if they are the sum of all devices.
    pub usable: u64,
    /// Bytes of a segment on one device (extent size).
    pub extent: u64,
    pub tuning: Tuning,
    /// Latency of device operations.
    pub latency: Latency,
    /// Volumes created at the start.
    pub volumes: Vec<VolumeSpec>,
    /// The times between crashes, in order.
    pub eras: Vec<CrashInterval>,
    /// The fault, if the world has one.
    pub fault: Option<Fault>,
    pub mix: Mix,
    /// Maximum requests in flight.
    pub depth: usize,
    /// Percent of steps in which the engine gets a turn.
    pub eager: u64,
    /// The volumes are larger than the pool, so that it fills up.
    pub tight: bool,
    /// The devices belonged to another pool before.
    pub second_hand: bool,
    /// Everything is destroyed and wiped at the end.
    pub wiped: bool,
    /// See [`Options::append_only`].
    pub append_only: bool,
    /// See [`Options::laps`].
    pub laps: bool,
    /// Devices are behind a page cache.
    pub buffered: bool,
    pub kind: Kind,
}

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
/// Minimum segments of a pool.
const LEAST_SEGMENTS: u64 = 64;
/// Bytes that the label areas take on every device.
const LABELS: u64 = 2 * AREA_BYTES;

impl Config {
    /// Derives the base configuration of a world.
    pub fn new(rng: &mut Rng, options: &Options) -> Config {
        let tight = rng.percent(30) && !options.append_only && !options.roomy;
        // Small pools are quick to fill, and an append-only system reads the whole pool at every
        // import.
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
        let mut eras: Vec<CrashInterval> = (0..rng.between(1, 5)).map(|_| era(scale, rng)).collect();
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
            bases: None,
            key_changes: 0,
            capacity: None,
            features_on: false,
            turns_features_on: false,
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

    /// Returns whether this seed gives a world of mirrors. The chosen seeds had found nothing
    /// before mirrors existed.
    pub fn is_mirrored(seed: u64, options: &Options) -> bool {
        (seed % 16 == 10 && options.fault.is_none() && !options.append_only && !options.parity)
            || options.mirrors
            || ((options.removals || options.jobs || options.spares || options.keys) && !options.parity)
    }

    /// Returns whether this seed gives a world with parity.
    pub fn is_coded(seed: u64, options: &Options) -> bool {
        let usual = options.fault.is_none() && !options.append_only && !options.mirrors && !options.capacity && !options.keys;
        (seed % 16 == 6 && usual) || options.parity
    }

    /// Applies the kind of world that seed and options ask for. Returns true if its devices fail
    /// and come back.
    pub fn transform(&mut self, seed: u64, options: &Options) -> bool {
        let mut rng = Rng::new(hash(!seed));
        self.code_beside(seed, options);
        if options.capacity {
            self.put_into_bucket(seed, (!options.roomy && !options.append_only).then(|| self.pool_bytes()));
        }
        if Config::gathers(seed, options) {
            self.tuning.gather = Gather { after_reads: 4 << (seed / 4 % 3), from_bytes: 8 * KIB };
        }
        let is_even = hash(seed ^ 0x666f_7277).is_multiple_of(2);
        self.features_on = is_even && Config::gathers(seed, options) && options.planted != Some(Planted::GatherStale);
        self.turns_features_on = options.forwards && !is_even;
        if options.keys {
            self.keep_keys(seed);
        }
        if Config::reads_ahead(seed, options) {
            self.read_ahead(seed);
        }
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
        if options.bases {
            self.publish(&mut rng.fork(17));
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
        // A misdirected write of a damaged device may lie outside all segments, where no wipe
        // looks.
        self.wiped = (seed % 8 == 3 || jobs) && !damage && !options.append_only;
        transformed
    }

    /// Lets threads of the host compress and decompress, in half of the worlds. Bugs of labels and of
    /// a host's memory are searched without it: fewer operations per import find them sooner.
    fn code_beside(&mut self, seed: u64, options: &Options) {
        let drawn = hash(seed ^ 0x636f_6465);
        let searched = options.restarts && options.planted.is_some();
        if (drawn.is_multiple_of(2) && !searched) || options.planted == Some(Planted::CodecInOrder) {
            self.tuning.codec_at_once = (drawn / 2 % 3) as usize * 6;
        }
    }

    /// Returns whether blocks that guests read together are gathered, after few reads. The other
    /// seeds keep the worlds that they had before.
    fn gathers(seed: u64, options: &Options) -> bool {
        hash(seed ^ 0x6761_7468).is_multiple_of(4) || options.forwards || options.planted == Some(Planted::GatherStale)
    }

    /// Prepares a world of damage after a checkpoint. The pool is never full, so freed space is
    /// retained for at least two checkpoints.
    fn endanger(&mut self, rng: &mut Rng) {
        (self.fault, self.second_hand, self.tight, self.kind) = (None, false, false, Kind::Rescue);
        self.tuning.rewind_checkpoints = rng.between(3, 5) as u32;
        self.tuning.checkpoint_log_bytes = self.tuning.checkpoint_log_bytes.max(MIB);
        self.devices.iter_mut().for_each(|(geometry, _)| geometry.size = (geometry.size - LABELS) * 3 + LABELS);
        self.volumes = volumes(self.pool_bytes() * rng.between(3, 10) / 100, false, rng);
        self.eras.truncate(2);
    }

    /// Returns whether devices are removed. The chosen seeds had found nothing before removals
    /// existed.
    pub fn has_removals(seed: u64, options: &Options) -> bool {
        let some = if options.keys {
            seed.is_multiple_of(4)
        } else if options.mirrors {
            seed % 8 == 4
        } else {
            seed / 16 % 2 == 1
        };
        let coded = seed / 16 % 8 == 5 && !options.parity && Config::is_coded(seed, options);
        options.removals || coded || (some && Config::is_mirrored(seed, options))
    }

    /// Returns whether jobs run. The chosen seeds had found nothing before jobs existed.
    fn has_jobs(seed: u64, options: &Options) -> bool {
        let asked = options.mirrors || options.parity || options.removals || options.spares;
        options.jobs
            || if options.keys {
                seed % 4 == 2
            } else if asked {
                seed % 16 == 14
            } else {
                (seed / 16).is_multiple_of(4)
            }
    }

    /// Returns whether there are spares. The chosen seeds had found nothing before spares existed.
    fn has_spares(seed: u64, options: &Options) -> bool {
        let usual = !(options.mirrors || options.parity || options.removals || options.jobs);
        options.spares || if options.keys { seed % 4 == 1 } else { usual && seed / 16 % 4 == 1 }
    }

    /// Returns whether devices hang. The chosen seeds had found nothing before hangs existed.
    fn has_hangs(seed: u64) -> bool {
        hash(seed ^ 0x7369_6c65).is_multiple_of(3)
    }
}

/// Devices that together hold `extents` extents, unevenly divided.
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
    // A device that reports 4096 may still tear at 512: only half of them write whole sectors.
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

fn era(scale: u64, rng: &mut Rng) -> CrashInterval {
    let requests = match rng.below(4) {
        0 => rng.between(5, 60),
        1 | 2 => rng.between(60, 300),
        _ => rng.between(300, 900),
    };
    CrashInterval {
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
        gather: Gather { after_reads: 0, ..Gather::default() },
        ..Tuning::default()
    };
    // Derived, not drawn: every seed keeps its world.
    let rewind_millis = u64::from(tuning.rewind_checkpoints) * 1_000;
    let scrub_strip = tuning.scrub_strip.min((tuning.map_memory / 16) as u32);
    let piece_bytes = tuning.piece_bytes.min((tuning.map_memory / 256) as u32);
    // Pieces are read back all the time, except for a few where map memory is large.
    let piece_memory = if tuning.map_memory < 64 * MIB { 0 } else { 2 * KIB };
    let (discard, ready) = host_space(&tuning);
    Tuning { rewind_millis, scrub_strip, piece_bytes, piece_memory, discard, ready, ..tuning }
}

/// Derives discard and preparation of free segments from other settings. Thresholds are small,
/// because pools are small and worlds short.
fn host_space(tuning: &Tuning) -> (Discard, ReadySpace) {
    let nth = tuning.checkpoint_log_bytes.trailing_zeros() + tuning.map_memory.trailing_zeros() / 2;
    let discard = if tuning.discard == Discard::Lazy && nth.is_multiple_of(4) { Discard::Now } else { tuning.discard };
    let ready = ReadySpace {
        prepare: !nth.is_multiple_of(3) || tuning.planted == Some(Planted::PrepareInUse),
        least: MIB >> (nth % 4),
        most: 2 * MIB,
        at_first: u64::from(nth % 2) * MIB,
        surplus_millis: u64::from(tuning.rewind_checkpoints) * 100,
        retained: MIB,
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
        bases: false,
    }
}
