//! Scrub of labels, rings of roots and the key table, in both areas of every device. A wrong label is written again
//! alone, and the other one of the device is not touched; a root is rewritten from another copy.
//!
//! No checkpoint begins meanwhile, so all rings should be equal. The scrub ends with a checkpoint:
//! objects that only the previous one needed were not checked, and are not needed after that.

use millpond_block::{Buf, BufSlice, ByteRange, DeviceError, MemberId};
use millpond_format::{Label, MemberState, RING_OFFSET, RING_SLOTS, Root, SECTOR_BYTES, second_area};
use std::collections::{BTreeMap, BTreeSet};

use super::Step;
use super::keys::KeyScrub;
use crate::store::{AreaPart, Context, JobIo, ScrubArea, Store};
use crate::task::scrub::Scrubber;

/// Progress of the scrub of labels.
#[derive(Debug, Default)]
pub(super) struct Labels {
    asked: bool,
    pub(super) left: usize,
    /// Copies that are wrong: members and areas, false for the first.
    wrong: BTreeSet<(MemberId, bool)>,
    /// Copies that were written again, not flushed yet.
    written: BTreeSet<(MemberId, bool)>,
    /// Copies whose flush has begun.
    flushing: BTreeSet<(MemberId, bool)>,
    rings: BTreeMap<(MemberId, bool), Buf>,
    pub(super) keys: KeyScrub,
}

impl Scrubber {
    /// Reads labels and rings while they are not being written, and repairs them.
    pub(super) fn scrub_labels(&mut self, store: &mut Store) -> bool {
        let idle = !store.labels.busy() && !store.checkpoint.running() && !store.keys.writing;
        let Some(run) = &mut self.running else { return false };
        if !run.labels.asked {
            if idle {
                run.labels.asked = true;
                let number = run.number;
                self.read_labels(store, number);
                self.read_keys(store, number);
            }
            return false;
        }
        if run.labels.left > 0 {
            return false;
        }
        if !run.labels.rings.is_empty() {
            let (number, rings) = (run.number, std::mem::take(&mut run.labels.rings));
            self.mend_rings(store, number, &rings);
            rings.into_values().for_each(|buf| store.bufs.give(buf));
            return true;
        }
        if !run.labels.wrong.is_empty() {
            let (number, wrong) = (run.number, std::mem::take(&mut run.labels.wrong));
            self.write_copies(store, number, wrong);
            return true;
        }
        if !run.labels.written.is_empty() {
            run.labels.flushing = std::mem::take(&mut run.labels.written);
            let part = AreaPart::CopiesFlush(store.config.shape.generation);
            let flush = ScrubArea { run: run.number, member: MemberId(0), second: false, part };
            run.labels.left += usize::from(store.io.flush(Context::Job(JobIo::ScrubArea(flush))));
            return true;
        }
        if let Some(soon) = self.mend_keys(store) {
            return soon;
        }
        let Some(run) = &mut self.running else { return false };
        run.step = Step::Checkpoint(store.metrics.checkpoints);
        store.checkpoint.forced = true;
        true
    }
}

impl Scrubber {
    fn read_labels(&mut self, store: &mut Store, run: u64) {
        let members = store.config.shape.numbered().filter(|(_, m)| m.state == MemberState::Present);
        let members: Vec<MemberId> = members.map(|(at, _)| at).collect();
        let generation = store.config.shape.generation;
        for member in members {
            let size = store.config.size_of(member);
            for (second, area) in [(false, 0), (true, second_area(size))] {
                let label = (AreaPart::Label(generation), area, SECTOR_BYTES as u64);
                let ring = (AreaPart::Ring, area + RING_OFFSET, RING_SLOTS * SECTOR_BYTES as u64);
                let ring = Some(ring).filter(|_| !store.config.shape.is_auxiliary(member));
                for (part, offset, length) in [Some(label), ring].into_iter().flatten() {
                    self.of(run).into_iter().for_each(|run| run.labels.left += 1);
                    let context = Context::Job(JobIo::ScrubArea(ScrubArea { run, member, second, part }));
                    store.io.read_raw(context, member, ByteRange { offset, length }, &mut store.bufs);
                }
            }
        }
    }

    /// Writes copies of labels that are wrong. Until a flush after that they count as not written, so
    /// that a change of the labels begins with them: a power cut leaves the other copy.
    fn write_copies(&mut self, store: &mut Store, run: u64, wrong: BTreeSet<(MemberId, bool)>) {
        for (member, second) in wrong {
            self.count_error(store, Some(member));
            let in_use = store.config.shape.member(member).is_some_and(|m| m.state == MemberState::Present);
            // labels that are being written get there, too
            if store.labels.busy() || !in_use {
                continue;
            }
            // a spare or cache device without a label is only out of use
            if !store.config.shape.is_auxiliary(member) {
                store.labels.unwritten.insert((member, second));
            }
            store.labels.copying += 1;
            self.of(run).into_iter().for_each(|run| run.labels.left += 1);
            let piece = store.label_sector(member, None);
            let at = if second { second_area(store.config.size_of(member)) } else { 0 };
            let context = Context::Job(JobIo::ScrubArea(ScrubArea { run, member, second, part: AreaPart::LabelCopy }));
            store.io.write_loose(context, member, at, piece);
        }
    }

    /// Handles the end of a read, write or flush of labels or rings.
    pub(crate) fn scrub_area_done(&mut self, store: &mut Store, area: ScrubArea, result: Result<(), DeviceError>, buf: Option<Buf>) {
        let ScrubArea { member, second, part, .. } = area;
        if part == AreaPart::LabelCopy {
            store.labels.copying -= 1;
        }
        let state = store.config.shape.member(member).map(|m| m.state);
        let right = match part {
            AreaPart::Label(generation) if store.config.shape.generation == generation && state == Some(MemberState::Present) => {
                let bytes = buf.as_ref().filter(|_| result.is_ok()).and_then(|buf| buf.bytes().get(..SECTOR_BYTES));
                bytes.and_then(|bytes| Label::decode_knowing(bytes, store.tuning.features).ok()) == Some(store.label(member, None))
            }
            _ => true,
        };
        let Some(run) = self.of(area.run).filter(|run| run.step == Step::Labels) else { return };
        run.labels.left -= 1;
        if part == AreaPart::Keys {
            self.compare_keys(store, area, result, buf.as_ref());
            return buf.into_iter().for_each(|buf| store.bufs.give(buf));
        }
        if !right {
            run.labels.wrong.insert((member, second));
        }
        match part {
            AreaPart::LabelCopy if result.is_ok() => drop(run.labels.written.insert((member, second))),
            AreaPart::CopiesFlush(generation) => {
                let flushed = std::mem::take(&mut run.labels.flushing);
                if result.is_ok() && generation == store.config.shape.generation && !store.labels.busy() {
                    store.labels.unwritten.retain(|copy| !flushed.contains(copy));
                }
            }
            _ => {}
        }
        match (part, buf) {
            (AreaPart::Ring, Some(buf)) if result.is_ok() => drop(run.labels.rings.insert((member, second), buf)),
            (_, buf) => buf.into_iter().for_each(|buf| store.bufs.give(buf)),
        }
        if part == AreaPart::LabelCopy && result.is_ok() {
            self.count_repair(store, member);
        }
    }

    /// Rewrites roots that are damaged, or older than on another device: a slot should hold the
    /// same root everywhere. Blank slots are left, because devices that were added later have them.
    fn mend_rings(&mut self, store: &mut Store, run: u64, rings: &BTreeMap<(MemberId, bool), Buf>) {
        let sector = |ring: &'_ Buf, slot: usize| ring.bytes().get(slot * SECTOR_BYTES..(slot + 1) * SECTOR_BYTES).map(<[u8]>::to_vec);
        let unused = vec![0; SECTOR_BYTES];
        for slot in 0..RING_SLOTS as usize {
            let pool = store.config.id;
            let of = |bytes: &[u8]| Root::decode(bytes).ok().filter(|r| r.pool == pool && r.generation % RING_SLOTS == slot as u64);
            let copies: Vec<((MemberId, bool), Vec<u8>)> = rings.iter().filter_map(|(at, ring)| Some((*at, sector(ring, slot)?))).collect();
            let newest =
                copies.iter().filter_map(|(_, bytes)| Some((of(bytes)?.generation, bytes))).max_by_key(|(generation, _)| *generation);
            for ((member, second), bytes) in &copies {
                let blank = bytes.iter().all(|byte| *byte == 0);
                let right = newest.is_some_and(|(generation, _)| of(bytes).is_some_and(|root| root.generation == generation));
                if blank || right {
                    continue;
                }
                self.count_error(store, Some(*member));
                // during the first round of the ring the slots ahead were never written
                let first = if slot == 0 { RING_SLOTS } else { slot as u64 };
                let unused = (first > store.generation).then_some(&unused);
                if let Some(right) = newest.map(|(_, right)| right).or(unused) {
                    self.count_repair(store, *member);
                    self.write_root_again(store, ScrubArea { run, member: *member, second: *second, part: AreaPart::Mended }, slot, right);
                }
            }
        }
    }

    fn write_root_again(&mut self, store: &mut Store, area: ScrubArea, slot: usize, root: &[u8]) {
        let size = store.config.size_of(area.member);
        let start = if area.second { second_area(size) } else { 0 };
        let mut buf = store.bufs.take(SECTOR_BYTES);
        if let Some(to) = buf.bytes_mut().get_mut(..SECTOR_BYTES) {
            to.copy_from_slice(root);
        }
        let write = (area.member, start + RING_OFFSET + (slot * SECTOR_BYTES) as u64, BufSlice::new(buf, 0..SECTOR_BYTES));
        self.of(area.run).into_iter().for_each(|run| run.labels.left += 1);
        store.io.write_raw(Context::Job(JobIo::ScrubArea(area)), vec![write]);
    }

    pub(super) fn count_repair(&mut self, store: &mut Store, member: MemberId) {
        if let Some(repaired) = store.io.repaired.get_mut(member.index()) {
            *repaired += 1;
        }
        self.found.iter_mut().for_each(|found| found.repaired += 1);
    }
}
