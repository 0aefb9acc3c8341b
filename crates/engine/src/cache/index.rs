//! [`Index`]: finds entries by key with four bytes and a quarter for each; the entries themselves
//! hold the keys.

/// Places for each entry, in quarters: more places make a search shorter.
const QUARTERS: usize = 5;
/// Minimum number of places.
const LEAST: usize = 16;

/// Spreads keys, so that neighbouring keys are far from each other.
pub(super) fn spread(key: u64) -> u64 {
    let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// Hash table of entries with linear probing: an entry whose place is taken goes to the next free
/// place.
#[derive(Debug)]
pub(super) struct Index {
    /// 0: free; else one more than the entry.
    table: Vec<u32>,
    count: usize,
    most: usize,
}

impl Index {
    /// Creates an index for at most `most` entries.
    pub(super) fn new(most: usize) -> Index {
        Index { table: vec![0; (most * QUARTERS / 4).max(LEAST)], count: 0, most: most.max(1) }
    }

    fn home(&self, key: u64) -> usize {
        ((u128::from(spread(key)) * self.table.len() as u128) >> 64) as usize
    }

    fn after(&self, at: usize) -> usize {
        if at + 1 == self.table.len() { 0 } else { at + 1 }
    }

    fn at(&self, at: usize) -> Option<u32> {
        self.table.get(at).copied().unwrap_or(0).checked_sub(1)
    }

    fn put(&mut self, at: usize, entry: Option<u32>) {
        if let Some(place) = self.table.get_mut(at) {
            *place = entry.map_or(0, |entry| entry + 1);
        }
    }

    /// Returns the place of a key with its entry, or the free place where it would be.
    fn seek(&self, key: u64, key_of: &impl Fn(u32) -> u64) -> (usize, Option<u32>) {
        let mut at = self.home(key);
        while let Some(entry) = self.at(at) {
            if key_of(entry) == key {
                return (at, Some(entry));
            }
            at = self.after(at);
        }
        (at, None)
    }

    /// Returns the entry of a key.
    pub(super) fn find(&self, key: u64, key_of: impl Fn(u32) -> u64) -> Option<u32> {
        self.seek(key, &key_of).1
    }

    /// Adds an entry, or replaces one with the same key. A new key is not added when the index is
    /// full.
    pub(super) fn insert(&mut self, key: u64, entry: u32, key_of: impl Fn(u32) -> u64) {
        let (at, old) = self.seek(key, &key_of);
        if old.is_none() {
            if self.count >= self.most {
                return;
            }
            self.count += 1;
        }
        self.put(at, Some(entry));
    }

    /// Removes an entry, if it is the one of its key.
    pub(super) fn remove(&mut self, key: u64, entry: u32, key_of: impl Fn(u32) -> u64) {
        let (mut hole, found) = self.seek(key, &key_of);
        if found != Some(entry) {
            return;
        }
        self.count -= 1;
        self.put(hole, None);
        // later entries move up, so that no entry is separated from its place by a gap
        let length = self.table.len();
        let mut at = self.after(hole);
        while let Some(entry) = self.at(at) {
            let home = self.home(key_of(entry));
            if (at + length - home) % length >= (at + length - hole) % length {
                self.put(hole, Some(entry));
                self.put(at, None);
                hole = at;
            }
            at = self.after(at);
        }
    }
}

#[cfg(test)]
mod tests;
