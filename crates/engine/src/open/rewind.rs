//! Rewinding: an import that goes back to an older state, only at the user's request.
//!
//! The import publishes a root that is newer than all others and names the older checkpoint. State
//! that it gives up must never come back, nor be mistaken for data that is written from now on:
//!
//! INV-RING-3: a root that rewinds has a generation above every root on the devices, an incarnation
//! that no batch in the log has, and chunk ids (I11) that the state it gives up cannot have used.
//! Without the log after the checkpoint it has no log tail but its own, and its log continues with
//! numbers above all that were ever given, so that the first page of a segment shows when it was
//! taken (INV-REST-1). With the log, numbers continue from its sound end: the newer roots that are
//! given up then were not whole, and never will be.
//!
//! If no checkpoint is named the newest whole one is taken, with the log after it. Map nodes are
//! not read before the log is replayed, so a damaged one may be found only then: an older
//! checkpoint is taken instead, as if it had been named, without the log. The root of the refused
//! checkpoint has whole objects, and keeps them, so numbers must continue above it.
//!
//! Nothing is overwritten before the new root is durable: a crash until then leaves the newest
//! state as it was.

use millpond_block::{BufPool, BufSlice, MemberId};
use millpond_format::{Lsn, RING_OFFSET, RING_SLOTS, Root, SECTOR_BYTES, second_area};

use super::checkpoint_scan::CheckpointScan;
use super::import::{Import, ImportIo, Stage};
use super::restore_points::RestorePointScan;
use crate::{Aim, OpenError, OpenErrorKind, RestorePoint, Whole};

/// Incarnations that are skipped: more than roots that may have been lost.
const INCARNATIONS: u32 = 256;
/// Bound of the number of batches in the log after the newest checkpoint.
const BATCHES: u64 = 1 << 32;

/// Limits for an import that goes back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rewound {
    /// The log must be sound up to here.
    pub(crate) needs: Lsn,
    /// The rings are of no use and are rewritten.
    pub(crate) renew: bool,
}

/// Returns a ring that replaces a useless one, for a root that is published next. All other slots
/// have the previous root, with other generations and without a log, so that they are as required
/// before a root is written (INV-RING-2). The slot of the next root is damaged on purpose: after a
/// crash now, the pool must not look as if its log ended here.
fn renewed_ring(root: &Root, bufs: &mut BufPool) -> BufSlice {
    let bytes = RING_SLOTS as usize * SECTOR_BYTES;
    let mut buf = bufs.take(bytes);
    if let Some(ring) = buf.bytes_mut().get_mut(..bytes) {
        ring.fill(0xff);
        let oldest = (root.generation + 2).saturating_sub(RING_SLOTS).max(1);
        for generation in oldest..=root.generation {
            let at = (generation % RING_SLOTS) as usize * SECTOR_BYTES;
            if let Some(slot) = ring.get_mut(at..at + SECTOR_BYTES) {
                slot.copy_from_slice(&Root { generation, log_tails: Vec::new(), ..root.clone() }.encode());
            }
        }
        // in the first round of the ring, the slots that follow were never written
        for generation in root.generation + 2..=RING_SLOTS {
            let at = (generation % RING_SLOTS) as usize * SECTOR_BYTES;
            ring.iter_mut().skip(at).take(SECTOR_BYTES).for_each(|byte| *byte = 0);
        }
    }
    BufSlice::new(buf, 0..bytes)
}

impl Import {
    /// Looks for restore points, and which of them are whole, instead of taking the newest root.
    pub(super) fn look_back(&mut self) -> Result<(), OpenErrorKind> {
        let pool = self.config.as_ref().ok_or(OpenErrorKind::OutOfOrder("no label"))?.id;
        if self.tuning.aim == Aim::Rebuild {
            self.checkpoint_scan = Some(CheckpointScan::new(pool, self.layout.as_ref().ok_or(OpenErrorKind::OutOfOrder("no layout"))?));
            self.stage = Stage::CheckpointScan;
            return Ok(());
        }
        let rings = self.rings.as_ref().ok_or(OpenErrorKind::OutOfOrder("no rings"))?;
        let mut roots = rings.roots(&self.slots)?;
        let aim = if self.surveying { Aim::Newest } else { self.tuning.aim };
        if let Aim::To(id) = aim {
            roots.retain(|(root, _)| root.generation == id);
            if roots.is_empty() {
                return Err(OpenErrorKind::CheckpointAbsent { id });
            }
        }
        self.survey = Some(RestorePointScan::new(pool, roots, aim == Aim::Rewind));
        self.stage = Stage::RestorePointScan;
        Ok(())
    }

    /// Continues the scan for checkpoints; at its end, starts to survey them.
    pub(super) fn hunt_on(&mut self) -> Result<(), OpenErrorKind> {
        let (Some(checkpoint_scan), Some(layout), Some(rings)) = (&mut self.checkpoint_scan, &self.layout, &mut self.rings) else {
            return Err(OpenErrorKind::OutOfOrder("no checkpoint_scan"));
        };
        if !checkpoint_scan.step(&mut self.io, layout, &mut self.bufs) {
            return Ok(());
        }
        let roots = self.checkpoint_scan.take().map(CheckpointScan::into_roots).unwrap_or_default();
        if roots.is_empty() {
            return Err(OpenErrorKind::NoCheckpointFound);
        }
        rings.replace(roots);
        let pool = self.config.as_ref().ok_or(OpenErrorKind::OutOfOrder("no label"))?.id;
        let roots = rings.roots(&self.slots)?;
        self.survey = Some(RestorePointScan::new(pool, roots, !self.surveying));
        self.stage = Stage::RestorePointScan;
        Ok(())
    }

    /// Continues the survey; at its end, chooses a restore point, or reads the log after the
    /// newest.
    pub(super) fn survey_on(&mut self) -> Result<(), OpenErrorKind> {
        let (Some(survey), Some(layout)) = (&mut self.survey, &self.layout) else { return Err(OpenErrorKind::OutOfOrder("no survey")) };
        if !survey.step(&mut self.io, layout, &mut self.bufs) || self.io.in_flight() > 0 {
            return Ok(());
        }
        self.surveyed.points = self.survey.take().map(RestorePointScan::into_points).unwrap_or_default();
        if !self.surveying {
            let root = self.choose_point()?;
            self.begin_root(root);
            return Ok(());
        }
        let readable = self.surveyed.points.iter().find(|point| point.is_start()).map(|point| point.id);
        let root = readable.and_then(|id| self.rings.as_ref()?.root(id)).cloned();
        let Some(root) = root else {
            self.stage = Stage::Surveyed;
            return Ok(());
        };
        self.scan_from(&root)?;
        self.root = Some(root);
        Ok(())
    }

    /// Returns the known roots, the newest last.
    fn known_roots(&self) -> Result<Vec<(Root, u32)>, OpenErrorKind> {
        self.rings.as_ref().ok_or(OpenErrorKind::OutOfOrder("no rings"))?.roots(&self.slots)
    }

    /// Gives the chosen checkpoint up for an older one, because of `why`. Returns false if that is
    /// not possible.
    fn falls_back(&mut self, why: &OpenErrorKind) -> bool {
        let reads = matches!(self.stage, Stage::Root | Stage::Objects | Stage::Lists | Stage::Pieces | Stage::Scan | Stage::Replay);
        // data on a device that is silent or fails just now may not be damaged: the user can still
        // choose an older checkpoint
        let damaged = !self.unreadable && self.silent.is_empty();
        let falls = reads && damaged && self.rewound.is_some() && !matches!(self.tuning.aim, Aim::To(_));
        if falls {
            self.refused.get_or_insert_with(|| why.clone());
            self.stage = Stage::Older;
        }
        falls
    }

    /// Surveys the checkpoints before the one that was chosen.
    pub(super) fn look_further_back(&mut self) -> Result<(), OpenErrorKind> {
        let pool = self.config.as_ref().ok_or(OpenErrorKind::OutOfOrder("no label"))?.id;
        let mut roots = self.known_roots()?;
        let chosen =
            roots.iter().find(|(root, _)| self.chosen == Some(root.generation)).map(|(root, _)| (root.generation, root.checkpoint));
        roots.retain(|(root, _)| chosen.is_some_and(|(generation, refused)| root.generation < generation && root.checkpoint != refused));
        self.survey = Some(RestorePointScan::new(pool, roots, false));
        self.stage = Stage::RestorePointScan;
        Ok(())
    }

    /// Returns the root to go back to: of the newest whole restore point, or of the requested one;
    /// after a refusal, of an older one.
    fn choose_point(&mut self) -> Result<Root, OpenErrorKind> {
        let alone = self.chosen.is_some() || matches!(self.tuning.aim, Aim::To(_));
        let usable = self.surveyed.points.iter().find(|point| match (&self.refused, alone) {
            // this one was not requested, so it must be whole
            (Some(_), _) => point.whole == Whole::Yes,
            (None, true) => point.is_usable(),
            (None, false) => point.is_start(),
        });
        let Some(point) = usable else { return Err(none_whole(&self.surveyed.points, self.tuning.aim)) };
        let rings = self.rings.as_ref().ok_or(OpenErrorKind::OutOfOrder("no rings"))?;
        let (root, last) =
            (rings.root(point.id).ok_or(OpenErrorKind::OutOfOrder("no root"))?, rings.last().ok_or(OpenErrorKind::OutOfOrder("no root"))?);
        let superseding = rings.superseding();
        let mut root = Root { generation: superseding - 1, incarnation: rings.incarnation().saturating_add(INCARNATIONS), ..root.clone() };
        if alone {
            (root.lsn, root.log_tails) = (Lsn(last.lsn.0 + BATCHES), Vec::new());
        }
        let needs = if let Whole::WithLog(lsn) = point.whole { lsn } else { Lsn(0) };
        (self.chosen, self.unreadable) = (Some(point.id), false);
        self.rewound = Some(Rewound { needs, renew: self.tuning.aim == Aim::Rebuild });
        Ok(root)
    }

    /// Rewrites the rings in one area of each device.
    pub(super) fn renew_rings(&mut self, second: bool) {
        let (Some(rings), Some(root), Some(config)) = (&self.rings, &self.root, &self.config) else { return };
        let ring = renewed_ring(root, &mut self.bufs);
        let place = |member: MemberId| {
            let size = config.size_of(member);
            let area = if second { second_area(size) } else { 0 };
            (member, area + RING_OFFSET, ring.clone())
        };
        self.io.write_raw(ImportIo::Mend, rings.members().into_iter().map(place).collect());
    }

    /// Ends the import, unless it may go back further: older checkpoints may be whole although the
    /// one that a rewind chose is not.
    pub(super) fn fail(&mut self, why: OpenErrorKind) {
        if self.failed.is_none() && self.falls_back(&why) {
            return;
        }
        let kind = match &self.refused {
            Some(first) if matches!(self.stage, Stage::RestorePointScan) => OpenErrorKind::NoOlderWhole(Box::new(first.clone())),
            _ => why,
        };
        let went_back = self.rewound.is_some() && !matches!(self.tuning.aim, Aim::To(_));
        let (unanswered, unreadable) = (&self.silent, self.unreadable);
        self.failed.get_or_insert_with(|| OpenError { kind, unanswered: unanswered.clone(), unreadable, went_back });
    }
}

fn none_whole(points: &[RestorePoint], aim: Aim) -> OpenErrorKind {
    match (aim, points.first()) {
        (Aim::To(id), Some(point)) => OpenErrorKind::CheckpointNotWhole { id, whole: point.whole.clone() },
        (_, Some(newest)) => OpenErrorKind::NoneWhole { count: points.len(), newest: newest.whole.clone() },
        (_, None) => OpenErrorKind::NoCheckpoint,
    }
}
