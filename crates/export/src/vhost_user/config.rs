//! What the guest is told of the disk: feature bits and the configuration space of virtio-blk.
//!
//! Source: Virtual I/O Device (VIRTIO) 1.2, section 5.2.

use millpond_block::{Features, Geometry};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_CONFIG_WCE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_MQ, VIRTIO_BLK_F_RO,
    VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_SIZE_MAX, VIRTIO_BLK_F_TOPOLOGY, VIRTIO_BLK_F_WRITE_ZEROES,
};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

/// The unit of sectors in virtio-blk, whatever the disk's own sectors are.
pub(super) const SECTOR: u64 = 512;
/// Segments of one request: with a header and a status they fill a queue of 128, which is the shortest that hypervisors make by default.
const SEG_MAX: u32 = 126;
/// Bytes of a segment, so that a request of [`SEG_MAX`] of them is no longer than the disk takes (64 MiB).
const SIZE_MAX: u32 = 512 << 10;
/// Ranges of one discard or zeroing.
pub(super) const MAX_RANGES: u32 = 32;
/// Sectors of one such range: 2 GiB.
const MAX_RANGE_SECTORS: u32 = 4 << 20;
/// Sectors of a block of the map: what a discard gives back at least.
const MAP_BLOCK_SECTORS: u32 = 8;
/// Bytes of the configuration space that has been given a meaning here; what is beyond reads as zeroes.
const USED: usize = 60;
/// Most bytes of it that may be asked for: the protocol's limit.
const MOST: usize = 256;
/// Where the guest switches the write cache on and off.
const WRITEBACK_AT: usize = 32;

/// Bits that the vhost-user socket itself adds.
pub(super) const PROTOCOL_FEATURES: u64 = 1 << 30;
/// Not the guest's: while it is set, the front end wants to know what is written to the guest's memory.
pub(super) const LOG_ALL: u64 = 1 << 26;

/// A feature bit by its number.
const fn bit(number: u32) -> u64 {
    1 << number
}

pub(super) const EVENT_IDX: u64 = bit(VIRTIO_RING_F_EVENT_IDX);
pub(super) const FLUSH: u64 = bit(VIRTIO_BLK_F_FLUSH);
pub(super) const CONFIG_WCE: u64 = bit(VIRTIO_BLK_F_CONFIG_WCE);

/// What a guest is offered at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Size and sectors.
    pub geometry: Geometry,
    /// Writability and write cache.
    pub features: Features,
    /// Queues at most.
    pub queues: u16,
}

impl Offer {
    /// The feature bits.
    pub fn feature_bits(&self) -> u64 {
        let always = [
            VIRTIO_F_VERSION_1,
            VIRTIO_RING_F_EVENT_IDX,
            VIRTIO_RING_F_INDIRECT_DESC,
            VIRTIO_BLK_F_SIZE_MAX,
            VIRTIO_BLK_F_SEG_MAX,
            VIRTIO_BLK_F_BLK_SIZE,
            VIRTIO_BLK_F_TOPOLOGY,
            VIRTIO_BLK_F_FLUSH,
            VIRTIO_BLK_F_MQ,
        ];
        let writing = [VIRTIO_BLK_F_CONFIG_WCE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_WRITE_ZEROES];
        let mut bits = always.into_iter().fold(PROTOCOL_FEATURES | LOG_ALL, |bits, number| bits | bit(number));
        if self.features.read_only {
            bits |= bit(VIRTIO_BLK_F_RO);
        } else {
            bits = writing.into_iter().fold(bits, |bits, number| bits | bit(number));
        }
        bits
    }

    /// Part of the configuration space, with the write cache as the guest has set it. `None` when it is beyond the end.
    pub fn config(&self, offset: usize, length: usize, write_cache: bool) -> Option<Vec<u8>> {
        let end = offset.checked_add(length).filter(|end| *end <= MOST)?;
        let (logical, physical) = (self.geometry.sector.logical(), self.geometry.sector.physical());
        let ratio = physical / logical; // 1 or 8
        let mut space = Vec::with_capacity(MOST);
        space.extend_from_slice(&(self.geometry.size / SECTOR).to_le_bytes());
        space.extend_from_slice(&SIZE_MAX.to_le_bytes());
        space.extend_from_slice(&SEG_MAX.to_le_bytes());
        space.extend_from_slice(&[0; 4]); // cylinders, heads, sectors: not offered
        space.extend_from_slice(&logical.to_le_bytes());
        space.extend_from_slice(&[ratio.trailing_zeros() as u8, 0]); // physical sector as a power of two; alignment
        space.extend_from_slice(&(ratio as u16).to_le_bytes()); // smallest transfer without a read of its own, in logical sectors
        space.extend_from_slice(&0u32.to_le_bytes()); // best transfer: not told
        space.extend_from_slice(&[u8::from(write_cache), 0]);
        space.extend_from_slice(&self.queues.to_le_bytes());
        space.extend_from_slice(&MAX_RANGE_SECTORS.to_le_bytes());
        space.extend_from_slice(&MAX_RANGES.to_le_bytes());
        space.extend_from_slice(&MAP_BLOCK_SECTORS.to_le_bytes());
        space.extend_from_slice(&MAX_RANGE_SECTORS.to_le_bytes());
        space.extend_from_slice(&MAX_RANGES.to_le_bytes());
        space.extend_from_slice(&[1, 0, 0, 0]); // zeroing may give space back
        debug_assert_eq!(space.len(), USED);
        space.resize(MOST, 0);
        space.get(offset..end).map(<[u8]>::to_vec)
    }
}

/// The write cache as a guest sets it by writing to the configuration space; `None` for any other write.
pub(super) fn written_cache(offset: usize, bytes: &[u8]) -> Option<bool> {
    match (offset, bytes) {
        (WRITEBACK_AT, [value @ (0 | 1)]) => Some(*value == 1),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
