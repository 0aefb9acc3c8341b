//! Requests that wait for the disk.

use millpond_block::Tag;

use super::files::held_by_write;

/// What becomes of an answer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// Send what was read.
    Read,
    /// Say how many bytes were written; with `fua` they are stable then.
    Write { fua: bool },
    /// Say that a hole was made.
    Clear,
    /// Say that everything is stable.
    Flush,
    /// Say where data or a hole begins: `wanted` is what to look for, `from` where the caller stands, `at` where the query began.
    Seek { wanted: bool, from: u64, at: u64 },
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub unique: u64,
    pub kind: Kind,
    /// Bytes that it reads, writes or clears.
    pub bytes: u64,
    /// The open file.
    pub handle: u64,
    /// When it came, in nanoseconds of the loop's clock.
    pub since: u64,
    pub image: super::tree::Image,
}

/// A table whose index is the lower half of the tag.
pub(super) struct InFlight {
    session: u32,
    table: Vec<Option<Pending>>,
    free: Vec<u32>,
    /// Bytes of memory that reads and writes hold.
    pub bytes: u64,
}

impl InFlight {
    pub fn new(session: u32) -> InFlight {
        InFlight { session, table: Vec::new(), free: Vec::new(), bytes: 0 }
    }

    pub fn len(&self) -> usize {
        self.table.len() - self.free.len()
    }

    /// Bytes in memory for a request.
    fn weight(pending: &Pending) -> u64 {
        match pending.kind {
            Kind::Read => pending.bytes,
            Kind::Write { .. } => held_by_write(pending.bytes),
            Kind::Clear | Kind::Flush | Kind::Seek { .. } => 0,
        }
    }

    pub fn insert(&mut self, pending: Pending) -> Tag {
        self.bytes += Self::weight(&pending);
        let index = self.free.pop().unwrap_or_else(|| {
            self.table.push(None);
            self.table.len() as u32 - 1
        });
        if let Some(place) = self.table.get_mut(index as usize) {
            *place = Some(pending);
        }
        Tag(u64::from(self.session) << 32 | u64::from(index))
    }

    pub fn remove(&mut self, tag: Tag) -> Option<Pending> {
        let index = (tag.0 & u64::from(u32::MAX)) as u32;
        let pending = self.table.get_mut(index as usize)?.take()?;
        self.free.push(index);
        self.bytes -= Self::weight(&pending);
        Some(pending)
    }
}
