//! Labels and roots: the first structures that an import reads.
//!
//! A device has two areas of [`AREA_BYTES`]: at its start, and where [`second_area`] says.
//! The first 4 KiB of an area are the label. A claim follows [`CLAIM_OFFSET`](crate::CLAIM_OFFSET)
//! bytes from the start of the area, and a ring of [`RING_SLOTS`] roots of 4 KiB [`RING_OFFSET`]
//! bytes from it. Each has a physical sector of its own. Extents fill the space between the areas.

use std::collections::BTreeSet;

use millpond_block::MemberId;

use crate::codec::{Decoder, Encoder, FormatError};
use crate::{
    BUCKET, Class, DeviceId, DeviceNote, FEATURES, Feature, FeatureKind, FeatureNames, FeatureSet, Lsn, MemberState, PoolId, SegmentId,
    Shape, Unknown, crc32c,
};

#[cfg(test)]
mod tests;

/// Bytes of each of the two areas of a device.
pub const AREA_BYTES: u64 = 1 << 20;

/// Start of the second area of a device of `size` bytes: its last whole [`AREA_BYTES`]. Bytes
/// beyond a multiple of [`AREA_BYTES`] are not used.
pub const fn second_area(size: u64) -> u64 {
    (size / AREA_BYTES).saturating_sub(1) * AREA_BYTES
}

/// Offset of the ring of roots within an area.
pub const RING_OFFSET: u64 = 64 << 10;
/// Number of roots in the ring, which limits how far back an import can rewind.
pub const RING_SLOTS: u64 = 128;
/// Bytes of a label and of a root.
pub const SECTOR_BYTES: usize = 4096;
/// Version of a root: 2 since there are streams for special devices.
const ROOT_VERSION: u16 = 2;
/// Version of a label: 2 since a pool's shape can change, 3 since members say when they were down.
const LABEL_VERSION: u16 = 3;
/// Streams of the log: four for guests, five for the cleaner.
pub const STREAMS: usize = 9;
/// Maximum number of log tails of a root; when more would be needed, recovery writes a checkpoint first.
pub const MAX_LOG_TAILS: usize = 16;
/// Encoding of "no segment".
pub const NO_SEGMENT: SegmentId = SegmentId(u32::MAX);

const LABEL_MAGIC: &[u8; 8] = b"MILLPOND";
const ROOT_MAGIC: &[u8; 8] = b"MPONDROO";
const NAME_MAX: usize = 64;
/// Place of the names of features: before the checksum. The largest shape ends before it.
const NAMES_AT: usize = SECTOR_BYTES - 4 - FeatureNames::BYTES;
const _: () = assert!(FIXED_BYTES + NAME_MAX + crate::MAX_SHAPE_BYTES <= NAMES_AT);
/// Place of the fields after the feature flags.
const AFTER_FLAGS: usize = 8 + 2 + 12;
/// Bytes of a label before its shape, without the name itself.
const FIXED_BYTES: usize = AFTER_FLAGS + 16 + 2 + 8 + 2;
/// Feature: devices of class cache.
const CACHE_FLAG: u32 = 1;
/// Feature: devices of class spare.
const SPARE_FLAG: u32 = 2;

/// Identity of a device, its pool, and the pool's shape.
///
/// | field | bytes | meaning |
/// |---|---|---|
/// | magic | 8 | `MILLPOND` |
/// | version | 2 | 3 |
/// | compat, ro_compat, incompat | 12 | feature flags, see below |
/// | pool id | 16 | |
/// | pool name | 2 + n | |
/// | device id | 8 | identity of this device |
/// | member | 2 | this device's place in the table of members |
/// | shape | n | [`Shape`] |
/// | notes | 2 + n, or 0 | count and [`DeviceNote`]s, as many as fit; older programs skip them |
/// | names | 64, or 0 | [`FeatureNames`] before the checksum, with features of the last two sets |
/// | checksum | 4 | CRC-32C of the sector before it; the last 4 bytes of the 4096 |
///
/// Unknown bits in `incompat` refuse the import, and those in `ro_compat` an import that may write.
/// Unknown bits in `compat` are kept. The features are listed in [`FEATURES`]. Bits 0 and 1 of
/// `incompat` follow from the shape and need no names: the pool has devices of class cache, of
/// class spare; these have no roots. Bit 4 is set when the shape has a bucket. Fields up to the pool's name have the same places in every
/// version from 3 on, and so have names and checksum, so that a program can name a pool that it
/// does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// The pool.
    pub pool: PoolId,
    /// Name of the pool when the label was written.
    pub name: String,
    /// Identity of this device: that of the member, or of the device that is replacing the member.
    pub device: DeviceId,
    /// Place of this device in the table of members.
    pub member: MemberId,
    /// Features that are on, without `cache` and `spare`, which follow from the shape.
    pub features: FeatureSet,
    /// Names of the features that other programs may have to know.
    pub feature_names: FeatureNames,
    /// Members and segments, as known when the label was written.
    pub shape: Shape,
    /// Path, size and serial number of each device when it was last seen, for messages.
    pub notes: Vec<DeviceNote>,
}

pub(crate) fn seal(encoder: Encoder) -> [u8; SECTOR_BYTES] {
    let mut sector = [0; SECTOR_BYTES];
    let (body, sum) = sector.split_at_mut(SECTOR_BYTES - 4);
    body[..encoder.len()].copy_from_slice(encoder.bytes());
    sum.copy_from_slice(&crc32c(body).to_le_bytes());
    sector
}

pub(crate) fn open<'a>(sector: &'a [u8], magic: &[u8; 8], known: u16) -> Result<Decoder<'a>, FormatError> {
    let (body, sum) = sector.split_at_checked(SECTOR_BYTES - 4).ok_or(FormatError::Truncated)?;
    if !body.starts_with(magic) {
        return Err(FormatError::Magic);
    }
    if sum.get(..4) != Some(&crc32c(body).to_le_bytes()[..]) {
        return Err(FormatError::Checksum);
    }
    let mut decoder = Decoder::new(body);
    decoder.raw(8)?;
    let version = decoder.u16()?;
    if version != known {
        return Err(FormatError::Version(version));
    }
    Ok(decoder)
}

/// Incompatible features that a program must know to use the devices of a pool.
fn features(shape: &Shape) -> u32 {
    let has = |class: Class, flag: u32| if shape.has(class) { flag } else { 0 };
    has(Class::Cache, CACHE_FLAG) | has(Class::Spare, SPARE_FLAG)
}

impl FormatError {
    /// Returns whether this is the error of a label that a later program wrote, or one with features
    /// that this program does not have. Such a label may be newer than every label that can be read.
    pub fn is_newer_label(&self) -> bool {
        match self {
            FormatError::Version(version) => *version > LABEL_VERSION,
            FormatError::Incompatible(_) => true,
            FormatError::Truncated | FormatError::Magic | FormatError::Checksum | FormatError::Field(_) => false,
        }
    }
}

impl Shape {
    /// Returns the features that follow from the shape and have no names in labels.
    pub fn features(&self) -> FeatureSet {
        FeatureSet { incompat: features(self), ..FeatureSet::default() }
    }
}

impl Label {
    /// Version of the labels that this program reads and writes.
    pub const VERSION: u16 = LABEL_VERSION;

    /// Returns the sector to write.
    ///
    /// # Panics
    /// With a shape that does not fit ([`MAX_SHAPE_BYTES`](crate::MAX_SHAPE_BYTES)), which is an
    /// error of the caller.
    pub fn encode(&self) -> [u8; SECTOR_BYTES] {
        let mut e = Encoder::with_capacity(SECTOR_BYTES);
        e.raw(LABEL_MAGIC);
        e.u16(LABEL_VERSION);
        e.u32(self.features.compat);
        e.u32(self.features.ro_compat);
        e.u32(self.features.incompat | features(&self.shape));
        e.raw(&self.pool.0);
        e.string(&self.name);
        e.u64(self.device.0);
        e.u16(self.member.0);
        self.shape.encode(&mut e);
        let room = self.end_of_notes().saturating_sub(e.len());
        DeviceNote::encode_all(&DeviceNote::fitting(&self.notes, room), &mut e);
        if self.has_names() {
            e.raw(&vec![0; NAMES_AT.saturating_sub(e.len())]);
            e.raw(self.feature_names.bytes());
        }
        seal(e)
    }

    /// Returns the label with as many of `notes` as fit: what [`decode`](Label::decode) would
    /// return.
    #[must_use]
    pub fn with_notes(self, notes: &[DeviceNote]) -> Label {
        // bytes of the shape, and of the fields before it with the name
        let mut e = Encoder::with_capacity(SECTOR_BYTES);
        self.shape.encode(&mut e);
        let fixed = FIXED_BYTES + self.name.len() + e.len();
        Label { notes: DeviceNote::fitting(notes, self.end_of_notes().saturating_sub(fixed)), ..self }
    }

    /// Returns whether the names of features precede the checksum: if there are features that another
    /// program may have to know.
    fn has_names(&self) -> bool {
        self.features.ro_compat | self.features.incompat != 0
    }

    /// Returns where the notes have to end.
    fn end_of_notes(&self) -> usize {
        if self.has_names() { NAMES_AT } else { SECTOR_BYTES - 4 }
    }

    /// Returns the place of this device in a newer shape. A spare that has replaced a member may
    /// still have its old label; it is found by its device id, which no other device has.
    pub fn member_in(&self, newer: &Shape) -> MemberId {
        let taken = newer.numbered().find(|(_, m)| m.device == self.device && m.state != MemberState::Gone).map(|(at, _)| at);
        taken.filter(|_| self.shape.is_spare(self.member)).unwrap_or(self.member)
    }

    /// Decodes a sector.
    ///
    /// # Errors
    /// [`FormatError`] when the sector is not a label, is damaged, has a newer version, or its
    /// numbers are out of range. A label that is accepted can be encoded again.
    pub fn decode(sector: &[u8]) -> Result<Label, FormatError> {
        Label::decode_knowing(sector, FEATURES)
    }

    /// Decodes a sector for a program that knows some features.
    ///
    /// # Errors
    /// As [`decode`](Label::decode); [`FormatError::Incompatible`] with features of `incompat` that
    /// are not `known`. Unknown features of `ro_compat` are no error: the caller may only read the
    /// pool.
    pub fn decode_knowing(sector: &[u8], known: &[Feature]) -> Result<Label, FormatError> {
        let mut d = open(sector, LABEL_MAGIC, LABEL_VERSION)?;
        let mut set = FeatureSet { compat: d.u32()?, ro_compat: d.u32()?, incompat: d.u32()? };
        let automatic = set.incompat & (CACHE_FLAG | SPARE_FLAG);
        set.incompat &= !(CACHE_FLAG | SPARE_FLAG);
        let named = set.ro_compat | set.incompat != 0;
        let names = sector.get(NAMES_AT..SECTOR_BYTES - 4).filter(|_| named).map(FeatureNames::read).unwrap_or_default();
        let end = if named { NAMES_AT } else { SECTOR_BYTES - 4 };
        let mut d = Decoder::new(sector.get(AFTER_FLAGS..end).ok_or(FormatError::Truncated)?);
        if let Some(unknown) = Unknown::of(set, &names, FeatureKind::Incompat, known) {
            return Err(FormatError::Incompatible(unknown));
        }
        let pool = PoolId(d.bytes()?);
        let name = d.string()?;
        if name.len() > NAME_MAX {
            return Err(FormatError::Field("name"));
        }
        let (device, member) = (DeviceId(d.u64()?), MemberId(d.u16()?));
        let before = d.remaining();
        let shape = Shape::decode(&mut d)?;
        // a larger one leaves no room for the names of features
        if before - d.remaining() > crate::MAX_SHAPE_BYTES {
            return Err(FormatError::Field("shape"));
        }
        if shape.member(member).is_none() {
            return Err(FormatError::Field("member"));
        }
        if features(&shape) != automatic || shape.has_bucket() != set.has(&BUCKET) {
            return Err(FormatError::Field("flags"));
        }
        let notes = DeviceNote::decode_all(&mut d)?;
        Ok(Label { pool, name, device, member, features: set, feature_names: names, shape, notes })
    }

    /// Returns the features that a program does not know and would have to know to write to the pool;
    /// `None` if it knows all of them.
    pub fn unknown_to_writers(&self, known: &[Feature]) -> Option<Unknown> {
        Unknown::of(self.features, &self.feature_names, FeatureKind::RoCompat, known)
    }

    /// Returns the label that counts of two intact ones on a device, of which this is the first: the
    /// first, or the second if it has a later generation: the first one could not be written, or the
    /// write was lost, or the first MiB of the device was restored.
    #[must_use]
    pub fn or_newer(self, second: Label) -> Label {
        let same = (self.pool, self.device) == (second.pool, second.device);
        if same && second.shape.generation > self.shape.generation { second } else { self }
    }

    /// Returns whether the second label of the device is of another pool, by a later program: it is left
    /// from an earlier use of the device, and says nothing about this one.
    pub fn is_beside_another_pool(&self, second: &[u8]) -> bool {
        Label::of_other_program(second).is_some_and(|(pool, ..)| pool != self.pool)
    }

    /// Returns the pool of a label that this program does not know, and the reason; `None` for
    /// other sectors. Id and name precede everything that later versions may change.
    pub fn of_other_program(sector: &[u8]) -> Option<(PoolId, String, FormatError)> {
        let why = Label::decode(sector).err().filter(FormatError::is_newer_label)?;
        let mut d = Decoder::new(sector);
        d.raw(8 + 2 + 12).ok()?;
        let (pool, name) = (PoolId(d.bytes().ok()?), d.string().ok()?);
        let usual = name.len() <= NAME_MAX && !name.chars().any(char::is_control);
        usual.then_some((pool, name, why))
    }
}

/// Place, length and checksum of a checkpoint object.
///
/// | field | bytes | meaning |
/// |---|---|---|
/// | segment | 4 | |
/// | offset | 4 | within the segment, in 64-byte steps |
/// | length | 4 | bytes; with bit 31 set, the bytes are references to the object's parts |
/// | checksum | 4 | CRC-32C of the bytes |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ObjectRef {
    /// Segment that holds it.
    pub segment: SegmentId,
    /// Offset within it in steps of [`ObjectRef::STEP`] bytes.
    pub offset: u32,
    /// Length in bytes, and in bit 31 whether the bytes are an index of parts.
    pub length: u32,
    /// CRC-32C of the bytes.
    pub crc: u32,
}

impl ObjectRef {
    /// Grain of the offset in bytes.
    pub const STEP: usize = 64;
    /// Bytes of an encoded reference.
    pub const BYTES: usize = 16;
    /// Mark in `length`: the bytes are references to the object's parts.
    pub const INDEX: u32 = 1 << 31;

    /// Length in bytes, without the mark.
    pub fn bytes(&self) -> u32 {
        self.length & !ObjectRef::INDEX
    }

    /// True when the bytes are references to the object's parts.
    pub fn is_index(&self) -> bool {
        self.length & ObjectRef::INDEX != 0
    }

    /// Appends the reference.
    pub fn encode(&self, e: &mut Encoder) {
        e.u32(self.segment.0);
        e.u32(self.offset);
        e.u32(self.length);
        e.u32(self.crc);
    }

    /// Decodes a reference.
    pub fn decode(d: &mut Decoder<'_>) -> Result<ObjectRef, FormatError> {
        Ok(ObjectRef { segment: SegmentId(d.u32()?), offset: d.u32()?, length: d.u32()?, crc: d.u32()? })
    }

    /// Decodes an index: references to parts until the end of `bytes`.
    ///
    /// # Errors
    /// [`FormatError`] when it is cut off, refers to another index, or names a part twice: with
    /// repeated parts the size of the joined object would be unbounded.
    pub fn decode_index(bytes: &[u8]) -> Result<Vec<ObjectRef>, FormatError> {
        let mut d = Decoder::new(bytes);
        let mut parts = Vec::new();
        let mut places = BTreeSet::new();
        while d.remaining() > 0 {
            let part = ObjectRef::decode(&mut d)?;
            if part.is_index() || !places.insert((part.segment, part.offset)) {
                return Err(FormatError::Field("part"));
            }
            parts.push(part);
        }
        Ok(parts)
    }
}

/// Place where a stream of the log continues: the next batch is at `offset` (in 4 KiB steps) of
/// `segment`, or at the start of `next`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamStart {
    /// Segment that is being filled, or [`NO_SEGMENT`].
    pub segment: SegmentId,
    /// Offset in it, in 4 KiB steps.
    pub offset: u32,
    /// Segment that is reserved to follow.
    pub next: SegmentId,
}

/// The part of the log that one incarnation wrote: from an import to the next crash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogTail {
    /// The incarnation that wrote the batches.
    pub incarnation: u32,
    /// Its last valid batch; [`LogTail::RUNNING`] while the incarnation is running.
    pub end: Lsn,
    /// Where each of its streams starts.
    pub streams: [StreamStart; STREAMS],
}

impl LogTail {
    /// End of an incarnation that is running: after every batch.
    pub const RUNNING: Lsn = Lsn(u64::MAX);
}

/// An entry of the ring: it names a checkpoint, and the batches that come after it.
///
/// | field | bytes | meaning |
/// |---|---|---|
/// | magic | 8 | `MPONDROO` |
/// | version | 2 | 2 |
/// | pool id | 16 | |
/// | generation | 8 | one more for every root; the slot is its remainder by 128 |
/// | incarnation | 4 | one more for every import |
/// | time | 8 | milliseconds since the Unix epoch |
/// | checkpoint | 16 | [`ObjectRef`] of the checkpoint object |
/// | lsn | 8 | last batch that the checkpoint contains |
/// | log tails | 1 + n (4 + 8 + 9 x 12) | [`LogTail`]s, oldest first |
/// | checksum | 4 | CRC-32C of the sector before it; the last 4 bytes of the 4096 |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// The pool.
    pub pool: PoolId,
    /// One more for each root; the slot in the ring is its remainder by 128.
    pub generation: u64,
    /// Number of the import that wrote it.
    pub incarnation: u32,
    /// When it was written: milliseconds since the Unix epoch.
    pub time: u64,
    /// The checkpoint object.
    pub checkpoint: ObjectRef,
    /// Last batch that the checkpoint includes.
    pub lsn: Lsn,
    /// The log after the checkpoint, oldest part first.
    pub log_tails: Vec<LogTail>,
}

impl Root {
    /// Returns the sector to write.
    ///
    /// # Panics
    /// With more than [`MAX_LOG_TAILS`] log tails, which is an error of the caller.
    pub fn encode(&self) -> [u8; SECTOR_BYTES] {
        assert!(self.log_tails.len() <= MAX_LOG_TAILS, "too many log tails");
        let mut e = Encoder::with_capacity(SECTOR_BYTES);
        e.raw(ROOT_MAGIC);
        e.u16(ROOT_VERSION);
        e.raw(&self.pool.0);
        e.u64(self.generation);
        e.u32(self.incarnation);
        e.u64(self.time);
        self.checkpoint.encode(&mut e);
        e.u64(self.lsn.0);
        e.u8(u8::try_from(self.log_tails.len()).unwrap_or(u8::MAX));
        for log_tail in &self.log_tails {
            e.u32(log_tail.incarnation);
            e.u64(log_tail.end.0);
            for stream in &log_tail.streams {
                e.u32(stream.segment.0);
                e.u32(stream.offset);
                e.u32(stream.next.0);
            }
        }
        seal(e)
    }

    /// Decodes a sector.
    ///
    /// # Errors
    /// [`FormatError`] when the sector is not a root, is damaged, or has a newer version.
    pub fn decode(sector: &[u8]) -> Result<Root, FormatError> {
        let mut d = open(sector, ROOT_MAGIC, ROOT_VERSION)?;
        let pool = PoolId(d.bytes()?);
        let (generation, incarnation, time) = (d.counter("generation")?, d.u32()?, d.u64()?);
        if incarnation == u32::MAX {
            return Err(FormatError::Field("incarnation")); // the next import could not have a number of its own
        }
        let checkpoint = ObjectRef::decode(&mut d)?;
        let lsn = Lsn(d.counter("lsn")?);
        let count = usize::from(d.u8()?);
        if count > MAX_LOG_TAILS {
            return Err(FormatError::Field("legs"));
        }
        let mut log_tails = Vec::with_capacity(count);
        for _ in 0..count {
            let (incarnation, end) = (d.u32()?, Lsn(d.u64()?));
            let mut streams = [StreamStart { segment: NO_SEGMENT, offset: 0, next: NO_SEGMENT }; STREAMS];
            for stream in &mut streams {
                *stream = StreamStart { segment: SegmentId(d.u32()?), offset: d.u32()?, next: SegmentId(d.u32()?) };
            }
            log_tails.push(LogTail { incarnation, end, streams });
        }
        Ok(Root { pool, generation, incarnation, time, checkpoint, lsn, log_tails })
    }

    /// Offset of this root within each area of a device.
    pub fn slot_offset(generation: u64) -> u64 {
        RING_OFFSET + generation % RING_SLOTS * SECTOR_BYTES as u64
    }
}
