//! Map nodes: 512 entries with their checksums.

use crate::codec::{Decoder, Encoder, FormatError};
use crate::{Addr, Epoch, LineageId, crc32c};

/// Entries of a node.
pub const FANOUT: usize = 512;
/// Units of a stored node: 64 + 512 x 8 + 512 x 4 = 6,208 bytes.
pub const NODE_UNITS: u32 = 13;
/// Bytes of a stored node.
pub const NODE_BYTES: usize = NODE_UNITS as usize * 512;

const MAGIC: u32 = 0x444e_504d; // "MPND"
/// 3 since a node has its own address, and the parent has the checksum that the node ends with.
const VERSION: u16 = 3;
const HEAD: usize = 64;
/// Offset of the node's own address.
const ADDRESS: usize = 32;
/// Six levels of 512 map 2^54 blocks: more than any volume has.
const MAX_LEVEL: u8 = 5;

/// A node of a volume's map. A leaf (level 0) maps 512 blocks; a node of level n maps 512 nodes of
/// level n - 1. The parent has the checksum of each child.
///
/// An address is never used twice, so a node with a correct checksum and the expected address in it
/// is the node that was written there, even without the checksum in the parent.
/// The checksum covers the bytes before it and not itself: a CRC over data and its own CRC is the
/// same number for every intact node.
///
/// | offset | size | field | meaning |
/// |---|---|---|---|
/// | 0 | 4 | magic | `MPND` |
/// | 4 | 2 | version | 3 |
/// | 6 | 1 | level | 0 = leaf |
/// | 7 | 1 | reserve | 0 |
/// | 8 | 8 | lineage | lineage that wrote the node |
/// | 16 | 8 | index | its first block / 512^(level + 1) |
/// | 24 | 8 | epoch | when the node was written |
/// | 32 | 8 | address | [`Addr::identity`] of its own address |
/// | 40 | 24 | reserve | 0 |
/// | 64 | 4096 | entries | [`Addr`] each |
/// | 4160 | 2048 | checksums | CRC-32C of what each entry points to |
/// | 6208 | 444 | reserve | 0 |
/// | 6652 | 4 | checksum | CRC-32C of the bytes before it; the parent has it too |
#[derive(Clone, PartialEq, Eq)]
pub struct Node {
    /// 0 = leaf.
    pub level: u8,
    /// Lineage that wrote the node.
    pub lineage: LineageId,
    /// Number of the first mapped block / 512^(level + 1).
    pub index: u64,
    /// Epoch when the node was written.
    pub epoch: Epoch,
    /// The entries.
    pub entries: Box<[Addr; FANOUT]>,
    /// Checksums of what the entries point to.
    pub crcs: Box<[u32; FANOUT]>,
}

impl Node {
    /// A node without entries.
    pub fn empty(level: u8, lineage: LineageId, index: u64, epoch: Epoch) -> Node {
        Node { level, lineage, index, epoch, entries: Box::new([Addr::HOLE; FANOUT]), crcs: Box::new([0; FANOUT]) }
    }

    /// Encodes the node at `addr` into `out`, which has [`NODE_BYTES`] bytes.
    ///
    /// # Panics
    /// When `out` has another length, which is an error of the caller.
    pub fn encode(&self, addr: Addr, out: &mut [u8]) {
        assert_eq!(out.len(), NODE_BYTES, "node buffer");
        let (head, rest) = out.split_at_mut(HEAD);
        let (entries, rest) = rest.split_at_mut(FANOUT * 8);
        let (crcs, reserve) = rest.split_at_mut(FANOUT * 4);
        let mut e = Encoder::with_capacity(HEAD);
        e.u32(MAGIC);
        e.u16(VERSION);
        e.u8(self.level);
        e.u8(0);
        e.u64(self.lineage.0);
        e.u64(self.index);
        e.u64(self.epoch.0);
        e.u64(addr.identity());
        e.raw(&[0; 24]);
        head.copy_from_slice(e.bytes());
        for (to, addr) in entries.chunks_exact_mut(8).zip(self.entries.iter()) {
            to.copy_from_slice(&addr.settled().to_bits().to_le_bytes());
        }
        for (to, crc) in crcs.chunks_exact_mut(4).zip(self.crcs.iter()) {
            to.copy_from_slice(&crc.to_le_bytes());
        }
        reserve.fill(0);
        Node::seal(out);
    }

    /// Writes the checksum at the end of an encoded node.
    pub(crate) fn seal(bytes: &mut [u8]) {
        if let Some((body, sum)) = bytes.split_at_mut_checked(NODE_BYTES - 4) {
            sum.iter_mut().zip(crc32c(body).to_le_bytes()).for_each(|(to, byte)| *to = byte);
        }
    }

    /// Returns the checksum of an encoded node, as its parent has it; `None` when the node is
    /// damaged.
    pub fn checksum(bytes: &[u8]) -> Option<u32> {
        let (body, sum) = bytes.split_at_checked(NODE_BYTES - 4)?;
        let sum = u32::from_le_bytes(*sum.first_chunk()?);
        (crc32c(body) == sum).then_some(sum)
    }

    /// Returns the address that is stored in an encoded node, as [`Addr::identity`] gives it.
    pub fn address(bytes: &[u8]) -> Option<u64> {
        bytes.get(ADDRESS..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
    }

    /// Returns the checksum when `bytes` are an intact node that was written at `addr`.
    pub fn checksum_at(bytes: &[u8], addr: Addr) -> Option<u32> {
        Node::checksum(bytes).filter(|_| Node::address(bytes) == Some(addr.identity()))
    }

    /// Decodes a node.
    ///
    /// # Errors
    /// [`FormatError`] when the bytes are not a node or an entry is invalid. Whether it is the node
    /// that was looked for, [`checksum_at`](Node::checksum_at) checks.
    pub fn decode(bytes: &[u8]) -> Result<Node, FormatError> {
        let mut d = Decoder::new(bytes);
        if d.u32()? != MAGIC {
            return Err(FormatError::Magic);
        }
        let version = d.u16()?;
        if version != VERSION {
            return Err(FormatError::Version(version));
        }
        let (level, reserve) = (d.u8()?, d.u8()?);
        if level > MAX_LEVEL {
            return Err(FormatError::Field("level"));
        }
        let (lineage, index, epoch) = (LineageId(d.u64()?), d.u64()?, Epoch(d.u64()?));
        d.u64()?;
        if reserve != 0 || d.raw(HEAD - 40)?.iter().any(|byte| *byte != 0) {
            return Err(FormatError::Field("reserve"));
        }
        let mut node = Node::empty(level, lineage, index, epoch);
        for entry in node.entries.iter_mut() {
            *entry = Addr::from_bits(d.u64()?)?;
        }
        for crc in node.crcs.iter_mut() {
            *crc = d.u32()?;
        }
        if d.raw(NODE_BYTES - HEAD - FANOUT * 12 - 4)?.iter().any(|byte| *byte != 0) {
            return Err(FormatError::Field("reserve"));
        }
        if Node::checksum(bytes).is_some() { Ok(node) } else { Err(FormatError::Checksum) }
    }
}

#[cfg(test)]
mod tests;
