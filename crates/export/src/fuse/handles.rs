//! Open files: their images, the processes that opened them, and their counters.

use std::collections::BTreeMap;

use slab::Slab;

use super::tree::Image;

/// Maximum number of images whose closed files have counters of their own: more than are opened
/// between two queries of the counters, and few enough to be listed.
const MAX_CLOSED: usize = 4096;

/// Counters of the requests through one open file, or through all closed files of an image. Refused
/// requests count as errors only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Number of reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Sum of read latencies in nanoseconds, from receipt to reply.
    pub read_nanos: u64,
    /// Number of writes.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Sum of write latencies in nanoseconds, from receipt to reply.
    pub write_nanos: u64,
    /// Number of flushes.
    pub flushes: u64,
    /// Number of writes to files opened with `O_SYNC` or `O_DSYNC`; included in `writes`.
    pub fua_writes: u64,
    /// Number of holes punched and ranges zeroed.
    pub discards: u64,
    /// Bytes of these holes and ranges.
    pub discard_bytes: u64,
    /// Number of requests answered with an error.
    pub errors: u64,
}

impl Counters {
    /// Returns the sum of two sets of counters.
    pub fn plus(&self, other: &Counters) -> Counters {
        Counters {
            reads: self.reads + other.reads,
            read_bytes: self.read_bytes + other.read_bytes,
            read_nanos: self.read_nanos + other.read_nanos,
            writes: self.writes + other.writes,
            write_bytes: self.write_bytes + other.write_bytes,
            write_nanos: self.write_nanos + other.write_nanos,
            flushes: self.flushes + other.flushes,
            fua_writes: self.fua_writes + other.fua_writes,
            discards: self.discards + other.discards,
            discard_bytes: self.discard_bytes + other.discard_bytes,
            errors: self.errors + other.errors,
        }
    }
}

/// An open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle {
    /// Image that is open.
    pub image: Image,
    /// Id of the process that opened it, as the kernel reports it.
    pub pid: u32,
    /// Time of the open, in milliseconds since the Unix epoch.
    pub since: u64,
    /// True if the file was opened for writing.
    pub writes: bool,
    /// Counters of the requests through this file.
    pub counters: Counters,
}

/// Use of an image that is or was open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Number of open files.
    pub open: u64,
    /// Counters of the requests to the image.
    pub counters: Counters,
}

/// Open files by number. The number of a closed file is used again.
#[derive(Default)]
pub(super) struct Handles {
    table: Slab<Handle>,
    /// Counters of closed files, by image.
    closed: BTreeMap<Image, Counters>,
    /// Counters of requests without an image, and of images whose entry in `closed` was removed.
    past: Counters,
}

impl Handles {
    /// Adds an open file; returns `None` if there are `most` already.
    pub fn open(&mut self, handle: Handle, most: usize) -> Option<u64> {
        (self.table.len() < most).then(|| self.table.insert(handle) as u64)
    }

    /// Closes a file and adds its counters to those of its image. Returns `None` if there is no
    /// file of this number.
    pub fn close(&mut self, number: u64) -> Option<()> {
        let index = usize::try_from(number).ok()?;
        let handle = self.table.try_remove(index)?;
        let closed = self.closed(handle.image);
        *closed = closed.plus(&handle.counters);
        Some(())
    }

    /// Returns the counters for a request to an image through the file of this number. The file may
    /// have been closed meanwhile, and its number may belong to another file.
    pub fn counters_of(&mut self, number: u64, image: Image) -> &mut Counters {
        let index = usize::try_from(number).unwrap_or(usize::MAX);
        if self.table.get(index).is_none_or(|handle| handle.image != image) {
            return self.closed(image);
        }
        self.table.get_mut(index).map_or(&mut self.past, |handle| &mut handle.counters)
    }

    /// Returns the counters for requests without an image.
    pub fn rest(&mut self) -> &mut Counters {
        &mut self.past
    }

    /// Returns the sum of all counters.
    pub fn total(&self) -> Counters {
        let closed = self.closed.values().fold(self.past, |sum, counters| sum.plus(counters));
        self.iter().fold(closed, |sum, (_, handle)| sum.plus(&handle.counters))
    }

    /// Returns the use of each image.
    pub fn loads(&self) -> BTreeMap<Image, Load> {
        let closed = |(image, counters): (&Image, &Counters)| (*image, Load { open: 0, counters: *counters });
        let mut loads: BTreeMap<Image, Load> = self.closed.iter().map(closed).collect();
        for (_, handle) in self.iter() {
            let load = loads.entry(handle.image).or_default();
            *load = Load { open: load.open + 1, counters: load.counters.plus(&handle.counters) };
        }
        loads
    }

    /// Returns the counters of the closed files of an image. If there are too many images, the
    /// oldest snapshot's entry is removed: a backup opens each new snapshot and does not return to
    /// old ones.
    fn closed(&mut self, image: Image) -> &mut Counters {
        if self.closed.len() >= MAX_CLOSED && !self.closed.contains_key(&image) {
            let oldest = self.closed.range(Image::Snapshot(0)..).next().or(self.closed.first_key_value()).map(|(image, _)| *image);
            if let Some(counters) = oldest.and_then(|image| self.closed.remove(&image)) {
                self.past = self.past.plus(&counters);
            }
        }
        self.closed.entry(image).or_default()
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, &Handle)> {
        self.table.iter().map(|(number, handle)| (number as u64, handle))
    }
}
