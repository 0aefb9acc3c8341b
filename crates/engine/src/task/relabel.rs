//! New labels when the shape of the pool changes, and devices that fail.
//!
//! Labels are written like roots: to the first areas, flushed, to the second ones, flushed. So a crash leaves on every device one that can
//! be read, and of several shapes the newest holds; a change is such that the pool is whole with the old one too until all are written.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use millpond_block::{Piece, Tag};
use millpond_device::DeviceError;
use millpond_format::{Class, DeviceId, DeviceNote, MemberState, SECTOR_BYTES, SegmentId};

use super::checkpoint::second_area;
use crate::io::Failing;
use crate::pool::{Context, Pool};
use crate::{PoolState, Reply};

/// How far new labels are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Step {
    #[default]
    Idle,
    /// Devices that were no part of the pool before get theirs: from then on the pool is whole with the new shape, too.
    Fresh,
    FreshFlush,
    First,
    FirstFlush,
    Second,
    SecondFlush,
}

/// The task that writes labels.
#[derive(Debug, Default)]
pub(crate) struct Relabeler {
    step: Step,
    /// The shape changed since the last labels began.
    wanted: bool,
    /// Commands to answer when the next labels are durable, and when the running ones are.
    waiting: Vec<Tag>,
    answering: Vec<Tag>,
    /// Members that were no part of the pool before: they get an empty ring, too.
    pub(crate) fresh: BTreeSet<u16>,
    /// Members that are whole again; listed as such when the labels say so.
    pub(crate) filled: BTreeSet<u16>,
    /// Members that have left, and what they were for, listed until the labels say so: nobody may take their devices away before.
    pub(crate) left: BTreeMap<u16, Class>,
    /// Members whose successor is whole, and which device they were. Until the labels say so both get everything that is written.
    pub(crate) switching: BTreeMap<u16, DeviceId>,
}

impl Relabeler {
    /// Labels are being written, or will be.
    pub(crate) fn busy(&self) -> bool {
        self.wanted || self.step != Step::Idle
    }

    /// INV-LABEL-1: nothing is durable that a device lacks which the labels still call whole. So what was flushed without it counts when they
    /// say so. A new pool, whose roots have no number yet, has promised nothing.
    pub(crate) fn holds_flushes(&self, generation: u64) -> bool {
        self.busy() && generation > 0
    }

    /// The commands that wait, taken because the pool stopped.
    pub(crate) fn take_commands(&mut self) -> Vec<Tag> {
        let mut all = std::mem::take(&mut self.waiting);
        all.append(&mut self.answering);
        all
    }
}

impl Pool {
    /// The shape is another now: writes labels that say so, and answers `tag` when they are durable.
    pub(crate) fn relabel(&mut self, tag: Option<Tag>) {
        self.config.shape.generation += 1;
        self.relabeler.wanted = true;
        self.relabeler.waiting.extend(tag);
    }

    /// Devices look like this: labels say so soon, and of those that are missing what they said before. Of the same generation: the pool is
    /// what it was.
    pub(crate) fn describe_devices(&mut self, seen: Vec<DeviceNote>) {
        if self.tuning.read_only || self.state != PoolState::Online {
            return;
        }
        let members = self.config.shape.members.iter().filter(|m| m.state != MemberState::Gone);
        let ids: BTreeSet<DeviceId> = members.flat_map(|m| [Some(m.device), m.successor]).flatten().collect();
        let known = self.config.notes.iter().cloned().chain(seen).filter(|note| ids.contains(&note.device));
        // the later one of a device counts
        let known: BTreeMap<DeviceId, DeviceNote> = known.map(|note| (note.device, note)).collect();
        let notes: Vec<DeviceNote> = known.into_values().collect();
        if notes != self.config.notes {
            self.config.notes = notes;
            self.relabeler.wanted = true;
        }
    }

    /// A device that the pool can do without failed: it is out of date from now on. Reads and writes go on; what is flushed is durable when the
    /// labels say so (INV-LABEL-1).
    pub(crate) fn device_failed(&mut self, failing: Failing) {
        if failing.twin {
            return self.successor_failed(failing.member);
        }
        if self.relabeler.switching.contains_key(&failing.member) {
            return; // it was about to go, and its successor has everything
        }
        self.stop_filling(failing.member, false);
        self.cache.detach(failing.member, &mut self.bufs);
        self.config.shape.lose(usize::from(failing.member));
        self.spares.lost(failing.member, self.now, self.io.mark());
        self.relabel(None);
    }

    /// Goes on with labels that are to be written.
    pub(crate) fn step_relabel(&mut self) {
        // labels of a new pool are under way until it is open
        let open = self.state != PoolState::Opening || self.generation > 0;
        if self.relabeler.wanted && self.relabeler.step == Step::Idle && open {
            self.relabeler.wanted = false;
            self.relabeler.answering = std::mem::take(&mut self.relabeler.waiting);
            if self.relabeler.fresh.is_empty() {
                self.relabeler.step = Step::First;
                self.write_labels_again(false);
            } else {
                self.relabeler.step = Step::Fresh;
                self.write_fresh_labels();
            }
        }
    }

    fn write_fresh_labels(&mut self) {
        let mut writes = Vec::new();
        for member in self.relabeler.fresh.clone() {
            let size = self.config.sizes.get(usize::from(member)).copied().unwrap_or(0);
            let piece = self.fresh_area(member);
            writes.push((member, false, 0, piece.clone()));
            writes.push((member, false, second_area(size), piece));
        }
        self.io.write_each(Context::Relabel, writes);
    }

    fn write_labels_again(&mut self, at_end: bool) {
        let mut writes = Vec::new();
        for (member, size) in (0u16..).zip(self.config.sizes.clone()) {
            let state = self.config.shape.members.get(usize::from(member)).map(|m| m.state);
            let out = !matches!(state, Some(MemberState::Present | MemberState::Filling));
            if out || self.relabeler.switching.contains_key(&member) {
                continue;
            }
            let piece = self.label_sector(member, None);
            writes.push((member, false, if at_end { second_area(size) } else { 0 }, piece));
        }
        for (member, size) in self.config.twins.clone() {
            let successor = self.config.shape.members.get(usize::from(member)).and_then(|m| m.successor);
            let piece = self.label_sector(member, successor);
            writes.push((member, true, if at_end { second_area(size) } else { 0 }, piece));
        }
        self.io.write_each(Context::Relabel, writes);
    }

    fn label_sector(&mut self, member: u16, successor: Option<DeviceId>) -> Piece {
        let label = self.label(member, successor).encode();
        let mut buf = self.bufs.take(SECTOR_BYTES);
        if let Some(to) = buf.bytes_mut().get_mut(..SECTOR_BYTES) {
            to.copy_from_slice(&label);
        }
        Piece::new(Rc::new(buf), 0..SECTOR_BYTES)
    }

    /// Every label says what the shape is: segments of new devices can be used.
    fn take_new_rows(&mut self) {
        if self.relabeler.wanted {
            return;
        }
        let first = SegmentId(self.core.space.rows.count());
        self.core.space.rows.extend(&self.config.shape);
        self.core.space.take_rows();
        self.judge_new(first);
        self.begin_special_streams();
    }

    /// A step of writing labels is done.
    pub(crate) fn relabel_done(&mut self, result: Result<(), DeviceError>) {
        if let Err(error) = result {
            return self.fault(format!("writing the labels failed ({error})"));
        }
        let step = match self.relabeler.step {
            Step::Idle => return,
            Step::Fresh => Step::FreshFlush,
            Step::FreshFlush => Step::First,
            Step::First => Step::FirstFlush,
            Step::FirstFlush => Step::Second,
            Step::Second => Step::SecondFlush,
            Step::SecondFlush => Step::Idle,
        };
        self.relabeler.step = step;
        match step {
            Step::FreshFlush | Step::FirstFlush | Step::SecondFlush => self.flusher.wants.labels = true,
            Step::First => self.write_labels_again(false),
            Step::Second => self.write_labels_again(true),
            Step::Fresh => {}
            Step::Idle => {
                self.relabeler.fresh.clear();
                self.take_new_rows();
                if !self.relabeler.wanted {
                    self.relabeler.filled.clear();
                    self.switch();
                    self.let_go();
                    self.release_held();
                    self.attach_caches();
                }
                let tags = std::mem::take(&mut self.relabeler.answering);
                self.replies.extend(tags.into_iter().map(|tag| (tag, Ok(Reply::Done))));
            }
        }
    }
}
