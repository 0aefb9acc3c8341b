//! Reads of a scrub, and the count of errors.

use millpond_block::MemberId;
use millpond_format::SegmentId;

use super::{Reading, Run, Scrubber};
use crate::space::PAGE;
use crate::store::{Context, JobIo, Place, ScrubRead, Store};

impl Scrubber {
    pub(super) fn of(&mut self, number: u64) -> Option<&mut Run> {
        self.running.as_mut().filter(|run| run.number == number)
    }

    /// Reads a place as a whole.
    pub(super) fn read_place(&mut self, store: &mut Store, place: Place) {
        let copies = store.copies_to_scrub(place.segment);
        self.read_parts(store, place, copies, None);
    }

    pub(super) fn read_parts(&mut self, store: &mut Store, place: Place, copies: Vec<usize>, skim: Option<u64>) {
        let share = store.core.space.layout.stripe(place.segment).map_or(1, |stripe| stripe.data());
        let (now, still) = (store.now, Some(store.stillness()).filter(|_| store.repairs.under_way == 0));
        let Some(run) = &mut self.running else { return };
        if copies.is_empty() || place.pages == 0 {
            return;
        }
        let left = copies.len();
        let (segment, page, pages) = (place.segment, place.page, place.pages);
        let bytes = pages as usize * PAGE as usize * left / share;
        if run.milli.0 != now {
            run.milli = (now, run.begun);
        }
        (run.next, run.begun) = (run.next + 1, run.begun + bytes);
        let (number, reading) = (run.number, run.next);
        let empty = copies.iter().map(|copy| (*copy, None)).collect();
        run.readings.insert(reading, Reading { place, copies: empty, left, bytes, still, skim });
        store.charge_jobs(bytes as u64);
        for copy in copies {
            read_copy(store, ScrubRead { run: number, reading, copy, tries: 1 }, segment, page, pages);
        }
    }

    /// Counts an error of the device that holds a page of a copy.
    pub(super) fn count_scrub_error(&mut self, store: &mut Store, segment: SegmentId, page: u32, copy: usize) {
        let device = store.core.space.layout.map(segment, page, 1, copy).first().map(|(device, _)| *device);
        self.count_error(store, device);
    }

    pub(super) fn count_error(&mut self, store: &mut Store, device: Option<MemberId>) {
        if let Some(errors) = device.and_then(|device| store.io.errors.get_mut(device.index())) {
            *errors += 1;
        }
        self.found.iter_mut().for_each(|found| found.errors += 1);
    }
}

pub(crate) fn read_copy(store: &mut Store, read: ScrubRead, segment: SegmentId, page: u32, pages: u32) {
    store.pin(segment);
    let (context, layout) = (Context::Job(JobIo::Scrub(read)), &store.core.space.layout);
    match layout.stripe(segment).and_then(|stripe| stripe.column(read.copy, page, pages)) {
        Some((device, range)) => store.io.read_pinned(context, segment, device, range, &mut store.bufs),
        None => store.io.read_copy(context, layout, segment, page, pages, read.copy, &mut store.bufs),
    }
}
