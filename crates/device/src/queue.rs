//! Operations of a pool that wait between its gate and the system call.

use std::collections::VecDeque;

/// A queue in which urgent items overtake, and from which items can be recalled.
#[derive(Debug)]
pub struct Queue<T> {
    waiting: VecDeque<T>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Queue { waiting: VecDeque::new() }
    }
}

impl<T> Queue<T> {
    /// Adds an item; an urgent one before all others.
    pub fn push(&mut self, item: T, urgent: bool) {
        if urgent { self.waiting.push_front(item) } else { self.waiting.push_back(item) }
    }

    /// Removes the next item.
    pub fn pop(&mut self) -> Option<T> {
        self.waiting.pop_front()
    }

    /// Removes the items that change a device, in their order: the lease is over (INV-CLAIM-1).
    pub fn recall(&mut self, mut changes: impl FnMut(&T) -> bool) -> Vec<T> {
        let (back, rest) = std::mem::take(&mut self.waiting).into_iter().partition(|item| changes(item));
        self.waiting = rest;
        VecDeque::into(back)
    }

    /// The items, the next one first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.waiting.iter()
    }

    /// True when the queue has no items.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::Queue;

    #[test]
    fn what_is_urgent_overtakes_and_what_changes_comes_back() {
        let mut queue = Queue::default();
        (1..=5).for_each(|number| queue.push(number, false));
        queue.push(0, true);
        assert_eq!(queue.recall(|number| number % 2 == 1), [1, 3, 5]);
        assert_eq!(std::iter::from_fn(|| queue.pop()).collect::<Vec<_>>(), [0, 2, 4]);
        assert!(queue.is_empty());
    }
}
