//! Unchanged objects that a checkpoint rewrites, so that their segments can be reused.

use std::collections::{BTreeMap, BTreeSet};

use millpond_format::{ObjectRef, SegmentId};

use super::{At, ObjectsIn, Store, Watermark};
use crate::Planted;
use crate::space::{Segment, SegmentState};

/// Objects in a segment are rewritten when a smaller share than this of it is in use; the larger
/// share applies when objects have no other space and it is short.
const SPARSE: (u32, u32) = (1, 2);
const SPARSE_WHEN_SHORT: (u32, u32) = (3, 4);

impl Store {
    /// Marks objects in segments that are less than half in use for rewriting, the sparsest
    /// segments first, as far as there is room. So segments of objects take at most about twice the
    /// space of their live objects; a segment becomes sparse only when as much of it was replaced.
    /// Objects in segments that are given up are rewritten one by one: this frees no space, so room
    /// for another checkpoint is kept.
    pub(crate) fn dirty_sparse_objects(&mut self) {
        self.checkpoint.estimate.moving = 0;
        let sparse = self.sparse_segments();
        if sparse.is_empty() {
            return;
        }
        let mut room = self.object_room_beside(1);
        if room == 0 && self.evacuation.is_none() {
            return;
        }
        let objects = self.objects_in(&sparse.iter().copied().collect());
        let kept = if self.tuning.plants(Planted::CrowdTheLog) { 0 } else { self.object_room(self.least_segments()) };
        let directories: BTreeSet<At> =
            self.core.catalog.deadlists().filter_map(|list| list.stored()).map(|at| (at.segment, at.offset)).collect();
        let (mut chosen, mut moving) = (BTreeSet::new(), BTreeMap::new());
        for id in sparse {
            let here = objects.get(&id).into_iter().flatten().filter(|(at, _)| !chosen.contains(at)).copied();
            let here: Vec<(At, usize)> = here.collect();
            if self.core.space.segments.get(id).is_some_and(Segment::is_given_up) {
                let leaves = self.core.space.segments.get(id).is_some_and(|s| s.leaving);
                let mut stays = false;
                for (at, bytes) in here {
                    // a piece moves when all directories that refer to it do
                    let is_directory = directories.contains(&at);
                    let fits = room.checked_sub(bytes).filter(|left| *left >= kept && (is_directory || !stays));
                    stays |= is_directory && fits.is_none();
                    match fits {
                        Some(left) => (room, _) = (left, chosen.insert(at)),
                        None if leaves => _ = moving.insert(at, bytes),
                        None => {}
                    }
                }
            } else if let Some(left) = room.checked_sub(here.iter().map(|(_, bytes)| bytes).sum()) {
                room = left;
                chosen.extend(here.iter().map(|(at, _)| *at));
            }
        }
        moving.retain(|at, _| !chosen.contains(at));
        self.checkpoint.estimate.moving = moving.values().sum();
        if !chosen.is_empty() {
            self.rewrite_objects(|at| chosen.contains(&(at.segment, at.offset)));
            self.estimate_again();
        }
    }

    /// Returns the segments of objects that are less than half in use or given up, the emptiest
    /// first.
    fn sparse_segments(&self) -> Vec<SegmentId> {
        let space = &self.core.space;
        let known = space.segments.ids().filter_map(|id| Some((id, space.segments.get(id)?)));
        let of_objects = known.filter(|(_, s)| s.state == SegmentState::Sealed && s.objects > 0);
        let short = self.keeps_meta_apart() && !self.may_change(Watermark::Guest) && !self.tuning.plants(Planted::CrowdTheLog);
        let (part, of) = if short { SPARSE_WHEN_SHORT } else { SPARSE };
        let sparse = of_objects.filter(|(id, s)| s.is_given_up() || s.objects * of < space.layout.pages(*id) * 8 * part);
        let mut sparse: Vec<(u32, SegmentId)> = sparse.map(|(id, s)| (s.objects, id)).collect();
        sparse.sort_unstable();
        sparse.into_iter().map(|(_, id)| id).collect()
    }

    /// Returns the objects in these segments; pieces of deadlists come last, after the directories
    /// that refer to them.
    fn objects_in(&self, segments: &BTreeSet<SegmentId>) -> ObjectsIn {
        let (chunks, catalog) = (&self.core.space.chunks, &self.core.catalog);
        let pages = chunks.stored().filter(|(page, _)| !chunks.is_dirty(*page)).map(|(_, at)| (at, self.chunk_page_bytes()));
        let names = catalog.snapshots.stored().filter(|(page, _)| !catalog.snapshots.is_dirty(*page));
        let names = names.map(|(_, at)| (at, at.bytes() as usize + ObjectRef::STEP));
        let lineages = catalog.lineages.values().map(|line| &line.deadlist).chain(catalog.frees.iter().map(|(_, list)| list));
        let of_snapshots = catalog.snapshots.iter().map(|(id, snapshot)| {
            // the page with the place of the deadlist changes with it
            (&snapshot.deadlist, catalog.snapshots.page_at(*id).map_or(0, |at| at.bytes() as usize))
        });
        let mut found = ObjectsIn::new();
        let touched = |object: ObjectRef| {
            let parts = self.checkpoint.parts.get(&(object.segment, object.offset)).into_iter().flatten().map(|part| part.segment);
            parts.chain([object.segment]).filter(|id| segments.contains(id)).collect::<BTreeSet<SegmentId>>()
        };
        let mut add = |ids: BTreeSet<SegmentId>, object: ObjectRef, bytes| {
            ids.into_iter().for_each(|id| found.entry(id).or_default().push(((object.segment, object.offset), bytes)));
        };
        // all names of objects are counted for the next checkpoint anyway, but for those that stay
        let objects = self.core.space.names.unchanged().map(|at| (at, at.bytes() as usize + ObjectRef::STEP));
        pages.chain(names).chain(objects).for_each(|(object, bytes)| add(touched(object), object, bytes));
        let mut pieces = BTreeMap::new();
        for (list, page) in lineages.map(|list| (list, 0)).chain(of_snapshots) {
            let directory = list.stored().filter(|_| !list.needs_write()).map(|at| (at, self.list_bytes(list) + page));
            let mut ids = directory.map(|(at, _)| touched(at)).unwrap_or_default();
            for piece in list.list().pieces().filter(|piece| !piece.needs_write()) {
                let Some(at) = piece.stored() else { continue };
                let of_piece = touched(at);
                if !of_piece.is_empty() {
                    // the directory names the place of the piece and is rewritten with it, so it
                    // counts at the piece's segment, too
                    ids.extend(&of_piece);
                    pieces.insert((at.segment, at.offset), (of_piece, at, self.stored_bytes(piece.length())));
                }
            }
            if let Some((at, bytes)) = directory {
                add(ids, at, bytes);
            }
        }
        pieces.into_values().for_each(|(ids, at, bytes)| add(ids, at, bytes));
        found
    }

    /// Returns all objects by segment.
    pub(crate) fn stored_objects(&self) -> ObjectsIn {
        self.objects_in(&self.core.space.segments.ids().collect())
    }

    /// Counts the objects that must still move out of segments that a removal gives up.
    pub(crate) fn count_moving(&mut self) {
        let segments = &self.core.space.segments;
        let leaving = segments.ids().filter(|id| segments.get(*id).is_some_and(|s| s.leaving && s.objects > 0)).collect();
        let moving: BTreeMap<At, usize> = self.objects_in(&leaving).into_values().flatten().collect();
        self.checkpoint.estimate.moving = moving.values().sum();
    }

    /// Marks objects for rewriting for which, or for a part of which, `moves` holds.
    pub(crate) fn rewrite_objects(&mut self, moves: impl Fn(ObjectRef) -> bool) {
        let parts = &self.checkpoint.parts;
        let here = |at: ObjectRef| {
            let mut its = parts.get(&(at.segment, at.offset)).into_iter().flatten();
            moves(at) || its.any(|part| moves(*part))
        };
        self.core.space.names.rewrite(here);
        let pages: Vec<u64> = self.core.space.chunks.stored().filter(|(_, at)| here(*at)).map(|(page, _)| page).collect();
        pages.into_iter().for_each(|page| self.core.space.chunks.dirty_page(page));
        let (catalog, pieces) = (&mut self.core.catalog, &self.core.pieces);
        let lists = catalog.lineages.values_mut().map(|line| &mut line.deadlist).chain(catalog.frees.iter_mut().map(|(_, list)| list));
        lists.for_each(|list| _ = list.rewrite(pieces, here));
        catalog.snapshots.rewrite(pieces, here);
    }
}
