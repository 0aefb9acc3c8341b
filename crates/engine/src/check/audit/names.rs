//! Names of bucket segments.

use crate::core::Core;
use crate::space::SegmentState;

/// Checks that each name has a segment with chunks or in retention, or one that is being filled, and
/// the reverse.
pub(super) fn findings(core: &Core) -> Vec<String> {
    let space = &core.space;
    let mut findings = Vec::new();
    for id in space.segments.ids().filter(|id| space.layout.is_in_bucket(*id)) {
        let Some(s) = space.segments.get(id) else { continue };
        let holds = matches!(s.state, SegmentState::Sealed | SegmentState::Open | SegmentState::Retained(_));
        let named = space.names.get(id);
        // one that was freed keeps its name until the next checkpoint dooms it
        if named.is_some() != holds && !(named.is_some() && s.state == SegmentState::Free) {
            findings.push(format!("bucket segment {id} is {:?}, and its object is {named:?}", s.state));
        }
        if s.objects > 0 || s.metadata {
            findings.push(format!("bucket segment {id} has nodes or objects of a checkpoint"));
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
