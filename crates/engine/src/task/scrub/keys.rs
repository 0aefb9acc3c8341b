//! Scrub of the key table, in both areas of every device. Pages that differ from what the pool has are
//! written again on all devices, in the order of a change (`task/key_writer.rs`). No command changes a page
//! meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use millpond_block::{Buf, ByteRange, DeviceError, MemberId};
use millpond_format::{KEY_PAGES, KEY_TABLE_OFFSET, KeyPage, SECTOR_BYTES, second_area};

use super::Scrubber;
use crate::store::{AreaPart, Context, JobIo, ScrubArea, Store, TABLE_BYTES};

/// Progress of the scrub of the key table.
#[derive(Debug, Default)]
pub(super) struct KeyScrub {
    /// Members with wrong copies of pages, one for each copy.
    wrong: BTreeMap<u16, Vec<MemberId>>,
    /// Members whose copies are being written again.
    repairing: Vec<MemberId>,
}

impl Scrubber {
    /// Starts reading the key table of each device, if the pool has one.
    pub(super) fn read_keys(&mut self, store: &mut Store, run: u64) {
        if !store.keys.is_laid() {
            return;
        }
        // no copy of them is known to be right
        (0..store.keys.unknown()).for_each(|_| self.count_error(store, None));
        for member in store.key_members() {
            for (second, area) in [(false, 0), (true, second_area(store.config.size_of(member)))] {
                self.of(run).into_iter().for_each(|run| run.labels.left += 1);
                let context = Context::Job(JobIo::ScrubArea(ScrubArea { run, member, second, part: AreaPart::Keys }));
                let range = ByteRange { offset: area + KEY_TABLE_OFFSET, length: TABLE_BYTES as u64 };
                store.io.read_raw(context, member, range, &mut store.bufs);
            }
        }
    }

    /// Compares a copy of the table with what the pool has.
    pub(super) fn compare_keys(&mut self, store: &mut Store, area: ScrubArea, result: Result<(), DeviceError>, buf: Option<&Buf>) {
        let bytes = buf.filter(|_| result.is_ok()).map(Buf::bytes).unwrap_or_default();
        let copy = |page: &KeyPage| {
            let at = usize::from(page.number) * SECTOR_BYTES;
            bytes.get(at..at + SECTOR_BYTES) == Some(page.encode().as_slice())
        };
        let wrong: Vec<u16> = (0..KEY_PAGES).filter(|number| store.keys.page(*number).is_some_and(|page| !copy(page))).collect();
        let in_use = store.key_members().contains(&area.member);
        for number in wrong.into_iter().filter(|_| in_use) {
            self.count_error(store, Some(area.member));
            self.of(area.run).into_iter().for_each(|run| run.labels.keys.wrong.entry(number).or_default().push(area.member));
        }
    }

    /// Has wrong pages written again. Returns `None` when none is left, and otherwise whether it wants
    /// another turn soon.
    pub(super) fn mend_keys(&mut self, store: &mut Store) -> Option<bool> {
        let run = self.running.as_mut()?;
        let keys = &mut run.labels.keys;
        if !keys.wrong.is_empty() {
            let wrong = std::mem::take(&mut keys.wrong);
            store.keys.write_again(wrong.keys().copied());
            keys.repairing = wrong.into_values().flatten().collect();
            return Some(true);
        }
        if keys.repairing.is_empty() {
            return None;
        }
        if store.keys.is_written_again() {
            return Some(false);
        }
        let repaired = std::mem::take(&mut keys.repairing);
        let left: BTreeSet<MemberId> = store.key_members().into_iter().collect();
        repaired.into_iter().filter(|member| left.contains(member)).for_each(|member| self.count_repair(store, member));
        None
    }
}
