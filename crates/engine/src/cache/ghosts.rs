//! [`Ghosts`]: marks of two bytes for blocks that were read recently and are not in a cache.
//!
//! A block that is read once, for instance by a backup of everything, only leaves a mark. A block
//! that is read again before its mark is pushed out goes to the cache.

use super::index::spread;

/// Number of marks that push each other out.
const BUCKET: usize = 4;

/// Marks of blocks by key.
#[derive(Debug, Default)]
pub(crate) struct Ghosts(Vec<[u16; BUCKET]>);

impl Ghosts {
    /// Makes room for `most` marks; all present marks are lost.
    pub(crate) fn resize(&mut self, most: usize) {
        self.0 = vec![[0; BUCKET]; most.div_ceil(BUCKET)];
    }

    /// Records that a block was read. True when it had a mark, which is removed.
    pub(crate) fn meet(&mut self, key: u64) -> bool {
        let spread = spread(key);
        let at = ((u128::from(spread) * self.0.len() as u128) >> 64) as usize;
        let mark = (spread as u16).max(1);
        let Some(bucket) = self.0.get_mut(at) else { return false };
        if let Some(place) = bucket.iter_mut().find(|place| **place == mark) {
            *place = 0;
            return true;
        }
        let empty = bucket.iter().position(|place| *place == 0).unwrap_or(BUCKET - 1);
        bucket[..=empty].rotate_right(1);
        bucket[0] = mark;
        false
    }
}

#[cfg(test)]
mod tests;
