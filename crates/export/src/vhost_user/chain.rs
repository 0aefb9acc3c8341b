//! Descriptor chains, a guest's requests. A chain is checked completely before any part of it is
//! used.
//!
//! The iterator of `virtio-queue` ends silently at an error in a chain. This one reports the error
//! to the device, which uses nothing of a bad chain.

use smallvec::SmallVec;
use virtio_bindings::virtio_ring::{VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE};
use vm_memory::{Address, GuestAddress};

use super::memory::{Memory, copy_out, has};

/// Size of a descriptor in bytes.
const DESCRIPTOR: usize = 16;
/// Maximum number of descriptors in a chain. It is eight times the announced limit, for drivers
/// that only respect the size of the queue, and small enough that the longest chains do not delay
/// other guests.
const MAX_DESCRIPTORS: u16 = 1024;
/// Number of descriptors of an indirect table that are read at a time.
const READ_AT_ONCE: usize = 8;

/// Range of the guest's memory, in one or more regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub at: GuestAddress,
    pub length: u32,
}

pub(super) type Segments = SmallVec<[Segment; 4]>;

/// Segments of a chain, in order.
#[derive(Debug, Default)]
pub(super) struct Chain {
    /// Segments that the guest has written for the device.
    pub readable: Segments,
    /// Segments for the device's answer.
    pub writable: Segments,
}

/// Error in a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ChainError {
    #[error("a descriptor is not in its table")]
    Index,
    #[error("the chain is a loop or too long")]
    TooLong,
    #[error("a part to read from comes after one to write to")]
    Order,
    #[error("a table inside a table, or one in the middle of a chain")]
    Nested,
    #[error("an indirect table of an impossible length")]
    Table,
    #[error("memory that the guest does not have")]
    Memory,
}

/// A descriptor: address (8), length (4), flags (2), next (2), little-endian.
#[derive(Clone, Copy)]
struct Descriptor {
    at: GuestAddress,
    length: u32,
    flags: u16,
    next: u16,
}

/// Descriptor table: the queue's own or an indirect one.
struct Table {
    at: GuestAddress,
    size: u16,
    /// Descriptors of the last read, and the index of the first of them.
    read: SmallVec<[Descriptor; READ_AT_ONCE]>,
    first: u16,
    at_once: usize,
}

impl Chain {
    /// Reads the chain that begins with descriptor `head` of the queue's table.
    pub fn walk(&mut self, memory: &Memory, table: GuestAddress, size: u16, head: u16) -> Result<(), ChainError> {
        self.readable.clear();
        self.writable.clear();
        // Chains in the queue's own table may be scattered; those in an indirect table are nearly
        // always contiguous.
        let mut table = Table { at: table, size, read: SmallVec::new(), first: 0, at_once: 1 };
        let mut indirect = false;
        let mut index = head;
        for _ in 0..MAX_DESCRIPTORS {
            let descriptor = table.get(memory, index)?;
            if descriptor.is(VRING_DESC_F_INDIRECT) {
                let first = self.readable.is_empty() && self.writable.is_empty();
                if indirect || !first || descriptor.is(VRING_DESC_F_NEXT) {
                    return Err(ChainError::Nested);
                }
                indirect = true;
                let count = descriptor.length / DESCRIPTOR as u32;
                let whole = descriptor.length.is_multiple_of(DESCRIPTOR as u32) && count > 0;
                let size = u16::try_from(count).ok().filter(|_| whole).ok_or(ChainError::Table)?;
                table = Table { at: descriptor.at, size, read: SmallVec::new(), first: 0, at_once: READ_AT_ONCE };
                index = 0;
                continue;
            }
            self.push(memory, &descriptor)?;
            if !descriptor.is(VRING_DESC_F_NEXT) {
                return Ok(());
            }
            index = descriptor.next;
        }
        Err(ChainError::TooLong)
    }

    fn push(&mut self, memory: &Memory, descriptor: &Descriptor) -> Result<(), ChainError> {
        let Descriptor { at, length, .. } = *descriptor;
        if length == 0 {
            return Ok(());
        }
        if !has(memory, at, length as usize) {
            return Err(ChainError::Memory);
        }
        if descriptor.is(VRING_DESC_F_WRITE) {
            self.writable.push(Segment { at, length });
        } else if self.writable.is_empty() {
            self.readable.push(Segment { at, length });
        } else {
            return Err(ChainError::Order);
        }
        Ok(())
    }
}

impl Table {
    fn get(&mut self, memory: &Memory, index: u16) -> Result<Descriptor, ChainError> {
        let known = index.checked_sub(self.first).and_then(|at| self.read.get(usize::from(at)));
        if let Some(descriptor) = known {
            return Ok(*descriptor);
        }
        let rest = self.size.checked_sub(index).filter(|rest| *rest > 0).ok_or(ChainError::Index)?;
        let count = usize::from(rest).min(self.at_once);
        let at = self.at.checked_add(u64::from(index) * DESCRIPTOR as u64).ok_or(ChainError::Memory)?;
        let mut bytes = [0; DESCRIPTOR * READ_AT_ONCE];
        let bytes = bytes.get_mut(..count * DESCRIPTOR).unwrap_or_default();
        copy_out(memory, at, bytes).map_err(|_| ChainError::Memory)?;
        let (descriptors, _) = bytes.as_chunks::<DESCRIPTOR>();
        self.read.clear();
        self.read.extend(descriptors.iter().map(Descriptor::read));
        self.first = index;
        self.read.first().copied().ok_or(ChainError::Index)
    }
}

impl Descriptor {
    fn read(bytes: &[u8; DESCRIPTOR]) -> Descriptor {
        let [a, b, c, d, e, f, g, h, l0, l1, l2, l3, f0, f1, n0, n1] = *bytes;
        Descriptor {
            at: GuestAddress(u64::from_le_bytes([a, b, c, d, e, f, g, h])),
            length: u32::from_le_bytes([l0, l1, l2, l3]),
            flags: u16::from_le_bytes([f0, f1]),
            next: u16::from_le_bytes([n0, n1]),
        }
    }

    fn is(&self, flag: u32) -> bool {
        u32::from(self.flags) & flag != 0
    }
}

#[cfg(test)]
mod tests;
