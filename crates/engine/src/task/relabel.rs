//! Writing labels when the shape of the pool changes or a device fails.
//!
//! Labels are written like roots: to the first areas, flushed, to the second areas, flushed. So a
//! crash leaves a readable label on every device, and of several shapes the newest is valid; every
//! change is such that the pool is also whole under the old shape until all labels are written.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use millpond_block::{DeviceError, MemberId, Piece, Tag};
use millpond_format::{CLAIM_OFFSET, DeviceId, DeviceNote, Label, MemberState, RING_OFFSET, RING_SLOTS, SECTOR_BYTES, SegmentId};

use super::checkpoint::second_area;
use crate::io::{Failing, Replica};
use crate::pool::Pool;
use crate::store::{Context, LabelStep as Step, Store};
use crate::{Fault, PoolState, Reply};

/// The task that writes labels.
#[derive(Debug, Default)]
pub(crate) struct Relabeler {
    /// Commands to answer when the labels that are being written are durable.
    answering: Vec<Tag>,
}

impl Relabeler {
    /// Takes the commands that wait, because the pool stopped.
    pub(crate) fn take_commands(&mut self) -> Vec<Tag> {
        std::mem::take(&mut self.answering)
    }
}

impl Pool {
    /// Handles the failure of a device that the pool can do without: it is out of date from now on.
    /// Reads and writes go on; flushed data is durable once the labels say so (INV-LABEL-1).
    pub(crate) fn device_failed(&mut self, failing: Failing) {
        if failing.replica == Replica::Replacement {
            return self.filler.successor_failed(&mut self.store, failing.member);
        }
        if self.store.labels.switching.contains_key(&failing.member) {
            return; // the old device was about to go, and its replacement has everything
        }
        self.filler.stop_filling(failing.member, Replica::Current);
        self.cache.detach(failing.member, &mut self.store.bufs);
        self.store.config.shape.lose(failing.member.index());
        self.spares.lost(failing.member, self.store.now, self.store.io.mark());
        self.store.relabel(None);
    }

    /// Starts writing labels if they are requested.
    pub(crate) fn step_relabel(&mut self) {
        // the labels of a new pool are being written until it is open
        let open = self.store.state != PoolState::Opening || self.store.generation > 0;
        if self.store.labels.wanted && self.store.labels.step == Step::Idle && open {
            self.store.labels.wanted = false;
            self.relabeler.answering = std::mem::take(&mut self.store.labels.waiting);
            if self.store.labels.fresh.is_empty() {
                self.store.labels.step = Step::First;
                self.relabeler.write_labels_again(&mut self.store, false);
            } else {
                self.store.labels.step = Step::Fresh;
                self.write_fresh_labels();
            }
        }
    }

    fn write_fresh_labels(&mut self) {
        let mut writes = Vec::new();
        for member in self.store.labels.fresh.clone() {
            let size = self.store.config.sizes.get(member.index()).copied().unwrap_or(0);
            let piece = self.fresh_area(member);
            writes.push((member, Replica::Current, 0, piece.clone()));
            writes.push((member, Replica::Current, second_area(size), piece));
        }
        self.store.io.write_each(Context::Relabel, writes);
    }

    /// Returns the first bytes of an area on a new device: the label, the claim if there is one,
    /// and a ring of zeroes, so that old data there cannot look like a damaged root (INV-RING-2).
    pub(crate) fn fresh_area(&mut self, member: MemberId) -> Piece {
        let bytes = (RING_OFFSET + RING_SLOTS * SECTOR_BYTES as u64) as usize;
        let label = self.store.label(member, None).encode();
        let mut buf = self.store.bufs.take(bytes);
        if let Some((head, rest)) = buf.bytes_mut().get_mut(..bytes).and_then(|all| all.split_at_mut_checked(SECTOR_BYTES)) {
            head.copy_from_slice(&label);
            rest.fill(0);
        }
        if let (Some(claim), false) = (self.keeper.claim(), self.store.config.shape.is_aside(member.0))
            && let Some(to) = buf.bytes_mut().get_mut(CLAIM_OFFSET as usize..CLAIM_OFFSET as usize + SECTOR_BYTES)
        {
            to.copy_from_slice(&claim.encode());
        }
        Piece::new(Rc::new(buf), 0..bytes)
    }

    /// Handles the end of a step.
    pub(crate) fn relabel_done(&mut self, result: Result<(), DeviceError>) {
        if let Err(error) = result {
            return self.store.fault(Fault::Labels(error));
        }
        let step = match self.store.labels.step {
            Step::Idle => return,
            Step::Fresh => Step::FreshFlush,
            Step::FreshFlush => Step::First,
            Step::First => Step::FirstFlush,
            Step::FirstFlush => Step::Second,
            Step::Second => Step::SecondFlush,
            Step::SecondFlush => Step::Idle,
        };
        self.store.labels.step = step;
        match step {
            Step::FreshFlush | Step::FirstFlush | Step::SecondFlush => self.store.flusher.wants.labels = true,
            Step::First => self.relabeler.write_labels_again(&mut self.store, false),
            Step::Second => self.relabeler.write_labels_again(&mut self.store, true),
            Step::Fresh => {}
            Step::Idle => {
                self.store.labels.fresh.clear();
                self.relabeler.take_new_rows(&mut self.store);
                if !self.store.labels.wanted {
                    self.store.labels.filled.clear();
                    self.store.switch();
                    self.store.let_go();
                    self.release_held();
                    self.attach_caches();
                }
                let tags = std::mem::take(&mut self.relabeler.answering);
                self.store.replies.extend(tags.into_iter().map(|tag| (tag, Ok(Reply::Done))));
            }
        }
    }
}

impl Relabeler {
    /// Stores descriptions of devices in the labels soon; missing devices keep their last
    /// description. The generation stays the same, because the shape does.
    pub(crate) fn describe_devices(&mut self, store: &mut Store, seen: Vec<DeviceNote>) {
        if store.tuning.read_only || store.state != PoolState::Online {
            return;
        }
        let members = store.config.shape.members.iter().filter(|m| m.state != MemberState::Gone);
        let ids: BTreeSet<DeviceId> = members.flat_map(|m| [Some(m.device), m.successor]).flatten().collect();
        let known = store.config.notes.iter().cloned().chain(seen).filter(|note| ids.contains(&note.device));
        // the later description of a device counts
        let known: BTreeMap<DeviceId, DeviceNote> = known.map(|note| (note.device, note)).collect();
        let notes: Vec<DeviceNote> = known.into_values().collect();
        if notes != store.config.notes {
            store.config.notes = notes;
            store.labels.wanted = true;
        }
    }

    fn write_labels_again(&mut self, store: &mut Store, at_end: bool) {
        let mut writes = Vec::new();
        for (member, size) in (0..).map(MemberId).zip(store.config.sizes.clone()) {
            let state = store.config.shape.members.get(member.index()).map(|m| m.state);
            let out = !matches!(state, Some(MemberState::Present | MemberState::Filling));
            if out || store.labels.switching.contains_key(&member) {
                continue;
            }
            let piece = store.label_sector(member, None);
            writes.push((member, Replica::Current, if at_end { second_area(size) } else { 0 }, piece));
        }
        for (member, size) in store.config.twins.clone() {
            let successor = store.config.shape.members.get(member.index()).and_then(|m| m.successor);
            let piece = store.label_sector(member, successor);
            writes.push((member, Replica::Replacement, if at_end { second_area(size) } else { 0 }, piece));
        }
        store.io.write_each(Context::Relabel, writes);
    }

    /// Adds the segments of new devices, once every label lists them.
    fn take_new_rows(&mut self, store: &mut Store) {
        if store.labels.wanted {
            return;
        }
        let first = SegmentId(store.core.space.rows.count());
        store.core.space.rows.extend(&store.config.shape);
        store.core.space.take_rows();
        store.judge_new(first);
        store.begin_special_streams();
    }
}

impl Store {
    /// Requests labels of the changed shape, and answers `tag` when they are durable.
    pub(crate) fn relabel(&mut self, tag: Option<Tag>) {
        self.config.shape.generation += 1;
        self.labels.wanted = true;
        self.labels.waiting.extend(tag);
    }

    /// Returns the label of a member, or of its replacement device.
    pub(crate) fn label(&self, member: MemberId, successor: Option<DeviceId>) -> Label {
        let shape = &self.config.shape;
        let own = shape.members.get(member.index()).map_or(DeviceId(0), |m| m.device);
        let (pool, name, device) = (self.config.id, self.config.name.clone(), successor.unwrap_or(own));
        Label { pool, name, device, member: member.0, shape: shape.clone(), notes: Vec::new() }.with_notes(&self.config.notes)
    }

    fn label_sector(&mut self, member: MemberId, successor: Option<DeviceId>) -> Piece {
        let label = self.label(member, successor).encode();
        let mut buf = self.bufs.take(SECTOR_BYTES);
        if let Some(to) = buf.bytes_mut().get_mut(..SECTOR_BYTES) {
            to.copy_from_slice(&label);
        }
        Piece::new(Rc::new(buf), 0..SECTOR_BYTES)
    }
}
