//! Open files: who has which image open, and what went through it.

use super::tree::Image;

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

/// Open files by number. A number is used again when its file is closed.
#[derive(Default)]
pub(super) struct Handles {
    table: Vec<Option<Handle>>,
    free: Vec<usize>,
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

    pub fn close(&mut self, number: u64) -> Option<Handle> {
        let index = usize::try_from(number).ok()?;
        let handle = self.table.get_mut(index)?.take()?;
        self.free.push(index);
        Some(handle)
    }

    pub fn get_mut(&mut self, number: u64) -> Option<&mut Handle> {
        self.table.get_mut(usize::try_from(number).ok()?)?.as_mut()
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, &Handle)> {
        (0u64..).zip(&self.table).filter_map(|(number, handle)| Some((number, handle.as_ref()?)))
    }
}
