//! [`Index`]: finds entries by key in four bytes and a quarter each; the keys are where the entries are.

/// Places for each entry, in quarters: with more of them looking takes fewer steps.
const QUARTERS: usize = 5;
/// Places at least.
const LEAST: usize = 16;

/// Spreads keys: neighbours far from each other.
pub(super) fn spread(key: u64) -> u64 {
    let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// Entries by key; where those at a place do not fit, in the next free one.
#[derive(Debug)]
pub(super) struct Index {
    /// 0: nothing; else one more than the entry.
    table: Vec<u32>,
    count: usize,
    most: usize,
}

impl Index {
    /// An index for so many entries.
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

    /// The place of a key, or the free one where it would be.
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

    /// The entry of a key.
    pub(super) fn find(&self, key: u64, key_of: impl Fn(u32) -> u64) -> Option<u32> {
        self.seek(key, &key_of).1
    }

    /// Adds an entry, in place of one of the same key. When there is no room it is not added.
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

    /// Takes an entry out, when it is the one of its key.
    pub(super) fn remove(&mut self, key: u64, entry: u32, key_of: impl Fn(u32) -> u64) {
        let (mut hole, found) = self.seek(key, &key_of);
        if found != Some(entry) {
            return;
        }
        self.count -= 1;
        self.put(hole, None);
        // what lies behind moves up, so that no key is behind a gap
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
