//! The log of dirty pages: shared memory in which the front end finds the pages that were written
//! while it migrates the guest to another machine.
//!
//! Bit n of the log, counted from the lowest bit of the first byte, is for the n-th page of 4 KiB
//! of the guest's address space. Both sides change the log at the same time: this side sets bits,
//! the front end clears them.
//!
//! INV-VHOST-4: a page is marked after it was written. The front end clears a mark before it reads
//! the page. So it either reads the new content, or the mark is set again.
//!
//! Source: QEMU's `docs/interop/vhost-user.rst`, "Migration".

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use vm_memory::{GuestAddress, MmapRegion, VolatileMemory};

use super::memory::{Memory, Outside, copy_in};

/// Size of a page of the log in bytes, independent of the machine's pages.
const PAGE: u64 = 4096;

/// Log of dirty pages.
#[derive(Clone, Debug)]
pub struct DirtyLog(Arc<MmapRegion<()>>);

impl DirtyLog {
    /// Makes a log in this shared memory.
    pub fn new(memory: Arc<MmapRegion<()>>) -> DirtyLog {
        DirtyLog(memory)
    }

    /// Marks the pages of bytes that were written. The front end does not migrate pages beyond the
    /// end of the log.
    pub fn mark(&self, at: u64, length: u64) {
        let Some(last) = length.checked_sub(1).and_then(|rest| at.checked_add(rest)) else { return };
        for page in at / PAGE..=last / PAGE {
            let Ok(byte) = usize::try_from(page / 8) else { return };
            let Ok(bits) = self.0.get_atomic_ref::<AtomicU8>(byte) else { return };
            let bit = 1 << (page % 8);
            // At least release order, even if the bit is set already: the front end may be about to
            // clear it.
            bits.fetch_or(bit, Ordering::SeqCst);
        }
    }
}

/// The guest's memory for writing, with the log if one is kept.
#[derive(Clone, Copy)]
pub(super) struct Marked<'a> {
    pub memory: &'a Memory,
    pub log: Option<&'a DirtyLog>,
}

impl Marked<'_> {
    /// Copies bytes into the guest's memory and marks their pages.
    pub fn put(&self, at: GuestAddress, bytes: &[u8]) -> Result<(), Outside> {
        copy_in(self.memory, at, bytes)?;
        if let Some(log) = self.log {
            log.mark(at.0, bytes.len() as u64);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use vm_memory::Bytes;

    use super::*;

    #[test]
    fn bits_are_of_pages_that_were_touched_and_no_others() {
        let region = Arc::new(MmapRegion::new(4096).expect("memory"));
        let log = DirtyLog::new(Arc::clone(&region));
        let bytes = |count: usize| {
            let mut bytes = vec![0; count];
            region.as_volatile_slice().read_slice(&mut bytes, 0).expect("in the region");
            bytes
        };
        log.mark(PAGE, 0);
        assert_eq!(bytes(4096), [0; 4096]);
        log.mark(PAGE - 1, 2);
        log.mark(9 * PAGE, PAGE);
        log.mark(15 * PAGE + 5, PAGE);
        assert_eq!(bytes(3), [0b11, 0b1000_0010, 0b1]);
        // the last page of the log, pages after it, and addresses that overflow
        let pages = 8 * 4096;
        log.mark((pages - 1) * PAGE, 3 * PAGE);
        log.mark(u64::MAX, 1);
        log.mark(u64::MAX, 2);
        assert_eq!(bytes(4096).last(), Some(&0x80));
        assert_eq!(bytes(4096).iter().filter(|byte| **byte != 0).count(), 4);
    }
}
