//! The checkpoint object.

use super::{BaseRecord, BucketRecord, Field, JobsRecord, LineageRecord, OptionsRecord, VolumeRecord, WalkRecord};
use crate::codec::{Decoder, Encoder, FormatError};
use crate::id::FIRST_BASE;
use crate::{Epoch, LineageId, ObjectRef, VolumeId};

#[cfg(test)]
mod tests;

/// Version of checkpoint objects. 2: snapshots in pages of their own. 3: shorter deadlists.
/// 4: options at the end. 5: jobs. 6: wipe. 7: deadlists in pieces. 8: lineages in another order
/// than that of their ids. 9: bases. 10: a bucket.
const VERSION: u16 = 10;
/// Oldest readable version, without options. The next has no jobs, the next no wipe; then come
/// deadlists in one object, which the object itself shows.
const WITHOUT_OPTIONS: u16 = 3;
const WITHOUT_JOBS: u16 = 4;
const WITHOUT_WIPE: u16 = 5;
const WITHOUT_PIECES: u16 = 6;
/// Lineages start from snapshots of lineages with lower ids. This version is written as long as
/// that is true, so that older programs can read a pool without promoted clones.
const IN_ORDER: u16 = 7;
/// There are no bases. This version is written as long as that is true.
const WITHOUT_BASES: u16 = 8;
/// There is no bucket. This version is written as long as that is true.
const WITHOUT_BUCKET: u16 = 9;
/// Bytes of the fields of a bucket in a pool without one.
const NO_BUCKET: usize = <Vec<(u64, ObjectRef)>>::LEAST + <Option<ObjectRef>>::LEAST + <Option<BucketRecord>>::LEAST;

fields!(
    /// The checkpoint object: catalog, counters, and places of the other objects.
    #[derive(Default)]
    Checkpoint {
        /// Pool name.
        name: String,
        /// Last batch that it includes.
        lsn: u64,
        /// Current epoch.
        epoch: Epoch,
        /// Write clock, in blocks.
        clock: u64,
        /// Smallest chunk id never used.
        next_chunk: u64,
        /// Smallest volume id never used.
        next_volume: u32,
        /// Smallest snapshot id never used.
        next_snapshot: u64,
        /// Smallest lineage id never used.
        next_lineage: u64,
        /// Smallest walk id never used.
        next_walk: u64,
        /// Average lifetime of short-lived segments, in blocks written (SepBIT's threshold).
        lifespan: u64,
        /// Chunk table pages: page number and place.
        chunk_pages: Vec<(u64, ObjectRef)>,
        /// Volumes.
        volumes: Vec<VolumeRecord>,
        /// Lineages.
        lineages: Vec<LineageRecord>,
        /// Pages of snapshots, [`SNAPSHOTS_PER_PAGE`] ids each: page number and place.
        snapshot_pages: Vec<(u64, ObjectRef)>,
        /// Newest versions of lineages that are being freed.
        walks: Vec<WalkRecord>,
        /// Dead blocks that wait to be freed: lineage and deadlist.
        frees: Vec<(LineageId, ObjectRef)>,
        /// Free segments in retention, unchanged for older checkpoints: segment and generation.
        retained: Vec<(u32, u64)>,
        /// Options of volumes, where they differ from the defaults.
        options: Vec<(VolumeId, OptionsRecord)>,
        /// Jobs.
        jobs: JobsRecord,
        /// The wipe that is running: 0 none; 1 devices are asked to discard; 2 zeroes are written.
        wipe: u8,
        /// 1: a lineage starts from a snapshot of a lineage with a greater id, because a clone was
        /// promoted. Else 0, which is not stored in a pool without bases and bucket.
        reordered: u8,
        /// Bases, by volume.
        bases: Vec<BaseRecord>,
        /// Pages of names of bucket segments ([`NameRecord`](crate::NameRecord)): page number and
        /// place.
        name_pages: Vec<(u64, ObjectRef)>,
        /// The list of doomed names ([`DoomedName`](crate::DoomedName)), if there are any.
        doomed: Option<ObjectRef>,
        /// The bucket that the data is in, if it is in one.
        bucket: Option<BucketRecord>,
    }
);

impl Checkpoint {
    /// Encodes the object.
    pub fn encode(&self) -> Vec<u8> {
        // without the fields at the end that are empty
        let (version, empty) = match (self.reordered, self.bases.as_slice()) {
            _ if self.has_bucket() => (VERSION, 0),
            (0, []) => (IN_ORDER, u8::LEAST + <Vec<BaseRecord>>::LEAST + NO_BUCKET),
            (_, []) => (WITHOUT_BASES, <Vec<BaseRecord>>::LEAST + NO_BUCKET),
            _ => (WITHOUT_BUCKET, NO_BUCKET),
        };
        let mut e = Encoder::default();
        e.u32(0x5043_504d); // "MPCP"
        e.u16(version);
        self.put(&mut e);
        let mut bytes = e.into_bytes();
        bytes.truncate(bytes.len() - empty);
        bytes
    }

    /// Decodes the object.
    ///
    /// # Errors
    /// [`FormatError`] when it is invalid. The caller checks the checksum, which is in the root.
    pub fn decode(bytes: &[u8]) -> Result<Checkpoint, FormatError> {
        let mut d = Decoder::new(bytes);
        if d.u32()? != 0x5043_504d {
            return Err(FormatError::Magic);
        }
        let version = d.u16()?;
        // an object of an older version equals a newer one whose added fields at the end are empty
        let (next, added): (u16, &[u8]) = match version {
            WITHOUT_OPTIONS => (WITHOUT_JOBS, &[0; <Vec<OptionsRecord>>::LEAST]),
            WITHOUT_JOBS => (WITHOUT_WIPE, &[0; JobsRecord::LEAST]),
            WITHOUT_WIPE => (WITHOUT_PIECES, &[0]),
            WITHOUT_PIECES => (IN_ORDER, &[]),
            IN_ORDER => (WITHOUT_BASES, &[0]),
            WITHOUT_BASES => (WITHOUT_BUCKET, &[0; <Vec<BaseRecord>>::LEAST]),
            WITHOUT_BUCKET => (VERSION, &[0; NO_BUCKET]),
            VERSION => (VERSION, &[]),
            _ => return Err(FormatError::Version(version)),
        };
        if next != version {
            let mut newer = bytes.to_vec();
            newer.splice(4..6, next.to_le_bytes());
            newer.extend(added);
            return Checkpoint::decode(&newer);
        }
        let checkpoint = Checkpoint::get(&mut d)?;
        d.end()?;
        checkpoint.check()?;
        Ok(checkpoint)
    }

    fn has_bucket(&self) -> bool {
        self.bucket.is_some() || self.doomed.is_some() || !self.name_pages.is_empty()
    }

    /// Checks bounds: counters are small enough to be added to.
    fn check(&self) -> Result<(), FormatError> {
        let counters = [self.lsn, self.epoch.0, self.clock, self.next_snapshot, self.next_lineage, self.next_walk];
        let sound = counters.iter().all(|n| *n < 1 << 62) && self.next_chunk < FIRST_BASE && self.next_volume < u32::MAX;
        let sound = sound && self.reordered <= 1 && self.bases.iter().all(|base| BaseRecord::is_unit(base.unit));
        if self.has_bucket() && !self.bucket.as_ref().is_some_and(BucketRecord::is_sound) {
            return Err(FormatError::Field("bucket"));
        }
        if sound { Ok(()) } else { Err(FormatError::Field("counter")) }
    }
}
