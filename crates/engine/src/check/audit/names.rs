//! Names of bucket segments.

use std::collections::BTreeSet;

use millpond_format::SegmentId;

use crate::pool::Pool;
use crate::space::{NODE_GRAIN, SegmentState};

/// Checks that each name has a segment with chunks or in retention, or one that is being filled, and
/// the reverse; that uploads have the segments that are reserved, and no others; and INV-OBJ-6.
pub(super) fn findings(pool: &Pool) -> Vec<String> {
    let space = &pool.store.core.space;
    let mut findings = Vec::new();
    let uploads: BTreeSet<SegmentId> = pool.cleaner.uploads.segments().collect();
    for id in space.segments.ids().filter(|id| space.layout.is_in_bucket(*id)) {
        let Some(s) = space.segments.get(id) else { continue };
        let holds = matches!(s.state, SegmentState::Sealed | SegmentState::Open | SegmentState::Retained(_));
        let named = space.names.get(id);
        // one that was freed keeps its name until the next checkpoint dooms it
        if named.is_some() != holds && !(named.is_some() && s.state == SegmentState::Free) {
            findings.push(format!("bucket segment {id} is {:?}, and its object is {named:?}", s.state));
        }
        if (s.state == SegmentState::Reserved) != uploads.contains(&id) {
            findings.push(format!("bucket segment {id} is {:?}, and among those of uploads: {}", s.state, uploads.contains(&id)));
        }
        let is_here = |chunk: &crate::space::Chunk| chunk.grain == NODE_GRAIN && chunk.place.is_some_and(|place| place.segment == id);
        if s.objects > 0 || s.metadata || s.chunks.iter().any(|chunk| space.chunks.get(*chunk).is_some_and(is_here)) {
            findings.push(format!("INV-OBJ-6: bucket segment {id} has nodes or objects of a checkpoint"));
        }
    }
    for (id, named) in space.names.iter() {
        if !space.layout.is_in_bucket(id) {
            findings.push(format!("segment {id} is in no bucket, and its object is {named:?}"));
        }
        if space.names.doomed().any(|doomed| doomed.name == named.name) {
            findings.push(format!("the object of bucket segment {id} is doomed: {named:?}"));
        }
    }
    findings
}
