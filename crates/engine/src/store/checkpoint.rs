//! State of checkpoints that others than their task need: room for the next one, and whether one
//! runs.

use millpond_block::{BufSlice, MemberId, Tag};
use millpond_format::{ObjectRef, Root, SegmentId, second_area};
use std::collections::BTreeMap;

use super::{Estimate, Store};
use crate::Time;
use crate::log::Cursor;
use crate::space::{PAGE, SegmentState, Space};

/// Head pages of a segment of nodes or objects.
pub(crate) const META_HEAD_PAGES: u32 = 1;
/// Most bytes of objects in one write.
pub(crate) const OBJECT_WRITE: usize = 256 << 10;

/// The place of an object: its segment and its offset.
pub(crate) type At = (SegmentId, u32);
/// Objects by the segments that hold them or a part of them, each with the most bytes that
/// rewriting it adds to the next checkpoint: an object is written as a whole.
pub(crate) type ObjectsIn = BTreeMap<SegmentId, Vec<(At, usize)>>;

/// Progress of the running checkpoint.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    #[default]
    Idle,
    /// Nodes and objects are being written.
    Writing,
    /// Nodes and objects are being made durable.
    Barrier,
    /// The roots at the start of the devices are being written.
    FirstRoots,
    /// The first roots are being made durable.
    RootBarrier,
    /// The roots at the end of the devices are being written.
    SecondRoots,
    /// The second roots are being made durable, so that a valid root has two copies on every
    /// device.
    LastBarrier,
}

/// State of checkpoints.
#[derive(Debug, Default)]
pub(crate) struct CheckpointState {
    pub(crate) stage: Stage,
    /// Number of its nodes that are not written yet.
    pub(crate) unwritten: usize,
    /// Place of the next nodes.
    pub(crate) nodes_at: Option<Cursor>,
    /// Place of the next objects.
    pub(crate) objects_at: Option<Cursor>,
    /// Smallest unused chunk id when the last checkpoint was fixed.
    pub(crate) sealed_chunk: u64,
    /// Commands that asked for the next checkpoint.
    pub(crate) wanted: Vec<Tag>,
    /// Requested internally (for instance for space), not by a command.
    pub(crate) forced: bool,
    pub(crate) estimate: Estimate,
    /// Parts of objects that consist of parts, by the place of their index.
    pub(crate) parts: BTreeMap<(SegmentId, u32), Vec<ObjectRef>>,
    pub(crate) first_done: bool,
    /// Time at which the last checkpoint was fixed, or the import began.
    pub(crate) begun: Time,
}

/// Share (1/N) of a pool of less than 32 GiB that the log takes between two checkpoints, and the
/// least of it.
const CHECKPOINT_PART: u64 = 32;
const LEAST_LOG_BYTES: u64 = 256 << 20;
/// Share (1/N) of the devices of class `log` that the log takes between two checkpoints at most: half
/// of them may hold blocks that wait to be moved to data, and what the log emptied since the last
/// checkpoint is not free.
const LOG_CLASS_PART: u64 = 4;

impl CheckpointState {
    pub(super) fn new(now: Time) -> CheckpointState {
        CheckpointState { begun: now, ..CheckpointState::default() }
    }

    pub(crate) fn running(&self) -> bool {
        self.stage != Stage::Idle
    }

    /// Continues writing objects behind the last one of the checkpoint that an import found.
    pub(crate) fn continue_objects(&mut self, last: ObjectRef, space: &mut Space) {
        let end = u64::from(last.offset) * ObjectRef::STEP as u64 + u64::from(last.bytes());
        // a copy of its root follows it
        let (page, pages) = (u32::try_from(end.div_ceil(4096) + 1).unwrap_or(u32::MAX), space.layout.pages(last.segment));
        if page < pages {
            space.segments.set_state(last.segment, SegmentState::Open);
            self.objects_at = Some(Cursor { segment: last.segment, page, pages });
        }
    }
}

impl Store {
    /// Returns the bytes of log after which a checkpoint is due. What the log empties is retained
    /// for a rewind until some checkpoints later, so a small pool has them more often: else its log
    /// would go on to space that the host has not allocated, although most of the pool is empty.
    /// Where the log has space of its own (class `log`, beside parity, or beside a bucket), its size counts,
    /// and not that of the pool.
    pub(crate) fn checkpoint_log_bytes(&self) -> u64 {
        let (segments, landing) = (&self.core.space.segments, self.core.space.targets.landing);
        let (bytes, least) = if self.is_split() || self.core.space.names.bucket().is_some() {
            let bytes = segments.pages_in(landing) * PAGE;
            (bytes, LEAST_LOG_BYTES.min(bytes / LOG_CLASS_PART))
        } else {
            (segments.all_pages() * PAGE, LEAST_LOG_BYTES)
        };
        self.tuning.checkpoint_log_bytes.min((bytes / CHECKPOINT_PART).max(least))
    }

    /// Returns the writes of one root to every device except cache devices and spares.
    pub(crate) fn root_writes(&mut self, root: &Root, at_end: bool) -> Vec<(MemberId, u64, BufSlice)> {
        let mut buf = self.bufs.take(4096);
        if let Some(to) = buf.bytes_mut().get_mut(..4096) {
            to.copy_from_slice(&root.encode());
        }
        let piece = BufSlice::new(buf, 0..4096);
        let slot = Root::slot_offset(root.generation);
        let area = |size: u64| if at_end { second_area(size) } else { 0 };
        let rings = self.config.shape.ids().filter(|member| !self.config.shape.is_auxiliary(*member));
        rings.map(|member| (member, area(self.config.size_of(member)) + slot, piece.clone())).collect()
    }

    /// Removes an object and its parts from the counts of their segments.
    pub(crate) fn drop_object(&mut self, object: ObjectRef) {
        let parts = self.checkpoint.parts.remove(&(object.segment, object.offset)).unwrap_or_default();
        for at in parts.into_iter().chain([object]) {
            self.core.space.drop_object(at.segment, at.bytes());
        }
    }
}
