//! The flush that operations and tasks of a pool share, and the count of rewrites of wrong copies.

use millpond_format::Lsn;

/// The pool's own tasks that wait for a flush.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wants {
    /// The checkpoint.
    pub(crate) checkpoint: bool,
    /// New labels.
    pub(crate) labels: bool,
    /// A device that has been filled.
    pub(crate) fill: bool,
    /// The key table.
    pub(crate) keys: bool,
    /// Names of objects of the bucket: so many may be in doubt after a crash, and no more.
    pub(crate) names: bool,
}

/// The pool's flush, shared by all operations and tasks that wait for one.
#[derive(Debug, Default)]
pub(crate) struct Flusher {
    /// The tasks that the running flush is for, if one runs.
    pub(crate) running: Option<Wants>,
    /// The tasks that wait for the next flush to begin.
    pub(crate) wants: Wants,
    /// Segments become free once the log is durable.
    pub(crate) space: bool,
    /// Waiting operations, and the batch that each needs durable.
    pub(crate) waiting: Vec<(u32, Lsn)>,
    /// The batch up to which the log was flushed, and whether a checkpoint waits for that, while
    /// the labels do not say yet on which devices (INV-LABEL-1).
    pub(crate) held: Option<(Lsn, bool)>,
}

impl Flusher {
    /// Returns whether any operation or task waits for the next flush.
    pub(crate) fn wanted(&self) -> bool {
        !self.waiting.is_empty() || self.space || self.wants != Wants::default()
    }
}

/// Rewrites of copies that were wrong.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Repairs {
    /// Number ever begun.
    pub(crate) begun: u64,
    pub(crate) under_way: usize,
}
