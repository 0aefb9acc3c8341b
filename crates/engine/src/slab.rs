//! A slab: values with small, reused handles.
//!
//! The crate `slab` cannot drop a value in its place, and has handles of twice the size: each
//! operation in flight stores some.

/// Values by handle.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    items: Vec<Option<T>>,
    vacant: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { items: Vec::new(), vacant: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        if let Some(at) = self.vacant.pop() {
            if let Some(place) = self.items.get_mut(at as usize) {
                *place = Some(value);
            }
            return at;
        }
        self.items.push(Some(value));
        u32::try_from(self.items.len() - 1).expect("fewer than 2^32 things in flight")
    }

    pub(crate) fn get(&self, at: u32) -> Option<&T> {
        self.items.get(at as usize).and_then(Option::as_ref)
    }

    pub(crate) fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        self.items.get_mut(at as usize).and_then(Option::as_mut)
    }

    pub(crate) fn remove(&mut self, at: u32) -> Option<T> {
        let value = self.items.get_mut(at as usize).and_then(Option::take)?;
        self.vacant.push(at);
        Some(value)
    }

    /// Drops a value in its place, which is cheaper than [`remove`](Self::remove) for large ones.
    pub(crate) fn clear(&mut self, at: u32) {
        if let Some(place) = self.items.get_mut(at as usize).filter(|place| place.is_some()) {
            *place = None;
            self.vacant.push(at);
        }
    }

    /// Returns the range of all handles, including vacant ones.
    pub(crate) fn handles(&self) -> std::ops::Range<u32> {
        0..u32::try_from(self.items.len()).unwrap_or(u32::MAX)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.items.iter().flatten()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.items.iter_mut().flatten()
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len() - self.vacant.len()
    }
}

#[cfg(test)]
mod tests;
