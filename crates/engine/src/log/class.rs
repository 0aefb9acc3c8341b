//! Lifetime classes: one stream of the log each.

use std::ops::{Index, IndexMut};

use millpond_format::{LogTail, STREAMS, StreamStart};

/// Lifetime class of chunks of nodes.
pub(crate) const META_CLASS: u8 = 255;
/// Class of segments of checkpoint objects.
pub(crate) const OBJECT_CLASS: u8 = 254;
/// In place of a stream's number in the head page of a segment of nodes.
pub(crate) const NODES_HEAD: u8 = 0;
/// In place of a stream's number in the head page of a segment of checkpoint objects.
pub(crate) const OBJECTS_HEAD: u8 = 1;
/// In place of a stream's number in the headers of an object of a bucket.
pub(crate) const UPLOAD_HEAD: u8 = 2;

/// A stream of the log. The order is that of the numbers on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stream {
    /// Blocks that replace short-lived ones (SepBIT, FAST'22, class 1).
    Short,
    /// New blocks, blocks that replace long-lived ones, and records (class 2).
    Long,
    /// Compressed blocks.
    Packed,
    /// Small writes that go to special devices.
    Small,
    /// Blocks that the cleaner moves, by lifetime.
    Cleaned(Lifetime),
    /// Blocks that the cleaner moves and that stay on special devices.
    Kept,
}

/// Lifetime of blocks that the cleaner moves (SepBIT, classes 3 to 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lifetime {
    /// They come from the stream of short-lived blocks (class 3).
    Short,
    /// Their age is less than 4 average lives (class 4).
    Young,
    /// Their age is less than 16 average lives (class 5).
    Grown,
    /// All others (class 6).
    Old,
}

impl Lifetime {
    const ALL: [Lifetime; 4] = [Lifetime::Short, Lifetime::Young, Lifetime::Grown, Lifetime::Old];
}

impl Stream {
    const ALL: [Stream; STREAMS] = [
        Stream::Short,
        Stream::Long,
        Stream::Packed,
        Stream::Small,
        Stream::Cleaned(Lifetime::Short),
        Stream::Cleaned(Lifetime::Young),
        Stream::Cleaned(Lifetime::Grown),
        Stream::Cleaned(Lifetime::Old),
        Stream::Kept,
    ];

    /// All streams, in the order of their numbers.
    pub(crate) fn all() -> impl Iterator<Item = Stream> {
        Stream::ALL.into_iter()
    }

    /// The streams that guests write to, in the order of their numbers.
    pub(crate) fn guests() -> impl Iterator<Item = Stream> {
        Stream::all().filter(|stream| stream.is_guests())
    }

    /// The cleaner's streams for lifetimes, in the order of their numbers.
    pub(crate) fn cleaned() -> impl Iterator<Item = Stream> {
        Lifetime::ALL.into_iter().map(Stream::Cleaned)
    }

    /// True for a stream that guests write to.
    pub(crate) fn is_guests(self) -> bool {
        matches!(self, Stream::Short | Stream::Long | Stream::Packed | Stream::Small)
    }

    /// True for a stream that is written to special devices.
    pub(crate) fn is_special(self) -> bool {
        matches!(self, Stream::Small | Stream::Kept)
    }

    /// Number of the stream on the medium, less than [`STREAMS`]: in headers of batches, as lifetime
    /// class in the chunk table, and as position in a log tail of a root.
    pub(crate) const fn number(self) -> u8 {
        match self {
            Stream::Short => 0,
            Stream::Long => 1,
            Stream::Packed => 2,
            Stream::Small => 3,
            Stream::Cleaned(Lifetime::Short) => 4,
            Stream::Cleaned(Lifetime::Young) => 5,
            Stream::Cleaned(Lifetime::Grown) => 6,
            Stream::Cleaned(Lifetime::Old) => 7,
            Stream::Kept => 8,
        }
    }

    /// Returns the stream with a number from the medium. `None` for any other number, such as the
    /// classes of nodes and objects.
    pub(crate) fn from_number(number: u8) -> Option<Stream> {
        Stream::ALL.get(usize::from(number)).copied()
    }

    fn index(self) -> usize {
        usize::from(self.number())
    }

    /// Place where the stream starts in a log tail of a root.
    pub(crate) fn start_in(self, log_tail: &LogTail) -> StreamStart {
        log_tail.streams[self.index()]
    }
}

/// A value for each stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct PerStream<T>([T; STREAMS]);

impl<T> PerStream<T> {
    /// The values, in the order of the streams' numbers.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.0.iter()
    }

    /// The values, in the order of the streams' numbers.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut()
    }

    /// Returns what `of` makes of each value, in the order of the streams' numbers.
    pub(super) fn map<U>(&self, of: impl FnMut(&T) -> U) -> [U; STREAMS] {
        self.0.each_ref().map(of)
    }
}

impl<T> Index<Stream> for PerStream<T> {
    type Output = T;

    fn index(&self, stream: Stream) -> &T {
        &self.0[stream.index()]
    }
}

impl<T> IndexMut<Stream> for PerStream<T> {
    fn index_mut(&mut self, stream: Stream) -> &mut T {
        &mut self.0[stream.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_count_up_and_lead_back_to_their_streams() {
        assert!((0..).zip(Stream::all()).all(|(number, stream)| stream.number() == number));
        assert!(Stream::all().all(|stream| Stream::from_number(stream.number()) == Some(stream)));
        assert!(Stream::all().is_sorted());
        assert!([STREAMS as u8, OBJECT_CLASS, META_CLASS].into_iter().all(|number| Stream::from_number(number).is_none()));
    }

    #[test]
    fn a_value_is_found_under_its_stream() {
        let mut counts = PerStream::<u8>::default();
        Stream::all().for_each(|stream| counts[stream] = 10 + stream.number());
        assert!(counts.values().copied().eq(10..10 + STREAMS as u8));
        assert!(Stream::all().all(|stream| counts[stream] == 10 + stream.number()));
    }
}
