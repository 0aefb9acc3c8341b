//! Stripes with parity are read whole. Wrong parts are computed from the other columns, and parity
//! is compared with the data.
//!
//! INV-SCRUB-2: parity is rewritten only where all live data of the same stripe is right, as read
//! or as computed and proven by a checksum: parity of wrong data would remove the last way to
//! repair it. Dead data counts as it is on the device. Nothing was written to any of the columns
//! while they were read.

use std::collections::BTreeSet;
use std::sync::Arc;

use millpond_block::{Buf, BufSlice};

use crate::Planted;
use crate::io::{Columns, Want};
use crate::space::PAGE;
use crate::store::{Copy, InMemory, Item, Place, Store, WriteStamp, copy_of};
use crate::task::scrub::Scrubber;

/// Returns the pages in which two byte ranges differ.
fn pages_that_differ<'a>(a: &'a [u8], b: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    a.chunks(PAGE as usize).zip(b.chunks(PAGE as usize)).enumerate().filter(|(_, (a, b))| a != b).map(|(page, _)| page)
}

impl Scrubber {
    /// Checks stripes that were read, and repairs them. Returns false when they have to be read
    /// again.
    pub(super) fn judge_rows(&mut self, store: &mut Store, place: &Place, read: &[Copy], still: Option<WriteStamp>) -> bool {
        let Some(rows) = store.in_memory(place, read) else { return true };
        let Some(lies) = store.joined(&rows) else { return true };
        let mut copies: Vec<Copy> = vec![(0, Some(lies))];
        store.find_header(&rows, place, &mut copies);
        let (items, unknown) = store.items(place, &copies);
        copies.truncate(1);
        let Some(lies) = copies.pop().and_then(|(_, lies)| lies) else { return true };
        let mut right = copy_of(&lies, rows.bytes, &mut store.bufs);
        self.lose_unknown(unknown);
        let (mut lost, mut wrong) = (Vec::new(), BTreeSet::new());
        for item in &items {
            if !self.compute_item(store, &rows, place, item, &mut right, &mut wrong) {
                lost.push(item);
            }
        }
        self.lose(store, &lost);
        // pages with bytes that cannot be recovered stay as they are
        wrong.retain(|page| !lost.iter().any(|item| item.pages().contains(page)));
        let still = still == Some(store.stillness());
        let right = Arc::new(right);
        for page in wrong {
            let at = place.page + page as u32;
            let device = store.core.space.layout.map(place.segment, at, 1, 0).first().map(|(device, _)| *device);
            let Some(device) = device.filter(|device| store.io.health.is_up(*device)) else { continue };
            let piece = BufSlice::new(Arc::clone(&right), page * PAGE as usize..(page + 1) * PAGE as usize);
            store.repair(device, place.segment, at, piece);
            self.found.iter_mut().for_each(|found| found.repaired += 1);
        }
        let data: Columns = store.core.space.layout.stripe(place.segment).map_or(0, |stripe| (1 << stripe.data()) - 1);
        // data computed with parity proves nothing about parity
        if unknown > 0 || rows.lacking & data != 0 {
            return true;
        }
        let stored = if store.tuning.plants(Planted::ParityFromRot) { Arc::new(lies) } else { right };
        let doubtful: Vec<(usize, usize)> = lost.iter().map(|item| (item.from, item.from + item.bytes)).collect();
        self.judge_parity(store, &rows, BufSlice::new(stored, 0..rows.bytes), &doubtful, still)
    }

    /// Compares parity with the data of its stripes, except stripes with bytes that cannot be
    /// recovered. Returns false when something was written meanwhile.
    fn judge_parity(&mut self, store: &mut Store, rows: &InMemory<'_>, data: BufSlice, doubtful: &[(usize, usize)], still: bool) -> bool {
        let Some(stripe) = store.core.space.layout.stripe(rows.segment) else { return true };
        let (unit, turn) = (stripe.unit as usize, stripe.unit as usize * stripe.data());
        let is_known = |row: usize| !doubtful.iter().any(|(from, to)| *from < (row + 1) * turn && row * turn < *to);
        let mut wrong: Vec<(usize, std::ops::Range<usize>, BufSlice)> = Vec::new();
        for (column, right) in store.io.split(&stripe, vec![data], &mut store.bufs).into_iter().enumerate().skip(stripe.data()) {
            let Some(right) = right.into_iter().next().filter(|_| (rows.lacking & !rows.unread) & 1 << column == 0) else { continue };
            let there = rows.columns.get(column).copied().flatten();
            let differs = |row: &usize| {
                there.and_then(|there| there.get(row * unit..(row + 1) * unit)) != right.bytes().get(row * unit..(row + 1) * unit)
            };
            for row in (0..right.len() / unit).filter(|row| is_known(*row)).filter(differs) {
                match wrong.last_mut().filter(|(at, rows, _)| *at == column && rows.end == row) {
                    Some((_, rows, _)) => rows.end += 1,
                    None => wrong.push((column, row..row + 1, right.clone())),
                }
            }
        }
        let start = rows.from / stripe.data() as u64;
        let columns = stripe.columns();
        if !wrong.is_empty() && !still {
            return false;
        }
        for (column, turns, right) in wrong {
            let Some((device, extent)) = columns.get(column).copied().filter(|(device, _)| store.io.health.is_up(*device)) else {
                continue;
            };
            if rows.unread & 1 << column == 0 {
                self.count_error(store, Some(device));
            }
            let offset = extent + start + (turns.start * unit) as u64;
            store.repair_at(device, rows.segment, offset, right.slice(turns.start * unit..turns.end * unit));
            self.found.iter_mut().for_each(|found| found.repaired += 1);
        }
        true
    }
}

impl Scrubber {
    /// Stores the right bytes of an item in `right`, and its pages to rewrite in `wrong`. Returns
    /// false when they cannot be recovered.
    fn compute_item(
        &mut self,
        store: &mut Store,
        rows: &InMemory<'_>,
        place: &Place,
        item: &Item,
        right: &mut Buf,
        wrong: &mut BTreeSet<usize>,
    ) -> bool {
        let range = item.from..item.from + item.bytes;
        let first = item.from / PAGE as usize;
        let unread = |page: &usize| {
            let from = rows.from + *page as u64 * PAGE;
            let stripe = store.core.space.layout.stripe(rows.segment).filter(|stripe| rows.lacking.count_ones() as usize <= stripe.parity);
            stripe.is_some_and(|stripe| Want::Bytes { from, to: from + PAGE }.columns(&stripe) & rows.unread != 0)
        };
        let unread: Vec<usize> = item.pages().filter(unread).collect();
        if item.is_right(Some(right)) {
            wrong.extend(unread);
            return true;
        }
        let mut device = store.core.space.layout.map(rows.segment, place.page + first as u32, 1, 0).first().map(|(device, _)| *device);
        let mut attempt = 1;
        let mut found = false;
        while !found && let Some(erased) = store.way(rows, range.start, item.bytes, attempt) {
            attempt += 1;
            let Some(computed) = store.recall(rows, range.start, item.bytes, erased) else { continue };
            if let (Some(bytes), Some(to)) = (computed.bytes().get(..item.bytes), right.bytes_mut().get_mut(range.clone()))
                && item.matches(bytes)
            {
                // an item may begin within a page
                let skip = range.start % PAGE as usize;
                let padded = |bytes: &[u8]| [&vec![0; skip], bytes].concat();
                let differ: Vec<usize> = pages_that_differ(&padded(to), &padded(bytes)).map(|page| first + page).collect();
                let at = differ.first().map_or(place.page, |page| place.page + *page as u32);
                device = store.core.space.layout.map(rows.segment, at, 1, 0).first().map(|(device, _)| *device);
                wrong.extend(differ.into_iter().chain(unread.iter().copied()));
                to.copy_from_slice(bytes);
                found = true;
            }
            store.bufs.give(computed);
        }
        self.count_error(store, device);
        found
    }
}
