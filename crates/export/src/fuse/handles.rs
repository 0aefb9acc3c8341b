//! Open files: who has which image open, and what went through it.

use std::collections::BTreeMap;

use super::tree::Image;

/// Images whose closed files are counted by themselves: more than are opened between two looks at them, and few enough to be listed.
const MAX_CLOSED: usize = 4096;

/// Requests through one open file, or through all that are closed. Refused ones count as errors alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Sum of the reads' latencies in nanoseconds, from receipt to the reply.
    pub read_nanos: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Sum of the writes' latencies in nanoseconds.
    pub write_nanos: u64,
    /// Flushes.
    pub flushes: u64,
    /// Of the writes, those to files opened with `O_SYNC` or `O_DSYNC`.
    pub fua_writes: u64,
    /// Holes punched and ranges zeroed.
    pub discards: u64,
    /// Bytes of them.
    pub discard_bytes: u64,
    /// Requests answered with an error.
    pub errors: u64,
}

impl Counters {
    /// The sum of two.
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
    /// What is open.
    pub image: Image,
    /// The process that opened it, as the kernel names it.
    pub pid: u32,
    /// When, in milliseconds since the Unix epoch.
    pub since: u64,
    /// May write.
    pub writes: bool,
    /// What it did.
    pub counters: Counters,
}

/// An image that is or was open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// How often it is open now.
    pub open: u64,
    /// What went through it.
    pub counters: Counters,
}

/// Open files by number. A number is used again when its file is closed.
#[derive(Default)]
pub(super) struct Handles {
    table: Vec<Option<Handle>>,
    free: Vec<usize>,
    /// Of files that are closed.
    closed: BTreeMap<Image, Counters>,
    /// Of requests that are about no image, and of images that made room for others.
    past: Counters,
}

impl Handles {
    /// Adds an open file; `None` when there are `most` already.
    pub fn open(&mut self, handle: Handle, most: usize) -> Option<u64> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.table.len() < most => {
                self.table.push(None);
                self.table.len() - 1
            }
            None => return None,
        };
        *self.table.get_mut(index)? = Some(handle);
        Some(index as u64)
    }

    /// Closes a file; what it did counts on for its image. `None` when there is none of this number.
    pub fn close(&mut self, number: u64) -> Option<()> {
        let index = usize::try_from(number).ok()?;
        let handle = self.table.get_mut(index)?.take()?;
        self.free.push(index);
        let closed = self.closed(handle.image);
        *closed = closed.plus(&handle.counters);
        Some(())
    }

    /// Where a request to an image counts, through the file of this number. That one may have been closed meanwhile, and the number be another's.
    pub fn counters_of(&mut self, number: u64, image: Image) -> &mut Counters {
        let index = usize::try_from(number).unwrap_or(usize::MAX);
        if !matches!(self.table.get(index), Some(Some(handle)) if handle.image == image) {
            return self.closed(image);
        }
        match self.table.get_mut(index) {
            Some(Some(handle)) => &mut handle.counters,
            _ => &mut self.past,
        }
    }

    /// Where a request counts that is about no image.
    pub fn rest(&mut self) -> &mut Counters {
        &mut self.past
    }

    /// Everything.
    pub fn total(&self) -> Counters {
        let closed = self.closed.values().fold(self.past, |sum, counters| sum.plus(counters));
        self.iter().fold(closed, |sum, (_, handle)| sum.plus(&handle.counters))
    }

    /// By image.
    pub fn loads(&self) -> BTreeMap<Image, Load> {
        let closed = |(image, counters): (&Image, &Counters)| (*image, Load { open: 0, counters: *counters });
        let mut loads: BTreeMap<Image, Load> = self.closed.iter().map(closed).collect();
        for (_, handle) in self.iter() {
            let load = loads.entry(handle.image).or_default();
            *load = Load { open: load.open + 1, counters: load.counters.plus(&handle.counters) };
        }
        loads
    }

    /// Counters of an image beside those of its open files. Where there are too many, the oldest snapshot makes room: who copies each new one comes
    /// to any number of them, and is done with the old ones.
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
        (0u64..).zip(&self.table).filter_map(|(number, handle)| Some((number, handle.as_ref()?)))
    }
}
