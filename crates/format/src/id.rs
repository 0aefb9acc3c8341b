//! Identities and addresses: newtypes, so that numbers of different meanings are never mixed up.

use std::fmt;

use crate::{FormatError, Mark};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($int:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub $int);
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// A volume; never reused within a pool.
    VolumeId(u32)
);
id!(
    /// A snapshot; never reused within a pool.
    SnapshotId(u64)
);
id!(
    /// A line of versions (snapshots and a head) with one history; never reused within a pool.
    LineageId(u64)
);
id!(
    /// A chunk: 40 bits on disk, never reused within a pool.
    ChunkId(u64)
);
id!(
    /// Clock of snapshots of the pool: one more for every snapshot, clone and rollback, from 1 on.
    Epoch(u64)
);
id!(
    /// Position of a batch in the log; consecutive over the life of a pool.
    Lsn(u64)
);
id!(
    /// A segment: the unit of allocation, made of one extent, or of one extent on each of several
    /// devices.
    SegmentId(u32)
);
id!(
    /// A 4 KiB block of a volume.
    BlockNo(u64)
);
id!(
    /// A data key: a random number that is not 0.
    KeyId(u64)
);

/// Identity of a pool: 16 random bytes, shown as hex.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolId(pub [u8; 16]);

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PoolId({self})")
    }
}

/// Identity of a device, unique within its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId(pub u64);

/// Purpose of a group of segments (allocation class).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Everything that has no class of its own.
    Data,
    /// Map nodes and small blocks.
    Special,
    /// Guests' writes, until the cleaner moves them to data devices.
    Log,
    /// Copies of blocks that were read often.
    Cache,
    /// No data: the device waits to replace a lost one.
    Spare,
}

impl Class {
    /// True when devices of this class hold neither segments nor roots, so the pool does not need
    /// them (auxiliary devices).
    pub fn is_auxiliary(self) -> bool {
        matches!(self, Class::Cache | Class::Spare)
    }
}

/// How the segments of a group spread over its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One extent per segment: all extents of the first device, then all of the next.
    Linear,
    /// Each segment over `width` devices in turns of `unit` bytes (a multiple of 4096).
    Stripe {
        /// Devices per segment; fewer for segments where fewer devices have free extents.
        width: u16,
        /// Bytes on one device before the next device follows.
        unit: u32,
    },
    /// Each segment complete on several devices.
    Mirror {
        /// Number of copies, at least 2.
        copies: u16,
    },
    /// Each segment over `width` devices in turns of `unit` bytes; `parity` of the devices hold
    /// parity.
    Parity {
        /// Devices per segment.
        width: u16,
        /// Number of devices that may be missing: 1 or 2.
        parity: u8,
        /// Bytes on one device before the next device follows (a multiple of 4096).
        unit: u32,
    },
    /// Each segment is one object of a bucket, and on no device of the pool.
    Bucket {
        /// Number of segments.
        segments: u32,
    },
}

impl Layout {
    /// Number of devices per segment that may be lost without loss of data.
    pub fn spare(&self) -> u16 {
        match self {
            Layout::Linear | Layout::Stripe { .. } | Layout::Bucket { .. } => 0,
            Layout::Mirror { copies } => copies.saturating_sub(1),
            Layout::Parity { parity, .. } => u16::from(*parity),
        }
    }

    /// True when segments of this layout are written only in large whole parts: stripes with parity,
    /// or objects of a bucket. Guests' writes, nodes and checkpoint objects come in smaller ones, so
    /// they need segments of class log.
    pub fn is_written_whole(&self) -> bool {
        matches!(self, Layout::Parity { .. } | Layout::Bucket { .. })
    }

    /// True when segments of this layout are objects of a bucket, and on no device.
    pub fn is_bucket(&self) -> bool {
        matches!(self, Layout::Bucket { .. })
    }
}

/// Bytes of a unit, in which stored lengths and places inside a chunk are counted.
pub const UNIT: usize = 512;
/// Units of a plain (uncompressed) block.
pub const BLOCK_UNITS: u32 = 8;
/// Bytes of a block, the unit of the map.
pub const BLOCK: usize = 4096;

const KIND_SHIFT: u32 = 62;
const UNITS_SHIFT: u32 = 58;
const FLAGS_SHIFT: u32 = 53;
const MARK_SHIFT: u32 = 56;
const CHUNK_SHIFT: u32 = 13;
const SLOT_MASK: u64 = (1 << CHUNK_SHIFT) - 1;
const CHUNK_MASK: u64 = (1 << 40) - 1;
const IDENTITY_MASK: u64 = (1 << FLAGS_SHIFT) - 1;
/// Ids of chunks are lower; ids from here on stand for bases in entries of maps.
pub(crate) const FIRST_BASE: u64 = 0xff << 32;

/// Encoding of a stored block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// Uncompressed.
    Raw,
    /// LZ4 block behind a 2-byte length.
    Lz4,
    /// Zstandard frame behind a 2-byte length.
    Zstd,
}

/// An entry of a map node: a hole (reads as zeroes), the address of a block or node, or a base (reads
/// as the same blocks of another volume).
///
/// | bits | field | meaning |
/// |---|---|---|
/// | 63..62 | kind | 0 hole, 1 address, 2 base, 3 reserved |
/// | 61..58 | units | stored length in 512-byte units, 1 to 15 |
/// | 57..53 | flags | bits 0..1 coding (0 raw, 1 LZ4, 2 Zstandard), bit 2 pending, bit 3 encrypted, bit 4 foreign ([`Mark`]) |
/// | 52..13 | chunk | chunk id |
/// | 12..0 | slot | place in the chunk, in the chunk's grains |
///
/// A base has the id of its volume in the low 32 bits of the chunk id, whose other 8 bits are set, as
/// in no id of a chunk; units, flags and slot are 0.
///
/// Pending means that the checksum beside the address is not known yet; never set on a medium.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Addr(u64);

impl Addr {
    /// Never written, or discarded: reads as zeroes.
    pub const HOLE: Addr = Addr(0);
    const PENDING: u64 = 4 << FLAGS_SHIFT;
    const MARKS: u64 = 3 << MARK_SHIFT;

    /// The address of `units` units at `slot` of `chunk`.
    pub fn new(chunk: ChunkId, slot: u32, units: u32, coding: Coding) -> Addr {
        debug_assert!(u64::from(slot) <= SLOT_MASK && chunk.0 <= CHUNK_MASK && (1..=15).contains(&units));
        let flags = match coding {
            Coding::Raw => 0,
            Coding::Lz4 => 1,
            Coding::Zstd => 2,
        };
        Addr(1 << KIND_SHIFT | u64::from(units) << UNITS_SHIFT | flags << FLAGS_SHIFT | chunk.0 << CHUNK_SHIFT | u64::from(slot))
    }

    /// The entry for blocks that read as those of a base.
    pub fn of_base(volume: VolumeId) -> Addr {
        Addr(2 << KIND_SHIFT | (FIRST_BASE | u64::from(volume.0)) << CHUNK_SHIFT)
    }

    /// Returns the base as whose blocks this range reads; `None` for a hole or an address.
    pub fn base(self) -> Option<VolumeId> {
        (self.0 >> KIND_SHIFT == 2).then_some(VolumeId((self.0 >> CHUNK_SHIFT) as u32))
    }

    /// Returns the bits as stored.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// Decodes stored bits; unknown kinds, codings and flags are refused.
    pub fn from_bits(bits: u64) -> Result<Addr, FormatError> {
        let addr = Addr(bits);
        let known = match bits >> KIND_SHIFT {
            0 => bits == 0,
            1 => addr.units() != 0 && bits >> FLAGS_SHIFT & 7 < 3 && addr.has_sound_mark(),
            2 => addr.base().is_some_and(|volume| addr == Addr::of_base(volume)),
            _ => false,
        };
        if known { Ok(addr) } else { Err(FormatError::Field("address")) }
    }

    /// Takes bits that this program itself put into memory; they are not checked.
    pub fn from_memory(bits: u64) -> Addr {
        Addr(bits)
    }

    /// True for an address, false for a hole or a base.
    pub fn is_some(self) -> bool {
        self.0 >> KIND_SHIFT == 1
    }

    /// True for a hole.
    pub fn is_hole(self) -> bool {
        self.0 == 0
    }

    /// The chunk.
    pub fn chunk(self) -> ChunkId {
        ChunkId(self.0 >> CHUNK_SHIFT & CHUNK_MASK)
    }

    /// The place in the chunk, in grains.
    pub fn slot(self) -> u32 {
        (self.0 & SLOT_MASK) as u32
    }

    /// Stored length in units.
    pub fn units(self) -> u32 {
        (self.0 >> UNITS_SHIFT & 0xf) as u32
    }

    /// Encoding of the stored bytes.
    pub fn coding(self) -> Coding {
        match self.0 >> FLAGS_SHIFT & 3 {
            1 => Coding::Lz4,
            2 => Coding::Zstd,
            _ => Coding::Raw,
        }
    }

    /// Encryption of the stored bytes.
    pub fn mark(self) -> Mark {
        Mark::from_bits((self.0 >> MARK_SHIFT & 3) as u8).unwrap_or_default()
    }

    /// Returns the address with this mark. The stored length must be one that the mark allows.
    #[must_use]
    pub fn marked(self, mark: Mark) -> Addr {
        debug_assert!(mark.allows(self.units(), self.coding()));
        Addr(self.0 & !Addr::MARKS | u64::from(mark.bits()) << MARK_SHIFT)
    }

    fn has_sound_mark(self) -> bool {
        Mark::from_bits((self.0 >> MARK_SHIFT & 3) as u8).is_some_and(|mark| mark.allows(self.units(), self.coding()))
    }

    /// Chunk and slot as one number: two entries with the same number refer to the same bytes.
    pub fn identity(self) -> u64 {
        self.0 & IDENTITY_MASK
    }

    /// Returns the address with the mark that the checksum beside it is not known yet.
    pub fn pending(self) -> Addr {
        Addr(self.0 | Addr::PENDING)
    }

    /// Returns the address without that mark.
    pub fn settled(self) -> Addr {
        Addr(self.0 & !Addr::PENDING)
    }

    /// True when the checksum beside it is not known yet.
    pub fn is_pending(self) -> bool {
        self.0 & Addr::PENDING != 0
    }
}

impl fmt::Debug for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.base() {
            Some(volume) => write!(f, "base {volume}"),
            None if self.is_some() => write!(f, "{}:{}+{}", self.chunk(), self.slot(), self.units()),
            None => f.write_str("hole"),
        }
    }
}
