//! Reading places in strips, one after another, and checking each while it is in the CPU cache.
//!
//! Strips show whether all of a place is right: every copy was readable, live items match their
//! checksums in the first copy, the other copies are equal to it, and parity matches its data.
//! Otherwise, or where strips cannot show it, the place is read as a whole and judged (`items`,
//! `rows`): nothing is counted, repaired or given up here.

use super::Reading;
use crate::store::Store;
use crate::task::scrub::Scrubber;

impl Scrubber {
    /// Begins to read the next strip. Returns false when none is left.
    pub(super) fn read_strip(&mut self, store: &mut Store) -> bool {
        let Some(run) = &mut self.running else { return false };
        let Some(mut last) = run.skims.last_entry() else { return false };
        let (number, skim) = (*last.key(), last.get_mut());
        let Some(strip) = skim.next() else { return false };
        let copies = skim.copies.clone();
        self.read_parts(store, strip, copies, Some(number));
        true
    }

    /// Handles a strip that was read.
    pub(super) fn strip_read(&mut self, store: &mut Store, run: u64, number: u64, strip: Reading) {
        let skim = self.of(run).and_then(|run| run.skims.remove(&number));
        let Some(mut skim) = skim else { return store.give_copies(strip.copies) };
        skim.early.insert(strip.place.page, strip.copies);
        let gone = !store.lies_still(&skim.place);
        let mut right = !gone;
        while right && let Some(copies) = skim.early.remove(&(skim.place.page + skim.looked)) {
            right = store.look_at(&mut skim, &copies);
            store.give_copies(copies);
        }
        if right && skim.looked < skim.place.pages {
            if let Some(run) = self.of(run) {
                run.skims.insert(number, skim);
            }
            return;
        }
        std::mem::take(&mut skim.early).into_values().for_each(|copies| store.give_copies(copies));
        let sound = right && store.was_all(&skim);
        if !sound && !gone {
            self.read_place(store, skim.place);
        }
    }
}
