//! The guest's memory, mapped by the loop that runs the queues.
//!
//! Nearly every access lies within one region, which is looked up once. The library's general
//! access, region by region, serves the others.

use std::sync::Arc;

use vm_memory::{Bytes, GuestAddress, GuestMemory, GuestMemoryBackend, GuestMemoryMmap, GuestRegionMmap, Permissions};

/// All of a guest's memory.
pub type Memory = GuestMemoryMmap<()>;
/// A region of a guest's memory.
pub type MemoryRegion = Arc<GuestRegionMmap<()>>;

/// Error: the guest does not have all of that memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the guest has no such memory")]
pub struct Outside;

/// Returns true if the guest has all of these bytes.
pub(super) fn has(memory: &Memory, at: GuestAddress, length: usize) -> bool {
    memory.get_slice(at, length).is_ok() || GuestMemory::check_range(memory, at, length, Permissions::ReadWrite)
}

/// Copies bytes out of the guest's memory. The guest may change them meanwhile; only the copy is
/// used.
pub(super) fn copy_out(memory: &Memory, at: GuestAddress, target: &mut [u8]) -> Result<(), Outside> {
    match memory.get_slice(at, target.len()) {
        Ok(slice) if slice.copy_to(target) == target.len() => Ok(()),
        _ => memory.read_slice(target, at).map_err(|_| Outside),
    }
}

/// Copies bytes into the guest's memory.
pub(super) fn copy_in(memory: &Memory, at: GuestAddress, bytes: &[u8]) -> Result<(), Outside> {
    match memory.get_slice(at, bytes.len()) {
        Ok(slice) => {
            slice.copy_from(bytes);
            Ok(())
        }
        Err(_) => memory.write_slice(bytes, at).map_err(|_| Outside),
    }
}

#[cfg(test)]
mod tests;
