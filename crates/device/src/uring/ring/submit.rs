//! Entries on their way to the kernel, in order; without a lease that lasts nothing is written.

use io_uring::Submitter;
use io_uring::squeue::Entry;

use super::Ring;

impl Ring {
    pub(in crate::uring) fn lease_is_over(&self) -> bool {
        self.lease.is_some_and(|lease| lease.is_over())
    }

    pub(in crate::uring) fn submitter(&self) -> Submitter<'_> {
        self.uring.submitter()
    }

    /// Queues an entry whose memory is owned by the slot named by its `user_data`.
    pub(crate) fn push(&mut self, index: u32, entry: Entry) {
        self.waiting.push(entry.user_data(u64::from(index)), false);
    }

    /// Queues an entry before all others.
    pub(in crate::uring) fn push_first(&mut self, index: u32, entry: Entry) {
        self.waiting.push(entry.user_data(u64::from(index)), true);
    }
}
