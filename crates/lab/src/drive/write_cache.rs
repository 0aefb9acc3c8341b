//! Dirty ranges of a drive's volatile cache. Writes that arrive during a flush are kept apart, so
//! that the flush ends even under a continuous load.

use super::Op;
use super::request::Request;
use std::collections::BTreeMap;

/// A range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub offset: u64,
    pub end: u64,
}

/// Dirty ranges of a cache; see the module.
#[derive(Debug, Default)]
pub(super) struct WriteCache {
    /// Ranges to be written, by start, with their end (exclusive). Ranges do not touch each other.
    dirty: BTreeMap<u64, u64>,
    /// Ranges that arrived after the current flush.
    fresh: BTreeMap<u64, u64>,
    bytes: u64,
    /// Flushes that complete when `dirty` is empty, and later ones.
    flushing: Vec<u64>,
    later: Vec<u64>,
}

impl WriteCache {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn is_flushing(&self) -> bool {
        !self.flushing.is_empty()
    }

    pub fn has_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    pub fn write(&mut self, range: Range) {
        let into = if self.flushing.is_empty() { &mut self.dirty } else { &mut self.fresh };
        self.bytes += insert(into, range);
    }

    pub fn flush(&mut self, id: u64) {
        if self.flushing.is_empty() { &mut self.flushing } else { &mut self.later }.push(id);
    }

    /// Returns the flushes that complete because nothing is dirty, and starts the later ones.
    pub fn take_flushed(&mut self) -> Vec<u64> {
        if self.has_dirty() {
            return Vec::new();
        }
        let done = std::mem::replace(&mut self.flushing, std::mem::take(&mut self.later));
        self.dirty = std::mem::take(&mut self.fresh);
        done
    }

    /// Whether a read lies completely in the cache.
    pub fn holds(&self, request: &Request) -> bool {
        let within = |map: &BTreeMap<u64, u64>| {
            map.range(..=request.offset).next_back().is_some_and(|(_, end)| request.op == Op::Read && request.end() <= *end)
        };
        within(&self.dirty) || within(&self.fresh)
    }

    /// Returns up to `limit` dirty ranges in the order in which a sweep from `from` meets them.
    pub fn sweep(&self, from: u64, limit: usize) -> impl Iterator<Item = Range> {
        let ahead = self.dirty.range(from..);
        ahead.chain(self.dirty.range(..from)).take(limit).map(|(offset, end)| Range { offset: *offset, end: *end })
    }

    /// Removes the start of a dirty range, which is now being written.
    pub fn take(&mut self, start: Range) {
        if let Some(end) = self.dirty.remove(&start.offset).filter(|end| *end > start.end) {
            self.dirty.insert(start.end, end);
        }
    }

    /// Frees the space of a range that is on the medium.
    pub fn written(&mut self, range: Range) {
        self.bytes = self.bytes.saturating_sub(range.end - range.offset);
    }
}

/// Inserts a range and joins it with ranges that it touches; returns the number of bytes added.
fn insert(map: &mut BTreeMap<u64, u64>, mut range: Range) -> u64 {
    let mut had = 0;
    while let Some((offset, end)) = map.range(..=range.end).next_back().map(|(o, e)| (*o, *e)) {
        if end < range.offset {
            break;
        }
        map.remove(&offset);
        had += end - offset;
        range = Range { offset: range.offset.min(offset), end: range.end.max(end) };
    }
    map.insert(range.offset, range.end);
    range.end - range.offset - had
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_and_count_once() {
        let mut cache = WriteCache::default();
        for (offset, end) in [(0, 4), (8, 12), (3, 9), (20, 24), (0, 4)] {
            cache.write(Range { offset, end });
        }
        assert_eq!(cache.bytes(), 16);
        assert_eq!(cache.sweep(1, 9).collect::<Vec<_>>(), [Range { offset: 20, end: 24 }, Range { offset: 0, end: 12 }]);
        let start = Range { offset: 0, end: 4 };
        cache.take(start);
        cache.written(start);
        assert_eq!(cache.bytes(), 12);
        assert_eq!(cache.sweep(0, 1).next(), Some(Range { offset: 4, end: 12 }), "the rest stays");
    }

    #[test]
    fn a_flush_does_not_wait_for_what_came_later() {
        let mut cache = WriteCache::default();
        cache.write(Range { offset: 0, end: 4 });
        cache.flush(1);
        cache.write(Range { offset: 8, end: 12 });
        cache.flush(2);
        assert!(cache.take_flushed().is_empty());
        let first = Range { offset: 0, end: 4 };
        cache.take(first);
        cache.written(first);
        assert_eq!(cache.take_flushed(), [1]);
        assert!(cache.has_dirty() && cache.is_flushing(), "the second still has its write before it");
    }
}
