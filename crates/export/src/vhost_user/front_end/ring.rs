//! The driver's side of a split virtqueue in memory that it shares with the device.
//!
//! Source: VIRTIO 1.2, sections 2.7 and 5.2.6.

use std::sync::atomic::{Ordering, fence};

use smallvec::SmallVec;
use vm_memory::{Bytes, GuestAddress};

use crate::vhost_user::Memory;
use crate::vhost_user::memory::{Outside, copy_in, copy_out};

/// Flag of a descriptor: another one follows.
pub const NEXT: u16 = 1;
/// Flag of a descriptor: the device writes to the segment.
pub const WRITE: u16 = 2;
/// Flag of a descriptor: the segment is an indirect table.
pub const INDIRECT: u16 = 4;
/// Offset of the status in the bytes of [`request_header`].
pub const STATUS_AT: u64 = 16;

/// Bytes of a descriptor.
const DESCRIPTOR: usize = 16;
/// Descriptors that [`chain`] encodes without an allocation.
const FEW: usize = 8;
/// Flags (2) and index (2) before the entries of either ring.
const HEAD: u64 = 4;
/// Offset of the index in either ring.
const INDEX: u64 = 2;
/// Bytes of an entry of the available and of the used ring.
const AVAILABLE_ENTRY: u64 = 2;
const USED_ENTRY: u64 = 8;
/// `VIRTQ_AVAIL_F_NO_INTERRUPT` and `VIRTQ_USED_F_NO_NOTIFY`.
const NO_SIGNAL: u16 = 1;

/// Encodes a descriptor.
pub fn descriptor(at: u64, length: u32, flags: u16, next: u16) -> [u8; DESCRIPTOR] {
    let mut bytes = [0; DESCRIPTOR];
    bytes[..8].copy_from_slice(&at.to_le_bytes());
    bytes[8..12].copy_from_slice(&length.to_le_bytes());
    bytes[12..14].copy_from_slice(&flags.to_le_bytes());
    bytes[14..].copy_from_slice(&next.to_le_bytes());
    bytes
}

/// Segment of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Guest address.
    pub at: u64,
    /// Length in bytes.
    pub length: u32,
    /// Flags of its descriptor; [`chain`] adds [`NEXT`].
    pub flags: u16,
}

/// Encodes the descriptors of a chain, which are at `first` and behind it in their table.
pub fn chain(segments: &[Segment], first: u16) -> SmallVec<[u8; DESCRIPTOR * FEW]> {
    let mut bytes = SmallVec::new();
    for (next, (index, segment)) in (first.wrapping_add(1)..).zip(segments.iter().enumerate()) {
        let (more, next) = if index + 1 < segments.len() { (NEXT, next) } else { (0, 0) };
        bytes.extend_from_slice(&descriptor(segment.at, segment.length, segment.flags | more, next));
    }
    bytes
}

/// Encodes the header of a virtio-blk request, and its status behind it, which is none yet.
pub fn request_header(kind: u32, sector: u64) -> [u8; 17] {
    let mut bytes = [0; 17];
    bytes[..4].copy_from_slice(&kind.to_le_bytes());
    bytes[8..16].copy_from_slice(&sector.to_le_bytes());
    bytes[16] = 0xff;
    bytes
}

/// Number of entries of a queue, and addresses of its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPlaces {
    /// Number of entries, a power of two.
    pub size: u16,
    /// Address of the descriptor table.
    pub descriptors: u64,
    /// Address of the available ring.
    pub available: u64,
    /// Address of the used ring.
    pub used: u64,
}

/// The driver's side of a queue. Nothing is checked but that memory exists.
#[derive(Clone, Debug)]
pub struct Ring {
    memory: Memory,
    places: RingPlaces,
    /// The available index that the device sees.
    available: u16,
    /// Number of used entries that were taken.
    pub seen: u16,
}

impl Ring {
    /// Makes a ring with both indexes at 0.
    pub fn new(memory: Memory, places: RingPlaces) -> Ring {
        Ring { memory, places, available: 0, seen: 0 }
    }

    /// Returns the memory.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns the places of the queue's parts.
    pub fn places(&self) -> &RingPlaces {
        &self.places
    }

    /// Writes bytes to the memory.
    ///
    /// # Errors
    /// An address has no memory.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Outside> {
        copy_in(&self.memory, GuestAddress(at), bytes)
    }

    /// Reads bytes from the memory.
    ///
    /// # Errors
    /// An address has no memory.
    pub fn read(&self, at: u64, target: &mut [u8]) -> Result<(), Outside> {
        copy_out(&self.memory, GuestAddress(at), target)
    }

    /// Returns the address of a descriptor of the queue's table.
    pub fn descriptor_at(&self, index: u16) -> u64 {
        self.places.descriptors + DESCRIPTOR as u64 * u64::from(index)
    }

    /// Returns the address of the entry of the available ring with this index, which counts on
    /// beyond the ring's size.
    pub fn entry_at(&self, index: u16) -> u64 {
        self.places.available + HEAD + AVAILABLE_ENTRY * u64::from(index % self.places.size)
    }

    /// Puts a head into the entry of the available ring with this index. The device sees it once
    /// the available index is higher.
    ///
    /// # Errors
    /// The ring has no memory.
    pub fn place(&self, index: u16, head: u16) -> Result<(), Outside> {
        self.write(self.entry_at(index), &head.to_le_bytes())
    }

    /// Returns the available index that the device sees.
    pub fn available(&self) -> u16 {
        self.available
    }

    /// Sets the available index.
    ///
    /// # Errors
    /// The ring has no memory.
    pub fn set_available(&mut self, index: u16) -> Result<(), Outside> {
        self.available = index;
        self.store(self.places.available + INDEX, index)
    }

    /// Makes a head available.
    ///
    /// # Errors
    /// The ring has no memory.
    pub fn offer(&mut self, head: u16) -> Result<(), Outside> {
        self.place(self.available, head)?;
        self.set_available(self.available.wrapping_add(1))
    }

    /// Returns the used index.
    ///
    /// # Errors
    /// The ring has no memory.
    pub fn used(&self) -> Result<u16, Outside> {
        self.load(self.places.used + INDEX)
    }

    /// Takes the next used entry, which must exist: head, and bytes written.
    ///
    /// # Errors
    /// The ring has no memory.
    pub fn take(&mut self) -> Result<(u32, u32), Outside> {
        let mut entry = [0; USED_ENTRY as usize];
        self.read(self.places.used + HEAD + USED_ENTRY * u64::from(self.seen % self.places.size), &mut entry)?;
        self.seen = self.seen.wrapping_add(1);
        let [a, b, c, d, e, f, g, h] = entry;
        Ok((u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])))
    }

    /// Sets the flags by which the driver suppresses notifications.
    ///
    /// # Errors
    /// The ring has no memory.
    pub fn set_flags(&self, flags: u16) -> Result<(), Outside> {
        self.store(self.places.available, flags)
    }

    /// Sets the used index at which the driver wants a notification, with `VIRTIO_F_EVENT_IDX`.
    ///
    /// # Errors
    /// The ring has no memory.
    pub fn set_used_event(&self, index: u16) -> Result<(), Outside> {
        self.store(self.places.available + HEAD + AVAILABLE_ENTRY * u64::from(self.places.size), index)
    }

    /// Requests or suppresses notifications about the entries that were not taken yet.
    ///
    /// # Errors
    /// The ring has no memory.
    pub fn listen(&self, yes: bool, events: bool) -> Result<(), Outside> {
        /// Distance of an index that the device does not reach before this one is set again.
        const NEVER: u16 = 0x8000;
        match events {
            true => self.set_used_event(if yes { self.seen } else { self.seen.wrapping_add(NEVER) })?,
            false => self.set_flags(if yes { 0 } else { NO_SIGNAL })?,
        }
        fence(Ordering::SeqCst); // before the used index is read again
        Ok(())
    }

    /// Returns the flags by which the device suppresses kicks.
    ///
    /// # Errors
    /// The ring has no memory.
    pub fn kick_flags(&self) -> Result<u16, Outside> {
        self.load(self.places.used)
    }

    /// Returns the available index at which the device wants a kick, with `VIRTIO_F_EVENT_IDX`.
    ///
    /// # Errors
    /// The ring has no memory.
    pub fn kick_event(&self) -> Result<u16, Outside> {
        self.load(self.places.used + HEAD + USED_ENTRY * u64::from(self.places.size))
    }

    /// Returns true if the device wants a kick after the available index was raised from `before`.
    ///
    /// # Errors
    /// The ring has no memory.
    pub fn wants_kick(&self, before: u16, events: bool) -> Result<bool, Outside> {
        // the index must be visible before the device's wish is read
        fence(Ordering::SeqCst);
        if !events {
            return Ok(self.kick_flags()? & NO_SIGNAL == 0);
        }
        Ok(self.available.wrapping_sub(self.kick_event()?).wrapping_sub(1) < self.available.wrapping_sub(before))
    }

    /// Loads a number that the device may change, with acquire ordering.
    fn load(&self, at: u64) -> Result<u16, Outside> {
        self.memory.load(GuestAddress(at), Ordering::Acquire).map(u16::from_le).map_err(|_| Outside)
    }

    /// Stores a number that the device reads, with release ordering.
    fn store(&self, at: u64, value: u16) -> Result<(), Outside> {
        self.memory.store(value.to_le(), GuestAddress(at), Ordering::Release).map_err(|_| Outside)
    }
}
