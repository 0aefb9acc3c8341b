//! Feature bits and the configuration space of virtio-blk.
//!
//! Source: Virtual I/O Device (VIRTIO) 1.2, section 5.2.

use millpond_block::{Features, Geometry};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_CONFIG_WCE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_MQ, VIRTIO_BLK_F_RO,
    VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_SIZE_MAX, VIRTIO_BLK_F_TOPOLOGY, VIRTIO_BLK_F_WRITE_ZEROES,
};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

/// Unit of sector numbers in virtio-blk in bytes, independent of the disk's own sectors.
pub(super) const SECTOR: u64 = 512;
/// Maximum number of segments in a request. With header and status they fill a queue of 128, the
/// smallest default of hypervisors.
const SEG_MAX: u32 = 126;
/// Maximum size of a segment in bytes, so that a request of [`SEG_MAX`] segments is not longer than
/// the disk accepts (64 MiB).
const SIZE_MAX: u32 = 512 << 10;
/// Maximum number of ranges in a discard or zeroing.
pub(super) const MAX_RANGES: u32 = 32;
/// Maximum number of sectors in such a range: 2 GiB.
const MAX_RANGE_SECTORS: u32 = 4 << 20;
/// Sectors of a block of the map, the smallest unit that a discard frees.
const MAP_BLOCK_SECTORS: u32 = 8;
/// Bytes of the configuration space that are defined here. Bytes after them read as zeroes.
const USED: usize = 60;
/// Maximum size of the configuration space, set by the protocol.
const MOST: usize = 256;
/// Offset of the byte with which the guest enables and disables the write cache.
const WRITEBACK_AT: usize = 32;

/// Feature bits of the vhost-user socket, which the guest does not see.
pub(super) const PROTOCOL_FEATURES: u64 = 1 << 30;
/// Feature bit of the front end, not of the guest. While it is set, writes to the guest's memory
/// are logged for the front end.
pub(super) const LOG_ALL: u64 = 1 << 26;

/// Returns the feature bit of this number.
const fn bit(number: u32) -> u64 {
    1 << number
}

pub(super) const EVENT_IDX: u64 = bit(VIRTIO_RING_F_EVENT_IDX);
pub(super) const FLUSH: u64 = bit(VIRTIO_BLK_F_FLUSH);
pub(super) const CONFIG_WCE: u64 = bit(VIRTIO_BLK_F_CONFIG_WCE);

/// Properties of the disk that a guest is offered at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Size and sectors.
    pub geometry: Geometry,
    /// Writability and write cache.
    pub features: Features,
    /// Maximum number of queues.
    pub queues: u16,
}

impl Offer {
    /// Returns the feature bits.
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

    /// Returns a part of the configuration space, with the guest's setting of the write cache.
    /// Returns `None` if the part exceeds the space.
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
        space.extend_from_slice(&(ratio as u16).to_le_bytes()); // smallest transfer that needs no read, in logical sectors
        space.extend_from_slice(&0u32.to_le_bytes()); // optimal transfer: not reported
        space.extend_from_slice(&[u8::from(write_cache), 0]);
        space.extend_from_slice(&self.queues.to_le_bytes());
        space.extend_from_slice(&MAX_RANGE_SECTORS.to_le_bytes());
        space.extend_from_slice(&MAX_RANGES.to_le_bytes());
        space.extend_from_slice(&MAP_BLOCK_SECTORS.to_le_bytes());
        space.extend_from_slice(&MAX_RANGE_SECTORS.to_le_bytes());
        space.extend_from_slice(&MAX_RANGES.to_le_bytes());
        space.extend_from_slice(&[1, 0, 0, 0]); // zeroing may free space
        debug_assert_eq!(space.len(), USED);
        space.resize(MOST, 0);
        space.get(offset..end).map(<[u8]>::to_vec)
    }
}

/// Returns the setting of the write cache that a guest writes to the configuration space; `None`
/// for any other write.
pub(super) fn written_cache(offset: usize, bytes: &[u8]) -> Option<bool> {
    match (offset, bytes) {
        (WRITEBACK_AT, [value @ (0 | 1)]) => Some(*value == 1),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
