//! State of the labels that others than the task that writes them need.

use std::collections::{BTreeMap, BTreeSet};

use millpond_block::{MemberId, Tag};
use millpond_format::{Class, DeviceId};

/// Progress of writing labels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LabelStep {
    #[default]
    Idle,
    /// New devices get their labels: from then on the pool is whole under the new shape, too.
    Fresh,
    FreshFlush,
    First,
    FirstFlush,
    Second,
    SecondFlush,
}

/// State of the labels.
#[derive(Debug, Default)]
pub(crate) struct LabelState {
    pub(crate) step: LabelStep,
    /// Commands to answer when the next labels are durable.
    pub(crate) waiting: Vec<Tag>,
    /// The shape has changed since the last write of labels began.
    pub(crate) wanted: bool,
    /// Members that are new in the pool: they also get an empty ring.
    pub(crate) fresh: BTreeSet<MemberId>,
    /// Members that have become whole; reported as whole once the labels say so.
    pub(crate) filled: BTreeSet<MemberId>,
    /// Removed members and their classes, listed until the labels say that they are removed: their
    /// devices may not be taken away before.
    pub(crate) left: BTreeMap<MemberId, Class>,
    /// Members whose replacement is whole, and their old devices. Until the labels name the
    /// replacement both get all writes.
    pub(crate) switching: BTreeMap<MemberId, DeviceId>,
}

impl LabelState {
    /// Returns whether labels are being written, or will be.
    pub(crate) fn busy(&self) -> bool {
        self.wanted || self.step != LabelStep::Idle
    }

    /// Returns whether flushed data does not count as durable yet. INV-LABEL-1: no data counts as
    /// durable that is missing on a device which the labels still call whole; it counts once they
    /// no longer do. A new pool, whose roots have no number yet, has promised nothing.
    pub(crate) fn holds_flushes(&self, generation: u64) -> bool {
        self.busy() && generation > 0
    }
}
