//! Import: labels -> claims -> roots -> checkpoint object -> the objects that it names -> log ->
//! replay -> a root of this import.

mod claim;
mod keys;
mod labels;
mod mend;
mod objects;
mod open;
mod scan;
mod silence;

use std::collections::{BTreeMap, BTreeSet};

use millpond_block::{BufPool, ByteRange, DeviceError, DeviceGeometry, DeviceSlot, Io, IoDone, MemberId};
use millpond_format::{AREA_BYTES, Checkpoint, FeatureSet, Label, MemberState, ObjectRef, Root, SECTOR_BYTES, SegmentId, second_area};

use self::claim::{Claiming, Claims};
use self::keys::KeyCopies;
use self::labels::{LabelCopies, LabelRepair};
use self::mend::Mending;
use self::objects::NamedPieces;
use super::checkpoint_scan::{CheckpointScan, ScanRead};
use super::drop_lost_special::drop_lost_special;
use super::log_replication::{LogReplication, UnderReplicatedBatch};
use super::members::Members;
use super::replay::Replay;
use super::restore_points::{Probe, RestorePointScan};
use super::rewind::Rewound;
use super::ring::Rings;
use super::scan::{Found, StreamScan};
use crate::core::Core;
use crate::io::{Ended, Health, IoTable};
use crate::pool::Pool;
use crate::space::SegmentLayout;
use crate::store::{Config, extent_space};
use crate::tree::Miss;
use crate::{Aim, OpenError, OpenErrorKind, OpenWrite, ReadCacheSize, Surveyed, Time, Tuning, Unlabelled};

/// The purpose of an operation of an import.
#[derive(Debug)]
pub(crate) enum ImportIo {
    /// Read of the label of the device in this slot, from its first or second area.
    Label(DeviceSlot, bool),
    /// Read of a member's ring of roots, from its first or second area.
    Ring(MemberId, bool),
    /// Read of a member's key table, or of a page of it, in its first or second area.
    Keys(MemberId, bool),
    KeyPage(MemberId, bool, u16),
    /// Write of pages of the key table.
    MendKeys,
    /// Read of an object, and the attempt.
    Object(ObjectRef, u8),
    /// Read of a part of an object for a survey.
    Probe(Probe),
    /// Read of pages for a scan for checkpoints.
    ScanRead(ScanRead),
    /// Read of the first page of a segment, and the attempt.
    FirstPage(SegmentId, u8),
    /// Read of the next pages of a stream.
    Scan(usize),
    /// Read of a map node that replay needs, and the attempt.
    Node(Miss, u8),
    /// Read of a batch that may not be on all copies; then its write to the other copies.
    Level(UnderReplicatedBatch),
    Leveled,
    /// Flush or write that repairs the newest root.
    Mend,
    /// Write of a copy of a member's label.
    LabelCopy(MemberId, bool),
    /// Read of a member's claim, from its first or second area; then its write or flush.
    Claim(MemberId, bool),
    Claimed,
}

/// Progress of an import.
pub(super) enum Stage {
    Labels,
    /// Finds out which host has the pool, or claims it.
    Claim(Claiming),
    Rings,
    /// Scans segments for checkpoints.
    CheckpointScan,
    /// Finds out which restore points are whole.
    RestorePointScan,
    /// The survey's result is ready.
    Surveyed,
    Root,
    Objects,
    /// Reads the deadlists of snapshots, which pages of snapshots name.
    Lists,
    /// Reads the pieces that deadlists name.
    Pieces,
    Scan,
    Replay,
    /// The chosen checkpoint cannot be used: an older one is tried once all operations have ended.
    Older,
    /// Writes the replayed batches to the copies that lack them.
    Level,
    Mend(Mending),
}

/// A running import.
pub(crate) struct Import {
    pub(super) stage: Stage,
    devices: Vec<DeviceGeometry>,
    pub(super) tuning: Tuning,
    now: Time,
    pub(super) io: IoTable<ImportIo>,
    pub(super) bufs: BufPool,
    /// Both labels of each device.
    copies: Vec<LabelCopies>,
    labels: Vec<Option<Label>>,
    unlabelled: Vec<Unlabelled>,
    pub(super) config: Option<Config>,
    pub(super) slots: Vec<Option<DeviceSlot>>,
    replacements: Vec<(MemberId, DeviceSlot)>,
    /// Members to be filled.
    dirty: Vec<MemberId>,
    /// The labels must be rewritten, because the shape has changed.
    relabel: bool,
    /// Features of the newest label that the label of another device lacks.
    turning_on: FeatureSet,
    label_repair: LabelRepair,
    /// Lost special devices are given up.
    forsaken: bool,
    /// The last incarnation whose small writes were on lost devices.
    lost_small: Option<u32>,
    pub(super) layout: Option<SegmentLayout>,
    pub(super) rings: Option<Rings>,
    pub(super) root: Option<Root>,
    keys: KeyCopies,
    wanted: Vec<ObjectRef>,
    objects: BTreeMap<(SegmentId, u32), Vec<u8>>,
    /// Parts of objects, by the place of their index.
    parts: BTreeMap<(SegmentId, u32), Vec<ObjectRef>>,
    checkpoint: Option<Checkpoint>,
    /// The pieces of deadlists that were read, in the form that stays in memory.
    pieces: Option<NamedPieces>,
    scans: Vec<StreamScan>,
    found: Vec<Found>,
    core: Option<Core>,
    replay: Option<Replay>,
    log_replication: LogReplication,
    /// Search for restore points. `surveying`: the import ends with their list.
    pub(super) checkpoint_scan: Option<CheckpointScan>,
    pub(super) survey: Option<RestorePointScan>,
    pub(super) surveying: bool,
    pub(super) surveyed: Surveyed,
    pub(super) rewound: Option<Rewound>,
    /// The restore point that a rewind goes back to; `refused` says why an earlier choice was not
    /// used.
    pub(super) chosen: Option<u64>,
    /// A read failed since it was chosen: data that a device does not return now may be readable
    /// later.
    pub(super) unreadable: bool,
    pub(super) refused: Option<OpenErrorKind>,
    pub(super) claims: Claims,
    /// Slots of devices that did not answer. The import continues without them, or was refused
    /// because of them.
    pub(super) silent: Vec<DeviceSlot>,
    /// Number of members that were given up.
    losses: u32,
    /// Time of the last retry of writes that found their device full.
    retried: Time,
    pub(crate) failed: Option<OpenError>,
}

impl Import {
    /// Starts reading the labels, to list the restore points. Nothing is written.
    pub(crate) fn survey(devices: Vec<DeviceGeometry>, tuning: Tuning) -> Import {
        let tuning = Tuning { degraded: true, ..tuning };
        Import { surveying: true, ..Import::new(devices, tuning, Time(0)) }
    }

    /// Returns the restore points, once they are known.
    pub(crate) fn surveyed(&mut self) -> Option<Surveyed> {
        matches!(self.stage, Stage::Surveyed).then(|| std::mem::take(&mut self.surveyed))
    }

    /// Sets the size of the read cache for the pool once it is open.
    pub(crate) fn set_read_cache(&mut self, size: ReadCacheSize) {
        self.tuning.read_cache = size;
    }

    /// Starts reading the labels.
    pub(crate) fn new(devices: Vec<DeviceGeometry>, tuning: Tuning, now: Time) -> Import {
        let count = u16::try_from(devices.len()).unwrap_or(u16::MAX);
        let mut import = Import {
            stage: Stage::Labels,
            // until labels are read, the devices themselves count as members
            io: IoTable::new((0..count).map(|slot| Some(DeviceSlot(slot))).collect(), Health::all(devices.len())),
            copies: vec![LabelCopies::default(); devices.len()],
            labels: vec![None; devices.len()],
            unlabelled: vec![Unlabelled::default(); devices.len()],
            devices,
            tuning,
            now,
            bufs: BufPool::default(),
            config: None,
            slots: Vec::new(),
            replacements: Vec::new(),
            dirty: Vec::new(),
            relabel: false,
            turning_on: FeatureSet::default(),
            label_repair: LabelRepair::default(),
            forsaken: false,
            lost_small: None,
            layout: None,
            rings: None,
            root: None,
            keys: KeyCopies::default(),
            wanted: Vec::new(),
            objects: BTreeMap::new(),
            parts: BTreeMap::new(),
            checkpoint: None,
            pieces: None,
            scans: Vec::new(),
            found: Vec::new(),
            core: None,
            replay: None,
            log_replication: LogReplication::default(),
            checkpoint_scan: None,
            survey: None,
            surveying: false,
            surveyed: Surveyed::default(),
            rewound: None,
            chosen: None,
            unreadable: false,
            refused: None,
            claims: Claims::default(),
            silent: Vec::new(),
            losses: 0,
            retried: Time(0),
            failed: None,
        };
        import.io.lasting = true;
        for slot in (0..count).map(DeviceSlot) {
            for second in [false, true] {
                let size = import.devices.get(slot.index()).map_or(0, |d| d.size);
                let offset = if second { second_area(size) } else { 0 };
                if size >= 2 * AREA_BYTES {
                    let range = ByteRange { offset, length: SECTOR_BYTES as u64 };
                    import.io.read_raw(ImportIo::Label(slot, second), MemberId(slot.0), range, &mut import.bufs);
                }
            }
        }
        if import.io.in_flight() == 0 {
            import.failed = Some(OpenErrorKind::TooSmall.into());
        }
        import
    }

    pub(crate) fn pop_io(&mut self) -> Option<Io> {
        self.io.pop(self.holds_back())
    }

    pub(crate) fn take_back(&mut self, io: Io) {
        self.io.take_back(io);
    }

    /// Reports that the caller delays operations of a device on purpose.
    pub(crate) fn excuse(&mut self, device: DeviceSlot) {
        self.io.excuse(device);
    }

    /// Returns whether the import waits for devices.
    pub(crate) fn waits(&self) -> bool {
        self.io.in_flight() > 0 && !self.io.has_idle()
    }

    /// Returns the reason, when the import cannot succeed any more.
    pub(crate) fn failure(&self) -> Option<&OpenError> {
        self.failed.as_ref()
    }

    /// Handles a device completion.
    pub(crate) fn io_done(&mut self, done: IoDone) {
        let ended = self.io.done(done, &mut self.bufs);
        self.lose_failing();
        if let Some(ended) = ended {
            self.ended(ended);
        }
    }

    fn ended(&mut self, ended: Ended<ImportIo>) {
        let (result, mut buf) = (ended.result, ended.buf);
        self.unreadable |= result.is_err();
        let outcome = match ended.context {
            ImportIo::Object(..) | ImportIo::Scan(_) | ImportIo::Node(..) if matches!(self.stage, Stage::Older) => Ok(()),
            ImportIo::Label(slot, second) => {
                self.label_read(slot, second, result, buf.as_ref());
                Ok(())
            }
            ImportIo::Ring(member, second) => {
                if let (Ok(()), Some(buf), Some(rings)) = (result, &buf, &mut self.rings) {
                    rings.take(member, second, buf.bytes());
                }
                Ok(())
            }
            ImportIo::Keys(member, second) => {
                self.keys_read(member, second, result, buf.as_ref());
                Ok(())
            }
            ImportIo::KeyPage(member, second, number) => {
                self.key_page_read(member, second, number, result, buf.as_ref());
                Ok(())
            }
            ImportIo::MendKeys => written(OpenWrite::Keys, result),
            ImportIo::Level(batch) => match &self.core {
                Some(core) => {
                    self.log_replication.read(batch, result, buf.take(), ended.member, &mut self.io, &core.space.layout, &mut self.bufs)
                }
                None => Err(OpenErrorKind::OutOfOrder("no state")),
            },
            ImportIo::Leveled => written(OpenWrite::Log, result),
            ImportIo::Claim(member, second) => self.claim_read(member, second, result, buf.as_ref()),
            ImportIo::Claimed => written(OpenWrite::Claim, result),
            ImportIo::Mend => written(OpenWrite::Root, result),
            ImportIo::LabelCopy(member, second) => {
                self.label_copied(member, second, result);
                Ok(())
            }
            ImportIo::Probe(probe) => {
                if let (Some(survey), Some(layout)) = (&mut self.survey, &self.layout) {
                    survey.probed(probe, result, buf.as_ref(), &mut self.io, layout, &mut self.bufs);
                }
                Ok(())
            }
            ImportIo::ScanRead(scan_read) => {
                if let (Some(checkpoint_scan), Some(layout)) = (&mut self.checkpoint_scan, &self.layout) {
                    checkpoint_scan.seen(scan_read, result, buf.as_ref(), self.io.copies(layout, scan_read.segment()), layout);
                }
                Ok(())
            }
            ImportIo::FirstPage(segment, attempt) => {
                if let (Some(survey), Some(layout)) = (&mut self.survey, &self.layout) {
                    survey.first_page(segment, attempt, result, buf.as_ref(), &mut self.io, layout, &mut self.bufs);
                }
                Ok(())
            }
            ImportIo::Object(at, attempt) => self.object_read(at, attempt, result, buf.as_ref()),
            ImportIo::Scan(scan) => self.scan_read(scan, result, buf.as_ref()),
            ImportIo::Node(miss, attempt) => match (&mut self.replay, &mut self.core) {
                (Some(replay), Some(core)) => replay.node_read(core, miss, attempt, result, buf.as_ref(), &mut self.io, &mut self.bufs),
                _ => Ok(()),
            },
        };
        if let Some(buf) = buf {
            self.bufs.give(buf);
        }
        if let Err(why) = outcome {
            self.fail(why);
        }
    }

    /// Continues when all operations have ended. Returns the pool when it is ready to publish its
    /// root.
    pub(crate) fn turn(&mut self, now: Time) -> Option<Pool> {
        if self.failed.is_some() {
            return None;
        }
        self.at(now);
        self.keep_claim();
        self.watch_devices(now);
        self.step_full(now);
        while let Some(ended) = self.io.pop_idle(&mut self.bufs) {
            self.ended(ended);
        }
        let waits = self.io.in_flight() > 0;
        let step = match self.stage {
            Stage::Labels if !waits => self.choose_pool(),
            Stage::Claim(step) if !waits => self.claim_on(step),
            Stage::Rings if !waits => self.choose_root(),
            Stage::CheckpointScan => self.hunt_on(),
            Stage::RestorePointScan => self.survey_on(),
            Stage::Root | Stage::Objects | Stage::Lists | Stage::Pieces => self.read_objects(),
            Stage::Scan if !waits => self.scanned(),
            Stage::Replay => return self.replay_on(),
            Stage::Older if !waits => self.begin_older(),
            // the pool starts with no operation in flight
            Stage::Level if self.is_looking_at_claims() => Ok(()),
            Stage::Level => return self.level_on(),
            Stage::Mend(step) if !waits => return self.mend_on(step),
            _ => Ok(()),
        };
        if let Err(why) = step {
            self.fail(why);
        }
        None
    }

    /// Assigns devices to members, and checks that all needed ones are present.
    fn choose_pool(&mut self) -> Result<(), OpenErrorKind> {
        let rebuild = self.surveying || self.tuning.aim == Aim::Rebuild;
        let found = Members::choose(&self.labels, &self.unlabelled, (self.may_leave_out(), rebuild), self.tuning.planted)?;
        if let Some(expected) = &self.tuning.newest_label {
            found.check_newest(&self.labels, expected)?;
        }
        self.check_features()?;
        let Members { newest: label, slots, stale, .. } = &found;
        self.slots.clone_from(slots);
        self.replacements.clone_from(&found.replacements);
        self.dirty.clone_from(stale);
        let mut shape = label.shape.clone();
        if !found.lost.is_empty() {
            shape = drop_lost_special(&shape, &found.lost).ok_or(OpenErrorKind::Indispensable)?;
            self.forsaken = true;
        }
        let size_at = |slot: DeviceSlot| self.devices.get(slot.index()).map_or(0, |d| d.size);
        let sizes: Vec<u64> = slots.iter().map(|slot| slot.map_or(0, size_at)).collect();
        shape.ids().filter(|member| found.is_missing(*member)).for_each(|member| shape.lose(member));
        let asides: BTreeSet<MemberId> = shape.ids().filter(|member| shape.is_auxiliary(*member)).collect();
        let extent_bytes = shape.extent_bytes;
        for ((member, known), size) in shape.numbered_mut().zip(&sizes) {
            if asides.contains(&member) {
                // the content of a cache is scanned again, and a spare holds nothing: they need no
                // filling
                known.state = if found.is_missing(member) { known.state } else { MemberState::Present };
                continue;
            }
            let cut_off = extent_space(*size) / extent_bytes < u64::from(known.extents);
            if !found.is_missing(member) && cut_off {
                return Err(OpenErrorKind::CutOff { pool: label.name.clone(), member });
            }
            if stale.contains(&member) {
                known.state = MemberState::Filling;
            }
        }
        // a replacement device that is not present may never come
        for (member, known) in shape.numbered_mut() {
            if !found.replacements.iter().any(|(of, _)| *of == member) {
                known.replacement = None;
            }
        }
        let behind;
        (behind, self.turning_on, self.label_repair) = self.compare_labels(&found);
        self.relabel = shape != label.shape || behind;
        self.layout = Some(SegmentLayout::new(&shape));
        self.io = IoTable::new(self.slots.clone(), Health::of(&shape)).after(&self.io);
        self.io.lasting = true;
        self.rings = Some(Rings::new(label.pool, sizes.len()));
        for member in shape.ids() {
            // the ring of an out-of-date device says nothing about the newest root, and auxiliary
            // devices have none
            let whole = shape.member(member).is_some_and(|m| m.state == MemberState::Present);
            if let Some(rings) = self.rings.as_mut().filter(|_| shape.is_auxiliary(member) || !whole) {
                rings.leave_out(member);
            }
        }
        let replacements = found.replacements.iter().map(|(member, slot)| (*member, size_at(*slot))).collect();
        self.config = Some(Config {
            id: label.pool,
            name: label.name.clone(),
            shape,
            features: label.features,
            feature_names: label.feature_names,
            notes: label.notes.clone(),
            sizes,
            replacements,
        });
        self.claim_before_reading()
    }

    fn choose_root(&mut self) -> Result<(), OpenErrorKind> {
        self.choose_keys();
        let rings = self.rings.as_ref().ok_or(OpenErrorKind::OutOfOrder("no rings"))?;
        // after the loss of special devices the roots, and all that they name, are still in their
        // places
        let as_ever = self.forsaken && self.tuning.aim == Aim::Rebuild && rings.newest(&self.slots).is_ok();
        if (self.surveying || self.tuning.aim != Aim::Newest) && !as_ever {
            return self.look_back();
        }
        let root = rings.newest(&self.slots)?.clone();
        self.begin_root(root);
        Ok(())
    }

    /// Starts again with an older checkpoint, and discards the state of the refused one.
    fn begin_older(&mut self) -> Result<(), OpenErrorKind> {
        self.layout = Some(SegmentLayout::new(&self.config.as_ref().ok_or(OpenErrorKind::OutOfOrder("no label"))?.shape));
        (self.root, self.checkpoint, self.pieces, self.core, self.replay, self.lost_small) = (None, None, None, None, None, None);
        self.wanted.clear();
        self.objects.clear();
        self.parts.clear();
        self.scans.clear();
        self.found.clear();
        self.log_replication = LogReplication::default();
        self.look_further_back()
    }

    fn replay_on(&mut self) -> Option<Pool> {
        let (Some(replay), Some(core)) = (&mut self.replay, &mut self.core) else { return None };
        match replay.run(core, &mut self.io, &mut self.bufs) {
            Err(why) => {
                self.fail(why);
                None
            }
            Ok(false) => None,
            Ok(true) if self.io.in_flight() > 0 => None,
            // a read-only pool is never written to, so the log need not be on every copy
            Ok(true) if self.tuning.read_only => self.take_pool(),
            Ok(true) => self.claim_before_writing(),
        }
    }
}

/// Returns the error of a write of an import.
fn written(write: OpenWrite, result: Result<(), DeviceError>) -> Result<(), OpenErrorKind> {
    result.map_err(|error| OpenErrorKind::NotWritten { write, error })
}
