//! The last events, within bounds of number and bytes.

use std::collections::VecDeque;

use millpond_api::Event;

/// Bounds of the remembered events. The file in the state directory has at most twice as many lines
/// and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventBounds {
    /// Number of events.
    pub count: usize,
    /// Bytes of their lines in the file.
    pub bytes: usize,
}

impl Default for EventBounds {
    /// A busy daemon with a snapshot each minute records about 3,000 events a day, of 300 bytes
    /// each.
    fn default() -> EventBounds {
        EventBounds { count: 10_000, bytes: 4 << 20 }
    }
}

impl EventBounds {
    /// Smallest and largest bounds that a configuration can give.
    pub const LEAST: EventBounds = EventBounds { count: 100, bytes: 64 << 10 };
    /// The events are in memory, too.
    pub const MOST: EventBounds = EventBounds { count: 1_000_000, bytes: 256 << 20 };
}

/// The last events, oldest first.
#[derive(Clone, Debug)]
pub(super) struct Recent {
    bounds: EventBounds,
    /// Events, each with the length of its line in bytes.
    events: VecDeque<(Event, usize)>,
    bytes: usize,
}

impl Recent {
    pub(super) fn new(bounds: EventBounds) -> Recent {
        Recent { bounds, events: VecDeque::new(), bytes: 0 }
    }

    /// Adds an event, and forgets the oldest ones beyond the bounds. Keeps the newest in any case.
    pub(super) fn keep(&mut self, event: Event) {
        let length = line(&event).len();
        self.bytes += length;
        self.events.push_back((event, length));
        while self.events.len() > 1 && (self.events.len() > self.bounds.count || self.bytes > self.bounds.bytes) {
            self.bytes -= self.events.pop_front().map_or(0, |(_, length)| length);
        }
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &Event> + ExactSizeIterator {
        self.events.iter().map(|(event, _)| event)
    }

    pub(super) fn last(&self) -> Option<&Event> {
        self.events.back().map(|(event, _)| event)
    }

    pub(super) fn len(&self) -> usize {
        self.events.len()
    }

    /// Returns the bounds.
    pub(super) fn bounds(&self) -> EventBounds {
        self.bounds
    }
}

/// Returns an event as a line of the file.
pub(super) fn line(event: &Event) -> Vec<u8> {
    let mut line = serde_json::to_vec(event).unwrap_or_default();
    line.push(b'\n');
    line
}
