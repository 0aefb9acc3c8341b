//! Writing labels when the shape of the pool changes or a device fails.
//!
//! Labels are written like roots: to the first areas, flushed, to the second areas, flushed. So a
//! crash leaves a readable label on every device, and of several shapes the newest is valid; every
//! change is such that the pool is also whole under the old shape until all labels are written.
//!
//! A device with a bad sector may have one label alone. Then the bad copy is written first, whichever
//! it is. If that fails again the only label is overwritten where it is: a power cut in that write may
//! leave the device without any. So this is done for changes of the shape alone.

use millpond_block::{BufSlice, MemberId, Tag};
use millpond_format::{
    CLAIM_OFFSET, DeviceId, DeviceNote, KEY_TABLE_OFFSET, MemberState, RING_OFFSET, RING_SLOTS, SECTOR_BYTES, SegmentId, second_area,
};
use std::collections::{BTreeMap, BTreeSet};

use super::lease::Lease;
use crate::PoolState;
use crate::io::Replica;
use crate::store::{Context, LabelStep as Step, Store};

/// The task that writes labels.
#[derive(Debug, Default)]
pub(crate) struct LabelWriter {
    /// Commands to answer when the labels that are being written are durable.
    answering: Vec<Tag>,
    /// Members whose second labels are written before the first ones.
    reversed: BTreeSet<MemberId>,
}

impl LabelWriter {
    /// Takes the commands that wait for the labels that are being written, to answer them.
    pub(crate) fn take_commands(&mut self) -> Vec<Tag> {
        std::mem::take(&mut self.answering)
    }
}

impl LabelWriter {
    /// Starts writing labels if they are requested.
    pub(crate) fn step_relabel(&mut self, store: &mut Store, lease: &Lease) {
        // the labels of a new pool are being written until it is open
        let open = store.state != PoolState::Opening || store.generation > 0;
        // new devices get the key table as it is (INV-CRYPT-8)
        let waits = store.keys.writing && !store.labels.fresh.is_empty();
        if store.labels.wanted && store.labels.step == Step::Idle && store.labels.copying == 0 && open && !waits {
            store.labels.wanted = false;
            self.answering = std::mem::take(&mut store.labels.waiting);
            self.reversed = store.labels.unwritten.iter().filter(|(_, second)| *second).map(|(member, _)| *member).collect();
            if store.labels.fresh.is_empty() {
                store.labels.step = Step::First;
                self.write_labels_again(store, false);
            } else {
                store.labels.step = Step::Fresh;
                self.write_fresh_labels(store, lease);
            }
        }
    }

    fn write_fresh_labels(&mut self, store: &mut Store, lease: &Lease) {
        let mut writes = Vec::new();
        for member in store.labels.fresh.clone() {
            let size = store.config.size_of(member);
            let piece = fresh_area(store, lease, member);
            writes.push((member, Replica::Current, 0, piece.clone()));
            writes.push((member, Replica::Current, second_area(size), piece));
        }
        store.labels.in_flight = 1;
        store.io.write_each(Context::Relabel, writes);
    }
}

impl LabelWriter {
    /// Stores descriptions of devices in the labels soon; missing devices keep their last
    /// description. The generation stays the same, because the shape does.
    pub(crate) fn describe_devices(&mut self, store: &mut Store, seen: Vec<DeviceNote>) {
        if store.tuning.read_only || store.state != PoolState::Online {
            return;
        }
        // no description is worth overwriting the only label of a device
        if !store.labels.unwritten.is_empty() {
            return;
        }
        let members = store.config.shape.members.iter().filter(|m| m.state != MemberState::Gone);
        let ids: BTreeSet<DeviceId> = members.flat_map(|m| [Some(m.device), m.replacement]).flatten().collect();
        let known = store.config.notes.iter().cloned().chain(seen).filter(|note| ids.contains(&note.device));
        // the later description of a device counts
        let known: BTreeMap<DeviceId, DeviceNote> = known.map(|note| (note.device, note)).collect();
        let notes: Vec<DeviceNote> = known.into_values().collect();
        if notes != store.config.notes {
            store.config.notes = notes;
            store.labels.wanted = true;
        }
    }

    /// Writes the labels of one area of each device. A copy that could not be written before is tried
    /// first, and its failure is no reason to stop: the other one is the only label of the device, and
    /// is not overwritten before the end of that try.
    pub(crate) fn write_labels_again(&mut self, store: &mut Store, at_end: bool) {
        let (mut writes, mut lacking) = (Vec::new(), Vec::new());
        for (member, size) in (0..).map(MemberId).zip(store.config.sizes.clone()) {
            let state = store.config.shape.member(member).map(|m| m.state);
            let out = !matches!(state, Some(MemberState::Present | MemberState::Filling));
            if out || store.labels.switching.contains_key(&member) {
                continue;
            }
            let piece = store.label_sector(member, None);
            let second = at_end != self.reversed.contains(&member);
            let area = if second { second_area(size) } else { 0 };
            match !at_end && store.labels.unwritten.contains(&(member, second)) {
                true => lacking.push((member, second, area, piece)),
                false => writes.push((member, Replica::Current, area, piece)),
            }
        }
        for (member, size) in store.config.replacements.clone() {
            let replacement = store.config.shape.member(member).and_then(|m| m.replacement);
            let piece = store.label_sector(member, replacement);
            writes.push((member, Replica::Replacement, if at_end { second_area(size) } else { 0 }, piece));
        }
        store.labels.in_flight = lacking.len() + 1;
        for (member, second, area, piece) in lacking {
            store.io.write_loose(Context::LackingLabel(member, second), member, area, piece);
        }
        store.io.write_each(Context::Relabel, writes);
    }

    /// Adds the segments of new devices, once every label lists them.
    pub(crate) fn take_new_rows(&mut self, store: &mut Store) {
        if store.labels.wanted {
            return;
        }
        let first = SegmentId(store.core.space.layout.count());
        store.core.space.layout.extend(&store.config.shape);
        store.core.space.take_rows();
        store.judge_new(first);
        store.begin_special_streams();
    }
}

/// Returns the first bytes of an area on a new device: the label, the claim if there is one,
/// a ring of zeroes, so that old data there cannot look like a damaged root (INV-RING-2), and the key
/// table if the pool has one (INV-CRYPT-8).
pub(crate) fn fresh_area(store: &mut Store, lease: &Lease, member: MemberId) -> BufSlice {
    let keys = if store.config.shape.is_auxiliary(member) { Vec::new() } else { store.keys.bytes() };
    let ring_end = (RING_OFFSET + RING_SLOTS * SECTOR_BYTES as u64) as usize;
    let keys_at = KEY_TABLE_OFFSET as usize;
    let bytes = if keys.is_empty() { ring_end } else { keys_at + keys.len() };
    let label = store.label(member, None).encode();
    let mut buf = store.bufs.take(bytes);
    if let Some((head, rest)) = buf.bytes_mut().get_mut(..bytes).and_then(|all| all.split_at_mut_checked(SECTOR_BYTES)) {
        head.copy_from_slice(&label);
        rest.fill(0);
    }
    if let (Some(claim), false) = (lease.claim(), store.config.shape.is_auxiliary(member))
        && let Some(to) = buf.bytes_mut().get_mut(CLAIM_OFFSET as usize..CLAIM_OFFSET as usize + SECTOR_BYTES)
    {
        to.copy_from_slice(&claim.encode());
    }
    buf.bytes_mut().iter_mut().skip(keys_at).zip(&keys).for_each(|(to, from)| *to = *from);
    BufSlice::new(buf, 0..bytes)
}
