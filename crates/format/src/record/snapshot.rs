//! Snapshots in the catalog, their holds, and the pages that they are stored in.

use super::Field;
use crate::codec::{Decoder, Encoder, FormatError};
use crate::{Epoch, LineageId, ObjectRef, SnapshotId, TreeRoot};

/// Snapshot ids of one page of their table.
pub const SNAPSHOTS_PER_PAGE: u64 = 64;

/// Flags of a snapshot. Programs without tags take any value except 0 and 1 for damage.
const HIDDEN: u8 = 1;
const TAGGED: u8 = 2;

/// Whether a hold can be released before its end. Encoded as a byte: 0 it can, 1 it cannot until
/// its time by the wall clock (only earlier versions write this), 2 a lock counted in service, with
/// two times after it. Programs without such locks take 2 for damage: they refuse the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lock {
    /// It can be released.
    #[default]
    No,
    /// It cannot be released before its end.
    Until,
    /// It cannot be released before the pool has been in service for some time.
    Served {
        /// Time in service at which it ends, in milliseconds.
        end: u64,
        /// Time in service when this was written, in milliseconds.
        seen: u64,
    },
}

impl Lock {
    /// Maximum number of encoded bytes beyond those of [`Lock::No`].
    pub const MORE: usize = 16;
}

impl Field for Lock {
    const LEAST: usize = 1;
    fn put(&self, e: &mut Encoder) {
        match self {
            Lock::No => e.u8(0),
            Lock::Until => e.u8(1),
            Lock::Served { end, seen } => {
                e.u8(2);
                e.u64(*end);
                e.u64(*seen);
            }
        }
    }
    fn get(d: &mut Decoder<'_>) -> Result<Self, FormatError> {
        match d.u8()? {
            0 => Ok(Lock::No),
            1 => Ok(Lock::Until),
            2 => {
                let (end, seen) = (d.u64()?, d.u64()?);
                // times are small enough to be added to
                if end.max(seen) < 1 << 62 { Ok(Lock::Served { end, seen }) } else { Err(FormatError::Field("lock")) }
            }
            _ => Err(FormatError::Field("flag")),
        }
    }
}

fields!(
    /// A hold with a tag.
    HoldRecord {
        /// Tag; a snapshot has at most one hold with each tag.
        tag: String,
        /// When it was set: milliseconds since the Unix epoch.
        since: u64,
        /// When it ends by itself: milliseconds since the Unix epoch.
        until: Option<u64>,
        /// Whether it can be released before its end.
        lock: Lock,
    }
);

/// Properties of a snapshot as a whole. Encoded as a byte of flags (1: hidden, 2: tags follow) and
/// the tags if there are any: without tags, the encoding equals that of programs without tags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// True when the snapshot was destroyed, but lineages start from it.
    pub hidden: bool,
    /// Holds with tags, in the order they were made.
    pub tags: Vec<HoldRecord>,
}

impl Field for Standing {
    const LEAST: usize = 1;
    fn put(&self, e: &mut Encoder) {
        let tagged = !self.tags.is_empty();
        e.u8((u8::from(self.hidden) * HIDDEN) | (u8::from(tagged) * TAGGED));
        if tagged {
            self.tags.put(e);
        }
    }
    fn get(d: &mut Decoder<'_>) -> Result<Self, FormatError> {
        let flags = d.u8()?;
        if flags & !(HIDDEN | TAGGED) != 0 {
            return Err(FormatError::Field("flag"));
        }
        let tags = if flags & TAGGED == 0 { Vec::new() } else { Vec::get(d)? };
        // equal values have equal bytes
        if flags & TAGGED != 0 && tags.is_empty() {
            return Err(FormatError::Field("tags"));
        }
        Ok(Standing { hidden: flags & HIDDEN != 0, tags })
    }
}

fields!(
    /// A snapshot in the catalog.
    SnapshotRecord {
        /// Identity.
        id: SnapshotId,
        /// Lineage that it belongs to.
        lineage: LineageId,
        /// The part of the name after `@`.
        name: String,
        /// The epoch it closed.
        epoch: Epoch,
        /// Root of its map.
        root: TreeRoot,
        /// Blocks mapped.
        mapped: u64,
        /// Size of the volume at that time, in bytes.
        size: u64,
        /// When it was taken: milliseconds since the Unix epoch.
        created: u64,
        /// When it may be destroyed automatically.
        expires: Option<u64>,
        /// Free text.
        description: String,
        /// Holds without a tag: the time when each ends by itself.
        holds: Vec<Option<u64>>,
        /// Whether it is hidden, and its holds with tags.
        standing: Standing,
        /// Blocks that died between the snapshot before and this one.
        deadlist: Option<ObjectRef>,
    }
);

impl SnapshotRecord {
    /// Encodes a page of the table of snapshots: its records, one after the other.
    pub fn encode_page<'a>(records: impl Iterator<Item = &'a SnapshotRecord>) -> Vec<u8> {
        let mut e = Encoder::default();
        records.for_each(|record| record.put(&mut e));
        e.into_bytes()
    }

    /// Decodes a page: records until the end of `bytes`.
    ///
    /// # Errors
    /// [`FormatError`] when it is cut off or a field is invalid.
    pub fn decode_page(bytes: &[u8]) -> Result<Vec<SnapshotRecord>, FormatError> {
        let mut d = Decoder::new(bytes);
        let mut page = Vec::new();
        while d.remaining() > 0 {
            page.push(SnapshotRecord::get(&mut d)?);
        }
        Ok(page)
    }
}
