//! Rewrites the newest root and pages of the key table where they lack a copy, and labels that lack one.

use millpond_block::{BufSlice, MemberId};
use millpond_format::{Root, SECTOR_BYTES, second_area};

use super::{Import, ImportIo, Stage};
use crate::pool::Pool;

/// Progress of rewriting the newest root and the newest key table where a crash or rot left no copy of it; in the order of a
/// new root (INV-RING-1).
#[derive(Clone, Copy)]
pub(in crate::open) enum Mending {
    /// The roots that were read may be in a cache only, so devices are flushed first.
    Flush,
    First,
    FirstFlush,
    Second,
}

impl Import {
    /// Repairs labels, the newest root and the key table if needed, and returns the pool when it is ready.
    fn mend(&mut self) -> Option<Pool> {
        let (rings, root) = (self.rings.as_ref()?, self.root.as_ref()?);
        let roots = match self.rewound.as_ref().map(|rewound| rewound.renew) {
            Some(renew) => renew,
            None => [false, true].iter().any(|second| !rings.lacking(root.generation, *second).is_empty()),
        };
        if !roots && !self.label_repair.is_needed() && !self.keys.lack() {
            return self.take_pool();
        }
        self.stage = Stage::Mend(Mending::Flush);
        self.io.flush(ImportIo::Mend);
        None
    }

    /// Continues after a step.
    pub(super) fn mend_on(&mut self, done: Mending) -> Option<Pool> {
        let next = match done {
            Mending::Flush => Mending::First,
            Mending::First => Mending::FirstFlush,
            Mending::FirstFlush => Mending::Second,
            Mending::Second => return self.take_pool(),
        };
        self.stage = Stage::Mend(next);
        match next {
            Mending::First => {
                self.repair_labels();
                self.mend_area(false);
                self.mend_keys(false);
            }
            Mending::Second => {
                self.mend_area(true);
                self.mend_keys(true);
            }
            Mending::Flush | Mending::FirstFlush => drop(self.io.flush(ImportIo::Mend)),
        }
        None
    }

    fn mend_area(&mut self, second: bool) {
        let (Some(rings), Some(root), Some(config)) = (&self.rings, &self.root, &self.config) else { return };
        match self.rewound.as_ref().map(|rewound| rewound.renew) {
            Some(true) => return self.renew_rings(second),
            // the root that this import writes has no relation to the newest one
            Some(false) => return,
            None => {}
        }
        let mut buf = self.bufs.take(SECTOR_BYTES);
        if let Some(to) = buf.bytes_mut().get_mut(..SECTOR_BYTES) {
            to.copy_from_slice(&root.encode());
        }
        let piece = BufSlice::new(buf, 0..SECTOR_BYTES);
        let place = |member: MemberId| {
            let size = config.size_of(member);
            let area = if second { second_area(size) } else { 0 };
            (member, area + Root::slot_offset(root.generation), piece.clone())
        };
        let writes: Vec<_> = rings.lacking(root.generation, second).into_iter().map(place).collect();
        if !writes.is_empty() {
            self.io.write_raw(ImportIo::Mend, writes);
        }
    }

    /// Writes the end of the log to all copies; then repairs the newest root.
    pub(super) fn level_on(&mut self) -> Option<Pool> {
        let layout = &self.core.as_ref()?.space.layout;
        if self.log_replication.step(&mut self.io, layout, &mut self.bufs) { self.mend() } else { None }
    }
}
