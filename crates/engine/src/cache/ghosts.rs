//! [`Ghosts`]: which blocks were read lately and are not in a cache, by marks of two bytes.
//!
//! What is read once, by a copy or a backup of everything, leaves a mark and nothing else; only what is read again before its mark is
//! pushed out goes to the cache.

use super::index::spread;

/// Marks that push each other out.
const BUCKET: usize = 4;

/// Marks of blocks by key.
#[derive(Debug, Default)]
pub(crate) struct Ghosts(Vec<[u16; BUCKET]>);

impl Ghosts {
    /// Room for so many marks; all are lost.
    pub(crate) fn resize(&mut self, most: usize) {
        self.0 = vec![[0; BUCKET]; most.div_ceil(BUCKET)];
    }

    /// A block was read. True when it was before; its mark is gone then.
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
