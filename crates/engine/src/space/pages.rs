//! A map from numbers to values, in pages of neighbouring numbers.
//!
//! A hash map of all chunks moves all of them when it grows: 5 ms at 60,000 chunks, a tenth of a
//! second at a million, while guests wait. A map of pages has a sixty-fourth of the entries, and
//! these fit into the processor's cache.

use std::cell::Cell;

use millpond_format::CHUNKS_PER_PAGE;
use rustc_hash::FxHashMap;

use crate::slab::Slab;

const _: () = assert!(CHUNKS_PER_PAGE == u64::BITS as u64, "a bit for each");

/// A map from numbers to values.
#[derive(Debug)]
pub(crate) struct Pages<T> {
    numbers: FxHashMap<u64, u32>,
    pages: Slab<Page<T>>,
    /// The page that was used last, and its place: chunks that are written together have
    /// neighbouring numbers.
    last: Cell<Option<(u64, u32)>>,
    len: usize,
}

/// Place of a value, valid until the next insertion or removal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    page: u32,
    rank: usize,
}

/// The values of a page without gaps, and a bitmap of their numbers.
#[derive(Debug)]
struct Page<T> {
    there: u64,
    values: Vec<T>,
}

impl<T> Default for Pages<T> {
    fn default() -> Self {
        Pages { numbers: FxHashMap::default(), pages: Slab::default(), last: Cell::default(), len: 0 }
    }
}

fn place_of(number: u64) -> (u64, u64) {
    (number / CHUNKS_PER_PAGE, 1 << (number % CHUNKS_PER_PAGE))
}

impl<T> Page<T> {
    /// Index of a value, or where it would be inserted.
    fn rank(&self, bit: u64) -> usize {
        let below = self.there & (bit - 1);
        // most pages have no gaps
        if below == bit - 1 { bit.trailing_zeros() as usize } else { below.count_ones() as usize }
    }
}

impl<T> Pages<T> {
    /// Finds the value of a number.
    #[inline]
    pub(crate) fn find(&self, number: u64) -> Option<Found> {
        let (nth, bit) = place_of(number);
        let page = match self.last.get() {
            Some((last, page)) if last == nth => page,
            _ => {
                let page = *self.numbers.get(&nth)?;
                self.last.set(Some((nth, page)));
                page
            }
        };
        let found = self.pages.get(page).filter(|page| page.there & bit != 0)?;
        Some(Found { page, rank: found.rank(bit) })
    }

    pub(crate) fn at(&self, found: Found) -> Option<&T> {
        self.pages.get(found.page)?.values.get(found.rank)
    }

    pub(crate) fn at_mut(&mut self, found: Found) -> Option<&mut T> {
        self.pages.get_mut(found.page)?.values.get_mut(found.rank)
    }

    pub(crate) fn get(&self, number: u64) -> Option<&T> {
        self.at(self.find(number)?)
    }

    /// Inserts a value; returns the value that it replaces.
    pub(crate) fn insert(&mut self, number: u64, value: T) -> Option<T> {
        let (at, bit) = place_of(number);
        let pages = &mut self.pages;
        let at = *self.numbers.entry(at).or_insert_with(|| pages.insert(Page { there: 0, values: Vec::new() }));
        let page = pages.get_mut(at)?;
        let rank = page.rank(bit);
        if page.there & bit != 0 {
            return page.values.get_mut(rank).map(|place| std::mem::replace(place, value));
        }
        page.there |= bit;
        page.values.insert(rank, value);
        self.len += 1;
        None
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        let Found { page: at, rank } = self.find(number)?;
        let page = self.pages.get_mut(at)?;
        let value = page.values.remove(rank);
        let (nth, bit) = place_of(number);
        page.there &= !bit;
        if page.there == 0 {
            self.pages.clear(at);
            self.numbers.remove(&nth);
            self.last.set(None);
        } else if page.values.len() < page.values.capacity() / 4 {
            page.values.shrink_to(page.values.len() * 2);
        }
        self.len -= 1;
        Some(value)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Values of a page, in order of their numbers.
    pub(crate) fn page(&self, page: u64) -> impl Iterator<Item = (u64, &T)> {
        let found = self.numbers.get(&page).and_then(|at| self.pages.get(*at));
        let there = found.map_or(0, |found| found.there);
        let numbers = (0..CHUNKS_PER_PAGE).filter(move |bit| there >> bit & 1 != 0).map(move |bit| page * CHUNKS_PER_PAGE + bit);
        numbers.zip(found.into_iter().flat_map(|found| &found.values))
    }

    /// All numbers, in order. Takes time in proportion to their count.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        let mut pages: Vec<u64> = self.numbers.keys().copied().collect();
        pages.sort_unstable();
        pages.into_iter().flat_map(|page| self.page(page).map(|(number, _)| number)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use millpond_testing::Random;

    use super::{CHUNKS_PER_PAGE, Pages};

    #[test]
    fn pages_hold_what_a_plain_map_holds() {
        let (mut pages, mut plain) = (Pages::default(), BTreeMap::new());
        let mut random = Random::new(1);
        for step in 0..200_000u64 {
            // crowded at first, then sparse, then nearly empty
            let number = random.below([300, 5000, 300][(step / 70_000) as usize]);
            if random.below(100) < [70, 50, 5][(step / 70_000) as usize] {
                assert_eq!(pages.insert(number, step), plain.insert(number, step));
            } else {
                assert_eq!(pages.remove(number), plain.remove(&number));
            }
            assert_eq!((pages.get(number), pages.len()), (plain.get(&number), plain.len()));
            let next = pages.find(number + 1).and_then(|found| pages.at_mut(found));
            assert_eq!(next, plain.get_mut(&(number + 1)));
            if step % 1000 == 0 {
                assert_eq!(pages.numbers(), plain.keys().copied().collect::<Vec<_>>());
                let page = number / CHUNKS_PER_PAGE;
                let range = page * CHUNKS_PER_PAGE..(page + 1) * CHUNKS_PER_PAGE;
                assert!(pages.page(page).map(|(number, value)| (number, *value)).eq(plain.range(range).map(|(n, v)| (*n, *v))));
            }
        }
    }
}
