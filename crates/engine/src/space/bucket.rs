//! Chunks in objects of a bucket.

use millpond_format::{Placed, PlacedChunk, SegmentId};

use super::chunks::{NODE_GRAIN, Place};
use super::names::Named;
use super::segments::SegmentState;
use super::slots::Slots;
use super::table::Space;

impl Space {
    /// Gives chunks their places in an object of a bucket, which exists; those that are gone are skipped.
    /// The segment is open until all items of the object were applied. Returns false, and changes
    /// nothing, for an item that does not fit: no chunk of nodes is in a bucket, and a segment has one
    /// object.
    pub(crate) fn place_in_bucket(&mut self, placed: &Placed) -> bool {
        let (segment, pages) = (placed.segment, u32::from(placed.pages));
        let fits = |to: &PlacedChunk| {
            let Some(chunk) = self.chunks.get(to.chunk) else { return true };
            let slots: u32 = to.present.iter().map(|word| word.count_ones()).sum();
            chunk.grain != NODE_GRAIN && to.page + (slots * u32::from(chunk.grain)).div_ceil(8) <= pages
        };
        let fits = self.layout.is_in_bucket(segment) && pages <= self.layout.pages(segment) && placed.chunks.iter().all(fits);
        if !fits || !self.names.insert(segment, Named { name: placed.name, pages: placed.pages }) {
            return false;
        }
        if let Some(known) = self.segments.get_mut(segment) {
            known.class = placed.class;
            if known.state != SegmentState::Open {
                self.segments.set_state(segment, SegmentState::Open);
            }
        }
        for to in &placed.chunks {
            let place = Place { segment, page: to.page };
            self.place_chunk(to.chunk, place, placed.class, Some(to.header), Some(Slots::from_words(to.present.clone())));
        }
        true
    }

    /// Opens the segments of objects without chunks that a checkpoint was in the middle of: the log may
    /// still place some there.
    pub(crate) fn open_bucket_segments(&mut self) {
        for (segment, _) in self.names.iter() {
            if self.segments.get(segment).is_some_and(|s| s.state == SegmentState::Free) {
                self.segments.set_state(segment, SegmentState::Open);
            }
        }
    }

    /// Ends the replay of items: all objects are complete.
    pub(crate) fn seal_bucket_segments(&mut self) {
        let open = |(segment, _): &(_, _)| self.segments.get(*segment).is_some_and(|s| s.state == SegmentState::Open);
        let open: Vec<_> = self.names.iter().filter(open).map(|(segment, _)| segment).collect();
        open.into_iter().for_each(|segment| self.seal_bucket_segment(segment));
    }

    /// Ends the items of an object: its segment is empty once its chunks are gone.
    pub(crate) fn seal_bucket_segment(&mut self, segment: SegmentId) {
        self.seal(segment);
        self.settle(segment);
    }

    /// Dooms the objects of bucket segments that have become free; `generation`: of the first root that
    /// lists them.
    pub(crate) fn doom_free(&mut self, generation: u64) {
        for segment in self.segments.take_freed() {
            if self.segments.get(segment).is_some_and(|s| s.state == SegmentState::Free) {
                self.names.doom_segment(segment, generation);
            }
        }
    }
}

#[cfg(test)]
mod tests;
