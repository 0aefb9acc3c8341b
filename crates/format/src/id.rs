//! Identities and addresses: newtypes, so that numbers of different meaning never mix.

use std::fmt;

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
    /// A line of versions (snapshots and a head) that share one history; never reused within a pool.
    LineageId(u64)
);
id!(
    /// A chunk: 40 bits on disk, never reused within a pool.
    ChunkId(u64)
);
id!(
    /// The pool-wide snapshot clock: one more for every snapshot, clone and rollback. The first is 1.
    Epoch(u64)
);
id!(
    /// Position of a batch in the log; consecutive over the life of a pool.
    Lsn(u64)
);
id!(
    /// A row of the pool's layout: the unit of allocation.
    SegmentId(u32)
);
id!(
    /// A 4 KiB block of a volume.
    BlockNo(u64)
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

/// How segments spread over the devices of the data class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Device after device.
    Linear,
    /// Each segment over `width` devices in turns of `unit` bytes (a multiple of 4096).
    Stripe {
        /// Devices per segment; fewer where fewer have room.
        width: u16,
        /// Bytes on one device before the next takes over.
        unit: u32,
    },
}
