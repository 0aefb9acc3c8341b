//! Items to check in a place: every block, node, header and object, with the means to verify it.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use millpond_block::BufSlice;
use millpond_format::{ObjectRef, SegmentId};

use super::Scrubbed;
use crate::space::Piece as DeadPiece;
use crate::store::{Check, Copy, Item, PAGE, Place, Store};
use crate::task::scrub::Scrubber;

impl Scrubber {
    /// Checks the copies of a place, and repairs wrong ones.
    pub(super) fn judge(&mut self, store: &mut Store, place: &Place, copies: &[Copy]) {
        let (items, unknown) = store.items(place, copies);
        self.lose_unknown(unknown);
        let mut lost = Vec::new();
        let mut wrong: Vec<(usize, Vec<&Item>)> = Vec::new();
        for item in &items {
            let bad: Vec<usize> = (0..copies.len()).filter(|at| !item.is_right(copies.get(*at).and_then(|copy| copy.1.as_ref()))).collect();
            let page = place.page + (item.from / PAGE) as u32;
            for at in &bad {
                // a read that failed was counted when it ended
                if let Some((copy, Some(_))) = copies.get(*at) {
                    self.count_scrub_error(store, place.segment, page, *copy);
                }
            }
            if bad.len() < copies.len() {
                for at in bad {
                    match wrong.iter_mut().find(|(other, _)| *other == at) {
                        Some((_, items)) => items.push(item),
                        None => wrong.push((at, vec![item])),
                    }
                }
                continue;
            }
            lost.push(item);
        }
        for (at, items) in wrong {
            self.mend(store, place, copies, at, &items);
        }
        self.lose(store, &lost);
    }

    /// Rewrites the pages of one copy that have wrong items: right bytes stay, the others come from
    /// other copies.
    fn mend(&mut self, store: &mut Store, place: &Place, copies: &[Copy], at: usize, items: &[&Item]) {
        let bytes = place.pages as usize * PAGE;
        let base = copies.get(at).into_iter().chain(copies).find_map(|(_, buf)| buf.as_ref()?.bytes().get(..bytes));
        let (Some(base), Some((copy, _))) = (base, copies.get(at)) else { return };
        let mut whole = store.bufs.take(bytes);
        if let Some(to) = whole.bytes_mut().get_mut(..bytes) {
            to.copy_from_slice(base);
        }
        let mut pages: Vec<(usize, usize)> = Vec::new();
        for item in items {
            let right =
                copies.iter().find_map(|(_, buf)| buf.as_ref().filter(|buf| item.is_right(Some(buf))).and_then(|buf| item.of(buf.bytes())));
            let (Some(right), Some(to)) = (right, whole.bytes_mut().get_mut(item.from..item.from + item.bytes)) else { continue };
            to.copy_from_slice(right);
            pages.push((item.pages().start, item.pages().end));
        }
        pages.sort_unstable();
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for (first, end) in pages {
            match runs.last_mut().filter(|run| first <= run.1) {
                Some(run) => run.1 = run.1.max(end),
                None => runs.push((first, end)),
            }
        }
        let (Some(member), whole) = (store.core.space.layout.copies(place.segment).nth(*copy), Arc::new(whole)) else { return };
        for (first, end) in runs {
            let piece = BufSlice::new(Arc::clone(&whole), first * PAGE..end * PAGE);
            store.repair(member, place.segment, place.page + first as u32, piece);
            self.found.iter_mut().for_each(|found| found.repaired += 1);
        }
    }
}

impl Scrubber {
    /// Records items without a good copy as lost.
    pub(super) fn lose(&mut self, store: &mut Store, items: &[&Item]) {
        let mut objects = Vec::new();
        for item in items {
            let Some(found) = &mut self.found else { continue };
            match &item.check {
                Check::Block(_, volume, block) => found.lose_block(*volume, *block),
                Check::Node(_) => found.lose_node(),
                Check::Object(at) => objects.push(*at),
                Check::Same(_) => {}
            }
        }
        self.write_objects_again(store, &objects);
    }

    /// Records `count` blocks that cannot be identified as lost.
    pub(super) fn lose_unknown(&mut self, count: u64) {
        if let Some(found) = self.found.as_mut().filter(|_| count > 0) {
            found.lose_unknown(count);
            found.errors += 1;
        }
    }

    /// Has the next checkpoint rewrite objects without a good copy elsewhere: their content is in
    /// memory. Of a piece of a deadlist only the index of its epochs may be in memory: then the
    /// blocks that it names are not freed.
    fn write_objects_again(&mut self, store: &mut Store, lost: &[ObjectRef]) {
        let places: BTreeSet<(SegmentId, u32)> = lost.iter().map(|at| (at.segment, at.offset)).collect();
        let pieces = store.core.catalog.deadlists().flat_map(|list| list.list().pieces());
        let here = |piece: &Rc<DeadPiece>| piece.stored().is_some_and(|at| places.contains(&(at.segment, at.offset)));
        let gone = pieces.filter(here).filter(|piece| !piece.spoil()).filter_map(|piece| piece.stored());
        let gone: BTreeSet<(SegmentId, u32)> = gone.map(|at| (at.segment, at.offset)).collect();
        gone.iter().for_each(|_| self.found.iter_mut().for_each(Scrubbed::lose_node));
        let lost: Vec<ObjectRef> = lost.iter().filter(|at| !gone.contains(&(at.segment, at.offset))).copied().collect();
        if lost.is_empty() {
            return;
        }
        store.rewrite_objects(|at| lost.iter().any(|gone| (gone.segment, gone.offset) == (at.segment, at.offset)));
        store.checkpoint.forced = true;
        self.found.iter_mut().for_each(|found| found.repaired += lost.len() as u64);
    }
}
